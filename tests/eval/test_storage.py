"""What keeps a file from being read or written is told as whose matter it is."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from unittest import mock

import pytest

from eval.errors import UsageError
from eval.storage import check_output, reading
from preprocessing.storage_errors import UnavailableError
from tests.failing import REASON


def refuse(number: int, path: Path | None = None) -> OSError:
    return OSError(number, os.strerror(number), *([str(path)] if path else ()))


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR])
def test_what_is_not_there_is_for_the_reader_to_judge(tmp_path: Path, number: int) -> None:
    with pytest.raises(OSError, match=os.strerror(number)), reading(tmp_path):
        raise refuse(number, tmp_path)


def test_what_is_another_user_s_is_a_mistake(tmp_path: Path) -> None:
    told = f"{tmp_path}: this user may not read it; ask its owner for that"
    with pytest.raises(UsageError, match=told), reading(tmp_path):
        raise refuse(errno.EACCES, tmp_path)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EMFILE, errno.ETIMEDOUT])
def test_of_anything_else_the_same_command_may_hear_nothing(tmp_path: Path, number: int) -> None:
    told = f"can't be read now ({os.strerror(number)}); give the same command again"
    for named, file in ((tmp_path / "named", tmp_path / "named"), (None, tmp_path)):  # a read itself names no file
        with pytest.raises(UnavailableError) as raised, reading(tmp_path):
            raise refuse(number, named)
        assert str(raised.value) == f"{file}: {told}"


def test_what_is_no_word_of_the_operating_system_stays_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="own"), reading(tmp_path):
        raise OSError("the library's own")


def test_storage_that_fails_where_a_permission_is_asked_for_refuses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """os.access says no then, as where there is no permission."""
    monkeypatch.setattr(os, "access", mock.Mock(side_effect=[False, True]))
    check_output(tmp_path)  # of which the next look knows better
    monkeypatch.setattr(os, "access", mock.Mock(return_value=False))
    monkeypatch.setattr("eval.storage.is_dir", mock.Mock(return_value=True))
    monkeypatch.setattr(os, "stat", mock.Mock(side_effect=OSError(errno.EIO, REASON)))
    with pytest.raises(OSError, match=REASON):
        check_output(tmp_path)
