"""A rank killed in mid-run: the same command goes on, and the curve is that of a run that was never killed."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.conftest import ROOT
from tests.trainer.conftest import TINY
from tests.trainer.shard_factory import write_shards

pytestmark = pytest.mark.slow

STEPS = 150


def lines(run: Path) -> list[dict]:
    path = run / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []


def curve(run: Path) -> list[tuple]:
    return [(line["step"], line["samples"], line["loss"], line["grad_norm"]) for line in lines(run)]


@pytest.fixture
def launch(tmp_path):
    """Start the README's command with two CPU ranks; returns the launcher's process."""
    write_shards(tmp_path / "shards")
    recipe = TINY.replace("steps = 8", f"steps = {STEPS}").replace("validate_every = 4", "validate_every = 0")
    (tmp_path / "recipe.toml").write_text(recipe.replace("every = 4", "every = 10"), encoding="utf-8")

    def start(output: Path) -> subprocess.Popen[bytes]:
        command = [
            "deepspeed", "--num_accelerators", "2", "trainer/pretrain.py", "--config", str(tmp_path / "recipe.toml"),
            "--deepspeed_config", "ds_config.json", "--shards", str(tmp_path / "shards"), "--output", str(output),
        ]  # fmt: skip
        environment = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
        log = (output.parent / f"{output.name}.log").open("ab")
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)

    return start


def ranks_of(launcher: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The processes that train, by their place in the command line."""
    family = psutil.Process(launcher.pid).children(recursive=True)
    return [process for process in family if "--local_rank=" in " ".join(process.cmdline()) and process.name() != "sh"
            and "deepspeed.launcher" not in " ".join(process.cmdline())]  # fmt: skip


@pytest.mark.parametrize("rank", [0, 1])
def test_kill_9_of_a_rank_and_the_same_command_again(launch, tmp_path, rank):
    assert launch(tmp_path / "whole").wait(240) == 0

    run = tmp_path / "killed"
    launcher = launch(run)
    deadline = time.monotonic() + 200
    while len(lines(run)) < 35 and time.monotonic() < deadline and launcher.poll() is None:
        time.sleep(0.02)
    victims = [process for process in ranks_of(launcher) if f"--local_rank={rank}" in process.cmdline()]
    assert len(victims) == 1, "the run was over before it could be killed"
    victims[0].send_signal(signal.SIGKILL)
    assert launcher.wait(60) != 0
    assert len(lines(run)) < STEPS
    assert not (run / "outcome").exists() or (run / "outcome").read_text() != "done\n"

    assert launch(run).wait(240) == 0
    assert curve(run) == curve(tmp_path / "whole")
    assert (run / "outcome").read_text() == "done\n"
    exports = [
        (path / "exports" / f"step-{STEPS:06d}" / "model.safetensors").read_bytes()
        for path in (run, tmp_path / "whole")
    ]
    assert exports[0] == exports[1]
