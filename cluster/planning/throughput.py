"""How long an optimizer step takes: products, the update of the weights, and the network that is waited for.

    step = accumulation * max(products, launches) + network not hidden + update

Products are the work that trainer.metrics.training_flops counts, at a share of the GPU's peak: the efficiency, the one
number that is measured and not computed. A GPU is idle while Python and PyTorch launch operations more slowly than it
works them off, which is what limits small micro-batches. Network time is hidden under the backward pass only as far as
DeepSpeed can hide it: buckets are sent when they are full, so the last one, and the only one where a bucket takes the
whole model, is waited for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cluster.planning.hardware import Gpu, Node
from cluster.planning.network import Algorithm, all_gather, all_reduce
from cluster.planning.sharding import ENGINE_BUCKET, Sharding

_BACKWARD = 2 / 3  # of the products; without recomputation
_RECOMPUTED = 4 / 3  # of the work, where every layer is computed once more


@dataclass(frozen=True)
class Work:
    """What a GPU does in a step.

    Attributes:
        flops: of a sample, forward and backward.
        micro_batch: samples at a time.
        accumulation: micro-batches of a step.
        parameters: of the model.
        update_bytes: read and written in the update of one parameter.
        operations: launched for a micro-batch.
        recompute: whether the forward pass of every layer is done twice.
        all_at_once: whether there is no gradient before a backward pass has ended, as in a CUDA graph.
        filled: tokens that are computed for each of text.
    """

    flops: float
    micro_batch: float
    accumulation: float
    parameters: int
    update_bytes: float
    operations: float = 0
    recompute: bool = False
    all_at_once: bool = False
    filled: float = 1.0


@dataclass(frozen=True)
class Speed:
    """What the hardware is taken to reach.

    Attributes:
        gpu: and its node.
        efficiency: share of the peak that products reach.
        launch: seconds that an operation takes the CPU.
        algorithm: of all-reduces; None takes the faster one.
    """

    gpu: Gpu
    efficiency: float
    launch: float = 0.0
    algorithm: Algorithm | None = None


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step.

    Attributes:
        compute: products, or the launching of operations where that takes longer.
        update: of the weights.
        network: all that is sent.
        exposed: the part of it that is waited for.
        launch_bound: whether launching decides.
    """

    compute: float
    update: float
    network: float
    exposed: float
    launch_bound: bool

    @property
    def total(self) -> float:
        """From one update to the next."""
        return self.compute + self.update + self.exposed


def step_time(work: Work, speed: Speed, sharding: Sharding, ranks: int) -> StepTime:
    """Predict a step.

    Args:
        work: of each GPU.
        speed: of it.
        sharding: how DeepSpeed is set.
        ranks: GPUs.
    """
    products = work.micro_batch * work.flops / (speed.efficiency * speed.gpu.peak_in(sharding.precision))
    products *= work.filled * (_RECOMPUTED if work.recompute else 1.0)
    launches = work.operations * speed.launch
    micro_batch = max(products, launches)
    share = work.parameters / ranks if sharding.stage else work.parameters
    network, exposed = _network(work, speed, sharding, ranks, micro_batch)
    return StepTime(
        compute=work.accumulation * micro_batch,
        update=share * work.update_bytes / speed.gpu.bandwidth,
        network=network,
        exposed=exposed,
        launch_bound=launches > products,
    )


def _network(work: Work, speed: Speed, sharding: Sharding, ranks: int, micro_batch: float) -> tuple[float, float]:
    """Seconds that are sent, and those of them that are waited for, in a step."""
    node, passes = speed.gpu.node, work.accumulation if sharding.stage >= 2 else 1
    backward = micro_batch * _BACKWARD
    buckets, one = _reduction(work.parameters, sharding, ranks, node, speed.algorithm)
    hides = sharding.hides_reduction and not work.all_at_once
    waited = _waited(buckets, one, backward) if hides else buckets * one
    gathered, gather_waited = _gathers(work, sharding, ranks, node, micro_batch - backward)
    return passes * buckets * one + gathered, passes * waited + gather_waited


def _reduction(
    parameters: int, sharding: Sharding, ranks: int, node: Node, algorithm: Algorithm | None
) -> tuple[int, float]:
    """How many buckets of gradients there are, and the seconds of each."""
    elements = ENGINE_BUCKET if sharding.stage == 0 or sharding.accumulates_everything else sharding.bucket
    buckets = math.ceil(parameters / elements)
    size = parameters / buckets * sharding.communication
    if sharding.stage == 3 or (sharding.stage == 2 and sharding.scatter):
        return buckets, all_gather(size, ranks, node)
    return buckets, all_reduce(size, ranks, node, algorithm)


def _gathers(work: Work, sharding: Sharding, ranks: int, node: Node, forward: float) -> tuple[float, float]:
    """Seconds in which weights are put together, and those of them that are waited for, in a step."""
    if sharding.stage == 0:
        return 0.0, 0.0
    if sharding.stage < 3:
        once = all_gather(work.parameters * sharding.width, ranks, node)
        return once, once
    pieces = math.ceil(work.parameters / sharding.prefetch)
    one = all_gather(work.parameters / pieces * sharding.width, ranks, node)
    times = work.accumulation * (1 if sharding.keeps_gathered(work.parameters) else 2)
    return times * pieces * one, times * (_waited(pieces, one, forward) if sharding.overlap else pieces * one)


def _waited(pieces: int, one: float, hidden_under: float) -> float:
    """One piece can't be hidden; the others can for as long as the work lasts that they go with."""
    others = pieces - 1
    return one + others * max(0.0, one - hidden_under / pieces)
