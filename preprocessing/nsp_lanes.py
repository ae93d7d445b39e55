"""Many passes of nsp.draw_pairs at once, with numpy: the same pairs, twice as fast.

Each pass is a lane, and a step of the loop draws the next pair of every lane. A lane takes its random numbers from its
own stream in the order in which nsp.draw_pairs does, so every pass has the pairs that it would have alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from preprocessing.nsp import FIELDS, PairRule, Sentences, draw_pairs, draw_singles, random_bits, random_draws

GROUP = 4096  # lanes that are stepped together: their state fits a processor's cache
FEW = 48  # so few lanes are faster one by one
Name = tuple[int, str, int, int]  # of a pass: the arguments of nsp.random_bits
_BLOCK = 64  # raw draws of a lane fetched at once


class _Streams:
    """The random numbers of all lanes, 64 bits each."""

    def __init__(self, bits: list[np.random.Philox]):
        self._bits = bits
        self._held = np.empty((len(bits), _BLOCK), dtype=np.uint64)
        self._at = np.full(len(bits), _BLOCK)

    def take(self, lanes: np.ndarray) -> np.ndarray:
        """The next number of each of some lanes, which are different ones."""
        at = self._at[lanes]
        for lane in lanes[at == _BLOCK].tolist():
            self._held[lane] = self._bits[lane].random_raw(_BLOCK)
        at[at == _BLOCK] = 0
        self._at[lanes] = at + 1
        return np.asarray(self._held[lanes, at])

    def below(self, bounds: np.ndarray, lanes: np.ndarray) -> np.ndarray:
        """As nsp: draw * bound >> 64, for bounds below 2^32, without the 128 bits of the product."""
        draws, factors = self.take(lanes), bounds.astype(np.uint64)
        high, low = draws >> np.uint64(32), draws & np.uint64(0xFFFFFFFF)
        return ((high * factors + (low * factors >> np.uint64(32))) >> np.uint64(32)).astype(np.int64)

    def heads(self, coins: np.ndarray, lanes: np.ndarray) -> np.ndarray:
        """As nsp: how many of so many fair coins show heads."""
        heads, left = np.zeros(len(lanes), dtype=np.int64), coins.copy()
        while len(tossing := np.flatnonzero(left)):
            now = np.minimum(left[tossing], 64)
            heads[tossing] += np.bitwise_count(self.take(lanes[tossing]) >> (64 - now).astype(np.uint64))
            left[tossing] -= now
        return heads


class _Shard:
    """Sentences as arrays, and the rule."""

    def __init__(self, sentences: Sentences, rule: PairRule):
        self.ends, self.first, self.offsets = (
            np.asarray(each, dtype=np.int64) for each in (sentences.ends, sentences.first, sentences.offsets)
        )
        self.begins = np.concatenate([[0], self.ends[:-1]])
        self.rule = rule

    def reach(self, position: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """The first sentence from ``low`` on that ends at a position or after it; at most ``high``."""
        return np.clip(np.searchsorted(self.ends, position), low, high)

    def random_sentence(self, row: np.ndarray, lanes: np.ndarray, streams: _Streams) -> tuple[np.ndarray, np.ndarray]:
        """As nsp: another document and one of its sentences."""
        first = self.first
        if self.rule.negatives == "by-sentence":
            own = first[row + 1] - first[row]
            sentence = streams.below(first[-1] - own, lanes)
            sentence += np.where(sentence >= first[row], own, 0)
            return np.searchsorted(first, sentence, side="right") - 1, sentence
        other = streams.below(np.full(len(row), len(first) - 2), lanes)
        other += other >= row
        return other, first[other] + streams.below(first[other + 1] - first[other], lanes)


def _targets(rule: PairRule, lanes: np.ndarray, streams: _Streams) -> np.ndarray:
    """As nsp: the length that the chunks of each pass aim at."""
    targets = np.full(len(lanes), rule.max_tokens)
    short = np.flatnonzero(streams.take(lanes) < np.uint64(math.ceil(rule.short_probability * 2**64)))
    targets[short] = 2 + streams.below(np.full(len(short), rule.max_tokens - 1), lanes[short])
    return targets


def _cuts(a: np.ndarray, b: np.ndarray, max_tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """As nsp: how many tokens A and B lose."""
    excess, longer = a + b - max_tokens, a - b
    return (
        np.where(excess <= longer, excess, np.maximum((excess + longer) // 2, 0)),
        np.where(excess <= -longer, excess, np.maximum((excess - longer + 1) // 2, 0)),
    )


def _draw_group(rows: np.ndarray, bits: list[np.random.Philox], shard: _Shard) -> tuple[np.ndarray, np.ndarray]:
    """The pairs of some passes until few lanes are left.

    Returns:
        [pairs, 1 + FIELDS] lane and what makes a pair, and the lanes that are not finished.
    """
    streams, lanes = _Streams(bits), np.arange(len(rows))
    target = _targets(shard.rule, lanes, streams)
    row, origin = rows, shard.offsets[rows]
    sentence, beyond, a_begin = shard.first[rows], shard.first[rows + 1], origin.copy()
    drawn = [np.empty((0, 1 + FIELDS), dtype=np.int32)]
    while len(lanes) >= FEW:
        last = shard.reach(a_begin + target, sentence, beyond - 1)
        split = sentence + 1  # first sentence after A
        several = np.flatnonzero(last > sentence)
        split[several] += streams.below((last - sentence)[several], lanes[several])
        a_end = shard.ends[split - 1]
        is_next = np.zeros(len(lanes), dtype=bool)
        is_next[several] = streams.take(lanes[several]) >> np.uint64(63) != 0
        random = np.flatnonzero(~is_next)
        b_row, b_begin, b_end = row.copy(), a_end.copy(), shard.ends[last]
        following = np.where(is_next, b_end, a_end)
        b_row[random], start = shard.random_sentence(row[random], lanes[random], streams)
        b_begin[random] = shard.begins[start]
        b_target = (b_begin + target - (a_end - a_begin))[random]
        b_end[random] = shard.ends[shard.reach(b_target, start, shard.first[b_row[random] + 1] - 1)]
        _cut(a_begin, a_end, b_begin, b_end, lanes, shard.rule.max_tokens, streams)
        b_origin = shard.offsets[b_row]
        pair = (lanes, a_begin - origin, a_end - origin, b_row, b_begin - b_origin, b_end - b_origin, is_next)
        drawn.append(np.column_stack(pair).astype(np.int32))
        sentence, a_begin = np.where(is_next, last + 1, split), following
        if len(going := np.flatnonzero(sentence < beyond)) < len(lanes):
            lanes, target, row, origin, sentence, beyond, a_begin = (
                each[going] for each in (lanes, target, row, origin, sentence, beyond, a_begin)
            )
    return np.concatenate(drawn), lanes


def _cut(
    a_begin: np.ndarray, a_end: np.ndarray, b_begin: np.ndarray, b_end: np.ndarray,
    lanes: np.ndarray, max_tokens: int, streams: _Streams,
) -> None:  # fmt: skip
    """Cut segments, in place, where both together are too long."""
    a, b = a_end - a_begin, b_end - b_begin
    long = np.flatnonzero(a + b > max_tokens)
    for begin, end, cut in zip((a_begin, b_begin), (a_end, b_end), _cuts(a[long], b[long], max_tokens), strict=True):
        front = streams.heads(cut, lanes[long])
        begin[long] += front
        end[long] -= cut - front


def draw_passes(rows: Sequence[int], names: Sequence[Name], sentences: Sentences, rule: PairRule) -> list[np.ndarray]:
    """The pairs of many passes over documents.

    Args:
        rows: the document of each pass.
        names: whose random numbers each pass takes.
        sentences: all documents of the shard, at least two.
        rule: length and chances.

    Returns:
        For each pass int32 [pairs, FIELDS], the numbers that nsp.draw_pairs returns.
    """
    shard, all_rows = _Shard(sentences, rule), np.asarray(rows, dtype=np.int64)
    passes: list[np.ndarray] = [np.empty((0, FIELDS), dtype=np.int32)] * len(rows)
    # Passes of one length end together.
    order = np.argsort(np.diff(shard.first)[all_rows], kind="stable")
    for group in (order[begin : begin + GROUP] for begin in range(0, len(order), GROUP)):
        drawn, unfinished = _draw_group(all_rows[group], [random_bits(*names[each]) for each in group], shard)
        by_lane = drawn[np.argsort(drawn[:, 0], kind="stable")]
        begins = np.searchsorted(by_lane[:, 0], np.arange(len(group) + 1))
        for lane, each in enumerate(group.tolist()):
            passes[each] = by_lane[begins[lane] : begins[lane + 1], 1:]
        for each in group[unfinished].tolist():
            passes[each] = _alone(draw_pairs(rows[each], sentences, rule, random_draws(*names[each])))
    return passes


def draw_single_passes(
    rows: Sequence[int], names: Sequence[Name], sentences: Sentences, rule: PairRule
) -> list[np.ndarray]:
    """As draw_passes, for single segments: one pass after the other, since they take hardly any time."""
    return [
        _alone(draw_singles(row, sentences, rule, random_draws(*name))) for row, name in zip(rows, names, strict=True)
    ]


def _alone(drawn: list[int]) -> np.ndarray:
    return np.array(drawn, dtype=np.int32).reshape(-1, FIELDS)
