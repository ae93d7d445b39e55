"""What is at a path, told the same by every version of Python, and never where storage fails."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from preprocessing.status import entries, exists, is_dir, is_file, leads_nowhere, looking, make_folder, may, status
from preprocessing.storage_errors import UnavailableError
from tests.failing import LISTING, fail_on


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
    leading = {path.name for path in folder.iterdir() if leads_nowhere(path)}
    assert leading == {"to nothing", "to loop"}
    assert not leads_nowhere(folder / "nothing")


@pytest.mark.parametrize("ask", [status, exists, is_file, is_dir])
@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_what_can_not_be_told_is_not_taken_for_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Path], object], number: int
) -> None:
    fail_on(monkeypatch, os, "stat", number=number)
    with pytest.raises(OSError, match=os.strerror(number)):
        ask(folder / "file")


def test_what_a_user_may_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert may(folder / "file", os.R_OK)
    assert may(folder / "to folder", os.W_OK | os.X_OK)
    assert not may(folder / "file", os.X_OK)
    assert not may(folder / "nothing", os.F_OK)
    monkeypatch.setattr(os, "access", lambda *_: False)  # as it says where storage fails
    assert not may(folder / "file", os.R_OK)
    fail_on(monkeypatch, os, "stat", folder / "file")
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        may(folder / "file", os.R_OK)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_a_folder_that_can_not_be_listed_is_not_taken_for_an_empty_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    (folder / "folder" / ".b").touch()
    (folder / "folder" / "a").mkdir()
    assert [path.name for path in entries(folder / "to folder")] == [".b", "a"]
    assert entries(folder / "nothing") == entries(folder / "file") == entries(folder / "file" / "below") == []
    fail_on(monkeypatch, os, LISTING, folder / "folder", number)
    with pytest.raises(OSError, match=os.strerror(number)):
        entries(folder / "folder")


def test_a_folder_is_made_where_there_is_none(folder: Path) -> None:
    with pytest.raises(FileNotFoundError):
        make_folder(folder / "new" / "inner")
    make_folder(folder / "new" / "inner", parents=True)
    make_folder(folder / "new" / "inner")
    make_folder(folder / "to folder")
    assert (folder / "new" / "inner").is_dir()
    for parents in (False, True):
        with pytest.raises(FileExistsError):
            make_folder(folder / "file", parents=parents)
        with pytest.raises(FileExistsError, match=f"a link to what is not there: '{folder}/to nothing'"):
            make_folder(folder / "to nothing", parents=parents)


@pytest.mark.parametrize("name", ["folder", "folder/new"])
def test_a_folder_that_can_not_be_looked_at_is_not_called_a_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(Path, "is_dir", os.path.isdir)  # as from Python 3.14 on
    really_stat, really_make, failures = os.stat, os.mkdir, [2]

    def fail(path: object, **options: Any) -> os.stat_result:
        if str(path) == f"{folder}/folder" and failures[0]:
            failures[0] -= 1
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return really_stat(path, **options)

    def find_missing(path: object, mode: int) -> None:
        if str(path) == f"{folder}/folder/new" and failures[0]:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        really_make(path, mode)

    monkeypatch.setattr(os, "stat", fail)
    monkeypatch.setattr(os, "mkdir", find_missing)
    with pytest.raises(OSError, match="Stale file handle"):
        make_folder(folder / name, parents=True)
    failures[0] = 1
    make_folder(folder / name, parents=True)
    assert (folder / name).is_dir()


def test_a_look_ends_where_a_user_may_not_and_not_where_storage_fails(folder: Path) -> None:
    with looking(folder):
        raise PermissionError(errno.EACCES, "of this user")
    failure = OSError(errno.ESTALE, os.strerror(errno.ESTALE))
    with (
        pytest.raises(UnavailableError, match=rf"^{folder}: can't be read now \(Stale file handle\); give"),
        looking(folder),
    ):
        raise failure
