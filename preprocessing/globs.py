"""The search for a corpus: the files that paths and globs match."""

from __future__ import annotations

import contextlib
import glob
import heapq
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from apache_beam.io.filesystem import BeamIOError

from preprocessing import files
from preprocessing.sources import MissingInputError, SourceError

_WILDCARD = re.compile(r"[*?\[]")
_ANY_DEPTH = re.compile(r"(?:/\*\*)+/")
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
        here = Path(glob.escape(str(Path.cwd())))
        matches = files.match(path) if remote else _match_local(str(here / pattern))
    except SourceError:
        raise
    except (BeamIOError, ValueError, OSError) as error:
        raise SourceError(f"{pattern}: can't look for input files ({files.why_not_found(path, error)})") from error
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
    if path.is_dir():
        raise SourceError(f"{pattern}: is a folder; give the files in it, as in {files.join(pattern, '*')!r}")
    if path.is_file():
        return Found(str(path), path.name, path.stat().st_size)
    if path.exists():
        raise SourceError(_NO_REGULAR.format(pattern))
    return None


def _match_local(pattern: str) -> dict[str, int]:
    """The files that a glob matches, with their sizes.

    Raises:
        SourceError: a link that leads nowhere, or a pipe: a corpus without them is not the one that was meant.
    """
    sizes = {}
    for path in map(Path, _found(pattern)):
        size = files.regular_size(path)
        if size is not None:
            sizes[str(path)] = size
        elif _leads_nowhere(path):
            raise SourceError(f"{path}: a link that leads nowhere; mend it, or remove it")
        elif path.exists() and not path.is_dir():
            raise SourceError(_NO_REGULAR.format(path))
    return sizes


def _found(pattern: str) -> Iterator[str]:
    """The paths that an absolute glob matches, as glob.iglob finds them, but that ** enters every folder once."""
    before, *after = _ANY_DEPTH.split(f"{pattern}/*" if pattern.endswith("/**") else pattern, maxsplit=1)
    for path in glob.iglob(before or "/"):  # noqa: PTH207 - enters links
        if not after:
            yield path
        else:
            for folder in _folders(path):
                yield from _found(files.join(glob.escape(folder), after[0]))


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
        with contextlib.suppress(OSError), os.scandir(folder) as inner:  # as glob passes over what it may not enter
            for path in (entry.path for entry in inner if not entry.name.startswith(".")):
                if os.path.isdir(path):  # noqa: PTH112 - no error where a link leads to itself
                    heapq.heappush(waiting, (len(path), path))


def _leads_nowhere(path: Path) -> bool:
    """Whether a path is a broken link, or one in a circle of links."""
    return path.is_symlink() and not path.exists()
