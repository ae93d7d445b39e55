"""A fast way that is wrong is found out, and what is right passes; all of it holds on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from gpu_correctness import TOLERANCE, by_operations, compare_with_float32, dropout_in_effect
from gpu_rows import Bench
from preprocessing.schema import ShardDirectory
from tests.trainer.shard_factory import write_shards
from trainer import attention
from trainer.world import World


def compare(folder: Path) -> dict[str, Any]:
    shards = ShardDirectory(write_shards(folder / "shards", train=(70, 50), pairs_per_row=5))
    bench = Bench(shards, World(0, 1, torch.device("cpu")), 8e14, 4e12, {32: 8}, "demo", 0.0)
    return compare_with_float32(by_operations, 32, bench, TOLERANCE)["errors"]


def test_fast_ways_are_as_far_from_float32_as_bfloat16_is(tmp_path: Path):
    errors = compare(tmp_path)
    assert [*errors] == ["the formula, bfloat16", "SDPA with dropout 0", "packed sequences"]
    assert all(0 < error["median"] < error["worst"] < 0.2 for error in errors.values())


SCORES, BIAS, PUT = attention._scores, attention._bias, attention._put


@pytest.mark.parametrize(("part", "wrong", "refused"), [
    ("_scores", lambda *given: 1.05 * SCORES(*given), "packed sequences"),
    ("_put", lambda x, values, table: PUT(x, values * torch.nan, table), "packed sequences"),
    ("_bias", lambda hidden, dtype: 0 * BIAS(hidden, dtype), "SDPA with dropout 0"),
], ids=["scores 5 % too large", "a gradient that is no number", "padding that is seen"])  # fmt: skip
def test_a_mistake_in_a_fast_way_is_refused(
    part: str, wrong: Any, refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(attention, part, wrong)
    with pytest.raises(ArithmeticError, match=f"^{refused}: .* off float32's"):
        compare(tmp_path)


def test_dropout_of_attention_is_what_was_asked_for():
    for found in dropout_in_effect(torch.device("cpu"), 0.25):
        assert found["dropped"] == pytest.approx(0.25, abs=0.002), found
        assert found["mean"] == pytest.approx(1.0, abs=0.005), found
    assert torch.backends.cuda.cudnn_sdp_enabled()
