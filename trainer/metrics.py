"""How much work a step is, and how fast it went."""

from __future__ import annotations

import math
import resource
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from trainer.model import BertConfig
from trainer.products import matmul

LARGEST_LOSS = 700.0  # whose perplexity float64 has a number for
_FULLEST = 0.9  # share of a GPU's memory to count on
_SIZE = {"cuda": 8192, "cpu": 1024}  # of the matrices whose product is timed
_SECONDS = {"cuda": 0.5, "cpu": 0.3}  # that they are multiplied for
_AT_ONCE = {"cuda": 10, "cpu": 1}  # products that are asked for before a wait, in which a GPU stands still


def measure_ceiling(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of a large matrix product on this device: what a training step is measured by.

    Args:
        device: a CPU counts with the threads that torch uses.
        dtype: of the products of the training.
    """
    size = _SIZE[device.type]
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(size, size, generator=generator).to(device, dtype) for _ in range(2))
    rounds: list[float] = []
    end = math.inf
    while len(rounds) < 2 or time.perf_counter() < end:
        began = time.perf_counter()
        for _ in range(_AT_ONCE[device.type]):
            matmul(left, right)
        if device.type == "cuda":
            torch.cuda.synchronize()
        rounds.append(time.perf_counter() - began)
        if len(rounds) == 1:  # which is not counted: it finds memory and kernels
            end = time.perf_counter() + _SECONDS[device.type]
    return _AT_ONCE[device.type] * 2.0 * size**3 / statistics.median(rounds[1:])


class Laps:
    """Seconds of the named parts of a step, measured where the work is done: on a GPU by events in its stream.

    Events cost the GPU nothing. The host waits for the last one in `seconds`, which is best asked for a step later.
    """

    def __init__(self, device: torch.device):
        """Start the first lap."""
        self._on_gpu = device.type == "cuda"
        self._names: list[str] = []
        self._times = [time.perf_counter()]
        self._marks = [self._mark()]

    def lap(self, name: str) -> None:
        """Give what was done since the last lap a name; laps of one name add up."""
        self._names.append(name)
        self._times.append(time.perf_counter())
        self._marks.append(self._mark())

    def seconds(self) -> dict[str, float]:
        """Name -> seconds, of all laps."""
        parts = [end - begin for begin, end in pairwise(self._times)]
        if self._on_gpu:
            self._marks[-1].synchronize()
            parts = [begin.elapsed_time(end) / 1000 for begin, end in pairwise(self._marks)]
        total: dict[str, float] = defaultdict(float)
        for name, part in zip(self._names, parts, strict=True):
            total[name] += part
        return dict(total)

    def host_share(self) -> float:
        """What the host of a GPU took to ask for the first lap, as a share of it; to be called after ``seconds``.

        The GPU had an update to do before at most. In later laps the host may wait until there is room for more to ask
        for.
        """
        took = self._marks[0].elapsed_time(self._marks[1]) / 1000
        return (self._times[1] - self._times[0]) / took if took > 0 else 0.0

    def _mark(self) -> Any:
        if not self._on_gpu:
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def of_directory(figure: str, directory: str) -> str:
    """What a figure is called that is of one shard directory alone: perplexity/wiki."""
    return f"{figure}/{directory}"


def directories(figure: str, names: Iterable[str]) -> list[str]:
    """The shard directories that have a figure of their own among some names."""
    prefix = of_directory(figure, "")
    return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]


def perplexity(loss: float) -> float:
    """Of a mean cross entropy in nats; a number also for a run that has diverged, which is not to end by it."""
    return math.exp(min(loss, LARGEST_LOSS))


def peak_memory(device: torch.device) -> float:
    """Bytes that this rank has held at the most: of the GPU's memory, or of the machine's on a CPU."""
    if device.type == "cuda":
        allocated = torch.cuda.memory_stats_as_nested_dict(device)["allocated_bytes"]["all"]  # of hundreds of figures
        return float(allocated["peak"])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def memory_share(device: torch.device) -> float:
    """The share of its GPU's memory that this rank has held at the most; 1 on a CPU, whose memory is everyone's."""
    if device.type == "cuda":
        return peak_memory(device) / torch.cuda.get_device_properties(device).total_memory
    return 1.0


def roomiest_micro_batch(size: int, accumulated: int, share: float) -> int:
    """The largest micro-batch that surely fits: doubled as long as it divides the batch, and memory with it.

    Args:
        size: of the micro-batch that is trained with.
        accumulated: micro-batches of a rank's share of a batch.
        share: of the GPU's memory that was in use at the most. Weights and moments are in it, which don't double.
    """
    times = 1
    while accumulated % (2 * times) == 0 and 2 * times * share <= _FULLEST:
        times *= 2
    return times * size


def training_flops(config: BertConfig, lengths: Tensor, predictions: int) -> float:
    """Floating-point operations of a forward and backward pass over real tokens.

    The field's count: backward is twice the forward pass, nothing is recomputed, the MLM head works on predicted
    positions only, and dropout, layer norm and softmax count as nothing. Forward per token and layer:
    2 (4 D^2 + 2 D F) for the products and 4 S D for attention; per prediction 2 D^2 + 2 D V.

    Args:
        config: of the model.
        lengths: [samples], real tokens of each.
        predictions: over all samples.
    """
    d, f, v = config.hidden_size, config.intermediate_size, config.vocab_size
    lengths = lengths.double()
    per_layer = 2 * (4 * d * d + 2 * d * f) * lengths.sum() + 4 * d * (lengths**2).sum()
    return 3 * (config.num_hidden_layers * float(per_layer) + predictions * (2 * d * d + 2 * d * v))
