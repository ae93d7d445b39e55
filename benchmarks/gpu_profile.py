"""What torch's profiler tells of a GPU's kernels, and what each of them is for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

KINDS = (  # of kernels, by parts of their names; the first that fits: attention's are made of CUTLASS too
    ("communication", ("nccl",)),
    ("attention", ("flash", "fmha", "sdpa", "attend", "draw")),
    ("losses", ("log_softmax", "logsoftmax", "nll_loss")),
    ("matrix products", ("gemm", "cutlass", "nvjet", "cublas", "xmma")),
    ("optimizer", ("adam", "multi_tensor", "foreach")),
    ("copies", ("memcpy", "memset")),
)


def kind_of(kernel: str) -> str:
    """What a kernel is for, by its name."""
    name = kernel.lower()
    return next((kind for kind, parts in KINDS if any(part in name for part in parts)), "elementwise")


class Kernel(NamedTuple):
    """What a step launches of one kernel."""

    milliseconds: float
    launches: int
    name: str


def kernels_of(events: Any) -> list[Kernel]:
    """The kernels of a profile's averages, those that take longest first.

    Annotations, such as of a compiled graph or of the optimizer, span kernels that are there themselves.
    """
    on_device = (event for event in events if event.device_type.name == "CUDA")
    kernels = (
        Kernel(event.self_device_time_total / 1e3, event.count, event.key)
        for event in on_device
        if not event.is_user_annotation
    )
    return sorted(kernels, reverse=True)


def by_kind(kernels: Iterable[Kernel]) -> dict[str, float]:
    """Milliseconds by kind, the most first."""
    kinds: dict[str, float] = {}
    for milliseconds, _, name in kernels:
        kinds[kind_of(name)] = kinds.get(kind_of(name), 0.0) + milliseconds
    return dict(sorted(kinds.items(), key=lambda item: -item[1]))
