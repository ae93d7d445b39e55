"""What the first run on a GPU must not lose or count wrong; all of it holds on a CPU."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import gpu_pretrain
from common import Parts, recipe_of, steps_of
from gpu_predictions import BEST, BEST_IN_GRAPHS, LADDER, PEER
from preprocessing.schema import ShardDirectory
from tests.trainer.shard_factory import write_shards
from trainer import attention
from trainer.model import BertConfig
from trainer.settings import ConfigError
from trainer.world import World

ABOUT = {"machine": "a GPU", "torch": "2", "ceiling": 8e14, "bandwidth": 4e12}
BENCH = gpu_pretrain.Bench(None, World(0, 1, torch.device("cuda")), 8e14, 4e12, {128: 8}, "demo", 0.0)


def measured(row: Any, length: int, _: Any) -> dict[str, Any]:
    if row.fp8:
        raise RuntimeError("CUDA out of memory.\nTried to allocate 1 GiB")
    figures = dict.fromkeys(("sequences", "tokens", "predicted", "tflops", "ceiling", "padding", "wait"), 0.5)
    return {"row": row.name, "length": length, "dropout": "0 / 0", "batch": 8, "steps": 3, "memory_gb": 1.0, **figures}


@pytest.fixture
def ladder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that find something at once; the row in eight bits fails."""
    errors = {"fast path": {"loss": 0.0, "median": 0.0, "worst": 0.0}}
    profiled = {"step": 9.0, "kinds": {"attention": 10.0}, "launches": 1, "kernels": [[10.0, 1, "flash_fwd_kernel"]]}
    monkeypatch.setattr(gpu_pretrain, "train", measured)
    monkeypatch.setattr(gpu_pretrain, "dropout_in_effect", lambda _: [])
    monkeypatch.setattr(gpu_pretrain, "own_dropout_in_effect", lambda _: [])
    ours = {"way": "ours, packed", "length": 128, "forward": 0.125, "both": 0.5, "error": 4e-3}
    monkeypatch.setattr(gpu_pretrain, "attention_alone", lambda *_: [ours])
    monkeypatch.setattr(
        gpu_pretrain, "compare_with_float32", lambda _, length, *__: {"length": length, "errors": errors}
    )
    monkeypatch.setattr(gpu_pretrain, "profile", lambda row, length, _: {"row": row.name, "length": length, **profiled})


def run_all(folder: Path, end: float) -> tuple[Parts, str]:
    parts = Parts(folder / "gpu", ABOUT, lambda records: gpu_pretrain.page(ABOUT, records), end)
    for part in gpu_pretrain.all_parts(BENCH):
        parts.run(*part)
    return parts, (folder / "gpu.md").read_text(encoding="utf-8")


@pytest.mark.usefixtures("ladder")
def test_a_row_that_fails_is_named_and_loses_no_other(tmp_path: Path):
    parts, page = run_all(tmp_path, end=1e9)
    assert not parts.complete
    lines = page.splitlines()
    for row in LADDER:
        in_table = [line for line in lines if line.startswith(f"| {row.name} ")]
        assert len(in_table) == (0 if row.fp8 else 1), row.name
    (failed,) = (line for line in lines if "CUDA out of memory. Tried to allocate 1 GiB" in line)
    assert "layers by torch.compile in eight bits, 128 tokens" in failed
    found = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))
    assert [record["name"] for record in found["parts"] if "error" in record] == [
        "layers by torch.compile in eight bits, 128 tokens"
    ]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert ["ours, packed", "128", "0.125", "0.375", "4.0e-03"] in cells  # ms forward, ms backward and the error
    assert "| difference " in page  # what is left of the step, where kernels overlap as a negative number
    assert "-1.0" in page


@pytest.mark.usefixtures("ladder")
def test_what_is_measured_is_on_disk_before_the_next_part(tmp_path: Path):
    parts = Parts(tmp_path / "gpu", ABOUT, lambda records: gpu_pretrain.page(ABOUT, records), 1e9)
    jobs = list(gpu_pretrain.all_parts(BENCH))
    first = [f"{row.name}, 128 tokens" for row in (BEST_IN_GRAPHS, BEST, PEER)]
    assert [job.name for job in jobs if job.kind == "row"][:3] == first
    for number, job in enumerate(jobs[:4], 1):
        parts.run(*job)
        assert len(json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))["parts"]) == number
    assert f"| {BEST_IN_GRAPHS.name} " in (tmp_path / "gpu.md").read_text(encoding="utf-8")


def test_every_way_to_compute_is_compared_with_float32_and_our_own_before_they_are_timed():
    parts = list(gpu_pretrain.all_parts(BENCH))
    ways = ["kernels of our own", "CUDA graphs", "operations of torch", "torch.compile", "eight bits"]
    assert [part.kind for part in parts[:4]] == ["dropout", "error", "error", "row"]
    assert [part.name for part in parts if part.kind == "error"] == [f"128 tokens, {way}" for way in ways]


