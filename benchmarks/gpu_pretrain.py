"""BERT-LARGE on one GPU: the ladder of measures beside its peers, where the time of a step goes, and correctness.

    python benchmarks/gpu_pretrain.py --shards shards/ --output gpu-128/ --lengths 128 --batches 256
    python benchmarks/gpu_pretrain.py --shards shards/ --output gpu-512/ --lengths 512 --batches 64

Each command takes under eight minutes, most of them for torch.compile, and leaves out what it has no time for: by
estimate the last row or two on an H200, which another run measures by --rows. Everything trains through the trainer's
own engine and loader on real shards (`beam run preprocessing/make_shards.py ... --sequence-lengths 128 512`). The peers
are transformers' BertForPreTraining with SDPA, padded, in a DeepSpeed engine of the same settings, plain and by
torch.compile. Rates count real tokens; TFLOP/s by trainer.metrics.training_flops, which has a whole last layer; the
ceiling is a bf16 product of 8192^3 in the same run. A fast way whose gradients are further from float32's than bfloat16
explains is refused: a part that failed.

OUTPUT/gpu.md has the tables, OUTPUT/gpu.json the figures. Both are written anew after each part; a part that fails or
that --end leaves no time for is named there, the others go on, and the exit code is 1. With any other one the process
did not come to its end: a kernel that reads or writes where it must not takes the GPU from all that follows, and one
that never ends is given up with its process. The same command with --go-on then does the other parts, but those that
need the same kernels, and may begin with it:

    for attempt in 1 2 3 4 5 6; do COMMAND --go-on; [ $? -gt 2 ] || break; done

`--device cpu --size demo` shows that the script works where there is no GPU.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend

import transformers_pretraining as transformers_model
from common import (
    DEMO,
    Parts,
    be_the_only_rank,
    copy_bandwidth,
    deepspeed_config,
    found_by,
    missing,
    open_shards,
    recipe_of,
    require_cpu,
    steps_of,
    wait_for,
)
from gpu_attention import measure as measure_attention
from gpu_attention import table as attention_table
from gpu_predictions import BEST, BEST_BY_TORCH, BEST_IN_GRAPHS, LADDER, PEER, Row, predict
from gpu_profile import by_kind, kernels_of, kind_of
from preprocessing.markdown import markdown_table
from preprocessing.schema import ShardDirectory
from trainer.attention import attention
from trainer.config import Recipe
from trainer.data import Batch
from trainer.determinism import use_deterministic_kernels
from trainer.engine import Engine
from trainer.fp8 import to_fp8, why_not_fp8
from trainer.graphs import InGraphs
from trainer.joining import join_world
from trainer.loading import StepReader, Steps
from trainer.metrics import measure_ceiling, training_flops
from trainer.model import EMPTY_SLOT, BertConfig, BertForPreTraining, pretraining_losses
from trainer.objective import Objective
from trainer.optim import build_optimizer, parameter_groups
from trainer.packing import PackedTokens
from trainer.settings import ConfigError
from trainer.world import World, leave_world

SIZES = {"large": (), "demo": DEMO}
WARM_UP = 5  # steps, in which kernels are compiled and chosen
TIMED = 5  # steps beside a profile
TOLD = 40  # kernels of a profile that gpu.json has by name
COMPILING = 80.0  # seconds after --end when a row that still compiles is given up
COMPARED = 4096  # tokens at most of the comparison with float32, whose formula stores every weight of attention
DEEP = 4  # layers of that comparison: the errors of 24 layers' roundings would hide a mistake in one
# How far off a gradient may be, as a multiple of the formula's in bfloat16. What eight bits round away is only told.
TOLERANCE, FREE = 2.0, 1e6


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


def main() -> None:
    """Measure part after part."""
    arguments = _parse()
    be_the_only_rank()
    if arguments.device == "cpu":
        require_cpu()
    arguments.output.mkdir(parents=True, exist_ok=True)
    world = join_world(threads=0)
    ceiling, bandwidth = measure_ceiling(world.device, torch.bfloat16), copy_bandwidth(world.device)
    machine = torch.cuda.get_device_name() if world.device.type == "cuda" else "CPU"
    about = {"machine": machine, "torch": torch.__version__, "ceiling": ceiling, "bandwidth": bandwidth}
    parts = Parts(
        arguments.output / "gpu", about, lambda records: page(about, records), arguments.end, arguments.go_on,
        arguments.patience,
    )  # fmt: skip
    batches = dict(zip(arguments.lengths, arguments.batches, strict=True))
    last = parts.began + arguments.end + COMPILING
    bench = Bench(arguments.shards, world, ceiling, bandwidth, batches, arguments.size, arguments.seconds, last)
    for part in all_parts(bench, arguments.rows):
        if part.kind in arguments.kinds:
            parts.run(*part)
    print(page(about, parts.records))
    leave_world()
    sys.exit(not parts.complete)


class Part(NamedTuple):
    """See Parts.run."""

    kind: str
    name: str
    measure: Callable[[], Any]
    needs: tuple[str, ...] = ()


OWN_KERNELS, GRAPHS = "kernels of our own", "CUDA graphs"  # compared with float32 before any part that has them
KINDS_OF_PARTS = ("attention", "dropout", "row", "profile", "error")


def all_parts(bench: Bench, rows: Sequence[str] | None = None) -> Iterator[Part]:
    """What matters most comes first; rows that are named come alone."""
    if rows is not None:
        yield from _rows([row for row in LADDER if row.name in rows], list(bench.batches), bench)
        return
    yield Part("dropout", "of attention", partial(dropout_in_effect, bench.world.device))
    first = [row for row in (BEST_IN_GRAPHS, bench.best) if row in bench.ladder]
    for length in bench.batches:
        if bench.best.fused:  # before what they compute is timed
            yield _errors(OWN_KERNELS, _by_own_kernels, length, bench)
            yield _errors(GRAPHS, _in_graphs, length, bench, needs=(OWN_KERNELS,))
        yield from _rows(first, [length], bench)
        yield _profile(first[0], length, bench)
        if bench.best.fused:
            yield Part(
                "attention", f"{length} tokens", partial(attention_alone, length, bench), _named(length, OWN_KERNELS)
            )
            own_dropout = partial(own_dropout_in_effect, bench.world.device)
            # Whatever the length, and so once.
            yield Part("dropout", "of our own kernels", own_dropout, _named(length, OWN_KERNELS))
        yield from _rows([PEER], [length], bench)
        yield _errors("operations of torch", _by_operations, length, bench)
        yield _errors("torch.compile", _compiled, length, bench)
        others = [row for row in bench.ladder if row not in (*first, PEER)]
        yield from _rows(others, [length], bench)
        yield _profile(PEER, length, bench)  # it is compiled as a whole once more
        yield _errors("eight bits", _in_eight_bits, length, bench, FREE)


def _named(length: int, *ways: str) -> tuple[str, ...]:
    """What the comparisons of ways with float32 are called."""
    return tuple(f"{length} tokens, {way}" for way in ways)


def _needs(row: Row, length: int) -> tuple[str, ...]:
    return _named(length, *([OWN_KERNELS] * row.fused), *([GRAPHS] * row.graphs))


def _profile(row: Row, length: int, bench: Bench) -> Part:
    name = f"{row.name}, {length} tokens"
    return Part("profile", name, partial(profile, row, length, bench), _needs(row, length))


def _rows(rows: Sequence[Row], lengths: Sequence[int], bench: Bench) -> Iterator[Part]:
    for length in lengths:
        for row in rows:
            name = f"{row.name}, {length} tokens"
            yield Part("row", name, partial(train, row, length, bench), _needs(row, length))


# --- Dropout and rounding ---


def dropout_in_effect(device: torch.device, probability: float = 0.1) -> list[dict[str, Any]]:
    """What attention drops by torch's choice of a kernel, without cuDNN's, and in the trainer, of bf16 with a mask.

    All scores are equal and the values are the identity, so that the weights themselves come out, and zeros can be
    counted: of 4 million weights, which tells 0.1 from 1/16 and from 1/8. Their mean, times their number, should be 1.
    """
    use_deterministic_kernels(False, device)  # cuDNN's kernel is none of those
    query, value, packed = _even_attention(device)
    mask = torch.zeros(len(query), 1, 1, query.shape[2], dtype=torch.bfloat16, device=device)
    torch.manual_seed(1)
    rows, values = (x.transpose(1, 2).flatten(0, 1) for x in (query, value))  # [B*S, N, H]
    weights = {"trainer.attention": attention(rows, rows, values, packed, None, probability)}
    for cudnn in (True, False):
        torch.backends.cuda.enable_cudnn_sdp(cudnn)
        backend = SDPBackend(torch._fused_sdp_choice(query, query, value, mask, probability)).name
        way = f"SDPA{'' if cudnn else ' without cuDNN'}: {backend}"
        weights[way] = F.scaled_dot_product_attention(query, query, value, mask, probability)
    torch.backends.cuda.enable_cudnn_sdp(True)
    return [_dropped(way, of_way, probability) for way, of_way in weights.items()]


def own_dropout_in_effect(device: torch.device, probability: float = 0.1) -> list[dict[str, Any]]:
    """As dropout_in_effect, what our own kernels drop."""
    from trainer.fused_attention import Attention, How  # its kernels want triton

    query, value, packed = _even_attention(device)
    rows, values = (x.transpose(1, 2).flatten(0, 1).flatten(1) for x in (query, value))  # [B*S, N*H]
    seed = torch.ones(1, dtype=torch.int64, device=device)
    how = How(packed, packed, query.shape[1], False, probability, seed)
    return [_dropped(OWN_KERNELS, Attention.apply(rows, rows, values, how), probability)]


def _even_attention(device: torch.device) -> tuple[Tensor, Tensor, PackedTokens]:
    """Queries, which are the keys too, values, [B, N, S, H], and the tokens, [B*S]."""
    size, heads, width = 64, 16, 64
    query = torch.zeros(size, heads, width, width, dtype=torch.bfloat16, device=device, requires_grad=True)
    value = torch.eye(width, dtype=torch.bfloat16, device=device).expand(size, heads, width, width)
    ids = torch.zeros(size * width, dtype=torch.int64)
    return query, value, PackedTokens.from_flat(ids, ids, torch.full((size,), width)).to(device)


def _dropped(way: str, weights: Tensor, probability: float) -> dict[str, Any]:
    weights = weights.detach().double()
    dropped, mean = float((weights == 0).double().mean()), float(weights.mean()) * weights.shape[-1]
    return {"way": way, "asked": probability, "dropped": dropped, "mean": mean}


def attention_alone(length: int, bench: Bench) -> list[dict[str, Any]]:
    """What attention takes in a layer of BERT-LARGE, of a step's sequences."""
    (batch,) = bench.steps(bench.best, bench.recipe(bench.best, length))[0]
    return measure_attention(length, batch.lengths.long(), bench.world.device)


