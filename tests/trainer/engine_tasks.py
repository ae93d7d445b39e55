"""What tests of the engine have ranks do; a module of its own, because ranks import their task by name."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from tests.trainer.rank_tasks import Lesson
from trainer.config import load_recipe, resolve_deepspeed
from trainer.engine import Engine, join_world
from trainer.settings import ConfigError

_TWO_MICRO_BATCHES = ["phases.0.global_batch_size=4"]  # for one rank


def start_engine_with(recipe: Path, deepspeed_config: Path, changes: dict[str, Any]) -> str:
    """What an engine says of changes to zero_optimization that no configuration is allowed to make."""
    world, settings = join_world(1), load_recipe(recipe)
    config = resolve_deepspeed(deepspeed_config, settings, settings.phases[0], world.size)
    config["zero_optimization"] |= changes
    try:
        Engine(settings, config, world)
    except ConfigError as error:
        return str(error)
    return "no error"


def bytes_left_after_close(recipe: Path, shards: Path, deepspeed_config: Path) -> list[int]:
    """What is left of a weight, its master, a moment and their copies; Python collects nothing by itself."""
    gc.disable()
    lesson = Lesson(join_world(1), load_recipe(recipe, _TWO_MICRO_BATCHES), shards, deepspeed_config)
    lesson.train()
    engine = lesson.engine
    master = engine._owned[0].tensor
    moment = engine._optimizer.state[master]["exp_avg"]
    tensors = [next(engine._engine.module.parameters()), master, moment, *engine.snapshot()[0].tensors.values()]
    references = [weakref.ref(tensor) for tensor in tensors]
    del master, moment, tensors
    engine.close()
    left = [reference() for reference in references]
    return [0 if tensor is None else tensor.untyped_storage().nbytes() for tensor in left]


def order_of_a_step(recipe: Path, shards: Path, deepspeed_config: Path) -> list[str]:
    """The parts of a step of two micro-batches, and when the trainer's own work was done."""
    lesson = Lesson(join_world(1), load_recipe(recipe, _TWO_MICRO_BATCHES), shards, deepspeed_config)
    order: list[str] = []
    engine = lesson.engine
    losses, backward = engine._losses, engine._engine.backward

    def forward_and_note(batch: Any) -> Any:
        order.append("forward")
        return losses(batch)

    def backward_and_note(*args: Any, **kwargs: Any) -> Any:
        order.append("backward")
        return backward(*args, **kwargs)

    engine._losses, engine._engine.backward = forward_and_note, backward_and_note  # type: ignore[method-assign]
    batches = [(place, lesson._stream.batch(np.arange(2 * place, 2 * place + 2))) for place in range(2)]
    totals = engine.count_step([batch for _, batch in batches], stop=False)
    engine.train_step(0, batches, totals, 1e-2, meanwhile=lambda: order.append("meanwhile"))
    return order
