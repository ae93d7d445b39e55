"""A standard output as commands may have it: a full disk, a pipe that nobody reads, or one that lacks letters."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

FULL = Path("/dev/full")


@contextlib.contextmanager
def stdout_to(place: Path | int, encoding: str = "utf-8") -> Iterator[None]:
    """Have what is printed go to a file, or to a descriptor that is closed then."""
    with open(place, "w", encoding=encoding) as stream, contextlib.redirect_stdout(stream):  # noqa: PTH123
        yield


def nobody_reads() -> int:
    """A pipe to write to, whose reader has gone, as of `| true`."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer
