"""The trend of a training's losses: how far their mean is above its lowest, and which steps are from before a rise."""

from __future__ import annotations

from dataclasses import dataclass, replace

_STEPS = 200  # that the mean is over, more or less
_NEAR = 1 / 16  # of the limit: what a mean rises and falls by itself


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
