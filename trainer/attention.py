"""Scaled dot-product attention and dropout, each as fast as the device allows.

B batch, S sequence, N heads, H head width. Queries, keys and values come as [B, S, N, H], the order in which one
product for all three leaves them, and in which kernels for concatenated sequences want them ([T, N, H], T packed
tokens): such a kernel is another entry of the table below.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Implementation = Literal["reference", "batched", "sdpa"]


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    dropout_probability: float = 0.0,
    implementation: Implementation | None = None,
) -> Tensor:
    """Let every token gather from the real tokens of its sequence: dropout(softmax(Q K^T / sqrt(H))) V.

    Vaswani et al. (2017), section 3.2.1; google-research/bert, modeling.attention_layer.

    Args:
        query: [B, S, N, H], floating point, of any strides.
        key: As query.
        value: As query.
        mask: [B, S] bool, true where a token is real. Padding gets a weight of exactly zero; a sequence of nothing but
            padding (an empty slot of a batch) gets the mean of its values, which is finite and which nobody reads.
        dropout_probability: Share of the weights to drop, in [0, 1); 0 outside training.
        implementation: How to compute it; None takes the fastest for the device of ``query``.

    Returns:
        [B, S, N, H], contiguous, in the dtype of ``query``.
    """
    # On a CPU torch's kernel gives way to slow code where there is dropout, and its bfloat16 backward is slow too:
    # two products take 0.7 times as long in float32, 0.3 times in bfloat16 (docs/model.md).
    implementation = implementation or ("batched" if query.is_cpu else "sdpa")
    return _IMPLEMENTATIONS[implementation](query, key, value, mask, dropout_probability)


def dropout(x: Tensor, probability: float) -> Tensor:
    """Zero each element with ``probability`` and scale the others up, by torch's global generator.

    On a CPU torch draws one number per element, on one core, which triples the time of attention in bfloat16. Here four
    elements share a draw of 64 bits, so that the probability is a multiple of 2^-16 (0.1 becomes 0.09999). The scale is
    that of the probability in effect: the expectation is exact. The result does not depend on the number of threads.

    Args:
        x: Any shape, floating point.
        probability: In [0, 1); 0 returns ``x`` itself and draws nothing.

    Returns:
        A tensor like ``x``.
    """
    if probability == 0.0:
        return x
    if not x.is_cpu:
        return F.dropout(x, probability)
    dropped = int(probability * 2**16)
    words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    bits = words.view(torch.int16)[: x.numel()].view(x.shape)  # [elements/4] of 64 bits -> x.shape of 16 bits
    keep = bits >= dropped - 2**15
    # Two products: a mask that holds the scale would round it to x's dtype, 0.2 % off in bfloat16.
    return x * keep.to(x.dtype) * (2**16 / (2**16 - dropped))


def _reference(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, dropout_probability: float) -> Tensor:
    """The formula as it is written."""
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))  # [B, S, N, H] -> [B, N, S, H]
    scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5  # [B, N, S, H] x [B, N, H, S] -> [B, N, S, S]
    weights = torch.softmax(scores + _padding_bias(mask, scores.dtype), dim=-1)
    gathered = dropout(weights, dropout_probability) @ value  # [B, N, S, S] x [B, N, S, H] -> [B, N, S, H]
    return gathered.transpose(1, 2).contiguous()  # [B, N, S, H] -> [B, S, N, H]


def _batched(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, dropout_probability: float) -> Tensor:
    """One batched product that also scales and masks, softmax, one batched product."""
    batch, sequence, heads, width = query.shape
    query, key, value = (  # [B, S, N, H] -> [B*N, S, H]
        x.transpose(1, 2).reshape(batch * heads, sequence, width) for x in (query, key, value)
    )
    bias = _padding_bias(mask, query.dtype).expand(batch, heads, 1, sequence).reshape(batch * heads, 1, sequence)
    scores = torch.baddbmm(bias, query, key.transpose(1, 2), alpha=width**-0.5)  # [B*N, S, S]
    gathered = dropout(torch.softmax(scores, dim=-1), dropout_probability) @ value  # [B*N, S, S] -> [B*N, S, H]
    return gathered.view(batch, heads, sequence, width).transpose(1, 2).contiguous()  # [B*N, S, H] -> [B, S, N, H]


def _sdpa(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, dropout_probability: float) -> Tensor:
    """Torch's fused kernels, which never store the [S, S] weights."""
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))  # [B, S, N, H] -> [B, N, S, H]
    bias = _padding_bias(mask, query.dtype)
    gathered = F.scaled_dot_product_attention(query, key, value, bias, dropout_probability)
    return gathered.transpose(1, 2).contiguous()  # [B, N, S, H] -> [B, S, N, H]


def _padding_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Zero for real tokens, and for padding half of the lowest number: -inf would turn a row of padding into NaN.

    Half, because the lowest float16 plus a score is -inf already.
    """
    bias = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    return bias.masked_fill_(~mask, torch.finfo(dtype).min / 2)[:, None, None, :]  # [B, S] -> [B, 1, 1, S]


_IMPLEMENTATIONS: dict[Implementation, Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]] = {
    "reference": _reference,
    "batched": _batched,
    "sdpa": _sdpa,
}
