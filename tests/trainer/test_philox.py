import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.philox import below, derive_key, derive_seed, permute, philox4x32, random_words, random_words_at


@pytest.mark.parametrize(
    ("key", "counter", "words"),
    [  # known answers of the authors' library, Random123, kat_vectors
        ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF,) * 4, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0xA4093822, 0x299F31D0),
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_answers(key, counter, words):
    assert tuple(philox4x32(key, tuple(np.uint64(word) for word in counter))) == words


def test_a_row_of_words_depends_on_its_index_and_on_nothing_beside_it():
    together = random_words((1, 2), np.array([5, 7, 2**40]), words=10, stream=0)
    for i, index in enumerate([5, 7, 2**40]):
        assert (random_words((1, 2), np.array([index]), words=10, stream=0) == together[i]).all()
        assert (random_words((1, 2), np.array([index]), words=6, stream=0) == together[i, :6]).all()
    assert (random_words((1, 2), np.array([5]), words=10, stream=1) != together[0]).any()


@pytest.mark.parametrize("words", [1, 2, 4])
@pytest.mark.parametrize("stream", [0, 1])
def test_words_of_a_single_place_are_those_of_the_row(words, stream):
    indices, places = np.array([5, 5, 2**40 + 5, 2**62]), np.array([0, 3, 3, 6])
    rows = random_words((1, 2), indices, 7 * words, stream).reshape(4, 7, words)
    assert (random_words_at((1, 2), indices, places, words, stream) == rows[np.arange(4), places]).all()


def test_an_index_counts_with_all_its_64_bits():
    first, second = random_words((1, 2), np.array([5, 2**32 + 5]), words=4, stream=0)
    assert (first != second).any()


def test_bounded_numbers_are_even():
    draws = below(random_words((3, 4), np.arange(10_000), words=10, stream=0), 7).ravel()
    counts = np.bincount(draws, minlength=7)
    assert len(counts) == 7
    expected = len(draws) / 7
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 22.46  # the 0.1 % point with 6 degrees of freedom


@settings(max_examples=60)
@given(size=st.integers(1, 5000), seed=st.integers(0, 2**32))
def test_a_permutation_meets_every_number_once(size, seed):
    assert sorted(permute(np.arange(size), size, derive_key(seed))) == list(range(size))


def test_a_permutation_of_a_corpus_far_larger_than_memory_is_spread_evenly():
    size = 10**12
    places = permute(np.arange(20_000), size, derive_key(1))
    assert len(np.unique(places)) == 20_000
    assert ((places >= 0) & (places < size)).all()
    counts = np.histogram(places, bins=20, range=(0, size))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 43.8  # the 0.1 % point with 19 degrees of freedom


def test_neighbours_in_small_permutations_are_not_neighbours_after():
    """All orders of 4 elements appear about equally often over the keys."""
    orders = [tuple(permute(np.arange(4), 4, derive_key(seed))) for seed in range(4800)]
    counts = np.array([orders.count(order) for order in set(orders)])
    assert len(counts) == 24
    assert ((counts - 200) ** 2 / 200).sum() < 49.7  # the 0.1 % point with 23 degrees of freedom


@pytest.mark.parametrize("size", [24, 63, 64])
def test_two_neighbours_go_to_any_two_places_alike(size):
    """Of 16 or fewer some orders come more often than others: see permute."""
    orders = np.stack([permute(np.arange(size), size, derive_key(seed)) for seed in range(3000)])
    places = np.stack([np.bincount(places, minlength=size) for places in orders.T])
    check_even(places, degrees=(size - 1) ** 2)
    apart = np.bincount((np.diff(orders) % size).ravel(), minlength=size)[1:]  # of elements i and i + 1
    check_even(apart, degrees=size - 2)
    # Nor does one key's order tell the next one's: as in any two of them, one element has its place in both.
    assert abs((orders[1:] == orders[:-1]).sum() - 2999) < 4 * 2999**0.5


def check_even(counts, degrees):
    chi_square = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
    assert abs(chi_square - degrees) < 4 * (2 * degrees) ** 0.5


def test_permutations_are_fixed_for_ever():
    """Other values would mean that a run that goes on sees samples again and misses others."""
    assert permute(np.arange(10), 10, derive_key(1)).tolist() == [0, 5, 4, 9, 2, 8, 6, 7, 1, 3]
    assert permute(np.arange(16), 16, derive_key(1)).tolist() == [0, 15, 12, 13, 11, 8, 6, 7, 1, 3, 14, 2, 10, 9, 4, 5]
    assert permute(np.arange(3), 10**12, derive_key(1, "x")).tolist() == [45590569624, 613340401230, 139760777840]


def test_keys_are_explicit_hashes():
    digest = hashlib.blake2b(b"(1, 'masking')", digest_size=8).digest()
    assert derive_key(1, "masking") == (int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little"))
    assert derive_seed(1, "masking") == int.from_bytes(digest, "little")
