"""What is at a path.

These raise where storage fails, as Path.exists, is_file and is_dir did before Python 3.14 and Path.glob before 3.13:
since then they say no, or find nothing, and Path.mkdir that a file is there; os.access always did. Who believes that
may begin anew what is there, or delete what somebody holds.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from preprocessing.storage_errors import is_no_file, is_passing, reason, unavailable


def status(path: Path | str, *, follow: bool = True) -> os.stat_result | None:
    """What the operating system says of what is at a path; of a link that is followed, of what it leads to.

    Returns:
        None where nothing is, or nothing can be.

    Raises:
        OSError: it can't be told.
    """
    try:
        return os.stat(path, follow_symlinks=follow)  # noqa: PTH116  globs have paths that are str
    except OSError as error:
        if not is_no_file(error):
            raise
    except ValueError:  # a null byte
        pass
    return None


def exists(path: Path | str) -> bool:
    """Whether anything is at a path; raises as status."""
    return status(path) is not None


def is_file(path: Path | str) -> bool:
    """Whether a regular file is at a path; raises as status."""
    found = status(path)
    return found is not None and stat.S_ISREG(found.st_mode)


def is_dir(path: Path | str) -> bool:
    """Whether a folder is at a path; raises as status."""
    found = status(path)
    return found is not None and stat.S_ISDIR(found.st_mode)


def leads_nowhere(path: Path | str) -> bool:
    """Whether a link is at a path and nothing where it leads; raises as status."""
    return status(path) is None and status(path, follow=False) is not None


def resolved(path: Path | str) -> Path:
    """A path without links; as it is where one leads to itself, of which Path.resolve raised before Python 3.13."""
    return Path(os.path.realpath(path))


def may(path: Path | str, mode: int) -> bool:
    """Whether something is at a path and this user may do with it what os.access is asked for; raises as status."""
    return os.access(path, mode) or (exists(path) and os.access(path, mode))


def entries(folder: Path) -> list[Path]:
    """What is in a folder, sorted; nothing where there is none.

    Raises:
        OSError: it can't be listed.
    """
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def make_folder(path: Path, *, parents: bool = False) -> None:
    """Make a folder where there is none, with those above it or in one that is there.

    Raises:
        FileExistsError: a file is there, or a link to what is not there.
        OSError: it can't be made, or nobody can tell whether it is there.
    """
    try:
        path.mkdir(parents=parents, exist_ok=True)
    except FileExistsError as error:  # or Path's own look, which says no where storage fails
        if leads_nowhere(error.filename):
            raise FileExistsError(error.errno, "a link to what is not there", error.filename) from error
        if not is_dir(error.filename):
            raise
        path.mkdir(parents=parents, exist_ok=True)


@contextlib.contextmanager
def looking(path: Path | str) -> Iterator[None]:
    """Around a look at what another one, such as a node's user, may see: it ends where this user may not look.

    Raises:
        UnavailableError: storage fails.
    """
    try:
        yield
    except OSError as error:
        if is_passing(error):
            raise unavailable(path, reason(error)) from error


def sees(path: Path | str, mode: int = os.F_OK) -> bool:
    """As may; no where this user may not look, as what another one sees is not for this one to judge.

    Raises:
        UnavailableError: storage fails.
    """
    with looking(path):
        return may(path, mode)
    return False
