"""Locks of the operating system (flock) among processes, on one host or, where the file system has it, on several."""

from __future__ import annotations

import errno
import fcntl

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # what file systems without locks answer


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
