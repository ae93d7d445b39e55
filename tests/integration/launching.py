"""Trainings through the launchers that users type, and their processes."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.conftest import ROOT
from tests.ranks import free_port, is_there
from tests.trainer.conftest import TINY
from tests.trainer.shard_factory import write_shards
from tests.waiting import wait_for

LAUNCHERS: dict[str, Callable[[], list[str]]] = {
    "deepspeed": lambda: ["deepspeed", "--master_port", str(free_port()), "--num_accelerators", "2"],
    "torchrun": lambda: ["torchrun", "--nproc-per-node", "2", "--master-port", str(free_port())],
}


@dataclass
class Launched:
    """A launcher and all that it has started."""

    process: subprocess.Popen[bytes]
    run: Path
    family: list[psutil.Process] = field(default_factory=list)

    def wait_for_lines(self, count: int) -> None:
        """Until that many steps are trained."""
        wait_for(lambda: len(lines(self.run)) >= count or self.process.poll() is not None, 200)
        assert self.process.poll() is None, "the run was over too early"
        self.family = psutil.Process(self.process.pid).children(recursive=True)

    def ranks(self) -> list[psutil.Process]:
        """The processes that train, by their place."""
        found = [process for process in self.family if is_rank(process)]
        return sorted(found, key=lambda process: int(process.environ()["LOCAL_RANK"]))

    def left(self) -> list[psutil.Process]:
        """What of it is still there."""
        return list(filter(is_there, self.family))

    def wait_for_end(self, seconds: float = 60) -> int:
        """Until nothing of it is left; returns the launcher's exit code."""
        code = self.process.wait(seconds)
        wait_for(lambda: not self.left(), seconds)
        return code

    def end(self) -> None:
        """Leave nothing behind, whatever a test found."""
        for process in (*self.left(), self.process):
            process.kill()
        self.process.wait()


def launch(launcher: str, directory: Path, output: Path, steps: int, *settings: str) -> Launched:
    """Start the README's command with two CPU ranks and a training of a few seconds.

    Args:
        launcher: one of LAUNCHERS.
        directory: for shards and recipe, made once.
        output: the run directory.
        steps: of the training.
        settings: that replace the recipe's.
    """
    if not (directory / "shards").exists():
        write_shards(directory / "shards")
        (directory / "recipe.toml").write_text(TINY.replace("validate_every = 4", "validate_every = 0"))
    command = [
        "env", "--default-signal=INT",  # which a shell's job in the background ignores
        *LAUNCHERS[launcher](), "trainer/pretrain.py", "--config", str(directory / "recipe.toml"),
        "--deepspeed_config", "ds_config.json", "--shards", str(directory / "shards"), "--output", str(output),
        f"phases.0.steps={steps}", "checkpoint.every=10", *settings,
    ]  # fmt: skip
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    with (output.parent / f"{output.name}.log").open("ab") as log:
        return Launched(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log), output)


def is_rank(process: psutil.Process) -> bool:
    """Whether it is a trainer, and neither a launcher nor a loader of one."""
    try:
        words = process.cmdline()
    except psutil.Error:
        return False
    ours = any(word.endswith("trainer/pretrain.py") for word in words)
    return ours and not any("deepspeed.launcher" in word or Path(word).name in LAUNCHERS for word in words)


def lines(run: Path) -> list[dict]:
    """The whole lines of metrics.jsonl."""
    path = run / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []


def curve(run: Path) -> list[tuple]:
    """What must be the same, bit for bit, whatever came between."""
    return [(line["step"], line["samples"], line["loss"], line["grad_norm"]) for line in lines(run)]
