"""Files that are whole or not there, files of JSON lines, and many files at a time."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from preprocessing.locks import is_open_at, refuse_link, try_lock
from preprocessing.status import exists, is_dir

_NO_SYNC = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)  # what a folder is answered by shares of a virtual machine
_STRETCH = 1 << 16  # bytes that are read at once, where the end of a file's last line is looked for
_THREADS = 4  # files that are copied or hashed at a time
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class DamagedFileError(ValueError):
    """A file whose content is not what was written. The message names the place and what to do."""


def incomplete(path: Path) -> Path:
    """The name that a file or folder has while it is written."""
    return path.with_name(f".{path.name}.incomplete")


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file, text as UTF-8, so that a reader sees the old one or the whole new one, whoever else writes it."""
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """An empty file to write, which is on disk and takes the place of a path where the block comes to its end."""
    temporary = incomplete(path)
    with _alone(temporary) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())  # by no other descriptor: sshfs, for one, tells of a write that failed by this alone
        temporary.replace(path)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[BinaryIO]:
    """A file that no other process writes meanwhile, emptied: what a process left that was killed is of no use."""
    while True:
        refuse_link(path)
        file = path.open("ab")
        try:
            try_lock(file.fileno(), wait=True)
            if not is_open_at(path, file):  # who held it has given it another name
                continue
            file.truncate(0)
            yield file
            return
        finally:
            with contextlib.suppress(OSError):  # what a network's disk tells here is of no account: all was synced
                file.close()


def sync(path: Path) -> None:
    """Ask the operating system to put a file or folder on disk; that of a folder some file systems don't know."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC or not is_dir(path):
            raise
    finally:
        os.close(descriptor)


def publish(staging: Path, directory: Path) -> None:
    """Put a directory on disk and give it its name; one that has the name already steps aside first."""
    for path in (*staging.iterdir(), staging):
        sync(path)
    replaced = directory.with_name(f".{directory.name}.replaced")
    discard(replaced)
    if exists(directory):
        directory.rename(replaced)
    try:
        staging.rename(directory)
    except OSError:
        if exists(replaced):
            replaced.rename(directory)
        raise
    sync(directory.parent)
    discard(replaced)


def discard(path: Path) -> None:
    """Delete a folder if there is one; of a link to one, as to another disk, the link, in whose way a folder would be.

    What can't be deleted stays.
    """
    if path.is_symlink():
        with contextlib.suppress(OSError):
            path.unlink()
    shutil.rmtree(path, ignore_errors=True)


def append_lines(path: Path, *objects: dict[str, Any]) -> None:
    """Add objects, each unlike the one before it, to a file of JSON lines: all of them or nothing.

    Floats have their full precision. What storage that failed has left of a line before, and did not let be taken back,
    is taken back first; or it is the first of these very lines, which were written before a network's disk said no.

    Raises:
        OSError: nothing was added, or some of it that can't be taken back now.
    """
    lines, end = [(json.dumps(values) + "\n").encode() for values in objects], None
    try:
        with path.open("a+b") as file:  # once: a step of the training waits while a network's disk is asked
            size, end = file.tell(), _end_of_lines(file)
            if size > end:
                file.truncate(end)
            begin = file.seek(max(0, end - sum(map(len, lines)) - 1))
            before = (b"" if begin else b"\n") + file.read(end - begin)
            there = next(n for n in range(len(lines), -1, -1) if before.endswith(b"\n" + b"".join(lines[:n])))
            file.write(b"".join(lines[there:]))
    except OSError:
        if end is not None:
            with contextlib.suppress(OSError):
                os.truncate(path, end)
        raise


def _end_of_lines(file: BinaryIO) -> int:
    """Where the last line that has an end ends, in bytes from the file's beginning."""
    end = file.seek(0, os.SEEK_END)
    while end:
        begin = file.seek(max(0, end - _STRETCH))
        if length := file.read(end - begin).rfind(b"\n") + 1:
            return begin + length
        end = begin
    return 0


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines; nothing for a missing file, and a last line cut by a crash is left out.

    Raises:
        DamagedFileError: a line is no JSON.
    """
    if not exists(path):
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.endswith(b"\n"):
                try:
                    yield json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise DamagedFileError(
                        f"{path}: line {number} is damaged ({error}); mend it, or delete the line"
                    ) from error


def in_threads(function: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
    """What a function that copies or hashes a file gives of each of some items."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(function, items))
