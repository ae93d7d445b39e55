"""Files wherever they lie, and those of a folder in which others write."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from apache_beam.io.filesystem import BeamIOError
from apache_beam.io.filesystems import FileSystems

from preprocessing import files
from preprocessing.files import (
    begins_with,
    exists,
    is_arrow,
    local_copy,
    names_below,
    publish,
    publish_arrow,
    read_batch,
    read_json,
    read_note,
    read_text,
    remove,
    size,
    write_note,
    write_text,
)
from preprocessing.schema import checksum
from preprocessing.sources import StorageError
from preprocessing.storage_errors import exit_code
from tests.failing import fail_on
from tests.preprocessing import memory_filesystem


def test_names_below_are_those_of_regular_files(tmp_path: Path) -> None:
    assert names_below(str(tmp_path / "nowhere")) == {}
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "file").write_bytes(b"123")
    (tmp_path / "link").symlink_to("deep/er/file")
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    assert names_below(str(tmp_path)) == {"deep/er/file": 3, "link": 3}


def test_a_path_is_found_from_another_folder_and_through_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("deep")
    assert files.absolute("a/b") == f"{tmp_path}/a/b"
    assert files.absolute("/a/b") == "/a/b"
    assert files.absolute("gs://bucket/a") == "gs://bucket/a"
    assert files.is_same("link/../deep/a", f"{tmp_path}/deep/a")
    assert not files.is_same("deep/a", "deep/b")
    assert not files.is_same("gs://bucket/a", "gs://bucket/b/../a"), "names there have no detours"


def test_a_place_that_beam_does_not_know_is_no_empty_folder() -> None:
    with pytest.raises(OSError, match=r"^Beam knows no nowhere://, but gs://, "):
        names_below("nowhere://bucket/folder")


@pytest.mark.parametrize(
    ("place", "said", "told"),
    [
        ("gs://b", "Unable to get filesystem from specified path", "gs:// needs an extra of Beam: pip install '"),
        ("s3://b", "Missing boto3 requirement", "s3:// needs an extra of Beam: pip install 'apache-beam[aws]'"),
        ("gs://b", "Forbidden", "Forbidden"),
        ("s3://b", "Unable to get filesystem from specified path", "Unable to get filesystem from specified path"),
        ("/folder", "Unable to get filesystem from specified path", "Unable to get filesystem from specified path"),
        ("swift://b", "Unable to get filesystem from specified path", "Beam knows no swift://, but gs://, s3://, "),
    ],
)
def test_an_extra_of_beam_is_only_asked_for_where_it_is_missing(place: str, said: str, told: str) -> None:
    assert files.why_not_found(place, ValueError(said)).startswith(told)


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
    fail_on(monkeypatch, os, "scandir", tmp_path / name, number)
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
    fail_on(monkeypatch, os, "stat")
    looks: list[Callable[[str], Any]] = [exists, read_text, read_json]
    for look in looks:
        with pytest.raises(OSError, match="Input/output error"):
            look(f"{tmp_path}/file")


@pytest.mark.parametrize(("right", "wrong"), [("120", "121"), ("noted", "notes"), ("null", "3"), ("}", "")])
def test_a_note_that_is_not_as_it_was_written_is_none(tmp_path: Path, right: str, wrong: str) -> None:
    note = tmp_path / "note.json"
    assert read_note(str(note)) is None
    write_note(str(note), {"rows": (120, None, 0.1)}, str(tmp_path))
    assert read_note(str(note)) == {"rows": [120, None, 0.1]}
    note.write_text(note.read_text().replace(right, wrong, 1))
    assert read_note(str(note)) is None


@pytest.mark.parametrize("content", ["", "{", '{"a": 1', "[" * 100_000])
def test_json_that_is_not_whole_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "note.json").write_text(content)
    assert read_json(f"{tmp_path}/note.json") is None


def test_a_folder_that_can_not_be_looked_at_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which would fail as there is one: a mistake of the user's, as it would seem."""

    def write() -> None:
        write_text(f"{tmp_path}/new/file", "whole", f"{tmp_path}/scratch")

    write()
    with monkeypatch.context() as patch:
        fail_on(patch, os, "stat")
        write()
    assert (tmp_path / "new" / "file").read_text() == "whole"
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.fixture
def far_away(monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder without files on another file system."""
    monkeypatch.setattr(memory_filesystem, "FILES", {})
    return f"{memory_filesystem.MemoryFileSystem.SCHEME}://bucket/folder"


@pytest.fixture(params=["here", "far away"])
def place(request: pytest.FixtureRequest, tmp_path: Path, far_away: str) -> str:
    """A folder without files, of this machine's file system or of another one."""
    return str(tmp_path / "folder") if request.param == "here" else far_away


def test_files_are_written_found_read_and_removed_wherever_they_lie(place: str, tmp_path: Path) -> None:
    note, batch = f"{place}/deep/note.json", pa.record_batch({"number": [1, 2, 3]})
    assert (exists(note), read_text(note), read_json(note), names_below(place)) == (False, None, None, {})
    write_text(note, "[1, 2]", f"{place}/.work")
    with publish_arrow(f"{place}/a.arrow", f"{place}/.work", batch.schema) as writer:
        writer.write_batch(batch)
    assert (exists(note), read_text(note), read_json(note), size(note)) == (True, "[1, 2]", [1, 2], 6)
    assert names_below(place) == {"deep/note.json": 6, "a.arrow": size(f"{place}/a.arrow")} == names_below(f"{place}/")
    assert (begins_with(note, b"[1"), begins_with(note, b"1")) == (True, False)
    assert read_batch(f"{place}/a.arrow") == batch
    assert (is_arrow(f"{place}/a.arrow"), is_arrow(note), is_arrow(f"{place}/none.arrow")) == (True, False, False)
    assert Path(local_copy(note, str(tmp_path))).read_text() == "[1, 2]"
    remove(place, ["deep/note.json", "none.json", "a.arrow"])
    assert names_below(place) == {}


def test_what_fails_while_it_is_written_leaves_what_was_there(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_half() -> None:
        with publish(f"{place}/note", place) as file:
            file.write(b"ha")
            raise ValueError("of the other half")

    write_text(f"{place}/note", "whole", place)
    with pytest.raises(ValueError, match="of the other half"):
        write_half()
    assert names_below(place) == {"note": 5}
    assert read_text(f"{place}/note") == "whole"
    fail_on(monkeypatch, files, "_remove")
    with pytest.raises(ValueError, match="of the other half"):  # is what is told, whatever comes of it
        write_half()


def test_what_is_written_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a power failure may leave the name, and nothing in it."""
    on_disk: list[tuple[str, bytes]] = []

    def fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").resolve()
        on_disk.append((str(path), path.read_bytes()))
        assert not (tmp_path / "note").exists()

    renamed: list[str] = []
    rename = files._rename
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(files, "_rename", lambda *names: (renamed.append(names[0]), rename(*names)))
    write_text(f"{tmp_path}/note", "whole", str(tmp_path))
    assert on_disk == [(renamed[0], b"whole")]
    assert (tmp_path / "note").read_text() == "whole"
    assert names_below(str(tmp_path)) == {"note": 5}


def test_a_folder_that_another_worker_makes_at_the_same_time_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made_too_late(call: Callable[..., Any]) -> Callable[..., Any]:
        def make_and_fail(path: Path, target: str) -> Any:
            try:
                return call(path, target)
            except FileNotFoundError:  # of an opening, whose target is a mode, or of a renaming
                (Path(target) if "/" in target else path).parent.mkdir(parents=True)
                raise

        return make_and_fail

    for call in ("open", "replace"):
        monkeypatch.setattr(Path, call, made_too_late(getattr(Path, call)))
    write_text(f"{tmp_path}/new/deep/file", "whole", f"{tmp_path}/scratch")
    assert names_below(str(tmp_path)) == {"new/deep/file": 5}


def test_what_is_written_is_counted_and_hashed_by_its_bytes(tmp_path: Path) -> None:
    with publish(f"{tmp_path}/numbers", str(tmp_path)) as file:
        for piece in (b"ab", np.arange(3, dtype=np.uint32), pa.py_buffer(b"")):
            file.write(piece)
    written = tmp_path / "numbers"
    assert (file.bytes, file.blake2b) == (14, checksum(written))


def test_folders_are_made_at_any_depth(tmp_path: Path) -> None:
    write_text(f"{tmp_path}/new/deep/file", "whole", f"{tmp_path}/scratch/deep")
    assert names_below(str(tmp_path)) == {"new/deep/file": 5}


def test_a_file_system_that_replaces_no_file_keeps_the_first_of_two_attempts(
    far_away: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = memory_filesystem.MemoryFileSystem.rename

    def refuse(file_system: memory_filesystem.MemoryFileSystem, sources: list[str], targets: list[str]) -> None:
        if targets[0] in memory_filesystem.FILES or targets[0].endswith("/never"):
            raise BeamIOError("refused")
        rename(file_system, sources, targets)

    monkeypatch.setattr(memory_filesystem.MemoryFileSystem, "rename", refuse)
    for _attempt in range(2):
        write_text(f"{far_away}/note", "whole", far_away)
    assert names_below(far_away) == {"note": 5}
    with pytest.raises(BeamIOError, match="refused"):
        write_text(f"{far_away}/never", "whole", far_away)
    assert names_below(far_away) == {"note": 5}


def test_a_folder_goes_with_the_last_of_its_files(tmp_path: Path) -> None:
    for name in ("emptied/one", "emptied/two", "kept/one", "kept/two"):
        write_text(f"{tmp_path}/{name}", "text", str(tmp_path))
    remove(str(tmp_path), ["emptied/one", "emptied/two", "kept/one"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept"]
    assert names_below(str(tmp_path)) == {"kept/two": 4}
    remove(str(tmp_path / "kept"), ["two"])
    assert (tmp_path / "kept").is_dir(), "the folder itself is the user's"


def test_what_can_not_be_removed_is_told_and_what_comes_after_it_stays(tmp_path: Path) -> None:
    (tmp_path / "folder" / "in the way").mkdir(parents=True)
    for name in ("before", "after"):
        (tmp_path / name).touch()
    with pytest.raises(OSError, match="folder"):
        remove(str(tmp_path), ["before", "folder", "after"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["after", "folder"]


def test_a_name_that_looks_like_a_pattern_is_a_name(tmp_path: Path) -> None:
    for name in ("a[1].txt", "a1.txt", "*"):
        (tmp_path / name).touch()
    remove(str(tmp_path), ["a[1].txt", "*"])
    assert names_below(str(tmp_path)) == {"a1.txt": 0}


def test_files_of_other_names_have_copies_of_other_names(far_away: str, tmp_path: Path) -> None:
    for name in ("documents", "lines"):
        write_text(f"{far_away}/{name}", name, far_away)
    copies = [local_copy(f"{far_away}/{name}", str(tmp_path)) for name in ("documents", "lines")]
    assert [Path(copy).read_text() for copy in copies] == ["documents", "lines"]


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
    path = f"{tmp_path}/a.txt"
    Path(path).touch()
    fail_on(monkeypatch, owner, call, number=number)
    with pytest.raises(StorageError) as raised:
        look(path)
    assert str(raised.value) == f"{path}: can't be read ({os.strerror(number)}); once it can, the same command goes on"
    assert exit_code(raised.value) == code
