"""Ranges of samples that are passed over, [first, end) in a stream: what messages say of them."""

from __future__ import annotations

from collections.abc import Iterable


def skip_setting(ranges: Iterable[tuple[int, int]]) -> str:
    """data.skip with all these ranges, joined where they meet; one word to a shell."""
    return f"data.skip={_join(ranges)}".replace(" ", "")


def count_skipped(ranges: Iterable[tuple[int, int]], first: int, last: int) -> int:
    """How many of the samples [first, last) are in one of the ranges."""
    return sum(max(0, min(end, last) - max(begin, first)) for begin, end in _join(ranges))


def _join(ranges: Iterable[tuple[int, int]]) -> list[list[int]]:
    joined: list[list[int]] = []
    for first, end in sorted(ranges):
        if joined and first <= joined[-1][1]:
            joined[-1][1] = max(end, joined[-1][1])
        else:
            joined.append([first, end])
    return joined
