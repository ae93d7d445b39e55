"""What tests of the engine have ranks do; a module of its own, because ranks import their task by name."""

from __future__ import annotations

import gc
import weakref
from contextlib import ExitStack, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime import bf16_optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from preprocessing.schema import ShardDirectory
from tests.trainer.emulated_graphs import EmulatedRecorder
from tests.trainer.rank_tasks import Lesson
from trainer.config import load_recipe
from trainer.data import evaluation_batches, validation_stream
from trainer.deepspeed_config import read_deepspeed, resolve
from trainer.engine import Engine
from trainer.joining import join_world
from trainer.model import parameter_count
from trainer.settings import ConfigError

_TWO_MICRO_BATCHES = ["phases.0.global_batch_size=4"]  # for one rank


def start_engine_with(recipe: Path, deepspeed_config: Path, changes: dict[str, Any]) -> str:
    """What an engine says of changes to zero_optimization that no configuration is allowed to make."""
    world, settings = join_world(1), load_recipe(recipe)
    config = resolve(read_deepspeed(deepspeed_config), settings, settings.phases[0], world.size)
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


def first_numbers_of_dropout(recipe: Path, shards: Path, deepspeed_config: Path) -> list[float]:
    """What torch would draw first in each forward pass of three steps of two micro-batches."""
    lesson = Lesson(join_world(1), load_recipe(recipe, _TWO_MICRO_BATCHES), shards, deepspeed_config)
    numbers: list[float] = []
    losses = lesson.engine._losses

    def draw_and_go_forward(batch: Any) -> Any:
        with torch.random.fork_rng(devices=()):
            numbers.append(torch.rand(()).item())
        return losses(batch)

    lesson.engine._losses = draw_and_go_forward  # type: ignore[method-assign]
    batches = [(place, lesson._stream.batch(np.arange(2 * place, 2 * place + 2))) for place in range(2)]
    totals = lesson.engine.count_step([batch for _, batch in batches], stop=False)
    for step in range(3):
        lesson.engine.train_step(step, batches, totals, 1e-2)
    return numbers


def gradients_in_fp16(recipe: Path, shards: Path, deepspeed_config: Path) -> list[tuple[float, float, float]]:
    """Of steps with the same batch and weights: the loss scale, the norm that is told, and that of what Adam gets."""
    get_accelerator().is_fp16_supported = lambda: True  # type: ignore[method-assign]
    undisturbed = [*_TWO_MICRO_BATCHES, "model.hidden_dropout_prob=0", "model.attention_probs_dropout_prob=0"]
    settings = load_recipe(recipe, [*undisturbed, "optimizer.max_gradient_norm=1e6"])
    lesson = Lesson(join_world(1), settings, shards, deepspeed_config)
    engine = lesson.engine
    batches = [(place, lesson._stream.batch(np.arange(2 * place, 2 * place + 2))) for place in range(2)]
    totals = engine.count_step([batch for _, batch in batches], stop=False)
    found: list[tuple[float, float, float]] = []
    given: list[torch.Tensor] = []

    def note(parameters: Any, gradients: Any, *_: Any, **__: Any) -> None:
        given.extend(gradient.clone() for gradient in gradients)

    with mock.patch.object(torch, "_fused_adamw_", note):  # the weights stay
        for step in range(7):
            told = engine.train_step(step, batches, totals, 1e-2)
            found.append((told["loss_scale"], told["grad_norm"], float(torch.cat(given).norm())))
            given.clear()
    return found


def graphs_of_training_and_validation(recipe: Path, shards: Path, deepspeed_config: Path) -> tuple[int, int]:
    """How many are recorded after two steps, and after a validation of three batches."""
    settings = load_recipe(recipe, [*_TWO_MICRO_BATCHES, "train.cuda_graphs=true", "data.token_multiple=8"])
    with (
        mock.patch("trainer.graphs.Recorder", EmulatedRecorder),
        mock.patch("trainer.attention._fastest", return_value="sdpa"),
    ):
        lesson = Lesson(join_world(1), settings, shards, deepspeed_config)
        lesson.train()
        lesson.train()
        training = lesson.engine.recorded_graphs
        stream = validation_stream([ShardDirectory(shards)], settings.phases[0].sequence_length)
        lesson.engine.evaluate([evaluation_batches(stream, np.arange(6), size=2)])
    return training, lesson.engine.recorded_graphs


def waits_for_the_device(recipe: Path, shards: Path, deepspeed_config: Path) -> int:
    """How often DeepSpeed waits for what the device computes, in four steps of two micro-batches."""
    lesson = Lesson(join_world(1), load_recipe(recipe, _TWO_MICRO_BATCHES), shards, deepspeed_config)
    with mock.patch.object(get_accelerator(), "synchronize") as synchronize:
        for _ in range(4):
            lesson.train()
    return synchronize.call_count


