"""The evaluations that lie in run directories, and the figures in them."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from eval.errors import UsageError
from eval.results import NEXT_WORDS, RESULTS, by_command, is_learned, read_results
from eval.storage import reading
from preprocessing.schema import checksum
from preprocessing.status import entries, exists, is_dir, is_file, resolved
from trainer.hugging_face import weights_file
from trainer.naming import tell_apart
from trainer.run_directory import RunDirectory
from trainer.settings import by_key

EVALUATIONS = "evaluations"  # the folder of a run directory where eval.watch leaves them
_LOWER_IS_BETTER = ("loss", "perplexity")


class Place(NamedTuple):
    """Where data lay that something was measured on."""

    directory: Path
    length: int | None  # of the samples, which data sets don't say
    blake2b: str  # of what lay there at the time


@dataclass(frozen=True)
class Evaluated:
    """What one command has in a results.json.

    Attributes:
        file: it.
        results: its content, see eval.results, without what other commands have in it.
        directory: of the training run, see run_directory.
        run: what the training run is called, see trainer.naming.tell_apart; the export's folder where another program
            wrote it.
        settings: of the training run, see settings_of.
        written: when, in nanoseconds.
    """

    file: Path
    results: dict[str, Any]
    directory: Path
    run: str
    settings: Mapping[str, Any]
    written: int

    @property
    def weights_blake2b(self) -> str:
        """The checksum of the weights that were evaluated."""
        return str(self.results["checkpoint"]["weights_blake2b"])

    @property
    def export(self) -> Path:
        """Where the export lies, as its run may have been moved; where it lay if it is gone.

        Raises:
            UsageError: this user may not look there.
            UnavailableError: what is there can't be told now.
        """
        lay = Path(self.results["checkpoint"]["path"])
        moved = RunDirectory(self.directory).exports / lay.name
        with reading(moved):
            return moved if is_dir(moved) else lay

    @property
    def step(self) -> int | None:
        """Of the training; None for an export that another program wrote."""
        step: int | None = self.results["checkpoint"]["lineage"].get("step")
        return step

    def limit(self, task: str) -> int | None:
        """Examples of each data set that a task took at most; None for whole data sets, and where it read none."""
        learned = is_learned(self.results["tasks"][task]["details"])
        return (self.results.get("data") or {}).get("limit") if learned else None

    def samples(self, task: str) -> int:
        """Held-out samples that a task was measured on; 0 where it read none."""
        return self.results["tasks"][task]["details"].get("samples") or 0

    def data(self, task: str) -> str:
        """What tells the data that a task was measured on from others; empty where it read none."""
        details, shards = self.results["tasks"][task]["details"], self.results["shards"]
        if is_learned(details):
            return str(details.get("data_blake2b", ""))
        if not (shards and self.samples(task)):
            return ""
        return f"{details.get('instead', task)} of {shards['manifest_blake2b']} at {shards['sequence_length']}"

    def place(self, task: str) -> Place:
        """Where the data lay that a task was measured on."""
        shards, data = self.results["shards"], self.results.get("data") or {}
        if shards and self.samples(task):
            return Place(Path(shards["path"]), shards["sequence_length"], shards["manifest_blake2b"])
        details = self.results["tasks"][task]["details"]
        return Place(Path(data.get("path", "")), None, str(details.get("data_blake2b", "")))

    def figure(self, task: str, metric: str) -> float | None:
        """A figure; None where it was not measured."""
        measured = self.results["tasks"].get(task, {}).get("metrics", {}).get(metric)
        return None if measured is None else float(measured["value"])


def find_results(folders: Iterable[Path]) -> Iterator[Path]:
    """Every results.json in some folders, one folder below each, or among a run's evaluations; each once.

    Raises:
        UnavailableError: a folder can't be read now.
    """
    found = (
        resolved(folder / RESULTS)
        for given in folders
        for folder in (given, *_entries(given), *_entries(given / EVALUATIONS))
        if _has_results(folder)
    )
    return iter(dict.fromkeys(found))


def _entries(folder: Path) -> list[Path]:
    """What is in a folder; nothing where there is none, or none for this user."""
    with reading(folder), suppress(PermissionError):
        return entries(folder)
    return []


def _has_results(folder: Path) -> bool:
    with reading(folder), suppress(PermissionError):
        return exists(folder / RESULTS)
    return False


def read_evaluations(files: Iterable[Path], others: Iterable[Path] = ()) -> list[Evaluated]:
    """Read results, sorted by run and step.

    Args:
        files: each a results.json.
        others: directories of runs, as resolved, from which those of the results are to be told too.

    Raises:
        UsageError: one is damaged or of another version, or the recipe of its run is damaged.
        UnavailableError: one of these can't be read now.
    """
    found = {file: read_results(file) for file in files}
    runs = {file: run_directory(results["checkpoint"], file) for file, results in found.items()}
    settings = {run: settings_of(run) for run in set(runs.values())}
    names = tell_apart([*others, *runs.values()])
    evaluations = [
        Evaluated(file, _as_trained(of_command, settings[run]), run, names[run], settings[run], file.stat().st_mtime_ns)
        for (file, results), run in zip(found.items(), runs.values(), strict=True)
        for of_command in by_command(results)
    ]
    return sorted(evaluations, key=lambda evaluated: (evaluated.run, evaluated.step or 0, str(evaluated.file)))


def _as_trained(results: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Results without what the model never learned, and with what it learned instead, which older ones don't say."""
    tasks = dict(results["tasks"])
    if "mlm" in tasks and predicts_next_words(settings):
        tasks["mlm"] = {**tasks["mlm"], "details": {**tasks["mlm"]["details"], "instead": NEXT_WORDS}}
    if "nsp" in tasks and (tasks["nsp"]["details"].get("instead") or not learns_next_sentence(settings)):
        del tasks["nsp"]
    return {**results, "tasks": tasks}


