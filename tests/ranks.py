"""Real DeepSpeed ranks without the price of a launch.

A launch through `deepspeed` costs some 20 s of imports. Here a fork server imports everything once per test session,
and each rank is a fork of it with the environment that a launcher would give.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import psutil

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["trainer.pretrain", "tests.trainer.rank_tasks"])
_PATIENCE = 240.0  # seconds; a hang is a failure, not a wait
_AFTER_ONE = 30.0  # seconds that a launcher gives the other ranks


def launched(rank: int = 0, world: int = 1, port: int | None = None) -> dict[str, str]:
    """What a launcher tells a rank by its environment; without a port, a free one."""
    return {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port or free_port()),
    }  # fmt: skip


def is_there(process: psutil.Process | int) -> bool:
    """Whether it, or who has this number, has not ended, reaped or not."""
    try:
        process = psutil.Process(process) if isinstance(process, int) else process
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def free_port() -> int:
    """A port that nobody listens on; the launchers' own default is taken where another training runs."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def run_ranks(world: int, task: Callable[..., Any], *arguments: Any, log: Path | None = None) -> list[Any]:
    """Call ``task(*arguments)`` in ``world`` ranks at once; returns what each returned.

    Raises:
        AssertionError: a rank raised, died or hung; the message has what it printed.
    """
    ranks = _start(world, task, arguments, log)
    patience = 0.0
    try:
        results = [_result(rank, pipe) for rank, (_, pipe) in enumerate(ranks)]
        patience = 5.0  # seconds, for what a rank does after its task
    finally:
        _end(ranks, patience)
    return results


def run_ranks_and_kill(
    world: int, task: Callable[..., Any], *arguments: Any, victim: int, ready: Callable[[], bool], delay: float
) -> bool:
    """As run_ranks, but ``delay`` seconds after ``ready()`` one rank gets SIGKILL, and the others soon after.

    Returns:
        Whether the ranks were still at work then.
    """
    ranks = _start(world, task, arguments, None)
    deadline = time.monotonic() + _PATIENCE
    while not ready() and ranks[victim][0].is_alive() and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(delay)
    alive = ranks[victim][0].is_alive()
    ranks[victim][0].kill()
    time.sleep(0.05)  # the others go on for a moment without it
    for process, _ in ranks:
        process.kill()
        process.join()
    return alive


def run_ranks_and_disturb(
    world: int, task: Callable[..., Any], *arguments: Any, disturb: Callable[[list[psutil.Process]], None]
) -> None:
    """As run_ranks, while ``disturb`` does something to the processes; when one has ended the others have to, too."""
    ranks = _start(world, task, arguments, None)
    processes = [process for process, _ in ranks]
    disturb([psutil.Process(process.pid) for process in processes])
    for process in processes:
        process.join(_AFTER_ONE)
        process.kill()
        process.join()


def _start(
    world: int, task: Callable[..., Any], arguments: tuple[Any, ...], log: Path | None
) -> list[tuple[ForkServerProcess, Connection]]:
    port = free_port()
    ranks = []
    for rank in range(world):
        mine, theirs = _CONTEXT.Pipe()
        process = _CONTEXT.Process(target=_rank, args=(rank, world, port, theirs, log, task, arguments))
        process.start()
        theirs.close()
        ranks.append((process, mine))
    return ranks


def _end(ranks: list[tuple[ForkServerProcess, Connection]], patience: float) -> None:
    for process, _ in ranks:
        process.join(patience)
        process.kill()


def _result(rank: int, pipe: Connection) -> Any:
    assert pipe.poll(_PATIENCE), f"rank {rank} hangs"
    try:
        failure, result = pipe.recv()
    except EOFError:
        raise AssertionError(f"rank {rank} died") from None
    assert failure is None, f"rank {rank} failed:\n{failure}"
    return result


def _rank(
    rank: int,
    world: int,
    port: int,
    pipe: Connection,
    log: Path | None,
    task: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    os.environ.update(launched(rank, world, port), OMP_NUM_THREADS="1")
    _hasten()
    gc.freeze()  # a trainer's collections, where an engine ends, would look through all that was imported
    with Path(log or os.devnull).open("ab") as sink:
        os.dup2(sink.fileno(), 1)  # below Python: compilers and launchers that DeepSpeed calls print there too
        os.dup2(sink.fileno(), 2)
    sys.stdout, sys.stderr = (os.fdopen(descriptor, "w", buffering=1) for descriptor in (1, 2))
    try:
        outcome: tuple[str | None, Any] = (None, task(*arguments))
    except BaseException:  # SystemExit too: the caller must hear of it
        outcome = (traceback.format_exc(), None)
    pipe.send(outcome)


def _hasten() -> None:
    """Leave out what a training of a second mostly does: time large products, have oneDNN write code for small ones."""
    import torch  # as the fork server has, and whoever only asks for a port has not

    from trainer import metrics

    metrics._SIZE["cpu"], metrics._SECONDS["cpu"] = 64, 0.0
    torch.backends.mkldnn.set_flags(False)
