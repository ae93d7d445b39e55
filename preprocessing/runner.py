"""How Beam runs a pipeline of ours: its noise put aside, its failures told, its worker processes seen after."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import IO

import apache_beam as beam
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, StandardOptions
from apache_beam.runners.portability.fn_api_runner import worker_handlers

from preprocessing.interruption import before_end, end
from preprocessing.job import Job
from preprocessing.output import DISK_FULL, FAILED, UNAVAILABLE, JobError, JobFailedError, clear, reaching
from preprocessing.progress import show_progress
from preprocessing.sources import SourceError
from preprocessing.storage_errors import FULL, is_passing
from preprocessing.terminal import tell
from preprocessing.watchdog import Watchdog
from preprocessing.work_files import WorkFile

LOG_TAIL = 4000  # bytes of Beam's noise that are shown when a job fails
SECONDS = 10.0  # for Beam to find out by itself that a worker has died
_FAILING = frozenset({errno.EIO, errno.ESTALE, errno.EROFS, errno.ENODEV, errno.ENXIO})  # of files, and of nothing else
_THREAD = "run_worker"  # Beam's name of the one that waits for a worker's end
_NO_THREAD = "can't start new thread"  # Python's words where a limit is reached
_THREADS = "threads (ulimit -u, or a container's limit of pids, must admit some 40 for each worker)"


def run_pipeline(job: Job, beam_options: Sequence[str], build: Callable[[beam.Pipeline], None]) -> None:
    """Run what ``build`` puts into a pipeline to its end.

    Raises:
        SourceError: an input that can't be read, or a corpus that can't be sharded as asked, wherever that was found.
        JobError: nothing can be written any more, or an input is gone or another.
        JobFailedError: the output's storage fails or an input's, a document takes for ever, or a worker has died.
    """
    options = PipelineOptions(list(beam_options))
    if options.view_as(DirectOptions).direct_running_mode == "multi_processing":
        # One thread a worker process: there are as many processes as the user wants cores busy.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    _reach_by_no_proxy()
    # A timed flush of Beam's data channel races with its writer and drops elements; 0 turns it off.
    worker_handlers.DATA_BUFFER_TIME_LIMIT_MS = 0
    embedded = options.view_as(StandardOptions).runner == "FnApiRunner"
    with _quiet(embedded) as terminal, show_progress(job, terminal), _deaths_noticed(terminal) as why_a_worker_died:
        try:
            pipeline = beam.Pipeline(options=options)
            build(pipeline)
            # A worker that is started while an end looks for those to kill would outlive it.
            with before_end(worker_handlers.SUBPROCESS_LOCK.acquire):
                running = pipeline.run()
                # The workers of another machine's engine would go on, and write among the files of the next job.
                with contextlib.nullcontext() if embedded else before_end(running.cancel):
                    running.wait_until_finish()
        except Exception as error:
            if told := _told(job, error, why_a_worker_died):
                raise told from error
            raise


def _told(job: Job, error: Exception, why_a_worker_died: Callable[[], str | None]) -> Exception | None:
    """What to raise for an engine's error: what a worker has left of its own comes first; None for a bug."""
    with reaching(job.output):
        if reason := job.left_error(WorkFile.STUCK_ERROR):
            return JobFailedError(reason)
        if reason := job.left_error(WorkFile.STORAGE_ERROR):
            return JobError(reason)
        if _number(error, FULL):
            return JobError(DISK_FULL.format(job.output))
        if reason := job.left_error(WorkFile.PASSING_ERROR):
            return JobFailedError(reason)
        if reason := job.left_error(WorkFile.ERROR):
            # What is wrong with the inputs or the options changes with them, and so what was made is of no use: but to
            # the same command that skips what is damaged, and any other one removes it (output.inspect).
            if not job.left_error(WorkFile.DAMAGE_ERROR):
                with contextlib.suppress(OSError):  # what stays is told by the next command
                    clear(job.output)
            return SourceError(reason)
    # For a worker could not leave it where nothing can be written.
    if number := _number(error, _FAILING) or _number_at(job.output, error):
        return JobFailedError(UNAVAILABLE.format(job.output, os.strerror(number)))
    if died := why_a_worker_died():
        return JobFailedError(died)
    if _NO_THREAD in str(error):
        return JobFailedError(
            f"no thread can be started, for lack of {_THREADS} or memory; the same command goes on with this job"
        )
    return None


