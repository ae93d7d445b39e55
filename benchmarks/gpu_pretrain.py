"""BERT-LARGE on one GPU: correctness, the ladder of measures, the peers, and where the time of a step goes.

    python benchmarks/gpu_pretrain.py --shards shards/ --output gpu/       # under 8 minutes on an H200

Everything trains through the trainer's own engine and loader on real shards of 128 and 512 tokens (`beam run
preprocessing/make_shards.py ... --sequence-lengths 128 512`). The peers are transformers' BertForPreTraining with SDPA,
padded, in a DeepSpeed engine of the same settings, plain and by torch.compile. Rates count real tokens; TFLOP/s by
trainer.metrics.training_flops; the ceiling is a bf16 product of 8192^3 in the same run. OUTPUT/gpu.md has the tables,
OUTPUT/gpu.json the figures. `--device cpu --size demo` shows that the script works where there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
sys.path = [str(ROOT), *(folder for folder in sys.path if Path(folder).name != "benchmarks")]

from benchmarks import transformers_pretraining as transformers_model
from benchmarks.gpu_predictions import BEST, LADDER, Row, predict
from preprocessing.schema import ShardDirectory
from trainer.config import Recipe, load_recipe, resolve_deepspeed
from trainer.data import Batch, SampleStream
from trainer.engine import Engine, join_world
from trainer.loading import StepReader, Steps
from trainer.metrics import measure_ceiling, training_flops
from trainer.model import EMPTY_SLOT, BertForPreTraining, Losses, pretraining_losses
from trainer.optim import build_optimizer, parameter_groups
from trainer.world import World, leave_world

SIZES = {
    "large": [],
    "demo": ["model.hidden_size=128", "model.num_hidden_layers=2", "model.num_attention_heads=2",
             "model.intermediate_size=512"],
}  # fmt: skip
Errors = dict[int, dict[str, dict[str, float]]]  # of a sequence length and a way: of the loss and of the gradient
WARM_UP = 5  # steps, in which kernels are compiled and chosen


@dataclass(frozen=True)
class Measured:
    """Rates of a row; `wait` is the share of time that steps waited for the loader, `predicted` of tokens a second."""

    name: str
    length: int
    dropout: str
    batch: int
    sequences: float
    tokens: float
    predicted: float
    tflops: float
    ceiling: float
    padding: float
    wait: float
    memory_gb: float


def main() -> None:
    """Measure and write the tables."""
    arguments = _parse()
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_WORLD_SIZE", "1"),
                        ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29655")):  # fmt: skip
        os.environ.setdefault(name, value)
    if arguments.device == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
    arguments.output.mkdir(parents=True, exist_ok=True)
    shards = ShardDirectory(arguments.shards)
    world = join_world(threads=0)
    ceiling = measure_ceiling(world.device, torch.bfloat16)
    bandwidth = copy_bandwidth(world.device)
    errors = {length: compare_with_reference(shards, length, arguments, world) for length in arguments.lengths}
    measured, profiles = [], {}
    for length in arguments.lengths:
        for row in LADDER:
            found = measure(row, length, shards, arguments, world, (ceiling, bandwidth))
            print(json.dumps(vars(found)), flush=True)
            measured.append(found)
        if world.device.type == "cuda":
            profiles[length] = profile_step(BEST, length, shards, arguments, world)
    text = "\n".join(_page(world, ceiling, bandwidth, errors, measured, profiles)) + "\n"
    (arguments.output / "gpu.md").write_text(text, encoding="utf-8")
    figures = {"ceiling": ceiling, "bandwidth": bandwidth, "errors": errors, "profiles": profiles,
               "rows": [vars(found) for found in measured]}  # fmt: skip
    (arguments.output / "gpu.json").write_text(json.dumps(figures, indent=1), encoding="utf-8")
    print(text)
    leave_world()


def copy_bandwidth(device: torch.device) -> float:
    """Bytes a second read and written by a large copy."""
    source = torch.zeros((1 << 30) if device.type == "cuda" else (1 << 26), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = []
    for _ in range(6):
        _wait(device)
        began = time.perf_counter()
        target.copy_(source)
        _wait(device)
        seconds.append(time.perf_counter() - began)
    return 2 * source.numel() / min(seconds)


def compare_with_reference(
    shards: ShardDirectory, length: int, arguments: argparse.Namespace, world: World
) -> dict[str, dict[str, float]]:
    """Relative errors of loss and gradient in bfloat16 against float32's formula: of the fast path and of the formula.

    Dropout is off, weights are random and large enough for every term to count, the batch is real text.
    """
    recipe = _recipe(arguments, length, *BEST.settings, "model.hidden_dropout_prob=0.0")
    batch = _steps(recipe, shards, world)[0][0].to(world.device)
    model = BertForPreTraining(recipe.model, seed=3).to(world.device)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0).copy_(parameter.bfloat16())
    with mock.patch("trainer.attention._fastest", return_value="reference"):
        exact = _loss_and_gradient(model, batch)
        plain = _loss_and_gradient(model.bfloat16(), batch)
    fast = _loss_and_gradient(model, batch)
    for layer in model.bert.layers:
        layer.compile()
    compiled = _loss_and_gradient(model, batch, torch.compile(pretraining_losses))
    ways = {"fast path, bfloat16": fast, "fast path, compiled": compiled,
            "the formula, bfloat16": plain}  # fmt: skip
    return {
        name: {
            "loss": abs(float(loss) / float(exact[0]) - 1),
            "gradient": float((gradient - exact[1]).norm() / exact[1].norm()),
        }
        for name, (loss, gradient) in ways.items()
    }


def _loss_and_gradient(
    model: BertForPreTraining, batch: Batch, losses_of: Callable[..., Losses] = pretraining_losses
) -> tuple[Tensor, Tensor]:
    model.zero_grad()
    words, sentences = model(batch.tokens, batch.positions)
    losses = losses_of(words, batch.mlm_labels, sentences, batch.nsp_labels)
    loss = losses.mlm_loss / (batch.mlm_labels != EMPTY_SLOT).sum() + losses.nsp_loss / len(batch.indices)
    loss.backward()
    gradients = [p.grad.double().flatten() for p in model.parameters() if p.grad is not None]
    return loss.detach(), torch.cat(gradients)


def measure(
    row: Row, length: int, shards: ShardDirectory, arguments: argparse.Namespace, world: World,
    rates: tuple[float, float],
) -> Measured:  # fmt: skip
    """Train for some seconds, after some steps that don't count; rates are those of a product and of a copy."""
    recipe = _recipe(arguments, length, *row.settings)
    (phase,) = recipe.phases
    if world.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    trainer = Peer(recipe, row.compiled, world) if row.peer else Ours(recipe, world)
    reader = StepReader(_steps(recipe, shards, world, padded=row.peer), 0, phase.steps, arguments.workers)
    sequences = tokens = slots = flops = waited = foretold = 0.0
    began = last = time.perf_counter()
    for number, batches in enumerate(reader):
        waiting = time.perf_counter() - last
        trainer.step(number, batches, reader.read_ahead)
        last = time.perf_counter()
        if number < WARM_UP:
            began = last
            continue
        lengths = torch.cat([batch.lengths for batch in batches])
        sequences += len(lengths)
        tokens += float(lengths.sum())
        slots += sum(
            batch.tokens.longest * len(batch.indices) if row.peer else len(batch.tokens.input_ids) for batch in batches
        )
        predictions = sum(len(batch.mlm_labels) for batch in batches)
        flops += training_flops(recipe.model, lengths, predictions)
        foretold += sum(predict(recipe.model, row, lengths, length, predictions, *rates).values())
        waited += waiting
        if last - began > arguments.seconds:
            break
    took = last - began
    reader.close()
    trainer.close()
    memory = torch.cuda.max_memory_allocated() if world.device.type == "cuda" else 0
    model = recipe.model
    return Measured(
        row.name, length, f"{model.hidden_dropout_prob:g} / {model.attention_probs_dropout_prob:g}",
        phase.micro_batch_size, sequences / took, tokens / took, tokens / foretold, flops / took / 1e12,
        flops / took / rates[0],
        1 - tokens / slots, waited / took, memory / 1e9,
    )  # fmt: skip


