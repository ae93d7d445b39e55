"""Next-sentence pairs in large numbers: the chances are those that they should be."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest

from preprocessing.nsp import Negatives, PairRule, Sentences
from preprocessing.nsp_lanes import draw_passes, draw_single_passes

ENOUGH = 100_000


class Drawn(NamedTuple):
    """Pairs, column by column, with the document and the pass that each is from."""

    sentences: Sentences
    lengths: list[list[int]]
    row: np.ndarray
    number: np.ndarray
    a_begin: np.ndarray
    a_end: np.ndarray
    b_row: np.ndarray
    b_begin: np.ndarray
    b_end: np.ndarray
    is_next: np.ndarray

    def starts(self, row: np.ndarray) -> np.ndarray:
        """Where documents begin among all tokens."""
        return self.sentences.offsets[row]


def draw(lengths: list[list[int]], rule: PairRule, passes: int, single: bool = False) -> Drawn:
    flat = [length for document in lengths for length in document]
    sentences = Sentences(
        ends=np.cumsum(flat), first=np.cumsum([0, *map(len, lengths)]), offsets=np.cumsum([0, *map(sum, lengths)])
    )
    rows = np.arange(len(lengths)).repeat(passes)
    names = [(7, f"document {row}", number, 128) for row in range(len(lengths)) for number in range(passes)]
    drawn = (draw_single_passes if single else draw_passes)(rows, names, sentences, rule)
    assert len(drawn.pairs) >= ENOUGH
    number = np.arange(len(rows)).repeat(drawn.sizes)
    return Drawn(sentences, lengths, rows[number], number, *drawn.pairs.T)


def documents(count: int, sentence: int | None) -> list[list[int]]:
    """Documents of 1 to 500 sentences; of about 20 tokens, as in English, or of so many."""
    chance = np.random.default_rng(3)
    sizes = np.minimum(500, 1 + chance.geometric(1 / 150, size=count))
    sizes[:3] = 1
    if sentence is not None:
        return [[sentence] * size for size in sizes.tolist()]
    return [np.minimum(200, 1 + chance.gamma(2.0, 10.0, size=size)).astype(int).tolist() for size in sizes.tolist()]


@pytest.fixture(scope="module")
def natural() -> Drawn:
    return draw(documents(300, None), PairRule(125, 0.1, "uniform"), 20)


@pytest.fixture(scope="module")
def even() -> Drawn:
    """Sentences of 7 tokens, of which 9 fill a sequence: nothing is ever cut, so the chunks can be told from pairs."""
    return draw(documents(300, 7), PairRule(63, 0.0, "uniform"), 20)


def test_the_coin_is_fair_wherever_a_chunk_has_two_sentences(even: Drawn) -> None:
    sizes = np.array([len(document) for document in even.lengths])[even.row]
    chunk = np.minimum(9, sizes - even.a_begin // 7)
    assert (even.is_next[chunk == 1] == 0).all()
    tossed = even.is_next[chunk > 1]
    assert len(tossed) >= ENOUGH
    assert abs(tossed.mean() - 0.5) < 0.005
    # A ends after any but the last sentence of its chunk, with equal chances.
    a_sentences = ((even.a_end - even.a_begin) // 7)[chunk == 9]
    counts = np.bincount(a_sentences, minlength=10)[1:]
    assert counts[8] == 0
    check_chi_square(counts[:8], np.full(8, len(a_sentences) / 8))


def test_the_coin_does_not_depend_on_how_much_there_is_to_toss_for(even: Drawn) -> None:
    sizes = np.array([len(document) for document in even.lengths])[even.row]
    chunk = np.minimum(9, sizes - even.a_begin // 7)
    for sentences in range(2, 10):
        tossed = even.is_next[chunk == sentences]
        assert len(tossed) > 800
        assert abs(tossed.mean() - 0.5) < 4 * 0.5 / math.sqrt(len(tossed))


def test_labels_segments_and_lengths(natural: Drawn) -> None:
    sizes = np.array([sum(document) for document in natural.lengths])
    assert ((natural.b_row == natural.row) == natural.is_next.astype(bool)).all()  # never random from the same one
    a, b = natural.a_end - natural.a_begin, natural.b_end - natural.b_begin
    assert a.min() >= 1
    assert b.min() >= 1
    assert (a + b).max() == 125
    assert natural.a_begin.min() >= 0
    assert natural.b_begin.min() >= 0
    assert (natural.a_end <= sizes[natural.row]).all()
    assert (natural.b_end <= sizes[natural.b_row]).all()
    true = natural.is_next.astype(bool)
    assert (natural.a_end[true] <= natural.b_begin[true]).all()  # so they never overlap
    assert 0.42 < true.mean() < 0.5  # less than half: a chunk of one sentence has no true next


def test_a_true_next_begins_where_a_ended_but_for_what_was_cut(natural: Drawn) -> None:
    true = natural.is_next.astype(bool)
    ends = np.asarray(natural.sentences.ends)
    origin = natural.starts(natural.row)
    a_end, b_begin = (origin + natural.a_end)[true], (origin + natural.b_begin)[true]
    uncut = (natural.a_end - natural.a_begin + natural.b_end - natural.b_begin)[true] < 125
    assert uncut.sum() > 1000
    assert (a_end[uncut] == b_begin[uncut]).all()
    border = ends[np.searchsorted(ends, a_end)]  # the first end of a sentence at or after A's
    assert (border <= b_begin).all()
    cut = ~uncut
    assert 0.05 < (a_end[cut] == b_begin[cut]).mean() < 0.9  # tokens go at either end of either segment


def test_a_and_b_are_cut_at_either_end_alike(natural: Drawn) -> None:
    ends = np.concatenate([[0], natural.sentences.ends])
    begins_whole = np.isin(natural.starts(natural.b_row) + natural.b_begin, ends)
    ends_whole = np.isin(natural.starts(natural.b_row) + natural.b_end, ends)
    assert abs(begins_whole.mean() - ends_whole.mean()) < 0.03


def test_the_share_of_short_passes_and_their_lengths() -> None:
    """With sentences of one token a chunk is as long as its pass aims at."""
    room, passes = 40, 150
    drawn = draw([[1] * 200 for _ in range(80)], PairRule(room, 0.1, "uniform"), passes)
    total = drawn.a_end - drawn.a_begin + drawn.b_end - drawn.b_begin
    aimed = np.zeros(80 * passes, dtype=np.int64)
    np.maximum.at(aimed, drawn.number, total)
    # One pass in ten draws a length from 2 to the longest, all alike.
    short, expected = (aimed < room).mean(), 0.1 * (room - 2) / (room - 1)
    assert abs(short - expected) < 4 * math.sqrt(expected / len(aimed))
    counts = np.bincount(aimed[aimed < room], minlength=room)[2:]
    check_chi_square(counts, np.full(room - 2, counts.sum() / (room - 2)))


def chi_square(observed: np.ndarray, expected: np.ndarray) -> float:
    """Standard deviations by which the sum is above what chance would make it."""
    degrees = len(observed) - 1
    return float((((observed - expected) ** 2 / expected).sum() - degrees) / math.sqrt(2 * degrees))


def check_chi_square(observed: np.ndarray, expected: np.ndarray) -> None:
    assert abs(chi_square(observed, expected)) < 4


def spread(drawn: Drawn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of every document how often it was a random next, and how often it should be: uniformly, or by sentences."""
    random = drawn.is_next == 0
    count = len(drawn.lengths)
    sizes = np.array([len(document) for document in drawn.lengths])
    asked = np.bincount(drawn.row[random], minlength=count)
    observed = np.bincount(drawn.b_row[random], minlength=count)
    alike = (asked.sum() - asked) / (count - 1)
    share = asked / (sizes.sum() - sizes)  # for every sentence of another document
    return observed, alike, (share.sum() - share) * sizes


