"""What tests have ranks do; a module of its own, because ranks import their task by name."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import deepspeed
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from trainer.joining import join_world
from trainer.optim import OptimizerConfig, build_optimizer
from trainer.world import leave_world

MICRO_BATCHES = 2
STEPS = 4  # the least of them counts: what gloo's threads give back, the profiler of ours sees late or never


def measure_peaks(ds_config: dict[str, Any], layers: int, width: int) -> dict[str, int]:
    """Bytes that a rank holds under DeepSpeed after its first step, with almost no activations.

    Returns:
        "working": at the most while gradients are computed and sent; "updating": in the optimizer's update.
    """
    join_world(threads=1)
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))
    optimizer = build_optimizer([{"params": list(model.parameters())}], OptimizerConfig())
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=ds_config)
    inputs = torch.ones(1, width, dtype=next(model.parameters()).dtype)

    def pass_both_ways() -> None:
        engine.backward(engine(inputs).float().mean())

    for _ in range(MICRO_BATCHES):  # the first step makes what is made once
        pass_both_ways()
        engine.step()
    steps = []
    for _ in range(STEPS):
        peaks = [(_peak(pass_both_ways), _peak(engine.step)) for _ in range(MICRO_BATCHES)]
        steps.append((max(working for working, _ in peaks), peaks[-1][1]))  # which alone updates
    leave_world()
    working, updating = map(min, zip(*steps, strict=True))
    return {"working": working, "updating": updating}


def _peak(work: Callable[[], object]) -> int:
    """The most bytes that were held at a time, those from before included."""
    held = most = _tensor_bytes()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as measured:
        work()
    for event in measured.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


def _tensor_bytes() -> int:
    """Bytes of the distinct storages behind all tensors that Python knows of."""
    gc.collect()
    tensors = [x for x in gc.get_objects() if isinstance(x, torch.Tensor) and x.device.type == "cpu"]
    tensors += [x.grad for x in tensors if x.is_leaf and x.grad is not None]
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}
    return sum(storages.values())
