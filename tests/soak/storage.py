"""Storage that fails while a model is trained.

    python tests/soak/storage.py --starts 300 --output docs/results/storage.md

A CPU rank trains a model of 22,594 parameters with dropout in bf16 under ZeRO 2 for eight steps, with checkpoints,
validations and exports. In each start one of the C library's file operations below the run directory fails, or it and
all others for a while: as a disk or a network's storage that is away does, or a full disk. The command must end in a
line and never in a traceback, whatever failed; only a full disk may leave a verdict; and the same command must then
come to its end with the losses, gradient norms and weights of the undisturbed run, bit for bit. Every other start
goes on with a run that has checkpoints already.

In the table "it went on" is to its end, with a warning where something was lost; the other columns are the words of
`python -m trainer.outcome` after a start that did not: "crashed" has job scripts give the command again.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import tests.conftest  # noqa: F401  sets the environment as for the tests
from preprocessing.storage_errors import is_passing
from tests.integration.launching import curve
from tests.ranks import run_ranks
from tests.soak.failing_storage import Campaign, Fault, Start, main
from tests.trainer.conftest import TINY
from tests.trainer.rank_tasks import run_pretrain
from tests.trainer.shard_factory import write_shards
from trainer.checkpoint import read_run_state
from trainer.files import read_lines
from trainer.run_directory import RunDirectory, step_folders
from trainer.sharded_state import verify_state

SETTINGS = ("checkpoint.every=2", "checkpoint.keep=2", "checkpoint.keep_exports=2")
BEGINS, GOES_ON = "a run that begins", "a run that goes on"


class Trainings(Campaign):
    """Starts of the trainer."""

    cases = (BEGINS, GOES_ON)

    def __init__(self, directory: Path, seed: int):
        super().__init__(directory, seed)
        write_shards(directory / "shards")
        (directory / "recipe.toml").write_text(TINY)
        self._begun, self._run = directory / "begun", RunDirectory(directory / "run")
        assert self._train(self._begun, "train.max_steps=4") == 0
        RunDirectory(self._begun).outcome_file.unlink()  # as if it had been killed

    def begin(self, case: str) -> Path:
        shutil.rmtree(self._run.path, ignore_errors=True)
        if case == GOES_ON:
            shutil.copytree(self._begun, self._run.path)
        return self._run.path

    def command(self) -> int:
        return self._train(self._run.path)

    def _train(self, output: Path, *settings: str) -> int:
        arguments = ["--config", self.directory / "recipe.toml", "--deepspeed_config", ROOT / "ds_config.json",
                     "--shards", self.directory / "shards", "--output", output, *SETTINGS, *settings]  # fmt: skip
        (code,) = run_ranks(1, run_pretrain, [str(word) for word in arguments], log=self.log)
        return int(code)

    def ending(self, start: Start, fault: Fault, case: str) -> str:
        super().ending(start, fault, case)
        run = self._run
        ending = (run.ending or "crashed") if run.path.exists() else "crashed"
        expected = {0: {"done"}, 1: {"crashed"}, 2: {"failed", "crashed"}}  # a verdict may find no room
        assert ending in expected[start.code], f"the outcome is {ending}"
        assert ending != "failed" or not is_passing(OSError(fault.error, "")), "what may pass has left a verdict"
        for checkpoint in step_folders(run.checkpoints):  # what has a final name is whole
            verify_state(checkpoint)
            read_run_state(checkpoint)
        for metrics in (run.metrics, run.validation_metrics):
            steps = [line["step"] for line in read_lines(metrics)]
            assert steps == sorted(set(steps)), f"{metrics.name} has steps twice"
        return "it went on" if start.code == 0 else ending

    def state(self) -> object:
        run = self._run
        exports = [(folder.name, (folder / "model.safetensors").read_bytes()) for folder in step_folders(run.exports)]
        steps = [line["step"] for line in read_lines(run.validation_metrics)]
        return run.outcome, run.step, curve(run.path), steps, exports[-1]

    def place_of(self, path: str, case: str) -> str:
        name = path.split("/")[0].removeprefix(".").removesuffix(".incomplete")
        rooms = {"checkpoints": "checkpoints", "exports": "exports", "metrics.jsonl": "metrics",
                 "validation.jsonl": "metrics", "outcome": "outcome", "trainer.lock": "lock",
                 "": "the folder"}  # fmt: skip
        return rooms.get(name, "settings")


if __name__ == "__main__":
    sys.exit(main(Path(__file__), __doc__, Trainings, 300))
