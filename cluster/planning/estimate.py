"""Make a plan: what a recipe takes on a number of GPUs, from the models of memory, time and network."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from cluster.planning.activations import Kernel, MicroBatch, fastest_kernel, kept_bytes, largest_micro_batch
from cluster.planning.hardware import GPUS
from cluster.planning.network import count_nodes
from cluster.planning.plans import Assumptions, Cluster, PhasePlan, Plan, StagePlan
from cluster.planning.sharding import STAGES, States, model_states
from cluster.planning.throughput import Speed, Work, step_time
from preprocessing.schema import PAIR, token_type
from preprocessing.terminal import counted
from trainer.config import Phase, Recipe
from trainer.deepspeed_config import wants_whole_parameters
from trainer.metrics import training_flops
from trainer.model import BertConfig, parameter_count, parameter_shapes
from trainer.packing import filling_sequences
from trainer.settings import ConfigError

# Bytes that are read and written to update a parameter: by trainer.optim, Adam in one pass and LAMB by many operations;
# and by DeepSpeed, which turns the gradient to float32, takes its norm, scales it, and turns the new weight to 16 bits.
UPDATE_BYTES = {"bert_adam": 28, "adamw": 28, "lamb": 120}
_CONVERSION_BYTES = 24
TEMPORARY_BYTES = {"bert_adam": 0, "adamw": 0, "lamb": 12}  # of a parameter, while it is updated
# Operations that are launched for a micro-batch, forward and backward: of a layer, and of all else. Kernels of our own
# are fewer, and as many more by the time that Triton takes to launch one (docs/results/gpu.md).
LAYER_OPERATIONS: dict[Kernel, int] = {"sdpa": 150, "varlen": 100, "grouped": 150, "fused": 165}
OTHER_OPERATIONS = 150
_RECOMPUTED_OPERATIONS = 1.4  # times as many, under checkpointing
# The same for a gradient, in the time of operations (docs/results/gpu.md). Where the rest is in CUDA graphs, it is
# handed out and added up; from ZeRO 2 on DeepSpeed's Python looks after it in every backward pass.
_GRADIENT_IN_GRAPHS, _GRADIENT_LOOKED_AFTER = 2, 12
# data.token_multiple for CUDA graphs: the largest that is such a share of a micro-batch's tokens. Some 2 % of the work
# fills it up then, and there are few numbers of tokens, for each of which graphs are recorded.
_MULTIPLES, _SHARE_OF_TOKENS = (64, 128, 256, 512, 1024), 1 / 32
BUCKET = 50_000_000  # elements of gradients sent at a time, of which a large model has several
_STATE_BYTES = 12  # of a parameter in a checkpoint: float32 weight and two moments
_PAIR_BYTES = sum(field.type.bit_width for field in PAIR) / 8  # that each node's loaders read of every sample


@dataclass(frozen=True)
class _Case:
    """What a plan is asked of; see make_plan."""

    recipe: Recipe
    cluster: Cluster
    assumptions: Assumptions
    micro_batches: Sequence[int] | None

    def on(self, **changes: Any) -> _Case:
        """On another cluster."""
        return replace(self, cluster=replace(self.cluster, **changes))

    def sharded(self, **changes: Any) -> _Case:
        """With DeepSpeed set otherwise."""
        return self.on(sharding=replace(self.cluster.sharding, **changes))

    @property
    def usable(self) -> float:
        """Bytes of a GPU that may be taken."""
        return self.cluster.gpu.memory * (1 - self.assumptions.headroom)


def make_plan(
    recipe: Recipe, cluster: Cluster, assumptions: Assumptions, micro_batches: Sequence[int] | None = None
) -> Plan:
    """Plan a recipe.

    Args:
        recipe: to train.
        cluster: on which; its GPUs can share every batch, see check_shares.
        assumptions: to take.
        micro_batches: of each phase; None takes the largest that fit and divide what a GPU has of a batch.

    Raises:
        ConfigError: precision and GPU do not go together, or nothing fits.
    """
    if cluster.sharding.precision == "bf16" and not cluster.gpu.bfloat16:
        raise ConfigError(
            f"a {cluster.gpu.name} has no bfloat16: take a DeepSpeed configuration with fp16 or in float32"
        )
    if recipe.train.fused and not cluster.gpu.bfloat16:
        raise ConfigError(f"train.fused has kernels for GPUs from Ampere on, and a {cluster.gpu.name} is older")
    case, parameters = _Case(recipe, cluster, assumptions, micro_batches), parameter_count(recipe.model)
    phases = _plan_phases(case)
    token_bytes = token_type(recipe.model.vocab_size).bit_width / 8
    multiple = _multiple_in_graphs(recipe, phases, assumptions)
    pair_bytes = _PAIR_BYTES * count_nodes(cluster.gpus, cluster.gpu.node)
    fastest = max(plan.rate * (plan.length * assumptions.fill * token_bytes + pair_bytes) for plan in phases)
    return Plan(
        cluster=cluster,
        assumptions=assumptions,
        parameters=parameters,
        states=_states(case),
        usable=case.usable,
        phases=phases,
        unreached=_of_unreached(recipe, len(phases), cluster.gpus),
        stages=[_plan_stage(case, stage) for stage in STAGES],
        checkpoint=parameters * _STATE_BYTES,
        checkpoint_every=recipe.checkpoint.every,
        read_rate=fastest,
        hours_in_buckets=_hours_in_buckets(case),
        hours_in_graphs=_hours_in_graphs(case, multiple),
        multiple_in_graphs=multiple,
    )


def _of_unreached(recipe: Recipe, reached: int, gpus: int) -> dict[int, int]:
    own = [phase.micro_batch_size for phase in recipe.phases]
    fitting = _at_most(recipe, gpus, own)
    return {i: fitting[i] for i in range(reached, len(own)) if fitting[i] != own[i]}


def _multiple_in_graphs(recipe: Recipe, phases: Sequence[PhasePlan], assumptions: Assumptions) -> int:
    if recipe.data.token_multiple > 1:
        return recipe.data.token_multiple
    fewest = min(phase.micro_batch * phase.length for phase in phases) * assumptions.fill
    return max((size for size in _MULTIPLES if size <= fewest * _SHARE_OF_TOKENS), default=_MULTIPLES[0])


def _hours_in_graphs(case: _Case, multiple: int) -> float | None:
    recipe = case.recipe
    if recipe.model.activation_checkpointing:  # which has none, see trainer.config.Recipe
        return None
    train, data = replace(recipe.train, cuda_graphs=True), replace(recipe.data, token_multiple=multiple)
    return _hours(replace(case.sharded(stage=1), recipe=replace(recipe, train=train, data=data)))


def _hours_in_buckets(case: _Case) -> float | None:
    sharding = case.cluster.sharding
    if case.cluster.gpus == 1 or not sharding.hides_reduction or sharding.bucket < parameter_count(case.recipe.model):
        return None
    return _hours(case.sharded(bucket=BUCKET))


def check_shares(recipe: Recipe, gpus: int) -> None:
    """See that every batch can be dealt out.

    Raises:
        ConfigError: it can't; the message has the nearest numbers that can.
    """
    able = _divisors(math.gcd(*(phase.global_batch_size for phase in recipe.phases)))
    for i, phase in enumerate(recipe.phases):
        batch = phase.global_batch_size
        if batch % gpus:
            *less, near = [max(d for d in able if d < gpus), *(d for d in able if d > gpus)][:2]
            raise ConfigError(
                f"{gpus} GPUs can't share phase {i}'s batch of {counted(batch, 'sequence')} equally: "
                f"take {' or '.join([*map(str, less), counted(near, 'GPU')])}, or another phases.{i}.global_batch_size"
            )


def _plan_phases(case: _Case) -> list[PhasePlan]:
    """All that the run comes to."""
    recipe, micro_batches = case.recipe, case.micro_batches
    if micro_batches is not None and len(micro_batches) not in (1, len(recipe.phases)):
        several = f", or one for each of {len(recipe.phases)} phases" if len(recipe.phases) > 1 else ""
        raise ConfigError(f"--micro-batch: give one number{several}")
    plans = []
    for i, (steps, phase) in enumerate(_phases(recipe)):
        wanted = micro_batches[i % len(micro_batches)] if micro_batches else None
        plans.append(_plan_phase(case, phase, steps, wanted))
    return plans


def _phases(recipe: Recipe) -> Iterator[tuple[int, Phase]]:
    """The phases that the run comes to, each after the steps that it does of it."""
    for begin, end, phase in recipe.phase_ranges():
        if begin < recipe.last_step:
            yield min(end, recipe.last_step) - begin, phase


def scaling(
    recipe: Recipe, cluster: Cluster, assumptions: Assumptions, most: int, micro_batches: Sequence[int] | None = None
) -> Iterator[tuple[int, float]]:
    """(GPUs, hours) for powers of two that divide every batch and fit, up to ``most``.

    Micro-batches are those given, or where a GPU's share of a batch isn't a multiple of one the next smaller that
    divides it; None takes the largest that fit.
    """
    gpus = 1
    while gpus <= most and not any(phase.global_batch_size % gpus for phase in recipe.phases):
        fitting = _at_most(recipe, gpus, micro_batches) if micro_batches else None
        hours = _hours(_Case(recipe, replace(cluster, gpus=gpus), assumptions, fitting))
        if hours is not None:
            yield gpus, hours
        gpus *= 2


def _at_most(recipe: Recipe, gpus: int, micro_batches: Sequence[int]) -> list[int]:
    """Of each phase the largest micro-batch that divides a GPU's share and is no larger than the one that was given."""
    return [
        max(d for d in _divisors(phase.global_batch_size // gpus) if d <= wanted)
        for phase, wanted in zip(recipe.phases, itertools.cycle(micro_batches), strict=False)
    ]


def _plan_phase(case: _Case, phase: Phase, steps: int, wanted: int | None) -> PhasePlan:
    recipe, cluster, assumptions = case.recipe, case.cluster, case.assumptions
    config, sharding = recipe.model, cluster.effective
    share = phase.global_batch_size // cluster.gpus
    largest = _largest(case, phase)
    if not largest:
        raise ConfigError(_too_small(case, phase))
    micro_batch = _choose(phase, share, largest, wanted)
    kernel, one = _kernel(recipe, cluster), _sequence(recipe, phase)
    length = assumptions.fill * phase.sequence_length
    flops = training_flops(config, torch.tensor([length]), recipe.predictions(phase, length))
    work = Work(
        flops=flops,
        micro_batch=micro_batch,
        accumulation=share // micro_batch,
        parameters=parameter_count(config),
        update_bytes=UPDATE_BYTES[recipe.optimizer.name] + _CONVERSION_BYTES,
        operations=_operations(recipe, kernel, sharding.stage),
        recompute=config.activation_checkpointing,
        all_at_once=recipe.train.cuda_graphs,
        filled=1 + _filling(recipe, phase) / (micro_batch * length),
    )
    return PhasePlan(
        length=phase.sequence_length,
        steps=steps,
        batch=phase.global_batch_size,
        micro_batch=micro_batch,
        accumulation=share // micro_batch,
        largest=largest,
        kept=_kept_of_one_more(config, one, sharding.width, kernel, checkpointing=False),
        kept_checkpointed=_kept_of_one_more(config, one, sharding.width, kernel, checkpointing=True),
        step=step_time(work, Speed(cluster.gpu, assumptions.efficiency, assumptions.launch), sharding, cluster.gpus),
        flops=flops,
    )


def _plan_stage(case: _Case, stage: int) -> StagePlan:
    other, refused = case.sharded(stage=stage), _why_refused(case, stage)
    largest = [_largest(other, phase) for _, phase in _phases(case.recipe)]
    return StagePlan(stage, refused, _states(other), largest, None if refused else _hours(other))


def _why_refused(case: _Case, stage: int) -> str:
    """Why the trainer does not take a stage, or ''; see trainer.deepspeed_config.resolve."""
    if stage == 0 and case.cluster.sharding.precision != "float32":
        return "not in 16 bits"
    if stage == 3 and (settings := wants_whole_parameters(case.recipe)):
        return f"not with train.{settings[0]}"
    return ""


def _hours(case: _Case) -> float | None:
    """Of all phases; None where they don't fit."""
    try:
        return sum(phase.hours for phase in _plan_phases(case))
    except ConfigError:
        return None


def _choose(phase: Phase, share: int, largest: int, wanted: int | None) -> int:
    """The micro-batch that is wanted, or the largest one that fits and divides a GPU's share of the batch."""
    if wanted is None:
        return max(divisor for divisor in _divisors(share) if divisor <= largest)
    if share % wanted:
        whole = counted(share, "sequence")
        raise ConfigError(f"--micro-batch {wanted}: it must divide the {whole} of a step that each GPU has")
    if wanted > largest:
        most, ends = counted(largest, "sequence"), "s" if largest == 1 else ""
        raise ConfigError(f"--micro-batch {wanted}: at most {most} of {phase.sequence_length} tokens fit{ends}")
    return wanted


def _states(case: _Case) -> States:
    recipe, cluster = case.recipe, case.cluster
    temporary = TEMPORARY_BYTES[recipe.optimizer.name]
    parameters, in_graphs = parameter_count(recipe.model), recipe.train.cuda_graphs
    return model_states(parameters, cluster.effective, cluster.gpus, temporary, in_graphs)


def _largest(case: _Case, phase: Phase) -> int:
    """The most sequences at a time that fit a GPU, full ones; 0 where not even one does."""
    recipe, cluster, states = case.recipe, case.cluster, _states(case)
    if states.updating > case.usable:
        return 0
    # CUDA graphs keep the memory of their activations during the update too.
    room = case.usable - (max(states.working, states.updating) if recipe.train.cuda_graphs else states.working)
    width, one = cluster.effective.width, _sequence(recipe, phase)
    most = largest_micro_batch(recipe.model, one, width, _kernel(recipe, cluster), room)
    return max(0, most - math.ceil(_filling(recipe, phase, share=1.0) / phase.sequence_length))


def _kernel(recipe: Recipe, cluster: Cluster) -> Kernel:
    is_modern = cluster.gpu.bfloat16  # as GPUs have them from Ampere on
    return fastest_kernel(recipe.model, cluster.sharding.width, recipe.train.fused, is_modern)


def _filling(recipe: Recipe, phase: Phase, share: float = 0.5) -> float:
    """Tokens that fill a micro-batch up, see PackedTokens.round_up: on average, or with a share of 1 at the most."""
    multiple = recipe.data.token_multiple
    return filling_sequences(multiple, phase.sequence_length) + share * (multiple - 1)


def _sequence(recipe: Recipe, phase: Phase) -> MicroBatch:
    """One full sequence of a phase."""
    return MicroBatch(1, phase.sequence_length, recipe.predictions(phase))


def _kept_of_one_more(config: BertConfig, one: MicroBatch, width: int, kernel: Kernel, checkpointing: bool) -> float:
    """Bytes that a sequence more keeps."""
    two = MicroBatch(2, one.length, 2 * one.predictions)
    return kept_bytes(config, two, width, kernel, checkpointing) - kept_bytes(config, one, width, kernel, checkpointing)


def _operations(recipe: Recipe, kernel: Kernel, stage: int) -> float:
    """What the time of a micro-batch is on the CPU, forward and backward, in operations that are launched."""
    config = recipe.model
    gradients = len(parameter_shapes(config))
    looked_after = gradients * _GRADIENT_LOOKED_AFTER if stage >= 2 else 0
    if recipe.train.cuda_graphs:
        return gradients * _GRADIENT_IN_GRAPHS + looked_after
    layers = config.num_hidden_layers * LAYER_OPERATIONS[kernel]
    launched = OTHER_OPERATIONS + layers * (_RECOMPUTED_OPERATIONS if config.activation_checkpointing else 1)
    return launched + looked_after


def _too_small(case: _Case, phase: Phase) -> str:
    """Why nothing fits, and what would."""
    recipe, cluster, states = case.recipe, case.cluster, _states(case)
    stages = [stage for stage in STAGES if not _why_refused(case, stage)]
    would = [f"ZeRO {stage}" for stage in stages if _largest(case.sharded(stage=stage), phase)]
    if not recipe.train.cuda_graphs:  # with which there is none
        checkpointing = replace(recipe, model=replace(recipe.model, activation_checkpointing=True))
        would += ["model.activation_checkpointing=true"] if _largest(replace(case, recipe=checkpointing), phase) else []
    by_memory = sorted(GPUS.values(), key=lambda gpu: gpu.memory)
    would += [gpu.name for gpu in by_memory if _largest(case.on(gpu=gpu), phase)][:1]
    needed = max(states.working, states.updating) / 2**30
    return (
        f"not even one sequence of {phase.sequence_length} tokens fits into {cluster.gpus} x {cluster.gpu.name} under "
        f"ZeRO {cluster.sharding.stage}: weights, gradients and optimizer take {needed:.1f} GiB of "
        f"{case.usable / 2**30:.1f}; " + (f"{', '.join(would)} would do" if would else "no GPU known here would do")
    )


def _divisors(number: int) -> list[int]:
    """Ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})
