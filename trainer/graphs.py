"""The model in CUDA graphs: the host asks for a whole forward or backward pass at once, not for kernel after kernel."""

from __future__ import annotations

import torch
from torch import nn

# At its limits of shapes torch would go on without graphs, and dropout draw other numbers.
_NO_LIMIT = 1 << 30


def put_into_graphs(model: nn.Module) -> None:
    """Have torch.compile make one graph of the model for each shape of its inputs, and a GPU record and replay them.

    A graph computes in memory that is its own, and at the next replay has other numbers in it. What is kept over a
    micro-batch has to be elsewhere: gradients, which DeepSpeed adds up or sends while the next one is computed, are
    copied. Begin each micro-batch with begin_micro_batch.

    Args:
        model: on any device; on a CPU it is compiled and nothing else. Keeps its parameters, and these their names.
    """
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = _NO_LIMIT
    # With sizes left open, as is torch's way from the second shape on, its kernels can't be written for some of them.
    model.compile(dynamic=False, options={"triton.cudagraphs": True})
    for parameter in model.parameters():
        parameter.register_hook(torch.clone)


def begin_micro_batch() -> None:
    """Say that nobody needs the last one's logits and what was kept for its backward pass."""
    torch.compiler.cudagraph_mark_step_begin()
