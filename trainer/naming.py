"""Names in a message: a few of them, and how many more there are."""

from __future__ import annotations

from collections.abc import Sequence

_SHOWN = 4


def name_some(names: Sequence[str]) -> str:
    """The first four, and how many more: a, b, c, d and 3 more."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
