"""Which slices of DeepSpeed's flat buffers are this rank's, and of which parameters.

DeepSpeed is known here by the names of its attributes alone (0.19).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trainer.sharded_state import Fragment


class Owned(NamedTuple):
    """A float32 tensor that a rank updates."""

    tensor: Tensor
    fragments: list[Fragment]
    parameters: list[str]  # of the whole group, over all ranks


def find_owned(engine: Any, optimizer: torch.optim.Optimizer, names: Mapping[int, str], rank: int) -> Iterator[Owned]:
    """The float32 tensors that a rank updates.

    DeepSpeed keeps them under three names: ZeRO 3; ZeRO 1 and 2; and bf16 with float32 accumulation under ZeRO 1.
    Without ZeRO they are the parameters themselves.

    Args:
        engine: DeepSpeed's.
        optimizer: that was handed to it.
        names: id of a parameter -> its name.
        rank: whose tensors these are.
    """
    zero = engine.optimizer
    if not engine.zero_optimization():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                name = names[id(parameter)]
                yield Owned(parameter, [Fragment(0, parameter.numel(), name, 0)], [name])
    elif hasattr(zero, "fp32_partitioned_groups_flat"):
        for flat, parameters in zip(zero.fp32_partitioned_groups_flat, zero.fp16_groups, strict=True):
            yield Owned(flat, list(_equal_shares(parameters, names, rank)), [names[id(p)] for p in parameters])
    else:
        flats = getattr(zero, "single_partition_of_fp32_groups", None) or zero.fp32_groups_flat_partition
        groups = getattr(zero, "bit16_groups", None) or zero.bf16_groups
        for flat, parameters in zip(flats, groups, strict=True):
            yield Owned(flat, list(_mapped(parameters, names)), [names[id(p)] for p in parameters])


@torch.no_grad()
def first_misplaced(owned: Iterable[Owned], initial: Mapping[str, Tensor], dtype: torch.dtype) -> str | None:
    """The name of a parameter that is not where its fragment says; None where all are.

    Args:
        owned: of a rank whose model was just built.
        initial: name -> float32, as handed to DeepSpeed.
        dtype: of the products, to which DeepSpeed may have rounded its own.
    """
    for tensor, fragments, _ in owned:
        for start, length, name, offset in fragments:
            found = tensor.view(-1)[start : start + length]
            expected = initial[name].view(-1)[offset : offset + length].to(found.device)
            if not torch.equal(found.to(dtype), expected.to(dtype)):
                return name
    return None


def _mapped(parameters: Iterable[Any], names: Mapping[int, str]) -> Iterator[Fragment]:
    """ZeRO 1 and 2 cut the group wherever ranks meet; of some parameters this rank has nothing."""
    for parameter in parameters:
        if parameter._hp_mapping is not None:
            here, there = parameter._hp_mapping.get_hp_fragment_address(), parameter._hp_mapping.lp_fragment_address
            yield Fragment(here.start, here.numel, names[id(parameter)], there.start)


def _equal_shares(parameters: Iterable[Any], names: Mapping[int, str], rank: int) -> Iterator[Fragment]:
    """ZeRO 3 gives every rank an equal share of each parameter, the last one filled up with zeros."""
    start = 0
    for parameter in parameters:
        share = parameter.partition_numel()
        real = min(max(parameter.ds_numel - rank * share, 0), share)
        if real:
            yield Fragment(start, real, names[id(parameter)], rank * share)
        start += share
