"""The stream's samples as steps for a rank, read ahead by processes; what is damaged or killed there is one error."""

from __future__ import annotations

import atexit
import multiprocessing.connection
import os
import pickle
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset

from preprocessing.schema import ShardError
from preprocessing.storage_errors import UnavailableError, reason
from trainer.balancing import deal
from trainer.data import Batch, SampleStream
from trainer.stopping import REQUESTS

_Read = list[Batch] | ShardError | UnavailableError  # a step, or what keeps it from being read
_DYING_SECONDS = 1.0  # a process may be missed before it has quite ended


class Steps(Dataset[list[Batch]]):
    """One rank's share of every step: item s is the list of micro-batches that the rank computes in step s.

    A step's global batch is dealt into micro-batches of about as many tokens each, and micro-batch j goes to rank
    j mod world. So the micro-batches themselves, and whatever is derived from j, do not depend on the world size.
    """

    def __init__(
        self, stream: SampleStream, global_batch_size: int, micro_batch_size: int, rank: int, world: int, first: int = 0
    ):
        """Cut the stream into steps, from sample ``first`` on.

        The global batch is a multiple of micro-batch size times ranks.
        """
        assert global_batch_size % (micro_batch_size * world) == 0
        self.stream = stream
        self._global_batch_size = global_batch_size
        self._micro_batch_size = micro_batch_size
        self._rank = rank
        self._world = world
        self._first = first

    def __getitem__(self, step: int) -> list[Batch]:
        mine = self._micro_batches(step)[self._rank :: self._world]
        return [self.stream.batch(indices) for indices in mine]

    def _micro_batches(self, step: int) -> np.ndarray:
        """Of all ranks: int64 [micro-batches, samples of one], indices of the stream."""
        indices = self._first + step * self._global_batch_size + np.arange(self._global_batch_size, dtype=np.int64)
        if self._micro_batch_size == self._global_batch_size:
            return indices[None]
        dealt: np.ndarray = indices[deal(self.stream.lengths(indices), self._micro_batch_size)]
        return dealt

    def micro_batch_index(self, accumulated: int) -> int:
        """The place within the step of this rank's micro-batch number ``accumulated``; the same at any world size."""
        return accumulated * self._world + self._rank


class LoaderError(RuntimeError):
    """A rank's storage fails, or a loader process was killed, as for want of memory. The same command may go on."""


class DamagedShardError(ShardError):
    """What a rank found wrong with a shard while it read. It will come again, unless a setting leaves it out."""


class NoProcessError(RuntimeError):
    """A rank's node lets no process be started that reads ahead. The message says what to do."""


class StepReader(Iterator[list[Batch]]):
    """The steps [first, last) in order, prepared by ``workers`` processes (0: in this process, when asked for).

    ``next`` raises DamagedShardError for a shard that is missing or damaged, or was cut while it was read, and
    LoaderError where storage fails or a process was killed, by whatever signal.
    """

    def __init__(self, steps: Steps, first: int, last: int, workers: int):
        """Start the processes.

        Raises:
            NoProcessError: they can't be started.
        """
        loader: DataLoader[Any] = DataLoader(
            _Pickled(steps),
            sampler=range(first, last),
            batch_size=None,
            num_workers=workers,
            prefetch_factor=2 if workers else None,
            worker_init_fn=_belong_to_the_trainer,
            # Whose process has the trainer's memory, and holds back signals from its first moment; the server of
            # processes that Python 3.14 would take does neither.
            multiprocessing_context="fork" if workers else None,
        )
        self._steps = steps
        self._workers = workers
        self._left = last - first
        try:
            if workers:
                multiprocessing.Lock()  # as torch makes, whose iterator fails once more where it is half made
            self._loaded = _start(loader)
        except OSError as error:
            raise NoProcessError(
                f"{socket.gethostname()}: no process can be started that reads ahead ({reason(error)}); each takes a "
                "little of /dev/shm, of the processes that are allowed (ulimit -u, a Pod's pids) and of open files "
                "(ulimit -n): see by `python -m cluster.doctor`, or set data.workers=0"
            ) from error
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="loader")
        self._ahead: Future[_Read] | None = None

    def read_ahead(self) -> None:
        """Have a thread unpack the next step, while this one waits for its device: large batches take milliseconds."""
        if self._workers and self._left and not self._ahead:
            self._ahead = self._thread.submit(self._take)

    def __next__(self) -> list[Batch]:
        if not self._left:
            self.close()
            raise StopIteration
        self._left -= 1
        ahead, self._ahead = self._ahead, None
        try:
            step = ahead.result() if ahead else self._take()
        except Exception as error:  # torch has several for a dead process, and those of broken pipes get through
            cause = _cause(self._steps, self._loaded) if self._workers else None
            raise cause or error from error
        if isinstance(step, ShardError):
            raise DamagedShardError(str(step)) from step
        if isinstance(step, UnavailableError):
            raise LoaderError(str(step)) from step
        return step

    def _take(self) -> _Read:
        step: _Read = pickle.loads(next(self._loaded))  # noqa: S301  made by our own
        return step

    def close(self) -> None:
        """End the processes, whatever is left to read."""
        self._thread.shutdown()
        self._left, self._loaded = 0, iter(())


