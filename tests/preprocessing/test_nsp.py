from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preprocessing.nsp import FIELDS, PairRule, Sentences, _cuts, _heads, draw_pairs, draw_singles, random_draws

Lengths = list[list[int]]  # of every document the lengths of its sentences
Pair = tuple[int, int, int, int, int, int]

documents = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=30), min_size=2, max_size=6)


def sentences_of(lengths: Lengths) -> Sentences:
    flat = [length for document in lengths for length in document]
    return Sentences(
        ends=np.cumsum(flat), first=np.cumsum([0, *map(len, lengths)]), offsets=np.cumsum([0, *map(sum, lengths)])
    )


def pairs_of(row: int, lengths: Lengths, rule: PairRule, draws: Iterator[int]) -> list[Pair]:
    flat = draw_pairs(row, sentences_of(lengths), rule, draws)
    return [tuple(flat[at : at + FIELDS]) for at in range(0, len(flat), FIELDS)]  # type: ignore[misc]


def by_the_book(row: int, lengths: Lengths, rule: PairRule, draws: Iterator[int]) -> Iterator[tuple[Pair, int, int]]:
    """The meaning of the task on lists of sentences, with the same draws: pairs, and what each segment had to lose."""
    document = [(row, sentence, at) for sentence, length in enumerate(lengths[row]) for at in range(length)]
    words = [[token for token in document if token[1] == sentence] for sentence in range(len(lengths[row]))]
    target = rule.max_tokens
    if next(draws) < rule.short_probability * 2**64:
        target = 2 + (next(draws) * (rule.max_tokens - 1) >> 64)
    todo = list(range(len(words)))
    while todo:
        chunk: list[int] = []
        while todo and sum(len(words[s]) for s in chunk) < target:
            chunk.append(todo.pop(0))
        split = 1 + (next(draws) * (len(chunk) - 1) >> 64) if len(chunk) > 1 else 1
        a = [token for s in chunk[:split] for token in words[s]]
        is_next = len(chunk) > 1 and next(draws) >= 2**63
        if is_next:
            b_row, start = row, chunk[split]
            stop = chunk[-1] + 1
        else:
            others = [other for other in range(len(lengths)) if other != row]
            b_row = others[next(draws) * len(others) >> 64]
            start = next(draws) * len(lengths[b_row]) >> 64
            stop = start + 1
            while sum(lengths[b_row][start:stop]) < target - len(a) and stop < len(lengths[b_row]):
                stop += 1
            todo = chunk[split:] + todo
        a_begin = sum(lengths[row][: chunk[0]])
        b_begin = sum(lengths[b_row][:start])
        b_length = sum(lengths[b_row][start:stop])
        a_left, b_left = len(a), b_length
        while a_left + b_left > rule.max_tokens:
            if a_left > b_left:
                a_left -= 1
            else:
                b_left -= 1
        a_lost, b_lost = len(a) - a_left, b_length - b_left
        a_front, b_front = _heads(a_lost, draws), _heads(b_lost, draws)
        a_begin, b_begin = a_begin + a_front, b_begin + b_front
        yield (a_begin, a_begin + a_left, b_row, b_begin, b_begin + b_left, int(is_next)), a_lost, b_lost


@settings(max_examples=200, deadline=None)
@given(documents, st.integers(2, 60), st.sampled_from([0.0, 0.1, 0.999]), st.integers(0, 5))
def test_pairs_are_those_of_the_plain_algorithm(lengths: Lengths, room: int, short: float, seed: int) -> None:
    rule = PairRule(room, short, "uniform")
    for row in range(len(lengths)):
        expected = [pair for pair, _, _ in by_the_book(row, lengths, rule, random_draws(seed, "d", row, room))]
        assert pairs_of(row, lengths, rule, random_draws(seed, "d", row, room)) == expected


def singles_by_the_book(document: list[int], rule: PairRule, draws: Iterator[int]) -> Iterator[tuple[int, int]]:
    """Begin and end of each chunk of whole sentences, which loses what is too long of it at random ends."""
    target = rule.max_tokens
    if next(draws) < rule.short_probability * 2**64:
        target = 2 + (next(draws) * (rule.max_tokens - 1) >> 64)
    begin = chunk = 0
    for number, length in enumerate(document):
        chunk += length
        if chunk >= target or number == len(document) - 1:
            lost = max(0, chunk - rule.max_tokens)
            front = _heads(lost, draws) if lost else 0
            yield begin + front, begin + chunk - (lost - front)
            begin, chunk = begin + chunk, 0


@given(documents, st.integers(2, 60), st.sampled_from([0.0, 0.1, 0.999]), st.integers(0, 5))
def test_single_segments_are_those_of_the_plain_algorithm(lengths: Lengths, room: int, short: float, seed: int) -> None:
    """With an empty second segment at the end of the first one, in the same document."""
    rule = PairRule(room, short, "uniform")
    for row, document in enumerate(lengths):
        book = singles_by_the_book(document, rule, random_draws(seed, "d", row, room))
        flat = draw_singles(row, sentences_of(lengths), rule, random_draws(seed, "d", row, room))
        expected = [(begin, end, row, end, end, 1) for begin, end in book]
        assert [tuple(flat[at : at + FIELDS]) for at in range(0, len(flat), FIELDS)] == expected


