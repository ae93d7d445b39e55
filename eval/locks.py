"""Locks among processes that share a folder. They end with the process, however that ends.

Where a file system has no locks, everything is free, and it is the user who must not start two processes.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from preprocessing.locks import lock_file, try_lock

_log = logging.getLogger("eval")


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock by a file, which is left there; waits while another process holds it."""
    with lock_file(path) as file:
        _warn(try_lock(file.fileno(), wait=True), path)
        yield


@contextlib.contextmanager
def claimed(path: Path) -> Iterator[int | None]:
    """Hold a lock if nobody else does; gives the descriptor that holds it, None where another process has it.

    A process that inherits the descriptor holds the lock as long as it lives, whatever becomes of this one.
    """
    with lock_file(path) as file:
        held = try_lock(file.fileno())
        _warn(held, path)
        yield None if held is False else file.fileno()


@contextlib.contextmanager
def shared(path: Path) -> Iterator[int]:
    """Hold a lock together with others; gives the descriptor that holds it, see ``is_last``."""
    with lock_file(path) as file:
        _warn(try_lock(file.fileno(), shared=True, wait=True), path)
        yield file.fileno()


def is_last(descriptor: int) -> bool:
    """Whether nobody else holds a shared lock any more: then it is held alone, and otherwise not any more."""
    return try_lock(descriptor) is not False


def _warn(held: bool | None, path: Path) -> None:
    if held is None:
        _log.warning("%s: the file system has no locks; make sure no other process uses it", path.parent)
