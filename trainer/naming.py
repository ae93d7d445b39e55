"""Names in messages and tables: a few of many, and paths by as much of them as tells them apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

_SHOWN = 4


def name_some(names: Sequence[str]) -> str:
    """The first four, and how many more: a, b, c, d and 3 more."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def tell_apart(paths: Iterable[Path]) -> dict[Path, str]:
    """Paths by their last parts, and where two share one, by as much of their ends as tells them apart."""
    different = list(dict.fromkeys(paths))
    return {path: _shortest(path, [other for other in different if other != path]) for path in different}


def _shortest(path: Path, others: Sequence[Path]) -> str:
    """The end of a path, as short as no other one has it."""
    ends = (path.parts[-n:] for n in range(1, len(path.parts) + 1))
    unique = (end for end in ends if all(other.parts[-len(end) :] != end for other in others))
    return str(Path(*next(unique, path.parts)))
