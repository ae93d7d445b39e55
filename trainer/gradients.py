"""Gradients between backward pass and update: their norm, their sums, and neither in more passes than needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed
from torch import Tensor

_ROW = 1024  # elements that are summed in float32
_EXACT = torch.float32  # 16 bits have no room for the norm of a gradient with fp16's loss scale


def total_norm(gradients: Sequence[Tensor]) -> Tensor:
    """The 2-norm of all gradients as one vector, a float32 scalar on their device; not finite where one of them isn't.

    On a CPU torch's own sum over a matrix of embeddings is wrong by 2e-4 and more, for it adds small squares to a large
    sum, and one in float64 takes ten to thirty times as long. Here rows of 1,024 squares are summed in float32, and the
    rows in float64: right to 1e-7 in the first one's time (benchmarks/gradient_norm.py). On CUDA torch sums blocks
    anyway.

    Args:
        gradients: one at least, floating point, of any shapes, on one device.
    """
    if not gradients[0].is_cpu:
        total: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(gradients), 2.0, dtype=_EXACT)))
        return total
    rows = torch.cat([norms for gradient in gradients for norms in _norms_of_rows(gradient.flatten())])
    norm: Tensor = torch.linalg.vector_norm(rows, dtype=torch.float64)
    return norm.float()


def _norms_of_rows(values: Tensor) -> tuple[Tensor, Tensor]:
    rows = len(values) // _ROW
    whole, rest = values[: rows * _ROW].view(rows, _ROW), values[rows * _ROW :]
    return torch.linalg.vector_norm(whole, dim=1, dtype=_EXACT), torch.linalg.vector_norm(rest, dtype=_EXACT)[None]


def take_norm_once(zero: Any) -> None:
    """Have a ZeRO optimizer of DeepSpeed tell from ``total_norm`` alone whether a gradient is finite.

    DeepSpeed 0.19 first looks for the extremes of every gradient and then takes each one's norm in float64: several
    passes over memory more than needed, and on a GPU some fifteen kernels a parameter, 4,500 for BERT-LARGE. Yet a norm
    that is not finite calls the update off as well (``step`` in its zero/stage_1_and_2.py).

    Args:
        zero: of stage 1 or 2. One that keeps gradients on the host, or is of another stage, stays as it is.
    """
    if not hasattr(zero, "check_grad_overflow") or zero.cpu_offload:
        return

    def norm_over_ranks(gradients: Sequence[Tensor], *_: Any) -> Tensor:
        square = total_norm(gradients) ** 2 if gradients else torch.zeros((), device=zero.device)
        torch.distributed.all_reduce(square)
        return square.sqrt()

    zero.get_grad_norm_direct = norm_over_ranks
    zero.check_overflow = lambda *_, **__: None


def scale_down(gradients: Sequence[Tensor], max_norm: float, norm: Tensor) -> None:
    """Clip gradients, in place, whose norm as one vector is given, as DeepSpeed does.

    Args:
        gradients: floating point, of any shapes.
        max_norm: that they have at most afterwards.
        norm: a float32 scalar on a CPU, where nobody waits to look at it.
    """
    factor = max_norm / (norm + 1e-6)
    if factor < 1:
        torch._foreach_mul_(list(gradients), float(factor))


def add_up_at_once(optimizer: Any) -> None:
    """Have DeepSpeed's optimizer for bf16 under ZeRO 1 add gradients to their float32 sums in one pass over memory.

    DeepSpeed 0.19 empties the sums, twice, copies each gradient to float32, adds it, and then keeps it: it is cleared,
    and the next micro-batch's added to that. Here the first micro-batch's take the place of the sums before, and the
    others' are added: 6 and 10 bytes a parameter are moved instead of 26, and 8 less an update, to the same bits, and
    where nothing is accumulated in a launch for many parameters instead of three for each.

    Args:
        optimizer: of any kind; another one stays as it is.
    """
    if not hasattr(optimizer, "update_hp_grads") or optimizer.immediate_grad_update:
        return

    groups = [
        (parameters, [total.view_as(parameter) for total, parameter in zip(sums, parameters, strict=True)])
        for parameters, sums in zip(optimizer.bf16_groups, optimizer.fp32_groups_gradients, strict=True)
    ]

    @torch.no_grad()
    def add(*_: Any, **__: Any) -> None:
        for (parameters, sums), is_begun in zip(groups, optimizer.fp32_groups_has_gradients, strict=True):
            places = range(len(parameters))
            there = [place for place in places if parameters[place].grad is not None]
            for apply, found in (
                (torch._foreach_copy_, [place for place in there if not is_begun[place]]),
                (torch._foreach_add_, [place for place in there if is_begun[place]]),
            ):
                if found:
                    apply([sums[place] for place in found], [parameters[place].grad for place in found])
            for place in there:
                is_begun[place] = True
            if rest := [sums[place] for place in places if not is_begun[place]]:
                torch._foreach_zero_(rest)  # of the step before

    def forget() -> None:
        for is_begun in optimizer.fp32_groups_has_gradients:
            is_begun[:] = [False] * len(is_begun)

    optimizer.update_hp_grads = add
    optimizer.clear_hp_grads = forget
    optimizer.backward_prologue = lambda: optimizer.clear_lp_grads(set_to_none=True)


def leave_out_sum_over_ranks(engine: Any) -> None:
    """Have DeepSpeed's engine of a single rank leave gradients where they are.

    DeepSpeed 0.19 copies all of them together, asks for the sum over one rank, and copies them back: 16 bytes a
    parameter (``allreduce_bucket`` in its runtime/engine.py), for bf16 under ZeRO 1 and without ZeRO.
    """
    engine.buffered_allreduce_fallback = lambda *_, **__: None
