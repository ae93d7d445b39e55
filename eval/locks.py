"""Locks among processes that share a folder. They end with the process, however that ends."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock; waits while another process holds it.

    Args:
        path: a file for it, which is left there.
    """
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Hold a lock if nobody else does; gives whether it is held."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
