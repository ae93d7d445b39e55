"""Ranks that all others wait for: whose forward passes take longer, or who wait longer for their data.

All ranks take as long for a step, so its time does not tell who is slow. What each does by itself tells: it waits for
its loader, and goes forward. Its backward pass may wait for the others' gradients, and under ZeRO 3 its forward pass
for their weights, so there none is found by that.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from statistics import fmean, median, median_low
from typing import NamedTuple

from trainer.naming import name_some
from trainer.world import World

_STEPS = 100  # that are compared at a time
_LONGER = 0.2  # forward passes, as a share of the median rank's
_WAITS = 0.05  # of the rank's time, beyond the median rank's share


class Pace(NamedTuple):
    """What a rank took by itself over some steps."""

    host: str
    forward: float  # seconds a token, of the median step
    wait: float  # for its loader, as a share of its time


class Stragglers:
    """Compares the ranks every hundred steps; each of them has one, and calls it after the same steps."""

    def __init__(self, world: World):
        """None is slow yet."""
        self._world = world
        self._steps: list[tuple[float, float, float]] = []  # of this rank: forward a token, wait, all of the step
        self._slow, self._waiting = set[int](), set[int]()

    def after_step(self, forward: float, wait: float, seconds: float, tokens: int) -> list[str]:
        """Take in a step; returns a line for each way in which a rank has become slow, the same on all ranks.

        Args:
            forward: seconds of this rank's forward passes.
            wait: seconds that it waited for its loader.
            seconds: of the step.
            tokens: that this rank computed, those that only fill up included.
        """
        if self._world.size == 1:
            return []
        self._steps.append((forward / max(1, tokens), wait, seconds))
        if len(self._steps) < _STEPS:
            return []
        forwards, waits, all_seconds = zip(*self._steps, strict=True)
        self._steps = []
        paces: list[Pace] = self._world.gather(
            Pace(socket.gethostname(), median(forwards), fmean(waits) / fmean(all_seconds))
        )
        slow, waiting = slow_ranks(paces, self._slow), waiting_ranks(paces, self._waiting)
        lines = [_tell_of_slow(paces, slow)] if slow - self._slow else []
        lines += [_tell_of_waiting(paces, waiting)] if waiting - self._waiting else []
        self._slow, self._waiting = slow, waiting
        return lines


def slow_ranks(paces: Sequence[Pace], before: set[int]) -> set[int]:
    """Those whose forward passes take longer than the median rank's, of two than the faster one's.

    A rank that was slow ``before`` is so until half the excess is gone, so that one on the edge is told once.
    """
    middle = median_low(pace.forward for pace in paces)
    return _beyond([pace.forward / middle - 1 for pace in paces], _LONGER, before)


def waiting_ranks(paces: Sequence[Pace], before: set[int]) -> set[int]:
    """Those that wait longer for their data than the median rank, likewise; where all wait, nobody waits for one."""
    middle = median_low(pace.wait for pace in paces)
    return _beyond([pace.wait - middle for pace in paces], _WAITS, before)


def _beyond(excess: Sequence[float], limit: float, before: set[int]) -> set[int]:
    return {rank for rank, value in enumerate(excess) if value > (limit / 2 if rank in before else limit)}


def _tell_of_slow(paces: Sequence[Pace], slow: set[int]) -> str:
    middle = median_low(pace.forward for pace in paces)
    found = sorted(slow, key=lambda rank: -paces[rank].forward)
    named = [f"rank {rank} on {paces[rank].host} {paces[rank].forward / middle:.2f} times as long" for rank in found]
    return (
        f"all ranks wait for a slow one: its forward passes take longer than the median rank's: {name_some(named)}; "
        "`python -m cluster.doctor` looks at a node"
    )


def _tell_of_waiting(paces: Sequence[Pace], waiting: set[int]) -> str:
    middle = median_low(pace.wait for pace in paces)
    found = sorted(waiting, key=lambda rank: -paces[rank].wait)
    named = [f"rank {rank} on {paces[rank].host} {paces[rank].wait:.0%} of its time" for rank in found]
    return (
        f"all ranks wait for one that waits for its data: {name_some(named)}, the median rank {middle:.0%}; more "
        "data.workers help where cores are free, data.cache_dir where storage is slow"
    )