def run_directory(checkpoint: Mapping[str, Any], file: Path) -> Path:
    """The run that a results.json is of, wherever it lies now, resolved; the export where another program wrote it.

    It is the run among whose evaluations the results lie, or in which the export does: another one may have been begun
    under its old name, which is what the export's lineage has. Where that one is gone, it is the run that the results
    lie in elsewhere.
    """
    export, trained_in, file = Path(checkpoint["path"]), checkpoint["lineage"].get("run"), resolved(file)
    if trained_in and file.parent.parent.name == EVALUATIONS and is_file(RunDirectory(file.parents[2]).config):
        return file.parents[2]
    around = RunDirectory(export.parent.parent)
    if export.parent == around.exports and is_file(around.config):
        return resolved(around.path)
    if trained_in and not is_dir(trained_in):
        moved = (folder for folder in (file.parent, file.parent.parent) if is_file(RunDirectory(folder).config))
        return next(moved, resolved(trained_in))
    return resolved(trained_in or export)


def of_present_weights(evaluations: Sequence[Evaluated]) -> tuple[list[Evaluated], list[Evaluated]]:
    """The evaluations of the weights that each step of a run has, and those of others, before it was trained anew.

    Of several weights those of the export count; where it is gone, or has still others, those evaluated last.

    Raises:
        UsageError: an export's weights are not for this user to read.
        UnavailableError: they can't be read now.
    """
    by_step: dict[tuple[str, int | None], list[Evaluated]] = {}
    for evaluated in evaluations:
        by_step.setdefault((evaluated.run, evaluated.step), []).append(evaluated)
    present = {step: _present_weights(group) for step, group in by_step.items()}
    are_present = [(e, e.weights_blake2b == present[e.run, e.step]) for e in evaluations]
    return [e for e, is_present in are_present if is_present], [e for e, is_present in are_present if not is_present]


def _present_weights(group: Sequence[Evaluated]) -> str:
    """Those of one step."""
    last = max(group, key=lambda evaluated: (evaluated.written, str(evaluated.file)))
    evaluated = {e.weights_blake2b for e in group}
    with reading(last.export):
        weights = weights_file(last.export)
        if len(evaluated) > 1 and is_file(weights) and (found := checksum(weights)) in evaluated:
            return found
    return last.weights_blake2b


