"""The kernels of trainer.fused against the formulas, on a GPU or, by Triton's interpreter, on a CPU.

tests/trainer/test_fused.py runs this in a process of its own: whether kernels are interpreted is decided at import.
"""

import copy
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.nn import functional as F
from triton.runtime.interpreter import InterpreterError

from tests.conftest import ROOT
from tests.ranks import launched
from tests.trainer import triton_interpreter
from trainer import fused as module
from trainer.fused import _AddNorm, _Up, fuse
from trainer.model import BertConfig, BertForPreTraining, Layer, initialize, pretraining_losses
from trainer.packing import PackedTokens, Selection
from trainer.philox import philox4x32

BERT_LARGE = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16}
DEVICE = torch.device("cpu" if triton.knobs.runtime.interpret else "cuda")
triton_interpreter.mend()
LENGTHS = (9, 4, 1, 7)
TOKENS = sum(LENGTHS)


@pytest.fixture(autouse=True)
def _strict():
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.use_deterministic_algorithms(True, warn_only=True)  # which fills what nothing has written yet with NaN


def config(**options: object) -> BertConfig:
    """A layer whose widths are no powers of two, with more columns than a program has at once."""
    shape = {"hidden_size": 24, "intermediate_size": 300, "num_attention_heads": 3, "num_hidden_layers": 2}
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertConfig(53, **{"max_position_embeddings": 20, **shape, **no_dropout, **options})


def tokens() -> PackedTokens:
    ids = torch.zeros(TOKENS, dtype=torch.int64)
    return PackedTokens.from_flat(ids, ids, torch.tensor(LENGTHS)).to(DEVICE)


def selection() -> Selection:
    return tokens().select(torch.tensor([0, 3, 9, 13, 15], device=DEVICE))


def layers_of(model: BertConfig, dtype: torch.dtype) -> tuple[Layer, Layer]:
    """The same layer twice, one of them fused; no parameter is zero or one."""
    torch.manual_seed(1)
    plain = Layer(model)
    initialize(plain, 0.2, seed=1)
    for parameter in plain.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    plain = plain.to(DEVICE, dtype)
    fused = copy.deepcopy(plain)
    fuse(nn.ModuleList([fused]), model)
    return plain, fused


def result_and_gradients(layer: Layer, selected: Selection | None, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    width = layer.attention.out.out_features
    hidden = torch.randn(TOKENS, width, generator=generator).to(DEVICE, dtype).requires_grad_()
    result = layer(hidden, tokens(), selected)
    weight = torch.randn(result.shape, generator=generator).to(DEVICE, dtype)
    return [result.detach(), *torch.autograd.grad((result * weight).sum(), [hidden, *layer.parameters()])]


@pytest.mark.parametrize("some", [False, True], ids=["all tokens", "some tokens"])
@pytest.mark.parametrize("options", [{}, {"hidden_act": "gelu_new"}, {"is_decoder": True}, BERT_LARGE])
def test_a_layer_and_its_gradients_are_the_formula_s(options, some):
    if some and options.get("is_decoder"):
        pytest.skip("in a left-to-right model all tokens ask")
    selected = selection() if some else None
    model = config(**options)
    plain, fused = layers_of(model, torch.float32)
    atol = 3e-5 * (model.hidden_size / 24) ** 0.5  # of sums of so many products
    for name, ours, theirs in zip(
        ["result", "hidden", *(name for name, _ in plain.named_parameters())],
        result_and_gradients(fused, selected, torch.float32),
        result_and_gradients(plain, selected, torch.float32),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=atol, msg=lambda text, name=name: f"{name}: {text}")
        assert (ours - theirs).norm() < 3e-5 * theirs.norm(), name


def test_states_and_what_flows_back_may_lie_in_memory_as_they_like():
    """Here states side by side, and a sum's gradient, which is one number for all."""
    plain, fused = layers_of(config(), torch.float32)
    hidden = torch.randn(24, TOKENS, generator=torch.Generator().manual_seed(2)).to(DEVICE).t().requires_grad_()
    ours, theirs = (torch.autograd.grad(layer(hidden, tokens(), None).sum(), hidden)[0] for layer in (fused, plain))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=3e-5)


