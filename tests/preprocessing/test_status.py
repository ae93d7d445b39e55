"""What is at a path, told the same by every version of Python, and never where storage fails."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from preprocessing.status import exists, is_dir, is_file, status


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("four")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("file", "folder", "nothing", "loop"):
        (tmp_path / f"to {name}").symlink_to(name if name != "loop" else "to loop")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "there", "file", "directory"),
    [
        ("file", True, True, False),
        ("to file", True, True, False),
        ("folder", True, False, True),
        ("to folder", True, False, True),
        ("pipe", True, False, False),
        ("nothing", False, False, False),
        ("to nothing", False, False, False),
        ("to loop", False, False, False),
        ("file/below", False, False, False),
        ("x" * 300, False, False, False),
        ("\0", False, False, False),
    ],
)
@pytest.mark.parametrize("kind", [str, Path])
def test_what_is_there(
    folder: Path, kind: Callable[[str], str | Path], name: str, there: bool, file: bool, directory: bool
) -> None:
    path = kind(f"{folder}/{name}")
    assert (exists(path), is_file(path), is_dir(path)) == (there, file, directory)


def test_a_link_itself(folder: Path) -> None:
    found = status(folder / "to nothing", follow=False)
    assert found
    assert found.st_size == len("nothing")
    assert status(folder / "nothing", follow=False) is None


@pytest.mark.parametrize("ask", [status, exists, is_file, is_dir])
@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_what_can_not_be_told_is_not_taken_for_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Path], object], number: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "stat", fail)
    with pytest.raises(OSError, match=os.strerror(number)):
        ask(folder / "file")
