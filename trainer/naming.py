"""Names in messages and tables: a few of many, and paths by as much of them as tells them apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path


def name_some(names: Sequence[str], shown: int = 4) -> str:
    """The first few, and how many more: a, b, c, d and 3 more."""
    more = f" and {len(names) - shown:,} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def tell_apart(paths: Iterable[Path]) -> dict[Path, str]:
    """Paths by their last parts, and where two share one, by as much of their ends as tells them apart."""
    different = list(dict.fromkeys(paths))
    return {path: _shortest(path, [other for other in different if other != path]) for path in different}


def _shortest(path: Path, others: Sequence[Path]) -> str:
    """The end of a path, as short as no other one has it."""
    ends = (path.parts[-n:] for n in range(1, len(path.parts) + 1))
    unique = (end for end in ends if all(other.parts[-len(end) :] != end for other in others))
    return str(Path(*next(unique, path.parts)))
