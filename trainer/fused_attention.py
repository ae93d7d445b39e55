"""Attention within packed sequences by kernels of our own (trainer.attention_kernels), with dropout of its weights.

T tokens, R of them queries, N heads, D width of the model.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor

from trainer import attention_kernels
from trainer.attention import DRAWN, dropped_of_65536, groups_of_bits, scale_of_kept
from trainer.packing import PackedTokens, Selection

_WHOLE = 128  # tokens of a sequence whose backward pass a program has at once, of numbers of 16 bits
_NARROW = 64  # the width of a head up to which a multiprocessor has room for that
_SMALLEST = 16  # sides of a product of blocks


def use_assembler_of(package: Path) -> None:
    """Have Triton use the assembler that torch's package brings, if it does; not where the environment has another.

    As torch.compile does at its first kernel. Ours from before that would be made by Triton's own, those from after it
    by torch's, and what a check finds of them would depend on what ran before it.
    """
    if (assembler := package / "bin" / "ptxas").is_file():
        os.environ.setdefault("TRITON_PTXAS_PATH", str(assembler))


use_assembler_of(Path(torch.__file__).parent)


@dataclass(frozen=True)
class How:
    """How tokens gather from those of their sequences.

    Attributes:
        queries: the tokens that gather, R.
        tokens: those that they gather from, T.
        heads: N.
        causal: whether a token sees itself and those before it only.
        probability: of dropout of the weights, in multiples of 2^-16, as trainer.attention.dropout on a CPU.
        seed: int64 [1], of it; None where nothing is dropped.
    """

    queries: PackedTokens | Selection
    tokens: PackedTokens
    heads: int
    causal: bool
    probability: float
    seed: Tensor | None

    def constants(self, query: Tensor, rows: int) -> dict[str, Any]:
        """What the kernels of attention are built for, with so many queries and keys in a block."""
        block = self.block(query)
        return {
            "HEADS": self.heads, "WIDTH": query.shape[1] // self.heads, "BLOCK": block, "QUERIES": rows, "KEYS": rows,
            "CAUSAL": self.causal, "DROPS": self.probability > 0, "num_warps": 8 if rows == _WHOLE else 4,
            "num_stages": 3 if block <= _NARROW else 1,  # of what is loaded ahead, as far as smaller GPUs have room
            "enable_fp_fusion": True,
        }  # fmt: skip

    def block(self, query: Tensor) -> int:
        """Columns of a block."""
        return max(_SMALLEST, int(triton.next_power_of_2(query.shape[1] // self.heads)))

    def rows(self, query: Tensor) -> int:
        """Queries and keys of a block, with which several programs share a multiprocessor, or one has room there."""
        row = self.block(query) * query.element_size()  # bytes
        if query.element_size() == 2 and row <= 256:
            return 64
        return 32 if row <= 1024 else _SMALLEST

    def is_whole(self, query: Tensor) -> bool:
        """Whether a block of the backward pass has a sequence as a whole."""
        return self.tokens.longest <= _WHOLE and query.element_size() == 2 and self.block(query) <= _NARROW

    def scales(self, query: Tensor) -> tuple[float, float, float]:
        """To make exponents of two, and scores, of products; and weights that dropout keeps larger."""
        to_score = (query.shape[1] // self.heads) ** -0.5
        return math.log2(math.e) * to_score, to_score, scale_of_kept(self.probability)

    def grid(self, rows: int) -> tuple[int, int, int]:
        """Programs of so many queries or keys."""
        return triton.cdiv(self.tokens.longest, rows), self.heads, len(self.tokens.bounds) - 1


def attend(query: Tensor, key: Tensor, value: Tensor, how: How) -> tuple[Tensor, Tensor, Tensor | None]:
    """[R, D], [T, D], [T, D] -> [R, D], and what the backward pass needs, see trainer.attention_kernels."""
    count, heads = len(query), how.heads
    bounds = how.queries.bounds, how.tokens.bounds
    gathered = query.new_empty(query.shape)
    logs = query.new_empty(heads, count, dtype=torch.float32)
    bits, groups = None, groups_of_bits(how.tokens.longest)
    rows = how.rows(query)
    to_exponent, _, kept = how.scales(query)
    if how.probability:
        bits = query.new_empty(count, heads, groups, dtype=torch.uint8)
        attention_kernels.draw[how.grid(DRAWN)](
            bits, *bounds, groups, how.seed, dropped_of_65536(how.probability), HEADS=heads, QUERIES=DRAWN,
            KEYS=DRAWN, num_warps=8,
        )  # fmt: skip
    attention_kernels.attend[how.grid(rows)](
        query, key, value, gathered, logs, bits, *bounds, query.stride(0), key.stride(0), count, groups, to_exponent,
        kept,
        **how.constants(query, rows),
    )  # fmt: skip
    return gathered, logs, bits


def attend_backward(
    upstream: Tensor, saved: Sequence[Tensor], gradients: Sequence[Tensor], how: How, sums: bool = False
) -> Tensor | None:
    """Write gradients of attend's inputs; with ``sums`` returns what a bias in them gets, [3D].

    ``saved`` are its inputs and results; ``upstream`` is contiguous; rows of all gradients are as far apart.
    """
    query, key, value, gathered, logs, bits = saved
    to_query, to_key, to_value = gradients
    count, width = query.shape
    bounds = how.queries.bounds, how.tokens.bounds
    groups = 0 if bits is None else bits.shape[2]
    rows = _WHOLE if how.is_whole(query) else how.rows(query)
    parts = None
    if sums:
        blocks, _, sequences = how.grid(rows)
        parts = query.new_empty(sequences * blocks, 3 * width, dtype=torch.float32)
    strides = query.stride(0), key.stride(0), to_key.stride(0)
    numbers, constants = (count, groups, *how.scales(query)), how.constants(query, rows)
    if how.is_whole(query):
        attention_kernels.attend_backward[how.grid(rows)](
            query, key, value, logs, bits, upstream, to_query, to_key, to_value, parts, *bounds, *strides, *numbers,
            **constants,
        )  # fmt: skip
    else:
        deltas = torch.empty_like(logs)
        attention_kernels.attend_backward_queries[how.grid(rows)](
            query, key, value, gathered, logs, bits, upstream, deltas, to_query, parts, *bounds, *strides,
            *numbers, **constants,
        )  # fmt: skip
        attention_kernels.attend_backward_keys[how.grid(rows)](
            query, key, value, logs, bits, upstream, deltas, to_key, to_value, parts, *bounds, *strides,
            *numbers, **constants,
        )  # fmt: skip
    return None if parts is None else parts.sum(dim=0)


class Attention(torch.autograd.Function):
    """Attention, of queries, keys and values."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, how: How) -> Tensor:
        """[R, D], [T, D], [T, D] -> [R, D]."""
        gathered, *rest = attend(query, key, value, how)
        ctx.save_for_backward(query, key, value, gathered, *rest)
        ctx.how = how
        return gathered

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Gradients of queries, keys and values."""
        saved = ctx.saved_tensors  # once: activation checkpointing computes them anew each time
        gradients = [x.new_empty(x.shape) for x in saved[:3]]
        attend_backward(upstream[0].contiguous(), saved, gradients, ctx.how)
        return *gradients, None