def _number(error: BaseException, known: Collection[int]) -> int | None:
    """Which of some errors of the operating system's this is, or a worker's that an engine has put into words."""
    if isinstance(error, OSError) and error.errno in known:
        return error.errno
    return next((number for number in known if f"[Errno {number}]" in str(error)), None)


def _number_at(folder: str, error: BaseException) -> int | None:
    """Which failure of storage an error tells of a folder or a file in it: of nothing, one may be a network's own."""
    told = re.findall(rf"\[Errno (\d+)\] [^:\n]*: {re.escape(repr(folder)[:-1])}[/'\"]", str(error))
    return next((int(number) for number in told if is_passing(OSError(int(number), ""))), None)


def _temporary_file() -> IO[bytes]:
    try:
        return tempfile.TemporaryFile()
    except OSError as error:
        raise JobError(f"no temporary file can be made ({error.strerror}); free some space, or set TMPDIR") from error


@contextmanager
def _quiet(embedded: bool) -> Iterator[int]:
    """Keep what Beam and its worker processes write to stderr in a file, shown only if the job fails.

    Worker processes inherit the descriptor, so it is the descriptor that is turned aside.

    Yields:
        A descriptor of the terminal (or whatever stderr was), to tell the user something.
    """
    if not embedded:
        yield 2
        return
    sys.stderr.flush()
    terminal = os.dup(2)
    with _temporary_file() as log:
        os.dup2(log.fileno(), 2)
        Watchdog.terminal = terminal
        level = logging.getLogger("apache_beam").level
        logging.getLogger("apache_beam").setLevel(logging.ERROR)
        try:
            yield terminal
        except (JobError, JobFailedError, SourceError):
            raise  # a worker's noise about it adds nothing
        except Exception:
            log.seek(max(0, log.tell() - LOG_TAIL))
            tell(terminal, log.read().decode(errors="replace"))
            raise
        finally:
            logging.getLogger("apache_beam").setLevel(level)
            Watchdog.terminal = None
            os.dup2(terminal, 2)
            os.close(terminal)


def _reach_by_no_proxy() -> None:
    """Have workers and this process speak to each other directly; gRPC would ask http_proxy even for localhost."""
    name = "no_grpc_proxy"  # in small letters alone
    known = (os.environ.get(name) or os.environ.get("no_proxy") or "").split(",")
    os.environ[name] = ",".join(dict.fromkeys(filter(None, [*known, "localhost", "127.0.0.1"])))


@contextmanager
def _deaths_noticed(terminal: int) -> Iterator[Callable[[], str | None]]:
    """End this process when a worker has died and Beam doesn't notice: before the two are connected it waits for ever.

    Args:
        terminal: a descriptor to tell the user on.

    Yields:
        What asks why the first worker died; None while none has.
    """
    deaths: list[str] = []
    timers: list[threading.Timer] = []
    before = threading.excepthook

    def hear(told: threading.ExceptHookArgs) -> None:
        if told.thread is None or told.thread.name != _THREAD:
            before(told)
            return
        lacked = "memory" if str(told.exc_value).endswith("-9") else f"memory or {_THREADS}"
        deaths.append(
            f"a worker process has died ({told.exc_value}), for lack of {lacked} perhaps; "
            "the same command goes on with this job"
        )
        if len(deaths) == 1:  # one tells for all
            timer = threading.Timer(SECONDS, end, (FAILED, f"make_shards: error: {deaths[0]}", terminal))
            timer.daemon = True
            timers.append(timer)
            timer.start()

    threading.excepthook = hear
    try:
        yield lambda: deaths[0] if deaths else None
    finally:
        threading.excepthook = before
        for timer in timers:
            timer.cancel()
