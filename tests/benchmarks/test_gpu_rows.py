"""How a row's steps are made, counted and timed; all of it holds on a CPU."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import gpu_rows
from common import recipe_of, steps_of
from preprocessing.schema import ShardDirectory
from tests.trainer.shard_factory import write_shards
from trainer.model import BertConfig
from trainer.settings import ConfigError
from trainer.world import World


def test_slots_that_only_fill_up_are_no_work(tmp_path: Path):
    shards = ShardDirectory(write_shards(tmp_path / "shards"))
    works = {}
    for multiple in (1, 1024):
        recipe = recipe_of(shards, 32, 8, [f"data.token_multiple={multiple}"])
        works[multiple] = gpu_rows.work_of(steps_of(recipe, shards)[0])
    config = BertConfig(64)
    assert works[1024].slots == 1024 > works[1].slots
    assert works[1].predictions == works[1024].predictions
    assert works[1].flops(config) == works[1024].flops(config) > 0


def test_the_peer_computes_every_slot_of_the_longest_sequence(tmp_path: Path):
    shards = ShardDirectory(write_shards(tmp_path / "shards"))
    batches = steps_of(recipe_of(shards, 32, 8, []), shards, padded=True)[0]
    work = gpu_rows.work_of(batches)
    assert work.slots == 8 * int(work.lengths.max()) < 8 * 32  # a batch without a full slot
    assert all(x.is_contiguous() for x in batches[0].inputs.values())  # or transformers' loss refuses its labels


def test_eight_bits_are_refused_for_the_trainers_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shards = ShardDirectory(write_shards(tmp_path / "shards"))
    recipe = recipe_of(shards, 32, 8, ["train.fp8=true"])
    monkeypatch.setattr(gpu_rows, "why_not_fp8", lambda device: "torchao is not installed")
    with pytest.raises(ConfigError, match=r"train\.fp8: torchao is not installed"):
        gpu_rows.Ours(recipe, World(0, 1, torch.device("cuda")))


class Events:
    """A DeepSpeed engine that notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, **_: Any) -> Any:
        self.asked.append("forward")
        return SimpleNamespace(loss=torch.tensor(1.0))

    def backward(self, _: Any) -> None:
        self.asked.append("backward")

    def step(self) -> None:
        self.asked.append("step")


def test_the_peer_reads_ahead_before_its_last_backward_pass(tmp_path: Path):
    shards = ShardDirectory(write_shards(tmp_path / "shards"))
    recipe = recipe_of(shards, 32, 8, [])
    peer, events = object.__new__(gpu_rows.Peer), Events()
    peer._recipe, peer._device, peer._engine = recipe, torch.device("cpu"), events
    peer._optimizer = SimpleNamespace(param_groups=[{}])
    batches = 2 * steps_of(recipe, shards, padded=True)[0]
    peer.step(0, batches, lambda: events.asked.append("meanwhile"))
    assert events.asked == ["forward", "backward", "step", "forward", "meanwhile", "backward", "step"]


class Trainer:
    """Compiles a graph in some steps."""

    def __init__(self, compiling: set[int]):
        self._compiling, self.graphs = compiling, 0

    def step(self, number: int, *_: Any) -> None:
        self.graphs += number in self._compiling


class Reader(list[int]):
    """Steps that are there already."""

    def read_ahead(self) -> None: ...


def test_neither_the_warm_up_nor_a_step_that_compiles_is_timed():
    trainer = Trainer({0, 1, gpu_rows.WARM_UP})
    steps, _, _ = gpu_rows.time_steps(trainer, Reader(range(100)), seconds=0.0)
    assert steps == [gpu_rows.WARM_UP + 1]


def test_a_shape_met_late_costs_no_step_measured_before(monkeypatch: pytest.MonkeyPatch):
    """Of long sequences there is a new number of tokens every few steps, for a minute."""
    seconds = iter(range(1000))  # a step takes one, its batches another
    monkeypatch.setattr(gpu_rows.time, "perf_counter", lambda: next(seconds))
    trainer = Trainer({0, 1, 7, 9})
    steps, took, waited = gpu_rows.time_steps(trainer, Reader(range(100)), seconds=9.0)
    assert steps == [5, 6, 8, 10, 11]
    assert (took, waited) == (10, 5)


def test_a_row_that_compiles_for_ever_ends(monkeypatch: pytest.MonkeyPatch):
    """As it may with long sequences, each batch of which has another number of tokens."""
    times = iter(range(1000))
    monkeypatch.setattr(gpu_rows.time, "time", lambda: next(times))
    trainer = Trainer(set(range(100)))
    with pytest.raises(TimeoutError, match=r"^31 steps were all of new shapes"):
        gpu_rows.time_steps(trainer, Reader(range(100)), seconds=0.0, end=29)
    trainer = Trainer(set(range(20)))
    steps, _, _ = gpu_rows.time_steps(trainer, Reader(range(100)), seconds=1e9, end=59)
    assert steps == list(range(20, 30))  # what there is counts
