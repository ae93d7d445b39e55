"""Do to a training whatever a week brings, go on with the same command, and compare with one that nobody disturbed.

    python tests/soak/faults.py --faults 60 --output docs/results/faults.md

Two CPU ranks train a model of 22,594 parameters with dropout in bf16 under ZeRO 2, write a checkpoint at every third
step and validate at every fifth. Faults and their moments are drawn; when one has ended the trainer, the same command
is given again. The outcome must be one that the fault may have; and when a run has come to its end, its losses,
gradient norms and last weights must be those of the undisturbed run, bit for bit.
"""

from __future__ import annotations

import contextlib
import os
import platform
import random
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import psutil
import torch

import tests.conftest  # noqa: F401  sets the environment as for the tests
from tests.integration.launching import curve, lines
from tests.ranks import is_there, run_ranks, run_ranks_and_disturb
from tests.soak.program import run_and_report
from tests.trainer.conftest import TINY
from tests.trainer.rank_tasks import run_pretrain, run_pretrain_as_a_program
from tests.trainer.shard_factory import write_shards
from trainer.run_directory import RunDirectory

STEPS = 60
SETTINGS = (f"phases.0.steps={STEPS}", "checkpoint.every=3", "log.validate_every=5", "data.workers=1")
Ranks = list[psutil.Process]


class Fault(NamedTuple):
    """What is done to the ranks, what undoes it after a while, and which words the trainer may end with for it."""

    begin: Callable[[Ranks, random.Random], object]
    end: Callable[[Ranks], object]
    endings: set[str]  # as trainer.outcome has them; "done" always is one


def signal_all(ranks: Ranks, number: signal.Signals) -> None:
    """A signal to every rank."""
    for rank in ranks:
        rank.send_signal(number)


def stop_twice(ranks: Ranks, chance: random.Random) -> None:
    """Two requests to end, as of a scheduler and of a launcher."""
    signal_all(ranks, signal.SIGUSR1)
    time.sleep(chance.uniform(0, 0.3))
    chance.choice(ranks).terminate()


def kill_a_loader(ranks: Ranks, chance: random.Random) -> None:
    """SIGKILL to a process that reads for a rank."""
    for loader in chance.choice(ranks).children():
        loader.kill()


def limit(ranks: Ranks, what: int, value: int) -> None:
    """Limit what running processes may use."""
    for rank in ranks:
        rank.rlimit(what, (value, rank.rlimit(what)[1]))


def unlimit(ranks: Ranks) -> None:
    """As much as there is, of whatever was limited."""
    for what in (resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE):
        for rank in ranks:
            rank.rlimit(what, (rank.rlimit(what)[1],) * 2)


FAULTS = {
    "SIGKILL to a rank": Fault(lambda ranks, chance: chance.choice(ranks).kill(), unlimit, {"crashed"}),
    "SIGTERM to a rank": Fault(lambda ranks, chance: chance.choice(ranks).terminate(), unlimit, {"requeue"}),
    "SIGUSR1 to all ranks, SIGTERM to one": Fault(stop_twice, unlimit, {"requeue"}),
    "Ctrl-C": Fault(lambda ranks, _: signal_all(ranks, signal.SIGINT), unlimit, {"requeue"}),
    "SIGKILL to a loader process": Fault(kill_a_loader, unlimit, {"crashed"}),
    "a rank suspended for a while": Fault(
        lambda ranks, chance: chance.choice(ranks).suspend(), lambda ranks: signal_all(ranks, signal.SIGCONT), set()
    ),
    "no room on the disk for a while": Fault(
        lambda ranks, _: limit(ranks, resource.RLIMIT_FSIZE, 0), unlimit, {"failed", "crashed"}
    ),
    "no file can be opened for a while": Fault(
        lambda ranks, _: limit(ranks, resource.RLIMIT_NOFILE, 3), unlimit, {"failed", "crashed"}
    ),
}


