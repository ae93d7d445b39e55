"""The ranks of a run, and what they tell each other; torch only. trainer.joining.join_world makes one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import torch.distributed


@dataclass(frozen=True)
class World:
    """The ranks of a run as one of them sees them."""

    rank: int
    size: int
    device: torch.device
    for_sums: Any = field(default=None, kw_only=True)  # the ranks' process group for `sum`; None: their common one

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that writes."""
        return self.rank == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """Sums over all ranks, in float64; what a GPU has been asked for before is not waited for."""
        if self.size == 1:  # a GPU is not asked what is known
            return [float(value) for value in values]
        with self._beside():
            total = torch.tensor(values, dtype=torch.float64, device=self.device)
            torch.distributed.all_reduce(total, group=self.for_sums)
            return total.tolist()

    def _beside(self) -> AbstractContextManager[Any]:
        """Around what a GPU is to do beside all else, and first."""
        return torch.cuda.stream(self._stream) if self.device.type == "cuda" else nullcontext()

    @cached_property
    def _stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream(self.device, priority=-1)

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in the order of ranks, on all of them."""
        if self.size == 1:
            return [value]
        values = [None] * self.size
        torch.distributed.all_gather_object(values, value)
        return values


def has_joined() -> bool:
    """Whether this process is one of a world's ranks by now."""
    return torch.distributed.is_initialized()


def leave_world() -> None:
    """Leave the process group in good order."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
