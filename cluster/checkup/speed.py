"""How fast each device multiplies, beside the others: in every step of a training all ranks wait for the slowest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_high

import torch

from cluster.checkup.findings import Finding, judge
from trainer.metrics import measure_ceiling
from trainer.naming import name_some

_AS_FAST = 0.9  # of the median GPU's rate; those of one kind differ by some percent


@dataclass(frozen=True)
class Speed:
    """What was measured of a device.

    Attributes:
        device: which one it is.
        is_gpu: or a CPU.
        rate: FLOP/s of a large product.
        problem: why there is none.
    """

    device: str
    is_gpu: bool
    rate: float
    problem: str = ""


def measure_speeds(rank: int = 0, ranks: int = 1, place: str = "") -> list[Speed]:
    """Of the GPUs that fall to one of a node's ranks, in bfloat16; without any of its CPU, in float32.

    Args:
        rank: of this node's.
        ranks: on this node. They share its GPUs, or each sees but its own.
        place: added to the devices' names.
    """
    if not torch.cuda.is_available():
        return [Speed(f"CPU{place}", False, measure_ceiling(torch.device("cpu"), torch.float32))]
    count = torch.cuda.device_count()
    if count < ranks:
        return [_measure_gpu(rank % count, f"GPU of local rank {rank}{place}")]
    return [_measure_gpu(number, f"GPU {number}{place}") for number in range(rank, count, ranks)]


def _measure_gpu(number: int, name: str) -> Speed:
    try:
        with torch.cuda.device(number):
            return Speed(name, True, measure_ceiling(torch.device("cuda", number), torch.bfloat16))
    except RuntimeError as error:  # of too little memory, or CUDA's own: the other ranks are still to hear of it
        return Speed(name, True, 0.0, str(error).partition("\n")[0][:200].rstrip("."))


def judge_speeds(speeds: Sequence[Speed]) -> Finding:
    """Each beside the median one. A CPU's rate is told and not judged: whatever else runs there counts in it."""
    if broken := [f"{speed.device}: {speed.problem}" for speed in speeds if speed.problem]:
        return Finding(
            "speed", "wrong", name_some(broken), "Find out what keeps it from computing, or leave its node out."
        )
    are_gpus = all(speed.is_gpu for speed in speeds)
    rates = sorted(speed.rate for speed in speeds)
    middle = median_high(rates)  # of two the faster
    slow = sorted((speed.rate, speed.device) for speed in speeds if are_gpus and speed.rate < _AS_FAST * middle)
    kind = "matrix products in " + ("bfloat16" if are_gpus else "float32, by a rank's CPU threads")
    found = f"{_tera(rates[0])} to {_tera(rates[-1])} TFLOP/s" if len(rates) > 1 else f"{_tera(middle)} TFLOP/s"
    if slow:
        named = name_some([f"{device} {_tera(rate)}" for rate, device in slow])
        found = f"{named}, the median one {_tera(middle)} TFLOP/s"
    return judge(
        "speed",
        f"{found}, {kind}",
        "All ranks wait for the slowest one in every step: see what slows it down (nvidia-smi -q -d PERFORMANCE, "
        "another program), or leave its node out.",
        warning=bool(slow),
    )


def _tera(rate: float) -> str:
    return f"{rate / 1e12:.3g}"
