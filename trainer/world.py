"""The ranks of a run, and what they tell each other; torch only. trainer.joining.join_world makes one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed

from trainer.settings import ConfigError

# What a launcher says in numbers, and the least and the most of each.
_NUMBERS = {
    **dict.fromkeys(("RANK", "LOCAL_RANK"), (0, 2**31 - 1)),
    **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_SIZE"), (1, 2**31 - 1)),
    "MASTER_PORT": (0, 65535),
}


def check_launcher(environment: Mapping[str, str]) -> None:
    """See that the variables of a launcher, such as a script of the user's, are numbers that can be; some may be none.

    Raises:
        ConfigError: one is not.
    """
    for name, (least, most) in _NUMBERS.items():
        found = environment.get(name, str(least))
        if not (found.isdecimal() and least <= int(found) <= most):
            raise ConfigError(f"{name} is {found!r}, which a launcher sets to a number from {least} to {most}")
    size = int(environment.get("WORLD_SIZE", 2**31))
    if size <= (rank := int(environment.get("RANK", "0"))):
        raise ConfigError(f"RANK is {rank}, but WORLD_SIZE {size}: ranks count from 0")


class RanksApartError(RuntimeError):
    """The ranks did not come together. The message says what to do."""


class NoDeviceError(RuntimeError):
    """A rank does not find the device that it is to train on. The message says what to do."""


@dataclass(frozen=True)
class World:
    """The ranks of a run as one of them sees them."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that writes."""
        return self.rank == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """Sums over all ranks, in float64."""
        if self.size == 1:  # a GPU is not asked what is known
            return [float(value) for value in values]
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        torch.distributed.all_reduce(total)
        return total.tolist()

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in the order of ranks, on all of them."""
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
