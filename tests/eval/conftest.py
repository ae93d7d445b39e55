"""A trained run in miniature: shards, a run directory and an export of random weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from tests.trainer.mlflow_store import write_run
from tests.trainer.shard_factory import write_shards
from trainer.hugging_face import save_export
from trainer.lineage import code_version
from trainer.model import BertConfig, BertForPreTraining

STEP = 7
CONFIG = BertConfig(
    vocab_size=64,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=48,
)


@pytest.fixture(autouse=True, scope="package")
def code_looked_up_once() -> Iterator[None]:
    """Each evaluation tells which code it is of, for which git is asked three times; here it stays the same."""
    with mock.patch("eval.plan.code_version", return_value=code_version()):
        yield


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real one; the test is skipped, with the reason, where there is none."""
    from tests.browser import headless_browser  # whose imports few tests need

    with headless_browser() as chrome:
        yield chrome


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three training shards and two held-out ones with 33 pairs, of lengths on both sides of the model's positions."""
    path = tmp_path_factory.mktemp("evaluated") / "shards"
    return write_shards(path, sequence_lengths=(32, 40, 64), validation=(6, 5))


def random_state(config: BertConfig = CONFIG) -> dict[str, torch.Tensor]:
    """Weights far larger than at a start, so that every term of every formula counts, and predictions that differ."""
    generator = torch.Generator().manual_seed(3)
    state = BertForPreTraining(config, seed=3).state_dict()
    matrices = {name: 15.0 if tensor.ndim == 2 else 1.0 for name, tensor in state.items()}
    return {
        name: matrices[name] * tensor + 0.05 * torch.randn(tensor.shape, generator=generator)
        for name, tensor in state.items()
    }


@pytest.fixture
def export(tmp_path: Path, shards: Path) -> Path:
    """The export of a run in the run's directory, which is new for every test."""
    run = write_run(tmp_path / "runs" / "demo")
    lineage = {"run": str(run), "step": STEP, "samples": 224, "manifest_blake2b": "0d", "config_blake2b": "c0"}
    path = run / "exports" / f"step-{STEP:06d}"
    path.parent.mkdir()
    save_export(path, random_state(), CONFIG, shards / "tokenizer", lineage)
    return path
