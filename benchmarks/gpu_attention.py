"""How long attention takes a GPU in one layer of BERT-LARGE, forward and backward, by our kernels and by torch's.

    python benchmarks/gpu_attention.py --lengths 128 512 --batches 256 64

Sequences are as long as long texts make them (gpu_predictions.py). Times are those of the kernels alone, by torch's
profiler, so that a slow host changes nothing; errors are those of what is gathered and of the gradients against the
formula in float32, where nothing is dropped.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gpu_predictions import SHARES, lengths_of
from preprocessing.markdown import markdown_table
from trainer.attention import attention
from trainer.determinism import use_deterministic_kernels
from trainer.model import BertConfig
from trainer.packing import PackedTokens
from trainer.profiling import kernels_of

Way = Callable[[Tensor, Tensor, Tensor], Tensor]
RUNS = 10
COMPARED = 16  # sequences of which errors are computed, for the formula stores every weight


def measure(length: int, lengths: Tensor, device: torch.device, probability: float = 0.1) -> list[dict[str, Any]]:
    """Milliseconds of each way, and errors of those that drop nothing.

    Args:
        length: of a slot.
        lengths: int64 [sequences], their tokens.
        device: a GPU.
        probability: of dropout.
    """
    use_deterministic_kernels(True, device)
    tokens, few = packed(lengths, device), packed(lengths[:COMPARED], device)
    found = []
    for name, of in ways(probability).items():
        errors = None if "dropout" in name else errors_of(of, few)
        found.append({"way": name, "length": length, "error": errors, **milliseconds(of(tokens), tokens)})
    return found


def ways(probability: float) -> dict[str, Callable[[PackedTokens], Way]]:
    """By name, what makes a way for some sequences."""
    return {
        "torch's, packed": partial(_by_torch, "varlen", 0.0),
        "torch's, padded, with dropout": partial(_by_torch, "sdpa", probability),
        "ours, packed": partial(_by_ours, 0.0),
        "ours, packed, with dropout": partial(_by_ours, probability),
        "ours, packed, with dropout, backward in two kernels": partial(_by_ours, probability, whole=False),
        **{
            f"ours, packed, with dropout, {stages} stages of loading": partial(_by_ours, probability, stages=stages)
            for stages in (1, 2)
        },
    }


def _by_torch(implementation: Any, probability: float, tokens: PackedTokens) -> Way:
    heads = BertConfig(30522).num_attention_heads

    def gather(*joint: Tensor) -> Tensor:
        query, key, value = (x.unflatten(-1, (heads, -1)) for x in joint)
        return attention(query, key, value, tokens, None, probability, False, implementation).flatten(-2)

    return gather


def _by_ours(probability: float, tokens: PackedTokens, whole: bool = True, stages: int | None = None) -> Way:
    """Ours, or with another choice of it: a sequence at once or not, and how much is loaded ahead."""
    from trainer.fused_attention import Attention, How  # their kernels want triton

    class Chosen(How):
        def is_whole(self, query: Tensor) -> bool:
            return whole and super().is_whole(query)

        def constants(self, query: Tensor, rows: int) -> dict[str, Any]:
            usual = super().constants(query, rows)
            return {**usual, "num_stages": stages or usual["num_stages"]}

    seed = torch.ones(1, dtype=torch.int64, device=tokens.bounds.device)
    how = Chosen(tokens, tokens, BertConfig(30522).num_attention_heads, False, probability, seed)

    def gather(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        gathered: Tensor = Attention.apply(query, key, value, how)
        return gathered

    return gather


def packed(lengths: Tensor, device: torch.device) -> PackedTokens:
    """Sequences of so many tokens."""
    ids = torch.zeros(int(lengths.sum()), dtype=torch.int64)
    return PackedTokens.from_flat(ids, ids, lengths).to(device)


def inputs_of(tokens: PackedTokens) -> tuple[list[Tensor], Tensor]:
    """Queries, keys and values of one joint product, and what flows back; scores are sharp."""
    device, width = tokens.bounds.device, BertConfig(30522).hidden_size
    torch.manual_seed(1)
    joint = 1.5 * torch.randn(len(tokens.input_ids), 3 * width, dtype=torch.bfloat16, device=device)
    upstream = torch.randn(len(tokens.input_ids), width, dtype=torch.bfloat16, device=device)
    return [x.detach().requires_grad_() for x in joint.chunk(3, dim=-1)], upstream


def errors_of(way: Callable[[PackedTokens], Way], tokens: PackedTokens) -> float:
    """The largest of the relative errors of result and gradients, in the 2-norm."""
    inputs, upstream = inputs_of(tokens)
    exact = [x.detach().float().requires_grad_() for x in inputs]
    ours, theirs = way(tokens)(*inputs), _by_torch("reference", 0.0, tokens)(*exact)
    pairs = zip(
        (ours, *torch.autograd.grad(ours, inputs, upstream)),
        (theirs, *torch.autograd.grad(theirs, exact, upstream.float())),
        strict=True,
    )
    return max(float((one - other).detach().norm() / other.detach().norm()) for one, other in pairs)


def milliseconds(way: Way, tokens: PackedTokens) -> dict[str, float]:
    """Of the kernels of a forward pass, and of one with its backward pass; NaN where the profiler has lost some."""
    inputs, upstream = inputs_of(tokens)

    def forward() -> None:
        with torch.no_grad():
            way(*inputs)

    def both() -> None:
        torch.autograd.grad(way(*inputs), inputs, upstream)

    return {"forward": _of_kernels(forward), "both": _of_kernels(both)}


def _of_kernels(function: Callable[[], None]) -> float:
    for _ in range(3):
        function()
    torch.cuda.synchronize()
    for _ in range(5):  # those at its start it may lose (pytorch #192021)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            for _ in range(RUNS):
                function()
            torch.cuda.synchronize()
        kernels = kernels_of(profiler.key_averages())
        if all(kernel.launches % RUNS == 0 for kernel in kernels):
            return sum(kernel.milliseconds for kernel in kernels) / RUNS
    return math.nan


def table(records: list[dict[str, Any]]) -> str:
    """A line for each way and length."""
    lines = [
        [
            one["way"], str(one["length"]), f"{one['forward']:.3f}", f"{one['both'] - one['forward']:.3f}",
            "" if one["error"] is None else f"{one['error']:.1e}",
        ]
        for one in records
    ]  # fmt: skip
    return markdown_table(
        [["attention of a layer", "tokens", "forward, ms", "backward, ms", "error at most"], *lines], (1, 2, 3, 4)
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", choices=sorted(SHARES), default=sorted(SHARES))
    parser.add_argument("--batches", type=int, nargs="+", default=[256, 64], help="sequences, per length")
    arguments = parser.parse_args()
    if len(arguments.lengths) != len(arguments.batches):
        parser.error("--batches: as many as --lengths")
    found = [
        one
        for length, samples in zip(arguments.lengths, arguments.batches, strict=True)
        for one in measure(length, lengths_of(length, samples, SHARES[length]), torch.device("cuda"))
    ]
    print(table(found))


if __name__ == "__main__":
    main()