@pytest.mark.parametrize("negatives", ["uniform", "by-sentence"])
def test_negatives_are_spread_as_asked(negatives: Negatives) -> None:
    drawn = draw(documents(200, 7), PairRule(63, 0.0, negatives), 50)
    assert (drawn.is_next == 0).sum() >= ENOUGH
    observed, alike, by_sentence = spread(drawn)
    expected, other = (alike, by_sentence) if negatives == "uniform" else (by_sentence, alike)
    check_chi_square(observed, expected)
    assert chi_square(observed, other) > 100  # the test can tell one from the other
    # Within a document B begins with any sentence, with equal chances.
    lengths = np.array([len(document) for document in drawn.lengths])[drawn.b_row]
    where = ((drawn.b_begin // 7) / lengths)[(drawn.is_next == 0) & (lengths >= 50)]
    assert abs(where.mean() + 0.5 / lengths[lengths >= 50].mean() - 0.5) < 0.01


def named_by_lengths(drawn: Drawn) -> float:
    """The share of labels that are named from the lengths of A and B alone, learnt from one half of the passes."""
    bins = (drawn.a_end - drawn.a_begin) // 8 * 16 + (drawn.b_end - drawn.b_begin) // 8
    learnt = drawn.number % 2 == 0
    next_ = np.bincount(bins[learnt], drawn.is_next[learnt], minlength=256)
    is_next = next_ > np.bincount(bins[learnt], minlength=256) / 2
    return float((is_next[bins[~learnt]] == drawn.is_next[~learnt]).mean())


def test_among_long_and_short_documents_lengths_tell_labels_unless_negatives_go_by_sentences() -> None:
    """As docs/preprocessing.md says; of a rule that is google's."""
    chance = np.random.default_rng(5)
    sizes = [1500] * 4 + [3] * 200
    lengths = [np.minimum(200, 1 + chance.gamma(2.0, 10.0, size=size)).astype(int).tolist() for size in sizes]
    uniform, by_sentence = (draw(lengths, PairRule(125, 0.1, rule), 60) for rule in ("uniform", "by-sentence"))
    assert named_by_lengths(uniform) > 0.62
    assert named_by_lengths(by_sentence) < 0.58


def test_single_segments_cover_a_document_once_a_pass() -> None:
    drawn = draw(documents(300, 7), PairRule(63, 0.0, "uniform"), 30, single=True)
    assert (drawn.b_begin == drawn.b_end).all()
    assert (drawn.b_row == drawn.row).all()
    assert drawn.is_next.all()
    assert (drawn.a_end - drawn.a_begin).max() == 63
    first = np.diff(drawn.number, prepend=-1) > 0  # of a pass
    assert (drawn.a_begin[first] == 0).all()
    assert (drawn.a_begin[1:][~first[1:]] == drawn.a_end[:-1][~first[1:]]).all()
    sizes = np.array([sum(document) for document in drawn.lengths])[drawn.row]
    last = np.append(first[1:], True)
    assert (drawn.a_end[last] == sizes[last]).all()


def test_single_segments_are_cut_to_their_length_at_either_end() -> None:
    drawn = draw(documents(300, None), PairRule(126, 0.1, "uniform"), 20, single=True)
    lengths = drawn.a_end - drawn.a_begin
    assert lengths.min() >= 1
    assert lengths.max() == 126
    assert (lengths == 126).mean() > 0.75
    ends = np.concatenate([[0], drawn.sentences.ends])
    begins_whole = np.isin(drawn.starts(drawn.row) + drawn.a_begin, ends)
    ends_whole = np.isin(drawn.starts(drawn.row) + drawn.a_end, ends)
    assert abs(begins_whole.mean() - ends_whole.mean()) < 0.03
