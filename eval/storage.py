"""What keeps a file from being read or written: that it is not there, whose it is, or storage that fails."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from eval.errors import UsageError
from preprocessing.status import exists, is_dir, may
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


def check_output(folder: Path, files: Iterable[Path] = ()) -> None:
    """See that a folder can be made or written to, before work is spent on what it is to hold; nothing is made.

    Args:
        folder: to be written to.
        files: that will be opened for writing, as locks are; they may be there or not.

    Raises:
        UsageError: it can't, or one of the files can't.
        OSError: storage fails.
    """
    nearest = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if not is_dir(nearest):
        raise UsageError(f"{nearest}: not a directory; choose another place")
    if not may(nearest, os.W_OK | os.X_OK):
        raise UsageError(f"{nearest}: no permission to write there; get it, or choose another place")
    for file in files:
        check_replaceable(file)
        if exists(file) and not may(file, os.W_OK):
            raise UsageError(f"{file}: no permission to write it; get it, or choose another place")


def check_replaceable(file: Path) -> None:
    """See that a file can take the place of what is there, if anything is.

    Raises:
        UsageError: it can't.
    """
    if is_dir(file):
        raise UsageError(f"{file}: a directory, where a file belongs; remove it, or choose another place")
