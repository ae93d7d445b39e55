"""Many passes of nsp.draw_pairs at once, with numpy: the same pairs, twice as fast.

Each pass is a lane, and a step of the loop draws the next pair of every lane. A lane takes its random numbers from its
own stream in the order in which nsp.draw_pairs does, so every pass has the pairs that it would have alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from preprocessing.nsp import (
    FIELDS,
    PairRule,
    Sentences,
    draw_pairs,
    draw_singles,
    draws_from,
    random_draws,
    stream_key,
    stretch,
)

GROUP = 4096  # lanes that are stepped together: their state fits a processor's cache
FEW = 48  # so few lanes are faster one by one
Name = tuple[int, str, int, int]  # of a pass: the arguments of nsp.stream_key
Key = tuple[int, int]  # of its stream: what that returns
_STRIDE = 32  # tokens between two places for which it is known which sentence they are in
_OPENING = 8  # raw draws that all lanes get together: no more than a pass over a document of one sentence may need
_BLOCK = 64  # of a lane that needs more, fetched at once
# Of Philox4x64-10, Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
_ROUNDS = 10
_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


class Passes(NamedTuple):
    """The pairs of many passes, one pass after the other."""

    sizes: np.ndarray  # int64 [passes]: how many each has
    pairs: np.ndarray  # int32 [pairs, FIELDS]: the numbers that nsp.draw_pairs returns


def _product(a: np.ndarray, factor: int) -> tuple[np.ndarray, np.ndarray]:
    """The upper and the lower 64 bits of products of 128."""
    low, high = np.uint64(factor & 0xFFFFFFFF), np.uint64(factor >> 32)
    a_low, a_high = a & _LOW, a >> _HALF
    middle = a_high * low + (a_low * low >> _HALF)
    upper = a_high * high + (middle >> _HALF) + (a_low * high + (middle & _LOW) >> _HALF)
    return upper, a * np.uint64(factor)


def openings(keys: Sequence[Key]) -> np.ndarray:
    """The first numbers of many streams at once, those that nsp.stretch gives; uint64 [keys, _OPENING]."""
    k0, k1 = np.array(keys, dtype=np.uint64).reshape(-1, 2).T[..., None].copy()  # each [keys, 1]
    words = np.zeros((4, len(keys), _OPENING // 4), dtype=np.uint64)
    words[0] = np.arange(1, 1 + _OPENING // 4)
    for _ in range(_ROUNDS):
        (upper0, lower0), (upper2, lower2) = _product(words[0], _MULTIPLIERS[0]), _product(words[2], _MULTIPLIERS[1])
        words = np.stack([upper2 ^ words[1] ^ k0, lower2, upper0 ^ words[3] ^ k1, lower0])
        k0 += np.uint64(_WEYL[0])
        k1 += np.uint64(_WEYL[1])
    return words.transpose(1, 2, 0).reshape(len(keys), _OPENING)


class _Streams:
    """The random numbers of all lanes, 64 bits each."""

    def __init__(self, keys: Sequence[Key]):
        self._keys = keys
        self._held = np.empty((len(keys), _BLOCK), dtype=np.uint64)
        self._held[:, -_OPENING:] = openings(keys)
        self._at = np.full(len(keys), _BLOCK - _OPENING)
        self._fetched = np.full(len(keys), _OPENING)

    def take(self, lanes: np.ndarray) -> np.ndarray:
        """The next number of each of some lanes, which are different ones."""
        at = self._at[lanes]
        spent = lanes[at == _BLOCK]
        for lane, begin in zip(spent.tolist(), self._fetched[spent].tolist(), strict=True):
            self._held[lane] = stretch(self._keys[lane], begin, _BLOCK)
        self._fetched[spent] += _BLOCK
        at[at == _BLOCK] = 0
        self._at[lanes] = at + 1
        return np.asarray(self._held[lanes, at])

    def below(self, bounds: np.ndarray, lanes: np.ndarray) -> np.ndarray:
        """As nsp: draw * bound >> 64, for bounds below 2^32, without the 128 bits of the product."""
        draws, factors = self.take(lanes), bounds.astype(np.uint64)
        high, low = draws >> _HALF, draws & _LOW
        return ((high * factors + (low * factors >> _HALF)) >> _HALF).astype(np.int64)

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
        self.ends, self.first, self.offsets = sentences.ends, sentences.first, sentences.offsets
        self.begins = np.concatenate([[0], self.ends[:-1]])
        self.rule = rule
        self._tokens = self.ends[-1]
        # The first sentence that ends at each of some places or after it: a search among all takes eight times as long.
        self._reached = np.searchsorted(self.ends, np.arange(0, self._tokens + 1, _STRIDE)).astype(np.int32)

    def reach(self, position: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """The first sentence from ``low`` on that ends at a position or after it; at most ``high``."""
        within = np.clip(position, 0, self._tokens)
        found = self._reached[within // _STRIDE]
        behind = np.flatnonzero(self.ends[found] < within)
        while len(behind):
            found[behind] += 1
            behind = behind[self.ends[found[behind]] < within[behind]]
        reached: np.ndarray = np.clip(found, low, high)
        return reached

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


def _draw_group(rows: np.ndarray, streams: _Streams, shard: _Shard) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The pairs of some passes until few lanes are left.

    Returns:
        [pairs] the lane of each, [pairs, FIELDS] what makes it, and the lanes that are not finished.
    """
    lanes = np.arange(len(rows))
    target = _targets(shard.rule, lanes, streams)
    row, origin = rows, shard.offsets[rows]
    sentence, beyond, a_begin = shard.first[rows], shard.first[rows + 1], origin.copy()
    drawn, lane_of = [np.empty((0, FIELDS), dtype=np.int32)], [np.empty(0, dtype=np.int64)]
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
        pair = (a_begin - origin, a_end - origin, b_row, b_begin - b_origin, b_end - b_origin, is_next)
        drawn.append(np.column_stack(pair).astype(np.int32))
        lane_of.append(lanes)
        sentence, a_begin = np.where(is_next, last + 1, split), following
        if len(going := np.flatnonzero(sentence < beyond)) < len(lanes):
            lanes, target, row, origin, sentence, beyond, a_begin = (
                each[going] for each in (lanes, target, row, origin, sentence, beyond, a_begin)
            )
    return np.concatenate(lane_of), np.concatenate(drawn), lanes


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


