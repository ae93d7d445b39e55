"""Micro-batches of about as many tokens each, for ranks wait for the slowest, and none computes on padding; pure."""

from __future__ import annotations

import numpy as np


def deal(lengths: np.ndarray, size: int) -> np.ndarray:
    """Deal the samples of a step into micro-batches of one size and nearly one number of tokens.

    The longest samples go first, one to each micro-batch, then the next longest, and of these the longest to where
    the fewest tokens are: Graham's rule for machines (1969, longest processing time first), in rounds. So all
    micro-batches have samples of all lengths, and about the same squares of lengths too, of which attention's work is
    made. A pure function of the lengths, whatever the number of ranks.

    Args:
        lengths: int64 [B], tokens of each sample.
        size: samples of a micro-batch, which divides B.

    Returns:
        int64 [B / size, size], the samples of each micro-batch, ascending.
    """
    rounds = np.argsort(-lengths, kind="stable").reshape(size, -1)
    dealt = np.empty_like(rounds)
    tokens = np.zeros(rounds.shape[1], dtype=np.int64)
    for row, samples in zip(dealt, rounds, strict=True):
        fewest_first = np.argsort(tokens, kind="stable")
        row[fewest_first] = samples
        tokens[fewest_first] += lengths[samples]
    dealt.sort(axis=0)
    return dealt.T
