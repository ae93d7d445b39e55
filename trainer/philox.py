"""Counter-based random numbers: a pure function of (key, counter), with no state to save or to get out of step.

Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), over whole arrays of
counters at once. And, on top of the same idea, a pseudo-random permutation of any size in constant memory.
"""

from __future__ import annotations

import functools
import hashlib

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_FEISTEL_ROUNDS = 8
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def derive_key(*parts: int | str) -> tuple[int, int]:
    """Two 32-bit key words from any seeds and names, by BLAKE2b: ``derive_key(seed, "masking")``."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def derive_seed(*parts: int | str) -> int:
    """The same key as one integer of 64 bits, for generators that take such a seed."""
    return _joined(derive_key(*parts))


def _joined(key: tuple[int, int]) -> int:
    return key[0] | key[1] << 32


def philox4x32(key: tuple[int, int], counter: tuple[np.ndarray | np.uint64, ...]) -> np.ndarray:
    """Random words for an array of counters.

    Args:
        key: two 32-bit words.
        counter: four arrays of 32-bit words that broadcast to one shape [...].

    Returns:
        uint32 [..., 4]
    """
    c0, c1, c2, c3 = (np.array(word, dtype=np.uint64) for word in np.broadcast_arrays(*counter))
    for k0, k1 in _round_keys(key):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c1 ^= product1 >> _HALF
        c1 ^= k0
        c3 ^= product0 >> _HALF
        c3 ^= k1
        product0 &= _LOW
        product1 &= _LOW
        c0, c1, c2, c3 = c1, product1, c3, product0
    words = np.empty((*c0.shape, 4), dtype=np.uint32)
    for i, word in enumerate((c0, c1, c2, c3)):
        words[..., i] = word
    return words


@functools.lru_cache(maxsize=64)
def _round_keys(key: tuple[int, int]) -> list[tuple[np.uint64, np.uint64]]:
    def word(number: int, i: int) -> np.uint64:
        return np.uint64((key[number] + i * _WEYL[number]) & 0xFFFFFFFF)

    return [(word(0, i), word(1, i)) for i in range(_ROUNDS)]


def random_words(key: tuple[int, int], indices: np.ndarray, words: int, stream: int) -> np.ndarray:
    """A row of random words for every index.

    Args:
        key: from derive_key.
        indices: [n] integers below 2^63; equal indices get equal rows.
        words: how many 32-bit words a row has.
        stream: distinguishes independent draws for the same index.

    Returns:
        uint32 [n, words]
    """
    index = np.asarray(indices, dtype=np.uint64)[:, None]
    block = np.arange(-(-words // 4), dtype=np.uint64)[None, :]
    counter = (index & _LOW, index >> _HALF, block, np.uint64(stream))
    return philox4x32(key, counter).reshape(len(index), -1)[:, :words]


def random_words_at(
    key: tuple[int, int], indices: np.ndarray, places: np.ndarray, words: int, stream: int
) -> np.ndarray:
    """Some of the words that random_words would give: those of group ``place`` in the row of an index.

    Args:
        key: from derive_key.
        indices: [n] integers below 2^63.
        places: [n] integers; the words of place p are numbers p * words to (p + 1) * words of the row.
        words: 1, 2 or 4.
        stream: as in random_words.

    Returns:
        uint32 [n, words]
    """
    index, place = indices.astype(np.uint64), places.astype(np.uint64)
    groups = 4 // words  # in a block of the generator
    blocks = philox4x32(key, (index & _LOW, index >> _HALF, place // np.uint64(groups), np.uint64(stream)))
    chosen: np.ndarray = blocks.reshape(len(index), groups, words)[np.arange(len(index)), places % groups]
    return chosen


def below(words: np.ndarray, bound: int) -> np.ndarray:
    """Map uint32 words to int64 integers in [0, bound) by multiply and shift; the bias is below bound / 2^32."""
    return ((words.astype(np.uint64) * np.uint64(bound)) >> _HALF).astype(np.int64)


def permute(indices: np.ndarray, size: int, key: tuple[int, int]) -> np.ndarray:
    """Where a pseudo-random permutation of range(size) sends each index, without building the permutation.

    A Feistel network permutes the next power of four; an index that lands outside range(size) is sent on until it
    lands inside ("cycle walking"), which keeps it a permutation and takes fewer than four goes on average.
    Of 16 elements or fewer any goes to any place as often, to 2 %, but some orders come more often than others, of six
    elements by up to a half: eight rounds are few for so few bits. From 17 on no test tells it from a random one.

    Args:
        indices: [n] integers in [0, size).
        size: how many elements the permutation has.
        key: from derive_key.

    Returns:
        int64 [n]
    """
    half = np.uint64(max(1, (int(size - 1).bit_length() + 1) // 2))
    secret = _joined(key)
    keys = [np.uint64(secret * (2 * i + 1) & 0xFFFFFFFFFFFFFFFF) for i in range(_FEISTEL_ROUNDS)]
    images = _feistel(np.asarray(indices, dtype=np.uint64), half, keys)
    outside = np.flatnonzero(images >= size)
    while len(outside):
        images[outside] = _feistel(images[outside], half, keys)
        outside = outside[images[outside] >= size]
    return images.astype(np.int64)


def _feistel(values: np.ndarray, half: np.uint64, keys: list[np.uint64]) -> np.ndarray:
    """One pass of a balanced Feistel network over values of 2 * half bits."""
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = values >> half, values & mask
    for key in keys:
        mixed = _mix(right + key)
        mixed &= mask
        mixed ^= left
        left, right = right, mixed
    return (left << half) | right


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of SplitMix64 (Steele et al., 2014), in place: every input bit reaches every output bit."""
    x ^= x >> _SHIFTS[0]
    x *= _FACTORS[0]
    x ^= x >> _SHIFTS[1]
    x *= _FACTORS[1]
    x ^= x >> _SHIFTS[2]
    return x