class Ours:
    """The trainer's engine."""

    def __init__(self, recipe: Recipe, world: World) -> None:
        config = resolve_deepspeed(ROOT / "ds_config.json", recipe, recipe.phases[0], world.size)
        self._recipe = recipe
        self._engine = Engine(recipe, config, world)

    def step(self, number: int, batches: list[Batch], meanwhile: Callable[[], None]) -> None:
        """One update."""
        totals = self._engine.count_step(batches, stop=False)
        rate = self._recipe.learning_rate(number)
        self._engine.train_step(number, list(enumerate(batches)), totals, rate, meanwhile)

    def close(self) -> None:
        """Let go of the memory."""
        self._engine.close()


class Peer:
    """Transformers' model in a DeepSpeed engine of the same settings, as DeepSpeed makes it."""

    def __init__(self, recipe: Recipe, compiled: bool, world: World) -> None:
        import deepspeed

        model = transformers_model.build(recipe.model, recipe.train.seed)
        config = resolve_deepspeed(ROOT / "ds_config.json", recipe, recipe.phases[0], world.size)
        self._recipe, self._device = recipe, world.device
        self._optimizer = build_optimizer(parameter_groups(model, recipe.optimizer.weight_decay), recipe.optimizer)
        self._engine, *_ = deepspeed.initialize(
            model=torch.compile(model) if compiled else model, optimizer=self._optimizer, config=config
        )

    def step(self, number: int, batches: list[Batch], meanwhile: Callable[[], None]) -> None:
        """One update."""
        for group in self._optimizer.param_groups:
            group["lr"] = self._recipe.learning_rate(number)
        for batch in batches:
            assert isinstance(batch, transformers_model.PaddedBatch)
            loss = self._engine(**batch.inputs_on(self._device)).loss
            self._engine.backward(loss)
            self._engine.step()
        meanwhile()
        loss.item()  # as ours ends its step

    def close(self) -> None:
        """Let go of the memory."""
        self._engine.destroy()


