"""DeepSpeed's real buffers, test_engine.py sees; here, shares of any ranks, and how a wrong table of them is told."""

from types import SimpleNamespace

import pytest
import torch

from trainer.ownership import Owned, find_owned, first_misplaced
from trainer.sharded_state import Fragment

INITIAL = {"a": torch.linspace(0, 1, 6).view(2, 3), "b": torch.linspace(5, 6, 4)}
FLAT = torch.cat([INITIAL["a"].view(-1)[2:], INITIAL["b"]])  # of the second of two ranks


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_masters_may_be_rounded_or_not(dtype):
    fragments = [Fragment(0, 4, "a", 2), Fragment(4, 4, "b", 0)]
    for flat in (FLAT, FLAT.to(dtype).float()):
        assert first_misplaced([Owned(flat, fragments, ["a", "b"])], INITIAL, dtype) is None


@pytest.mark.parametrize(
    ("fragments", "name"),
    [
        ([Fragment(0, 4, "a", 0), Fragment(4, 4, "b", 0)], "a"),  # of the other rank
        ([Fragment(4, 4, "a", 2), Fragment(0, 4, "b", 0)], "a"),  # in another order
        ([Fragment(0, 4, "a", 2), Fragment(3, 4, "b", 0)], "b"),  # one too early
    ],
)
def test_a_fragment_that_lies_elsewhere_is_named(fragments, name):
    assert first_misplaced([Owned(FLAT, fragments, ["a", "b"])], INITIAL, torch.bfloat16) == name


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_what_all_ranks_own_under_zero_3_is_each_parameter_once_but_for_what_fills_up(world):
    """A share of each, rounded up, lies behind that of the one before; of small ones the last ranks have nothing."""
    sizes = {"a": 10, "b": 2, "c": 7}
    shares = {name: -(-size // world) for name, size in sizes.items()}
    group = [SimpleNamespace(ds_numel=size, partition_numel=lambda share=shares[name]: share)
             for name, size in sizes.items()]  # fmt: skip
    names = {id(parameter): name for parameter, name in zip(group, sizes, strict=True)}
    numbers = {name: torch.arange(size) for name, size in sizes.items()}
    found = {name: [] for name in sizes}
    for rank in range(world):
        pieces = [numbers[name][rank * share :][:share] for name, share in shares.items()]
        flat = torch.cat([torch.nn.functional.pad(piece, (0, share - len(piece)), value=-1)
                          for piece, share in zip(pieces, shares.values(), strict=True)])  # fmt: skip
        zero = SimpleNamespace(fp32_partitioned_groups_flat=[flat], fp16_groups=[group])
        engine = SimpleNamespace(optimizer=zero, zero_optimization=lambda: True)
        (owned,) = find_owned(engine, None, names, rank)
        assert owned.parameters == list(sizes)
        assert first_misplaced([owned], numbers, torch.float32) is None
        for _, length, name, offset in owned.fragments:
            found[name] += range(offset, offset + length)
    assert found == {name: list(range(size)) for name, size in sizes.items()}
