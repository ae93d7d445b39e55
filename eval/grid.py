"""The points of a task's grid, and what lies on disk of each.

    OUTPUT/TASK/points/lr5e-05-epochs3-batch32-seed0/
        result.json        figures of every epoch, what they are of, and of which test sets there are predictions
        losses.json        of every step
        dev_..., test_...  predictions

A point appears complete or not at all. Its lock says that a process works on it, and ends with that process; so any
number of processes may share a grid, and the same command again does what is missing. Where a point failed, a file
says why, until it is tried again.
"""

from __future__ import annotations

import itertools
import json
import logging
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pydantic

from eval.errors import UsageError
from eval.finetune import Hyperparameters
from eval.storage import check_output, reading
from eval.tasks.finetuned import FineTuned
from preprocessing.status import is_dir, is_file, make_folder
from trainer.files import incomplete, publish, write_atomically

RESULT, LOSSES = "result.json", "losses.json"

_log = logging.getLogger("eval")


class _Found(pydantic.BaseModel):
    """What readers of a point rely on."""

    origin: dict[str, Any]
    point: dict[str, float]
    metrics: dict[str, dict[str, float]]  # by part; none of one that diverged
    details: dict[str, Any]
    error: str | None
    seconds: float
    device: str


@dataclass(frozen=True)
class Search:
    """What to try instead of what the paper tried; None for the paper's.

    Attributes:
        learning_rates: highest ones.
        epochs: passes.
        batch_sizes: samples of a step.
        seeds: random restarts of each.
    """

    learning_rates: tuple[float, ...] | None = None
    epochs: tuple[int, ...] | None = None
    batch_sizes: tuple[int, ...] | None = None
    seeds: tuple[int, ...] = (0,)


def grid(task: FineTuned, search: Search) -> list[Hyperparameters]:
    """All combinations, each once; restarts of one follow each other."""
    axes = (
        search.learning_rates or task.learning_rates,
        search.epochs or task.epochs,
        search.batch_sizes or task.batch_sizes,
        search.seeds,
    )
    return list(dict.fromkeys(Hyperparameters(*values) for values in itertools.product(*axes)))


@dataclass(frozen=True)
class Points:
    """The points of a task on disk.

    Attributes:
        folder: of them.
        origin: what they are of: hashes and settings.
    """

    folder: Path
    origin: Mapping[str, Any]

    def path(self, point: Hyperparameters) -> Path:
        """Where a finished point lies."""
        return self.folder / f"lr{point.learning_rate}-epochs{point.epochs}-batch{point.batch_size}-seed{point.seed}"

    def lock(self, point: Hyperparameters) -> Path:
        """The file whose lock whoever works on a point holds."""
        make_folder(self.folder, parents=True)
        return self._lock_file(point)

    def _lock_file(self, point: Hyperparameters) -> Path:
        return self.folder / f".{self.path(point).name}.lock"

    def check(self, points: Iterable[Hyperparameters]) -> None:
        """See that what is there of some points is of this origin, and that the others can be written.

        Raises:
            UsageError: it isn't, or they can't.
        """
        if missing := [point for point in points if not self.is_finished(point)]:
            check_output(self.folder, map(self._lock_file, missing))

    def read(self, point: Hyperparameters) -> dict[str, Any] | None:
        """What a point found; None where it is not finished.

        Raises:
            UsageError: it was made of something else, is no such result, or is not for this user to read.
            UnavailableError: it can't be read now.
        """
        path = self.path(point) / RESULT
        with reading(path):
            if not is_file(path):
                return None
            content = path.read_bytes()
        try:
            result: dict[str, Any] = json.loads(content.decode())
            _Found.model_validate(result, strict=True)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path}: not the result of a grid point; remove {path.parent}") from error
        made_of = result["origin"]
        if differing := [name for name, value in self.origin.items() if made_of.get(name) != value]:
            name = differing[0]
            was, now = made_of.get(name), self.origin[name]
            raise UsageError(f"{path}: made with {name} {was} instead of {now}; choose another --output")
        return result

    def is_finished(self, point: Hyperparameters) -> bool:
        """Whether somebody has finished a point; raises as read."""
        return self.read(point) is not None

    def failure(self, point: Hyperparameters) -> str | None:
        """Why the last one who tried a point failed; None where nobody did."""
        marker = self._failure_file(point)
        return marker.read_text(encoding="utf-8") if is_file(marker) else None

    def set_failure(self, point: Hyperparameters, reason: str | None) -> None:
        """Leave word of a failure, for those that share the grid, or take it away; who does holds the point's lock."""
        if reason is None:
            self._failure_file(point).unlink(missing_ok=True)
        else:
            write_atomically(self._failure_file(point), reason)

    def _failure_file(self, point: Hyperparameters) -> Path:
        return self.folder / f".{self.path(point).name}.failed"

    def write(
        self, point: Hyperparameters, result: Mapping[str, Any], files: Mapping[str, str], kept: Iterable[Path] = ()
    ) -> None:
        """Publish a point in the place of what is there; who writes holds its lock.

        Args:
            point: it.
            result: what it found.
            files: name -> content: predictions and losses.
            kept: files and folders that are copied as they are.
        """
        final = self.path(point)
        staging = incomplete(final)
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        for path in kept:
            (shutil.copytree if is_dir(path) else shutil.copyfile)(path, staging / path.name)
        content = {"point": asdict(point), "origin": dict(self.origin), **result}
        for name, text in {RESULT: json.dumps(content, indent=2) + "\n", **files}.items():
            (staging / name).write_text(text, encoding="utf-8")
        if is_dir(final) and not is_file(final / RESULT):
            _log.warning("%s: was damaged, without its %s; it has been learned again", final, RESULT)
        publish(staging, final)

    def beside(self, point: Hyperparameters) -> list[Path]:
        """What lies beside the result of a finished point, by name: losses, predictions, and whatever is not ours."""
        return sorted(path for path in self.path(point).iterdir() if path.name != RESULT)
