"""Every implementation of attention computes the formula, padding counts for nothing, and dropout is what it says."""

import pytest
import torch
from torch import Tensor

from trainer.attention import attention, dropout

IMPLEMENTATIONS = ["reference", "batched", "sdpa"]
LENGTHS = (7, 1, 5)  # real tokens of three sequences
BATCH, SEQUENCE, HEADS, WIDTH = 3, 7, 2, 4


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Products this small only wait for each other on two."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def queries_keys_values(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Three views of one product, as the model has them."""
    torch.manual_seed(0)
    joint = torch.randn(BATCH, SEQUENCE, 3, HEADS, WIDTH, dtype=dtype)
    return [x.detach().requires_grad_() for x in joint.unbind(dim=2)]


def mask_of(lengths: tuple[int, ...] = LENGTHS) -> Tensor:
    return torch.arange(SEQUENCE)[None, :] < torch.tensor(lengths)[:, None]


def formula(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """softmax(Q K^T / sqrt(H)) V for one sequence and one head, [S, H], token by token."""
    rows = [torch.softmax((key @ q) / WIDTH**0.5, dim=0) @ value for q in query]
    return torch.stack(rows)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_computes_the_formula_on_each_sequence_without_its_padding(implementation):
    query, key, value = queries_keys_values()
    gathered = attention(query, key, value, mask_of(), implementation=implementation)
    assert gathered.shape == (BATCH, SEQUENCE, HEADS, WIDTH)
    assert gathered.is_contiguous()
    for b, length in enumerate(LENGTHS):
        for n in range(HEADS):
            expected = formula(query[b, :length, n], key[b, :length, n], value[b, :length, n])
            torch.testing.assert_close(gathered[b, :length, n], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("implementation", ["batched", "sdpa"])
def test_gradients_are_those_of_the_reference(implementation):
    def gradients(which):
        inputs = queries_keys_values()
        gathered = attention(*inputs, mask_of(), implementation=which)
        weight = torch.linspace(-1, 1, gathered.numel(), dtype=torch.float64).view_as(gathered)
        return torch.autograd.grad((gathered * weight).sum(), inputs)

    for ours, reference in zip(gradients(implementation), gradients("reference"), strict=True):
        torch.testing.assert_close(ours, reference, rtol=0, atol=1e-12)


def test_batched_and_reference_drop_the_same_weights():
    inputs = queries_keys_values()
    torch.manual_seed(3)
    reference = attention(*inputs, mask_of(), 0.4, implementation="reference")
    torch.manual_seed(3)
    batched = attention(*inputs, mask_of(), 0.4, implementation="batched")
    torch.testing.assert_close(batched, reference, rtol=0, atol=1e-12)
    assert not torch.allclose(reference, attention(*inputs, mask_of()))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_token_attends_to_padding(implementation, dtype):
    query, key, value = queries_keys_values(dtype)
    mask = mask_of()
    padding = ~mask[:, :, None, None]
    before = attention(query, key, value, mask, implementation=implementation)
    after = attention(
        query, key.masked_fill(padding, 1e6), value.masked_fill(padding, 1e6), mask, implementation=implementation
    )
    assert torch.equal(before[mask], after[mask])  # not a bit of it
    to_keys, to_values = torch.autograd.grad(before[mask].sum(), [key, value])
    assert not to_keys[~mask].any()
    assert not to_values[~mask].any()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_sequence_of_nothing_but_padding_gives_finite_numbers(implementation, dtype):
    query, key, value = queries_keys_values(dtype)
    with torch.no_grad():  # scores of -1800: float16's lowest number plus such a one is -inf
        query.fill_(30)
        key.fill_(-30)
    inputs = query, key, value
    mask = mask_of((7, 0, 5))
    gathered = attention(*inputs, mask, implementation=implementation)
    assert gathered.isfinite().all()
    for gradient in torch.autograd.grad(gathered[mask].sum(), inputs):
        assert gradient.isfinite().all()
        assert not gradient[1].any()  # an empty sequence moves nothing


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_bfloat16_loses_no_more_than_its_own_rounding(implementation):
    exact = attention(*(x.bfloat16().double() for x in queries_keys_values()), mask_of(), implementation="reference")
    rounded = attention(*(x.bfloat16() for x in queries_keys_values()), mask_of(), implementation=implementation)
    torch.testing.assert_close(rounded.double(), exact, rtol=0, atol=0.03)  # values of up to 3, 8 bits each


class TestDropout:
    def test_drops_the_share_asked_for_and_keeps_the_expectation(self):
        torch.manual_seed(0)
        for probability in (0.1, 0.5, 0.9):
            kept = dropout(torch.ones(400_001), probability)
            share = (kept == 0).double().mean().item()
            assert share == pytest.approx(probability, abs=0.003)  # four standard deviations of 400,001 draws
            assert kept.max().item() == pytest.approx(1 / (1 - probability), rel=1e-3)
            assert kept.double().mean().item() == pytest.approx(1, abs=0.02)

    def test_neighbours_that_share_a_draw_are_independent(self):
        torch.manual_seed(0)
        dropped = (dropout(torch.ones(100_000, 4), 0.5) == 0).double()
        correlation = torch.corrcoef(dropped.T) - torch.eye(4, dtype=torch.float64)
        assert correlation.abs().max() < 0.015  # 4.7 standard deviations

    def test_scale_is_not_rounded_in_bfloat16(self):
        torch.manual_seed(0)
        kept = dropout(torch.full((1000,), 0.9, dtype=torch.bfloat16), 0.1)
        exact = torch.tensor(0.9, dtype=torch.bfloat16).item() / 0.9
        assert kept.max().item() == torch.tensor(exact, dtype=torch.bfloat16).item()

    def test_gradient_has_the_same_holes_and_scale(self):
        x = torch.ones(5, 9, requires_grad=True)
        kept = dropout(x, 0.5)
        kept.sum().backward()
        assert torch.equal(x.grad, kept.detach())

    def test_same_seed_same_holes_whatever_the_threads(self):
        threads = torch.get_num_threads()
        results = []
        for count in (1, 2):
            torch.set_num_threads(count)
            torch.manual_seed(7)
            results.append(dropout(torch.ones(1 << 18), 0.1))
        torch.set_num_threads(threads)
        assert torch.equal(*results)

    def test_probability_zero_draws_nothing(self):
        x, state = torch.ones(3), torch.get_rng_state()
        assert dropout(x, 0.0) is x
        assert torch.equal(torch.get_rng_state(), state)

    @pytest.mark.parametrize("x", [torch.ones(0), torch.ones(()), torch.ones(2, 3, 4).transpose(0, 2)])
    def test_any_shape(self, x):
        assert dropout(x, 0.5).shape == x.shape
