"""What a step does and for how long: a trace of one step, and what its kernels are for."""

from __future__ import annotations

import gzip
import logging
import math
import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from preprocessing.status import make_folder
from preprocessing.terminal import in_line
from trainer.files import incomplete
from trainer.run_directory import step_name

KINDS = (  # of kernels, by parts of their names; the first that fits: attention's are made of CUTLASS too
    ("communication", ("nccl", "c10d::", "gloo:")),
    ("attention", ("flash", "fmha", "sdpa", "attend", "draw")),
    ("losses", ("log_softmax", "logsoftmax", "nll_loss")),
    ("matrix products", ("gemm", "cutlass", "nvjet", "cublas", "xmma", "::mm", "::addmm", "::bmm", "::baddbmm")),
    ("optimizer", ("adam", "multi_tensor", "foreach")),
    ("copies", ("memcpy", "memset")),
)
_log = logging.getLogger("pretrain")


def kind_of(kernel: str) -> str:
    """What a kernel, or a CPU's operation, is for, by its name."""
    name = kernel.lower()
    return next((kind for kind, parts in KINDS if any(part in name for part in parts)), "elementwise")


class Kernel(NamedTuple):
    """What a step launches of one kernel."""

    milliseconds: float
    launches: int
    name: str


def kernels_of(averages: Any, device: str = "CUDA") -> list[Kernel]:
    """The kernels of a profile's averages, those that take longest first; of a "CPU" its operations.

    Annotations, such as of a compiled graph or of the optimizer, span kernels that are there themselves.
    """
    kernels = (
        Kernel((one.self_cpu_time_total if device == "CPU" else one.self_device_time_total) / 1e3, one.count, one.key)
        for one in averages
        if one.device_type.name == device and not one.is_user_annotation
    )
    return sorted(kernels, reverse=True)


def by_kind(kernels: Iterable[Kernel]) -> dict[str, float]:
    """Milliseconds by kind, the most first."""
    kinds: dict[str, float] = {}
    for milliseconds, _, name in kernels:
        kinds[kind_of(name)] = kinds.get(kind_of(name), 0.0) + milliseconds
    return dict(sorted(kinds.items(), key=lambda item: -item[1]))


def busy_milliseconds(events: Any) -> float:
    """How long a GPU had at least one kernel, by all events of a profile; of several streams they overlap."""
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in events
        if event.device_type.name == "CUDA" and not event.is_user_annotation
    )
    busy, until = 0.0, -math.inf
    for begin, end in spans:
        busy += max(0.0, end - max(begin, until))
        until = max(until, end)
    return busy / 1e3


class StepProfile:
    """Records one of the steps of a start, and tells what its time went to."""

    def __init__(self, number: int, folder: Path, device: torch.device):
        """Get ready.

        Args:
            number: of the step that is recorded, counted from here; 0 for none, else 2 or more, for during the step
                before that the profiler starts.
            folder: that the trace is written to.
            device: that the steps are computed on.
        """
        self._left, self._folder, self._device, self._began = number, folder, device, 0.0
        if not number:
            return
        if device.type == "cpu":
            os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # or it tells of the GPU that is not there
        self._profile = profile(
            activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])],
            schedule=schedule(wait=number - 2, warmup=1, active=1, repeat=1),
        )
        self._profile.start()

    def after_step(self, step: int) -> None:
        """A step is done, the so-many-th of the run; what can't be written costs no more than a warning."""
        if not self._left:
            return
        self._left -= 1
        if self._left <= 1 and self._device.type == "cuda":
            torch.cuda.synchronize()  # it would be done with the one in the midst of the other
        milliseconds = 1e3 * (time.perf_counter() - self._began) if not self._left else 0.0
        self._profile.step()
        self._began = time.perf_counter()
        if self._left:
            return
        path = self._folder / f"{step_name(step)}.json.gz"
        try:
            make_folder(self._folder)
            _write(self._profile, path)
        except OSError as error:
            _log.warning("the trace of step %d can't be written: %s", step, in_line(str(error)))
        else:
            _log.info("trace of step %d: %s, for https://ui.perfetto.dev", step, path)
        _log.info("step %d of rank 0 took %.0f ms: %s", step, milliseconds, self._shares(milliseconds))
        self._end()

    def close(self) -> None:
        """Record nothing more."""
        if self._left:
            self._left = 0
            self._end()

    def _end(self) -> None:
        self._profile.stop()
        del self._profile  # events of a large step take much memory

    def _shares(self, milliseconds: float) -> str:
        on_gpu = self._device.type == "cuda"
        kinds = by_kind(kernels_of(self._profile.key_averages(), "CUDA" if on_gpu else "CPU"))
        busy = busy_milliseconds(self._profile.events()) if on_gpu else sum(kinds.values())
        kinds["no kernel" if on_gpu else "Python and waits"] = max(0.0, milliseconds - busy)
        return ", ".join(f"{kind} {each / milliseconds:.1%}" for kind, each in kinds.items())


def _write(recorded: profile, path: Path) -> None:
    """Write a trace, whole or not at all."""
    staging = incomplete(path)
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    try:
        raw, packed = staging / "trace.json", staging / path.name
        recorded.export_chrome_trace(str(raw))
        with raw.open("rb") as source, gzip.open(packed, "wb", compresslevel=6) as target:
            shutil.copyfileobj(source, target)
        packed.replace(path)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