def test_a_kernel_that_takes_the_gpu_costs_one_process_and_not_the_rows_by_torch(tmp_path: Path):
    """Each row that has it would take another."""
    parts = list(gpu_pretrain.all_parts(BENCH))
    for lost, kept in (
        ("128 tokens, kernels of our own", [row for row in LADDER if not row.fused]),
        ("128 tokens, CUDA graphs", [row for row in LADDER if not row.graphs]),
    ):
        rows = [part.name for part in parts if part.kind == "row" and lost not in part.needs]
        assert sorted(rows) == sorted(f"{row.name}, 128 tokens" for row in kept)
        names = [part.name for part in parts]
        assert all(names.index(need) < names.index(part.name) for part in parts for need in part.needs)
    assert PEER in kept
    others = [part.kind for part in parts if part.kind != "row" and "128 tokens, kernels of our own" in part.needs]
    assert others == ["error", "profile", "attention", "dropout"]


def test_rows_that_are_named_are_measured_alone():
    names = [LADDER[3].name, LADDER[-1].name]
    parts = [(part.kind, part.name) for part in gpu_pretrain.all_parts(BENCH, names)]
    assert parts == [("row", f"{name}, 128 tokens") for name in names]


@pytest.mark.usefixtures("ladder")
def test_when_time_is_up_the_rest_is_not_run(tmp_path: Path):
    parts, page = run_all(tmp_path, end=-1.0)
    assert not any("found" in record for record in parts.records)
    assert page.count("not run") == len(list(gpu_pretrain.all_parts(BENCH)))


def test_slots_that_only_fill_up_are_no_work(tmp_path: Path):
    shards = ShardDirectory(write_shards(tmp_path / "shards"))
    works = {}
    for multiple in (1, 1024):
        recipe = recipe_of(shards, 32, 8, [f"data.token_multiple={multiple}"])
        works[multiple] = gpu_pretrain.work_of(steps_of(recipe, shards)[0])
    config = BertConfig(64)
    assert works[1024].slots == 1024 > works[1].slots
    assert works[1].predictions == works[1024].predictions
    assert works[1].flops(config) == works[1024].flops(config) > 0


def test_the_peer_computes_every_slot_of_the_longest_sequence(tmp_path: Path):
    shards = ShardDirectory(write_shards(tmp_path / "shards"))
    batches = steps_of(recipe_of(shards, 32, 8, []), shards, padded=True)[0]
    work = gpu_pretrain.work_of(batches)
    assert work.slots == 8 * int(work.lengths.max()) < 8 * 32  # a batch without a full slot
    assert all(x.is_contiguous() for x in batches[0].inputs.values())  # or transformers' loss refuses its labels


def test_eight_bits_are_refused_for_the_trainers_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shards = ShardDirectory(write_shards(tmp_path / "shards"))
    recipe = recipe_of(shards, 32, 8, ["train.fp8=true"])
    monkeypatch.setattr(gpu_pretrain, "why_not_fp8", lambda device: "torchao is not installed")
    with pytest.raises(ConfigError, match=r"train\.fp8: torchao is not installed"):
        gpu_pretrain.Ours(recipe, BENCH.world)


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
    peer, events = object.__new__(gpu_pretrain.Peer), Events()
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
    trainer = Trainer({0, 1, gpu_pretrain.WARM_UP})
    steps, _, _ = gpu_pretrain.time_steps(trainer, Reader(range(100)), seconds=0.0)
    assert steps == [gpu_pretrain.WARM_UP + 1]


def test_a_shape_met_late_costs_no_step_measured_before(monkeypatch: pytest.MonkeyPatch):
    """Of long sequences there is a new number of tokens every few steps, for a minute."""
    seconds = iter(range(1000))  # a step takes one, its batches another
    monkeypatch.setattr(gpu_pretrain.time, "perf_counter", lambda: next(seconds))
    trainer = Trainer({0, 1, 7, 9})
    steps, took, waited = gpu_pretrain.time_steps(trainer, Reader(range(100)), seconds=9.0)
    assert steps == [5, 6, 8, 10, 11]
    assert (took, waited) == (10, 5)


def test_a_row_that_compiles_for_ever_ends(monkeypatch: pytest.MonkeyPatch):
    """As it may with long sequences, each batch of which has another number of tokens."""
    times = iter(range(1000))
    monkeypatch.setattr(gpu_pretrain.time, "time", lambda: next(times))
    trainer = Trainer(set(range(100)))
    with pytest.raises(TimeoutError, match=r"^31 steps were all of new shapes"):
        gpu_pretrain.time_steps(trainer, Reader(range(100)), seconds=0.0, end=29)
    trainer = Trainer(set(range(20)))
    steps, _, _ = gpu_pretrain.time_steps(trainer, Reader(range(100)), seconds=1e9, end=59)
    assert steps == list(range(20, 30))  # what there is counts


def compare(folder: Path) -> dict[str, Any]:
    shards = ShardDirectory(write_shards(folder / "shards", train=(70, 50), pairs_per_row=5))
    bench = dataclasses.replace(BENCH, shards=shards, world=World(0, 1, torch.device("cpu")), batches={32: 8})
    return gpu_pretrain.compare_with_float32(gpu_pretrain._by_operations, 32, bench, gpu_pretrain.TOLERANCE)["errors"]


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
    for found in gpu_pretrain.dropout_in_effect(torch.device("cpu"), 0.25):
        assert found["dropped"] == pytest.approx(0.25, abs=0.002), found
        assert found["mean"] == pytest.approx(1.0, abs=0.005), found
    assert torch.backends.cuda.cudnn_sdp_enabled()
