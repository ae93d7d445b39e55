"""Attention's kernels against the formula, on a GPU or, by Triton's interpreter, on a CPU.

tests/trainer/test_fused.py runs this in a process of its own: whether kernels are interpreted is decided at import.
"""

import os

import numpy as np
import pytest
import torch
import triton
from torch import Tensor

from tests.trainer import triton_interpreter
from trainer import fused_attention
from trainer.attention import attention, dropped_of_65536, scale_of_kept
from trainer.fused_attention import Attention, How, attend, attend_backward, use_assembler_of
from trainer.packing import PackedTokens
from trainer.philox import philox4x32

DEVICE = torch.device("cpu" if triton.knobs.runtime.interpret else "cuda")
triton_interpreter.mend()
HEADS = 2
SHORT, LONG = (9, 128, 1, 70), (5, 129, 64, 90)  # a block has the first as a whole, of others there are several


@pytest.fixture(autouse=True)
def _strict():
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.use_deterministic_algorithms(True, warn_only=True)  # which fills what nothing has written yet with NaN


def packed(lengths: tuple[int, ...]) -> PackedTokens:
    ids = torch.zeros(sum(lengths), dtype=torch.int64)
    return PackedTokens.from_flat(ids, ids, torch.tensor(lengths)).to(DEVICE)


def some_of(tokens: PackedTokens):
    """In one sequence no token asks, in one all do."""
    rows = torch.arange(len(tokens.input_ids), device=DEVICE)
    in_second, in_fourth = ((rows >= tokens.bounds[b]) & (rows < tokens.bounds[b + 1]) for b in (1, 3))
    return tokens.select(rows[(rows % 3 == 1) & ~in_second | in_fourth])


def inputs_of(queries: int, tokens: int, width: int, dtype: torch.dtype) -> list[Tensor]:
    """Queries, keys and values, of one joint product where all tokens ask, and what flows back; scores are sharp."""
    generator = torch.Generator().manual_seed(1)
    joint = torch.randn(tokens, 3 * HEADS * width, generator=generator).to(DEVICE, dtype) * 1.5
    query, key, value = (x.detach().requires_grad_() for x in joint.chunk(3, dim=-1))
    upstream = torch.randn(queries, HEADS * width, generator=generator).to(DEVICE, dtype)
    if queries < tokens:  # some tokens ask by a product of their own
        query = query[:queries].detach().clone().requires_grad_()
    return [query, key, value, upstream]


def formula(inputs: list[Tensor], how: How, kept: Tensor | None = None) -> list[Tensor]:
    """What is gathered and the gradients, in float64; ``kept`` is bool [R, N, S] of dropout."""
    *given, upstream = (x.detach().double().requires_grad_() for x in inputs)
    q, k, v = (x.unflatten(-1, (how.heads, -1)) for x in given)
    if kept is None:
        selected = None if how.queries is how.tokens else how.queries
        result = attention(q, k, v, how.tokens, selected, 0.0, how.causal, "reference")
    else:
        parts = []
        for b, length in enumerate(how.tokens.lengths.tolist()):
            rows = slice(*how.queries.bounds[b : b + 2].tolist())
            keys = slice(*how.tokens.bounds[b : b + 2].tolist())
            scores = torch.einsum("rnh,snh->rns", q[rows], k[keys]) * q.shape[-1] ** -0.5
            weights = scores.softmax(dim=-1) * kept[rows, :, :length] * scale_of_kept(how.probability)
            parts.append(torch.einsum("rns,snh->rnh", weights, v[keys]))
        result = torch.cat(parts)
    return [result.flatten(1), *torch.autograd.grad(result.flatten(1), given, upstream)]


def ours(inputs: list[Tensor], how: How) -> list[Tensor]:
    *given, upstream = inputs
    gathered = Attention.apply(*given, how)
    return [gathered.detach(), *torch.autograd.grad(gathered, given, upstream)]


def drawn(how: How, bits: Tensor) -> Tensor:
    """Bool [R, N, S] of the bits that the kernels keep."""
    return (bits[..., None] >> torch.arange(8, device=DEVICE) & 1).flatten(2).bool()[:, :, : how.tokens.longest]


def seed(value: int) -> Tensor:
    return torch.tensor([value], device=DEVICE)


