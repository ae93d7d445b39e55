"""What goes into a plan, and what comes out."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cluster.planning.hardware import Gpu
from cluster.planning.sharding import Sharding, States
from cluster.planning.throughput import StepTime
from trainer.settings import ConfigError


@dataclass(frozen=True)
class Assumptions:
    """What a plan takes for granted.

    Attributes:
        efficiency: share of the GPU's peak that products reach.
        fill: mean share of a sequence's length that is text; padding costs nothing.
        headroom: share of the memory for CUDA, NCCL and what falls between allocations.
        launch: seconds of the CPU for an operation.
        write: bytes/s at which all ranks together write a checkpoint.
        price: of a GPU hour; None to leave costs out.
    """

    efficiency: float
    fill: float = 1.0
    headroom: float = 0.1
    launch: float = 6e-6
    write: float = 2e9
    price: float | None = None

    def __post_init__(self) -> None:
        if not (0 < self.efficiency <= 1 and 0 < self.fill <= 1):
            raise ConfigError("efficiency and fill are shares: give more than 0 and at most 1")
        if not 0 <= self.headroom < 1:
            raise ConfigError("headroom is a share: give 0 or more and less than 1")
        price = self.price or 0.0
        if not (math.isfinite(self.launch + self.write + price) and self.launch >= 0 and self.write > 0 and price >= 0):
            raise ConfigError("the write rate must be positive, times and prices 0 or more, and all of them finite")


@dataclass(frozen=True)
class Cluster:
    """How many of which GPUs, and how DeepSpeed is set on them."""

    gpu: Gpu
    gpus: int
    sharding: Sharding

    @property
    def effective(self) -> Sharding:
        """How it is set on so many."""
        return self.sharding.of_ranks(self.gpus)


@dataclass(frozen=True)
class PhasePlan:
    """A phase on paper.

    Attributes:
        length: tokens of a sequence at most.
        steps: of the phase that the run does.
        batch: sequences of a step.
        micro_batch: sequences at a time on a GPU.
        accumulation: micro-batches of a step.
        largest: micro-batch that fits.
        kept: bytes of activations that one more sequence keeps.
        kept_checkpointed: the same with activation checkpointing.
        step: its time.
        flops: of a sequence.
    """

    length: int
    steps: int
    batch: int
    micro_batch: int
    accumulation: int
    largest: int
    kept: float
    kept_checkpointed: float
    step: StepTime
    flops: float

    @property
    def rate(self) -> float:
        """Sequences a second on all GPUs."""
        return self.batch / self.step.total

    @property
    def hours(self) -> float:
        """Of the phase."""
        return self.steps * self.step.total / 3600


@dataclass(frozen=True)
class StagePlan:
    """What a ZeRO stage would take; no hours where nothing fits or the trainer refuses it, in some words."""

    stage: int
    refused: str
    states: States
    largest: list[int]
    hours: float | None


@dataclass(frozen=True)
class Plan:
    """Everything that a report shows.

    Attributes:
        cluster: planned for.
        assumptions: taken.
        parameters: of the model.
        states: bytes on each GPU.
        usable: bytes of a GPU's memory.
        phases: of the recipe.
        unreached: micro-batches, by number, of phases that the run does not come to, where those of the recipe can't be
            shared by all GPUs: the trainer looks at these too.
        stages: all stages of ZeRO side by side.
        checkpoint: bytes of one.
        checkpoint_every: steps.
        read_rate: bytes/s of training data on all GPUs, in the fastest phase.
        hours_in_buckets: hours if gradients were sent in buckets of BUCKET elements; None where they are already, or
            where DeepSpeed sends them at the end in any case.
        hours_in_graphs: hours under ZeRO 1 with train.cuda_graphs; None where there can be no graphs, or nothing fits.
        multiple_in_graphs: the data.token_multiple of these.
    """

    cluster: Cluster
    assumptions: Assumptions
    parameters: int
    states: States
    usable: float
    phases: list[PhasePlan]
    unreached: dict[int, int]
    stages: list[StagePlan]
    checkpoint: float
    checkpoint_every: int
    read_rate: float
    hours_in_buckets: float | None
    hours_in_graphs: float | None
    multiple_in_graphs: int

    @property
    def hours(self) -> float:
        """Of all phases."""
        return sum(phase.hours for phase in self.phases)

    @property
    def gpu_hours(self) -> float:
        """Of all GPUs."""
        return self.hours * self.cluster.gpus

    @property
    def cost(self) -> float | None:
        """In the currency of the price."""
        return None if self.assumptions.price is None else self.gpu_hours * self.assumptions.price
