"""Storage that fails while a checkpoint is evaluated.

    python tests/soak/storage_evaluation.py --starts 300 --output docs/results/storage_evaluation.md

An export of two layers learns MRPC and STS-B with their test sets, one point of the grid each, and is measured on
held-out shards and sentences without learning. In each start one of the C library's file operations below the
output, the export, the data sets or the shards fails, or it and all others for a while: as a disk or a network's
storage that is away does, or a full disk. The command must end in a line for what failed and never in a traceback,
and with exit code 2 for no error that may pass. What an earlier command had found of another task must still be
there, whatever failed; and the same command must then come to the results, predictions and GLUE's submission of the
undisturbed one. Of the results, seconds alone may differ.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import torch

import tests.conftest  # noqa: F401  sets the environment as for the tests
from eval.results import RESULTS, by_command, read_results, tasks_of
from eval.run import main as evaluate
from tests.eval.conftest import CONFIG, STEP, random_state
from tests.eval.small_data import write_mrpc, write_stsb
from tests.soak.failing_storage import Campaign, Fault, Start, forked, main
from tests.trainer.mlflow_store import write_run
from tests.trainer.shard_factory import write_shards
from trainer.hugging_face import save_export

BEGINS, BESIDE = "an output", "an earlier command's output"
EXPORT, DATA, SHARDS = "the export", "the data sets", "the shards"


class Evaluation(Campaign):
    """Starts of eval.run."""

    cases = (BEGINS, BESIDE, EXPORT, DATA, SHARDS)

    def __init__(self, directory: Path, seed: int):
        super().__init__(directory, seed)
        torch.set_num_threads(1)
        self._output, self._earlier, self._data = directory / "output", directory / "earlier", directory / "data"
        self._shards = write_shards(directory / "shards", sequence_lengths=(32,), validation=(6, 5))
        write_stsb(write_mrpc(self._data))
        run = write_run(directory / "run")
        self._export = run / "exports" / f"step-{STEP:06d}"
        self._export.parent.mkdir()
        save_export(self._export, random_state(), CONFIG, self._shards / "tokenizer", {"run": str(run), "step": STEP})
        self._output.mkdir()
        assert self._evaluate("stsb,nsp") == 0
        self._output.rename(self._earlier)

    def begin(self, case: str) -> Path:
        shutil.rmtree(self._output, ignore_errors=True)
        if case == BESIDE:
            shutil.copytree(self._earlier, self._output)
        self._tasks = "mrpc,mlm,fill_mask" if case == BESIDE else "mrpc,stsb,mlm,nsp,fill_mask"
        return {EXPORT: self._export, DATA: self._data, SHARDS: self._shards}.get(case, self._output)

    def command(self) -> int:
        return self._evaluate(self._tasks)

    def _evaluate(self, tasks: str) -> int:
        words = ["--checkpoint", self._export, "--data", self._data, "--shards", self._shards, "--output", self._output,
                 "--tasks", tasks, "--test", "--epochs", 1, "--learning-rates", 1e-3, "--batch-sizes", 16,
                 "--threads", 1, "--no-tracking"]  # fmt: skip
        return forked(self.log, evaluate, [str(word) for word in words])

    def ending(self, start: Start, fault: Fault, case: str) -> str:
        if case == BESIDE:
            assert {"stsb", "nsp"} <= {*tasks_of(read_results(self._output / RESULTS))}, "an earlier task is lost"
        said = start.said.replace("failed: ", "error: ")  # of one task among several
        return super().ending(start._replace(said=said), fault, case)

    def state(self) -> object:
        results = read_results(self._output / RESULTS)
        assert not results["failed"]
        found = {
            name: [task, of["shards"], of["data"], of["settings"]]
            for of in by_command(results)
            for name, task in of["tasks"].items()
        }
        others = [path for path in self._output.rglob("[!.]*") if path.is_file() and path.name != RESULTS]
        return _timeless(json.dumps(found)), {
            path.relative_to(self._output): _timeless(path.read_text()) if path.suffix == ".json" else path.read_bytes()
            for path in others
        }

    def place_of(self, path: str, case: str) -> str:
        name = path.split("/")[0].removeprefix(".").removesuffix(".incomplete")
        return f"{case}, {name or 'the folder'}"


def _timeless(text: str) -> object:
    """What JSON holds, without how long it took."""
    return json.loads(text, object_hook=lambda found: {k: v for k, v in found.items() if k != "seconds"})


if __name__ == "__main__":
    sys.exit(main(Path(__file__), __doc__, Evaluation, 300))
