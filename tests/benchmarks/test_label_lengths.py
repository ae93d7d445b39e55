"""Labels that lengths decide are told from them, others are not."""

import numpy as np
import pytest

from label_lengths import count, share_told
from preprocessing.schema import Pairs


def pairs(a: np.ndarray, b: np.ndarray, is_next: np.ndarray) -> Pairs:
    zeros = np.zeros_like(a)
    return Pairs(row=zeros, a_begin=zeros, a_end=a, b_row=zeros, b_begin=zeros + 5, b_end=b + 5, is_next=is_next)


def test_what_lengths_decide_is_told():
    generator = np.random.default_rng(1)
    a, b = generator.integers(1, 60, (2, 20_000))
    counted, asked = count([pairs(a, b, b >= 32)], 128)
    assert counted.sum() == asked.sum() == 10_000
    assert share_told(counted, asked) == 1.0


def test_what_they_do_not_is_not():
    generator = np.random.default_rng(1)
    a, b = generator.integers(1, 60, (2, 200_000))
    shards = [pairs(*half, generator.random(100_000) < 0.5) for half in np.split(np.stack([a, b]), 2, axis=1)]
    assert share_told(*count(shards, 128)) == pytest.approx(0.5, abs=0.01)
