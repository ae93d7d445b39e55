"""How long attention takes on one core of a CPU, forward and backward, by our way and by those that it replaced.

    python benchmarks/attention.py [--runs 9]

"grouped" is trainer.attention's on a CPU. The others pad all sequences to the longest: the formula with autograd's
backward pass, with our dropout and with torch's, and torch's own kernel. Dropout is 0.1. The ways take turns, and the
least CPU time of the runs counts, so that other work on the machine does little. Then what a number of dropout costs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from preprocessing.markdown import markdown_table
from trainer.attention import Implementation, attention, dropout
from trainer.packing import PackedTokens

Way = Callable[[Tensor, Tensor, Tensor, PackedTokens, float], Tensor]  # queries, keys, values, where they lie, dropout
SHAPES = [(16, 128, 2, 64, 0.79), (16, 128, 16, 64, 0.79), (8, 512, 16, 64, 0.69), (8, 512, 16, 64, 1.0)]
DTYPES = (torch.float32, torch.bfloat16)
ELEMENTS = 1 << 22


def main() -> None:
    """Print two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=9)
    runs = parser.parse_args().runs
    torch.set_num_threads(1)
    names = list(WAYS)
    table = [["shape", "real", "numbers", "grouped, ms", *(f"{name}, times that" for name in names[1:])]]
    for batch, longest, heads, width, share in SHAPES:
        tokens = batch_of(batch, longest, share)
        for dtype in DTYPES:
            inputs = random_inputs(tokens, heads, width, dtype)
            steps = [partial(forward_and_backward, WAYS[name], inputs, tokens, 0.1) for name in names]
            ours, *others = least_seconds(steps, runs)
            shape = f"B {batch}, S {longest}, N {heads}, H {width}"
            real = f"{len(tokens.input_ids) / (batch * longest):.0%}"
            found = [f"{1e3 * ours:.1f}", *(f"{other / ours:.2f}" for other in others)]
            table.append([shape, real, str(dtype).removeprefix("torch."), *found])
    print(markdown_table(table, (1, 3, 4, 5, 6)))
    table = [["dropout", *(f"{str(dtype).removeprefix('torch.')}, ns a number" for dtype in DTYPES)]]
    of_dtypes = []
    for dtype in DTYPES:
        x = torch.ones(ELEMENTS, dtype=dtype)
        seconds = least_seconds([partial(dropout, x, 0.1), partial(F.dropout, x, 0.1)], runs)
        of_dtypes.append([f"{1e9 * each / ELEMENTS:.1f}" for each in seconds])
    for name, row in zip(("ours", "torch's"), zip(*of_dtypes, strict=True), strict=True):
        table.append([name, *row])
    print(markdown_table(table, (1, 2)))


def batch_of(batch: int, longest: int, share: float) -> PackedTokens:
    """Sequences of evenly spread lengths, of which the padded table would hold tokens in such a share of its places."""
    lengths = (longest * torch.linspace(1, 2 * share - 1, batch)).round().long()
    zeros = torch.zeros(int(lengths.sum()), dtype=torch.int64)
    return PackedTokens.from_flat(zeros, zeros, lengths)


def random_inputs(tokens: PackedTokens, heads: int, width: int, dtype: torch.dtype) -> list[Tensor]:
    """Queries, keys and values [T, N, H] as views of one product, as the model has them."""
    torch.manual_seed(0)
    joint = torch.randn(len(tokens.input_ids), 3, heads, width).to(dtype)
    return [x.detach().requires_grad_() for x in joint.unbind(dim=1)]


def forward_and_backward(way: Way, inputs: list[Tensor], tokens: PackedTokens, probability: float) -> list[Tensor]:
    """What is gathered, and the gradients."""
    queries, keys, values = inputs
    gathered = way(queries, keys, values, tokens, probability)
    return [gathered, *torch.autograd.grad(gathered.float().square().sum(), inputs)]


def least_seconds(steps: Sequence[Callable[[], object]], runs: int) -> list[float]:
    """CPU time of each, which take turns."""
    least = [float("inf")] * len(steps)
    for _ in range(runs + 1):  # the first warms up, and is hardly the least
        for i, step in enumerate(steps):
            began = time.process_time()
            step()
            least[i] = min(least[i], time.process_time() - began)
    return least


def by_trainer(implementation: Implementation) -> Way:
    """One of trainer.attention's."""

    def way(query: Tensor, key: Tensor, value: Tensor, tokens: PackedTokens, probability: float) -> Tensor:
        return attention(query, key, value, tokens, dropout_probability=probability, implementation=implementation)

    return way


def by_the_formula(drop: Callable[[Tensor, float], Tensor]) -> Way:
    """Batched products on rows padded to the longest, with autograd's backward pass."""

    def way(query: Tensor, key: Tensor, value: Tensor, tokens: PackedTokens, probability: float) -> Tensor:
        q, k, v = (tokens.pad(x).transpose(1, 2) for x in (query, key, value))  # [B, N, S, H]
        real = torch.arange(tokens.longest) < tokens.lengths[:, None]  # [B, S]
        bias = torch.zeros(real.shape, dtype=q.dtype).masked_fill(~real, torch.finfo(q.dtype).min / 2)
        scores = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5 + bias[:, None, None, :]
        return (drop(torch.softmax(scores, dim=-1), probability) @ v).transpose(1, 2)[real]

    return way


WAYS: dict[str, Way] = {
    "grouped": by_trainer("grouped"),
    "formula": by_the_formula(dropout),
    "formula with torch's dropout": by_the_formula(F.dropout),
    "torch's kernel": by_trainer("sdpa"),
}

if __name__ == "__main__":
    main()