def printed_in_a_step(recipe: Path, shards: Path, deepspeed_config: Path) -> str:
    """What goes to standard output while an engine is built and trains."""
    world = join_world(1)
    with redirect_stdout(StringIO()) as printed:
        Lesson(world, load_recipe(recipe, _TWO_MICRO_BATCHES), shards, deepspeed_config).train()
    return printed.getvalue()


class _BytesMoved(TorchDispatchMode):
    """Counts what operations read and write in memory; a view moves nothing, nor does the sum over one rank."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        written = [x for x, which in zip(args, func._schema.arguments, strict=False) if _is_written(which)]
        memory = {x.untyped_storage().data_ptr() for x in tree_leaves(args) if isinstance(x, torch.Tensor)}
        made = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        is_view = not written and any(x.untyped_storage().data_ptr() in memory for x in made)
        if not is_view and func not in (torch.ops.c10d.allreduce_.default, torch.ops.aten.empty.memory_format):
            read = args[1:] if func in _COPIES else args
            tensors = [x for x in tree_leaves([read, written or made]) if isinstance(x, torch.Tensor)]
            self.count += sum(x.numel() * x.element_size() for x in tensors)
        return result


_COPIES = (torch.ops.aten.copy_.default, torch.ops.aten._foreach_copy_.default)


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


# What DeepSpeed calls for a gradient or for all of them: two under ZeRO 2, and two for bf16 under ZeRO 1, of which one
# clears the sums after an update. And what its engine calls to sum them up over ranks.
_AFTER_BACKWARD = ("process_gradients", "independent_gradient_partition_epilogue", "update_hp_grads", "clear_hp_grads")
_OF_THE_ENGINE = ("buffered_allreduce_fallback",)


def bytes_of_one_rank(recipe: Path, shards: Path, deepspeed_config: Path, communicates: bool) -> float:
    """Bytes a parameter that DeepSpeed moves for an update after two backward passes under ZeRO 1 or 2, besides it.

    Args:
        recipe: for Lesson.
        shards: likewise.
        deepspeed_config: likewise.
        communicates: whether it does what many ranks do, too.
    """
    lesson = _lesson_of_one_rank(recipe, shards, deepspeed_config, communicates)
    moved, zero = _BytesMoved(), lesson.engine._engine.optimizer

    def within_count(function: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            with moved:
                return function(*arguments, **named)

        return call

    for owner, names in (zero, _AFTER_BACKWARD), (lesson.engine._engine, _OF_THE_ENGINE):
        for name in names:
            if hasattr(owner, name):
                setattr(owner, name, within_count(getattr(owner, name)))
    lesson.train()
    return moved.count / parameter_count(lesson.recipe.model)


def state_of_one_rank(recipe: Path, shards: Path, deepspeed_config: Path, communicates: bool) -> list[np.ndarray]:
    """Weights and moments after three steps of two micro-batches; the arguments are those of bytes_of_one_rank."""
    lesson = _lesson_of_one_rank(recipe, shards, deepspeed_config, communicates)
    for _ in range(3):
        lesson.train()
    return [tensor.numpy() for tensor in lesson.state()]


def state_by_deepspeed_s_own_sums(recipe: Path, shards: Path, deepspeed_config: Path) -> list[np.ndarray]:
    """The same, where DeepSpeed adds gradients up by itself."""
    with mock.patch("trainer.engine.add_up_at_once"):
        return state_of_one_rank(recipe, shards, deepspeed_config, False)


def norm_under_zero_1(gradients: list[np.ndarray]) -> float:
    """The norm that DeepSpeed's optimizer for bf16 under ZeRO 1 takes."""
    join_world(1)
    return float(bf16_optimizer.get_global_norm_of_tensors(input_tensors=[*map(torch.from_numpy, gradients)]))


def norm_that_adam_gets_without_zero(recipe: Path, deepspeed_config: Path, gradient: np.ndarray) -> float:
    """Of a model whose word embeddings have such a gradient, and whose other parameters have none."""
    size, width = gradient.shape
    heads = f"model.num_attention_heads={width // 64}"
    settings = load_recipe(recipe, [f"model.vocab_size={size}", f"model.hidden_size={width}", heads])
    world = join_world(1)
    engine = Engine(settings, resolve(read_deepspeed(deepspeed_config), settings, settings.phases[0], 1), world)
    engine._engine.module.model.bert.embeddings.word.weight.grad = torch.from_numpy(gradient)
    engine._engine.set_gradient_accumulation_boundary(True)
    with mock.patch.object(torch, "_fused_adamw_") as update:
        engine._update(0, [], 1e-2)
    return float(torch.cat([x.flatten() for call in update.call_args_list for x in call.args[1]]).double().norm())


def _lesson_of_one_rank(recipe: Path, shards: Path, deepspeed_config: Path, communicates: bool) -> Lesson:
    with ExitStack() as changes:
        if communicates:
            changes.enter_context(mock.patch("trainer.engine.without_communication", dict))
            changes.enter_context(mock.patch("trainer.engine.leave_out_sum_over_ranks"))
        return Lesson(join_world(1), load_recipe(recipe, _TWO_MICRO_BATCHES), shards, deepspeed_config)
