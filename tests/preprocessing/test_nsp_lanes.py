from __future__ import annotations

import random

import numpy as np
import pytest

from preprocessing import nsp_lanes
from preprocessing.nsp import FIELDS, Negatives, PairRule, Sentences, draw_pairs, random_draws
from preprocessing.nsp_lanes import draw_passes


def shard_of(seed: int, documents: int) -> Sentences:
    """Documents of one sentence to sixty, with sentences of one token to nine hundred."""
    chance = random.Random(seed)
    lengths = [
        [chance.choice([1, 2, 9, 30, chance.randint(1, 900)]) for _ in range(chance.choice([1, 2, 5, 60]))]
        for _ in range(documents)
    ]
    ends = np.cumsum([length for document in lengths for length in document]).tolist()
    first = np.cumsum([0, *map(len, lengths)]).tolist()
    return Sentences(ends=ends, first=first, offsets=np.cumsum([0, *map(sum, lengths)]).tolist())


@pytest.mark.parametrize("negatives", ["uniform", "by-sentence"])
@pytest.mark.parametrize(("max_tokens", "short"), [(125, 0.1), (5, 0.0), (509, 0.9)])
def test_lanes_draw_what_each_pass_draws_alone(
    negatives: Negatives, max_tokens: int, short: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nsp_lanes, "GROUP", 100)
    monkeypatch.setattr(nsp_lanes, "FEW", 3)
    sentences, rule = shard_of(max_tokens, 70), PairRule(max_tokens, short, negatives)
    rows = [row for row in range(70) for _ in range(3)]
    names = [(7, f"d{row}", number % 3, max_tokens) for number, row in enumerate(rows)]
    drawn = draw_passes(rows, names, sentences, rule)
    assert sum(map(len, drawn)) > 500
    for row, name, pairs in zip(rows, names, drawn, strict=True):
        alone = draw_pairs(row, sentences, rule, random_draws(*name))
        assert pairs.reshape(-1).tolist() == alone
        assert pairs.shape == (len(alone) // FIELDS, FIELDS)


@pytest.mark.parametrize("negatives", ["uniform", "by-sentence"])
@pytest.mark.parametrize("few", [1, 1000])
def test_two_documents_are_enough(few: int, negatives: Negatives, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nsp_lanes, "FEW", few)
    sentences, rule = Sentences(ends=[3, 7], first=[0, 1, 2], offsets=[0, 3, 7]), PairRule(5, 0.0, negatives)
    passes = draw_passes([0, 1], [(1, "a", 0, 8), (1, "b", 0, 8)], sentences, rule)
    assert [pairs[:, 2].tolist() for pairs in passes] == [[1], [0]]
