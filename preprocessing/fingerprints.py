"""What is remembered of a document's text, to find it, or lines of it, again elsewhere in the corpus; pure.

Hashes are of 64 bits: among 50 million lines two different ones share a hash with a chance of 1 in 15,000.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from datasketch import MinHash

LINE = np.dtype([("hash", "<u8"), ("begin", "<u4"), ("end", "<u4"), ("tokens", "<u4")])  # begin, end: of its sentences
SHINGLE_WORDS = 5  # documents are near duplicates by the share of such sequences that they have in common
PERMUTATIONS = 128  # the standard error of an estimated share is below 0.045
_AT_ONCE = 4096  # shingles; the permutations of one take half a kilobyte
_REMEMBERED_WORDS, _REMEMBERED_LETTERS = 1 << 20, 32
_WORD = re.compile(r"\w+")
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class RepeatRule:
    """Which repetitions are dropped.

    Attributes:
        documents: documents whose text is that of another one.
        lines: lines (paragraphs) that are somewhere else in the corpus too.
        line_characters: shorter lines may repeat.
        near_duplicates: documents that share this part of their shingles or more (Jaccard); None for no such search.
    """

    documents: bool
    lines: bool
    line_characters: int
    near_duplicates: float | None


class Fingerprint(NamedTuple):
    """What is remembered of one document's text."""

    text: int
    lines: np.ndarray  # LINE [long lines with tokens]; empty where repeated lines stay
    signature: np.ndarray | None  # uint32 [PERMUTATIONS]; None where near duplicates stay


def keyed_hash(text: str, kind: bytes) -> int:
    """64 bits of BLAKE2b; kinds of up to 16 bytes keep apart what hashes are used for."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8, person=kind).digest(), "little")


def fingerprint(text: str, line_sentences: Sequence[int], sentence_ends: np.ndarray, rule: RepeatRule) -> Fingerprint:
    """The fingerprint of a cleaned text.

    Args:
        text: one paragraph a line.
        line_sentences: how many sentences with tokens each line has.
        sentence_ends: [sentences] the exclusive end of each in the document's tokens.
        rule: what will be looked for.
    """
    return Fingerprint(
        text=keyed_hash(text, b"text"),
        lines=_long_lines(text, line_sentences, sentence_ends, rule),
        signature=signature(text) if rule.near_duplicates is not None else None,
    )


def _long_lines(text: str, line_sentences: Sequence[int], sentence_ends: np.ndarray, rule: RepeatRule) -> np.ndarray:
    if not rule.lines or len(text) < rule.line_characters:
        return np.empty(0, LINE)
    ends = np.cumsum(line_sentences)
    token_ends = [0, *sentence_ends.tolist()]
    found = [
        (keyed_hash(line, b"line"), end - count, end, token_ends[end] - token_ends[end - count])
        for line, count, end in zip(text.split("\n"), line_sentences, ends.tolist(), strict=True)
        if count and len(line) >= rule.line_characters
    ]
    return np.array(found, LINE)


class _WordHashes(dict[str, int]):
    """The hashes of words met by this process; one that another thread forgets meanwhile is made again.

    Long ones are not kept: they hardly come again, as what is between punctuation where no blanks part words.
    """

    def __missing__(self, word: str) -> int:
        made = keyed_hash(word, b"word")
        if len(word) <= _REMEMBERED_LETTERS:
            self[word] = made
        return made


_KNOWN = _WordHashes()


def words_of(text: str) -> list[str]:
    """The words of a text, in small letters: what is between blanks and punctuation."""
    return _WORD.findall(text.casefold())


def word_sequences(text: str, words: int) -> np.ndarray:
    """Hashes of every sequence of so many words, in any case and between any punctuation; uint64 [sequences].

    A text of fewer words is one sequence.
    """
    if len(_KNOWN) > _REMEMBERED_WORDS:
        _KNOWN.clear()
    found = words_of(text)
    hashes = np.fromiter(map(_KNOWN.__getitem__, found), np.uint64, len(found))
    words = min(words, len(hashes))
    sequences = np.zeros(len(hashes) - words + 1 if words else 0, np.uint64)
    for first in range(words):
        sequences = sequences * _MULTIPLIER + hashes[first : first + len(sequences)]
    return sequences


@cache
def _permutations() -> MinHash:
    from datasketch import MinHash  # with scipy, a second that only jobs with near duplicates should take

    return MinHash(PERMUTATIONS, hashfunc=int, scheme="affine32")


def signature(text: str) -> np.ndarray:
    """The MinHash of a text's shingles; uint32 [PERMUTATIONS]."""
    minimal = _permutations().copy()
    sequences = word_sequences(text, SHINGLE_WORDS)
    if not len(sequences):  # nothing but punctuation is like itself only
        sequences = np.array([keyed_hash(text, b"text")], np.uint64)
    shingles = np.unique(sequences >> np.uint64(32)).tolist()
    for begin in range(0, len(shingles), _AT_ONCE):
        minimal.update_batch(shingles[begin : begin + _AT_ONCE])
    return np.asarray(minimal.hashvalues, np.uint32)
