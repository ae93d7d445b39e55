"""A rank killed in mid-run: the same command goes on, and the curve is that of a run that was never killed."""

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.conftest import ROOT
from tests.ranks import free_port, run_ranks, run_ranks_and_kill
from tests.trainer.conftest import TINY
from tests.trainer.rank_tasks import run_pretrain
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
            "deepspeed", "--master_port", str(free_port()), "--num_accelerators", "2",
            "trainer/pretrain.py", "--config", str(tmp_path / "recipe.toml"),
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


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_ten_kills_at_random_moments_leave_the_curve_of_a_run_that_was_never_killed(tmp_path, zero):
    """A checkpoint at every second step, so that many kills hit the writing of one."""
    write_shards(tmp_path / "shards")
    (tmp_path / "recipe.toml").write_text(
        TINY.replace("steps = 8", "steps = 60")
        .replace("every = 4", "every = 2")
        .replace("validate_every = 2", "validate_every = 0")
    )
    settings = json.loads((ROOT / "ds_config.json").read_text())
    (tmp_path / "ds.json").write_text(json.dumps({**settings, "zero_optimization": {"stage": zero}}))

    def arguments(run: Path) -> list[str]:
        return ["--config", str(tmp_path / "recipe.toml"), "--deepspeed_config", str(tmp_path / "ds.json"),
                "--shards", str(tmp_path / "shards"), "--output", str(run)]  # fmt: skip

    whole, run = tmp_path / "whole", tmp_path / "killed"
    assert run_ranks(2, run_pretrain, arguments(whole)) == [0, 0]
    chance = random.Random(zero)
    kills = 0
    for _ in range(10):
        before = len(lines(run))
        kills += run_ranks_and_kill(
            2, run_pretrain, arguments(run), victim=chance.randrange(2), delay=chance.uniform(0, 0.4),
            ready=lambda before=before: len(lines(run)) > max(0, before - 3),
        )  # fmt: skip
    assert kills >= 5, "most runs were over before they could be killed"
    assert run_ranks(2, run_pretrain, arguments(run)) == [0, 0]
    assert curve(run) == curve(whole)
    exports = [(path / "exports" / "step-000060" / "model.safetensors").read_bytes() for path in (run, whole)]
    assert exports[0] == exports[1]
    leftovers = [path.name for path in run.rglob("*incomplete*")]
    assert not leftovers or all("step-" in name for name in leftovers)


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
