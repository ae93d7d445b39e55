"""Names in messages and tables: a few of many, and paths by as much of them as tells them apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path


def name_some(names: Sequence[str], shown: int = 4) -> str:
    """The first few, and how many more: a, b, c, d and 3 more."""
    more = f" and {len(names) - shown:,} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def tell_apart(paths: Iterable[Path]) -> dict[Path, str]:
    """Paths by their last parts, and where two share one, by as much of their ends as tells them apart."""
    ends = {path: [path.parts[-n:] for n in range(1, len(path.parts) + 1)] for path in paths}
    having = Counter(chain.from_iterable(ends.values()))  # how many paths have an end
    return {path: str(Path(*next((end for end in own if having[end] == 1), path.parts))) for path, own in ends.items()}
