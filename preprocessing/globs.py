"""The search for a corpus: the files that paths and globs match."""

from __future__ import annotations

import fnmatch
import heapq
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from preprocessing import files
from preprocessing.sources import MissingInputError, SourceError, StorageError, unread
from preprocessing.status import is_dir, status
from preprocessing.storage_errors import is_no_file, is_passing

_ANY_DEPTH = re.compile(r"(?<![^/])\*\*(?:/+\*\*)+(?![^/])")  # as often as it is written
_WILDCARD = re.compile(r"[*?\[]")
_NO_REGULAR = "{}: no regular file, and what is read once can't be read again; save it in one first"


class Found(NamedTuple):
    """A file that a pattern matched."""

    path: str
    name: str  # relative to the pattern's folder before the first wildcard: the same wherever the corpus lies
    bytes: int


def expand(pattern: str) -> list[Found]:
    """The files that a path or a glob (`**/` for folders at any depth) matches, sorted by name.

    Raises:
        MissingInputError: nothing matches.
        SourceError: a folder or a pipe was given, or the place can't be read.
        StorageError: it can't be read now.
    """
    path = files.absolute(pattern)
    # What the user wrote is the pattern: the working directory's own name may hold brackets.
    folder = "".join(_WILDCARD.split(pattern, maxsplit=1)[0].rpartition("/")[:2])
    prefix = files.absolute(folder).rstrip("/") + "/"
    try:
        remote = files.is_remote(path)
        if not remote and (named := _named(pattern)):
            return [named]
        # Beam's own local search enters no folder that is a link.
        start = "/" if pattern.startswith("/") else str(Path.cwd())
        matches = files.match(path) if remote else _match_local(start, _ANY_DEPTH.sub("**", pattern).split("/"))
    except SourceError:
        raise
    except (OSError, ValueError) as error:  # the latter of a URL that Beam does not know
        told = f"{pattern}: can't look for input files ({files.why_not_found(path, error)})"
        if is_passing(error):
            raise StorageError(f"{told}; once it can be read, the same command goes on") from error
        raise SourceError(told) from error
    if not matches:
        brackets = "; [ ] stand for one of the characters between them, and [[] for a bracket" if "[" in pattern else ""
        raise MissingInputError(
            f"{pattern}: no input file matches; check the path, and quote a glob as '{pattern}'{brackets}"
        )
    found = [Found(match, match.removeprefix(prefix), size) for match, size in matches.items()]
    return sorted(found, key=lambda file: file.name)


def _named(pattern: str) -> Found | None:
    """The local file that is called as a pattern is written, as its name may hold brackets; None where there is none.

    Raises:
        SourceError: a folder or a pipe.
    """
    path = Path(files.absolute(pattern))
    found = status(path)
    if found is None:
        return None
    if stat.S_ISDIR(found.st_mode):
        raise SourceError(f"{pattern}: is a folder; give the files in it, as in {files.join(pattern, '*')!r}")
    if not stat.S_ISREG(found.st_mode):
        raise SourceError(_NO_REGULAR.format(pattern))
    return Found(str(path), path.name, found.st_size)


def files_below(folder: Path) -> list[Path]:
    """The files of a local folder and of all below it but for hidden ones, sorted; none where there is no folder.

    Raises:
        SourceError, StorageError: as of a glob.
    """
    try:
        return sorted(map(Path, _match_local(files.absolute(str(folder)), ["**", "*"])))
    except OSError as error:
        if is_passing(error):
            raise unread(error.filename, error) from error
        raise SourceError(f"{folder}: can't be searched ({error})") from error


def _match_local(folder: str, parts: Sequence[str]) -> dict[str, int]:
    """The files below a folder that a glob's parts match, with their sizes.

    Raises:
        SourceError: a folder that may not be looked into, a link that leads nowhere, or a pipe: a corpus without them
            is not the one that was meant.
    """
    sizes = {}
    try:
        for path in _matching(folder, parts):
            found = status(path)
            if found and stat.S_ISREG(found.st_mode):
                sizes[str(Path(path))] = found.st_size
            elif found and not stat.S_ISDIR(found.st_mode):
                raise SourceError(_NO_REGULAR.format(path))
            elif not found and Path(path).is_symlink():
                raise SourceError(f"{path}: a link that leads nowhere; mend it, or remove it")
    except PermissionError as error:
        raise SourceError(
            f"{error.filename}: can't be looked into ({error.strerror}); have it readable, or name what is beside it"
        ) from error
    return sizes


def _matching(folder: str, parts: Sequence[str]) -> Iterator[str]:
    """The paths below a folder that match, as by glob.glob, which however passes over what it may not enter.

    Args:
        folder: where to look.
        parts: of the glob, one for each folder and the last for the file; ** enters every folder once.
    """
    if not parts:
        yield folder
        return
    first, *rest = parts
    if first == "**":
        for inner in _folders(folder):
            yield from _matching(inner, rest or ["*"])
    elif _WILDCARD.search(first):
        for name in fnmatch.filter(_names(folder, hidden=first.startswith(".")), first):
            yield from _matching(os.path.join(folder, name), rest)  # noqa: PTH118 - ten times as fast as Path
    elif status(path := os.path.join(folder, first), follow=False):  # noqa: PTH118
        yield from _matching(path, rest)


def _folders(top: str) -> Iterator[str]:
    """A folder and all below it but for hidden ones, each by its shortest path: links may lead back, and in circles."""
    waiting, entered = [(len(top), top)], set()
    while waiting:
        _, folder = heapq.heappop(waiting)
        place = files.resolved(folder)
        if place in entered:
            continue
        entered.add(place)
        yield folder
        for path in (os.path.join(folder, name) for name in _names(folder)):  # noqa: PTH118
            if is_dir(path):
                heapq.heappush(waiting, (len(path), path))


def _names(folder: str, hidden: bool = False) -> list[str]:
    """What a folder has, with or without hidden names; nothing where it is none, or is gone."""
    try:
        return [name for name in os.listdir(folder) if hidden or not name.startswith(".")]  # noqa: PTH208
    except OSError as error:
        if not is_no_file(error):
            raise
        return []
