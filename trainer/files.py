"""Files that are whole or not there, and files of JSON lines."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

STRETCH = 1 << 16  # bytes that are read at once, where a place in a file is looked for


class DamagedFileError(ValueError):
    """A file whose content is not what was written. The message names the place and what to do."""


def incomplete(path: Path) -> Path:
    """The name that a file or folder has while it is written."""
    return path.with_name(f".{path.name}.incomplete")


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file, text as UTF-8, so that a reader sees the old one or the whole new one."""
    temporary = incomplete(path)
    temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    sync(temporary)
    temporary.replace(path)


def sync(path: Path) -> None:
    """Ask the operating system to put a file or folder on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(staging: Path, directory: Path) -> None:
    """Put a directory on disk and give it its name; one that has the name already steps aside first."""
    for path in (*staging.iterdir(), staging):
        sync(path)
    replaced = directory.with_name(f".{directory.name}.replaced")
    shutil.rmtree(replaced, ignore_errors=True)
    if directory.exists():
        directory.rename(replaced)
    staging.rename(directory)
    sync(directory.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def is_full(error: OSError) -> bool:
    """Whether nothing more can be written: no room, a quota, or a limit of a file's size."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def append_line(path: Path, values: dict[str, Any]) -> None:
    """Add an object to a file of JSON lines, floats in full precision: all of it or, with an OSError, nothing."""
    size = path.stat().st_size if path.exists() else 0
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")
    except OSError:
        with contextlib.suppress(OSError):
            os.truncate(path, size)
        raise


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines; nothing for a missing file, and a last line cut by a crash is left out.

    Raises:
        DamagedFileError: a line is no JSON.
    """
    if not path.exists():
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


def metrics_of(line: bytes) -> dict[str, Any] | None:
    """The object of a line of metrics, with its step; None where the line is damaged or has no end yet."""
    try:
        values: dict[str, Any] = json.loads(line) if line.endswith(b"\n") else {}
        return values if isinstance(values["step"], int) else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def end_of_step(file: BinaryIO, step: int) -> int:
    """Where the lines of a file of metrics end whose steps are at most ``step``, in bytes from its beginning.

    Steps ascend, so the place is looked for by halves: of a file of any size, little is read. What is damaged is
    passed over, and belongs to what comes behind the place where it lies there.
    """
    low, high = 0, file.seek(0, os.SEEK_END)  # such a line ends at low, or it is 0; none begins at high or behind it
    while high - low > STRETCH:
        middle = (low + high) // 2
        file.seek(middle - 1)
        begin = middle - 1 + len(file.readline())
        end, found = next(_steps_from(file, begin), (begin, step + 1))
        low, high = (end, high) if found <= step else (low, middle)
    return max((end for end, found in _steps_from(file, low, high) if found <= step), default=low)


def _steps_from(file: BinaryIO, begin: int, before: int | None = None) -> Iterator[tuple[int, int]]:
    """End and step of the good lines that begin at ``begin``, where a line begins, and thereafter."""
    file.seek(begin)
    for line in file:
        if before is not None and begin >= before:
            return
        begin += len(line)
        values = metrics_of(line)
        if values is not None:
            yield begin, values["step"]
