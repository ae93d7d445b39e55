"""fp16's dynamic loss scaling as a checkpoint keeps it.

The gradients of small losses vanish in fp16, so DeepSpeed multiplies the loss by a scale and the gradients by its
inverse. Where a gradient overflows it leaves the update out and, the hysteresis used up, halves the scale; after
loss_scale_window updates without an overflow it doubles it (Micikevicius et al., 2018, section 3.2).

Its scaler lives in memory only and counts all updates of its process. What it does next depends on three numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LossScale:
    """The state of a dynamic loss scaler."""

    scale: float
    good_updates: int  # since the last overflow, or since the start
    hysteresis: int  # so many overflows, and the last of them halves the scale


def _is_dynamic(scaler: Any) -> bool:
    return getattr(scaler, "dynamic", False)


def take_loss_scale(scaler: Any) -> LossScale | None:
    """The state of DeepSpeed's DynamicLossScaler; None for another scaler or none."""
    if not _is_dynamic(scaler):
        return None
    return LossScale(float(scaler.cur_scale), scaler.cur_iter - scaler.last_overflow_iter - 1, scaler.cur_hysteresis)


def put_loss_scale(scaler: Any, state: LossScale | None) -> None:
    """Have a dynamic scaler go on from a state, None for its own; others have nothing to go on from.

    A scale that can't be lowered any more is told by is_exhausted, and not by an exception in the midst of an update.
    """
    if not _is_dynamic(scaler):
        return
    scaler.raise_error_at_min_scale = False
    if state is not None:
        scaler.cur_scale, scaler.cur_hysteresis = state.scale, state.hysteresis
        scaler.cur_iter, scaler.last_overflow_iter = state.good_updates, -1


def scale_after_updates(zero: Any) -> Callable[[], None]:
    """Have a ZeRO optimizer of DeepSpeed change its loss scale after an update, not in the midst of it.

    DeepSpeed 0.19 doubles the scale before it divides the gradients by it (``step`` in zero/stage_1_and_2.py, likewise
    stage3.py): where the scale grows, gradients would be halved that are not clipped. And where the optimizer is
    offloaded under ZeRO 1 or 2, it adds the next gradients to float32 sums that have overflowed: none would ever be
    finite again. They are forgotten here.

    Args:
        zero: of any kind; one without a dynamic loss scaler stays as it is.

    Returns:
        What changes the scale, to be called after each step.
    """
    if not _is_dynamic(getattr(zero, "loss_scaler", None)):
        return lambda: None
    overflows: list[bool] = []
    zero._update_scale = overflows.append

    def change() -> None:
        while overflows:
            has_overflow = overflows.pop()
            zero.loss_scaler.update_scale(has_overflow)
            if has_overflow and getattr(zero, "cpu_offload", False):  # ZeRO 3 has no such name, and forgets by itself
                zero.averaged_gradients = dict.fromkeys(zero.averaged_gradients)

    return change


def is_exhausted(scaler: Any) -> bool:
    """Whether another overflow could not lower the scale: what overflows then is not for want of a smaller one."""
    return _is_dynamic(scaler) and scaler.cur_scale <= scaler.min_scale and scaler.cur_hysteresis == 1
