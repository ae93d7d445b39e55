"""Scaled dot-product attention within packed sequences, and dropout, each as fast as the device allows.

T tokens of B sequences laid end to end, R of them queries, N heads, H head width; G sequences of a group, S tokens of
the longest, Q queries at most.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from trainer.packing import PackedTokens, Selection, Table
from trainer.products import baddbmm, matmul

Implementation = Literal["reference", "grouped", "sdpa", "varlen"]
_Queries = PackedTokens | Selection
# All but cuDNN's, which Hopper would take, from torch 2.14 on for packed sequences too. In torch 2.11 it rounds the
# probability of dropout to sixteenths (pytorch #174245), and with a mask its gradients are NaN for 64 tokens more than
# a multiple of 128 (#196678). Kept out where attention is computed, and not once for the process: whoever imports the
# model has it right, and others their default.
_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
_FLASH_CAPABILITY = (8, 0)  # of the oldest GPUs that the kernel for packed sequences runs on: Ampere
_FLASH_WIDTHS = (8, 256)  # of heads: multiples, and the widest, for which it has code; torch's own pads others
DRAWN = 128  # queries and keys of a block for which trainer.fused_attention draws numbers of dropout


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    tokens: PackedTokens,
    queries: Selection | None = None,
    dropout_probability: float = 0.0,
    causal: bool = False,
    implementation: Implementation | None = None,
) -> Tensor:
    """Let every token gather from the tokens of its own sequence: dropout(softmax(Q K^T / sqrt(H))) V.

    Vaswani et al. (2017), section 3.2.1; google-research/bert, modeling.attention_layer.

    Args:
        query: [T, N, H], floating point, of any strides; [R, N, H] where ``queries`` says whose they are.
        key: [T, N, H], likewise.
        value: [T, N, H], likewise.
        tokens: Where the sequences lie.
        queries: The tokens that gather; None for all.
        dropout_probability: Share of the weights to drop, in [0, 1); 0 outside training.
        causal: Whether a token sees itself and those before it only; then all tokens must gather.
        implementation: How to compute it; None takes the fastest for the device of ``query``.

    Returns:
        As ``query``, contiguous.

    Raises:
        ValueError: "varlen" is asked for dropout, which that kernel doesn't have.
    """
    assert queries is None or not causal
    compute = _IMPLEMENTATIONS[implementation or _fastest(query, dropout_probability)]
    return compute(query, key, value, tokens, queries or tokens, dropout_probability, causal)


def _fastest(query: Tensor, dropout_probability: float) -> Implementation:
    if query.is_cpu:
        return "grouped"
    return fastest_on_gpu(query.element_size(), dropout_probability, query.shape[-1], is_modern(query.device))


def is_modern(device: torch.device) -> bool:
    """Whether kernels for packed sequences run there: CUDA from Ampere on, or tensors that only know their shape."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return True
    return torch.cuda.get_device_capability(device) >= _FLASH_CAPABILITY


def fastest_on_gpu(
    element_bytes: int, dropout_probability: float, head_width: int, is_modern: bool = True
) -> Literal["sdpa", "varlen"]:
    """The fastest way for floating-point numbers of so many bytes, on a GPU of Ampere's generation or later, or not."""
    multiple, widest = _FLASH_WIDTHS
    has_kernel = is_modern and head_width % multiple == 0 and head_width <= widest
    return "varlen" if has_kernel and element_bytes == 2 and dropout_probability == 0.0 else "sdpa"


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
    # Two products: a mask that holds the scale would round it to x's dtype, 0.2 % off in bfloat16.
    return x * _kept(x, probability).to(x.dtype) * scale_of_kept(probability)


def _kept(x: Tensor, probability: float) -> Tensor:
    """Which elements of ``x`` stay, bool of its shape; on a CPU."""
    words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    bits = words.view(torch.int16)[: x.numel()].view(x.shape)  # [elements/4] of 64 bits -> x.shape of 16 bits
    return bits >= dropped_of_65536(probability) - 2**15


