"""Grid points divided among processes: which are whose, who works on one, and processes side by side on one machine."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

import torch

from eval.errors import UsageError
from eval.experiment import Experiment
from eval.finetune import Hyperparameters
from eval.locks import claimed, locked
from eval.options import EFFECTS_TOLD
from preprocessing.schema import ShardError
from preprocessing.storage_errors import UnavailableError

_log = logging.getLogger("eval")
Work = tuple[Experiment, Hyperparameters]


def share(experiments: Sequence[Experiment], index: int, count: int) -> list[Work]:
    """Every ``count``-th point of all grids, from number ``index`` on."""
    points = [(experiment, point) for experiment in experiments for point in experiment.points]
    return points[index::count]


def run_points(work: Sequence[Work], wait: bool) -> dict[str, str]:
    """Run the points that are not finished, one after the other.

    A point that another process works on is left to it.

    Args:
        work: points.
        wait: come back to those in the end, until somebody has finished them: if the other process fails, this one.

    Returns:
        Task -> what went wrong with it, for those that failed; their other points are left alone.
    """
    failed: dict[str, str] = {}
    busy = [(experiment, point) for experiment, point in work if not _run_if_free(experiment, point, failed)]
    for experiment, point in busy if wait else []:
        with going_on(failed, experiment.task.name), locked(experiment.disk.lock(point)):
            _run(experiment, point, failed)
    return failed


def _run_if_free(experiment: Experiment, point: Hyperparameters, failed: dict[str, str]) -> bool:
    """Whether the point is nobody else's any more; of one that is finished no lock is taken."""
    with going_on(failed, experiment.task.name):
        if experiment.disk.is_finished(point):
            return True
        with claimed(experiment.disk.lock(point)) as claim:
            if claim is not None:
                _run(experiment, point, failed)
            return claim is not None
    return True


def _run(experiment: Experiment, point: Hyperparameters, failed: dict[str, str]) -> None:
    task = experiment.task.name
    with going_on(failed, task):
        if experiment.disk.is_finished(point):
            return
        if task not in failed:
            experiment.disk.set_failure(point, None)
            experiment.run(point)
    if task in failed:
        with contextlib.suppress(OSError):  # of a full disk: nobody hears why then, and the point is missing
            experiment.disk.set_failure(point, failed[task])


@contextlib.contextmanager
def going_on(failed: dict[str, str], task: str, without: str = "") -> Iterator[None]:
    """Note what goes wrong with a task, whatever it is, and go on: the others must not be lost.

    Args:
        failed: task -> why, to which it is added; of what is neither the user's mistake nor a word of the operating
            system, the log has the traceback.
        task: its name.
        without: what it has to do without then; empty where all of it is lost.
    """
    try:
        yield
    except (UsageError, ShardError, UnavailableError) as error:
        failed[task] = describe(error)
    except Exception as error:
        why = _told_by_the_system(error) if isinstance(error, OSError) and error.errno else ""
        failed[task] = (f"without {without}: " if without else "") + (why or describe(error))
        if not why:
            _log.exception("%s %s", task, f"without {without}" if without else "failed")


def _told_by_the_system(error: OSError) -> str:
    """What files or storage had against it, and what to do; which file, where the error says so."""
    place = f"{error.filename}: " if error.filename is not None else ""
    return f"{place}{error.strerror}; mend that, and run the same command again"


def describe(error: Exception) -> str:
    """An error in a line."""
    if isinstance(error, torch.OutOfMemoryError):
        return "out of memory; lower --max-tokens"
    return str(error).partition("\n")[0] or type(error).__name__


def run_side_by_side(words: Sequence[str], workers: int, index: int, count: int, device: torch.device) -> bool:
    """Run the command of these words in several processes that divide the points, or this process's share of them.

    Whatever they fail at is missing afterwards, and standard error says why. When this one is stopped, so are they.

    Args:
        words: of the command.
        workers: how many.
        index: of this process among those that share the grids, from 0.
        count: of those.
        device: that they learn on; of several GPUs each has one of its own, and of a CPU's cores its part.

    Returns:
        Whether all ended well.
    """
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for worker in range(workers):
            command = [sys.executable, "-m", "eval.run", *worker_words(words, worker, workers, index, count)]
            environment = {**os.environ, **_place(worker, workers, device)}
            processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL))  # noqa: S603  ours
        codes = [process.wait() for process in processes]
        return not any(codes)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


def left_undone(work: Sequence[Work]) -> dict[str, str]:
    """Task -> why a point of it is missing, of those that nobody has finished."""
    failed: dict[str, str] = {}
    for experiment, point in work:
        task = experiment.task.name
        with going_on(failed, task):
            if task not in failed and not experiment.disk.is_finished(point):
                ended = "a process that worked on it ended; run the command again"
                failed[task] = experiment.disk.failure(point) or ended
    return failed


def worker_words(words: Sequence[str], worker: int, workers: int, index: int, count: int) -> list[str]:
    """The words for a worker, numbered from 0, of a process: of repeated options the last one counts.

    All workers together have the points that ``share`` gives to their process.
    """
    sharing = ("--grid-index", str(index + worker * count), "--grid-count", str(count * workers))
    return [*words, "--workers", "1", "--points-only", *sharing, EFFECTS_TOLD]


def _place(worker: int, workers: int, device: torch.device) -> dict[str, str]:
    """Environment of a worker: its GPU, or its part of the cores."""
    if device.type == "cuda":
        count = torch.cuda.device_count()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
        return {"CUDA_VISIBLE_DEVICES": visible.split(",")[worker % count]}
    return {"OMP_NUM_THREADS": str(max(1, torch.get_num_threads() // workers))}
