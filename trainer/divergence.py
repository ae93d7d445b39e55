"""Whether a training has diverged though every number is finite: the loss has left its best, and stays away.

A loss that jumps and comes back costs a run little. One that stays away costs all of it where nobody looks: each new
checkpoint takes the place of an older one, until none is left from before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trainer.skipping import skip_setting

_STEPS = 200  # that the mean is over, more or less
_NEAR = 1 / 16  # of the limit: what a mean rises and falls by itself


class DivergedError(RuntimeError):
    """A loss that has risen and stays there."""


@dataclass(frozen=True)
class LossTrend:
    """The losses of the steps so far.

    Attributes:
        mean: exponential, over some 200 steps; of the first 200 the plain one.
        lowest: of these means. The first are noisy: that of 50 steps takes their place, unless the loss rose meanwhile.
        good_step: one from before the loss has risen.
        steps: so many losses are in it; checkpoints from before this was counted have those of a long phase.
    """

    mean: float
    lowest: float
    good_step: int
    steps: int = 2 * _STEPS

    @property
    def rise(self) -> float:
        """How far the mean is above its lowest."""
        return self.mean - self.lowest

    def has_left(self, limit: float) -> bool:
        """Whether the mean is more than ``limit`` above its lowest. Of fewer than 250 steps a jump would be half."""
        return self.steps >= 5 * _STEPS // 4 and self.rise > limit

    def begin_anew(self) -> LossTrend:
        """For losses on other data, which don't compare; what was good stays so until they have a mean of their own."""
        return replace(self, steps=0)


def follow(trend: LossTrend | None, step: int, loss: float, limit: float) -> LossTrend:
    """The trend with one more step.

    No loss counts as higher than twice the limit above the lowest mean. So a single step, however high, is nothing, and
    a loss must stay that high for 139 steps (some 120 while the mean is of all steps so far), or 1.5 limits above for
    220, until the mean has left by the limit.

    A mean is about as low as before for some steps of a rise: for 6 where the loss is two limits above it, for 25 where
    it is half of one. So what counts as good is what was trained by 25 steps earlier.

    Args:
        trend: of the steps before; None for the first.
        step: finished steps, with this one.
        loss: of this one.
        limit: positive.
    """
    if trend is None:
        trend = LossTrend(loss, loss, step - 1, steps=0)
    steps = trend.steps + 1
    if steps == 1:
        return replace(trend, mean=loss, lowest=loss, steps=1)
    mean = trend.mean + (min(loss, trend.lowest + 2 * limit) - trend.mean) / min(steps, _STEPS)
    lowest, settled = min(mean, trend.lowest), _STEPS // 4
    if steps == settled and mean <= lowest + limit / 2:
        lowest = mean
    is_near = steps >= settled and mean <= lowest + _NEAR * limit
    good_step = max(trend.good_step, step - _STEPS // 8) if is_near else trend.good_step
    return LossTrend(mean, lowest, good_step, steps)


def diverged(
    step: int, trend: LossTrend, latest: Path, checkpoint: str | None, skip: Sequence[tuple[int, int]]
) -> DivergedError:
    """The error for a run whose loss stays away from its best.

    Args:
        step: the last one.
        trend: after it.
        latest: the file that names the checkpoint to go on from.
        checkpoint: the newest one from before the rise; None where there is none.
        skip: ranges of samples, [first, end) in the phase's stream: those since that checkpoint, and what is skipped
            already.
    """
    found = (
        f"step {step}: the loss rose after step {trend.good_step} and stays {trend.rise:.1f} nats above "
        "its lowest mean: the training has diverged; "
    )
    if not checkpoint:
        return DivergedError(
            f"{found}there is no checkpoint from before: begin anew with a lower schedule.peak or a longer warm-up"
        )
    return DivergedError(
        f"{found}to go on from before, write {checkpoint} into {latest} and give {skip_setting(skip)}, which passes "
        "over the samples of this length since, or begin another run with a lower schedule.peak from that step's "
        "export; with train.divergence=0 it goes on as it is"
    )