class Storm:
    """Runs, one after the other, and what came over them."""

    def __init__(self, directory: Path, seed: int):
        """Make shards and settings, and train undisturbed."""
        self.met: Counter[tuple[str, str]] = Counter()  # fault and what became of the trainer
        self.runs = 0
        self._directory = directory
        self._chance = random.Random(seed)
        write_shards(directory / "shards")
        (directory / "recipe.toml").write_text(TINY)
        assert run_ranks(2, run_pretrain, self._arguments(self._whole)) == [0, 0]

    def run(self, faults: int) -> None:
        """Disturb until it is enough, and let the last run come to its end."""
        while self.met.total() < faults:
            run = RunDirectory(self._directory / f"run{self.runs}")
            while run.ending != "done":
                self._start(run)
                print(f"{self.met.total()} faults, {len(lines(run.path))} steps of run {self.runs}", flush=True)
            self._compare(run)

    def _start(self, run: RunDirectory) -> None:
        """One start of the trainer, with as many faults as it lives through."""
        met: list[str] = []

        def disturb(ranks: Ranks) -> None:
            while all(map(is_there, ranks)) and not is_held_by(run, ranks[0]):
                time.sleep(0.01)
            while all(map(is_there, ranks)):
                enough = len(lines(run.path)) + self._chance.randrange(8)  # none more: while it starts up, say
                while all(map(is_there, ranks)) and len(lines(run.path)) < enough:
                    time.sleep(0.01)
                time.sleep(self._chance.uniform(0, 0.5))
                name = self._chance.choice(list(FAULTS))
                with contextlib.suppress(psutil.NoSuchProcess):
                    FAULTS[name].begin(ranks, self._chance)
                    met.append(name)
                    time.sleep(self._chance.uniform(0.1, 2))
                for rank in ranks:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        FAULTS[name].end([rank])

        run_ranks_and_disturb(2, run_pretrain_as_a_program, self._arguments(run.path), disturb=disturb)
        ending = run.ending or "crashed"
        expected = {"done"}.union(*(FAULTS[name].endings for name in met))
        assert ending in expected, f"{run.path}: {ending} after {met}"
        self.met.update((name, "it went on") for name in met[:-1])
        self.met.update((name, ending) for name in met[-1:])

    def _compare(self, run: RunDirectory) -> None:
        assert curve(run.path) == curve(self._whole), f"{run.path}: another curve than {self._whole}"
        exports = [(path / "exports" / f"step-{STEPS:06d}" / "model.safetensors").read_bytes()
                   for path in (run.path, self._whole)]  # fmt: skip
        assert exports[0] == exports[1], f"{run.path}: other weights than {self._whole}"
        self.runs += 1

    @property
    def _whole(self) -> Path:
        return self._directory / "whole"

    def _arguments(self, output: Path) -> list[str]:
        return ["--config", str(self._directory / "recipe.toml"), "--deepspeed_config", str(ROOT / "ds_config.json"),
                "--shards", str(self._directory / "shards"), "--output", str(output), *SETTINGS]  # fmt: skip


def is_held_by(run: RunDirectory, process: psutil.Process) -> bool:
    """Whether a start has got as far as to take the run directory: before that signals have no handlers."""
    return run.lock.exists() and run.lock.read_text().startswith(f"process {process.pid} ")


def figures(storm: Storm, seconds: float) -> str:
    endings = ["it went on", "requeue", "crashed", "failed", "done"]
    rows = [[name, *(str(storm.met[name, ending] or "") for ending in endings)] for name in FAULTS]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"""| fault | it went on | requeue | crashed | failed | done |
| --- | --- | --- | --- | --- | --- |
{table}

"It went on" to another fault; the other columns are the words of `python -m trainer.outcome` after the last fault of
a start. These were {storm.met.total()} faults. All {storm.runs} runs of {STEPS} steps came to their end with the
losses, gradient norms and weights of the undisturbed run, bit for bit. It took {seconds / 60:.0f} minutes on
{os.cpu_count()} cores ({platform.machine()}, torch {torch.__version__}).
"""


if __name__ == "__main__":
    sys.exit(run_and_report(Path(__file__), str(__doc__), "Faults", "--faults", 60, Storm, figures))
