"""A run's copy in MLflow. The only importer of mlflow.

The files of the run directory are the truth, and this module carries them over: metrics.jsonl line by line, parameters
and lineage once. It keeps in mlflow.json how far it has come, so it goes on after any interruption, and training never
waits for it: a thread of the first rank does it while a run goes on, and

    python -m trainer.tracking sync RUN

does it later, for a run on a node without network or a server that was away.

Without MLFLOW_TRACKING_URI the store is an SQLite file beside the run directory, RUN/../mlflow.db, without a server:
    mlflow ui --backend-store-uri sqlite:///runs/mlflow.db
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import threading
import time
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # a training reports to its user and to nobody else
# MLflow's own patience with a server that is away is minutes for each request. Nothing is lost by less: what did not
# arrive is sent again.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")

from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient

from trainer.checkpoint import RunDirectory, write_atomically

_BATCH = 1000  # MLflow takes at most so many metrics a request
_PARAMETERS = 100  # so many parameters
_LONGEST_VALUE = 6000  # and so many characters a parameter
_TAIL = 1 << 16  # bytes of a file that are looked at first
_INTERVAL = 5.0  # seconds between two looks at metrics.jsonl
_PATIENCE = 60.0  # seconds that a finished training waits for its tracker

_log = logging.getLogger(__name__)
for _noisy in ("mlflow", "alembic"):  # what a new store's tables are called, and that a monitor has begun
    logging.getLogger(_noisy).setLevel(logging.WARNING)


@dataclass
class _Cursor:
    """How far MLflow has got; kept in mlflow.json of the run directory."""

    tracking_uri: str
    experiment: str
    run_id: str  # empty until the store was reached for the first time
    steps: dict[str, int]  # file -> last step carried over
    described: bool = False  # whether the parameters are there


@dataclass(frozen=True)
class Store:
    """Where an evaluation goes.

    Attributes:
        tracking_uri: of the store.
        experiment: its name.
        parent: id of the training run there; None where there is none.
    """

    tracking_uri: str
    experiment: str
    parent: str | None


def default_tracking_uri(run: Path) -> str:
    """MLFLOW_TRACKING_URI, or an SQLite store beside the run directory."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{run.resolve().parent / 'mlflow.db'}"


def sync(run: RunDirectory, finished: bool = False) -> str:
    """Carry over to MLflow what it does not have yet.

    Args:
        run: the run directory.
        finished: close the MLflow run.

    Returns:
        The id of the MLflow run.
    """
    cursor = _open(run)
    client = MlflowClient(cursor.tracking_uri)
    for path in (run.metrics, run.validation_metrics):
        prefix = "" if path == run.metrics else "validation_"
        for lines in _chunks(path, cursor.steps.get(path.name, 0)):
            client.log_batch(cursor.run_id, metrics=_metrics(lines, prefix))
            cursor.steps[path.name] = lines[-1]["step"]
            _write(run, cursor)
    if finished:
        for file in (run.config, run.deepspeed_config, run.manifest, run.path / "code.json", run.path / "code.diff"):
            if file.exists():
                client.log_artifact(cursor.run_id, str(file), "run")
        client.set_terminated(cursor.run_id)
    return cursor.run_id


def evaluation_store(runs: Iterable[Path], output: Path, experiment: str = "bert-pretraining") -> Store:
    """The store of the first training run that can be reached, or one of its own beside the output of an evaluation.

    Args:
        runs: directories that may hold the run.
        output: of the evaluation.
        experiment: for a store without the training run.
    """
    for run in runs:
        store = _store_of(RunDirectory(run))
        if store is not None:
            return store
    return Store(default_tracking_uri(output), experiment, None)


def _store_of(run: RunDirectory) -> Store | None:
    """Where a training run is tracked; None where it is not, or where its store does not answer or lacks it."""
    if not run.tracking.is_file():
        return None
    try:
        cursor = _read(run)
        database = _database(cursor.tracking_uri)
        if database is not None and not database.is_file():
            return None  # MLflow would make a new one
        MlflowClient(cursor.tracking_uri).get_run(cursor.run_id)
    except Exception as error:
        _log.warning("the training run is not reached in MLflow: %s", _first_line(error))
        return None
    return Store(cursor.tracking_uri, cursor.experiment, cursor.run_id)


