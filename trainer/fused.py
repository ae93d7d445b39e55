"""An encoder layer by kernels of our own (trainer.kernels): an option for GPUs.

What there is between the matrix products of a layer reads and writes memory and does little else. These kernels read
and write less than torch.compile's of the same formulas: a bias's gradient is added up where the gradient is written
that it is the sum of, a residual's gradient is added to by the product that has the other part of it, and dropout's
masks are not kept but drawn anew, four elements at a time (docs/results/gpu.md counts it). Every sum has one order.

T tokens, D width of the model, F of the feed-forward layer.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch
import triton
from torch import Tensor, nn
from torch.nn import functional as F

from trainer import kernels
from trainer.fused_attention import Attention, How, attend, attend_backward
from trainer.model import BertConfig, Layer, project
from trainer.packing import PackedTokens, Selection

_TILE = {"COLUMNS": 256, "ROWS": 8}  # of a program that adds up over rows
_FLAT = 1024  # elements of a program that adds up nothing
_WARPS = 24  # for which each multiprocessor of a GPU has registers at once, 72 a thread and some to spare
_ARITHMETIC = {"enable_fp_fusion": True}  # a product and a sum round once; Triton 3.10 does so only where it is asked
_BY_ERF = {"gelu": True, "gelu_new": False}


def fuse(layers: nn.ModuleList, config: BertConfig) -> None:
    """Have the layers of an encoder compute by kernels of this module, forward and backward; parameters stay.

    Dropout draws other numbers than without it: by Philox, from seeds of the device's generator of torch. Of the last
    layer the products for queries, keys and values are torch's, where few tokens ask.

    Args:
        layers: of the encoder, each a trainer.model.Layer that ends in LayerNorm.
        config: of the model.
    """
    for layer in layers:
        assert isinstance(layer, Layer)
        layer.forward = partial(_layer, layer, config)  # type: ignore[method-assign]


def _layer(
    layer: Layer, config: BertConfig, hidden: Tensor, tokens: PackedTokens, selected: Selection | None = None
) -> Tensor:
    """As Layer.forward, [T, D] -> [T, D], or [R, D] where only some tokens are selected."""
    attention = layer.attention
    dropped, lost = (attention.attention_dropout, config.hidden_dropout_prob) if layer.training else (0.0, 0.0)
    # On the device, where nothing waits for them, and a CUDA graph draws others at each replay.
    seeds = torch.randint(2**62, (3,), device=hidden.device).split(1) if dropped or lost else (None, None, None)
    how = How(selected or tokens, tokens, attention.heads, attention.causal, dropped, seeds[0])
    if selected is None:
        gathered, residual = _SelfAttention.apply(hidden, attention.qkv.weight, attention.qkv.bias, how)
    else:
        gathered = Attention.apply(*project(hidden, selected, attention.qkv), how)
        residual = hidden.index_select(0, selected.rows)
    hidden = _add_norm(gathered, attention.out, residual, layer.attention_norm, lost, seeds[1])
    up = layer.feed_forward.up
    active, residual = _Up.apply(hidden, up.weight, up.bias, _BY_ERF[config.hidden_act])
    return _add_norm(active, layer.feed_forward.down, residual, layer.feed_forward_norm, lost, seeds[2])


def _add_norm(
    x: Tensor, linear: nn.Linear, residual: Tensor, norm: nn.LayerNorm, probability: float, seed: Tensor | None
) -> Tensor:
    """LayerNorm(residual + dropout(linear(x))); ``seed`` is int64 [1], None where nothing is dropped."""
    result: Tensor = _AddNorm.apply(
        x, linear.weight, linear.bias, residual, norm.weight, norm.bias, norm.eps, probability, seed
    )
    return result


class _SelfAttention(torch.autograd.Function):
    """Attention of all tokens with the product before it, and the hidden states, which go on as the residual."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, how: How) -> tuple[Tensor, Tensor]:
        """[T, D], [3D, D], [3D] -> [T, D], [T, D]."""
        joint = F.linear(hidden, weight, bias)
        query, key, value = joint.chunk(3, dim=-1)
        gathered, *rest = attend(query, key, value, how)
        ctx.save_for_backward(hidden, weight, joint, gathered, *rest)
        ctx.how = how
        return gathered, hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """The residual's gradient becomes that of the hidden states, by the product that adds to it.

        In its place: _AddNorm, from whose residual it comes, made it for this alone.
        """
        hidden, weight, joint, *rest = ctx.saved_tensors
        to_gathered, to_residual = (x.contiguous() for x in upstream)
        to_joint = torch.empty_like(joint)
        saved, to_parts = (*joint.chunk(3, dim=-1), *rest), to_joint.chunk(3, dim=-1)
        to_bias = attend_backward(to_gathered, saved, to_parts, ctx.how, sums=True)
        assert to_bias is not None
        return to_residual.addmm_(to_joint, weight), to_joint.t() @ hidden, to_bias.to(weight.dtype), None


