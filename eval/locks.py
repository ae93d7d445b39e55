"""Locks among processes that share a folder. They end with the process, however that ends.

Where a file system has no locks, everything is free, and it is the user who must not start two processes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
from collections.abc import Iterator
from pathlib import Path

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # what file systems without locks answer

_log = logging.getLogger("eval")


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock; waits while another process holds it.

    Args:
        path: a file for it, which is left there.
    """
    with path.open("w") as file:
        _take(file.fileno(), fcntl.LOCK_EX, path)
        yield


@contextlib.contextmanager
def claimed(path: Path) -> Iterator[int | None]:
    """Hold a lock if nobody else does; gives the descriptor that holds it, None where another process has it.

    A process that inherits the descriptor holds the lock as long as it lives, whatever becomes of this one.
    """
    with path.open("w") as file:
        try:
            _take(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB, path)
        except BlockingIOError:
            yield None
        else:
            yield file.fileno()


def _take(file: int, operation: int, path: Path) -> None:
    try:
        fcntl.flock(file, operation)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        _log.warning("%s: the file system has no locks; make sure no other process uses it", path.parent)
