"""Have the storage of a run fail, at one file operation after the other, and go on with the same command.

    python tests/soak/storage.py --starts 300 --output docs/results/storage.md

A CPU rank trains a model of 22,594 parameters with dropout in bf16 under ZeRO 2 for eight steps, with checkpoints,
validations and exports. In each start one of the C library's file operations below the run directory fails, or it and
all others for a while: as a disk or a network's storage that is away does, or a full disk. The command must end in a
line and never in a traceback, whatever failed; only a full disk may leave a verdict; and the same command must then
come to its end with the losses, gradient norms and weights of the undisturbed run, bit for bit. Every other start
goes on with a run that has checkpoints already.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import itertools
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import torch

import tests.conftest  # noqa: F401  sets the environment as for the tests
from preprocessing.storage_errors import is_passing
from tests.integration.launching import curve
from tests.ranks import run_ranks
from tests.trainer.conftest import TINY
from tests.trainer.rank_tasks import run_pretrain
from tests.trainer.shard_factory import write_shards
from trainer.checkpoint import read_run_state
from trainer.files import read_lines
from trainer.run_directory import RunDirectory, step_folders
from trainer.sharded_state import verify_state

LIBRARY = "LD_PRELOAD"  # the variable, by which ranks find the library as well
SETTINGS = ("checkpoint.every=2", "checkpoint.keep=2", "checkpoint.keep_exports=2")
ERRORS = (errno.EIO, errno.ESTALE, errno.ENOSPC)
LASTING = (0.0, 0.0, 0.05, 600.0)  # seconds that other operations fail as well


class Start(NamedTuple):
    """What became of one."""

    code: int
    met: int  # operations
    failed: str  # the first one that did, and its place in the run directory; empty for none


class Fault(NamedTuple):
    """What is to fail: the operation of that number, others for so long after it, and how."""

    number: int
    error: int
    seconds: float


def train(arguments: list[str], run: str, fault: Fault) -> Start:
    """A rank's main, in whose process a file operation fails."""
    library = ctypes.CDLL(os.environ[LIBRARY])
    library.storage_arm.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_int, ctypes.c_double]
    library.storage_met.restype, library.storage_failed.restype = ctypes.c_long, ctypes.c_char_p
    library.storage_arm(run.encode(), *fault)
    code = run_pretrain(arguments)
    return Start(code, library.storage_met(), library.storage_failed().decode())


class Campaign:
    """Starts of runs whose storage fails."""

    def __init__(self, directory: Path, seed: int):
        """Make shards and settings, and train undisturbed: a run as a whole, and one that stopped halfway."""
        self.met: Counter[tuple[str, str]] = Counter()  # what failed, and what became of the trainer
        self._directory, self._chance = directory, random.Random(seed)
        write_shards(directory / "shards")
        (directory / "recipe.toml").write_text(TINY)
        self._whole, self._begun, self._run = directory / "whole", directory / "begun", RunDirectory(directory / "run")
        self._train(self._whole)
        self._train(self._begun, settings=("train.max_steps=4",))
        RunDirectory(self._begun).outcome_file.unlink()  # as if it had been killed
        self._operations: dict[tuple[int, int], int] = {}  # that may fail of a run that goes on, or begins, by error
        for goes_on, error in itertools.product((0, 1), ERRORS):
            self._begin(goes_on)
            self._operations[goes_on, error] = self._train(self._run.path, Fault(0, error, 0.0)).met
            assert self._state(self._run.path) == self._state(self._whole)

    def run(self, starts: int) -> None:
        """As many, whose faults are spread over all operations."""
        for number in range(starts):
            goes_on, error = number % 2, self._chance.choice(ERRORS)
            of = 1 + int((number + self._chance.random()) / starts * self._operations[goes_on, error])
            self._start(goes_on, Fault(of, error, self._chance.choice(LASTING)))
            print(f"\r{number + 1} starts", end="", flush=True)
        print()

    def _start(self, goes_on: int, fault: Fault) -> None:
        self._begin(goes_on)
        run, start = self._run, self._train(self._run.path, fault)
        begins = "goes on" if goes_on else "begins"
        told = f"{fault} of a run that {begins}, at {start.failed}: {start.code}\n{self._log}"
        assert "Traceback" not in told, told
        assert start.code == 0 or "error: " in told, told
        ending = (run.ending or "crashed") if run.path.exists() else "crashed"
        expected = {0: {"done"}, 1: {"crashed"}, 2: {"failed", "crashed"}}  # a verdict may find no room
        assert ending in expected[start.code], f"{ending}: {told}"
        assert ending != "failed" or not is_passing(OSError(fault.error, "")), f"{ending}: {told}"
        self._check_files(run, told)
        again = self._train(run.path)
        assert again.code == 0, f"{told}\nand then\n{self._log}"
        assert self._state(run.path) == self._state(self._whole), f"other figures or weights: {told}"
        self.met[place_of(start.failed), "it went on" if start.code == 0 else ending] += 1

    def _begin(self, goes_on: int) -> None:
        shutil.rmtree(self._run.path, ignore_errors=True)
        if goes_on:
            shutil.copytree(self._begun, self._run.path)

    def _check_files(self, run: RunDirectory, told: str) -> None:
        """See that what has a final name is whole."""
        for checkpoint in step_folders(run.checkpoints):
            verify_state(checkpoint)
            read_run_state(checkpoint)
        for metrics in (run.metrics, run.validation_metrics):
            steps = [line["step"] for line in read_lines(metrics)]
            assert steps == sorted(set(steps)), told

    def _train(self, output: Path, fault: Fault = Fault(0, 0, 0.0), settings: Sequence[str] = ()) -> Start:  # noqa: B008
        log = self._directory / "log"
        log.unlink(missing_ok=True)
        arguments = ["--config", self._directory / "recipe.toml", "--deepspeed_config", ROOT / "ds_config.json",
                     "--shards", self._directory / "shards", "--output", output, *SETTINGS, *settings]  # fmt: skip
        (start,) = run_ranks(1, train, [str(word) for word in arguments], str(output), fault, log=log)
        self._log = log.read_text()
        assert fault.number or start.code == 0, self._log
        return start

    def _state(self, path: Path) -> object:
        """What must be the same at the end, however a run came there."""
        run = RunDirectory(path)
        exports = [(folder.name, (folder / "model.safetensors").read_bytes()) for folder in step_folders(run.exports)]
        steps = [line["step"] for line in read_lines(run.validation_metrics)]
        return run.outcome, run.step, curve(path), steps, exports[-1]


