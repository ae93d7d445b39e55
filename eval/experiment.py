"""A task that a model learns, on one export: the points of its grid are run, and what they leave is gathered."""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from eval.encoding import Encoder, Sample
from eval.errors import UsageError
from eval.finetune import DivergedError, Hyperparameters, Settings, learn, predict
from eval.grid import LOSSES, Points, Search, grid
from eval.inputs import Checkpoint
from eval.kinds import Frozen, Kind, Outcome
from eval.locks import locked
from eval.models import lock_of, origin_of, save_model, why_not_saved
from eval.parts import Parts, checksums_of, without_tests
from eval.results import MODELS, PREDICTED, STATES
from eval.selection import best_of, conclude
from eval.storage import check_output, check_replaceable
from eval.tasks.finetuned import FineTuned
from eval.tasks.result import Result
from preprocessing.status import make_folder
from preprocessing.storage_errors import UnavailableError
from trainer.files import write_atomically
from trainer.philox import derive_seed

_PROBED = 200  # examples that are looked at for unknown words
_MOST_UNKNOWN = 0.5  # share of their pieces: above it, the vocabulary is of another language

_log = logging.getLogger("eval")


@dataclass(frozen=True)
class Bench:
    """What the tasks of an evaluation share.

    Attributes:
        checkpoint: the pretrained model.
        settings: of the learning.
        device: to learn on.
        output: folder of the results.
        saves_models: whether the best point's model is kept.
        code: which evaluates, see trainer.lineage.code_version; a checkout may be another before the end.
    """

    checkpoint: Checkpoint
    settings: Settings
    device: torch.device
    output: Path
    saves_models: bool
    code: dict[str, Any]


