"""What tests have ranks do; a module of its own, because ranks import their task by name."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import distributed

from cluster import doctor
from cluster.checkup import peers
from cluster.checkup.findings import Finding
from trainer.lineage import environment


def run_doctor(arguments: list[str]) -> tuple[int, str]:
    """The exit code, and what was printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = doctor.main(arguments)
    return code, printed.getvalue()


def run_doctor_with_a_clock_ahead(arguments: list[str], seconds: float) -> tuple[int, str]:
    """The last rank's clock is ahead."""
    if _is_last():
        doctor.check_peers = functools.partial(peers.check_peers, clock=lambda: time.time() + seconds)
    return run_doctor(arguments)


def run_doctor_on_other_files(arguments: list[str], directories: list[str]) -> tuple[int, str]:
    """Each rank calls another directory the shared one, and believes itself on another host."""
    rank = int(os.environ["RANK"])
    socket.gethostname = lambda: f"node{rank + 1}"
    peers._MISSING_FILE = 1.0
    return run_doctor([*arguments, "--shared", directories[rank]])


def run_doctor_where_files_open_slowly(arguments: list[str]) -> tuple[int, str]:
    """Each rank believes itself on another host; a file takes as long to open as those of hundreds do."""
    rank, is_there = int(os.environ["RANK"]), peers._is_there
    socket.gethostname = lambda: f"node{rank + 1}"

    def is_there_slowly(path: Path, of: int) -> bool:
        time.sleep(0.7)
        return is_there(path, of)

    peers._is_there = is_there_slowly
    return run_doctor(arguments)


def run_doctor_on_nodes_with_gpus(arguments: list[str], gpus: list[str]) -> tuple[int, str]:
    """Each rank believes itself the first of another host, which has these GPUs."""
    rank = int(os.environ["RANK"])
    os.environ["LOCAL_RANK"] = "0"
    socket.gethostname = lambda: f"node{rank + 1}"
    doctor.check_node = lambda _: [Finding("gpus", "ok", gpus[rank])]
    return run_doctor(arguments)


def run_doctor_where_one_node_has_cuda(arguments: list[str]) -> tuple[int, str]:
    """The first one, once the ranks have met; each rank believes itself on another host."""
    rank, check = int(os.environ["RANK"]), peers.check_peers
    socket.gethostname = lambda: f"node{rank + 1}"

    def check_with_cuda(*given: Any) -> Iterator[Finding]:
        torch.cuda.is_available = lambda: rank == 0
        return check(*given)

    doctor.check_peers = check_with_cuda
    return run_doctor(arguments)


def run_doctor_with_a_wrong_sum(arguments: list[str]) -> tuple[int, str]:
    """The last rank alone gets another one."""
    if _is_last():
        peers.distributed = SimpleNamespace(**{**vars(distributed), "all_reduce": _add_and_err})
    return run_doctor(arguments)


def run_doctor_with_another_torch(arguments: list[str]) -> tuple[int, str]:
    """The last rank's."""
    if _is_last():
        peers.environment = lambda: {**environment(), "torch": "2.10.0"}
    return run_doctor(arguments)


def _add_and_err(values: torch.Tensor) -> None:
    distributed.all_reduce(values)
    values[-1] += 1


def _is_last() -> bool:
    return os.environ["RANK"] == str(int(os.environ["WORLD_SIZE"]) - 1)