def place_of(failed: str) -> str:
    """An operation with the room of a run directory that its file lies in, for the table."""
    operation, _, path = failed.rpartition(" ")
    parts = [part.removeprefix(".").removesuffix(".incomplete") for part in path.split("/")]
    first = parts[1] if len(parts) > 1 else ""
    rooms = {"checkpoints": "checkpoints", "exports": "exports", "metrics.jsonl": "metrics",
             "validation.jsonl": "metrics", "outcome": "outcome", "trainer.lock": "lock", "": "the folder"}  # fmt: skip
    return f"{rooms.get(first, 'settings')}: {operation}" if failed else "none: it had ended"


def report(campaign: Campaign, seconds: float, command: Sequence[str]) -> str:
    """The figures, in Markdown."""
    endings = ["it went on", "crashed", "failed"]
    names = sorted({name for name, _ in campaign.met})
    rows = [[name, *(str(campaign.met[name, ending] or "") for ending in endings)] for name in names]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    what = str(__doc__).split("\n\n", 2)[2].strip()
    return f"""# Storage that fails

    {" ".join(command)}

{what}

| what failed first | it went on | crashed | failed |
| --- | --- | --- | --- |
{table}

"It went on" to its end, with a warning where something was lost; the other columns are the words of
`python -m trainer.outcome` after a start that did not: "crashed" has job scripts give the command again. After all
{campaign.met.total()} starts the same command came to its end as the undisturbed run. It took {seconds / 60:.0f}
minutes on {os.cpu_count()} cores ({platform.machine()}, torch {torch.__version__}).
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Exits with 1, by an assertion, at the first start that is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1, help="of the faults")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE.md")
    arguments = parser.parse_args(argv)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="storage-") as directory:
        if LIBRARY not in os.environ:  # as only a process's start can
            library = Path(directory) / "storage.so"
            source = Path(__file__).with_suffix(".c")
            subprocess.run(["cc", "-shared", "-fPIC", "-O1", source, "-o", library, "-ldl"], check=True)
            words = sys.argv[1:] if argv is None else argv
            here = {**os.environ, LIBRARY: str(library)}
            return subprocess.run([sys.executable, __file__, *words], env=here).returncode
        campaign = Campaign(Path(directory), arguments.seed)
        campaign.run(arguments.starts)
    options = {"--starts": arguments.starts, "--seed": arguments.seed, "--output": arguments.output}
    command = ["python", "tests/soak/storage.py", *(str(word) for option in options.items() for word in option)]
    arguments.output.write_text(report(campaign, time.monotonic() - began, command), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