KINDS = (  # of kernels, by a part of their name
    ("matrix products", ("gemm", "cutlass", "nvjet", "cublas", "xmma")),
    ("attention", ("flash", "fmha", "attention", "softmax")),
    ("optimizer", ("adam", "multi_tensor", "foreach", "lamb")),
    ("copies", ("memcpy", "memset")),
)


def profile_step(
    row: Row, length: int, shards: ShardDirectory, arguments: argparse.Namespace, world: World
) -> dict[str, float]:
    """Milliseconds of one step by kind of kernel; "launch gaps" is when the GPU had nothing to do."""
    recipe = _recipe(arguments, length, *row.settings)
    trainer, steps = Ours(recipe, world), _steps(recipe, shards, world)
    for number in range(WARM_UP):
        trainer.step(number, steps[number], _nothing)
    batches = steps[WARM_UP]
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        _wait(world.device)
        began = time.perf_counter()
        trainer.step(WARM_UP, batches, _nothing)
        _wait(world.device)
        took = time.perf_counter() - began
    milliseconds: dict[str, float] = {}
    for event in profile.key_averages():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            name = event.key.lower()
            kind = next((kind for kind, parts in KINDS if any(part in name for part in parts)), "elementwise")
            milliseconds[kind] = milliseconds.get(kind, 0.0) + event.self_device_time_total / 1e3
    trainer.close()
    return {**milliseconds, "launch gaps": 1e3 * took - sum(milliseconds.values()), "step": 1e3 * took}


def _recipe(arguments: argparse.Namespace, length: int, *settings: str) -> Recipe:
    batch = arguments.batches[arguments.lengths.index(length)]
    predictions = -(-length * 15 // 100)
    phase = (f"{{sequence_length={length}, steps=100000, global_batch_size={batch}, micro_batch_size={batch}, "
             f"max_predictions={predictions}}}")  # fmt: skip
    vocabulary = ShardDirectory(arguments.shards).manifest.vocabulary.size
    base = [f"model.vocab_size={vocabulary}", f"phases=[{phase}]", f"data.workers={arguments.workers}"]
    return load_recipe(ROOT / "trainer" / "recipes" / "bert_large.toml", [*base, *SIZES[arguments.size], *settings])


def _nothing() -> None:
    """Every batch is here already."""


def _steps(recipe: Recipe, shards: ShardDirectory, world: World, padded: bool = False) -> Steps:
    (phase,) = recipe.phases
    stream = SampleStream(
        shards, "train", phase.sequence_length, seed=recipe.train.seed, max_predictions=phase.max_predictions,
        masking=recipe.masking, data=replace(recipe.data, workers=0),
    )  # fmt: skip
    kind = transformers_model.PaddedSteps if padded else Steps
    return kind(stream, phase.global_batch_size, phase.micro_batch_size, world.rank, world.size)


def _page(
    world: World, ceiling: float, bandwidth: float, errors: Errors, measured: list[Measured],
    profiles: dict[int, dict[str, float]],
) -> Iterator[str]:  # fmt: skip
    machine = torch.cuda.get_device_name() if world.device.type == "cuda" else "CPU"
    yield f"{machine}, torch {torch.__version__}: {ceiling / 1e12:.3g} TFLOP/s of bf16 products (100 %), "
    yield f"{bandwidth / 1e9:,.0f} GB/s of copying."
    yield ""
    yield "| tokens | error against float32 | loss | gradient, norm of the difference |"
    yield "| --- | --- | --- | --- |"
    for length, ways in errors.items():
        for name, error in ways.items():
            yield f"| {length} | {name} | {error['loss']:.1e} | {error['gradient']:.1e} |"
    yield ""
    yield (
        "| | tokens | dropout | batch | seq/s | real tokens/s | predicted | TFLOP/s | of the ceiling | padding "
        "| data wait | GB |"
    )
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for row in measured:
        yield (
            f"| {row.name} | {row.length} | {row.dropout} | {row.batch} | {row.sequences:,.0f} | {row.tokens:,.0f} "
            f"| {row.predicted:,.0f} | {row.tflops:.3g} | {row.ceiling:.1%} | {row.padding:.1%} | {row.wait:.1%} "
            f"| {row.memory_gb:.1f} |"
        )
    for length, profile in profiles.items():
        yield from (
            "",
            f"One step of {length} tokens, milliseconds:",
            "",
            "| what | ms | share |",
            "| --- | --- | --- |",
        )
        for kind, milliseconds in profile.items():
            yield f"| {kind} | {milliseconds:.1f} | {milliseconds / profile['step']:.1%} |"


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--size", choices=sorted(SIZES), default="large")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512])
    parser.add_argument(
        "--batches", type=int, nargs="+", default=[256, 64], help="samples of a micro-batch, per length"
    )
    parser.add_argument("--seconds", type=float, default=12.0, help="of each row")
    parser.add_argument("--workers", type=int, default=4, help="loader processes")
    return parser.parse_args()


if __name__ == "__main__":
    main()