def log_evaluation(
    store: Store, name: str, metrics: dict[str, float], tags: dict[str, str], files: Sequence[Path]
) -> str:
    """Record an evaluation as a run, a child of the training run where there is one.

    Args:
        store: where.
        name: of the new run.
        metrics: name -> value.
        tags: where the numbers come from: step, hashes, versions.
        files: results to keep as artifacts.

    Returns:
        The id of the new run.
    """
    client = MlflowClient(store.tracking_uri)
    tags = {**tags, **({"mlflow.parentRunId": store.parent} if store.parent else {})}
    experiment = _experiment(client, store.experiment, store.tracking_uri)
    run_id = str(client.create_run(experiment, run_name=name, tags=tags).info.run_id)
    step = int(tags.get("step", 0))
    now = int(time.time() * 1000)
    client.log_batch(run_id, metrics=[Metric(key, value, now, step) for key, value in metrics.items()])
    for file in files:
        client.log_artifact(run_id, str(file))
    client.set_terminated(run_id)
    return run_id


class Tracker:
    """Carries a run over while it trains, in a thread that neither stalls nor ends the training."""

    def __init__(self, run: RunDirectory, experiment: str, system_metrics: bool, patience: float = _PATIENCE):
        """Start the thread.

        Args:
            run: the run directory.
            experiment: its name in MLflow.
            system_metrics: report CPU, memory and GPU use as well.
            patience: seconds that a finished training waits for the rest to be carried over.
        """
        self._run = run
        self._patience = patience
        self._system_metrics = system_metrics
        self._done = threading.Event()
        self._finished = False
        _prepare(run, experiment)
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)
        self._thread.start()

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *_: object) -> None:
        """Carry over the rest and close the MLflow run; when patience ends, give up and say how to do it later."""
        self._done.set()
        self._thread.join(self._patience)
        if self._thread.is_alive() or not self._finished:
            _log.warning("MLflow did not take all of it; later: python -m trainer.tracking sync %s", self._run.path)

    def _work(self) -> None:
        monitor = None
        while not self._done.wait(_INTERVAL):
            run_id = self._try_sync(finished=False)
            if run_id and monitor is None and self._system_metrics:
                monitor = self._try_monitor(run_id)
                self._system_metrics = monitor is not None
        if monitor is not None:
            monitor.finish()
        self._finished = self._try_sync(finished=True) is not None

    def _try_sync(self, finished: bool) -> str | None:
        try:
            return sync(self._run, finished)
        except Exception as error:
            _log.warning("MLflow: %s; will try again", _first_line(error))
            return None

    def _try_monitor(self, run_id: str) -> Any:
        try:
            return _monitor(self._run, run_id)
        except Exception as error:
            _log.warning("MLflow: no system metrics: %s", _first_line(error))
            return None


def _prepare(run: RunDirectory, experiment: str) -> None:
    """Write down where this run is tracked, before MLflow is reached for the first time."""
    if not run.tracking.exists():
        _write(run, _Cursor(default_tracking_uri(run.path), experiment, "", {}))


def _open(run: RunDirectory) -> _Cursor:
    """The cursor of a run, with an MLflow run behind it that has its parameters."""
    cursor = _read(run)
    if not cursor.run_id:
        # Nothing lies anywhere yet, so another store may be chosen, such as a server for a run without network.
        cursor.tracking_uri = os.environ.get("MLFLOW_TRACKING_URI") or cursor.tracking_uri
        client = MlflowClient(cursor.tracking_uri)
        experiment = _experiment(client, cursor.experiment, cursor.tracking_uri)
        cursor.run_id = client.create_run(experiment, run_name=run.path.name).info.run_id
        _write(run, cursor)  # at once: a second try must not make a second run
    if not cursor.described:
        _describe(run, cursor)
        cursor.described = True
        _write(run, cursor)
    return cursor


def _describe(run: RunDirectory, cursor: _Cursor) -> None:
    """Log parameters and tags; the same again changes nothing."""
    client = MlflowClient(cursor.tracking_uri)
    params = [Param(key, str(value)[:_LONGEST_VALUE]) for key, value in _parameters(run)]
    client.log_batch(cursor.run_id, tags=_tags(run))
    for i in range(0, len(params), _PARAMETERS):
        client.log_batch(cursor.run_id, params=params[i : i + _PARAMETERS])


def _read(run: RunDirectory) -> _Cursor:
    return _Cursor(**json.loads(run.tracking.read_text(encoding="utf-8")))