class _Up(torch.autograd.Function):
    """The first product of the feed-forward layer with its activation, and what goes on as the residual."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, by_erf: bool) -> tuple[Tensor, Tensor]:
        """[T, D], [F, D], [F] -> [T, F], [T, D]."""
        before = F.linear(hidden, weight, bias)
        after = torch.empty_like(before)
        kernels.gelu[(triton.cdiv(before.numel(), _FLAT),)](
            before, after, before.numel(), BY_ERF=by_erf, BLOCK=_FLAT, **_ARITHMETIC
        )
        ctx.save_for_backward(hidden, weight, before)
        ctx.by_erf = by_erf
        return after, hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """As _SelfAttention."""
        hidden, weight, before = ctx.saved_tensors
        to_after, to_residual = (x.contiguous() for x in upstream)
        count, width = before.shape
        blocks = triton.cdiv(width, _TILE["COLUMNS"])
        shares, rows = _shares(blocks, count, hidden.device)
        to_before = torch.empty_like(before)
        sums = before.new_empty(shares, width, dtype=torch.float32)
        kernels.gelu_backward[(blocks, shares)](
            to_after, before, to_before, sums, count, rows, WIDTH=width, **_TILE, BY_ERF=ctx.by_erf, **_ARITHMETIC
        )
        to_bias = sums.sum(dim=0).to(weight.dtype)
        return to_residual.addmm_(to_before, weight), to_before.t() @ hidden, to_bias, None


class _AddNorm(torch.autograd.Function):
    """A product, dropout, the residual and LayerNorm."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor, scale: Tensor, shift: Tensor, eps: float,
        probability: float, seed: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """[T, K], [D, K], [D], [T, D], [D], [D] -> [T, D]."""
        projected = F.linear(x, weight, bias)
        count, width = projected.shape
        total, normed = torch.empty_like(projected), torch.empty_like(projected)
        means, inverses = (x.new_empty(count, dtype=torch.float32) for _ in range(2))
        kernels.add_norm[(count,)](
            projected, residual.contiguous(), scale, shift, total, normed, means, inverses, seed, probability,
            1 / (1 - probability), eps, DROPS=probability > 0, **_row(width), **_ARITHMETIC,
        )  # fmt: skip
        ctx.save_for_backward(x, weight, scale, total, means, inverses, seed)
        ctx.probability = probability
        return normed

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Gradients of all tensors, the sums over tokens among them."""
        x, weight, scale, total, means, inverses, seed = ctx.saved_tensors
        count, width = total.shape
        drops = ctx.probability > 0
        to_total = torch.empty_like(total)
        to_projected = torch.empty_like(total) if drops else to_total
        row = _row(width)
        sums = total.new_empty(min(_programs(x.device, row["num_warps"]), count), 3, width, dtype=torch.float32)
        kernels.add_norm_backward[(len(sums),)](
            upstream[0].contiguous(), total, scale, means, inverses, to_total, to_projected, sums, seed,
            ctx.probability, 1 / (1 - ctx.probability), count, DROPS=drops, **row, **_ARITHMETIC,
        )  # fmt: skip
        to_scale, to_shift, to_bias = sums.sum(dim=0).to(weight.dtype)
        to_weight = to_projected.t() @ x
        return to_projected @ weight, to_weight, to_bias, to_total, to_scale, to_shift, None, None, None


@cache
def _programs(device: torch.device, warps: int = 4) -> int:
    """Programs of so many warps that a GPU runs at once; on a CPU, where Triton interprets, some."""
    if device.type == "cpu":
        return 4
    return _WARPS // warps * int(torch.cuda.get_device_properties(device).multi_processor_count)


def _shares(blocks: int, count: int, device: torch.device) -> tuple[int, int]:
    """How many shares of how many rows make up ``count`` rows, where a share has so many blocks of columns."""
    rows = -(-count // max(1, _programs(device) // blocks))
    return -(-count // rows), rows


def _row(width: int) -> dict[str, int]:
    """How a program has a row: with 8 elements for each of its threads."""
    block = triton.next_power_of_2(width)
    return {"WIDTH": width, "BLOCK": block, "num_warps": min(16, max(1, block // 256))}