class Experiment:
    """A task on an export.

    Attributes:
        task: it.
        points: of its grid.
        disk: what lies there of them.
    """

    def __init__(self, task: FineTuned, parts: Parts, bench: Bench, search: Search) -> None:
        self.task = task
        self.points = grid(task, search)
        self._parts = parts
        self._bench = bench
        self._encoder = Encoder(bench.checkpoint.tokenizer, min(task.max_length, bench.checkpoint.positions))
        learned, self._tests = without_tests(task, parts)  # whoever asks for tests later has the same points
        self._blake2b = checksums_of(learned, self._tests)
        self._origin = self._origin_of(learned)
        self.disk = Points(bench.output / task.name / "points", self._origin)
        self._predicted = bench.output / PREDICTED / task.name
        self._model = bench.output / MODELS / task.name

    def _origin_of(self, learned: Parts) -> dict[str, Any]:
        """What decides a point's figures, besides the point."""
        settings = dataclasses.asdict(self._bench.settings)
        # The same in expectation, with other dropout masks; and it is what one changes when memory is short.
        del settings["max_tokens"]
        return {
            "task": self.task.name,
            "version": self.task.version,
            "export": self._bench.checkpoint.blake2b,
            "examples": {part: len(examples) for part, examples in learned.items()},
            "data": self._blake2b.learned,
            "kind": repr(self.task.kind),
            "max_length": self._encoder.max_length,
            **self.task.kind.encoding(self._encoder.max_length),
            **settings,
        }

    def check(self) -> None:
        """Look for what would stop or spoil the learning, before any begins.

        Raises:
            UsageError: points of something else are there, something can't be written, the model is too small for the
                task, or its vocabulary is not that of the texts.
        """
        self.disk.check(self.points)
        check_output(self._predicted)
        for name in sorted(self._judged):
            check_replaceable(self._predicted / name)
        if self._bench.saves_models:
            check_output(self._model.parent)
        try:
            self.task.kind.check(self._bench.checkpoint.export.config)
        except UsageError as error:
            raise UsageError(f"{self.task.name}: {error}") from error
        if self._bench.saves_models and (reason := why_not_saved(self.task.kind, self._bench.checkpoint.export.config)):
            raise UsageError(f"--save-models: {self.task.name}: {reason}")
        for part, examples in self._parts.items():
            samples = self.task.kind.encode(examples[:_PROBED], self._encoder, training=False)
            unknown = self._unknown_share(samples)
            if unknown > _MOST_UNKNOWN:
                raise UsageError(
                    f"{self.task.name}: {unknown:.0%} of the text of {part} is unknown to the export's vocabulary; "
                    "give an export for its language and alphabet"
                )

    def _unknown_share(self, samples: Sequence[Sample]) -> float:
        ids = [sequence.ids for sample in samples for sequence in sample.sequences]
        return self._encoder.unknown_share(np.concatenate([np.empty(0, np.int32), *ids]))

    def missing(self) -> list[Hyperparameters]:
        """The points that nobody has finished, nor failed at."""
        return [p for p in self.points if not self.disk.is_finished(p) and self.disk.failure(p) is None]

    @cached_property
    def _samples(self) -> dict[str, Sequence[Any]]:
        found: dict[str, Sequence[Any]] = {}
        bench = self._bench
        for part, examples in self._parts.items():
            samples = self.task.kind.encode(examples, self._encoder, training=part == "train")
            data = self._blake2b.tests if part in self._tests else self._blake2b.learned
            of = (bench.checkpoint.blake2b, data, self._encoder.max_length, bench.settings.precision, self.task.version)
            name = "-".join(map(str, (part, *of)))
            frozen = Frozen(bench.checkpoint.export, bench.settings, bench.device, bench.output / STATES, name)
            found[part] = self.task.kind.embed(examples, samples, frozen)
        return found

    def run(self, point: Hyperparameters) -> None:
        """Learn at a point and write down what comes of it; that it diverged is a result too."""
        began = time.perf_counter()
        model, result, files = self._learn(point)
        result = {
            **result,
            "seconds": time.perf_counter() - began,
            "device": str(self._bench.device),
            "max_tokens": self._bench.settings.max_tokens,
            "code": self._bench.code,
            "test_blake2b": self._blake2b.tests,
        }
        self.disk.write(point, result, files)
        if self._bench.saves_models and not result["error"]:
            self._save_if_best(model, point, result)

    def _save_if_best(self, model: nn.Module, point: Hyperparameters, result: Mapping[str, Any]) -> None:
        """Keep the model of a finished point if none so far is better; where that fails, complete comes to it."""
        try:
            with locked(lock_of(self._model)):
                finished = [found for other in self.points if (found := self.disk.read(other)) is not None]
                if best_of(finished, self.task.best)["point"] == dataclasses.asdict(point):
                    self._save(model, point, result)
        except (OSError, UnavailableError) as error:  # the second of another point, which this one is compared with
            _log.warning("%s: the model can't be written (%s); it will be tried again", self.task.name, error)

    def _learn(self, point: Hyperparameters) -> tuple[nn.Module, dict[str, Any], dict[str, str]]:
        """The model of a point, what it is worth, and its files; of one that diverged the figures are none."""
        task, bench = self.task, self._bench
        model = task.kind.build(bench.checkpoint.export, derive_seed(point.seed, "head")).to(bench.device)
        where = f"{task.name} {self.disk.path(point).name}"
        epochs: list[dict[str, Any]] = []
        losses: list[float] = []
        outcomes: dict[str, Outcome] = {}

        def each_minute(step: int, steps: int, loss: float) -> None:
            to_go = tqdm.format_interval((time.monotonic() - began) / step * (steps - step))
            _log.info("%s: step %s of %s: loss %.4f, %s to go", where, f"{step:,}", f"{steps:,}", loss, to_go)

        def after_epoch(epoch: int, of_epoch: list[float]) -> None:
            losses.extend(of_epoch)
            outcomes.update(self._judge(model, task.dev_splits, task.kind))
            metrics = _by_part(outcomes)
            epochs.append({"epoch": epoch, "loss": float(np.mean(of_epoch)), "metrics": metrics})
            _log.info(
                "%s: epoch %d of %d: loss %.4f, %s %.2f",
                *(where, epoch, point.epochs, epochs[-1]["loss"], task.best, metrics["dev"][task.best]),
            )

        error = None
        try:
            samples, began = self._samples["train"], time.monotonic()
            learn(model, samples, task.kind.collate, point, bench.settings, bench.device, after_epoch, each_minute)
            outcomes.update(self._judge(model, self._tests, task.kind.tuned(outcomes["dev"])))
        except DivergedError as diverged:
            error = str(diverged)
            outcomes.clear()
        result = {
            "metrics": _by_part(outcomes),
            "details": {part: outcome.details for part, outcome in outcomes.items() if outcome.details},
            "epochs": epochs,
            "steps": len(losses),
            "error": error,
        }
        files = {f"{part}_{name}": text for part, outcome in outcomes.items() for name, text in outcome.files.items()}
        return model, result, {LOSSES: json.dumps(losses) + "\n", **files}

    def _judge(self, model: nn.Module, parts: Iterable[str], kind: Kind) -> dict[str, Outcome]:
        bench = self._bench
        return {
            part: kind.conclude(
                self._parts[part],
                self._samples[part],
                predict(model, self._samples[part], kind.collate, bench.settings, bench.device),
            )
            for part in parts
        }

    def collect(self) -> Result:
        """What the finished points say.

        Raises:
            UsageError: a point is missing, or all diverged.
        """
        about: dict[str, Any] = {
            "data_blake2b": self._blake2b.learned,
            "max_length": self._encoder.max_length,
            "kind": repr(self.task.kind),
        }
        if self._tests:
            about["test_blake2b"] = self._blake2b.tests
        return conclude(self.task, self._parts, self._results(), about)

    def _results(self) -> list[dict[str, Any]]:
        """Of all points, without figures of test sets that are not these.

        Raises:
            UsageError: one is missing.
        """
        found = [(point, self.disk.read(point)) for point in self.points]
        if lacking := [point for point, result in found if result is None]:
            if failures := [why for point in lacking if (why := self.disk.failure(point))]:
                raise UsageError(failures[0])
            raise UsageError(f"{len(lacking)} of {len(found)} grid points are missing; run the same command again")
        return [{**result, **self._of_these(result)} for _, result in found if result]

    def _best(self) -> tuple[Hyperparameters, dict[str, Any]]:
        """The best point, and what it found.

        Raises:
            UsageError: a point is missing, or all diverged.
        """
        result = best_of(self._results(), self.task.best)
        return Hyperparameters(**result["point"]), result

    def _of_these(self, result: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Metrics and details of a point's result, by part, of the parts that there are."""
        others = self.task.test_splits if not self._is_tested(result) else ()
        return {
            name: {part: found for part, found in result[name].items() if part not in others}
            for name in ("metrics", "details")
        }

    def _is_tested(self, result: Mapping[str, Any]) -> bool:
        """Whether a point has predicted these test sets."""
        return bool(self._tests) and result.get("test_blake2b") == self._blake2b.tests

    def _save(self, model: nn.Module, point: Hyperparameters, result: Mapping[str, Any]) -> None:
        """Keep a model; who does holds its lock."""
        origin, checkpoint = self._origin_of_model(point), self._bench.checkpoint
        save_model(self._model, model, self.task.kind, checkpoint, origin, result["metrics"], self._bench.code)

    def _origin_of_model(self, point: Hyperparameters) -> dict[str, Any]:
        return {**self._origin, "point": dataclasses.asdict(point)}

    @property
    def lacks(self) -> list[str]:
        """What of the best point was asked for and is not there, in words.

        Raises:
            UsageError: a point is missing, or all diverged.
            UnavailableError: what is there can't be read now.
        """
        point, best = self._best()
        lacks = ["test predictions"] if self._tests and not self._is_tested(best) else []
        lacks_model = self._bench.saves_models and origin_of(self._model) != self._origin_of_model(point)
        return lacks + (["model"] if lacks_model else [])

    @property
    def has_another_model(self) -> bool:
        """Whether a model is there that is not the best point's.

        Raises:
            UsageError: a point is missing, or all diverged.
            UnavailableError: it can't be read now.
        """
        point, _ = self._best()
        return origin_of(self._model) not in (None, self._origin_of_model(point))

    def complete(self) -> None:
        """Learn the best point again for what it lacks, as when points were finished without what is asked for now.

        Raises:
            UsageError: a point is missing, or all diverged, or now the best one has.
            UnavailableError: what is there can't be read now.
            OSError: what was lacking can't be written.
        """
        point, known = self._best()
        with locked(self.disk.lock(point)):
            lacks = self.lacks
            if not lacks:  # any more: another process has been here
                return
            _log.info("%s: learning the best point again for its %s", self.task.name, " and ".join(lacks))
            model, result, files = self._learn(point)
            if result["error"]:
                raise UsageError(f"the best point, learned again, diverged ({result['error']})")
            if "test predictions" in lacks:
                self._add_tests(point, known, result, files)
            if "model" in lacks:
                with locked(lock_of(self._model)):
                    self._save(model, point, result)
        if any(result["metrics"][part] != figures for part, figures in known["metrics"].items()):
            _log.warning(
                "%s: the best point was learned again for its %s, and its figures are not those of the point: %s "
                "instead of %s; another device, or other --threads and --max-tokens, compute other last digits",
                self.task.name, " and ".join(lacks), result["metrics"], known["metrics"],
            )  # fmt: skip

    def _add_tests(
        self, point: Hyperparameters, known: Mapping[str, Any], again: Mapping[str, Any], files: Mapping[str, str]
    ) -> None:
        """Add what a point makes of the test sets, learned again, to what is known of it; who does holds its lock."""
        added = {
            name: known[name] | {part: found for part, found in again[name].items() if part in self._tests}
            for name in ("metrics", "details")
        }
        tests = self._names(self.task.test_splits)
        kept = [path for path in self.disk.beside(point) if path.name not in tests]
        of_tests = {name: text for name, text in files.items() if name in tests}
        self.disk.write(point, {**known, **added, "test_blake2b": self._blake2b.tests}, of_tests, kept)

    def _names(self, parts: Iterable[str]) -> set[str]:
        """Of all files that there may be with predictions of some parts."""
        return {f"{part}_{name}" for part in parts for name in self.task.kind.files}

    @property
    def _judged(self) -> set[str]:
        """Names of all files that there may be with predictions."""
        return self._names({**self.task.dev_splits, **self.task.test_splits})

    def publish(self) -> None:
        """Copy the best point's predictions beside the results, in the place of another one's.

        Those of test sets too, unless others are asked for. What else lies there is not ours, and stays.

        Raises:
            UsageError: a point is missing, or all diverged.
            OSError: they can't be written.
        """
        point, best = self._best()
        others = self._names(self.task.test_splits) if self._tests and not self._is_tested(best) else set()
        wanted = self._judged - others
        found = {path.name: path for path in self.disk.beside(point) if path.name in wanted}
        make_folder(self._predicted, parents=True)
        for name in self._judged - found.keys():
            (self._predicted / name).unlink(missing_ok=True)
        for name, path in found.items():
            write_atomically(self._predicted / name, path.read_bytes())


def _by_part(outcomes: Mapping[str, Outcome]) -> dict[str, dict[str, float]]:
    return {part: outcome.metrics for part, outcome in outcomes.items() if outcome.metrics}
