"""Files that are whole or not there, and lines that are."""

import contextlib
import errno
import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest

from tests.limits import room_for
from trainer.files import (
    DamagedFileError,
    append_lines,
    discard,
    incomplete,
    publish,
    read_lines,
    sync,
    write_atomically,
)

DAMAGED_LINES = [b"{", b'{"step": \xff}', b"\0" * 13, b"", b"[" * 100_000, b"9" * 5000]


@pytest.mark.parametrize("line", DAMAGED_LINES)
def test_a_damaged_line_is_named(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' + line + b"\n")
    with pytest.raises(DamagedFileError, match=r"metrics\.jsonl: line 2 is damaged .*; mend it, or delete the line"):
        list(read_lines(path))


def test_floats_survive_a_line_bit_for_bit(tmp_path):
    values = {"step": 1, "third": 1 / 3, "tiny": 5e-324, "sum": 0.1 + 0.2}
    append_lines(tmp_path / "metrics.jsonl", values)
    assert list(read_lines(tmp_path / "metrics.jsonl")) == [values]


def test_an_atomic_write_leaves_the_old_text_or_the_new(tmp_path, monkeypatch):
    monkeypatch.setattr("pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(OSError("no space left")))
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(OSError, match="no space"):
        write_atomically(path, "new")
    assert path.read_text() == "old"


def test_a_file_that_several_write_is_whole_for_who_reads_it(tmp_path):
    """As the report of a run that a user and a cron job write at once."""
    path, texts = tmp_path / "file", [f"{i}" * 200_000 for i in range(4)]
    write_atomically(path, texts[0])
    with ThreadPoolExecutor() as pool:  # whose files are locked against each other as those of processes are
        writers = [pool.submit(lambda text: [write_atomically(path, text) for _ in range(30)], text) for text in texts]
        while not all(writer.done() for writer in writers):
            assert path.read_text() in texts
        for writer in writers:
            writer.result()
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_what_a_killed_process_left_is_written_over(tmp_path):
    path = tmp_path / "file"
    incomplete(path).write_text("longer than what is written now")
    write_atomically(path, "new")
    assert path.read_text() == "new"


def test_a_line_opens_its_file_once(tmp_path, monkeypatch):
    """A training step waits for that, which is some requests of a network's disk each time."""
    opened, path_open = [], Path.open
    monkeypatch.setattr(Path, "open", lambda path, *mode: opened.append(path) or path_open(path, *mode))
    for step in (1, 2, 3):
        append_lines(tmp_path / "metrics.jsonl", {"step": step})
    assert len(opened) == 3


def test_a_line_that_finds_no_room_leaves_none_of_itself(tmp_path):
    path = tmp_path / "metrics.jsonl"
    append_lines(path, {"step": 1})
    with room_for(40), pytest.raises(OSError, match="File too large"):
        append_lines(path, {"step": 2, "words": "x" * 100})
    append_lines(path, {"step": 2})
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'


def test_a_first_line_that_finds_no_room_leaves_an_empty_file(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with room_for(40), pytest.raises(OSError, match="File too large"):
        append_lines(path, {"words": "x" * 100})
    assert path.read_bytes() == b""


@pytest.mark.parametrize("length", [1, 100, 200_000])
def test_half_a_line_that_could_not_be_taken_back_is_no_part_of_the_next(tmp_path, length):
    """As where storage fails in the midst of a line, and for a moment longer."""
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n' + '"' * length)
    append_lines(path, {"step": 2})
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'
    path.write_text("{" * length)
    append_lines(path, {"step": 1})
    assert path.read_text() == '{"step": 1}\n'


@pytest.fixture
def close_fails(monkeypatch):
    """Have files that Path opens for writing be closed, and tell an error, as a network's disk does."""

    def fail(file):
        file.close()
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    class Told:
        def __init__(self, file):
            self.file = file

        def __getattr__(self, name):
            return getattr(self.file, name)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            fail(self.file)

        def close(self):
            fail(self.file)

    really_open = Path.open

    def open_file(path, mode="r", **options):
        file = really_open(path, mode, **options)
        return file if mode in ("r", "rb") else Told(file)

    monkeypatch.setattr(Path, "open", open_file)


def test_a_line_that_was_written_before_its_file_could_not_be_closed_is_not_there_twice(
    tmp_path, monkeypatch, close_fails
):
    """Nor taken back, which fails as well."""
    path, lines = tmp_path / "metrics.jsonl", [{"step": step, "loss": 0.1 * step} for step in range(8, 12)]

    def fail(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "truncate", fail)
    for line in lines:
        for _ in range(3):
            with pytest.raises(OSError, match="Input/output error"):
                append_lines(path, line)
    assert list(read_lines(path)) == lines


@pytest.mark.parametrize("written", range(5))
def test_lines_of_which_the_first_were_written_already_are_not_there_twice(tmp_path, written):
    path, lines = tmp_path / "metrics.jsonl", [{"step": step} for step in range(8, 12)]
    append_lines(path, {"step": 7}, *lines[:written])
    with path.open("a") as file:
        file.write('{"st')
    append_lines(path, *lines)
    assert list(read_lines(path)) == [{"step": 7}, *lines]


def test_lines_that_find_no_room_leave_none_of_them(tmp_path):
    path = tmp_path / "metrics.jsonl"
    append_lines(path, {"step": 1})
    with room_for(40), pytest.raises(OSError, match="File too large"):
        append_lines(path, {"step": 2}, {"step": 3, "words": "x" * 100})
    assert list(read_lines(path)) == [{"step": 1}]


def test_a_line_that_ends_as_the_one_before_it_does_is_another(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b' {"a": 1}\n')
    append_lines(path, {"a": 1})
    assert path.read_bytes() == b' {"a": 1}\n{"a": 1}\n'


def test_what_is_on_disk_is_written_whatever_is_told_where_it_is_closed(tmp_path, close_fails):
    write_atomically(tmp_path / "file", "text")
    assert (tmp_path / "file").read_text() == "text"
    write_atomically(tmp_path / "file", "another")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "another"


def test_a_write_that_has_failed_is_told_by_the_descriptor_that_wrote(tmp_path, monkeypatch):
    """As sshfs has it: another one of the same file hears nothing."""

    def fsync(descriptor):
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    write_atomically(tmp_path / "file", "old")
    monkeypatch.setattr("os.fsync", fsync)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        write_atomically(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "old"


@pytest.mark.parametrize(("number", "is_known"), [
    (errno.EINVAL, False), (errno.EOPNOTSUPP, False), (errno.ENOSYS, False), (errno.EIO, True), (errno.ENOSPC, True),
])  # fmt: skip
def test_a_folder_that_its_file_system_can_not_put_on_disk_is_passed_over(tmp_path, monkeypatch, number, is_known):
    """VirtualBox's shares, say, have no such operation for folders: no checkpoint would be made."""
    monkeypatch.setattr("os.fsync", mock.Mock(side_effect=OSError(number, os.strerror(number))))
    with pytest.raises(OSError, match=os.strerror(number)) if is_known else contextlib.nullcontext():
        sync(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=os.strerror(number)):
        sync(tmp_path / "file")


def test_a_missing_file_has_no_lines_and_one_cut_by_a_crash_is_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert list(read_lines(path)) == []
    path.write_text('{"step": 1}\n{"step": 2}')
    assert list(read_lines(path)) == [{"step": 1}]


def test_a_folder_that_can_not_be_replaced_stays(tmp_path, monkeypatch):
    place, rename = tmp_path / "point", Path.rename
    for folder in (place, incomplete(place)):
        folder.mkdir()
        (folder / "file").write_text(folder.name)

    def fail(path, target):
        if path == incomplete(place):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return rename(path, target)

    monkeypatch.setattr("pathlib.Path.rename", fail)
    with pytest.raises(OSError, match="Input/output error"):
        publish(incomplete(place), place)
    assert (place / "file").read_text() == "point"


def test_a_link_to_a_folder_is_replaced_as_often_as_a_folder(tmp_path):
    """As where somebody has moved it to another disk, on which it stays."""
    (tmp_path / "disk").mkdir()
    place = tmp_path / "models" / "mrpc"
    place.parent.mkdir()
    place.symlink_to(tmp_path / "disk")
    for text in ("first", "second", "third"):
        incomplete(place).mkdir()
        (incomplete(place) / "file").write_text(text)
        publish(incomplete(place), place)
        assert (place / "file").read_text() == text
    assert [path.name for path in place.parent.iterdir()] == ["mrpc"]
    assert (tmp_path / "disk").is_dir()


def test_what_a_killed_process_left_of_what_it_replaced_is_in_nobody_s_way(tmp_path):
    place = tmp_path / "point"
    for folder in (place, incomplete(place), tmp_path / ".point.replaced"):
        folder.mkdir()
        (folder / "file").write_text(folder.name)
    publish(incomplete(place), place)
    assert [path.name for path in tmp_path.iterdir()] == ["point"]
    assert (place / "file").read_text() == ".point.incomplete"


def test_what_can_not_be_deleted_stays(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    link, folder = tmp_path / "link", tmp_path / "folder"
    folder.mkdir()
    link.symlink_to(folder)
    monkeypatch.setattr(Path, "unlink", fail)
    monkeypatch.setattr(os, "rmdir", fail)
    for path in (link, folder):
        discard(path)
        assert path.is_dir()


def test_what_a_link_leads_to_is_not_emptied_for_what_is_written(tmp_path):
    (tmp_path / "file").write_text("mine")
    incomplete(tmp_path / "outcome").symlink_to("file")
    with pytest.raises(OSError, match="a link, where a file of its own belongs"):
        write_atomically(tmp_path / "outcome", "done")
    assert (tmp_path / "file").read_text() == "mine"
