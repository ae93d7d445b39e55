"""Locks of the operating system (flock) among processes, on one host or, where the file system has it, on several."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TextIO

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # what file systems without locks answer
_INTERVAL = 0.5  # seconds between two tries


def refuse_link(path: Path) -> None:
    """See that what is to be emptied or filled is no other one, which a link of others may lead to.

    Raises:
        OSError: it is a link.
    """
    if path.is_symlink():
        raise OSError(errno.ELOOP, "a link, where a file of its own belongs", str(path))


@contextlib.contextmanager
def lock_file(path: Path) -> Iterator[TextIO]:
    """Open a file that is there to be locked, or make it.

    What can't be written into it is for messages alone: no error, where a network's disk tells that when it is closed.

    Raises:
        OSError: it can't be opened, or is a link.
    """
    refuse_link(path)
    file = path.open("a+", encoding="utf-8", errors="replace")  # NFS wants both
    try:
        yield file
    finally:
        with contextlib.suppress(OSError):
            file.close()


def try_lock(descriptor: int, *, shared: bool = False, wait: bool = False) -> bool | None:
    """Lock an open file. The lock ends when the file is closed, and with its process, however that ends.

    Args:
        descriptor: of the file; NFS locks exclusively only what is open for writing.
        shared: others may hold it so too.
        wait: for as long as another holds it.

    Returns:
        Whether it is held now; None where the file system has no locks, so that nobody can know.

    Raises:
        OSError: the file system failed.
    """
    operation = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    try:
        fcntl.flock(descriptor, operation)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return None
    return True


def is_open_at(path: Path, file: IO[Any]) -> bool:
    """Whether a file has its name still: who held its lock before may have removed or renamed it."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def wait_and_lock(
    file: TextIO, patience: float, tell: Callable[[str], None], stop: Callable[[], bool] = lambda: False
) -> bool | None:
    """Lock a file alone and write into it who holds it; a holder that is there already gets time to let go.

    Args:
        file: as lock_file opens it.
        patience: seconds to wait for it.
        tell: gets the holder's name, once, before it is waited for.
        stop: says, while it is waited for, that it is not to be any more.

    Returns:
        As try_lock.

    Raises:
        OSError: the file system failed.
    """
    held = try_lock(file.fileno())
    if held is False and patience:
        tell(holder(file))
    deadline = time.monotonic() + patience
    while held is False and time.monotonic() < deadline and not stop():
        time.sleep(_INTERVAL)
        held = try_lock(file.fileno())
    if held is not False:
        with contextlib.suppress(OSError):  # for messages only: a full disk is no reason to stop
            file.truncate(0)
            # Not file.write: what finds no room would be tried again, and fail, when the file is closed.
            os.write(file.fileno(), f"process {os.getpid()} on {socket.gethostname()}\n".encode())
    return held


def holder(file: TextIO) -> str:
    """Who holds a file, as it stands there, if that can be read."""
    told = ""
    with contextlib.suppress(OSError):  # for messages only
        file.seek(0)
        told = file.read().strip()
    return told or "another process"