def test_in_bfloat16_the_errors_are_no_larger_than_those_of_torch_s_kernels():
    plain, fused = layers_of(config(), torch.bfloat16)
    exact = result_and_gradients(copy.deepcopy(plain).double(), None, torch.float64)
    ours, theirs = (result_and_gradients(layer, None, torch.bfloat16) for layer in (fused, plain))
    errors = [
        [(one - other).norm() / other.norm() for one, other in zip(each, exact, strict=True)] for each in (ours, theirs)
    ]
    assert sum(errors[0]) < 1.05 * sum(errors[1])
    assert max(errors[0]) < 0.05


@pytest.mark.parametrize("by_erf", [True, False], ids=["gelu", "gelu_new"])
def test_gelu_and_its_slope_far_below_the_rounding_of_16_bits(by_erf):
    x = torch.linspace(-12, 12, 4096, device=DEVICE).view(-1, 1)
    weight, bias = torch.ones(1, 1, device=DEVICE), torch.zeros(1, device=DEVICE, requires_grad=True)
    x.requires_grad_()
    ours, _ = _Up.apply(x, weight, bias, by_erf)
    exact_x = x.detach().double().requires_grad_()
    exact = F.gelu(exact_x, approximate="none" if by_erf else "tanh")
    assert (ours - exact).abs().max() < 1e-6
    (slope,) = torch.autograd.grad(exact.sum(), exact_x)
    (to_bias,) = torch.autograd.grad(_Up.apply(x, weight, bias, by_erf)[0].sum(), bias)
    assert to_bias.item() == pytest.approx(slope.sum().item(), abs=0.05)  # 4,096 errors
    before = x.detach().requires_grad_()
    (ours_slope,) = torch.autograd.grad(_Up.apply(before, weight, bias, by_erf)[0].sum(), before)
    assert (ours_slope - slope).abs().max() < 1e-5