@settings(max_examples=100, deadline=None)
@given(documents, st.integers(2, 60), st.sampled_from(["uniform", "by-sentence"]), st.integers(0, 5))
def test_every_pair_fits_and_is_labelled_truly(lengths: Lengths, room: int, negatives: str, seed: int) -> None:
    rule = PairRule(room, 0.3, negatives)  # type: ignore[arg-type]
    for row, document in enumerate(lengths):
        for a_begin, a_end, b_row, b_begin, b_end, is_next in pairs_of(
            row, lengths, rule, random_draws(seed, "d", row, room)
        ):
            assert 0 <= a_begin < a_end <= sum(document)
            assert 0 <= b_begin < b_end <= sum(lengths[b_row])
            assert a_end - a_begin + b_end - b_begin <= room
            assert bool(is_next) == (b_row == row)
            if is_next:
                assert a_end <= b_begin


@pytest.mark.parametrize("room", [2, 5, 12])
def test_cuts_are_one_token_at_a_time_from_the_longer(room: int) -> None:
    for a in range(1, 20):
        for b in range(1, 20):
            if a + b <= room:
                continue
            a_left, b_left = a, b
            while a_left + b_left > room:
                a_left, b_left = (a_left - 1, b_left) if a_left > b_left else (a_left, b_left - 1)
            assert _cuts(a, b, room) == (a - a_left, b - b_left)
            assert a_left >= 1
            assert b_left >= 1


def test_a_true_next_begins_where_a_ended() -> None:
    lengths = [[7] * 60, [5] * 10]
    pairs = pairs_of(0, lengths, PairRule(63, 0.0, "uniform"), random_draws(3, "d", 0, 66))
    true = [pair for pair in pairs if pair[5]]  # nine sentences of 7 fill 63 exactly: none is cut
    assert len(true) > 3
    assert all(a_end == b_begin for _, a_end, _, b_begin, _, _ in true)


def test_what_a_random_next_replaced_is_used_again() -> None:
    rule = PairRule(30, 0.0, "uniform")
    lengths = [[5] * 200, [5] * 50]
    pairs = pairs_of(0, lengths, rule, random_draws(1, "d", 0, 33))
    covered = set()
    for a_begin, a_end, b_row, b_begin, b_end, _ in pairs:
        covered.update(range(a_begin, a_end))
        if b_row == 0:
            covered.update(range(b_begin, b_end))
    assert covered == set(range(1000))  # sentences of 5 fill 30 exactly: nothing is cut, so nothing is missed


def test_a_chunk_of_one_sentence_never_has_a_true_next() -> None:
    pairs = pairs_of(0, [[50] * 20, [3] * 9], PairRule(40, 0.0, "uniform"), random_draws(1, "d", 0, 43))
    assert len(pairs) == 20
    assert {pair[5] for pair in pairs} == {0}


def test_half_of_the_nexts_are_true_and_others_are_drawn_uniformly() -> None:
    lengths = [[4] * 3000, [4] * 10, [4] * 1000, [4] * 100]
    rule = PairRule(29, 0.0, "uniform")
    pairs = [p for pass_ in range(4) for p in pairs_of(0, lengths, rule, random_draws(1, "d", pass_, 32))]
    true = sum(pair[5] for pair in pairs)
    assert abs(true / len(pairs) - 0.5) < 4 * 0.5 / len(pairs) ** 0.5
    rows = Counter(pair[2] for pair in pairs if not pair[5])
    drawn = len(pairs) - true
    assert all(abs(rows[row] / drawn - 1 / 3) < 4 * 0.47 / drawn**0.5 for row in (1, 2, 3))


def test_negatives_by_sentence_are_drawn_by_length() -> None:
    lengths = [[4] * 10, [4] * 3000, [4] * 1000, [4] * 500]
    rule = PairRule(29, 0.0, "by-sentence")
    pairs = pairs_of(1, lengths, rule, random_draws(1, "d", 0, 32))
    rows = Counter(pair[2] for pair in pairs if not pair[5])
    assert rows[1] == 0
    assert abs(rows[2] / sum(rows.values()) - 1000 / 1510) < 0.1
    assert abs(rows[3] / sum(rows.values()) - 500 / 1510) < 0.1


def test_one_pass_in_ten_is_short_and_tokens_are_lost_at_either_end() -> None:
    lengths = [[9] * 40, [9] * 40]
    rule = PairRule(60, 0.1, "uniform")
    passes = [pairs_of(0, lengths, rule, random_draws(1, "d", number, 63)) for number in range(1000)]
    short = sum(
        max(a_end - a_begin + b_end - b_begin for a_begin, a_end, _, b_begin, b_end, _ in p) < 60 for p in passes
    )
    assert 60 < short < 130
    front = back = 0
    for pair, a_lost, _ in (x for n in range(300) for x in by_the_book(0, lengths, rule, random_draws(1, "d", n, 63))):
        front += pair[0] % 9
        back += a_lost - pair[0] % 9
    assert front + back > 200
    assert abs(front / (front + back) - 0.5) < 4 * 0.5 / (front + back) ** 0.5


def test_a_stream_depends_on_everything_that_names_it_and_on_nothing_else() -> None:
    names = [(1, "d", 0, 128), (2, "d", 0, 128), (1, "e", 0, 128), (1, "d", 1, 128), (1, "d", 0, 512)]
    starts = [next(random_draws(*name)) for name in names]
    assert len(set(starts)) == len(names)
    stream = random_draws(1, "d", 0, 128)
    # Literals: other values mean that everybody's shards change.
    assert [next(stream), next(stream)] == [2093532618504494834, 13929388006608663509]
