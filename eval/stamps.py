"""Checksums of large files, read once: noted beside a stamp that a file loses with its content.

A stamp is a file's size, times of modification and change, and inode. cp -a, rsync and tar give a copy the modification
time of its original, so a file of other content may come to have an old one. The time of change nobody can set: the
operating system does whenever a file is written, and what is put in a file's place has its own, and its own inode. So a
file with the stamp that was noted is the file that was read. A copy of the same content, or a mere chmod, changes the
stamp too, which costs reading the file once more. Stamps are compared for equality only, so no clock has to be right.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from preprocessing.schema import checksum
from trainer.files import write_atomically


def stamp(file: Path) -> list[int] | None:
    """What changes whenever a file is written anew; None where there is none."""
    try:
        found = file.stat()
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def known_checksum(file: Path, note: Path) -> str | None:
    """The checksum of a file as it was noted, without reading it; None where nothing, or another file's, was noted."""
    noted, blake2b = _noted(note)
    return blake2b if noted == stamp(file) else None


def noted_checksum(note: Path) -> str | None:
    """The checksum that was noted last, whatever file is there now; None where nothing was noted."""
    return _noted(note)[1]


def _noted(note: Path) -> tuple[Any, str | None]:
    """Stamp and checksum."""
    try:
        told = json.loads(note.read_text(encoding="utf-8"))
        return told["stamp"], str(told["blake2b"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None, None


def read_checksum(file: Path, note: Path) -> str:
    """The checksum of a file: as it was noted, or else it is read, and noted. Who calls this holds a lock on the note.

    Raises:
        OSError: the file can't be read.
    """
    if (known := known_checksum(file, note)) is not None:
        return known
    before = stamp(file)  # of a file that is replaced meanwhile it will not be the stamp any more
    blake2b = checksum(file)
    with contextlib.suppress(OSError):  # no room for it, maybe: then it is read once more by the next who asks
        write_atomically(note, json.dumps({"stamp": before, "blake2b": blake2b}) + "\n")
    return blake2b
