"""A checksum is noted for the very file that was read, and for no other."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from eval import stamps
from eval.stamps import known_checksum, read_checksum, stamp
from preprocessing.schema import checksum


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(b"one")
    return path


@pytest.fixture
def note(tmp_path: Path) -> Path:
    return tmp_path / "note.json"


def test_a_checksum_is_known_once_it_was_read(file: Path, note: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert known_checksum(file, note) is None
    assert read_checksum(file, note) == checksum(file)
    monkeypatch.setattr(stamps, "checksum", lambda _: pytest.fail("read again"))
    assert known_checksum(file, note) == read_checksum(file, note) == checksum(file)


@pytest.mark.parametrize("how", ["written over", "put in its place", "a copy in its place"])
def test_of_other_content_with_the_old_size_and_time_nothing_is_known(file: Path, note: Path, how: str) -> None:
    read_checksum(file, note)
    before = file.stat()
    other = file.with_name("other")
    other.write_bytes(b"two")
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    if how == "written over":
        shutil.copyfile(other, file)
        shutil.copystat(other, file)
    elif how == "put in its place":
        other.replace(file)
    else:
        file.unlink()
        shutil.copy2(other, file)
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert known_checksum(file, note) is None
    assert read_checksum(file, note) == known_checksum(file, note) == checksum(file)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", "{}", "[" * 100_000, '{"stamp": null}', '{"stamp": 3, "blake2b": "ab"}']
)
def test_a_damaged_note_says_nothing(file: Path, note: Path, text: str) -> None:
    note.write_text(text)
    assert known_checksum(file, note) is None
    assert read_checksum(file, note) == checksum(file)


def test_of_a_file_that_is_gone_nothing_is_known(file: Path, note: Path) -> None:
    read_checksum(file, note)
    file.unlink()
    assert stamp(file) is None
    assert known_checksum(file, note) is None
    with pytest.raises(FileNotFoundError):
        read_checksum(file, note)


def test_a_checksum_that_can_not_be_noted_is_read(file: Path, note: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(stamps, "write_atomically", full)
    assert read_checksum(file, note) == checksum(file)
    assert not note.exists()


def test_a_file_that_is_replaced_while_it_is_read_is_read_again(
    file: Path, note: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replace_then_read(path: Path) -> str:
        read = checksum(path)
        file.with_name("new").write_bytes(b"two")
        file.with_name("new").replace(file)
        return read

    monkeypatch.setattr(stamps, "checksum", replace_then_read)
    read_checksum(file, note)
    assert known_checksum(file, note) is None
