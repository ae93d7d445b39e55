"""A rank killed in mid-run: the same command goes on, and the curve is that of a run that was never killed."""

import json
import random
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.integration.launching import curve, lines
from tests.ranks import run_ranks, run_ranks_and_kill
from tests.trainer.conftest import TINY
from tests.trainer.rank_tasks import run_pretrain
from tests.trainer.shard_factory import write_shards
from trainer.run_directory import RunDirectory

pytestmark = pytest.mark.slow

STEPS = 150


@pytest.mark.parametrize("times", [4, pytest.param(10, marks=pytest.mark.long)])
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_kills_at_random_moments_leave_the_curve_of_a_run_that_was_never_killed(tmp_path, zero, times):
    """A checkpoint at every second step, so that many kills hit the writing of one; tests/soak/kills.py: hundreds."""
    write_shards(tmp_path / "shards")
    (tmp_path / "recipe.toml").write_text(
        TINY.replace("steps = 8", "steps = 120")
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
    for _ in range(times):
        before = len(lines(run))
        kills += run_ranks_and_kill(
            2, run_pretrain, arguments(run), victim=chance.randrange(2), delay=chance.uniform(0, 0.4),
            ready=lambda before=before: len(lines(run)) > max(0, before - 3),
        )  # fmt: skip
    assert kills >= times / 2, "most runs were over before they could be killed"
    assert run_ranks(2, run_pretrain, arguments(run)) == [0, 0]
    assert curve(run) == curve(whole)
    exports = [(path / "exports" / "step-000120" / "model.safetensors").read_bytes() for path in (run, whole)]
    assert exports[0] == exports[1]
    leftovers = [path.name for path in run.rglob("*incomplete*")]
    assert not leftovers or all("step-" in name for name in leftovers)


def test_kill_9_of_a_rank_and_the_same_command_again(start):
    """Of either rank, one after the other; the other rank and the launcher end, and leave no word for job scripts."""
    whole = start("deepspeed", "whole", STEPS)
    assert whole.process.wait(240) == 0
    for rank, step in ((1, 35), (0, 80)):
        killed = start("deepspeed", "killed", STEPS)
        killed.wait_for_lines(step)
        killed.ranks()[rank].kill()
        assert killed.wait_for_end() != 0
        assert len(lines(killed.run)) < STEPS
        assert RunDirectory(killed.run).outcome is None
    again = start("deepspeed", "killed", STEPS)
    assert again.process.wait(240) == 0
    assert curve(again.run) == curve(whole.run)
    assert RunDirectory(again.run).outcome == ("done", "")
    exports = [(one.run / "exports" / f"step-{STEPS:06d}" / "model.safetensors").read_bytes() for one in (again, whole)]
    assert exports[0] == exports[1]
