"""A training run in MLflow: metrics.jsonl line by line, parameters and lineage once."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import re
import tomllib
import uuid
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from preprocessing.schema import checksum_of
from preprocessing.status import exists
from trainer.credentials import without_credentials
from trainer.leases import is_held
from trainer.metrics_log import lines_after
from trainer.run_directory import RunDirectory
from trainer.settings import by_key
from trainer.tracking.evaluations import carry_over_pending
from trainer.tracking.store import (
    Cursor,
    LostRunError,
    Whole,
    check_store,
    chosen_tracking_uri,
    default_tracking_uri,
    experiment_id,
    first_line,
    is_lost,
    is_refusal,
    one_writer,
    place_of,
    read_cursor,
    tell_of_another_store,
    write_cursor,
)

_LINES = 50  # of a file of metrics that are sent at once: how far MLflow has got is noted after each
_LONGEST_DIRECTORY = 150  # characters of a shard directory in a metric's name, which may have 250 in MLflow
_LONGEST_VALUE = 6000  # characters that a parameter may have in MLflow
_KEY = "run_key"

Status = Literal["RUNNING", "FINISHED", "FAILED"]

_log = logging.getLogger(__name__)


class RefusedError(RuntimeError):
    """MLflow does not take what a file of the run has. The message names it; trying again is in vain."""


def sync(run: RunDirectory, status: Status | None = None) -> str:
    """Carry over to MLflow what it does not have yet: the steps, and evaluations that wait.

    Args:
        run: the run directory.
        status: of the MLflow run from now on: "RUNNING" opens it again, the others close it; None leaves it as it is.

    Returns:
        The id of the MLflow run.

    Raises:
        LostRunError: the run was deleted there, or the file that names it is damaged or not from here. Trying again is
            in vain.
        RefusedError: the store is there, and does not take a line of metrics.
        WaitingError: an evaluation goes on waiting; everything else is there.
    """
    with one_writer(_destination(run).tracking_uri, run.path):
        try:
            cursor = _open(run)
            client = MlflowClient(cursor.tracking_uri)
            if status == "RUNNING":
                client.update_run(cursor.run_id, status)
            _carry_over_steps(run, cursor, client)
            if status in ("FINISHED", "FAILED"):
                _close(run, cursor, client, status)
            carry_over_pending(run, cursor)  # last: whatever is in the way of one, the training is there
        except (MlflowException, RefusedError) as error:
            _raise_if_lost(run, error)
            raise
    return cursor.run_id


def _raise_if_lost(run: RunDirectory, error: Exception) -> None:
    """Tell an error that will come again, for the run is gone, from a store that is away."""
    cursor = read_cursor(run)
    if cursor.run_id and is_lost(cursor.tracking_uri, cursor.run_id):
        raise LostRunError(
            f"{without_credentials(cursor.tracking_uri)}: run {cursor.run_id} was deleted there; delete "
            f"{run.tracking} to have everything carried over to a new one"
        ) from error


def status_of(run: RunDirectory) -> Status:
    """How MLflow says that a training is; it crashed where it left no outcome and no trainer holds its directory."""
    if run.ending is None:
        return "RUNNING" if is_held(run) else "FAILED"
    return "FAILED" if run.ending == "failed" else "FINISHED"


def _carry_over_steps(run: RunDirectory, cursor: Cursor, client: MlflowClient) -> None:
    every = _settings(run)["tracking"].get("every", 1)  # a run from before there was the setting has none
    for path, prefix, every_nth in ((run.metrics, "", every), (run.validation_metrics, "validation_", 1)):
        for lines, last in _chunks(path, cursor.steps.get(path.name, 0), every_nth):
            if lines:
                _log_lines(path, lines, prefix, cursor, client)
            cursor.steps[path.name] = last
            write_cursor(run, cursor)


def _log_lines(path: Path, lines: Sequence[_Line], prefix: str, cursor: Cursor, client: MlflowClient) -> None:
    try:
        client.log_batch(cursor.run_id, metrics=_metrics(lines, prefix))
    except MlflowException as error:
        if not is_refusal(error):
            raise
        where = f"{path}: of steps {lines[0].step} to {lines[-1].step}"
        raise RefusedError(f"{where} MLflow refuses a line ({first_line(error)}); mend or delete it") from error


def _close(run: RunDirectory, cursor: Cursor, client: MlflowClient, status: Status) -> None:
    files = (run.config, run.deepspeed_config, run.manifest, run.code, run.code_changes, run.initial_weights)
    for file in filter(exists, files):
        client.log_artifact(cursor.run_id, str(file), "run")
    _delete_twins(cursor, client)
    client.set_terminated(cursor.run_id, status)


def prepare(run: RunDirectory, experiment: str) -> None:
    """Write down where this run is tracked, until MLflow is reached for the first time."""
    if not exists(run.tracking):
        write_cursor(run, Cursor(default_tracking_uri(run.path), experiment, "", {}, directory=place_of(run)))
        return
    with contextlib.suppress(ValueError):  # damaged, as is told when it is used
        cursor = read_cursor(run)
        tell_of_another_store(run, cursor)
        if cursor.experiment == experiment:
            return
        if not cursor.run_id:
            write_cursor(run, dataclasses.replace(cursor, experiment=experiment))
        else:
            _log.warning(
                "tracking.experiment is %s, but the run stays in %s, where it was first; delete %s to have it carried "
                "over to the other",
                *(experiment, cursor.experiment, run.tracking),
            )


def _destination(run: RunDirectory) -> Cursor:
    """The cursor of a run; of a copy of another one, which is still there, that of a run of its own.

    Raises:
        LostRunError: it is damaged, or see check_store.
    """
    try:
        cursor = read_cursor(run)
    except ValueError as error:
        raise LostRunError(
            f"{run.tracking} is damaged ({first_line(error)}); delete it to have everything carried over to a new run"
        ) from error
    check_store(run, cursor)
    if cursor.run_id and _is_of_another(cursor, run):
        _log.info("MLflow: a copy of %s, which has a run there; this one begins another", cursor.directory)
        cursor = Cursor(cursor.tracking_uri, cursor.experiment, "", {}, directory=place_of(run))
        write_cursor(run, cursor)
    if not cursor.run_id and cursor.directory != place_of(run):
        cursor.key = ""  # it may be a copy's
    cursor.directory = place_of(run)
    if not cursor.run_id:
        # Nothing lies anywhere yet, so another store may be chosen, such as a server for a run without network.
        cursor.tracking_uri = chosen_tracking_uri() or cursor.tracking_uri
    return cursor


def _is_of_another(cursor: Cursor, run: RunDirectory) -> bool:
    """Whether the directory that a cursor is about has not been renamed, or found by another path, but copied."""
    if not cursor.directory:
        return False
    with contextlib.suppress(OSError, ValueError):
        before = RunDirectory(Path(cursor.directory))
        return not run.path.samefile(before.path) and read_cursor(before).run_id == cursor.run_id
    return False


def _open(run: RunDirectory) -> Cursor:
    """The cursor of a run, with an MLflow run behind it that has its parameters."""
    cursor = _destination(run)
    if not cursor.run_id:
        client = MlflowClient(cursor.tracking_uri)
        experiment = experiment_id(client, cursor.experiment, cursor.tracking_uri)
        cursor.run_id = _find_or_create(run, cursor, client, experiment)
        write_cursor(run, cursor)
    if not cursor.described:
        _describe(run, cursor)
        cursor.described = True
        write_cursor(run, cursor)
    return cursor


def _find_or_create(run: RunDirectory, cursor: Cursor, client: MlflowClient, experiment: str) -> str:
    """The id of the MLflow run: a second try, where the first one heard no answer, must not make a second run."""
    if cursor.key and (begun := _with_key(cursor, client, experiment)):
        return begun[0]
    cursor.key = cursor.key or uuid.uuid4().hex
    write_cursor(run, cursor)
    return str(client.create_run(experiment, run_name=run.path.name, tags={_KEY: cursor.key}).info.run_id)


def _delete_twins(cursor: Cursor, client: MlflowClient) -> None:
    """Delete the empty runs that a server has made late, of requests that were given up and made again."""
    if cursor.key:
        experiment = client.get_run(cursor.run_id).info.experiment_id
        for run_id in set(_with_key(cursor, client, experiment)) - {cursor.run_id}:
            client.delete_run(run_id)


def _with_key(cursor: Cursor, client: MlflowClient, experiment: str) -> list[str]:
    return [str(run.info.run_id) for run in client.search_runs([experiment], f"tags.{_KEY} = '{cursor.key}'")]


def _describe(run: RunDirectory, cursor: Cursor) -> None:
    """Log tags, and the parameters that are not there yet: MLflow refuses another value, as a resume may have it."""
    client = MlflowClient(cursor.tracking_uri)
    known = client.get_run(cursor.run_id).data.params
    settings = by_key(_settings(run))
    params = [Param(key, str(value)[:_LONGEST_VALUE]) for key, value in settings.items() if key not in known]
    client.log_batch(cursor.run_id, params=params, tags=_tags(run))


def _settings(run: RunDirectory) -> dict[str, Any]:
    """The recipe as the newest start of the run has it."""
    return tomllib.loads(run.config.read_text(encoding="utf-8"))


def _tags(run: RunDirectory) -> list[RunTag]:
    code = json.loads(run.code.read_text(encoding="utf-8"))
    return [
        *(RunTag(f"initial_weights_{key}", value) for key, value in (run.read_initial_weights() or {}).items()),
        RunTag("run_directory", place_of(run)),
        RunTag("code_version", str(code["version"])),
        RunTag("code_commit", str(code["commit"])),
        RunTag("code_modified", str(code["modified"])),
    ]


class _Line(pydantic.BaseModel, extra="allow", strict=True):
    """A line of metrics: what it has besides are the values."""

    __pydantic_extra__: dict[str, float]
    step: Whole
    time: Annotated[float, pydantic.Field(ge=0, lt=1 << 53)]  # seconds since 1970


def _chunks(path: Path, after: int, every: int) -> Iterator[tuple[list[_Line], int]]:
    """Lines of steps after ``after`` that are multiples of ``every``, a few at a time, and the last step looked at."""
    lines, last = _lines_after(path, after), after
    while True:
        kept, begin = list[_Line](), last
        for line in islice(lines, _LINES * every):  # one by one: there may be more than memory holds
            last = line.step
            if last % every == 0:
                kept.append(line)
        if last == begin:
            return
        yield kept, last


def _lines_after(path: Path, after: int) -> Iterator[_Line]:
    """The lines of steps after ``after`` whose values MLflow takes; steps ascend."""
    for values in lines_after(path, after):
        with contextlib.suppress(pydantic.ValidationError):
            yield _Line.model_validate(values)


def _metrics(lines: Sequence[_Line], prefix: str) -> list[Metric]:
    return [
        Metric(prefix + _metric_name(key), value, int(line.time * 1000), line.step)
        for line in lines
        for key, value in line.__pydantic_extra__.items()
    ]


def _metric_name(key: str) -> str:
    """What MLflow calls a figure, of a shard directory alone ``by_directory/perplexity/wiki`` for ``perplexity/wiki``.

    A store of files has a folder for what is before a slash, where there may not be a metric of that name. And with a
    name that MLflow refuses, as it would ``a+b``, it takes no line: where it had to be changed, a hash tells it apart.
    """
    figure, is_of_directory, directory = key.partition("/")
    if not is_of_directory:
        return key
    name = re.sub(r"[^\w.\- :]", "_", directory.replace("/", ".")[:_LONGEST_DIRECTORY]).lstrip(".")
    told_apart = "" if name == directory else f" {checksum_of(directory.encode())[:8]}"
    return f"by_directory/{figure}/{name}{told_apart}"
