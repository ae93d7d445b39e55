"""What a run says when a loss or a gradient is NaN or infinite: which step, which rank, which samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trainer.skipping import skip_setting


class NonFiniteError(RuntimeError):
    """A NaN or infinite loss or gradient. Weights and moments are those from before the step."""


class Suspect(NamedTuple):
    """A micro-batch whose loss is NaN or infinite."""

    turn: int  # which of the step's micro-batches of its rank it was
    rank: int
    samples: list[int]  # their places in the phase's stream


def bad_loss(
    step: int, loss: float, suspects: Sequence[Suspect], micro_batches: int, skipped: Sequence[tuple[int, int]] = ()
) -> NonFiniteError:
    """The error for a NaN or infinite loss over the global batch.

    Args:
        step: the one that is not finished.
        loss: of the global batch.
        suspects: of all ranks; none where finite losses have an infinite sum.
        micro_batches: of the step, over all ranks.
        skipped: the ranges that data.skip has already.
    """
    if len(suspects) == micro_batches > 1:
        return NonFiniteError(
            f"step {step}: the loss is {loss} in every micro-batch: it is not the data, the training has diverged; "
            "begin anew with a lower peak or a longer warm-up, or with a smaller optimizer.max_gradient_norm"
        )
    if not suspects:
        return NonFiniteError(f"step {step}: the loss is {loss}, though each sample's is finite")
    first = [suspect for suspect in suspects if suspect.turn == min(suspects).turn]
    ranks = " and ".join(f"rank {suspect.rank}" for suspect in first)
    skip = skip_setting([*skipped, *((sample, sample + 1) for suspect in first for sample in suspect.samples)])
    return NonFiniteError(f"step {step}: the loss is {loss}, first on {ranks}; {skip} passes over their samples")


def bad_gradient(step: int, samples: Sequence[int], lowest_scale: float | None = None) -> NonFiniteError:
    """The error for a NaN or infinite gradient where all losses are finite.

    Args:
        step: the one that is not finished.
        samples: of the global batch.
        lowest_scale: of fp16's loss scaling, which can't go below it.
    """
    at = "" if lowest_scale is None else f" even at the lowest loss scale, {lowest_scale:g},"
    return NonFiniteError(
        f"step {step}: a gradient{at} is NaN or infinite, though all losses are finite; the samples of the "
        f"step are [{min(samples)}, {max(samples) + 1}]"
    )