@triton.jit
def _copy(x, y, apart, stride, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    found = tl.load(x + tl.program_id(0) * BLOCK + places)
    tl.store(y + tl.program_id(0) * apart + places * stride, found)


@pytest.mark.skipif(DEVICE.type == "cuda", reason="a GPU does not tell")
def test_kernels_that_go_beyond_their_arguments_or_where_it_counts_who_comes_first_are_refused():
    """So no kernel does where the other tests here pass."""
    x = torch.arange(64.0)
    _copy[(2,)](x[16:], x[:16], 8, 1, BLOCK=8)
    assert x[:16].equal(torch.arange(16.0, 32.0))
    for source, target, apart, stride, wrong in (
        (x[:15], x[32:], 8, 1, "is none of an argument"),
        (x[:32:2], x[32:], 8, 1, "is none of an argument"),
        (x[:16], x[32:47], 8, 1, "is none of an argument"),
        (x[:16], x[32:], 8, 0, "is written twice"),
        (x[:16], x[32:], 7, 1, "is written twice"),
        (x[1:17], x[:16], 8, 1, "is read and written"),
        (x[:16], x[1:17], 8, 1, "is read and written"),
        (x[:16], x[8:24], 8, 1, "is read and written"),
    ):
        with pytest.raises(InterpreterError, match=f"an element {wrong}"):
            _copy[(2,)](source, target, apart, stride, BLOCK=8)


class TestDropout:
    WIDTH = 96

    def holes(self, seed: int, probability: float = 0.1, rows: int = 64) -> Tensor:
        """Which elements are dropped: without a residual they are zero, others are more, and LayerNorm keeps that."""
        x = torch.ones(rows, 1, device=DEVICE)
        weight = torch.linspace(1, 2, self.WIDTH, device=DEVICE).view(-1, 1)
        none, one = torch.zeros(self.WIDTH, device=DEVICE), torch.ones(self.WIDTH, device=DEVICE)
        normed = _AddNorm.apply(
            x, weight, none, torch.zeros(rows, self.WIDTH, device=DEVICE), one, none, 1e-12, probability,
            torch.tensor([seed], device=DEVICE),
        )  # fmt: skip
        return normed <= normed.min(dim=1, keepdim=True).values

    def test_drops_the_share_asked_for_anew_in_every_row_and_for_every_seed(self):
        of_half = self.holes(2**62, 0.5, rows=400)
        for probability, holes in ((0.1, self.holes(2**62, 0.1, rows=200)), (0.5, of_half[:200])):
            assert holes.double().mean().item() == pytest.approx(probability, abs=0.015)  # four standard deviations
        assert self.holes(2**62, 0.5).equal(of_half[:64])
        halves = torch.stack([of_half[:64].flatten(), self.holes(2**62 + 1, 0.5).flatten()]).double()
        assert abs(torch.corrcoef(halves)[0, 1]) < 0.06
        rows = torch.corrcoef(of_half[:64].double()) - torch.eye(64, device=DEVICE)
        assert rows.abs().max() < 0.5  # 96 numbers each
        columns = torch.corrcoef(of_half.double().T) - torch.eye(self.WIDTH, device=DEVICE)
        assert columns.abs().max() < 0.25  # five standard deviations: the four of a draw too are independent

    def test_keeps_what_philox_s_numbers_say(self):
        """Four of 32 bits by the number of four elements, of which a row has a power of two."""
        number, rows = 2**62 + 3, 5
        quarters = np.arange(rows * 32, dtype=np.uint64)
        words = philox4x32((number & 0xFFFFFFFF, number >> 32), (quarters, *[np.uint64(0)] * 3))
        signed = words[:, [0, 2, 1, 3]].view(np.int32).astype(np.int64)
        uniform = np.where(signed < 0, -signed - 1, signed) / 2**31  # as tl.rand makes them, but for the last bits
        dropped = uniform.reshape(rows, 128)[:, : self.WIDTH] < 0.1
        assert np.array_equal(self.holes(number, 0.1, rows).cpu().numpy(), dropped)

    def test_the_backward_pass_has_the_holes_of_the_forward_pass(self):
        seed, probability, rows = 2**62 + 7, 0.3, 37
        torch.manual_seed(3)
        x, weight, bias, residual, scale, shift = (
            torch.randn(size, device=DEVICE, requires_grad=True)
            for size in ((rows, 5), (self.WIDTH, 5), (self.WIDTH,), (rows, self.WIDTH), (self.WIDTH,), (self.WIDTH,))
        )
        inputs = [x, weight, bias, residual, scale, shift]
        ours = _AddNorm.apply(*inputs, 0.1, probability, torch.tensor([seed], device=DEVICE))
        kept = F.linear(x, weight, bias).masked_fill(self.holes(seed, probability, rows), 0) / (1 - probability)
        theirs = F.layer_norm(residual + kept, (self.WIDTH,), scale, shift, 0.1)
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
        upstream = torch.randn(ours.shape, device=DEVICE)
        for one, other in zip(*(torch.autograd.grad(y, inputs, upstream) for y in (ours, theirs)), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)

    def test_an_evaluation_has_none(self):
        plain, fused = layers_of(config(hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5), torch.float32)
        ours, theirs = (result_and_gradients(layer.eval(), None, torch.float32)[0] for layer in (fused, plain))
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=3e-5)

    def test_every_place_of_every_layer_draws_for_itself(self, monkeypatch):
        seeds = []
        for name, seed_of in (("attend", lambda *given: given[3].seed), ("_add_norm", lambda *given: given[5])):
            compute = getattr(module, name)
            monkeypatch.setattr(
                module, name, lambda *given, f=compute, of=seed_of: seeds.append(of(*given).item()) or f(*given)
            )
        model = config(hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5)
        bert = BertForPreTraining(model, seed=4).to(DEVICE)
        fuse(bert.bert.layers, model)
        bert.bert(tokens())
        assert len(set(seeds)) == len(seeds) == 3 * model.num_hidden_layers

    def test_a_seed_of_torch_decides_and_a_layer_computed_twice_has_the_same(self):
        """Activation checkpointing computes a layer anew in the backward pass."""

        def gradients(seed: int, checkpointing: bool) -> list[Tensor]:
            model = config(hidden_dropout_prob=0.2, activation_checkpointing=checkpointing)
            bert = BertForPreTraining(model, seed=4).to(DEVICE)
            fuse(bert.bert.layers, model)
            torch.manual_seed(seed)
            words, sentences = bert(tokens(), torch.tensor([2, 5, 12], device=DEVICE))
            losses = pretraining_losses(
                words, torch.tensor([1, 2, 3], device=DEVICE), sentences, torch.zeros(4, device=DEVICE).long()
            )
            return list(torch.autograd.grad(losses.mlm_loss + losses.nsp_loss, list(bert.parameters())))

        first, again, other = gradients(5, False), gradients(5, True), gradients(6, False)
        assert all(one.equal(two) for one, two in zip(first, again, strict=True))
        assert not all(one.equal(two) for one, two in zip(first, other, strict=True))