class _Pickled(Dataset[bytes]):
    """Steps, or what keeps one from being read, as bytes.

    Torch would send each tensor by shared memory and a descriptor, of which there are few, and of what a process raises
    it would make a traceback.
    """

    def __init__(self, steps: Steps):
        self._steps = steps

    def __getitem__(self, step: int) -> bytes:
        found: _Read
        try:
            found = self._steps[step]
        except (ShardError, UnavailableError) as error:
            found = error
        return pickle.dumps(found, protocol=pickle.HIGHEST_PROTOCOL)


def _start(loader: DataLoader[Any]) -> Any:
    """An iterator of the loader, without torch's handler of SIGCHLD.

    The handler raises wherever the trainer is when a process dies, in the middle of a step too. The iterator looks for
    dead processes by itself, when it has waited for a few seconds.
    """
    before = signal.getsignal(signal.SIGCHLD)
    held_back = signal.pthread_sigmask(signal.SIG_BLOCK, REQUESTS)  # until the processes ignore them
    try:
        loaded = iter(loader)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held_back)
    signal.signal(signal.SIGCHLD, before)
    atexit.register(_kill, getattr(loaded, "_workers", []))
    return loaded


def _kill(processes: list[Any]) -> None:
    """End what the trainer leaves behind where it fails: no other signal would do, and Python waits for them."""
    for process in processes:
        process.kill()


def _belong_to_the_trainer(_: int) -> None:
    """A signal to all processes of a job is for the trainer, which needs its loader until it has stopped."""
    for number in REQUESTS:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_trainer, daemon=True).start()


def _end_with_the_trainer() -> None:
    """Once the trainer is killed, Python would wait for a reader of the next step, and hold the run's lock for ever."""
    trainer = multiprocessing.parent_process()
    assert trainer is not None
    trainer.join()
    os._exit(1)


def _cause(steps: Steps, loaded: Any) -> DamagedShardError | LoaderError | None:
    """Why a process of an iterator died, if one did."""
    sentinels = {process.sentinel: process for process in loaded._workers}
    ended = [sentinels[ready] for ready in multiprocessing.connection.wait(sentinels, _DYING_SECONDS)]
    if not ended:
        return None
    for process in ended:
        process.join()
    try:
        steps.stream.check_files()  # reading beyond the end of a mapped file kills
    except ShardError as error:
        return DamagedShardError(str(error))
    except UnavailableError:
        pass  # what ended the process is the first that went wrong
    return LoaderError("; ".join(f"loader process {process.pid} {_end(process.exitcode)}" for process in ended))


def _end(code: int) -> str:
    if code == -signal.SIGKILL:
        return "was killed by SIGKILL, usually for lack of memory; lower data.workers or add memory"
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
