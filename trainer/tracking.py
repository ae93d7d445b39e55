"""A run's copy in MLflow. The only importer of mlflow.

The files of the run directory are the truth, and this module carries them over: metrics.jsonl line by line, parameters
and lineage once. It keeps in mlflow.json how far it has come, so it goes on after any interruption, and training never
waits for it: a thread of the first rank does it while a run goes on, and

    python -m trainer.tracking sync RUN

does it later, for a run on a node without network or a server that was away.

Without MLFLOW_TRACKING_URI the store is an SQLite file beside the run directory, RUN/../mlflow.db, which needs no server:
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
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # a training reports to its user and to nobody else

from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient

from trainer.checkpoint import RunDirectory, read_lines, write_atomically

_BATCH = 1000  # MLflow takes at most so many metrics a request
_LONGEST_VALUE = 6000  # and so many characters a parameter
_INTERVAL = 5.0  # seconds between two looks at metrics.jsonl
_PATIENCE = 60.0  # seconds that a finished training waits for its tracker

_log = logging.getLogger(__name__)


@dataclass
class _Cursor:
    """How far MLflow has got; kept in mlflow.json of the run directory."""

    tracking_uri: str
    experiment: str
    run_id: str
    steps: dict[str, int]  # file -> last step carried over


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


def log_evaluation(
    tracking_uri: str,
    experiment: str,
    parent: str | None,
    name: str,
    metrics: dict[str, float],
    tags: dict[str, str],
    files: Sequence[Path],
) -> str:
    """Record an evaluation as a run, a child of the training run where there is one.

    Args:
        tracking_uri: of the store.
        experiment: its name.
        parent: id of the training run.
        name: of the new run.
        metrics: name -> value.
        tags: where the numbers come from: step, hashes, versions.
        files: results to keep as artifacts.

    Returns:
        The id of the new run.
    """
    client = MlflowClient(tracking_uri)
    tags = {**tags, **({"mlflow.parentRunId": parent} if parent else {})}
    run_id = client.create_run(_experiment(client, experiment, tracking_uri), run_name=name, tags=tags).info.run_id
    step = int(tags.get("step", 0))
    now = int(time.time() * 1000)
    client.log_batch(run_id, metrics=[Metric(key, value, now, step) for key, value in metrics.items()])
    for file in files:
        client.log_artifact(run_id, str(file))
    client.set_terminated(run_id)
    return run_id


class Tracker:
    """Carries a run over while it trains, in a thread that neither stalls nor ends the training."""

    def __init__(self, run: RunDirectory, experiment: str, system_metrics: bool):
        """Start the thread."""
        self._run = run
        self._system_metrics = system_metrics
        self._done = threading.Event()
        self._finished = False
        _prepare(run, experiment)
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)
        self._thread.start()

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *_: object) -> None:
        """Carry over the rest and close the MLflow run; gives up after a minute and says how to do it later."""
        self._done.set()
        self._thread.join(_PATIENCE)
        if self._thread.is_alive() or not self._finished:
            _log.warning("MLflow did not take all of it; later: python -m trainer.tracking sync %s", self._run.path)

    def _work(self) -> None:
        monitor = None
        while not self._done.wait(_INTERVAL):
            run_id = self._try_sync(finished=False)
            if run_id and monitor is None and self._system_metrics:
                monitor = _monitor(self._run, run_id)
        if monitor is not None:
            monitor.finish()
        self._finished = self._try_sync(finished=True) is not None

    def _try_sync(self, finished: bool) -> str | None:
        try:
            return sync(self._run, finished)
        except Exception as error:
            _log.warning(
                "MLflow: %s; will try again", str(error).splitlines()[0] if str(error) else type(error).__name__
            )
            return None


def _prepare(run: RunDirectory, experiment: str) -> None:
    """Write down where this run is tracked, before MLflow is reached for the first time."""
    if not run.tracking.exists():
        _write(run, _Cursor(default_tracking_uri(run.path), experiment, "", {}))


def _open(run: RunDirectory) -> _Cursor:
    """The cursor of a run, with an MLflow run behind it."""
    cursor = _Cursor(**json.loads(run.tracking.read_text(encoding="utf-8")))
    if not cursor.run_id:
        client = MlflowClient(cursor.tracking_uri)
        experiment = _experiment(client, cursor.experiment, cursor.tracking_uri)
        cursor.run_id = client.create_run(experiment, run_name=run.path.name).info.run_id
        params = [Param(key, str(value)[:_LONGEST_VALUE]) for key, value in _parameters(run)]
        client.log_batch(cursor.run_id, params=params[:100], tags=_tags(run))
        for i in range(100, len(params), 100):
            client.log_batch(cursor.run_id, params=params[i : i + 100])
        _write(run, cursor)
    return cursor


def _write(run: RunDirectory, cursor: _Cursor) -> None:
    write_atomically(run.tracking, json.dumps(asdict(cursor), indent=2) + "\n")


def _experiment(client: MlflowClient, name: str, tracking_uri: str) -> str:
    found = client.get_experiment_by_name(name)
    if found is not None:
        return str(found.experiment_id)
    # Without a location MLflow would put the artifacts of an SQLite store into the current directory.
    location = None
    if tracking_uri.startswith("sqlite:///"):
        location = (Path(tracking_uri.removeprefix("sqlite:///")).parent / "mlartifacts").resolve().as_uri()
    return str(client.create_experiment(name, artifact_location=location))


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
    for line in read_lines(path):
        if line["step"] <= after:
            continue
        if chunk and values + len(line) > _BATCH:
            yield chunk
            chunk, values = [], 0
        chunk.append(line)
        values += len(line)
    if chunk:
        yield chunk


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
    if not run.tracking.exists():
        print(f"{run.path}: not a run directory with tracking (no {run.tracking.name})", file=sys.stderr)
        return 2
    print(f"MLflow run {sync(run, finished=True)} at {_open(run).tracking_uri}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
