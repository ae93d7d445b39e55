"""What keeps a file from being read: that it is not there, whose it is, or storage that fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eval.errors import UsageError
from preprocessing.storage_errors import is_no_file, unavailable


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Around a look at a file, or at those of a folder: what keeps it from being read, as whose matter it is.

    Args:
        path: named where the error itself names no file.

    Raises:
        OSError: no such file is there.
        UsageError: it is not for this user to read.
        UnavailableError: anything else that the operating system says.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None or is_no_file(error):
            raise
        file = error.filename or path
        if isinstance(error, PermissionError):
            raise UsageError(f"{file}: this user may not read it; ask its owner for that") from error
        raise unavailable(file, error.strerror) from error
