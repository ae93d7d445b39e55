"""What the first run on a GPU must not lose or count wrong; all of it holds on a CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import gpu_pretrain
from common import Parts
from gpu_predictions import BEST, BEST_IN_GRAPHS, LADDER, PEER
from gpu_rows import Bench
from trainer.world import World

ABOUT = {"machine": "a GPU", "torch": "2", "ceiling": 8e14, "bandwidth": 4e12}
BENCH = Bench(None, World(0, 1, torch.device("cuda")), 8e14, 4e12, {128: 8}, "demo", 0.0)


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
