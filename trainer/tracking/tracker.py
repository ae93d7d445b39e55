"""A thread that carries a run over to MLflow while it trains."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from typing import Any

from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from trainer.run_directory import RunDirectory
from trainer.tracking.evaluations import WaitingError
from trainer.tracking.runs import Status, prepare, sync
from trainer.tracking.store import LostRunError, first_line, read_cursor

_INTERVAL = 5.0  # seconds between two looks at metrics.jsonl
_PATIENCE = 60.0  # seconds that a finished training waits for its tracker
_SAMPLED = 30.0  # seconds between two figures of CPU, memory and GPUs: of eight GPUs some fifty, a row of a store each

_log = logging.getLogger(__name__)


class Tracker:
    """Carries a run over while it trains, in a thread that neither stalls nor ends the training."""

    def __init__(self, run: RunDirectory, experiment: str, system_metrics: bool):
        """Start the thread.

        Args:
            run: the run directory.
            experiment: its name in MLflow.
            system_metrics: report CPU, memory and GPU use as well.
        """
        self._run = run
        self._experiment = experiment
        self._system_metrics = system_metrics
        self._done = threading.Event()
        self._ended: Status | None = None
        self._finished = False
        self._lost = False
        self._problem = ""  # the last try's
        self._prepared = False
        with contextlib.suppress(OSError):  # a try to sync does it again, and tells
            self._prepare()
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)
        self._thread.start()

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *_: object) -> None:
        """Carry over the rest and close the MLflow run; when _PATIENCE ends, give up and say how to do it later."""
        with contextlib.suppress(OSError):  # MLflow gets the rest, and how it ended by a sync later
            self._ended = "FINISHED" if self._run.ending in ("done", "requeue") else "FAILED"
        self._done.set()
        self._thread.join(_PATIENCE)
        if not self._finished:
            _log.warning(
                "MLflow has not received everything; to catch up later, run python -m trainer.tracking sync %s",
                self._run.path,
            )

    def _prepare(self) -> None:
        if not self._prepared:
            prepare(self._run, self._experiment)
            self._prepared = True

    def _work(self) -> None:
        monitor = None
        told = False  # MLflow, that the training goes on
        while not self._done.wait(_INTERVAL) and not self._lost:
            run_id = self._try_sync(None if told else "RUNNING")
            told = told or run_id is not None
            if run_id and self._system_metrics and not _is_measuring(monitor):
                monitor = self._try_monitor(run_id) or monitor
        if monitor is not None:
            monitor.finish()
        is_carried_over = not self._lost and self._try_sync(self._ended) is not None and not self._problem
        self._finished = is_carried_over and self._ended is not None

    def _try_sync(self, status: Status | None) -> str | None:
        run_id, problem = None, ""
        try:
            self._prepare()
            run_id = sync(self._run, status)
        except LostRunError as error:
            self._lost = True
            _log.warning("MLflow: %s", error)
            return None
        except Exception as error:
            run_id = error.run_id if isinstance(error, WaitingError) else None
            problem = first_line(error)
            if _without_numbers(problem) != _without_numbers(self._problem):  # every few seconds, maybe for days
                _log.warning("MLflow: %s; will try again", problem)
        self._problem = problem
        return run_id

    def _try_monitor(self, run_id: str) -> Any:
        try:
            return _monitor(self._run, run_id)
        except (MlflowException, OSError):  # the store is away, as a try to sync tells
            return None
        except Exception as error:
            self._system_metrics = False
            _log.warning("MLflow: no system metrics: %s", first_line(error))
            return None


def _without_numbers(problem: str) -> str:
    """An error's words but for long ones with digits, such as the number of a request, which each has of its own."""
    return re.sub(r"\b(?=\w*\d)[\w-]{5,}", "", problem)


def _is_measuring(monitor: Any) -> bool:
    """Whether it still does: MLflow's ends for good where the store is away once."""
    return monitor is not None and monitor._process is not None and monitor._process.is_alive()


def _monitor(run: RunDirectory, run_id: str) -> Any:
    """MLflow's own thread for CPU, memory and GPU use."""
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    uri = read_cursor(run).tracking_uri
    MlflowClient(uri).get_run(run_id)  # or it would begin with step 0 again where the store is away
    monitor = SystemMetricsMonitor(run_id, sampling_interval=_SAMPLED, resume_logging=True, tracking_uri=uri)
    monitor.start()
    return monitor
