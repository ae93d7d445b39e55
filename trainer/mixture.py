"""Which source the sample at an index comes from, where several are mixed by weights: a pure function of the index.

Every source gets its share of every prefix, evenly spread, so that each step of a training sees the same mixture. The
list of sources is halved again and again; of n samples that reach a list, the first half gets round(n * its share).
So one number decides at every halving, and whatever index is asked for costs as many as there are halvings.

Where the weights change on the way, each stretch is dealt out by itself, to sources that go on where they were left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import groupby
from operator import itemgetter

import numpy as np

_LARGEST = 1 << 31  # sums of weights stay below it, so that products of two fit into int64


class Mixture:
    """The samples of a stream dealt out to its sources in stretches, each with weights of its own.

    A source goes on in a stretch where those before it have left it, so none of its samples comes twice or never.

    Attributes:
        shares: of the sources in all stretches together, in proportion.
    """

    def __init__(self, stretches: Sequence[tuple[int, Sequence[float]]]):
        """Count what each source gives in each stretch.

        Args:
            stretches: one after the other, at least one: its samples, 1 or more, and a weight of every source, 0 or
                more and not all 0. The last one goes on beyond its samples.
        """
        whole = [(samples, whole_weights(weights)) for samples, weights in stretches]
        merged = [(sum(map(itemgetter(0), same)), weights) for weights, same in groupby(whole, key=itemgetter(1))]
        self._weights = [weights for _, weights in merged]
        self._ends = np.cumsum([samples for samples, _ in merged])
        of_stretches = [_deal_out(samples, weights) for samples, weights in merged]
        self._before = np.cumsum([[0] * len(self._weights[0]), *of_stretches[:-1]], axis=0)  # [stretches, sources]
        self.shares: Sequence[float] = stretches[0][1] if len(merged) == 1 else self.given(int(self._ends[-1]))

    def deal(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The source of each sample and the index in that source's own stream, int64 [n] each; see interleave."""
        numbers = np.searchsorted(self._ends[:-1], indices, side="right")
        sources, positions = np.empty_like(indices), np.empty_like(indices)
        for number in set(numbers.tolist()):
            mine = numbers == number
            sources[mine], within = interleave(indices[mine] - self._begin(number), self._weights[number])
            positions[mine] = self._before[number][sources[mine]] + within
        return sources, positions

    def given(self, count: int) -> list[int]:
        """How many of the first ``count`` samples each source gives."""
        number = int(np.searchsorted(self._ends[:-1], count, side="right"))
        within = _deal_out(count - self._begin(number), self._weights[number])
        return [int(before) + more for before, more in zip(self._before[number], within, strict=True)]

    def _begin(self, number: int) -> int:
        return int(self._ends[number - 1]) if number else 0


def whole_weights(weights: Sequence[float]) -> list[int]:
    """The smallest whole numbers in the proportions of some weights as their decimals say: 0.7, 0.3 -> 7, 3.

    Where their sum would reach 2^31, they are scaled down to that and rounded, but none that is above 0 to 0.
    """
    exact = [Fraction(repr(weight)) for weight in weights]
    scale = Fraction(math.lcm(*(weight.denominator for weight in exact)))
    whole = [int(weight * scale) for weight in exact]
    whole = [weight // math.gcd(*whole) for weight in whole]
    if sum(whole) < _LARGEST:
        return whole
    room = Fraction(_LARGEST - len(whole) - 1, sum(whole))
    return [max(1, round(weight * room)) if weight else 0 for weight in whole]


def interleave(indices: np.ndarray, weights: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Deal the samples of a mixture out to its sources.

    Of the first n samples, each source has its share of n within 1/2 for two sources, 1 for up to four, and 1/2 more
    for every doubling.

    Args:
        indices: int64 [n], 0 or more, in the mixture.
        weights: of the sources, 0 or more, with a positive sum below 2^31; see whole_weights.

    Returns:
        The number of the source and the index in that source's own stream, int64 [n] each.
    """
    if len(weights) == 1:
        return np.zeros_like(indices), indices
    half = len(weights) // 2
    first, total = sum(weights[:half]), sum(weights)
    before = _share(indices, first, total)
    in_first = _share(indices + 1, first, total) > before
    sources, positions = np.empty_like(indices), np.empty_like(indices)
    sources[in_first], positions[in_first] = interleave(before[in_first], weights[:half])
    others, their_positions = interleave((indices - before)[~in_first], weights[half:])
    sources[~in_first], positions[~in_first] = others + half, their_positions
    return sources, positions


def _deal_out(count: int, weights: Sequence[int]) -> list[int]:
    """How many of the first ``count`` samples `interleave` gives to each source."""
    if len(weights) == 1:
        return [count]
    half = len(weights) // 2
    first = int(_share(np.int64(count), sum(weights[:half]), sum(weights)))
    return _deal_out(first, weights[:half]) + _deal_out(count - first, weights[half:])


def _share(n: np.ndarray | np.int64, part: int, total: int) -> np.ndarray:
    """round(n * part / total), halves up; n is cut into whole turns and a rest, so that nothing overflows."""
    total = max(1, total)  # of sources without weight, to which no sample comes
    turns, rest = np.divmod(n, total)
    shares: np.ndarray = turns * part + (2 * rest * part + total) // (2 * total)
    return shares