def draw_passes(rows: np.ndarray, names: Sequence[Name], sentences: Sentences, rule: PairRule) -> Passes:
    """The pairs of many passes over documents.

    Args:
        rows: [passes] the document of each pass.
        names: whose random numbers each pass takes.
        sentences: all documents of the shard, at least two.
        rule: length and chances.
    """
    shard = _Shard(sentences, rule)
    drawn, pass_of = [np.empty((0, FIELDS), np.int32)], [np.empty(0, np.int64)]
    # Passes of one length end together.
    order = np.argsort(np.diff(shard.first)[rows], kind="stable")
    for group in (order[begin : begin + GROUP] for begin in range(0, len(order), GROUP)):
        streams = _Streams([stream_key(*names[each]) for each in group.tolist()])
        lane, pairs, unfinished = _draw_group(rows[group], streams, shard)
        whole = ~np.isin(lane, unfinished)
        drawn.append(pairs[whole])
        pass_of.append(group[lane[whole]])
        for each in group[unfinished].tolist():
            drawn.append(_pairs(draw_pairs(int(rows[each]), sentences, rule, random_draws(*names[each]))))
            pass_of.append(np.full(len(drawn[-1]), each))
    of = np.concatenate(pass_of)
    return Passes(np.bincount(of, minlength=len(rows)), np.concatenate(drawn)[np.argsort(of, kind="stable")])


def draw_single_passes(rows: np.ndarray, names: Sequence[Name], sentences: Sentences, rule: PairRule) -> Passes:
    """As draw_passes, for single segments: one pass after the other, since they take hardly any time."""
    drawn = []
    for group in (range(len(rows))[begin : begin + GROUP] for begin in range(0, len(rows), GROUP)):
        keys = [stream_key(*names[each]) for each in group]
        for row, key, opening in zip(rows[group].tolist(), keys, openings(keys).tolist(), strict=True):
            drawn.append(_pairs(draw_singles(row, sentences, rule, chain(opening, draws_from(key, _OPENING)))))
    return Passes(np.array([len(pairs) for pairs in drawn]), np.concatenate(drawn))


def _pairs(drawn: list[int]) -> np.ndarray:
    return np.array(drawn, dtype=np.int32).reshape(-1, FIELDS)