FORMULA = "the formula, bfloat16"
Found = dict[str, Tensor]  # the loss, and gradients by parameter
Ways = Callable[[BertForPreTraining, Batch], dict[str, Found]]


def _errors(
    way: str, ways: Ways, length: int, bench: Bench, tolerance: float = TOLERANCE, needs: Sequence[str] = ()
) -> Part:
    (name,) = _named(length, way)
    compare = partial(compare_with_float32, ways, length, bench, tolerance)
    return Part("error", name, compare, _named(length, *needs))


def compare_with_float32(ways: Ways, length: int, bench: Bench, tolerance: float) -> dict[str, Any]:
    """Relative errors of loss and gradients in bfloat16, by some ways to compute them, against float32's formula.

    Dropout is off, no bias is zero, attention is sharp, and the batch is real text, so that every term counts.

    Raises:
        ArithmeticError: a gradient is further off than bfloat16 explains, or not a number.
    """
    batch_size = min(COMPARED // length, bench.batches[length])
    none = "model.hidden_dropout_prob=0.0", "model.attention_probs_dropout_prob=0.0"
    settings = *none, f"model.num_hidden_layers={DEEP}"
    recipe = bench.recipe(bench.best, length, *settings, batch=batch_size)
    use_deterministic_kernels(recipe.train.deterministic, bench.world.device)
    batch = bench.steps(bench.best, recipe)[0][0].to(bench.world.device)
    model = _random_model(recipe.model).to(bench.world.device)
    with mock.patch("trainer.attention._fastest", return_value="reference"):
        exact = _loss_and_gradients(model, batch)
        formula = _loss_and_gradients(model.bfloat16(), batch)
    errors = {
        way: {name: float((found[name] - x).norm() / x.norm()) for name, x in exact.items()}
        for way, found in {FORMULA: formula, **ways(model, batch)}.items()
    }
    usual = statistics.median(errors[FORMULA].values())  # some of few numbers are right by chance
    for way, off in errors.items():
        for name in exact:
            if not off[name] <= (allowed := tolerance * max(errors[FORMULA][name], usual)):
                raise ArithmeticError(
                    f"{way}: {name} is {off[name]:.1e} off float32's gradient, where bfloat16 explains {allowed:.1e}"
                )
    figures = {
        way: {"loss": off["loss"], "median": statistics.median(off.values()), "worst": max(off.values())}
        for way, off in errors.items()
    }
    return {"length": length, "samples": batch_size, "errors": figures}


def _random_model(config: BertConfig) -> BertForPreTraining:
    """In float32, of numbers that bfloat16 has too."""
    model, generator = BertForPreTraining(config, seed=3), torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
            else:
                parameter.mul_(64 / config.hidden_size**0.5)  # 2 for BERT-LARGE; scores of about 1.6 at any width
            parameter.copy_(parameter.bfloat16())
    return model


def _by_operations(model: BertForPreTraining, batch: Batch) -> dict[str, Found]:
    with mock.patch("trainer.attention._fastest", return_value="sdpa"):
        padded = _loss_and_gradients(model, batch)
    return {"SDPA with dropout 0": padded, "packed sequences": _loss_and_gradients(model, batch)}


def _compiled(model: BertForPreTraining, batch: Batch) -> dict[str, Found]:
    model.bert.compile_layers()
    objective = Objective(model, batch.lengths.device, torch.compile(pretraining_losses))
    return {"packed sequences, compiled": _loss_and_gradients(model, batch, objective)}


def _by_own_kernels(model: BertForPreTraining, batch: Batch) -> dict[str, Found]:
    from trainer.fused import fuse  # its kernels want triton

    fuse(model.bert.layers, model.config)
    return {"packed sequences, kernels of our own": _loss_and_gradients(model, batch)}


def _in_eight_bits(model: BertForPreTraining, batch: Batch) -> dict[str, Found]:
    to_fp8(model.bert.layers, batch.lengths.device)
    return {f"{way}, eight bits": found for way, found in _compiled(model, batch).items()}


def _in_graphs(model: BertForPreTraining, batch: Batch) -> dict[str, Found]:
    from trainer.fused import fuse  # its kernels want triton

    fuse(model.bert.layers, model.config)
    objective = InGraphs(Objective(model, batch.lengths.device))
    tokens = replace(batch.tokens, input_ids=batch.tokens.input_ids.flip(0))
    _loss_and_gradients(model, replace(batch, tokens=tokens), objective)  # of which nothing may be left
    return {"kernels of our own in CUDA graphs, replayed": _loss_and_gradients(model, batch, objective)}


def _loss_and_gradients(model: BertForPreTraining, batch: Batch, objective: nn.Module | None = None) -> Found:
    """By the model itself or, where it is given, by an objective of it."""
    model.zero_grad()
    losses = (objective or Objective(model, batch.lengths.device))(batch)
    loss = losses.mlm_loss / (batch.mlm_labels != EMPTY_SLOT).sum() + losses.nsp_loss / len(batch.indices)
    loss.backward()
    gradients = {name: p.grad.double() for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": loss.detach().double(), **gradients}


# --- Training ---


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


# --- The page ---


def page(about: dict[str, Any], records: list[dict[str, Any]]) -> str:
    """All tables, of what there is."""
    return "\n".join(_sections(about, records))


def _sections(about: dict[str, Any], records: list[dict[str, Any]]) -> Iterator[str]:
    yield (
        f"{about['machine']}, torch {about['torch']}: {about['ceiling'] / 1e12:.3g} TFLOP/s of bf16 products (100 %), "
        f"{about['bandwidth'] / 1e9:,.0f} GB/s of copying.\n"
    )
    order = [row.name for row in LADDER]
    rows = sorted(found_by(records, "row").values(), key=lambda row: (row["length"], order.index(row["row"])))
    if rows:
        names = ("", "tokens", "dropout", "batch", "steps", "seq/s", "real tokens/s", "predicted", "TFLOP/s",
                 "of the ceiling", "padding", "data wait", "GB")  # fmt: skip
        yield markdown_table([names, *map(_row, rows)], range(1, len(names)))
        yield "TFLOP/s count the last layer whole. Ours computes it where it is read: 2.9 % less for BERT-LARGE.\n"
    for found in found_by(records, "profile").values():
        yield f"One step, {found['row']}, {found['length']} tokens, of a profile:\n"
        total, step = sum(found["kinds"].values()), found["step"]
        sums = {"all kernels": total, "the step, not profiled": step, "difference": step - total}
        table = {**found["kinds"], **sums}
        lines = [[what, f"{ms:.1f}", f"{ms / step:.1%}"] for what, ms in table.items()]
        yield markdown_table([["what", "ms", "share"], *lines], (1, 2))
        of_attention = [f"`{name[:90]}`" for _, _, name in found["kernels"] if kind_of(name) == "attention"]
        yield f"{found['launches']:,} launches. Attention's kernels: {', '.join(of_attention) or 'none'}\n"
    if attention_ := [one for found in found_by(records, "attention").values() for one in found]:
        yield attention_table(attention_)
    if lines := [
        [one["way"], f"{one['asked']:g}", f"{one['dropped']:.4f}", f"{one['mean']:.4f}"]
        for found in found_by(records, "dropout").values()
        for one in found
    ]:
        yield markdown_table(
            [["dropout of attention's weights", "asked for", "dropped", "mean weight"], *lines], (1, 2, 3)
        )
    compared = [
        [str(found["length"]), way, *(f"{error[figure]:.1e}" for figure in ("loss", "median", "worst"))]
        for found in found_by(records, "error").values()
        for way, error in found["errors"].items()
    ]
    if compared:
        heading = ("tokens", "error against float32", "loss", "a parameter's gradient, median", "the worst")
        yield markdown_table([heading, *compared], (0, 2, 3, 4))
    if lost := missing(records):
        yield markdown_table([["not measured", "", "why"], *lost])


def _row(row: dict[str, Any]) -> list[str]:
    return [
        row["row"], str(row["length"]), row["dropout"], str(row["batch"]), str(row["steps"]),
        f"{row['sequences']:,.0f}", f"{row['tokens']:,.0f}", f"{row['predicted']:,.0f}", f"{row['tflops']:.3g}",
        f"{row['ceiling']:.1%}", f"{row['padding']:.1%}", f"{row['wait']:.1%}", f"{row['memory_gb']:.1f}",
    ]  # fmt: skip


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--size", choices=sorted(SIZES), default="large")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--lengths", type=int, nargs="+", required=True, help="of sequences, in tokens")
    parser.add_argument("--batches", type=int, nargs="+", required=True, help="samples of a micro-batch, per length")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each row")
    parser.add_argument(
        "--end",
        type=float,
        default=440.0,
        help=f"seconds from the start when no part is begun any more, and {COMPILING:.0f} "
        "more until a row ends that still compiles",
    )
    parser.add_argument(
        "--patience", type=float, default=240.0, help="seconds until a part is given up, and the process with it"
    )
    parser.add_argument("--go-on", action="store_true", help="leave out what OUTPUT/gpu.json has a record of")
    parser.add_argument(
        "--kinds", nargs="+", choices=KINDS_OF_PARTS, default=KINDS_OF_PARTS, help="of parts, these alone"
    )
    parser.add_argument("--rows", nargs="+", choices=[row.name for row in LADDER], help="measure these alone")
    arguments = parser.parse_args()
    if len(arguments.lengths) != len(arguments.batches):
        parser.error("--batches: as many as --lengths")
    arguments.shards = open_shards(parser, arguments)
    for length in arguments.lengths:
        if length not in arguments.shards.manifest.sequence_lengths:
            parser.error(f"{arguments.shards.path}: no pairs of {length} tokens, only of "
                         f"{arguments.shards.manifest.sequence_lengths}")  # fmt: skip
    return arguments


if __name__ == "__main__":
    main()
