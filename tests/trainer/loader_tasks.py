"""What tests of the data side have ranks do; a module of its own, because ranks import their task by name."""

from __future__ import annotations

import multiprocessing
from typing import Any

from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from trainer import pretrain
from trainer.engine import Engine


def run_pretrain_and_kill_a_loader(arguments: list[str]) -> int:
    """The trainer's main; one of its loader processes gets SIGKILL after the second step."""
    _MultiProcessingDataLoaderIter._try_get_data.__defaults__ = (0.2,)  # seconds; torch looks after it every five
    train_step, calls = Engine.train_step, []

    def step_then_kill(*args: Any, **kwargs: Any) -> dict[str, float]:
        metrics = train_step(*args, **kwargs)
        calls.append(1)
        if len(calls) == 2:
            multiprocessing.active_children()[0].kill()
        return metrics

    Engine.train_step = step_then_kill  # type: ignore[method-assign]  this process is the rank's own
    return pretrain.main(arguments)