@pytest.fixture
def train(recipe, shards, tmp_path):
    """Run the trainer with some settings; returns the last held-out loss, and losses and gradient norms of all steps.

    A CPU may interpret kernels, and torch.compile traces and differentiates without the minutes of a C++ compiler.
    """
    program = (
        "import functools, sys, torch; torch.compile = functools.partial(torch.compile, backend='aot_eager');"
        "from tests.trainer import triton_interpreter; triton_interpreter.mend();"
        "from trainer import preflight, pretrain; preflight.why_not_fused = lambda device: '';"
        "sys.exit(pretrain.main(sys.argv[1:]))"
    )

    def run(name, deepspeed_config, *settings):
        command = [sys.executable, "-c", program, "--config", recipe, "--deepspeed_config", deepspeed_config,
                   "--shards", shards, "--output", tmp_path / name, *settings]  # fmt: skip
        subprocess.run(command, cwd=ROOT, env={**os.environ, **launched()}, check=True)
        steps, held_out = (
            [json.loads(line) for line in (tmp_path / name / f"{file}.jsonl").read_text().splitlines()]
            for file in ("metrics", "validation")
        )
        return [held_out[-1]["loss"], *(step[key] for step in steps for key in ("loss", "grad_norm"))]

    return run


@pytest.mark.slow
def test_the_trainer_learns_as_it_does_without(train, deepspeed_config):
    """In float32 without dropout."""
    config = deepspeed_config(bf16=None, data_types=None, zero_optimization={"stage": 0})
    settings = ["model.hidden_dropout_prob=0", "model.attention_probs_dropout_prob=0", "train.max_steps=3",
                "phases.0.micro_batch_size=8", "log.validate_every=3"]  # fmt: skip
    ours, theirs = (train(fused, config, *settings, f"train.fused={fused}") for fused in ("true", "false"))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    assert ours != theirs, "other kernels round otherwise"


@pytest.mark.slow
def test_a_resume_has_the_bits_of_a_run_that_was_not_stopped(train, deepspeed_config):
    """In bfloat16 with dropout, under ZeRO, two micro-batches a step, the losses compiled."""
    settings = ["train.fused=true", "train.compile=true", "model.num_hidden_layers=1", "log.validate_every=3",
                "phases.0.global_batch_size=4", "log.validation_samples=2"]  # fmt: skip
    whole = train("whole", deepspeed_config(), *settings, "train.max_steps=3")
    train("stopped", deepspeed_config(), *settings, "train.max_steps=2")
    assert train("stopped", deepspeed_config(), *settings, "train.max_steps=3") == whole
    assert len(whole) == 7
