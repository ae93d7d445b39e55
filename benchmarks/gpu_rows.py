"""Rows of the ladder: how the trainer and its peer train them, at which rates, and where the time of a step goes."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import transformers_pretraining as transformers_model
from common import DEMO, deepspeed_config, recipe_of, steps_of, wait_for
from gpu_predictions import BEST, BEST_BY_TORCH, LADDER, Row, predict
from preprocessing.schema import ShardDirectory
from trainer.config import Recipe
from trainer.data import Batch
from trainer.determinism import use_deterministic_kernels
from trainer.engine import Engine
from trainer.fp8 import why_not_fp8
from trainer.loading import StepReader, Steps
from trainer.metrics import training_flops
from trainer.model import EMPTY_SLOT, BertConfig
from trainer.optim import build_optimizer, parameter_groups
from trainer.profiling import by_kind, kernels_of
from trainer.settings import ConfigError
from trainer.world import World

SIZES = {"large": (), "demo": DEMO}
WARM_UP = 5  # steps, in which kernels are compiled and chosen
TIMED = 5  # steps beside a profile
TOLD = 40  # kernels of a profile that are told by name


@dataclass(frozen=True)
class Bench:
    """What all parts share: the data, the machine and its rates."""

    shards: ShardDirectory
    world: World
    ceiling: float  # operations a second
    bandwidth: float  # bytes a second
    batches: dict[int, int]  # sequence length -> samples of a micro-batch
    size: str
    seconds: float  # of each row
    last: float = math.inf  # time.time() when a row ends, whatever it has

    def recipe(self, row: Row, length: int, *settings: str, batch: int | None = None) -> Recipe:
        """The recipe of a row."""
        settings = (*SIZES[self.size], *row.settings, *settings)
        return recipe_of(self.shards, length, batch or self.batches[length], settings)

    def steps(self, row: Row, recipe: Recipe) -> Steps:
        """The batches of a row."""
        return steps_of(recipe, self.shards, padded=row.peer)

    @property
    def ladder(self) -> list[Row]:
        """The rows; kernels of our own and CUDA graphs are for GPUs."""
        return [row for row in LADDER if self.world.device.type == "cuda" or not (row.fused or row.graphs)]

    @property
    def best(self) -> Row:
        """The one that should be the fastest with the recipe's dropout, in 16 bits."""
        return BEST if BEST in self.ladder else BEST_BY_TORCH


@dataclass(frozen=True)
class Work:
    """What a step had to do.

    Attributes:
        lengths: [samples], real tokens of each.
        predictions: over all samples, those that only fill up left out.
        slots: tokens that were computed, padding included.
    """

    lengths: Tensor
    predictions: int
    slots: int

    def flops(self, config: BertConfig) -> float:
        """See training_flops."""
        return training_flops(config, self.lengths, self.predictions)


def work_of(batches: list[Batch]) -> Work:
    """What a step has to do."""
    slots = (
        batch.inputs["input_ids"] if isinstance(batch, transformers_model.PaddedBatch) else batch.tokens.input_ids
        for batch in batches
    )
    return Work(
        torch.cat([batch.lengths for batch in batches]),
        sum(int((batch.mlm_labels != EMPTY_SLOT).sum()) for batch in batches),
        sum(each.numel() for each in slots),
    )


def train(row: Row, length: int, bench: Bench) -> dict[str, Any]:
    """Train a row for some seconds, after some steps that don't count: its rates.

    ``wait`` is the share of time that steps waited for the loader, ``predicted`` of tokens a second.
    """
    recipe = bench.recipe(row, length)
    processes = recipe.data.processes(bench.world.device)
    if bench.world.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with (
        closing(trainer_of(row, recipe, bench.world)) as trainer,
        closing(StepReader(bench.steps(row, recipe), 0, recipe.last_step, processes)) as reader,
    ):
        steps, took, waited = time_steps(trainer, reader, bench.seconds, bench.last)
    memory = torch.cuda.max_memory_allocated() if bench.world.device.type == "cuda" else 0
    model, works = recipe.model, [work_of(batches) for batches in steps]
    lengths = torch.cat([work.lengths for work in works])
    tokens, rate = float(lengths.sum()), sum(work.flops(model) for work in works) / took
    foretold = sum(
        sum(predict(model, row, work.lengths, length, work.predictions, bench.ceiling, bench.bandwidth).values())
        for work in works
    )
    return {
        "row": row.name, "length": length,
        "dropout": f"{model.hidden_dropout_prob:g} / {model.attention_probs_dropout_prob:g}",
        "batch": bench.batches[length], "steps": len(steps), "sequences": len(lengths) / took,
        "tokens": tokens / took, "predicted": tokens / foretold, "tflops": rate / 1e12, "ceiling": rate / bench.ceiling,
        "padding": 1 - tokens / sum(work.slots for work in works), "wait": waited / took, "memory_gb": memory / 1e9,
    }  # fmt: skip


