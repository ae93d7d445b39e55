"""What tests have ranks do; a module of its own, because ranks import their task by name."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

# What DeepSpeed imports in the middle of its work; here once for all ranks.
import deepspeed.runtime.zero.muon.muon_optimizer  # noqa: F401
import torch._dynamo  # noqa: F401

from trainer import pretrain, sharded_state
from trainer.engine import Engine


def run_pretrain(arguments: list[str]) -> int:
    """The trainer's main, as a launcher would start it."""
    return pretrain.main(arguments)


def run_pretrain_and_signal(arguments: list[str]) -> int:
    """The trainer's main; the last rank gets SIGTERM after its second step."""
    return _with_signal(arguments, signal.SIGTERM)


def run_pretrain_and_stop(arguments: list[str]) -> int:
    """The trainer's main; the last rank stops dead after its second step."""
    return _with_signal(arguments, signal.SIGSTOP)


def _with_signal(arguments: list[str], number: signal.Signals) -> int:
    train_step, calls = Engine.train_step, []

    def step_then_signal(*args: Any, **kwargs: Any) -> dict[str, float]:
        metrics = train_step(*args, **kwargs)
        calls.append(1)
        if len(calls) == 2 and os.environ["RANK"] == str(int(os.environ["WORLD_SIZE"]) - 1):
            os.kill(os.getpid(), number)
        return metrics

    Engine.train_step = step_then_signal  # type: ignore[method-assign]  this process is the rank's own
    return pretrain.main(arguments)


def run_pretrain_on_a_full_disk(arguments: list[str]) -> int:
    """The trainer's main; the last rank finds the disk full while it writes the checkpoint of step 4."""
    return _with_full_disk(arguments, lambda path: path.parent.name == ".step-000004.incomplete")


def run_pretrain_on_a_disk_that_stays_full(arguments: list[str]) -> int:
    """The trainer's main; no checkpoint finds room."""
    return _with_full_disk(arguments, lambda _: True)


def _with_full_disk(arguments: list[str], full: Callable[[Path], bool]) -> int:
    save_file = sharded_state.save_file

    def save_if_there_is_room(tensors: Any, path: Path, metadata: dict[str, str]) -> None:
        save_file({}, path, metadata)  # the beginning of a file still fits
        if full(path) and os.environ["RANK"] == str(int(os.environ["WORLD_SIZE"]) - 1):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save_file(tensors, path, metadata)

    sharded_state.save_file = save_if_there_is_room
    return pretrain.main(arguments)
