"""Next-sentence prediction: the pairs of one document; pure.

This is the definition: nsp_lanes draws many passes at once, the same pairs.

The meaning is that of create_instances_from_document in google-research/bert. A document is cut into chunks of whole
sentences that reach a target length. A chunk's first sentences, a random number of them, are segment A; segment B is
the rest of the chunk, or with probability 1/2 (always, where the chunk is one sentence) sentences of another
document, and then the rest of the chunk is used again. Both are cut to the maximal length one token at a time, from
the longer one, at a random end. One departure: google draws the other document up to ten times and then takes even
the same one, labelled as random; here it is never the same.

No token is looked at or copied: a pair is made of positions, and sentences are found by bisection.
"""

from __future__ import annotations

import hashlib
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Negatives = Literal["uniform", "by-sentence"]
FIELDS = 6  # numbers that make a pair: a_begin, a_end, b_row, b_begin, b_end, is_next
_BLOCK = 64  # raw draws fetched at once, at first; the stream does not depend on it
_PHILOX: Any = np.random.Philox(0)  # for every stream: to set it costs a fifth of making another one
_UNUSED = _PHILOX.state  # nothing is drawn yet
_LOCK = threading.Lock()  # its own can't be taken twice in numpy 2.0


@dataclass(frozen=True)
class Sentences:
    """Where the sentences of a shard lie when the tokens of its documents are laid one after the other.

    Attributes:
        ends: int64 [sentences] exclusive end of every sentence, strictly ascending.
        first: int64 [documents + 1] index into ``ends`` of every document's first sentence; no document is empty.
        offsets: int64 [documents + 1] where every document's tokens begin.
    """

    ends: np.ndarray
    first: np.ndarray
    offsets: np.ndarray

    def views(self) -> tuple[memoryview[int], memoryview[int], memoryview[int]]:
        """The arrays, so that what is taken out one by one are Python's own numbers: a list's pace, no copy."""
        return self.ends.data, self.first.data, self.offsets.data


@dataclass(frozen=True)
class PairRule:
    """How pairs are drawn for one sequence length.

    Attributes:
        max_tokens: room for A and B together: the sequence length less the special tokens.
        short_probability: share of passes over a document that aim at a shorter length.
        negatives: the other document is drawn with equal chances, or by its number of sentences.
    """

    max_tokens: int
    short_probability: float
    negatives: Negatives


def stream_key(seed: int, doc_id: str, duplicate: int, sequence_length: int) -> tuple[int, int]:
    """The key of a pass's own stream of random numbers, by BLAKE2b; two words of 64 bits.

    Every pass over every document has a stream of its own, so neither another length, nor another document, nor one
    more duplicate changes the pairs that are drawn.
    """
    name = f"{seed}/{duplicate}/{sequence_length}/{doc_id}".encode()
    digest = hashlib.blake2b(name, digest_size=16, person=b"nsp pairs").digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


