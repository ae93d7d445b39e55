"""Files of a folder in which others write."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from apache_beam.io.filesystems import FileSystems

from preprocessing.files import begins_with, exists, names_below, read_json, read_text, size, write_text
from preprocessing.sources import StorageError
from preprocessing.storage_errors import exit_code
from tests.preprocessing import memory_filesystem


def test_names_below_are_those_of_regular_files(tmp_path: Path) -> None:
    assert names_below(str(tmp_path / "nowhere")) == {}
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "file").write_bytes(b"123")
    (tmp_path / "link").symlink_to("deep/er/file")
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    assert names_below(str(tmp_path)) == {"deep/er/file": 3, "link": 3}


def test_a_file_that_goes_while_a_folder_is_looked_at_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a worker renames tmp-... to a note's name between the look at the folder and that at the file."""
    for name in ("note.json", "tmp-1"):
        (tmp_path / name).write_bytes(b"{}")
    listed, stat = os.walk, os.stat

    def list_and_rename(folder: str, **arguments: Any) -> Iterator[Any]:
        found = list(listed(folder, **arguments))
        (tmp_path / "tmp-1").rename(tmp_path / "shard.json")
        return iter(found)

    monkeypatch.setattr(os, "walk", list_and_rename)
    assert names_below(str(tmp_path)) == {"note.json": 2}
    monkeypatch.undo()

    def look_and_remove(path: Path, **arguments: bool) -> os.stat_result:
        found = stat(path, **arguments)
        if Path(path).name == "note.json":
            Path(path).unlink()
        return found

    monkeypatch.setattr(os, "stat", look_and_remove)  # the first look at a file is the only one
    assert names_below(str(tmp_path)) == {"note.json": 2, "shard.json": 2}


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
@pytest.mark.parametrize("name", ["", "deep"])
def test_a_folder_that_can_not_be_looked_into_is_not_taken_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, name: str
) -> None:
    """A job that is there would be taken for none, and another one begun among its files."""
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "file").touch()
    scandir = os.scandir

    def fail(path: str) -> Any:
        if Path(path) == tmp_path / name:
            raise OSError(number, os.strerror(number), path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", fail)
    with pytest.raises(OSError, match=os.strerror(number)):
        names_below(str(tmp_path))


def test_what_is_not_there_is_told_from_what_can_not_be_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("3")
    (tmp_path / "loop").symlink_to("loop")
    assert (exists(f"{tmp_path}/file"), read_text(f"{tmp_path}/file"), read_json(f"{tmp_path}/file")) == (True, "3", 3)
    for name in ("none", "file/below", "loop"):
        assert (exists(f"{tmp_path}/{name}"), read_text(f"{tmp_path}/{name}")) == (False, None)

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "stat", fail)
    looks: list[Callable[[str], Any]] = [exists, read_text, read_json]
    for look in looks:
        with pytest.raises(OSError, match="Input/output error"):
            look(f"{tmp_path}/file")


def test_a_folder_that_can_not_be_looked_at_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which would fail as there is one: a mistake of the user's, as it would seem."""

    def fail(path: Path | str, **_: object) -> os.stat_result:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    def write() -> None:
        write_text(f"{tmp_path}/new/file", "whole", f"{tmp_path}/scratch")

    write()
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", fail)
        write()
    assert (tmp_path / "new" / "file").read_text() == "whole"
    assert list((tmp_path / "scratch").iterdir()) == []


def test_an_input_that_is_gone_is_told_so_wherever_it_lay(tmp_path: Path) -> None:
    for path in (f"{tmp_path}/gone", f"{memory_filesystem.MemoryFileSystem.SCHEME}://bucket/gone"):
        with pytest.raises(StorageError) as raised:
            size(path)
        assert str(raised.value) == (
            f"{path}: can't be read (No such file or directory); once it can, the same command goes on"
        )


@pytest.mark.parametrize(("number", "code"), [(errno.ESTALE, 1), (errno.EACCES, 2)])
@pytest.mark.parametrize(
    ("owner", "call", "look"),
    [(Path, "stat", size), (FileSystems, "open", partial(begins_with, magic=b"PAR1"))],
    ids=["size", "content"],
)
def test_an_input_that_can_not_be_looked_at_says_whether_that_may_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: int,
    owner: type, call: str, look: Callable[[str], object],
) -> None:  # fmt: skip
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    path = f"{tmp_path}/a.txt"
    Path(path).touch()
    monkeypatch.setattr(owner, call, fail)
    with pytest.raises(StorageError) as raised:
        look(path)
    assert str(raised.value) == f"{path}: can't be read ({os.strerror(number)}); once it can, the same command goes on"
    assert exit_code(raised.value) == code
