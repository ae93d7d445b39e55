"""What the operating system's error of a file says: that none is there, whose matter it is, or that it may pass."""

from __future__ import annotations

import errno
import os
from typing import TypeGuard

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})  # no room, a quota, or a limit of a file's size
# Nothing is there, a folder, a link that leads nowhere, or a path where nothing can be.
_NO_FILE = frozenset({errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
# Or it is not for this user, or something else has the name, or a file system can't have such a name.
_REFUSED = _NO_FILE | {errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.EINVAL}
# What a disk or a network answers that may be well again in a moment.
_PASSING = frozenset({
    *(errno.EIO, errno.EREMOTEIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.ESHUTDOWN, errno.ECONNREFUSED),
    *(errno.ECONNRESET, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH),
})  # fmt: skip


class UnavailableError(RuntimeError):
    """Storage that fails while something is read, which is nobody's mistake: the same command may read it later."""


def unavailable(place: object, why: object) -> UnavailableError:
    """What to raise of a place that can't be read, and why that is."""
    return UnavailableError(f"{place}: can't be read now ({why}); give the same command again")


def is_no_file(error: OSError) -> bool:
    """Whether there is no file of that name."""
    return error.errno in _NO_FILE


def is_refused(error: OSError) -> bool:
    """Whether a path is wrong, or this user's rights to it: a matter of the user's, that does not pass by itself."""
    return error.errno in _REFUSED


def is_full(error: OSError) -> bool:
    """Whether nothing more can be written."""
    return error.errno in FULL


def is_passing(error: BaseException | None) -> TypeGuard[OSError]:
    """Whether storage failed in a way that is nobody's mistake, and may have passed when it is tried again.

    Not every error is this, or refused, or of a disk that is full: those of programs, as of too many open files, are
    none of them.
    """
    return isinstance(error, OSError) and error.errno in _PASSING


def comes_of_passing(error: BaseException | None) -> bool:
    """Whether an error was raised because of storage that fails and may be well again, or is its own."""
    while error is not None:
        if is_passing(error) or isinstance(error, UnavailableError):
            return True
        error = error.__cause__
    return False


def exit_code(error: BaseException) -> int:
    """Of a command that an error ends: 1 where storage fails, which may pass, or 2 for a mistake of the user's."""
    return 1 if comes_of_passing(error) else 2


def reason(error: OSError) -> str:
    """What the operating system says in an error; a library that has no number tells it in words of its own."""
    return os.strerror(error.errno) if error.errno else str(error)
