import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.streams import FULL, stdout_to
from trainer import outcome
from trainer.run_directory import RunDirectory


@pytest.mark.parametrize(("ending", "reason", "code", "word"), [
    ("done", "", 0, "done"),
    ("requeue", "asked to stop after step 7", 10, "requeue"),
    ("failed", "step 3: the loss is nan", 11, "failed"),
    (None, "", 12, "crashed"),
])  # fmt: skip
def test_a_word_and_an_exit_code_for_job_scripts(tmp_path, capsys, ending, reason, code, word):
    RunDirectory(tmp_path).set_outcome(ending, reason)
    assert outcome.main([str(tmp_path)]) == code
    printed = capsys.readouterr()
    assert printed.out == f"{word}\n"
    assert reason in printed.err
    assert bool(printed.err) == (ending != "done")


def test_the_command_s_exit_code_is_that_of_the_word(tmp_path):
    RunDirectory(tmp_path).set_outcome("requeue", "asked to stop after step 7")
    command = [sys.executable, "-m", "trainer.outcome", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout) == (10, "requeue\n")
    assert done.stderr == f"{tmp_path}: asked to stop after step 7\n"


def test_the_exit_code_is_the_same_where_the_word_finds_no_room(tmp_path, capsys):
    RunDirectory(tmp_path).set_outcome("requeue")
    with stdout_to(FULL):
        assert outcome.main([str(tmp_path)]) == 10
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("text", "told"), [
    ("", "it left no word of how it ended"),
    ("fine\n", "its outcome is none that is known here: fine"),
    ("don", "its outcome is none that is known here: don"),
])  # fmt: skip
def test_half_a_word_is_no_word(tmp_path, capsys, text, told):
    """The node was lost while it was written."""
    (tmp_path / "outcome").write_text(text)
    assert outcome.main([str(tmp_path)]) == 12
    assert capsys.readouterr() == ("crashed\n", f"{tmp_path}: {told}\n")


def test_a_folder_that_is_not_there_is_a_mistake_and_no_reason_to_start_again(tmp_path, capsys):
    assert outcome.main([str(tmp_path / "no\nwhere")]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == rf"error: {tmp_path}/no\nwhere: not a run directory (No such file or directory)" + "\n"


@pytest.mark.parametrize("call", ["stat", "read_text"])
def test_a_run_that_can_not_be_read_for_a_moment_is_no_mistake(tmp_path, monkeypatch, capsys, call):
    """Whoever asks again gets the word."""

    def fail(*_, **__):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    RunDirectory(tmp_path).set_outcome("requeue", "asked to stop")
    with monkeypatch.context() as patch:
        patch.setattr(Path, call, fail)
        assert outcome.main([str(tmp_path)]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == f"error: {tmp_path}: can't be read now (Stale file handle); give the same command again\n"
    assert outcome.main([str(tmp_path)]) == 10


def test_a_run_that_was_made_and_never_began_has_crashed(tmp_path, capsys):
    assert outcome.main([str(tmp_path)]) == 12
    assert "it left no word of how it ended" in capsys.readouterr().err


def test_a_file_is_no_run(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert outcome.main([str(tmp_path / "file")]) == 2
    assert "file: not a run directory" in capsys.readouterr().err


def test_asking_needs_no_torch():
    """A job script asks on a login node, or in the seconds that are left of a preempted job."""
    code = "import sys, trainer.outcome; print(sorted({'torch', 'numpy', 'pyarrow', 'deepspeed'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
