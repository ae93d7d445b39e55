"""Evaluations as runs of MLflow, children of the training run that they evaluate.

An SQLite store has one writer. While a run trains, that is the thread of its first rank, maybe on another host: an
evaluation leaves what it has to say in the run directory, RUN/mlflow.pending/, and that thread carries it over, or
``python -m trainer.tracking sync RUN`` later. The same happens where a server is away. Else it is written at once.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import pydantic
from mlflow.entities import Metric, Run
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from preprocessing.status import is_dir, is_file, make_folder
from trainer.files import write_atomically
from trainer.run_directory import RunDirectory
from trainer.tracking.store import (
    Cursor,
    LostRunError,
    Whole,
    check_store,
    database_of,
    default_tracking_uri,
    experiment_id,
    first_line,
    is_lost,
    is_refusal,
    one_writer,
    read_cursor,
    tell_of_another_store,
)

_IDENTITY = "evaluation"  # the tag by which one that was carried over, maybe in part, is found again
_WHOLE = "FINISHED"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Store:
    """Where an evaluation goes.

    Attributes:
        tracking_uri: of the store.
        experiment: its name.
        parent: id of the training run there; None where there is none, or none yet.
        pending: the folder where it may wait for the training's own writer; None where there is no training.
        at_once: whether it is written there and then, and waits only where that fails.
    """

    tracking_uri: str
    experiment: str
    parent: str | None
    pending: Path | None = None
    at_once: bool = True


_Figure = Annotated[int, pydantic.Field(gt=-(1 << 53), lt=1 << 53)] | float  # a whole one stays whole: see identity


class _Tags(pydantic.BaseModel):
    step: Whole = 0


@dataclass(frozen=True)
class _Evaluation:
    name: str
    metrics: dict[str, _Figure]
    tags: dict[str, str]
    files: list[str]
    milliseconds: Whole  # since 1970

    @property
    def step(self) -> int:
        """Of the weights; 0 where nobody knows it.

        Raises:
            pydantic.ValidationError: it is none.
        """
        return _Tags.model_validate(self.tags).step

    @property
    def identity(self) -> str:
        """The same of a repeat, whenever that was and wherever its files lie."""
        told = [self.name, self.metrics, self.tags]
        return hashlib.blake2b(json.dumps(told).encode(), digest_size=8).hexdigest()


_EVALUATION = pydantic.TypeAdapter(_Evaluation)


def evaluation_store(runs: Iterable[Path], output: Path) -> Store:
    """The store of the first training run that is tracked, or one of its own beside the output of an evaluation.

    Args:
        runs: directories that may hold the run.
        output: of the evaluation.
    """
    for run in runs:
        store = _store_of(RunDirectory(run))
        if store is not None:
            return store
    return Store(default_tracking_uri(output), "bert-pretraining", None)


def _store_of(run: RunDirectory) -> Store | None:
    """Where a training run is tracked; None where it is not, its store has lost it, or check_store refuses that."""
    if not is_file(run.tracking):
        return None
    try:
        cursor = read_cursor(run)
    except ValueError as error:
        _log.warning("%s is damaged: %s", run.tracking, first_line(error))
        return None
    try:
        check_store(run, cursor)
    except LostRunError as error:
        _log.warning("%s; its evaluations get runs of their own", error)
        return None
    tell_of_another_store(run, cursor)
    store = Store(cursor.tracking_uri, cursor.experiment, cursor.run_id or None, run.pending_evaluations)
    pending = replace(store, at_once=False)
    database = database_of(cursor.tracking_uri)
    if not cursor.run_id:
        return pending
    if database is not None and not is_file(database):
        return None  # MLflow would make a new one
    if database is not None and run.outcome is None:
        return pending
    try:
        if not is_lost(cursor.tracking_uri, cursor.run_id):
            return store
    except Exception as error:  # MLflow raises its own, its database's and its HTTP client's
        _log.warning("the training run is not reached in MLflow: %s", first_line(error))
        return pending
    _log.warning("MLflow has lost the training run %s: its evaluations get runs of their own", cursor.run_id)
    return None


def log_evaluation(
    store: Store, name: str, metrics: dict[str, float], tags: dict[str, str], files: Sequence[Path]
) -> str | None:
    """Record an evaluation as a run, a child of the training run where there is one; a repeat adds nothing.

    Args:
        store: where.
        name: of the new run.
        metrics: name -> value.
        tags: where the numbers come from: step, hashes, versions. A repeat is told by name, metrics and tags.
        files: results to keep as artifacts, beside the first one or in folders there; a folder is kept whole.

    Returns:
        The id of the new run; None where it waits.
    """
    absolute = [str(file.resolve()) for file in files]
    evaluation = _Evaluation(name, dict(metrics), dict(tags), absolute, int(time.time() * 1000))
    if store.at_once:
        try:
            with one_writer(store.tracking_uri, Path(absolute[0]).parent):
                return _carry_over(store, evaluation)
        except (OSError, MlflowException) as error:  # an HTTP client's are OSErrors
            if store.pending is None or (isinstance(error, MlflowException) and is_refusal(error)):
                raise
            _log.warning("MLflow: %s; the evaluation waits", first_line(error))
    assert store.pending is not None
    make_folder(store.pending)
    text = json.dumps(asdict(evaluation), indent=2) + "\n"
    write_atomically(store.pending / f"{evaluation.milliseconds}-{evaluation.identity}.json", text)
    return None


class WaitingError(RuntimeError):
    """An evaluation can't be carried over for now, such as for a file that may not be read. The message names it.

    Attributes:
        run_id: of the training run, of which everything else is carried over.
    """

    def __init__(self, message: str, run_id: str):
        super().__init__(message)
        self.run_id = run_id


def carry_over_pending(run: RunDirectory, cursor: Cursor) -> None:
    """Write the evaluations that wait for the writer of a training run; each becomes one run, whatever came between.

    One that can't be carried over is put aside, so that the others are, and that it is told once.

    Raises:
        WaitingError: one goes on waiting; those after it do not. Or nobody can see now which wait.
    """
    store = Store(cursor.tracking_uri, cursor.experiment, cursor.run_id)
    problem = ""
    for path in _pending(run, cursor):
        try:
            _carry_over_or_put_aside(store, path)
        except OSError as error:  # no permission for a file, or no room
            problem = problem or f"{path} waits: {first_line(error)}"
    if problem:
        raise WaitingError(problem, cursor.run_id)


def _pending(run: RunDirectory, cursor: Cursor) -> list[Path]:
    try:
        return run.waiting_evaluations
    except OSError as error:
        told = f"{run.pending_evaluations}: can't be looked through for evaluations that wait ({error.strerror})"
        raise WaitingError(told, cursor.run_id) from error


def _carry_over_or_put_aside(store: Store, path: Path) -> None:
    try:
        _carry_over(store, _EVALUATION.validate_json(path.read_bytes(), strict=True))
    except OSError:  # some of an HTTP client's are ValueErrors too
        raise
    except (ValueError, MlflowException) as error:  # its content, or files that do not lie together
        if isinstance(error, MlflowException) and not is_refusal(error):
            raise
        aside = path.with_suffix(".refused")
        path.rename(aside)
        _log.warning("%s is not carried over: %s; mend it and name it %s", aside, first_line(error), path.name)
    else:
        path.unlink()


def _carry_over(store: Store, evaluation: _Evaluation) -> str:
    """Write a run, or the rest of one that was begun; one that is there whole stays as it is."""
    step, files = evaluation.step, [Path(file) for file in evaluation.files]
    folders = {file: str(file.relative_to(files[0].parent)) for file in files if is_dir(file)}
    client = MlflowClient(store.tracking_uri)
    experiment = experiment_id(client, store.experiment, store.tracking_uri)
    same = f"tags.{_IDENTITY} = '{evaluation.identity}'"
    if store.parent:  # and not a child of one that was deleted
        same += f" and tags.`mlflow.parentRunId` = '{store.parent}'"
    begun = sorted(client.search_runs([experiment], same), key=lambda run: run.info.status != _WHOLE)
    for twin in begun[1:]:  # that a server made late, of a request that was given up and made again
        if twin.info.status != _WHOLE:
            client.delete_run(twin.info.run_id)
    run = begun[0] if begun else _create(client, experiment, store.parent, evaluation)
    run_id = str(run.info.run_id)
    if run.info.status == _WHOLE:
        return run_id
    time_ = run.info.start_time
    # A value that is there already is not added again.
    client.log_batch(run_id, metrics=[Metric(key, value, time_, step) for key, value in evaluation.metrics.items()])
    for file in files:
        if file in folders:
            client.log_artifacts(run_id, str(file), folders[file])
        elif is_file(file):
            client.log_artifact(run_id, str(file))
        else:
            _log.warning("%s is gone, so MLflow does not get it", file)
    client.set_terminated(run_id, _WHOLE)
    return run_id


def _create(client: MlflowClient, experiment: str, parent: str | None, evaluation: _Evaluation) -> Run:
    tags = evaluation.tags | {_IDENTITY: evaluation.identity} | ({"mlflow.parentRunId": parent} if parent else {})
    return client.create_run(experiment, start_time=evaluation.milliseconds, run_name=evaluation.name, tags=tags)
