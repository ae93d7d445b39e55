"""Whether a training has diverged though every number is finite: the loss has left its best, and stays away.

A loss that jumps and comes back costs a run little. One that stays away costs all of it where nobody looks: each new
checkpoint takes the place of an older one, until none is left from before.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from trainer.checkpoint import read_run_state
from trainer.config import Phase, Recipe
from trainer.loss_trend import LossTrend, follow
from trainer.run_directory import RunDirectory, step_folders, step_number
from trainer.skipping import skip_setting

_log = logging.getLogger("pretrain")


class DivergedError(RuntimeError):
    """A loss that has risen and stays there."""


class Divergence:
    """Follows the losses of a run and finds that it has diverged; all ranks have the same losses.

    Attributes:
        recipe: of the run.
        run: its directory.
        trend: of the losses of the phase that is trained; None before the first.
    """

    def __init__(self, recipe: Recipe, run: RunDirectory):
        """Begin without losses."""
        self.trend: LossTrend | None = None
        self.recipe, self.run = recipe, run

    @property
    def _limit(self) -> float:
        return self.recipe.train.divergence

    def enter(self, begin: int, phase: Phase) -> None:
        """Judge the losses of a phase that begins at a step by those before it only where they are on the same data."""
        weights = self.recipe.data.weights
        reads_on = any(
            end == begin
            and before.sequence_length == phase.sequence_length
            and (before.weights or weights) == (phase.weights or weights)
            for _, end, before in self.recipe.phase_ranges()
        )
        if self.trend and not reads_on:
            if self.trend.rise > self._limit / 4 > 0:
                _log.warning(
                    "the loss is %.1f nats above its lowest mean where a phase on other data begins, whose losses "
                    "don't compare: see whether the training has diverged",
                    self.trend.rise,
                )
            self.trend = self.trend.begin_anew()

    def follow(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take in the loss of a step, where anything was predicted in it."""
        if not self._limit:
            self.trend = None  # should it be set at a later start, that one begins anew
        elif "mlm_loss" in metrics:
            self.trend = follow(self.trend, step, metrics["mlm_loss"], self._limit)

    @property
    def is_seen(self) -> bool:
        """Whether the run has diverged."""
        return self._limit > 0 and self.trend is not None and self.trend.has_left(self._limit)

    def error(self, step: int) -> DivergedError:
        """What to say of a run that has diverged by the end of a step, once all its checkpoints are written.

        It names the newest one from before the rise, and the samples since, by their places in the phase's stream.
        """
        assert self.trend is not None
        good_step = self.trend.good_step
        found = (
            f"step {step}: the loss rose after step {good_step} and stays {self.trend.rise:.1f} nats above its lowest "
            "mean: the training has diverged; "
        )
        before = [path for path in step_folders(self.run.checkpoints) if step_number(path) <= good_step]
        if not before:
            return DivergedError(
                f"{found}there is no checkpoint from before: begin anew with a lower peak or a longer warm-up"
            )
        phase = next(phase for _, end, phase in self.recipe.phase_ranges() if step <= end)
        first, end = (self.recipe.samples(at, phase.sequence_length) for at in (step_number(before[-1]), step))
        return DivergedError(
            f"{found}to go on from before, write {before[-1].name} into {self.run.latest} and give "
            f"{skip_setting([*self.recipe.data.skip, (first, end)])}, which passes over the samples of this length "
            "since, or begin another run with a lower peak from that step's export; with train.divergence=0 it goes on "
            "as it is"
        )


def check_not_diverged(run: RunDirectory, recipe: Recipe, step: int) -> None:
    """See that a run has not ended as diverged after the step that it would go on from; what ended it comes again.

    A run that is done stays so, and where a phase begins, as at step 0, it judges whether its losses compare.

    Args:
        run: the run.
        recipe: of this start, which may allow more.
        step: of the checkpoint, or 0.

    Raises:
        CheckpointError: the checkpoint can't be read.
        DivergedError: it has.
    """
    begins = {begin for begin, _, _ in recipe.phase_ranges() if begin < recipe.last_step}
    if step in begins or run.ending == "done":
        return
    divergence = Divergence(recipe, run)
    divergence.trend = read_run_state(run.checkpoint(step)).trend
    if divergence.is_seen:
        raise divergence.error(step)
