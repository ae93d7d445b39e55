"""Dealing samples out to several sources: exact shares, every sample of a source once and in order, at any index."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trainer.mixture import Mixture, interleave, whole_weights

weights = st.lists(st.integers(1, 1000), min_size=1, max_size=9)


@st.composite
def changing(draw):
    """Stretches of up to four sources whose weights may be 0, but not all of them."""
    some = st.lists(st.integers(0, 9), min_size=(n := draw(st.integers(1, 4))), max_size=n).filter(any)
    return draw(st.lists(st.tuples(st.integers(1, 60), some), min_size=1, max_size=5))


@given(weights, st.integers(1, 3000))
def test_each_source_gives_its_samples_once_and_in_order(of_sources, count):
    sources, positions = interleave(np.arange(count), of_sources)
    for source in range(len(of_sources)):
        assert positions[sources == source].tolist() == list(range((sources == source).sum()))


@given(weights, st.integers(1, 3000))
def test_every_prefix_has_every_sources_share(of_sources, count):
    """Within half a sample for each halving of the list of sources."""
    sources, _ = interleave(np.arange(count), of_sources)
    halvings = (len(of_sources) - 1).bit_length()
    for source, weight in enumerate(of_sources):
        seen = np.cumsum(sources == source)
        share = np.arange(1, count + 1) * weight / sum(of_sources)
        assert np.abs(seen - share).max() <= halvings / 2 + 1e-9


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=4), st.integers(0, 10**12), st.integers(1, 500))
def test_every_window_has_every_sources_share(of_sources, first, count):
    sources, _ = interleave(np.arange(first, first + count), of_sources)
    for source, weight in enumerate(of_sources):
        share = Fraction(count * weight, sum(of_sources))
        assert abs(int((sources == source).sum()) - share) <= 2


@given(weights, st.lists(st.integers(0, 10**14), min_size=1, max_size=20))
def test_an_index_is_placed_the_same_alone_and_among_others(of_sources, indices):
    together = interleave(np.array(indices), of_sources)
    alone = [interleave(np.array([index]), of_sources) for index in indices]
    assert together[0].tolist() == [int(source[0]) for source, _ in alone]
    assert together[1].tolist() == [int(position[0]) for _, position in alone]


@pytest.mark.parametrize(
    ("of_sources", "sources"),
    [
        ([1, 1], [0, 1, 0, 1, 0, 1, 0, 1, 0, 1]),
        ([2, 3], [1, 0, 1, 0, 1, 1, 0, 1, 0, 1]),
        ([1, 2, 1], [1, 0, 2, 1, 1, 0, 2, 1, 1, 0]),
        ([1, 2, 3], [2, 1, 0, 2, 1, 2, 2, 1, 0, 2]),
    ],
)
def test_mixtures_are_fixed_for_ever(of_sources, sources):
    """Other values would mean that a run that goes on sees samples again and misses others."""
    assert interleave(np.arange(10), of_sources)[0].tolist() == sources


@given(weights)
def test_after_a_whole_turn_every_source_gave_its_weight(of_sources):
    """So weights that are numbers of pairs make one corpus of several: each pair once in an epoch of all."""
    sources, positions = interleave(np.arange(2 * sum(of_sources)), of_sources)
    for source, weight in enumerate(of_sources):
        places = np.flatnonzero(sources == source)
        assert (places[:weight] < sum(of_sources)).all()
        assert (places[weight:] >= sum(of_sources)).all()
        assert (positions[places] == np.arange(2 * weight)).all()


@pytest.mark.filterwarnings("error")  # of a division by zero, for sources without weight
@given(changing(), st.integers(0, 100))
def test_where_weights_change_every_source_goes_on_where_it_was_left(stretches, beyond):
    mixture = Mixture(stretches)
    count = sum(samples for samples, _ in stretches) + beyond
    sources, positions = mixture.deal(np.arange(count))
    for source in range(len(stretches[0][1])):
        assert positions[sources == source].tolist() == list(range((sources == source).sum()))
        assert mixture.given(count)[source] == (sources == source).sum()


@given(changing())
def test_every_stretch_is_dealt_out_by_its_own_weights(stretches):
    different = [one for one, other in zip(stretches, [*stretches[1:], None], strict=True)
                 if not other or whole_weights(one[1]) != whole_weights(other[1])]  # fmt: skip
    sources, _ = Mixture(different).deal(np.arange(sum(samples for samples, _ in different)))
    for samples, of_stretch in different:
        expected, _ = interleave(np.arange(samples), whole_weights(of_stretch))
        assert sources[:samples].tolist() == expected.tolist()
        sources = sources[samples:]


@given(weights, st.lists(st.integers(1, 50), min_size=1, max_size=4))
def test_weights_that_stay_are_one_mixture_whatever_the_stretches(of_sources, lengths):
    """So phases of one length without weights of their own read on as if they were one."""
    indices = np.arange(sum(lengths) + 10)
    split = Mixture([(samples, of_sources) for samples in lengths]).deal(indices)
    for ours, expected in zip(split, interleave(indices, whole_weights(of_sources)), strict=True):
        assert ours.tolist() == expected.tolist()


@given(changing(), st.lists(st.integers(0, 10**14), min_size=1, max_size=20))
def test_where_weights_change_too_an_index_is_placed_the_same_alone_and_among_others(stretches, indices):
    mixture = Mixture(stretches)
    together = [numbers.tolist() for numbers in mixture.deal(np.array(indices))]
    alone = [[int(numbers[0]) for numbers in mixture.deal(np.array([index]))] for index in indices]
    assert list(map(list, zip(*together, strict=True))) == alone


def test_equal_stretches_end_where_the_last_of_them_does():
    sources, _ = Mixture([(4, [1, 0]), (4, [2, 0]), (4, [0, 1])]).deal(np.arange(12))
    assert sources.tolist() == [0] * 8 + [1] * 4


def test_shares_are_the_weights_as_they_are_given_where_these_stay():
    """By which groups of shards get their sizes, and so their orders: other digits would be another order."""
    assert Mixture([(5, (0.7, 0.3)), (9, (7.0, 3.0))]).shares == (0.7, 0.3)
    assert Mixture([(5, (1, 0)), (5, (0, 1))]).shares == [5, 5]


def test_numbers_stay_exact_where_products_exceed_64_bits():
    largest = [(1 << 30) - 1, 1 << 30]
    index = (1 << 50) + 12345
    sources, positions = interleave(np.array([index]), largest)
    expected = (2 * index * largest[0] + sum(largest)) // (2 * sum(largest))  # Python's integers have no end
    assert positions[0] == (expected if sources[0] == 0 else index - expected)


@pytest.mark.parametrize(
    ("given_weights", "expected"),
    [
        ([0.7, 0.3], [7, 3]),
        ([3], [1]),
        ([0.1, 0.1, 0.2], [1, 1, 2]),
        ([2.0, 0.5], [4, 1]),
        ([54, 12], [9, 2]),
        ([0, 0.5], [0, 1]),
        ([(1 << 29) + 1, 1 << 30], [(1 << 29) + 1, 1 << 30]),
        ([(1 << 31) + 1, 1 << 31], [1073741823, 1073741822]),
    ],
)
def test_weights_are_taken_as_they_are_written(given_weights, expected):
    assert whole_weights(given_weights) == expected


@given(st.lists(st.integers(1, 10**15), min_size=2, max_size=6))
@example([1, (1 << 31) - 1])
@example([0, 1, (1 << 31) - 1])
def test_great_numbers_of_pairs_are_scaled_down(pairs):
    whole = whole_weights(pairs)
    assert sum(whole) < 1 << 31
    for weight, count in zip(whole, pairs, strict=True):
        assert (weight >= 1) == (count > 0)
        assert weight / sum(whole) == pytest.approx(count / sum(pairs), abs=1e-8)
