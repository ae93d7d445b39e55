"""How long the norm of a large gradient takes on one core, and how far off it is.

    python benchmarks/gradient_norm.py

The gradient is like that of word embeddings: 30,522 rows of 1,024 whose sizes differ by orders of magnitude.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from attention import least_seconds
from preprocessing.markdown import markdown_table
from trainer.gradients import total_norm

WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "torch, float64, as DeepSpeed": lambda x: torch.linalg.vector_norm(x.to(torch.float64)),
    "torch, float32": torch.linalg.vector_norm,
    "extremes, as DeepSpeed before it": lambda x: x.amax() + x.amin(),
    "trainer.gradients.total_norm": lambda x: total_norm([x]),
}


def main() -> None:
    """Print a table; the least of nine runs each."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    gradient = torch.randn(30522, 1024) * torch.exp(3 * torch.randn(30522, 1))
    exact = float(gradient.double().norm())
    table = [["way", "ms", "relative error"]]
    seconds = least_seconds([partial(way, gradient) for way in WAYS.values()], 9)
    for (name, way), least in zip(WAYS.items(), seconds, strict=True):
        error = "" if "extremes" in name else f"{abs(float(way(gradient)) / exact - 1):.0e}"
        table.append([name, f"{1e3 * least:.1f}", error])
    print(markdown_table(table, (1, 2)))


if __name__ == "__main__":
    main()
