"""Real DeepSpeed ranks without the price of a launch.

A launch through `deepspeed` costs some 20 s of imports. Here a fork server imports everything once per test session,
and each rank is a fork of it with the environment that a launcher would give.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["trainer.pretrain", "tests.trainer.rank_tasks"])
_PATIENCE = 240.0  # seconds; a hang is a failure, not a wait


def run_ranks(world: int, task: Callable[..., Any], *arguments: Any, log: Path | None = None) -> list[Any]:
    """Call ``task(*arguments)`` in ``world`` ranks at once; returns what each returned.

    Raises:
        AssertionError: a rank raised, died or hung; the message has what it printed.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = []
    for rank in range(world):
        mine, theirs = _CONTEXT.Pipe()
        process = _CONTEXT.Process(target=_rank, args=(rank, world, port, theirs, log, task, arguments))
        process.start()
        theirs.close()
        ranks.append((process, mine))
    try:
        return [_result(rank, pipe) for rank, (_, pipe) in enumerate(ranks)]
    finally:
        for process, _ in ranks:
            process.join(5)
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
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world),
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1",
    )  # fmt: skip
    with Path(log or os.devnull).open("ab") as sink:
        os.dup2(sink.fileno(), 1)  # below Python: compilers and launchers that DeepSpeed calls print there too
        os.dup2(sink.fileno(), 2)
    sys.stdout, sys.stderr = (os.fdopen(descriptor, "w", buffering=1) for descriptor in (1, 2))
    try:
        outcome: tuple[str | None, Any] = (None, task(*arguments))
    except BaseException:  # SystemExit too: the caller must hear of it
        outcome = (traceback.format_exc(), None)
    pipe.send(outcome)
