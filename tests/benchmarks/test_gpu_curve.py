"""What is known of a training of which only a part was made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import gpu_curve
from common import ROOT, Parts
from tests.ranks import is_there
from tests.trainer.shard_factory import write_shards

ABOUT = {"machine": "a GPU", "torch": "2", "parameters": 7, "batch": 16}


def write_peer(work: Path, steps: int) -> None:
    lines = [{"step": i + 1, "loss": 9.0 - i, "tokens": 100, "seconds": 0.5 * (i + 1)} for i in range(steps)]
    (work / "peer.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 9', "utf-8")
    held_out = {"step": 2, "mlm_loss": 8.25, "nsp_accuracy": 0.5}
    (work / "peer.held_out.jsonl").write_text(json.dumps(held_out) + "\n", "utf-8")


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Parts:
    """The peer's training is killed after four steps, ours fails before the first."""
    arguments = gpu_curve.argparse.Namespace(work=tmp_path, output=tmp_path, seconds=1.0, end=9.0, also=None)

    def train(part: str, *_: Any) -> str:
        if part == "peer":
            write_peer(tmp_path, 4)
            raise RuntimeError("peer was not done")
        raise RuntimeError("ours ended with exit code 1")

    monkeypatch.setattr(gpu_curve, "train", train)
    parts = Parts(tmp_path / "gpu_curve", ABOUT, lambda records: gpu_curve.page(ABOUT, records))
    gpu_curve.pretrain(parts, arguments, [])
    return parts


def test_what_failed_is_named_and_the_rest_kept(parts: Parts, tmp_path: Path):
    assert not parts.complete
    page = (tmp_path / "gpu_curve.md").read_text(encoding="utf-8")
    for words in ("peer was not done", "ours ended with exit code 1", "8.2500 (step 2)", "50.00% (step 2)"):
        assert words in page
    records = json.loads((tmp_path / "gpu_curve.json").read_text(encoding="utf-8"))["parts"]
    (curve,) = (record["found"] for record in records if record["kind"] == "curve" and "found" in record)
    assert curve["tokens"] == [100, 200, 300, 400]
    assert (tmp_path / "gpu_curve.png").stat().st_size


def test_another_training_of_ours_has_a_curve_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    arguments = gpu_curve.argparse.Namespace(
        work=tmp_path, output=tmp_path, seconds=1.0, end=9.0, also=["train.fp8=true"]
    )

    def train(part: str, _: Any, settings: list[str], share: float, folder: str = "") -> str:
        if part == "peer":
            write_peer(tmp_path, 4)
            return "done"
        run = tmp_path / folder / "ours"
        run.mkdir(parents=True)
        seconds = 0.25 if "train.fp8=true" in settings else 0.5
        lines = [
            {"loss": 9.0 - i, "data_seconds": 0.0, "compute_seconds": seconds, "tokens_per_second": 100 / seconds}
            for i in range(4)
        ]
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
        (run / "validation.jsonl").write_text("", "utf-8")
        return "done"

    monkeypatch.setattr(gpu_curve, "train", train)
    parts = Parts(tmp_path / "gpu_curve", ABOUT, lambda records: gpu_curve.page(ABOUT, records))
    gpu_curve.pretrain(parts, arguments, [])
    assert parts.complete
    curves = {record["name"]: record["found"] for record in parts.records if record["kind"] == "curve"}
    assert {name: curve["seconds"][-1] for name, curve in curves.items()} == {
        "transformers": 2.0, "ours": 2.0, "ours, train.fp8=true": 1.0,
    }  # fmt: skip


def test_without_an_export_there_is_nothing_to_fine_tune(tmp_path: Path):
    with pytest.raises(RuntimeError, match="left no export"):
        gpu_curve.exports(gpu_curve.argparse.Namespace(work=tmp_path), [])


def test_a_signal_ends_what_was_started_too(tmp_path: Path):
    """Or a training of which nobody knows would share the GPU with what is measured next."""
    shards = write_shards(tmp_path / "shards", sequence_lengths=(128,))
    command = [sys.executable, ROOT / "benchmarks" / "gpu_curve.py", "--shards", shards, "--data", tmp_path, "--output",
               tmp_path, "--device", "cpu", "--size", "demo"]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu"}
    benchmark = psutil.Popen(command, env=environment, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    # A child before there is a log is none of its own, but what an import looks a library up by.
    while not ([*tmp_path.rglob("*.log")] and (started := benchmark.children(recursive=True))):
        assert benchmark.poll() is None
        time.sleep(0.1)
    benchmark.terminate()
    _, told = benchmark.communicate(timeout=60)
    assert (benchmark.returncode, "ended by a signal" in told) == (143, True), told
    for _ in range(300):  # the kernel takes its time
        if not any(map(is_there, started)):
            return
        time.sleep(0.1)
    pytest.fail(f"{started} still run")