def dropped_of_65536(probability: float) -> int:
    """How many of 2^16 equally likely draws drop an element, for a ``probability`` in multiples of 2^-16."""
    return int(probability * 2**16)


def scale_of_kept(probability: float) -> float:
    """What the others are multiplied by, so that the expectation stays."""
    return 2**16 / (2**16 - dropped_of_65536(probability))


def groups_of_bits(longest: int) -> int:
    """Bytes of dropout for a query of a head: a bit for each key of the longest sequence, in whole blocks."""
    return -(-longest // DRAWN) * DRAWN // 8


def _reference(
    query: Tensor, key: Tensor, value: Tensor, tokens: PackedTokens, queries: _Queries, probability: float, causal: bool
) -> Tensor:
    """The formula as it is written, one sequence after the other."""
    packed = ((query, queries.bounds), (key, tokens.bounds), (value, tokens.bounds))
    sequences = (x.transpose(0, 1).split(bounds.diff().tolist(), dim=1) for x, bounds in packed)  # B x [N, S, H]
    gathered = []
    for q, k, v in zip(*sequences, strict=True):
        scores = q @ k.transpose(1, 2) * q.shape[-1] ** -0.5  # [N, Q, H] x [N, H, S] -> [N, Q, S]
        if causal:
            scores = scores.masked_fill(_future(scores.shape[-1], scores.device), -torch.inf)
        gathered.append(dropout(torch.softmax(scores, dim=-1), probability) @ v)  # [N, Q, H]
    return torch.cat(gathered, dim=1).transpose(0, 1).contiguous()  # [N, R, H] -> [R, N, H]


def _grouped(
    query: Tensor, key: Tensor, value: Tensor, tokens: PackedTokens, queries: _Queries, probability: float, causal: bool
) -> Tensor:
    gathered: Tensor = _Grouped.apply(query, key, value, queries.tables, tokens.tables, probability, causal)
    return gathered


class _Grouped(torch.autograd.Function):
    """Batched products over sequences of about one length: the fastest way on a CPU.

    torch's own kernel gives way to slow code where there is dropout, and its bfloat16 backward is slow too. Here the
    backward pass is written out: a few passes over the [S, S] weights fewer than autograd's (docs/model.md).
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, ours: list[Table], theirs: list[Table], probability: float,
        causal: bool,
    ) -> Tensor:  # fmt: skip
        """Of each group ``ours`` has the queries, ``theirs`` the keys and values."""
        gathered = torch.zeros(query.shape, dtype=query.dtype)
        saved: list[Tensor] = []
        for asking, asked in zip(ours, theirs, strict=True):
            q, k, v = _take(query, asking), _take(key, asked), _take(value, asked)  # [G*N, Q, H], twice [G*N, S, H]
            v *= scale_of_kept(probability)  # here instead of in the larger weights
            weights = torch.softmax(_scores(q, k, asked, query.shape[1], causal), dim=-1)  # [G*N, Q, S]
            kept = weights.masked_fill(~_kept(weights, probability), 0) if probability else weights
            output = matmul(kept, v)
            _put(gathered, output, asking)
            saved += [q, k, v, weights, kept, output]
        ctx.save_for_backward(*saved)
        ctx.tables, ctx.probability, ctx.shape = (ours, theirs), probability, key.shape
        return gathered

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """With O = kept V and row sums r = sum(dO O): dV = kept^T dO and dS = kept (dO V^T) - weights r."""
        to_gathered = upstream[0]
        to_query = torch.zeros(to_gathered.shape, dtype=to_gathered.dtype)
        to_key, to_value = (torch.zeros(ctx.shape, dtype=to_gathered.dtype) for _ in range(2))
        saved = ctx.saved_tensors  # once: activation checkpointing computes them anew each time
        for i, (asking, asked) in enumerate(zip(*ctx.tables, strict=True)):
            q, k, v, weights, kept, output = saved[6 * i : 6 * i + 6]
            to_output = _take(to_gathered, asking, padding=0.0)  # [G*N, Q, H]
            row_sums = (to_output * output).sum(dim=-1, keepdim=True)  # [G*N, Q, 1]
            to_scores = matmul(to_output, v.transpose(1, 2)).mul_(kept).addcmul_(weights, row_sums, value=-1)
            to_scores *= q.shape[-1] ** -0.5
            _put(to_query, matmul(to_scores, k), asking)
            _put(to_key, matmul(to_scores.transpose(1, 2), q), asked)
            _put(to_value, matmul(kept.transpose(1, 2), to_output) * scale_of_kept(ctx.probability), asked)
        return to_query, to_key, to_value, None, None, None, None


def _scores(query: Tensor, key: Tensor, keys: Table, heads: int, causal: bool) -> Tensor:
    """[G*N, Q, H], [G*N, S, H] -> [G*N, Q, S], scaled, and out of sight what must not be seen."""
    size, longest = keys.rows.shape
    scale = query.shape[-1] ** -0.5
    hidden = None if keys.real is None else ~keys.real[:, None, :]  # [G, 1, S]
    if causal:
        future = _future(longest, query.device)
        hidden = future[None] if hidden is None else hidden | future  # [G, S, S]
    if hidden is None:
        return baddbmm(query.new_zeros(()), query, key.transpose(1, 2), beta=0, alpha=scale)
    bias = _bias(hidden, query.dtype)[:, None].expand(size, heads, -1, longest).reshape(size * heads, -1, longest)
    return baddbmm(bias, query, key.transpose(1, 2), alpha=scale)


def _take(x: Tensor, table: Table, padding: float | None = None) -> Tensor:
    """[T, N, H] -> [G*N, S, H]; without a value for padding it repeats some token."""
    size, longest = table.rows.shape
    taken = x.flatten(1).index_select(0, table.rows.flatten()).view(size, longest, *x.shape[1:])  # [G, S, N, H]
    if padding is not None and table.real is not None:
        taken.masked_fill_(~table.real[:, :, None, None], padding)
    return taken.transpose(1, 2).reshape(size * x.shape[1], longest, x.shape[2])


def _put(x: Tensor, values: Tensor, table: Table) -> None:
    """[G*N, S, H] into the rows of [T, N, H] that they belong to."""
    size, longest = table.rows.shape
    values = values.view(size, x.shape[1], longest, x.shape[2]).transpose(1, 2)  # [G, S, N, H]
    values = values.reshape(size * longest, x.shape[1] * x.shape[2])
    if table.real is not None:
        values = values.index_select(0, table.real_places)
    x.flatten(1).index_copy_(0, table.real_rows, values)


def _sdpa(
    query: Tensor, key: Tensor, value: Tensor, tokens: PackedTokens, queries: _Queries, probability: float, causal: bool
) -> Tensor:
    """Torch's fused kernels, which never store the [S, S] weights, on sequences padded to the longest."""
    asked = _Rows.of(tokens.bounds, tokens.longest, len(key))
    asking = asked if queries is tokens else _Rows.of(queries.bounds, tokens.longest, len(query))
    query, key, value = (rows.pad(x) for x, rows in ((query, asking), (key, asked), (value, asked)))
    hidden = ~asked.real[:, None, None, :]  # [B, 1, 1, S]
    if causal:
        hidden = hidden | _future(tokens.longest, query.device)
    with sdpa_kernel(_KERNELS):
        gathered = F.scaled_dot_product_attention(query, key, value, _bias(hidden, query.dtype), probability)
    return asking.unpad(gathered)


@dataclass(frozen=True)
class _Rows:
    """Where R rows of B sequences are in a padded table, and the other way round; the host waits for no length.

    Attributes:
        places: int64 [R], which of the B*S places of the table each row has.
        rows: int64 [B*S], which row each place has; some other one for padding.
        real: bool [B, S], false for padding.
    """

    places: Tensor
    rows: Tensor
    real: Tensor

    @classmethod
    def of(cls, bounds: Tensor, longest: int, count: int) -> _Rows:
        """Of int32 [B + 1] bounds among ``count`` rows."""
        rows = torch.arange(count, device=bounds.device, dtype=bounds.dtype)
        sequences = torch.searchsorted(bounds[1:], rows, right=True)
        table = bounds[:-1, None] + torch.arange(longest, device=bounds.device)  # [B, S]
        return cls(
            places=sequences * longest + rows - bounds[sequences],
            rows=table.clamp(max=count - 1).flatten(),
            real=table < bounds[1:, None],
        )

    def pad(self, x: Tensor) -> Tensor:
        """[R, N, H] -> [B, N, S, H], with anything for padding: no weight is theirs, and so no gradient."""
        table: Tensor = _Gather.apply(x, self.rows, self.places, None)
        return table.view(*self.real.shape, *x.shape[1:]).transpose(1, 2)

    def unpad(self, table: Tensor) -> Tensor:
        """[B, N, S, H] -> [R, N, H]."""
        flat = table.transpose(1, 2).flatten(0, 1)  # [B*S, N, H]
        rows: Tensor = _Gather.apply(flat, self.places, self.rows, self.real.flatten())
        return rows


class _Gather(torch.autograd.Function):
    """Rows by their numbers, and their gradients by the numbers that lead back.

    Torch would add the gradients of rows up, in any order or, where one is asked for, after it has sorted the numbers.
    Here each is that of one row at most.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor, back: Tensor, was_taken: Tensor | None) -> Tensor:
        """``back`` says which of the rows taken each row of ``x`` is, where ``was_taken`` says that it is one."""
        ctx.save_for_backward(back, was_taken)
        return x.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Zero for a row that was not taken."""
        back, was_taken = ctx.saved_tensors
        gradient = upstream[0].index_select(0, back)
        if was_taken is not None:
            gradient = gradient.masked_fill(~was_taken[:, None, None], 0)
        return gradient, None, None, None


def _varlen(
    query: Tensor, key: Tensor, value: Tensor, tokens: PackedTokens, queries: _Queries, probability: float, causal: bool
) -> Tensor:
    """Torch's fused kernel for sequences laid end to end; CUDA, 16 bits."""
    from torch.nn.attention.varlen import varlen_attn  # it imports CUDA's parts

    if probability:
        raise ValueError("attention over packed sequences has no dropout; set model.attention_probs_dropout_prob=0")
    window = (-1, 0) if causal else (-1, -1)
    longest = tokens.longest
    with sdpa_kernel(_KERNELS):
        gathered = varlen_attn(query, key, value, queries.bounds, tokens.bounds, longest, longest, window_size=window)
    assert isinstance(gathered, Tensor)  # not with the statistics that it can return too
    return gathered


def _future(length: int, device: torch.device) -> Tensor:
    """[S, S] of bool, true where the second is a later token than the first."""
    return torch.ones(length, length, dtype=torch.bool, device=device).triu_(1)


def _bias(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """Zero for what may be seen, and else half of the lowest number: -inf would turn a row of padding into NaN.

    Half, because the lowest float16 plus a score is -inf already.
    """
    bias = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
    return bias.masked_fill_(hidden, torch.finfo(dtype).min / 2)


_IMPLEMENTATIONS: dict[
    Implementation, Callable[[Tensor, Tensor, Tensor, PackedTokens, _Queries, float, bool], Tensor]
] = {
    "reference": _reference,
    "grouped": _grouped,
    "sdpa": _sdpa,
    "varlen": _varlen,
}


def expect_compiler() -> None:
    """Keep out of torch.compile's graphs what has no place there; to be called before it is.

    Not at import: this imports the compiler, which takes as long as the rest of torch.
    """
    # The comparison included: torch 2.11 can't order tuples in a graph.
    torch.compiler.assume_constant_result(is_modern)  # type: ignore[no-untyped-call]
    _IMPLEMENTATIONS["grouped"] = torch.compiler.disable(_grouped)  # which groups there are is known from data alone
