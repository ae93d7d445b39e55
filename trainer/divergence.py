"""Whether a training has diverged though every number is finite: the loss has left its best, and stays away.

A loss that jumps and comes back costs a run little. One that stays away costs all of it where nobody looks: each new
checkpoint takes the place of an older one, until none is left from before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

_STEPS = 200  # that the mean is over, more or less
_NEAR = 1 / 16  # of the limit: what a mean rises and falls by itself, and how late a rise is noticed


class DivergedError(RuntimeError):
    """A loss that has risen and stays there."""


@dataclass(frozen=True)
class LossTrend:
    """The losses of a phase's steps so far.

    Attributes:
        mean: exponential, over some 200 steps.
        lowest: of these means.
        good_step: the last one after which the mean was about as low.
    """

    mean: float
    lowest: float
    good_step: int

    def has_left(self, limit: float) -> bool:
        """Whether the mean is more than ``limit`` above its lowest."""
        return self.mean > self.lowest + limit


def follow(trend: LossTrend | None, step: int, loss: float, limit: float) -> LossTrend:
    """The trend with one more step.

    No loss counts as higher than twice the limit above the lowest mean. So a single step, however high, is nothing, and
    a loss must stay that high for 139 steps, or 1.5 limits above for 220, until the mean has left by the limit.

    Args:
        trend: of the steps before; None for the first of a phase.
        step: finished steps, with this one.
        loss: of this one.
        limit: positive.
    """
    if trend is None:
        return LossTrend(loss, loss, step)
    mean = trend.mean + (min(loss, trend.lowest + 2 * limit) - trend.mean) / _STEPS
    is_near = mean <= trend.lowest + _NEAR * limit
    return replace(trend, mean=mean, lowest=min(mean, trend.lowest), good_step=step if is_near else trend.good_step)


def diverged(step: int, trend: LossTrend, latest: Path, checkpoint: str | None, skip: tuple[int, int]) -> DivergedError:
    """The error for a run whose loss stays away from its best.

    Args:
        step: the last one.
        trend: after it.
        latest: the file that names the checkpoint to go on from.
        checkpoint: the newest one from before the rise; None where there is none.
        skip: the samples since then, [first, end), in the phase's stream.
    """
    found = (
        f"step {step}: the loss rose after step {trend.good_step} and stays {trend.mean - trend.lowest:.1f} nats above "
        "its lowest mean of this phase: the training has diverged; "
    )
    if not checkpoint:
        return DivergedError(
            f"{found}there is no checkpoint from before: begin anew with a lower schedule.peak or a longer warm-up"
        )
    return DivergedError(
        f"{found}to go on from before, write {checkpoint} into {latest} and give "
        f"data.skip=[[{skip[0]},{skip[1]}]], which passes over the samples since, or begin another run with a lower "
        "schedule.peak from that step's export; with train.divergence=0 it goes on as it is"
    )