def stretch(key: tuple[int, int], begin: int, count: int) -> np.ndarray:
    """Numbers of the endless stream of a key (Philox 4x64), from ``begin`` on, a multiple of 4; uint64 [count]."""
    with _LOCK:
        _PHILOX.state = _UNUSED | {"state": {"counter": (begin // 4, 0, 0, 0), "key": key}}
        drawn: np.ndarray = _PHILOX.random_raw(count)
    return drawn


def draws_from(key: tuple[int, int], begin: int) -> Iterator[int]:
    """The numbers of a stream one by one, from ``begin`` on, a multiple of 4."""
    block = _BLOCK
    while True:
        yield from stretch(key, begin, block).tolist()
        begin += block
        block = min(2 * block, 4096)


def random_draws(seed: int, doc_id: str, duplicate: int, sequence_length: int) -> Iterator[int]:
    """The numbers of a pass's stream one by one."""
    return draws_from(stream_key(seed, doc_id, duplicate, sequence_length), 0)


def _below(bound: int, draws: Iterator[int]) -> int:
    """A uniform whole number in [0, bound); its bias is below bound / 2^64."""
    return next(draws) * bound >> 64


def _heads(coins: int, draws: Iterator[int]) -> int:
    """How many of so many fair coins show heads."""
    heads = 0
    while coins > 64:
        heads += next(draws).bit_count()
        coins -= 64
    return heads + (next(draws) >> (64 - coins)).bit_count() if coins else heads


def _target_length(rule: PairRule, draws: Iterator[int]) -> int:
    """The length that the chunks of one pass aim at: mostly the maximum, else uniform in [2, maximum]."""
    if next(draws) < rule.short_probability * 2**64:
        return 2 + _below(rule.max_tokens - 1, draws)
    return rule.max_tokens


def _random_sentence(row: int, first: memoryview[int], negatives: Negatives, draws: Iterator[int]) -> tuple[int, int]:
    """Another document and one of its sentences, where segment B may begin: (row, index into ends)."""
    if negatives == "by-sentence":
        own = first[row + 1] - first[row]
        sentence = _below(first[-1] - own, draws)
        if sentence >= first[row]:
            sentence += own
        return bisect_right(first, sentence) - 1, sentence
    other = _below(len(first) - 2, draws)
    if other >= row:
        other += 1
    return other, first[other] + _below(first[other + 1] - first[other], draws)


def _cuts(a: int, b: int, max_tokens: int) -> tuple[int, int]:
    """How many tokens A and B lose when the longer one (B, if they are equal) loses one until both fit."""
    excess, longer = a + b - max_tokens, a - b
    if excess <= longer:
        return excess, 0
    if excess <= -longer:
        return 0, excess
    # The longer one alone comes down to the other, then both lose in turns, B first.
    return (excess + longer) // 2, (excess - longer + 1) // 2


def draw_pairs(row: int, sentences: Sentences, rule: PairRule, draws: Iterator[int]) -> list[int]:
    """The pairs of one pass over a document.

    Args:
        row: the document.
        sentences: all documents of the shard, at least two.
        rule: length and chances.
        draws: the pass's own stream; see random_draws.

    Returns:
        Flat, FIELDS numbers a pair: a_begin, a_end (tokens of this document), b_row, b_begin, b_end (tokens of
        document b_row), is_next. Every segment has at least one token and both together at most ``max_tokens``.
    """
    ends, first, offsets = sentences.views()
    max_tokens, negatives = rule.max_tokens, rule.negatives
    origin, sentence, beyond = offsets[row], first[row], first[row + 1]
    target = _target_length(rule, draws)
    pairs: list[int] = []
    a_begin = origin
    while sentence < beyond:
        last = bisect_left(ends, a_begin + target, sentence, beyond - 1)
        split = sentence + 1  # first sentence after A
        if last > sentence:
            split += next(draws) * (last - sentence) >> 64
        a_end = ends[split - 1]
        following = a_end
        if last > sentence and next(draws) >> 63:
            b_row, b_begin, b_end, is_next = row, a_end, ends[last], 1
            sentence, following = last + 1, b_end
        else:
            b_row, start = _random_sentence(row, first, negatives, draws)
            b_begin, is_next = ends[start - 1] if start else 0, 0
            b_target = b_begin + target - (a_end - a_begin)
            b_end = ends[bisect_left(ends, b_target, start, first[b_row + 1] - 1)]
            sentence = split  # the sentences that B would have had are used again
        if a_end - a_begin + b_end - b_begin > max_tokens:
            a_cut, b_cut = _cuts(a_end - a_begin, b_end - b_begin, max_tokens)
            if a_cut:
                front = _heads(a_cut, draws)
                a_begin, a_end = a_begin + front, a_end - (a_cut - front)
            if b_cut:
                front = _heads(b_cut, draws)
                b_begin, b_end = b_begin + front, b_end - (b_cut - front)
        b_origin = offsets[b_row]
        pairs += (a_begin - origin, a_end - origin, b_row, b_begin - b_origin, b_end - b_origin, is_next)
        a_begin = following
    return pairs


def draw_singles(row: int, sentences: Sentences, rule: PairRule, draws: Iterator[int]) -> list[int]:
    """The single segments of one pass over a document: its chunks, whole, for training without next sentences.

    Arguments and result are those of draw_pairs. The second segment is empty, at the end of the first one in the same
    document, so is_next is 1.
    """
    ends, first, offsets = sentences.views()
    origin, sentence, beyond = offsets[row], first[row], first[row + 1]
    target = _target_length(rule, draws)
    singles: list[int] = []
    begin = origin
    while sentence < beyond:
        last = bisect_left(ends, begin + target, sentence, beyond - 1)
        sentence, following = last + 1, ends[last]
        cut = max(0, following - begin - rule.max_tokens)
        front = _heads(cut, draws)
        end = following - (cut - front) - origin
        singles += (begin + front - origin, end, row, end, end, 1)
        begin = following
    return singles
