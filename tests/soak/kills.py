"""Kill a training with SIGKILL again and again, go on with the same command, and compare with one that nobody killed.

    python tests/soak/kills.py --kills 100 --output docs/results/soak.md

Two CPU ranks train a model of 22,594 parameters with dropout in bf16 and write a checkpoint at every third step, under
ZeRO 1, 2 and 3 in turn. A kill takes a rank at a moment that is drawn, or while it does something that it seldom does.
Some are of the whole `deepspeed` command: a rank, or one of the two launchers above it. Whenever a run has come to its
end, its losses and gradient norms and its last weights must be those of the undisturbed run, bit for bit.
"""

from __future__ import annotations

import json
import os
import platform
import random
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import torch

import tests.conftest  # noqa: F401  sets the environment as for the tests
from tests.integration.launching import curve, launch
from tests.ranks import run_ranks, run_ranks_and_kill
from tests.soak.phases import PHASES, new_file, phase_of, run_pretrain_in_phases
from tests.soak.program import run_and_report
from tests.trainer.conftest import TINY
from tests.trainer.rank_tasks import run_pretrain
from tests.trainer.shard_factory import write_shards
from trainer.run_directory import RunDirectory

STEPS = 240  # of a run: enough for some ten kills
SETTINGS = (f"phases.0.steps={STEPS}", "checkpoint.every=3", "checkpoint.keep_exports=3", "log.validate_every=0")
LAUNCHED = "through `deepspeed`: "


class Soak:
    """Runs, one after the other, and what was killed of them."""

    def __init__(self, directory: Path, seed: int):
        """Make shards and settings, and train undisturbed with each ZeRO stage."""
        self.killed: Counter[str] = Counter()
        self.compared = self.runs = 0
        self._directory = directory
        self._chance = random.Random(seed)
        write_shards(directory / "shards")
        (directory / "recipe.toml").write_text(TINY)
        settings = json.loads((ROOT / "ds_config.json").read_text())
        for stage in (1, 2, 3):
            changed = {**settings, "zero_optimization": {**settings["zero_optimization"], "stage": stage}}
            (directory / f"ds{stage}.json").write_text(json.dumps(changed))
            codes = run_ranks(2, run_pretrain, self._arguments(stage, self._whole(stage)))
            assert codes == [0, 0]

    def run(self, kills: int) -> None:
        """Kill until there are enough, and let the last run come to its end."""
        while self.killed.total() < kills:
            stage = self.runs % 3 + 1
            path = self._directory / f"killed{self.runs}"
            while count_lines(path) < STEPS - 5 and self.killed.total() < kills:
                # Through `deepspeed` only while the run has more steps left than may pass before the kill.
                if stage == 2 and self._chance.random() < 0.3 and count_lines(path) < STEPS // 2:
                    self._kill_launched(path)
                else:
                    self._kill_ranks(stage, path)
                print(f"{self.killed.total()} kills, {count_lines(path)} steps of run {self.runs}", flush=True)
            self._finish(stage, path)

    def _kill_ranks(self, stage: int, path: Path) -> None:
        """Kill a rank at some moment, or when it is in some phase."""
        phases, victim = self._directory / "phases", self._chance.randrange(2)
        new_file(phases, 2)
        target = self._chance.choice(["any", "any", *PHASES.values()][:-1])
        enough = count_lines(path) + self._chance.randrange(1, 25)

        def ready() -> bool:
            if target == "starting up":
                return True
            return target in ("any", phase_of(phases, victim)) and count_lines(path) >= enough

        delay = {"any": self._chance.uniform(0, 0.4), "starting up": self._chance.uniform(0, 3)}.get(target, 0.0)
        alive = run_ranks_and_kill(
            2, run_pretrain_in_phases, self._arguments(stage, path), phases, victim=victim, ready=ready, delay=delay
        )
        if alive:
            self.killed[phase_of(phases, victim)] += 1

    def _kill_launched(self, path: Path) -> None:
        """Kill a rank or a launcher of the command that people type, and wait until nothing of it is left."""
        launched = launch("deepspeed", self._directory, path, STEPS, *SETTINGS)
        try:
            launched.wait_for_lines(count_lines(path) + self._chance.randrange(1, 25))
            time.sleep(self._chance.uniform(0, 0.4))
            victims = {
                "the command": launched.family[0].parent(), "its launcher": launched.family[0],
                "rank 0": launched.ranks()[0], "rank 1": launched.ranks()[1],
            }  # fmt: skip
            name = self._chance.choice(list(victims))
            victims[name].kill()
            launched.wait_for_end(120)
            self.killed[LAUNCHED + name] += 1
        finally:
            launched.end()

    def _finish(self, stage: int, path: Path) -> None:
        """Let a run come to its end, and compare it with the undisturbed one."""
        codes = run_ranks(2, run_pretrain, self._arguments(stage, path))
        assert codes == [0, 0]
        whole = self._whole(stage)
        assert curve(path) == curve(whole), f"{path}: another curve than {whole}"
        exports = [(run / "exports" / f"step-{STEPS:06d}" / "model.safetensors").read_bytes() for run in (path, whole)]
        assert exports[0] == exports[1], f"{path}: other weights than {whole}"
        assert RunDirectory(path).outcome == ("done", "")
        self.runs += 1
        self.compared += STEPS

    def _whole(self, stage: int) -> Path:
        return self._directory / f"whole{stage}"

    def _arguments(self, stage: int, output: Path) -> list[str]:
        return ["--config", str(self._directory / "recipe.toml"), "--deepspeed_config",
                str(self._directory / f"ds{stage}.json"), "--shards", str(self._directory / "shards"),
                "--output", str(output), *SETTINGS]  # fmt: skip


def count_lines(run: Path) -> int:
    """Steps in metrics.jsonl."""
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def figures(soak: Soak, seconds: float) -> str:
    rows = "\n".join(f"| {phase} | {count} |" for phase, count in soak.killed.most_common())
    return f"""| when SIGKILL came | kills |
| --- | --- |
{rows}
| all | {soak.killed.total()} |

After these kills {soak.runs} runs of {STEPS} steps came to their end. All {soak.compared:,} losses and gradient norms,
and the weights of the {soak.runs} last exports, are those of the undisturbed runs, bit for bit. It took
{seconds / 60:.0f} minutes on {os.cpu_count()} cores ({platform.machine()}, torch {torch.__version__}).
"""


if __name__ == "__main__":
    sys.exit(run_and_report(Path(__file__), str(__doc__), "Kills", "--kills", 100, Soak, figures))
