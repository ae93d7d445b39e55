"""Matrix products in bfloat16 on processors without instructions for them: in float32, and rounded once.

oneDNN computes bfloat16 with AVX-512 or with the matrix units of Arm. Elsewhere torch falls back on plain loops: on an
AMD EPYC of the third generation a training takes 14 to 39 times as long as in float32 (docs/results/pretrain.md).
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

HAS_KERNELS = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


class Linear(nn.Linear):
    """torch's, quick in bfloat16 on every processor."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]."""
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """As torch.nn.functional.linear, [..., I], [O, I] and [O] -> [..., O], also where autocast asks for bfloat16."""
    if not _wants_float32(x):
        return F.linear(x, weight, bias)
    result: Tensor = _Linear.apply(x, weight, bias)
    return result


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """As torch.matmul of matrices of one dtype, but without gradients."""
    if not _wants_float32(a):
        return a @ b
    with torch.autocast("cpu", enabled=False):
        return (a.float() @ b.float()).to(a.dtype)


def baddbmm(bias: Tensor, a: Tensor, b: Tensor, beta: float = 1.0, alpha: float = 1.0) -> Tensor:
    """As torch.baddbmm of matrices of one dtype, but without gradients."""
    if not _wants_float32(a):
        return torch.baddbmm(bias, a, b, beta=beta, alpha=alpha)
    with torch.autocast("cpu", enabled=False):
        return torch.baddbmm(bias.float(), a.float(), b.float(), beta=beta, alpha=alpha).to(a.dtype)


def _wants_float32(x: Tensor) -> bool:
    return not HAS_KERNELS and x.is_cpu and (x.dtype == torch.bfloat16 or torch.is_autocast_enabled("cpu"))


class _Linear(torch.autograd.Function):
    """Keeps what it was given for the backward pass, not the float32 of it, which is twice as large."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.bfloat16)  # type: ignore[untyped-decorator]
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(x.float(), weight.float(), bias.float()).to(x.dtype)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        gradient = upstream[0].float()
        to_x = to_weight = to_bias = None
        if ctx.needs_input_grad[0]:
            to_x = (gradient @ weight.float()).to(x.dtype)
        gradient = gradient.reshape(-1, len(weight))
        if ctx.needs_input_grad[1]:
            to_weight = (gradient.t() @ x.reshape(-1, weight.shape[1]).float()).to(weight.dtype)
        if ctx.needs_input_grad[2]:
            to_bias = gradient.sum(dim=0).to(weight.dtype)
        return to_x, to_weight, to_bias