def time_steps(
    trainer: Ours | Peer, reader: StepReader, seconds: float, end: float = math.inf
) -> tuple[list[list[Batch]], float, float]:
    """The steps of so many seconds, how long they took, and how much of that they waited for the loader.

    Those don't count in which kernels are compiled and chosen: the first WARM_UP, and each in which torch.compile made
    a graph or CUDA graphs were recorded, for batches differ in shape. Minutes of compiling in seconds of training would
    be all that is measured.

    Raises:
        TimeoutError: no step counted until ``end``, a time.time().
    """
    steps: list[list[Batch]] = []
    took, waited, made = 0.0, 0.0, trainer.graphs
    last = time.perf_counter()
    for number, batches in enumerate(reader):
        began = time.perf_counter()
        trainer.step(number, batches, reader.read_ahead)
        ended = time.perf_counter()
        if number >= WARM_UP and trainer.graphs == made:
            steps.append(batches)
            took, waited = took + ended - last, waited + began - last
        made, last = trainer.graphs, ended
        if took > seconds or time.time() > end:
            break
    if not steps:
        raise TimeoutError(f"{number + 1} steps were all of new shapes, for which there are no kernels yet")
    return steps, took, waited


def compiled_graphs() -> int:
    """By torch.compile, in this process so far."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


class Ours:
    """The trainer's engine."""

    def __init__(self, recipe: Recipe, world: World, stage: int | None = None) -> None:
        if recipe.train.fp8 and (reason := why_not_fp8(world.device)):
            raise ConfigError(f"train.fp8: {reason}")
        self._recipe = recipe
        weights = transformers_model.initial_weights(recipe.model, recipe.train.seed)
        self._engine = Engine(recipe, deepspeed_config(recipe, world, stage), world, weights=weights)

    def step(self, number: int, batches: list[Batch], meanwhile: Callable[[], None]) -> None:
        """One update."""
        totals = self._engine.count_step(batches, stop=False)
        rate = self._recipe.learning_rate(number)
        self._engine.train_step(number, list(enumerate(batches)), totals, rate, meanwhile)

    @property
    def graphs(self) -> int:
        """By torch.compile and of CUDA, so far."""
        return compiled_graphs() + self._engine.recorded_graphs

    def close(self) -> None:
        """Let go of the memory."""
        self._engine.close()


class Peer:
    """Transformers' model in a DeepSpeed engine of the same settings, as DeepSpeed makes it."""

    def __init__(self, recipe: Recipe, compiled: bool, world: World, stage: int | None = None) -> None:
        import deepspeed

        use_deterministic_kernels(False, world.device)  # as torch has them
        torch.backends.cuda.enable_cudnn_sdp(False)  # as the trainer, for it may drop 1/16 where 0.1 is asked for
        model = transformers_model.build(recipe.model, recipe.train.seed)
        self._recipe, self._device = recipe, world.device
        self._optimizer = build_optimizer(parameter_groups(model, recipe.optimizer.weight_decay), recipe.optimizer)
        self._engine, *_ = deepspeed.initialize(
            model=torch.compile(model) if compiled else model, optimizer=self._optimizer,
            config=deepspeed_config(recipe, world, stage),
        )  # fmt: skip

    def step(self, number: int, batches: list[Batch], meanwhile: Callable[[], None]) -> None:
        """One update."""
        for group in self._optimizer.param_groups:
            group["lr"] = self._recipe.learning_rate(number)
        for place, batch in enumerate(batches):
            assert isinstance(batch, transformers_model.PaddedBatch)
            loss = self._engine(**batch.inputs_on(self._device)).loss
            if place == len(batches) - 1:
                meanwhile()  # as ours does
            self._engine.backward(loss)
            self._engine.step()

    @property
    def graphs(self) -> int:
        """By torch.compile, so far."""
        return compiled_graphs()

    def close(self) -> None:
        """Let go of the memory."""
        self._engine.destroy()


def trainer_of(row: Row, recipe: Recipe, world: World, stage: int | None = None) -> Ours | Peer:
    """What a row trains with, under ZeRO of ``stage`` or as ds_config.json has it."""
    return Peer(recipe, row.compiled, world, stage) if row.peer else Ours(recipe, world, stage)


# --- Where the time of a step goes ---


def profile(row: Row, length: int, bench: Bench) -> dict[str, Any]:
    """Milliseconds of one step by kind of kernel, of steps that were not profiled, and what each kernel took."""
    recipe, device = bench.recipe(row, length), bench.world.device
    steps = bench.steps(row, recipe)
    batches = [steps[number] for number in range(WARM_UP + TIMED)]
    milliseconds = []
    with closing(trainer_of(row, recipe, bench.world)) as trainer:
        for number in range(2 * len(batches)):  # by the second round all of their shapes are known
            wait_for(device)
            began = time.perf_counter()
            trainer.step(number, batches[number % len(batches)], _nothing)
            wait_for(device)
            milliseconds.append(1e3 * (time.perf_counter() - began))
        # The first profiled step pays for the profiler's own start, and does not count.
        with torch.profiler.profile(schedule=torch.profiler.schedule(wait=0, warmup=1, active=1)) as profiler:
            trainer.step(2 * len(batches), batches[-1], _nothing)
            wait_for(device)
            profiler.step()
            trainer.step(2 * len(batches) + 1, batches[-1], _nothing)
            wait_for(device)
        kernels = kernels_of(profiler.key_averages())
    return {
        "row": row.name, "length": length, "step": statistics.median(milliseconds[len(batches) :]),
        "kinds": by_kind(kernels), "launches": sum(kernel.launches for kernel in kernels), "kernels": kernels[:TOLD],
    }  # fmt: skip


def _nothing() -> None:
    """Every batch is here already."""