def _write(run: RunDirectory, cursor: _Cursor) -> None:
    write_atomically(run.tracking, json.dumps(asdict(cursor), indent=2) + "\n")


def _experiment(client: MlflowClient, name: str, tracking_uri: str) -> str:
    found = client.get_experiment_by_name(name)
    if found is not None:
        return str(found.experiment_id)
    # Without a location MLflow would put the artifacts of an SQLite store into the current directory.
    location = None
    database = _database(tracking_uri)
    if database is not None:
        location = (database.parent / "mlartifacts").resolve().as_uri()
    return str(client.create_experiment(name, artifact_location=location))


def _database(tracking_uri: str) -> Path | None:
    """The file of an SQLite store."""
    path = tracking_uri.removeprefix("sqlite:///")
    return Path(path) if path != tracking_uri else None


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _parameters(run: RunDirectory) -> Iterator[tuple[str, Any]]:
    """Every setting of the recipe as section.key."""
    sections = tomllib.loads(run.config.read_text(encoding="utf-8"))
    for section, values in sections.items():
        for i, table in enumerate(values if isinstance(values, list) else [values]):
            prefix = f"{section}.{i}" if isinstance(values, list) else section
            for key, value in table.items():
                yield f"{prefix}.{key}", value


def _tags(run: RunDirectory) -> list[RunTag]:
    code = json.loads((run.path / "code.json").read_text(encoding="utf-8"))
    return [
        RunTag("run_directory", str(run.path.resolve())),
        RunTag("code_version", str(code["version"])),
        RunTag("code_commit", str(code["commit"])),
        RunTag("code_modified", str(code["modified"])),
    ]


def _chunks(path: Path, after: int) -> Iterator[list[dict[str, Any]]]:
    """Lines of steps after ``after``, in lists that fit one request."""
    chunk: list[dict[str, Any]] = []
    values = 0
    for line in _lines_after(path, after):
        if chunk and values + len(line) > _BATCH:
            yield chunk
            chunk, values = [], 0
        chunk.append(line)
        values += len(line)
    if chunk:
        yield chunk


def _lines_after(path: Path, after: int) -> Iterator[dict[str, Any]]:
    """The finished lines of steps after ``after``; steps ascend.

    Looked for from the end: after a million steps, reading from the beginning would take the trainer's interpreter
    seconds for the few lines that are new.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        size, length = path.stat().st_size, _TAIL
        while True:
            begin = max(0, size - length)
            file.seek(begin)
            # The last piece has no end yet, and the first one no beginning unless it is the file's.
            lines = file.read(size - begin).split(b"\n")[1 if begin else 0 : -1]
            if begin == 0 or (lines and json.loads(lines[0])["step"] <= after):
                break
            length *= 8
    for text in lines:
        line = json.loads(text)
        if line["step"] > after:
            yield line


def _metrics(lines: Sequence[dict[str, Any]], prefix: str) -> list[Metric]:
    return [
        Metric(prefix + key, float(value), int(line["time"] * 1000), line["step"])
        for line in lines
        for key, value in line.items()
        if key not in ("step", "time")
    ]


def _monitor(run: RunDirectory, run_id: str) -> Any:
    """MLflow's own thread for CPU, memory and GPU use."""
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    cursor = _open(run)
    monitor = SystemMetricsMonitor(run_id, sampling_interval=5, tracking_uri=cursor.tracking_uri)
    monitor.start()
    return monitor


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m trainer.tracking sync RUN``."""
    parser = argparse.ArgumentParser(prog="python -m trainer.tracking", description="Carry a run over to MLflow.")
    parser.add_argument("command", choices=["sync"])
    parser.add_argument("run", type=Path, help="a run directory")
    arguments = parser.parse_args(argv)
    run = RunDirectory(arguments.run)
    if not run.config.is_file():
        print(f"error: {run.path}: not a run directory (no {run.config.name})", file=sys.stderr)
        return 2
    settings = tomllib.loads(run.config.read_text(encoding="utf-8"))
    _prepare(run, settings["tracking"]["experiment"])  # for a run that trained with tracking.enabled=false
    try:
        run_id = sync(run, finished=True)
    except Exception as error:  # MLflow raises its own, its database's and its HTTP client's
        print(f"error: {_read(run).tracking_uri}: {_first_line(error)}; try again later", file=sys.stderr)
        return 1
    print(f"MLflow run {run_id} at {_read(run).tracking_uri}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
