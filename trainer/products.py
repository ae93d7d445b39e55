"""Matrix products in 16 bits on processors without instructions for them: in float32, and rounded once.

oneDNN computes in bfloat16 with AVX-512 or with the matrix units of Arm, in float16 with fewer. Elsewhere torch falls
back on plain loops: on an AMD EPYC of the third generation a training in bf16 takes 14 to 39 times as long as in
float32 (docs/results/pretrain.md).
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def _lacking() -> set[torch.dtype]:
    asked = {torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported"}
    has_some = torch.backends.mkldnn.is_available()
    return {dtype for dtype, name in asked.items() if not (has_some and getattr(torch.ops.mkldnn, name)())}


LACKING = _lacking()  # of this machine's processor


class Linear(nn.Linear):
    """torch's, quick in 16 bits on every processor."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]."""
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """As torch.nn.functional.linear, [..., I], [O, I] and [O] -> [..., O], also in the dtype that autocast asks for."""
    dtype = _asked_of(x)
    if dtype is None:
        return F.linear(x, weight, bias)
    with torch.autocast("cpu", enabled=False):
        result: Tensor = _Linear.apply(x.to(dtype), weight.to(dtype), bias.to(dtype))
    return result


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """As torch.matmul of batches of matrices, but without gradients."""
    dtype = _asked_of(a)
    if dtype is None:
        return a @ b
    with torch.autocast("cpu", enabled=False):
        return (_rounded(a, dtype) @ _rounded(b, dtype)).to(dtype)


def baddbmm(bias: Tensor, a: Tensor, b: Tensor, beta: float = 1.0, alpha: float = 1.0) -> Tensor:
    """As torch.baddbmm, but without gradients."""
    dtype = _asked_of(a)
    if dtype is None:
        return torch.baddbmm(bias, a, b, beta=beta, alpha=alpha)
    with torch.autocast("cpu", enabled=False):
        bias, a, b = (_rounded(x, dtype) for x in (bias, a, b))
        return torch.baddbmm(bias, a, b, beta=beta, alpha=alpha).to(dtype)


def _rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The float32 of what ``x`` is in a dtype, in which it mostly is already."""
    return x.to(dtype).float()


def _asked_of(x: Tensor) -> torch.dtype | None:
    """The dtype of a product with ``x``, where it is to be computed in float32; else None."""
    if not (LACKING and x.is_cpu):
        return None
    is_cast = torch.is_autocast_enabled("cpu") and x.dtype != torch.float64
    dtype = torch.get_autocast_dtype("cpu") if is_cast else x.dtype
    return dtype if dtype in LACKING else None


class _Linear(torch.autograd.Function):
    """Keeps what it was given for the backward pass, not the float32 of it, which is twice as large."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(x.float(), weight.float(), bias.float()).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        to_x = to_weight = to_bias = None
        with torch.autocast("cpu", enabled=False):
            gradient = upstream[0].float()
            if ctx.needs_input_grad[0]:
                to_x = (gradient @ weight.float()).to(x.dtype)
            gradient = gradient.reshape(-1, len(weight))
            if ctx.needs_input_grad[1]:
                to_weight = (gradient.t() @ x.reshape(-1, weight.shape[1]).float()).to(weight.dtype)
            if ctx.needs_input_grad[2]:
                to_bias = gradient.sum(dim=0).to(weight.dtype)
        return to_x, to_weight, to_bias