def on_each_data(evaluations: Iterable[Evaluated]) -> Iterator[dict[str, Evaluated]]:
    """Task -> the evaluation whose figures count; and then, of tasks measured on other data too, that on each of these.

    Of those of one export, that without a limit counts, or that of the highest, over the most samples, the newest.
    """
    by_task = _ranked(evaluations)
    for i in range(max(map(len, by_task.values()), default=1)):
        yield {task: ranked[i] for task, ranked in by_task.items() if i < len(ranked)}


def _ranked(evaluations: Iterable[Evaluated]) -> dict[str, list[Evaluated]]:
    """Task -> of all data that it was measured on the evaluation whose figures count, as on_each_data has them."""
    by_task: dict[str, list[Evaluated]] = {}
    for evaluated in evaluations:
        for task in evaluated.results["tasks"]:
            by_task.setdefault(task, []).append(evaluated)
    for task, group in by_task.items():
        group.sort(key=lambda e: (e.limit(task) or math.inf, e.samples(task), e.written, str(e.file)))
        by_task[task] = list({e.data(task): e for e in group}.values())  # of each data the last one
        by_task[task].sort(key=group.index, reverse=True)
    return by_task


def best_evaluation(evaluations: Sequence[Evaluated], task: str, metric: str) -> tuple[Evaluated, list[Path]]:
    """The evaluation with the best figure, the earliest of several; a loss or perplexity is best when it is low.

    Figures of a trial don't count: with --limit, or over fewer samples than another evaluation of the task has.

    Returns:
        It; and the exports that have the figure of trials alone, so that nothing tells whether they are better.

    Raises:
        UsageError: none has that figure, or only trials have, or some have it on other data, which makes none better.
    """
    figures = [(figure, e) for e in evaluations if (figure := e.figure(task, metric)) is not None]
    if not figures:
        measured = sorted(
            {f"{name}.{m}" for e in evaluations for name, t in e.results["tasks"].items() for m in t["metrics"]}
        )
        raise UsageError(f"no evaluation has {task}.{metric}; there are {', '.join(measured) or 'no figures'}")
    whole = [(figure, e) for figure, e in figures if e.limit(task) is None]
    if not whole:
        raise UsageError(f"{task}.{metric} was only tried out, with --limit; evaluate {task} without it")
    by_data = {e.data(task): e.file for _, e in whole}
    if len(by_data) > 1:
        first, second, *_ = by_data.values()
        raise UsageError(
            f"{task}.{metric}: measured on different data in {first} and {second}, which says nothing about which is "
            "better; evaluate all exports on one, or move the others' results away"
        )
    most = max(e.samples(task) for _, e in whole)
    counting = [(figure, e) for figure, e in whole if e.samples(task) == most]
    compared = {e.export for _, e in counting}
    tried = dict.fromkeys(e.export for _, e in figures if e.export not in compared)
    sign = -1 if metric in _LOWER_IS_BETTER else 1
    return max(counting, key=lambda pair: sign * pair[0])[1], list(tried)


def learns_next_sentence(settings: Mapping[str, Any]) -> bool:
    """Whether a run with these settings learns to judge next sentences; one whose recipe is out of reach does."""
    return settings.get("train.next_sentence", True) is not False


def predicts_next_words(settings: Mapping[str, Any]) -> bool:
    """Whether a run with these settings reads from left to right: its losses are of next words, not of masked ones."""
    return bool(settings.get("model.is_decoder"))


def sequence_length(settings: Mapping[str, Any], step: int) -> int | None:
    """Tokens of a sample of the phase that a step ends in; None where the recipe is out of reach."""
    end, i = 0, 0
    while isinstance(steps := settings.get(f"phases.{i}.steps"), int):
        end += steps
        if step <= end:
            return settings.get(f"phases.{i}.sequence_length")
        i += 1
    return None


def settings_of(run: Path) -> dict[str, Any]:
    """What the recipe of a run says, such as train.seed or phases.0.steps -> value; empty where it is out of reach.

    Raises:
        UsageError: it is not TOML, or not for this user to read.
        UnavailableError: it can't be read now.
    """
    config = RunDirectory(run).config
    with reading(config):
        if not is_file(config):
            return {}
        content = config.read_bytes()
    try:
        return by_key(tomllib.loads(content.decode()))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{config}: not TOML ({error}); mend it, or move it away to do without it") from error