def test_torch_s_assembler_makes_the_kernels_if_there_is_one_and_none_is_named(tmp_path, monkeypatch):
    monkeypatch.delenv("TRITON_PTXAS_PATH", raising=False)
    use_assembler_of(tmp_path)
    assert "TRITON_PTXAS_PATH" not in os.environ
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ptxas").touch()
    use_assembler_of(tmp_path)
    assert os.environ["TRITON_PTXAS_PATH"] == str(tmp_path / "bin/ptxas")
    monkeypatch.setenv("TRITON_PTXAS_PATH", "named")
    use_assembler_of(tmp_path)
    assert os.environ["TRITON_PTXAS_PATH"] == "named"


@pytest.mark.parametrize("lengths", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize(
    ("who", "width"), [("all", 64), ("some", 64), ("causal", 64), ("some", 8)], ids=lambda value: str(value)
)
def test_result_and_gradients_are_the_formula_s(lengths, who, width):
    tokens = packed(lengths)
    queries = some_of(tokens) if who == "some" else tokens
    how = How(queries, tokens, HEADS, who == "causal", 0.0, None)
    count = int(queries.bounds[-1])
    for dtype, allowed in ((torch.float32, 2e-6), (torch.bfloat16, 8e-3)):
        inputs = inputs_of(count, len(tokens.input_ids), width, dtype)
        for name, one, other in zip(
            ["gathered", "query", "key", "value"], ours(inputs, how), formula(inputs, how), strict=True
        ):
            assert one.dtype == dtype
            assert (one - other).norm() < allowed * other.norm(), f"{name} in {dtype}"


def test_heads_as_wide_as_there_are():
    """Of which a multiprocessor has room for sixteen queries and keys at a time, in float32."""
    tokens = packed((5, 40))
    how = How(tokens, tokens, HEADS, False, 0.0, None)
    inputs = inputs_of(45, 45, 300, torch.float32)
    assert how.rows(inputs[0]) == 16
    for one, other in zip(ours(inputs, how), formula(inputs, how), strict=True):
        assert (one - other).norm() < 2e-6 * other.norm()


@pytest.mark.parametrize("lengths", [SHORT, LONG], ids=["short", "long"])
def test_dropout_is_the_same_in_both_passes_and_leaves_the_expectation(lengths):
    tokens = packed(lengths)
    how = How(tokens, tokens, HEADS, False, 0.1, seed(2**62 - 5))
    for dtype, allowed in ((torch.float32, 3e-6), (torch.bfloat16, 1e-2)):
        inputs = inputs_of(len(tokens.input_ids), len(tokens.input_ids), 16, dtype)
        kept = drawn(how, attend(*inputs[:3], how)[2])
        for one, other in zip(ours(inputs, how), formula(inputs, how, kept), strict=True):
            assert (one - other).norm() < allowed * other.norm()


@pytest.mark.parametrize("probability", [0.1, 0.5])
def test_dropout_drops_the_share_asked_for_and_every_weight_by_itself(probability):
    tokens = packed((128, 128))
    x = torch.zeros(256, HEADS * 16, device=DEVICE)

    def kept(number: int) -> Tensor:
        how = How(tokens, tokens, HEADS, False, probability, seed(number))
        return drawn(how, attend(x, x, x, how)[2]).double()  # [R, N, S]

    first, again, other = kept(3), kept(3), kept(2**62)
    assert first.equal(again)
    exact = 1 - dropped_of_65536(probability) / 2**16
    deviation = (exact * (1 - exact)) ** 0.5
    assert first.mean().item() == pytest.approx(exact, abs=4 * deviation / first.numel() ** 0.5)
    views = {
        "seeds": torch.stack([first.flatten(), other.flatten()]),
        "heads": first.transpose(0, 1).flatten(1),
        "queries": first.flatten(1)[:64],
        "keys of a draw and beyond": first.flatten(0, 1).T[:32],
        "sequences": first.unflatten(0, (2, 128)).flatten(1),
    }
    for name, rows in views.items():
        found = torch.corrcoef(rows) - torch.eye(len(rows), device=DEVICE)
        assert found.abs().max() < 5 / rows.shape[1] ** 0.5, name


def test_dropout_keeps_what_philox_s_numbers_say():
    """Eight of 16 bits by the number of eight keys, and that of a query's head."""
    tokens, number = packed(LONG), 2**62 + 3  # of which one is the least that is kept
    how = How(tokens, tokens, HEADS, False, 0.1, seed(number))
    x = torch.zeros(sum(LONG), HEADS * 16, device=DEVICE)
    kept = drawn(how, attend(x, x, x, how)[2]).cpu().numpy()  # [R, N, S]
    row = np.arange(kept.shape[0] * HEADS, dtype=np.uint64)[:, None]
    group = np.arange(-(-kept.shape[2] // 8), dtype=np.uint64)[None, :]
    words = philox4x32((number & 0xFFFFFFFF, number >> 32), (group, row, np.uint64(0), np.uint64(0)))
    numbers = words.astype("<u4").view("<u2").reshape(*kept.shape[:2], -1)
    for b, length in enumerate(LONG):
        rows = slice(*tokens.bounds[b : b + 2].tolist())
        assert np.array_equal(kept[rows, :, :length], (numbers >= dropped_of_65536(0.1))[rows, :, :length])


def test_what_flows_back_may_lie_in_memory_as_it_likes():
    """A sum's gradient is one number for all."""
    tokens = packed(SHORT)
    how = How(tokens, tokens, HEADS, False, 0.0, None)
    *given, upstream = inputs_of(sum(SHORT), sum(SHORT), 16, torch.float32)
    apart = [*given, torch.ones(1, 1, device=DEVICE).expand_as(upstream)]
    for one, other in zip(ours(apart, how), formula(apart, how), strict=True):
        assert (one - other).norm() < 2e-6 * other.norm()


def test_scores_may_be_far_from_zero():
    """Of some queries all scores are -1,000 and less, of others all are 1,000 and more."""
    tokens = packed(LONG)
    how = How(tokens, tokens, HEADS, False, 0.0, None)
    inputs = inputs_of(sum(LONG), sum(LONG), 16, torch.float32)
    with torch.no_grad():
        inputs[0].copy_(torch.where(torch.arange(sum(LONG), device=DEVICE) % 2 == 0, 40.0, -40.0)[:, None])
        inputs[1].add_(10.0)
    for one, other in zip(ours(inputs, how), formula(inputs, how), strict=True):
        assert (one - other).norm() < 1e-3 * other.norm()


@pytest.mark.parametrize("lengths", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_are_what_a_bias_gets(lengths, dtype):
    """Also where sequences fill a part of their last block, or none of it."""
    tokens = packed(lengths)
    how = How(tokens, tokens, HEADS, False, 0.1, seed(1))
    *given, upstream = inputs_of(len(tokens.input_ids), len(tokens.input_ids), 16, dtype)
    given = [x.detach() for x in given]
    gradients = torch.full((len(tokens.input_ids), 3 * HEADS * 16), torch.nan, dtype=dtype, device=DEVICE)
    sums = attend_backward(upstream, (*given, *attend(*given, how)), gradients.chunk(3, dim=-1), how, sums=True)
    assert gradients.isfinite().all()
    torch.testing.assert_close(sums.double(), gradients.double().sum(dim=0), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("lengths", [SHORT, LONG], ids=["short", "long"])
def test_what_a_batch_is_computed_with_changes_no_bit(lengths):
    """Nothing of a sequence depends on the others, nor on what memory held before."""
    tokens = packed(lengths)
    inputs = inputs_of(len(tokens.input_ids), len(tokens.input_ids), 16, torch.bfloat16)
    whole = ours(inputs, How(tokens, tokens, HEADS, False, 0.0, None))
    first = packed(lengths[:2])
    few = [x[: sum(lengths[:2])].detach().requires_grad_() for x in inputs]
    alone = How(first, PackedTokens(*vars(first).values()), HEADS, False, 0.0, None)
    assert first.longest <= tokens.longest
    for one, other in zip(ours(few, alone), whole, strict=True):
        assert one.equal(other[: len(one)])


def test_the_backward_pass_of_short_sequences_is_that_of_long_ones(monkeypatch):
    tokens = packed(SHORT)
    how = How(tokens, tokens, HEADS, False, 0.1, seed(9))
    inputs = inputs_of(len(tokens.input_ids), len(tokens.input_ids), 64, torch.bfloat16)
    at_once = ours(inputs, how)
    monkeypatch.setattr(fused_attention, "_WHOLE", 0)
    for one, other in zip(at_once, ours(inputs, how), strict=True):
        assert (one - other).double().norm() < 1e-2 * other.double().norm()
