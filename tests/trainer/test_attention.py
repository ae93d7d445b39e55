"""Every implementation of attention computes the formula, no sequence sees another, and dropout is what it says."""

import time
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.nn.attention import varlen

from trainer import attention as attention_module
from trainer.attention import attention, dropout, fastest_on_gpu
from trainer.determinism import use_deterministic_kernels
from trainer.packing import PackedTokens

IMPLEMENTATIONS = ["reference", "grouped", "sdpa"]  # on a CPU; "varlen" is CUDA's
LENGTHS = (7, 1, 5, 6, 1)  # tokens of five sequences
TOKENS, HEADS, WIDTH = sum(LENGTHS), 2, 4


def packed(lengths: tuple[int, ...] = LENGTHS) -> PackedTokens:
    flat = torch.zeros(sum(lengths), dtype=torch.int64)
    return PackedTokens.from_flat(flat, flat, torch.tensor(lengths))


def queries_keys_values(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Three views of one product, as the model has them."""
    torch.manual_seed(0)
    joint = torch.randn(TOKENS, 3, HEADS, WIDTH, dtype=dtype)
    return [x.detach().requires_grad_() for x in joint.unbind(dim=1)]


def formula(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
    """softmax(Q K^T / sqrt(H)) V for one sequence and one head, [S, H], token by token."""
    seen = [i + 1 if causal else len(key) for i in range(len(query))]
    rows = [torch.softmax((key[:n] @ q) / WIDTH**0.5, dim=0) @ value[:n] for q, n in zip(query, seen, strict=True)]
    return torch.stack(rows)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_computes_the_formula_on_each_sequence(implementation, causal):
    query, key, value = queries_keys_values()
    gathered = attention(query, key, value, packed(), causal=causal, implementation=implementation)
    assert gathered.shape == (TOKENS, HEADS, WIDTH)
    assert gathered.is_contiguous()
    for b, (begin, length) in enumerate(zip(packed().bounds.tolist(), LENGTHS, strict=False)):
        rows = slice(begin, begin + length)
        for n in range(HEADS):
            expected = formula(query[rows, n], key[rows, n], value[rows, n], causal)
            torch.testing.assert_close(gathered[rows, n], expected, rtol=0, atol=1e-12, msg=f"sequence {b}")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("implementation", ["grouped", "sdpa"])
def test_gradients_are_those_of_the_reference(implementation, causal):
    def gradients(which):
        inputs = queries_keys_values()
        gathered = attention(*inputs, packed(), causal=causal, implementation=which)
        weight = torch.linspace(-1, 1, gathered.numel(), dtype=torch.float64).view_as(gathered)
        return torch.autograd.grad((gathered * weight).sum(), inputs)

    for ours, reference in zip(gradients(implementation), gradients("reference"), strict=True):
        torch.testing.assert_close(ours, reference, rtol=0, atol=1e-12)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_selected_queries_gather_what_they_would_among_all(implementation):
    tokens, inputs = packed(), queries_keys_values()
    rows = torch.tensor([0, 3, 6, 8, 8, 12, 13])  # none of the second and the last sequence, one twice
    weight = torch.linspace(-1, 1, rows.numel() * HEADS * WIDTH, dtype=torch.float64).view(-1, HEADS, WIDTH)
    everything = attention(*inputs, tokens, implementation="reference")[rows]
    query, key, value = inputs
    some = attention(query[rows], key, value, tokens, tokens.select(rows), implementation=implementation)
    torch.testing.assert_close(some, everything, rtol=0, atol=1e-12)
    for ours, reference in zip(
        torch.autograd.grad((some * weight).sum(), inputs),
        torch.autograd.grad((everything * weight).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(ours, reference, rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_written_out_backward_pass_is_the_derivative_with_dropout_too(causal):
    def with_the_same_holes(*inputs):
        torch.manual_seed(5)
        return attention(*inputs, packed(), None, 0.3, causal, "grouped")

    assert torch.autograd.gradcheck(with_the_same_holes, queries_keys_values())


def test_dropout_drops_weights_and_keeps_their_expectation():
    inputs = queries_keys_values()
    torch.manual_seed(3)
    with torch.no_grad():
        samples = torch.stack([attention(*inputs, packed(), None, 0.4, implementation="grouped") for _ in range(4000)])
    exact = attention(*inputs, packed(), implementation="reference")
    errors = (samples.mean(dim=0) - exact) / (samples.std(dim=0) / 4000**0.5)
    assert errors.abs().max() < 5  # 160 standard normals
    alone = samples[:, 7].abs().sum(dim=-1)  # the sequence of one token: its only weight is dropped or not
    assert (alone == 0).double().mean().item() == pytest.approx(0.4, abs=0.03)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_token_attends_to_another_sequence(implementation, dtype):
    query, key, value = queries_keys_values(dtype)
    others = torch.ones(TOKENS, 1, 1, dtype=torch.bool)
    others[8:13] = False  # all but the third sequence
    before = attention(query, key, value, packed(), implementation=implementation)
    after = attention(
        query, key.masked_fill(others, 1e6), value.masked_fill(others, 1e6), packed(), implementation=implementation
    )
    assert torch.equal(before[8:13], after[8:13])  # not a bit of it
    to_keys, to_values = torch.autograd.grad(before[8:13].sum(), [key, value])
    assert not to_keys[others.flatten()].any()
    assert not to_values[others.flatten()].any()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_low_scores_and_empty_sequences_give_finite_numbers(implementation, dtype):
    query, key, value = queries_keys_values(dtype)
    with torch.no_grad():  # scores of -1800: float16's lowest number plus such a one is -inf
        query.fill_(30)
        key.fill_(-30)
    gathered = attention(query, key, value, packed((7, 0, 13, 0)), implementation=implementation)
    assert gathered.isfinite().all()
    for gradient in torch.autograd.grad(gathered.sum(), (query, key, value)):
        assert gradient.isfinite().all()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_bfloat16_loses_no_more_than_its_own_rounding(implementation):
    exact = attention(*(x.bfloat16().double() for x in queries_keys_values()), packed(), implementation="reference")
    rounded = attention(*(x.bfloat16() for x in queries_keys_values()), packed(), implementation=implementation)
    torch.testing.assert_close(rounded.double(), exact, rtol=0, atol=0.03)  # values of up to 3, 8 bits each


def test_the_kernel_for_packed_sequences_has_no_dropout():
    with pytest.raises(ValueError, match=r"no dropout; set model.attention_probs_dropout_prob=0"):
        attention(*queries_keys_values(), packed(), None, 0.1, implementation="varlen")


@pytest.mark.parametrize(
    ("capability", "dtype", "probability", "width", "expected"),
    [
        ((9, 0), torch.bfloat16, 0.0, 64, "varlen"),
        ((8, 0), torch.float16, 0.0, 256, "varlen"),
        ((7, 5), torch.float16, 0.0, 64, "sdpa"),  # T4, RTX 20: torch has no flash attention for them
        ((9, 0), torch.float32, 0.0, 64, "sdpa"),
        ((9, 0), torch.bfloat16, 0.1, 64, "sdpa"),
        ((9, 0), torch.bfloat16, 0.0, 26, "sdpa"),  # TinyBERT of 312 and 12 heads: the kernel takes multiples of 8
        ((9, 0), torch.bfloat16, 0.0, 264, "sdpa"),
    ],
)
def test_the_kernel_for_packed_sequences_is_taken_where_it_runs(
    monkeypatch, capability, dtype, probability, width, expected
):
    with FakeTensorMode():
        query = torch.empty(3, 2, width, dtype=dtype, device="cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert attention_module._fastest(query, probability) == expected
    assert fastest_on_gpu(dtype.itemsize, probability, width, is_modern=capability >= (8, 0)) == expected


def test_which_kernel_is_known_while_a_graph_is_made(monkeypatch):
    def ask(_):
        time.sleep(0)  # no graph can hold it, as the look at a GPU
        return (7, 5)

    attention_module.expect_compiler()
    cuda = SimpleNamespace(is_available=lambda: True, get_device_capability=ask)
    monkeypatch.setattr(attention_module, "torch", SimpleNamespace(cuda=cuda))  # torch.compile looks at the real one

    def choose(x):
        return x * (3 if attention_module.is_modern(torch.device("cuda")) else 7)

    compiled = torch.compile(choose, backend="eager", fullgraph=True)
    assert compiled(torch.ones(2)).tolist() == [7, 7]


@pytest.mark.parametrize(("width", "expected"), [(64, "varlen"), (26, "sdpa")])
def test_a_head_s_width_is_known_while_a_graph_is_made_too(width, expected):
    def choose(query):
        kernel = fastest_on_gpu(query.element_size(), 0.0, query.shape[-1])
        return query + ("sdpa", "varlen").index(kernel)

    compiled = torch.compile(choose, backend="eager", fullgraph=True)
    for tokens in (3, 5, 7):  # whose number changes from batch to batch
        found = compiled(torch.zeros(tokens, 2, width, dtype=torch.bfloat16))
        assert found.unique().tolist() == [("sdpa", "varlen").index(expected)]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA's kernel for packed sequences")
@pytest.mark.parametrize("causal", [False, True])
def test_the_kernel_for_packed_sequences_is_the_reference(causal):
    lengths = (128, 1, 77, 128, 60)
    torch.manual_seed(0)
    inputs = [torch.randn(sum(lengths), 4, 64).cuda().bfloat16().requires_grad_() for _ in range(3)]
    tokens = packed(lengths).to(torch.device("cuda"))
    exact = attention(*(x.double() for x in inputs), tokens, causal=causal, implementation="reference")
    gathered = attention(*inputs, tokens, causal=causal, implementation="varlen")
    torch.testing.assert_close(gathered.double(), exact, rtol=0, atol=0.03)
    for ours, reference in zip(
        torch.autograd.grad(gathered.sum(), inputs), torch.autograd.grad(exact.sum(), inputs), strict=True
    ):
        torch.testing.assert_close(ours, reference, rtol=0.02, atol=0.03)


@pytest.mark.parametrize(
    ("implementation", "module", "name"),
    [("sdpa", torch.nn.functional, "scaled_dot_product_attention"), ("varlen", varlen, "varlen_attn")],
)
def test_cudnns_kernel_is_kept_out(implementation, module, name, monkeypatch):
    enabled = []

    def note(query, *_, **__):
        enabled.append(torch.backends.cuda.cudnn_sdp_enabled())
        return query

    monkeypatch.setattr(module, name, note)
    before = torch.backends.cuda.cudnn_sdp_enabled()
    attention(*queries_keys_values(), packed(), implementation=implementation)
    assert enabled == [False]
    assert torch.backends.cuda.cudnn_sdp_enabled() == before


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA's fused kernels")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("longest", [64, 128, 192])
def test_fused_kernels_on_padded_rows_are_the_reference(longest, dtype):
    lengths = (longest, 1, longest // 2 + 3)
    torch.manual_seed(0)
    inputs = [torch.randn(sum(lengths), 4, 64).cuda().to(dtype).requires_grad_() for _ in range(3)]
    tokens = packed(lengths).to(torch.device("cuda"))
    exact = attention(*(x.double() for x in inputs), tokens, implementation="reference")
    gathered = attention(*inputs, tokens, implementation="sdpa")
    torch.testing.assert_close(gathered.double(), exact, rtol=0, atol=0.03)
    for ours, reference in zip(
        torch.autograd.grad(gathered.sum(), inputs), torch.autograd.grad(exact.sum(), inputs), strict=True
    ):
        torch.testing.assert_close(ours, reference, rtol=0.02, atol=0.03)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA's fused kernels")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("longest", [64, 128, 192])
def test_fused_kernels_drop_the_share_asked_for(longest, dtype):
    """Equal scores, and values that are rows of one: each output tells which weights of its row were dropped."""
    lengths = (longest,) * 8
    equal = torch.zeros(sum(lengths), 4, longest, device="cuda", dtype=dtype)
    ones = torch.eye(longest, device="cuda", dtype=dtype).repeat(8, 1)[:, None].expand(-1, 4, -1)
    torch.manual_seed(0)
    tokens = packed(lengths).to(torch.device("cuda"))
    weights = attention(equal, equal, ones, tokens, None, 0.1, implementation="sdpa")
    share = (weights == 0).double().mean().item()
    assert share == pytest.approx(0.1, abs=0.005)  # 131,072 draws at least: six standard deviations
    kept = weights[weights != 0].double().mean().item()
    assert kept == pytest.approx(1 / longest / 0.9, rel=0.01)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA's fused kernels")
@pytest.mark.parametrize(("implementation", "probability"), [("varlen", 0.0), ("sdpa", 0.0), ("sdpa", 0.1)])
def test_fused_kernels_give_the_same_gradients_again(implementation, probability, request, monkeypatch):
    """Of sequences so long that several blocks add to a query's gradient, and so many that these run side by side."""
    device = torch.device("cuda")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    request.addfinalizer(partial(use_deterministic_kernels, False, device))
    use_deterministic_kernels(True, device)
    lengths = (512, 300, 511, 64) * 8
    torch.manual_seed(0)
    inputs = [torch.randn(sum(lengths), 16, 64, device=device).bfloat16().requires_grad_() for _ in range(3)]
    tokens = packed(lengths).to(device)

    def gradients():
        torch.manual_seed(1)
        gathered = attention(*inputs, tokens, None, probability, implementation=implementation)
        return torch.autograd.grad(gathered.float().square().sum(), inputs)

    first = gradients()
    for _ in range(5):
        assert all(torch.equal(one, other) for one, other in zip(first, gradients(), strict=True))


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
