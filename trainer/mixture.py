"""Which source the sample at an index comes from, where several are mixed by weights: a pure function of the index.

Every source gets its share of every prefix, evenly spread, so that each step of a training sees the same mixture. The
list of sources is halved again and again; of n samples that reach a list, the first half gets round(n * its share).
So one number decides at every halving, and whatever index is asked for costs as many as there are halvings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

_LARGEST = 1 << 31  # sums of weights stay below it, so that products of two fit into int64


def whole_weights(weights: Sequence[float]) -> list[int]:
    """The smallest whole numbers in the proportions of some positive weights as their decimals say: 0.7, 0.3 -> 7, 3.

    Where their sum would reach 2^31, they are scaled down to that and rounded.
    """
    exact = [Fraction(repr(weight)) for weight in weights]
    scale = Fraction(math.lcm(*(weight.denominator for weight in exact)))
    whole = [int(weight * scale) for weight in exact]
    whole = [weight // math.gcd(*whole) for weight in whole]
    if sum(whole) < _LARGEST:
        return whole
    room = Fraction(_LARGEST - len(whole) - 1, sum(whole))
    return [max(1, round(weight * room)) for weight in whole]


def interleave(indices: np.ndarray, weights: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Deal the samples of a mixture out to its sources.

    Of the first n samples, each source has its share of n within 1/2 for two sources, 1 for up to four, and 1/2 more
    for every doubling.

    Args:
        indices: int64 [n], 0 or more, in the mixture.
        weights: of the sources, positive, with a sum below 2^31; see whole_weights.

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


def _share(n: np.ndarray, part: int, total: int) -> np.ndarray:
    """round(n * part / total), halves up; n is cut into whole turns and a rest, so that nothing overflows."""
    turns, rest = np.divmod(n, total)
    shares: np.ndarray = turns * part + (2 * rest * part + total) // (2 * total)
    return shares
