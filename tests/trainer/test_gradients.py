"""The norm of a gradient against sums in float64, and what takes the place of DeepSpeed's own against that."""

import inspect
from types import SimpleNamespace

import pytest
import torch
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.utils import clip_tensors_by_global_norm
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

from trainer.gradients import add_up_at_once, scale_down, take_norm_once, total_norm


def gradients(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    """Rows whose sizes differ by orders of magnitude, as those of word embeddings do."""
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randn(shape, generator=generator) for shape in shapes]
    return [x * torch.exp(3 * torch.randn(len(x), generator=generator)).view(-1, *(1,) * (x.ndim - 1)) for x in rows]


def exact(values: list[torch.Tensor]) -> float:
    return float(torch.cat([x.flatten() for x in values]).double().norm())


@pytest.mark.parametrize("shapes", [
    [(1,)], [(1023,)], [(1024,)], [(1025,)], [(7, 300), (5,), (4096,)], [(8192, 256), (256,), (256, 1024)],
])  # fmt: skip
def test_is_that_of_one_long_vector(shapes):
    values = gradients(*shapes)
    norm = total_norm(values)
    assert (norm.shape, norm.dtype) == ((), torch.float32)
    assert float(norm) == pytest.approx(exact(values), rel=1e-6)


def test_small_squares_are_not_lost_in_a_large_sum():
    values = gradients((30522, 128))
    assert abs(float(torch.linalg.vector_norm(values[0])) / exact(values) - 1) > 1e-5  # what torch gives
    assert float(total_norm(values)) == pytest.approx(exact(values), rel=1e-6)


def test_small_rows_are_not_lost_beside_a_large_one():
    """The sums of rows differ as elements do: 4,096 of them in float32 would be wrong by 6e-6."""
    values = [torch.full((1 << 22,), 1.5e-4 / 32)]
    values[0][0] = 1.0
    assert float(total_norm(values)) == pytest.approx(exact(values), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("place", [0, 1024, 2999])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_is_not_finite_where_one_element_is_not(value, place, dtype):
    values = [torch.ones(5, dtype=dtype), torch.ones(3000, dtype=dtype)]
    values[1][place] = value
    assert not torch.isfinite(total_norm(values))


class Elsewhere(torch.Tensor):
    """Says that it is not on a CPU, for want of a GPU."""

    is_cpu = False


@pytest.mark.parametrize("place", [torch.Tensor, Elsewhere])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_gradient_of_16_bits_has_a_norm_of_32(dtype, place):
    """With fp16's loss scale it is often above 65,504."""
    values = [torch.full((4096,), 3000.0, dtype=dtype), torch.full((7,), 2000.0, dtype=dtype)]
    norm = total_norm([value.as_subclass(place) for value in values])
    assert norm.dtype == torch.float32
    assert float(norm) == pytest.approx(exact(values), rel=1e-5)


def test_a_gradient_may_lie_in_memory_as_it_likes():
    values = gradients((300, 200))
    assert float(total_norm([values[0].T])) == pytest.approx(exact(values), rel=1e-6)


def test_a_norm_over_ranks_is_of_all_their_gradients(monkeypatch):
    """Four ranks that hold the same, or nothing."""
    zero = SimpleNamespace(
        check_grad_overflow=True, cpu_offload=False, device=torch.device("cpu"), check_overflow=pytest.fail
    )
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda square: square.mul_(4))
    take_norm_once(zero)
    values = gradients((7, 300), (5,))
    assert float(zero.get_grad_norm_direct(values, None)) == pytest.approx(2 * exact(values), rel=1e-6)
    assert float(zero.get_grad_norm_direct([], None)) == 0
    zero.check_overflow()  # which would look at every gradient


@pytest.mark.parametrize("zero", [SimpleNamespace(check_grad_overflow=True, cpu_offload=True), SimpleNamespace()])
def test_an_optimizer_with_gradients_elsewhere_takes_its_own_norm(zero):
    before = vars(zero).copy()
    take_norm_once(zero)
    assert vars(zero) == before


def test_deepspeed_still_calls_what_is_replaced():
    """Or it would take the slow way again without a word; tests/trainer/test_engine.py shows that ours is right."""
    calls = DeepSpeedZeroOptimizer.step.__code__.co_names + DeepSpeedZeroOptimizer.scaled_global_norm.__code__.co_names
    assert {"check_overflow", "check_grad_overflow", "get_grad_norm_direct"} <= set(calls)
    calls = inspect.unwrap(BF16_Optimizer.step).__code__.co_names
    assert {"get_global_norm_of_tensors", "clip_tensors_by_global_norm"} <= set(calls)
    assert "update_hp_grads" in BF16_Optimizer.backward_epilogue.__code__.co_names
    assert "clear_hp_grads" in calls
    assert BF16_Optimizer.backward_prologue.__code__.co_names == ("clear_lp_grads",)


@pytest.mark.parametrize(("size", "max_norm"), [(1.0, 0.5), (1.0, 1500.0), (1.0, 1e9), (1e-6, 1e-5)])
def test_gradients_are_clipped_as_deepspeed_does(size, max_norm):
    """Small ones, of which some more than the excess is taken, too."""
    ours, theirs = ([size * values for values in gradients((7, 300), (5,))] for _ in range(2))
    norm = total_norm(ours)
    scale_down(ours, max_norm, norm)
    clip_tensors_by_global_norm(theirs, max_norm=max_norm, global_norm=norm)
    assert all(map(torch.equal, ours, theirs))
    assert float(total_norm(ours)) == pytest.approx(min(max_norm, float(norm)), rel=1e-5, abs=1e-7)


def test_gradients_take_the_place_of_the_last_step_s_sums_and_the_next_ones_are_added():
    """tests/trainer/test_engine.py shows that DeepSpeed's own way gives the same, and moves more bytes."""
    parameters = [torch.zeros(2, 3, dtype=torch.bfloat16) for _ in range(3)]
    always, later, _ = parameters
    of_last_step, cleared = [torch.full((6,), 7.0) for _ in parameters], []
    optimizer = SimpleNamespace(
        update_hp_grads=pytest.fail, clear_hp_grads=pytest.fail, immediate_grad_update=False,
        bf16_groups=[parameters], fp32_groups_gradients=[of_last_step],
        fp32_groups_has_gradients=[[False, False, False]], clear_lp_grads=lambda **how: cleared.append(how),
    )  # fmt: skip
    add_up_at_once(optimizer)
    always.grad = torch.ones_like(always)
    optimizer.update_hp_grads(clear_lp_grads=False)
    assert [set(of.tolist()) for of in of_last_step] == [{1.0}, {0.0}, {0.0}]
    assert optimizer.fp32_groups_has_gradients == [[True, False, False]]
    optimizer.backward_prologue()
    assert cleared == [{"set_to_none": True}], "or the next ones would be added to zeros"
    always.grad, later.grad = (torch.full_like(always, 2**-9) for _ in range(2))  # for which 1 in 16 bits has no room
    optimizer.update_hp_grads()
    assert [set(of.tolist()) for of in of_last_step] == [{1 + 2**-9}, {2**-9}, {0.0}]
    assert optimizer.fp32_groups_has_gradients == [[True, True, False]]
    optimizer.clear_hp_grads()
    assert optimizer.fp32_groups_has_gradients == [[False, False, False]]


@pytest.mark.parametrize("other", [SimpleNamespace(), SimpleNamespace(update_hp_grads=1, immediate_grad_update=True)])
def test_an_optimizer_that_adds_up_in_another_way_goes_on_with_it(other):
    before = vars(other).copy()
    add_up_at_once(other)
    assert vars(other) == before
