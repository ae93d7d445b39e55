"""What a training waits for: a rank that is slower than the others, data, or the host of a GPU.

All ranks take as long for a step, so its time does not tell who is slow. What each does by itself tells: it waits for
its loader, and goes forward. Its backward pass may wait for the others' gradients, and under ZeRO 3 its forward pass
for their weights, so there none is found by that. A GPU whose host is ahead of it has its forward pass to do when all
of that was asked for long ago; where the host takes as long to ask, the GPU has nothing to do meanwhile.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from statistics import fmean, median, median_low
from typing import NamedTuple

from trainer.naming import name_some
from trainer.world import World

_STEPS = 100  # that are looked at together
# What is so from the first number on is so until the second one, so that what is on the edge is told once.
_LONGER = 0.2, 0.1  # forward passes, as a share of the median rank's
_WAITS = 0.05, 0.025  # of a rank's time, beyond the median rank's share
_STARVES = 0.1, 0.05  # of the median rank's time
_ASKS = 0.9, 0.8  # of the median rank's forward passes
_FASTER = "more data.workers help where cores are free, data.cache_dir where storage is slow"


class Pace(NamedTuple):
    """What a rank took by itself over some steps."""

    host: str
    forward: float  # seconds a token, of the median step
    wait: float  # for its loader, as a share of its time
    asking: float = 0.0  # for the first forward pass of a GPU, as a share of it


class Bottlenecks:
    """Compares the ranks every hundred steps; each of them has one, and calls it after the same steps."""

    def __init__(self, world: World):
        """Nothing is slow yet."""
        self._world = world
        # Of this rank: forward a token, wait, all of the step, and the share of a forward pass to ask for it.
        self._steps: list[tuple[float, float, float, float]] = []
        self._found: list[set[int]] = [set()] * 4  # slow ranks, those that wait, {0} where all starve, or hurry

    def after_step(self, forward: float, wait: float, seconds: float, tokens: int, asking: float = 0.0) -> list[str]:
        """Take in a step; returns a line for each thing that has become slow, the same on all ranks.

        Args:
            forward: seconds of this rank's forward passes.
            wait: seconds that it waited for its loader.
            seconds: of the step.
            tokens: that this rank computed, those that only fill up included.
            asking: what the host took to have its GPU do the first forward pass, as a share of that.
        """
        self._steps.append((forward / max(1, tokens), wait, seconds, asking))
        if len(self._steps) < _STEPS:
            return []
        forwards, waits, all_seconds, shares = zip(*self._steps, strict=True)
        self._steps = []
        mine = Pace(socket.gethostname(), median(forwards), fmean(waits) / fmean(all_seconds), median(shares))
        paces: list[Pace] = self._world.gather(mine)
        middle, before = _median(paces), self._found
        slow, waiting, starving, hurrying = before
        self._found = [
            slow_ranks(paces, slow),
            waiting_ranks(paces, waiting),
            _beyond([middle.wait], _STARVES, starving),
            _beyond([middle.asking], _ASKS, hurrying),
        ]
        tells = (_tell_of_slow, _tell_of_waiting, _tell_of_starving, _tell_of_hurrying)
        return [tell(paces, now) for tell, now, was in zip(tells, self._found, before, strict=True) if now - was]


def slow_ranks(paces: Sequence[Pace], before: set[int]) -> set[int]:
    """Those whose forward passes take longer than the median rank's, of two than the faster one's; see _LONGER."""
    middle = _median(paces).forward
    return _beyond([pace.forward / middle - 1 for pace in paces], _LONGER, before)


def waiting_ranks(paces: Sequence[Pace], before: set[int]) -> set[int]:
    """Those that wait longer for their data than the median rank, likewise; where all wait, nobody waits for one."""
    middle = _median(paces).wait
    return _beyond([pace.wait - middle for pace in paces], _WAITS, before)


def _median(paces: Sequence[Pace]) -> Pace:
    _, *figures = zip(*paces, strict=True)
    return Pace("", *map(median_low, figures))


def _beyond(excess: Sequence[float], limits: tuple[float, float], before: set[int]) -> set[int]:
    begin, end = limits
    return {rank for rank, value in enumerate(excess) if value > (end if rank in before else begin)}


def _tell_of_slow(paces: Sequence[Pace], slow: set[int]) -> str:
    middle = _median(paces).forward
    found = sorted(slow, key=lambda rank: -paces[rank].forward)
    named = [f"rank {rank} on {paces[rank].host} {paces[rank].forward / middle:.2f} times as long" for rank in found]
    return (
        f"all ranks wait for a slow one: its forward passes take longer than the median rank's: {name_some(named)}; "
        "`python -m cluster.doctor` looks at a node"
    )


def _tell_of_waiting(paces: Sequence[Pace], waiting: set[int]) -> str:
    found = sorted(waiting, key=lambda rank: -paces[rank].wait)
    named = [f"rank {rank} on {paces[rank].host} {paces[rank].wait:.0%} of its time" for rank in found]
    return (
        f"all ranks wait for one that waits for its data: {name_some(named)}, the median rank "
        f"{_median(paces).wait:.0%}; {_FASTER}"
    )


def _tell_of_starving(paces: Sequence[Pace], _: set[int]) -> str:
    return f"{_median(paces).wait:.0%} of the time goes by in waiting for data; {_FASTER}"


def _tell_of_hurrying(paces: Sequence[Pace], _: set[int]) -> str:
    return (
        f"the GPU waits for its host, which takes {_median(paces).asking:.0%} of a forward pass to ask for it; "
        "train.cuda_graphs=true asks for all of it at once, with a data.token_multiple of some 1/32 of a micro-batch's "
        "tokens, and a larger phases.N.micro_batch_size asks less often (docs/training.md)"
    )
