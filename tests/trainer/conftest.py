"""Shards and a recipe small enough for a training in a second."""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packaging.version import Version

from tests.conftest import ROOT
from tests.ranks import run_ranks
from tests.trainer.shard_factory import write_shards
from trainer.checkpoint import Learner, RunState
from trainer.files import read_lines
from trainer.run_directory import RunDirectory

TINY = """
[model]
vocab_size = 64
hidden_size = 32
num_hidden_layers = 2
num_attention_heads = 2
intermediate_size = 64
max_position_embeddings = 32

[schedule]
peak = 1e-2
warmup_steps = 2

[[phases]]
sequence_length = 32
steps = 8
global_batch_size = 8
micro_batch_size = 2
max_predictions = 4

[checkpoint]
every = 4

[log]
every = 2
validate_every = 4

[tracking]
enabled = false
"""

# Changes of ds_config.json under which another number of ranks gives the same curve within a few float32 roundings.
# In bf16 such a rounding may become one of bf16, 65,536 times as large, on one processor and not on another.
FLOAT32 = {"bf16": None, "data_types": None}

STATE = RunState(
    step=4, samples=32, world_size=1, threads=1, manifest_blake2b="m", config_blake2b="c",
    learner=Learner({}, "v", "bert_adam", seed=1), arithmetic="a CPU",
)  # fmt: skip


def need_interpreter() -> None:
    """Skip a test of kernels where Triton can't interpret them on a CPU."""
    triton = pytest.importorskip("triton", reason="needs triton, which torch has on Linux for x86 and NVIDIA's GPUs")
    if Version(triton.__version__) < Version("3.7") and Version(np.__version__) >= Version("2.4"):
        pytest.skip("the interpreter of Triton before 3.7, which torch before 2.12 has, needs numpy before 2.4")


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shard directory of 18 + 4 documents and 54 + 12 pairs."""
    return write_shards(tmp_path_factory.mktemp("data") / "shards")


@pytest.fixture(scope="session")
def books(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A second directory, of 45 + 6 pairs."""
    return write_shards(tmp_path_factory.mktemp("data") / "books", train=(7, 8), validation=(2,), seed=5)


@pytest.fixture(scope="session")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipe TINY as a file."""
    path = tmp_path_factory.mktemp("recipe") / "tiny.toml"
    path.write_text(TINY, encoding="utf-8")
    return path


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A run directory in which nothing is yet."""
    (tmp_path / "run").mkdir()
    return RunDirectory(tmp_path / "run")


def write_deepspeed_config(folder: Path, **changes: Any) -> Path:
    """Write the DeepSpeed configuration at the root with some keys replaced, or removed by None, into a folder."""
    config = json.loads((ROOT / "ds_config.json").read_text(encoding="utf-8"))
    config = {key: value for key, value in {**config, **changes}.items() if value is not None}
    path = folder / f"ds_{len(list(folder.glob('ds_*')))}.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


@pytest.fixture
def deepspeed_config(tmp_path: Path):
    """Write a DeepSpeed configuration: the one at the root with some keys replaced, or removed by None."""

    return functools.partial(write_deepspeed_config, tmp_path)


def train_in(folder: Path, recipe: Path, shards: Path) -> Callable[..., tuple[list[int], str]]:
    """What runs the trainer into a folder, and returns the exit codes of its ranks and what they printed."""
    from tests.trainer.rank_tasks import run_pretrain  # seconds to import, for the few who train

    def run(*settings, world=1, task=run_pretrain, **replaced):
        arguments = {"config": recipe, "deepspeed_config": write_deepspeed_config(folder), "shards": shards,
                     "output": folder / "run", **replaced}  # fmt: skip
        log = folder / "log"
        log.unlink(missing_ok=True)
        flags = [text for name, value in arguments.items() for text in (f"--{name}", str(value))]
        return run_ranks(world, task, [*flags, *settings], log=log), log.read_text()

    return run


@pytest.fixture
def call(recipe, shards, tmp_path):
    """Run the trainer; returns the exit codes of its ranks and what they printed."""
    return train_in(tmp_path, recipe, shards)


@pytest.fixture
def bytes_read(monkeypatch) -> list[int]:
    """Filled with how many bytes each read takes from a file that is opened as bytes by its path."""
    taken: list[int] = []

    class Counted(io.FileIO):
        def readinto(self, buffer):
            taken.append(super().readinto(buffer))
            return taken[-1]

        def readall(self):
            taken.append(len(found := super().readall()))
            return found

    def open_counted(path, mode="r", buffering=-1, open_path=Path.open, **options):
        if mode == "rb":
            return io.BufferedReader(Counted(path), buffering if buffering > 0 else io.DEFAULT_BUFFER_SIZE)
        return open_path(path, mode, buffering, **options)

    monkeypatch.setattr(Path, "open", open_counted)
    return taken


def losses(run: Path) -> list[float]:
    """Of all steps of a run directory."""
    return [line["loss"] for line in read_lines(run / "metrics.jsonl")]
