from __future__ import annotations

import random
from itertools import chain, islice
from typing import get_args

import numpy as np
import pytest

from preprocessing import nsp_lanes
from preprocessing.nsp import (
    Negatives,
    PairRule,
    Sentences,
    draw_pairs,
    draw_singles,
    draws_from,
    random_draws,
    stream_key,
    stretch,
)
from preprocessing.nsp_lanes import _Streams, draw_passes, draw_single_passes, openings


def shard_of(seed: int, documents: int) -> Sentences:
    """Documents of one sentence to sixty, with sentences of one token to nine hundred."""
    chance = random.Random(seed)
    lengths = [
        [chance.choice([1, 2, 9, 30, chance.randint(1, 900)]) for _ in range(chance.choice([1, 2, 5, 60]))]
        for _ in range(documents)
    ]
    ends = np.cumsum([length for document in lengths for length in document])
    return Sentences(ends=ends, first=np.cumsum([0, *map(len, lengths)]), offsets=np.cumsum([0, *map(sum, lengths)]))


def test_a_stream_opens_with_numpys_numbers_and_goes_on_with_them() -> None:
    keys = [stream_key(1, f"d{number}", number, 128) for number in range(5)] + [(0, 2**64 - 1)]
    for key, opening in zip(keys, openings(keys), strict=True):
        expected = np.random.Philox(key=np.array(key, np.uint64)).random_raw(20_000).tolist()  # several whole blocks
        assert list(islice(chain(opening.tolist(), draws_from(key, len(opening))), 20_000)) == expected
        assert stretch(key, 64, 136).tolist() == expected[64:200]


def test_a_number_below_a_bound_is_that_of_the_whole_product() -> None:
    keys, bound = [stream_key(1, f"d{number}", 0, 128) for number in range(100)], 2**32 - 5
    drawn = _Streams(keys).below(np.full(100, bound), np.arange(100))
    assert drawn.tolist() == [next(draws_from(key, 0)) * bound >> 64 for key in keys]


@pytest.mark.parametrize("negatives", get_args(Negatives))
@pytest.mark.parametrize(("max_tokens", "short"), [(125, 0.1), (5, 0.0), (509, 0.9)])
def test_lanes_draw_what_each_pass_draws_alone(
    negatives: Negatives, max_tokens: int, short: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nsp_lanes, "GROUP", 100)
    monkeypatch.setattr(nsp_lanes, "FEW", 3)
    sentences, rule = shard_of(max_tokens, 70), PairRule(max_tokens, short, negatives)
    rows = np.arange(70).repeat(3)
    names = [(7, f"d{row}", number % 3, max_tokens) for number, row in enumerate(rows)]
    for together, alone in ((draw_passes, draw_pairs), (draw_single_passes, draw_singles)):
        drawn = together(rows, names, sentences, rule)
        assert len(drawn.pairs) > 500
        passes = np.split(drawn.pairs, np.cumsum(drawn.sizes)[:-1])
        for row, name, pairs in zip(rows.tolist(), names, passes, strict=True):
            assert pairs.reshape(-1).tolist() == alone(row, sentences, rule, random_draws(*name))


@pytest.mark.parametrize("negatives", get_args(Negatives))
@pytest.mark.parametrize("few", [1, 1000])
def test_two_documents_are_enough(few: int, negatives: Negatives, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nsp_lanes, "FEW", few)
    sentences = Sentences(ends=np.array([3, 7]), first=np.array([0, 1, 2]), offsets=np.array([0, 3, 7]))
    rule = PairRule(5, 0.0, negatives)
    drawn = draw_passes(np.arange(2), [(1, "a", 0, 8), (1, "b", 0, 8)], sentences, rule)
    assert drawn.sizes.tolist() == [1, 1]
    assert drawn.pairs[:, 2].tolist() == [1, 0]


def test_the_last_sentence_of_a_shard_may_be_of_one_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """No sentence that a pass looks for lies behind it."""
    monkeypatch.setattr(nsp_lanes, "FEW", 1)
    sentences = Sentences(ends=np.array([3, 5, 6]), first=np.array([0, 1, 3]), offsets=np.array([0, 3, 6]))
    rule, names = PairRule(50, 0.0, "uniform"), [(1, "b", number, 53) for number in range(20)]
    drawn = draw_passes(np.ones(20, int), names, sentences, rule)
    alone = [draw_pairs(1, sentences, rule, random_draws(*name)) for name in names]
    assert drawn.pairs.reshape(-1).tolist() == list(chain.from_iterable(alone))
