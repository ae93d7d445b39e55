"""What the ranks of a run tell each other."""

import pytest
import torch

from tests.ranks import run_ranks
from tests.trainer.rank_tasks import sum_while_the_device_computes, what_ranks_tell_each_other
from trainer.world import World, has_joined


def test_all_ranks_hear_sums_in_float64_and_what_each_has_to_say():
    told = run_ranks(3, what_ranks_tell_each_other, None)
    assert [who for who, *_ in told] == [(0, True), (1, False), (2, False)]
    assert [heard for _, *heard, _ in told] == [[[3 * 2.0**25 + 3, 1.5], ["of 0", "of 1", "of 2"]]] * 3


def test_a_rank_is_in_the_group_until_it_leaves():
    assert not has_joined()
    assert [is_in for *_, is_in in run_ranks(1, what_ranks_tell_each_other, None)] == [[True, False]]


def test_a_rank_that_is_alone_needs_no_group():
    world = World(0, 1, torch.device("cpu"))
    assert (world.sum([2, 0.5]), world.gather("alone")) == ([2.0, 0.5], ["alone"])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="what a GPU has still to do")
def test_a_sum_does_not_wait_for_what_a_gpu_was_asked_for_before():
    """tests/benchmarks/test_cuda_stand_in.py has it without a GPU."""
    assert run_ranks(2, sum_while_the_device_computes) == [([3.0], True)] * 2
