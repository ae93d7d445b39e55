"""What the real buffers of DeepSpeed hold, test_engine.py sees; here, how a wrong table of them is told."""

import pytest
import torch

from trainer.ownership import Owned, first_misplaced
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
