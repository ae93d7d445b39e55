"""What runs have logged: the figures of their steps and validations."""

from __future__ import annotations

import contextlib
import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import index
from pathlib import Path

import numpy as np

from eval.errors import UsageError
from eval.evaluated import learns_next_sentence, predicts_next_words, sequence_length, settings_of
from eval.storage import reading
from preprocessing.status import exists, resolved
from trainer.files import DamagedFileError, read_lines
from trainer.metrics import directories, of_directory
from trainer.naming import tell_apart
from trainer.run_directory import RunDirectory

_OF_A_STEP = ("step", "samples", "learning_rate", "tokens_per_second", "data_seconds", "compute_seconds")
_OF_PREDICTIONS = ("mlm_loss", "mlm_accuracy", "nsp_accuracy")  # which a step whose samples are all skipped lacks
_OF_A_VALIDATION = ("step", "mlm_loss", "perplexity", "mlm_accuracy", "nsp_accuracy")
_OF_A_DIRECTORY = ("mlm_loss", "perplexity")


@dataclass(frozen=True)
class History:
    """What a run has logged.

    Attributes:
        name: of the run, see trainer.naming.tell_apart.
        run: its directory.
        training: name of a figure -> its values at all steps, [steps] float64; NaN of losses and accuracies where all
            samples of a step were skipped.
        validation: the same of all validations, [validations]; there may be none. Figures of a single shard directory
            are named ``perplexity/wiki``, NaN where a validation has none of that.
        next_sentence: whether it learns to judge next sentences. One that does not has an accuracy all the same, of
            weights that nothing trains.
        next_words: whether its losses and accuracies are of next words, and none is masked.
        held_out_length: tokens of a sample of its last validation; None where nothing tells.
    """

    name: str
    run: RunDirectory
    training: Mapping[str, np.ndarray]
    validation: Mapping[str, np.ndarray]
    next_sentence: bool
    next_words: bool
    held_out_length: int | None

    @property
    def directories(self) -> list[str]:
        """The shard directories of which validations have figures of their own."""
        return directories(_OF_A_DIRECTORY[0], self.validation)


def read_histories(paths: Sequence[Path]) -> tuple[list[History], list[Path]]:
    """Read the metrics of run directories, among which may be what else lies in a folder of runs.

    Returns:
        The runs that have begun to train, at least one; and the other paths.

    Raises:
        UsageError: there is no such run, nothing at one of the paths, or a run has a line in its metrics that isn't
            one or lacks a figure.
        UnavailableError: a file of a run can't be read now.
    """
    given: dict[Path, Path] = {}
    for path in paths:
        given.setdefault(resolved(path), path)  # a link to a run is that run
    names = tell_apart(given)
    read = {path: _read_history(path, names[place]) for place, path in given.items()}
    found = [history for history in read.values() if history is not None]
    if not found:
        within = f", such as those of {paths[0]}/*" if any(paths[0].glob("*/config.toml")) else ""
        raise UsageError(f"{paths[0]}: no steps; give a run directory whose training has begun{within}")
    return found, [path for path, history in read.items() if history is None]


def _read_history(path: Path, name: str) -> History | None:
    run = RunDirectory(path)
    if not exists(path):
        raise UsageError(f"{path}: no such directory; give that of a run")
    with reading(run.metrics):
        training = _read_figures(run.metrics, _OF_A_STEP, _OF_PREDICTIONS)
    with reading(run.validation_metrics):
        of_directories = _figures_of_directories(run.validation_metrics)
        validation = _read_figures(run.validation_metrics, _OF_A_VALIDATION, of_directories)
    if not len(training["step"]):
        return None
    settings = settings_of(path)
    validated = validation["step"][-1:]
    return History(
        name, run, training, validation, learns_next_sentence(settings), predicts_next_words(settings),
        sequence_length(settings, int(validated[0])) if len(validated) else None,
    )  # fmt: skip


def _figures_of_directories(file: Path) -> list[str]:
    with contextlib.suppress(DamagedFileError, AttributeError, TypeError):  # of which _read_figures tells
        found = dict.fromkeys(name for line in read_lines(file) for name in directories(_OF_A_DIRECTORY[0], line))
        return [of_directory(figure, name) for name in found for figure in _OF_A_DIRECTORY]
    return []


def _read_figures(file: Path, names: Sequence[str], others: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """Figures that all lines of a file of metrics have, and others, NaN where one lacks them: name -> [lines] float64.

    Of a line nothing else is kept.
    """
    columns = {name: array("d") for name in (*names, *others)}
    try:
        for line in read_lines(file):
            name = "step"
            index(line[name])  # and not NaN, which Python's JSON has
            for name in names:
                columns[name].append(line[name])
            for name in others:
                columns[name].append(line.get(name, math.nan))
    except DamagedFileError as error:
        raise UsageError(str(error)) from error
    except (KeyError, TypeError, OverflowError) as error:
        raise UsageError(f"{file}: a line is without a figure {name!r}; mend it, or delete the line") from error
    return {name: np.array(column) for name, column in columns.items()}


def predicting(figures: Mapping[str, np.ndarray], metric: str) -> tuple[np.ndarray, np.ndarray]:
    """The steps of a training, or of its validations, that have a metric, and its values there, [n] each."""
    has = ~np.isnan(figures[metric])
    return figures["step"][has], figures[metric][has]
