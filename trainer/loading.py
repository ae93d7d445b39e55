"""The steps of a stream, read ahead by processes: what comes of a damaged shard or a killed process is one error."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, Dataset

from preprocessing.schema import ShardError
from trainer.data import Batch, Steps


class LoaderError(RuntimeError):
    """A loader process of this rank was killed, such as for want of memory. The same command may go on."""


class DamagedShardError(ShardError):
    """What this rank found wrong with a shard while it read. It will come again, unless data.skip leaves it out."""


def load_steps(steps: Steps, first: int, last: int, workers: int) -> Iterator[list[Batch]]:
    """The steps [first, last) in order, read ahead by ``workers`` processes (0: in this process, when asked for).

    Raises:
        DamagedShardError: a shard is missing or damaged, or was cut while it was read.
        LoaderError: a process was killed, by whatever signal.
    """
    loader: DataLoader[list[Batch] | ShardError] = DataLoader(
        _Reporting(steps),
        sampler=range(first, last),
        batch_size=None,
        collate_fn=_as_it_is,
        num_workers=workers,
        prefetch_factor=2 if workers else None,
    )
    loaded = _start(loader)
    try:
        for step in loaded:
            if isinstance(step, ShardError):
                raise DamagedShardError(str(step)) from step
            yield step
    except RuntimeError as error:
        if not str(error).startswith("DataLoader worker (pid"):
            raise
        raise _cause(steps, loaded) from error


class _Reporting(Dataset[list[Batch] | ShardError]):
    """Steps, or what is wrong with a shard as a value: torch would make a traceback of it on its way to the trainer."""

    def __init__(self, steps: Steps):
        self._steps = steps

    def __getitem__(self, step: int) -> list[Batch] | ShardError:
        try:
            return self._steps[step]
        except ShardError as error:
            return error


def _start(loader: DataLoader[Any]) -> Any:
    """An iterator of the loader, without torch's handler of SIGCHLD.

    The handler raises wherever the trainer is when a process dies, in the middle of a step too. The iterator looks for
    dead processes by itself, when it has waited for a few seconds.
    """
    before = signal.getsignal(signal.SIGCHLD)
    loaded = iter(loader)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, before)
    return loaded


def _cause(steps: Steps, loaded: Any) -> DamagedShardError | LoaderError:
    """Why processes of an iterator died."""
    try:
        steps.check_files()  # reading beyond the end of a mapped file kills
    except ShardError as error:
        return DamagedShardError(str(error))
    ended = [process for process in loaded._workers if process.exitcode]
    how = ", ".join(f"process {process.pid} by {_exit(process.exitcode)}" for process in ended)
    return LoaderError(f"the loader's {how} ended; SIGKILL is mostly a lack of memory: lower data.workers or give more")


def _exit(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _as_it_is(step: list[Batch] | ShardError) -> list[Batch] | ShardError:
    return step
