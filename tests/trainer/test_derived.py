"""What the commands have in common that write a new directory of weights."""

import errno
import os

import pytest

from preprocessing.storage_errors import UnavailableError
from trainer.derived import write_new


def failed(number, file=None):
    return OSError(number, os.strerror(number), *([file] if file else ()))


def caused(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(("error", "code", "told"), [
    (failed(errno.ENOSPC, "weights"), 2, "weights: No space left on device; choose another directory, or make room"),
    (failed(errno.EACCES), 2, "[Errno 13] Permission denied; choose another directory, or make room"),
    (failed(errno.EIO, "weights"), 1, "weights: Input/output error; give the same command again"),
    (failed(errno.ESTALE), 1, "[Errno 116] Stale file handle; give the same command again"),
    (ValueError("no tokenizer there"), 2, "no tokenizer there"),
    (caused(ValueError("config.json: cut"), failed(errno.EIO)), 1, "config.json: cut; give the same command again"),
    (UnavailableError("a: can't be read now; give it again"), 1, "a: can't be read now; give it again"),
])  # fmt: skip
def test_what_keeps_a_directory_from_being_written_is_told_with_what_helps(tmp_path, capsys, error, code, told):
    def write():
        raise error

    assert write_new(tmp_path / "new", write) == code
    assert capsys.readouterr() == ("", f"error: {told}\n")


def test_a_directory_that_is_written_is_told_and_one_that_is_there_stays(tmp_path, capsys):
    assert write_new(tmp_path / "new", lambda: "64 words") == 0
    assert capsys.readouterr() == (f"{tmp_path}/new: 64 words\n", "")
    assert write_new(tmp_path, lambda: pytest.fail("would be written")) == 2
    assert capsys.readouterr().err == f"error: {tmp_path}: is there already; choose another directory\n"
