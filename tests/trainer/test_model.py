"""The model by itself: its shape, its initial weights, its losses, and what its options may not change."""

import collections
import dataclasses
import math
import re
import subprocess
import sys
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import trainer.model as model_module
from trainer.model import (
    EMPTY_SLOT,
    BertConfig,
    BertForPreTraining,
    BertModel,
    initialize,
    parameter_count,
    parameter_shapes,
)
from trainer.model import pretraining_losses as losses_of
from trainer.packing import PackedTokens

TINY = BertConfig(
    vocab_size=53,
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=40,
    max_position_embeddings=20,
)
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
LENGTHS = torch.tensor([9, 4, 1])  # tokens of each sequence


def tiny(**options: object) -> BertConfig:
    return dataclasses.replace(TINY, **options)


def batch(lengths: Tensor = LENGTHS, seed: int = 0) -> PackedTokens:
    generator = torch.Generator().manual_seed(seed)
    size = (int(lengths.sum()),)
    ids = torch.randint(1, TINY.vocab_size, size, generator=generator)
    return PackedTokens.from_flat(ids, torch.randint(0, 2, size, generator=generator), lengths)


POSITIONS = torch.tensor([1, 8, 9, 12, 13, 0])
MLM_LABELS = torch.tensor([7, 0, 52, 3, 7, EMPTY_SLOT])
NSP_LABELS = torch.tensor([0, 1, EMPTY_SLOT])


def loss_and_gradients(model: nn.Module, seed: int = 0) -> tuple[Tensor, dict[str, Tensor]]:
    torch.manual_seed(seed)
    mlm_logits, nsp_logits = model(batch(), POSITIONS)
    losses = losses_of(mlm_logits, MLM_LABELS, nsp_logits, NSP_LABELS)
    loss = losses.mlm_loss + losses.nsp_loss
    model.zero_grad()
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}


class TestConfig:
    def test_default_is_large(self):
        config = BertConfig(vocab_size=30522)
        assert (config.num_hidden_layers, config.hidden_size, config.num_attention_heads) == (24, 1024, 16)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"hidden_size": 25}, "hidden_size 25 is not divisible by num_attention_heads "),
            ({"num_attention_heads": 5}, "is not divisible by num_attention_heads 5"),
            ({"num_hidden_layers": 0}, "num_hidden_layers is 0: it must be positive, and at most 16,777,216"),
            ({"vocab_size": -1}, "vocab_size is -1: it must be positive"),
            ({"hidden_size": 10**9}, "hidden_size is 1000000000: it must be positive, and at most 16,777,216"),
            ({"layer_norm_eps": 0.0}, "layer_norm_eps is 0.0: it must be positive"),
            ({"initializer_range": math.nan}, "initializer_range is nan"),
            ({"initializer_range": math.inf}, "initializer_range is inf"),
            ({"hidden_dropout_prob": 1.0}, "hidden_dropout_prob is 1.0: it must be at least 0 and below 1"),
            ({"attention_probs_dropout_prob": -0.1}, "attention_probs_dropout_prob is -0.1"),
            ({"hidden_act": "swish"}, "hidden_act 'swish' is unknown: choose one of gelu, gelu_new, relu"),
            ({"pad_token_id": 53}, "pad_token_id 53 is outside the vocabulary of 53"),
        ],
    )
    def test_refuses_what_can_not_be_built_and_says_what_to_do(self, options, message):
        with pytest.raises(ValueError, match=message):
            tiny(**options)

    @pytest.mark.parametrize(
        ("config", "count"),
        [
            (BertConfig(30522), 336_226_108),  # google's LARGE, with its heads
            (BertConfig(30522, 768, 12, 12, 3072), 110_106_428),  # and BASE
        ],
    )
    def test_parameter_count_of_the_published_sizes(self, config, count):
        assert parameter_count(config) == count
        with torch.device("meta"):  # without memory
            model = BertForPreTraining(config, seed=None)
        assert sum(p.numel() for p in model.parameters()) == count

    @pytest.mark.parametrize("config", [TINY, tiny(pre_layer_norm=True), tiny(type_vocab_size=5, num_hidden_layers=1)])
    def test_shapes_and_count_of_any_size(self, config):
        shapes = [(name, p.shape) for name, p in BertForPreTraining(config).named_parameters()]
        assert list(parameter_shapes(config).items()) == shapes
        assert parameter_count(config) == sum(shape.numel() for _, shape in shapes)


class TestInitialization:
    def test_biases_norms_and_matrices(self):
        for name, parameter in BertForPreTraining(TINY).named_parameters():
            if name.endswith("bias"):
                assert not parameter.any(), name
            elif "norm" in name:
                assert (parameter == 1).all(), name
            else:
                assert parameter.abs().max() <= 0.04, name
                assert parameter.count_nonzero() == parameter.numel(), name

    def test_matrices_follow_a_normal_cut_at_two_standard_deviations(self):
        config = tiny(vocab_size=20_000)
        words = BertForPreTraining(config, seed=3).bert.embeddings.word.weight.detach().double() / 0.02
        # A normal within two standard deviations, from tables: 95.45 % of it, variance 0.77374.
        assert words.mean().item() == pytest.approx(0, abs=0.006)  # four standard errors of 480,000 values
        assert words.var().item() == pytest.approx(0.77374, abs=0.004)
        within_one = (words.abs() < 1).double().mean().item()
        assert within_one == pytest.approx(0.68269 / 0.95450, abs=0.003)
        assert 1.99 < words.abs().max().item() <= 2

    def test_no_two_matrices_begin_alike(self):
        """As they would if each had a generator of its own with the one seed."""
        matrices = [parameter for parameter in BertForPreTraining(TINY).parameters() if parameter.ndim > 1]
        assert len({tuple(matrix.flatten()[:4].tolist()) for matrix in matrices}) == len(matrices)

    def test_seed_decides_and_torch_is_left_alone(self):
        before = torch.get_rng_state()
        initialize(model := BertModel(TINY), TINY.initializer_range, seed=5)
        torch.set_rng_state(before)
        initialize(model, TINY.initializer_range, seed=5)
        assert torch.equal(torch.get_rng_state(), before)
        assert_same(model, BertForPreTraining(TINY, seed=5).bert)
        assert not torch.equal(
            model.embeddings.word.weight, BertForPreTraining(TINY, seed=6).bert.embeddings.word.weight
        )

    @pytest.mark.parametrize("seed", [3, None])
    def test_nothing_is_drawn_but_by_the_seed(self, seed):
        before = torch.get_rng_state()
        BertForPreTraining(TINY, seed=seed)
        assert torch.equal(torch.get_rng_state(), before)

    def test_no_function_of_onemkl_is_first_called_by_several_threads(self):
        """Some of them may then compute with little accuracy: pytorch #188792, seen in 7 of 1,154 processes."""
        program = """
import torch
from torch.utils._python_dispatch import TorchDispatchMode
class FirstCalls(TorchDispatchMode):
    sizes = {}
    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        name = function.overloadpacket.__name__.removesuffix("_")
        if name in ("erfinv", "sqrt", "tanh"):
            self.sizes.setdefault(name, []).append(arguments[0].numel())
        return function(*arguments, **(options or {}))
with FirstCalls():
    from trainer.model import BertConfig, BertForPreTraining
    BertForPreTraining(BertConfig(50, 32, 1, 2, 64))
print({name: sizes[0] for name, sizes in FirstCalls.sizes.items()}, max(FirstCalls.sizes["erfinv"]) > 1)
"""
        run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True)
        assert run.stdout.strip() == "{'erfinv': 1, 'sqrt': 1, 'tanh': 1} True"

    def test_same_weights_in_any_dtype_and_with_any_number_of_threads(self):
        config = tiny(vocab_size=5000)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        one = BertForPreTraining(config)
        torch.set_num_threads(2)
        two = BertForPreTraining(config)
        torch.set_num_threads(threads)
        assert_same(one, two)
        half = BertForPreTraining(config, seed=None).bfloat16()
        initialize(half, config.initializer_range, seed=0)
        assert_same(half, one.bfloat16())


def assert_same(a: nn.Module, b: nn.Module) -> None:
    assert a.state_dict().keys() == b.state_dict().keys()
    for name, tensor in a.state_dict().items():
        assert torch.equal(tensor, b.state_dict()[name]), name


class TestForward:
    def test_shapes(self):
        mlm_logits, nsp_logits = BertForPreTraining(TINY)(batch(), POSITIONS)
        assert mlm_logits.shape == (6, 53)
        assert nsp_logits.shape == (3, 2)

    def test_positions_choose_rows_and_nothing_else(self):
        model = BertForPreTraining(TINY).double().eval()
        everywhere, _ = model(batch(), torch.arange(14))
        chosen, _ = model(batch(), POSITIONS)
        torch.testing.assert_close(chosen, everywhere[POSITIONS], rtol=0, atol=1e-12)

    def test_refuses_a_mask_in_place_of_positions(self):
        mask = torch.zeros(14, dtype=torch.bool).index_fill(0, POSITIONS, True)
        with pytest.raises(ValueError, match=r"positions is a mask: .* mask.nonzero\(\).squeeze\(1\)"):
            BertForPreTraining(TINY)(batch(), mask)

    def test_rows_added_to_the_vocabulary_for_a_gpu_change_nothing(self, monkeypatch):
        model = BertForPreTraining(tiny(**NO_DROPOUT)).double()
        loss, gradients = loss_and_gradients(model)
        monkeypatch.setitem(model_module.VOCABULARY_MULTIPLES, "cpu", 64)
        same_loss, same_gradients = loss_and_gradients(model)
        assert model(batch(), POSITIONS)[0].shape == (6, 53)
        torch.testing.assert_close(same_loss, loss, rtol=0, atol=1e-12)
        for name, gradient in gradients.items():
            torch.testing.assert_close(same_gradients[name], gradient, rtol=0, atol=1e-12)

    def test_the_last_layer_works_for_selected_tokens_only_and_gives_the_same(self):
        model = BertForPreTraining(TINY).double().bert.eval()
        tokens, rows = batch(), torch.tensor([0, 3, 8, 9, 12])
        torch.testing.assert_close(model(tokens, tokens.select(rows)), model(tokens)[rows], rtol=0, atol=1e-12)

    def test_neighbours_change_nothing(self):
        model = BertForPreTraining(TINY).double().eval()
        tokens = batch()
        together = model.bert(tokens)
        for begin, end in pairwise(tokens.bounds.tolist()):
            rows = slice(begin, end)
            alone = PackedTokens.from_flat(
                tokens.input_ids[rows], tokens.token_type_ids[rows], torch.tensor([end - begin])
            )
            torch.testing.assert_close(together[rows], model.bert(alone), rtol=0, atol=1e-12)

    def test_what_fills_up_changes_nothing_but_has_a_row_of_its_own(self):
        model = BertForPreTraining(TINY).double().eval()
        tokens = batch()
        rounded = tokens.round_up(32)
        (mlm, nsp), (rounded_mlm, rounded_nsp) = model(tokens, POSITIONS), model(rounded, POSITIONS)
        torch.testing.assert_close(mlm, rounded_mlm, rtol=0, atol=1e-12)
        torch.testing.assert_close(nsp, rounded_nsp[:3], rtol=0, atol=1e-12)
        assert rounded_nsp.isfinite().all()

    def test_a_left_to_right_model_does_not_see_what_follows(self):
        model = BertForPreTraining(tiny(is_decoder=True)).double().eval()
        tokens = batch()
        before = model.bert(tokens)
        changed = dataclasses.replace(tokens, input_ids=tokens.input_ids.clone())
        changed.input_ids[5] += 1
        after = model.bert(changed)
        same = (before == after).all(dim=1)
        assert same.tolist() == [True] * 5 + [False] * 4 + [True] * 5  # sequences of 9, 4 and 1

    @pytest.mark.parametrize("pre_layer_norm", [False, True])
    def test_hidden_states_end_with_what_forward_returns(self, pre_layer_norm):
        model = BertForPreTraining(tiny(pre_layer_norm=pre_layer_norm)).bert.eval()
        states = model.hidden_states(batch())
        assert len(states) == TINY.num_hidden_layers + 1
        assert torch.equal(states[0], model.embeddings(batch()))
        assert torch.equal(states[-1], model(batch()))

    def test_a_model_of_one_type_tells_segments_apart_by_what_stands_between_them(self):
        model = BertForPreTraining(tiny(type_vocab_size=1)).eval()
        tokens = batch()
        first = dataclasses.replace(tokens, token_type_ids=torch.zeros_like(tokens.token_type_ids))
        assert tokens.token_type_ids.any()
        assert torch.equal(model(tokens, POSITIONS)[0], model(first, POSITIONS)[0])

    def test_refuses_more_tokens_than_positions(self):
        with pytest.raises(ValueError, match="a sequence of 21 tokens, but max_position_embeddings is 20"):
            BertForPreTraining(TINY)(batch(torch.tensor([21])), POSITIONS)

    def test_nothing_to_predict_is_no_loss_and_no_gradient(self):
        """What a rank without samples of its own gets, so that it keeps step with the others."""
        model = BertForPreTraining(TINY)
        mlm_logits, nsp_logits = model(batch(), torch.empty(0, dtype=torch.int64))
        empty = torch.full((3,), EMPTY_SLOT)
        losses = losses_of(mlm_logits, empty[:0], nsp_logits, empty)
        assert list(losses) == [0, 0, 0, 0]
        (losses.mlm_loss + losses.nsp_loss).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert not parameter.grad.any(), name


class TestLosses:
    LOGITS = torch.tensor([[0.0, math.log(3)], [0.0, math.log(3)], [5.0, 0.0], [0.0, 0.0]])
    LABELS = torch.tensor([1, 0, EMPTY_SLOT, 0])

    def test_are_sums_over_what_is_labelled(self):
        losses = losses_of(self.LOGITS, self.LABELS, self.LOGITS[:2], self.LABELS[:2])
        assert losses.mlm_loss.item() == pytest.approx(math.log(4 / 3) + math.log(4) + math.log(2))
        assert losses.nsp_loss.item() == pytest.approx(math.log(4 / 3) + math.log(4))
        assert losses.mlm_correct.item() == 2  # the first, and the tie of the last goes to class 0
        assert losses.nsp_correct.item() == 1

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    def test_are_float32_whatever_the_logits(self, dtype):
        torch.manual_seed(0)
        logits, labels = (4 * torch.randn(300, 1000)).to(dtype), torch.randint(0, 1000, (300,))
        losses = losses_of(logits, labels, logits[:, :2], labels % 2)
        assert {x.dtype for x in losses} == {torch.float32}
        exact = F.cross_entropy(logits.double(), labels, reduction="sum").item()
        assert losses.mlm_loss.item() == pytest.approx(exact, rel=1e-6)

    def test_an_empty_slot_gets_no_gradient(self):
        logits = self.LOGITS.clone().requires_grad_()
        losses_of(logits, self.LABELS, self.LOGITS[:2], self.LABELS[:2]).mlm_loss.backward()
        assert logits.grad.any(dim=1).tolist() == [True, True, False, True]


class TestDropout:
    def test_follows_the_global_generator_and_only_in_training(self):
        model = BertForPreTraining(TINY)
        first, again, other = (loss_and_gradients(model, seed)[0] for seed in (1, 1, 2))
        assert first == again
        assert first != other
        model.eval()
        assert loss_and_gradients(model, 1)[0] == loss_and_gradients(model, 2)[0]

    @pytest.mark.parametrize("which", ["hidden_dropout_prob", "attention_probs_dropout_prob"])
    def test_each_probability_counts(self, which):
        model = BertForPreTraining(tiny(**NO_DROPOUT | {which: 0.5}))
        assert loss_and_gradients(model, 1)[0] != loss_and_gradients(model, 2)[0]

    def test_drops_its_share_after_the_embeddings_and_before_both_residuals_of_every_layer(self):
        """As google does."""
        bert = BertForPreTraining(tiny(hidden_dropout_prob=0.25, attention_probs_dropout_prob=0.0)).bert
        parts = [bert.embeddings, *(part for layer in bert.layers for part in (layer.attention, layer.feed_forward))]
        dropped = []
        for part in parts:
            part.register_forward_hook(lambda _, __, made: dropped.append((made == 0).float().mean().item()))
        tokens = batch(torch.full((20,), 20))
        torch.manual_seed(0)
        bert.train()(tokens)
        assert dropped == pytest.approx([0.25] * len(parts), abs=0.02)  # four standard deviations
        dropped.clear()
        bert.eval()(tokens)
        assert dropped == [0.0] * len(parts)

    def test_zero_is_evaluation(self):
        model = BertForPreTraining(tiny(**NO_DROPOUT))
        assert loss_and_gradients(model, 1)[0] == loss_and_gradients(model.eval(), 2)[0]


def test_activation_checkpointing_changes_no_bit_of_loss_or_gradients():
    plain = BertForPreTraining(TINY)
    checkpointed = BertForPreTraining(tiny(activation_checkpointing=True))
    loss, gradients = loss_and_gradients(plain)
    same_loss, same_gradients = loss_and_gradients(checkpointed)
    assert loss == same_loss
    for name, gradient in gradients.items():
        assert torch.equal(gradient, same_gradients[name]), name


@pytest.mark.parametrize("pre_layer_norm", [False, True])
def test_layers_are_those_of_torch(pre_layer_norm):
    """torch.nn.TransformerEncoder, an implementation of its own, has LayerNorm in both places."""
    config = tiny(pre_layer_norm=pre_layer_norm, **NO_DROPOUT)
    ours = BertForPreTraining(config).double().bert
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.normal_(0.1, 0.3)
    layer = nn.TransformerEncoderLayer(
        24, 3, 40, 0.0, "gelu", layer_norm_eps=1e-12, batch_first=True, norm_first=pre_layer_norm, dtype=torch.float64
    )
    theirs = nn.TransformerEncoder(
        layer, 2, ours.final_norm if pre_layer_norm else None, enable_nested_tensor=False, mask_check=False
    )
    modules = {
        "attention.qkv": "self_attn.in_proj_", "attention.out": "self_attn.out_proj.", "attention_norm": "norm1.",
        "feed_forward.up": "linear1.", "feed_forward.down": "linear2.", "feed_forward_norm": "norm2.",
    }  # fmt: skip
    for here, there in zip(ours.layers, theirs.layers, strict=True):
        there.load_state_dict(
            {f"{modules[k.rpartition('.')[0]]}{k.rpartition('.')[2]}": v for k, v in here.state_dict().items()}
        )
    tokens = batch()
    real = torch.arange(9) < LENGTHS[:, None]
    expected = theirs(tokens.pad(ours.embeddings(tokens)), src_key_padding_mask=~real)
    torch.testing.assert_close(ours(tokens), expected[real], rtol=0, atol=1e-9)


class TestBfloat16:
    """How DeepSpeed runs it: every parameter in bfloat16, LayerNorm's too."""

    def test_loss_and_gradients_stay_near_float32(self):
        model = BertForPreTraining(tiny(**NO_DROPOUT)).bfloat16()
        exact = BertForPreTraining(tiny(**NO_DROPOUT))
        exact.load_state_dict(model.state_dict())
        loss, gradients = loss_and_gradients(model)
        exact_loss, exact_gradients = loss_and_gradients(exact)
        assert loss.dtype == torch.float32
        assert loss.item() == pytest.approx(exact_loss.item(), rel=2e-3)
        assert {gradient.dtype for gradient in gradients.values()} == {torch.bfloat16}
        gradient, exact_gradient = (
            torch.cat([g.flatten().double() for g in each.values()]) for each in (gradients, exact_gradients)
        )
        assert (gradient - exact_gradient).norm() < 0.01 * exact_gradient.norm()

    def test_layer_norm_takes_its_statistics_in_float32(self):
        """In bfloat16, the mean of 1024 numbers near 100 would be off by more than their spread."""
        torch.manual_seed(0)
        x = (100 + torch.randn(4, 1024)).bfloat16()
        norm = nn.LayerNorm(1024, eps=1e-12).bfloat16()
        exact = F.layer_norm(x.double(), (1024,), eps=1e-12)
        torch.testing.assert_close(norm(x).double(), exact, rtol=2**-8, atol=1e-3)  # only the result is rounded


class Operations(TorchDispatchMode):
    """Counts operations by name."""

    def __init__(self):
        super().__init__()
        self.counts = collections.Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


class TestWithoutData:
    """On tensors of shapes alone the model takes the ways that it takes on a GPU, and no GPU is needed.

    Whatever asks for a value, such as how many tokens are real, raises here; on a GPU it would have the host wait
    for all that was asked of the device, once a layer.
    """

    META = torch.device("meta")

    def step(self, model: BertForPreTraining, tokens: PackedTokens, predictions: int) -> None:
        positions = torch.zeros(predictions, dtype=torch.int64, device=self.META)
        mlm_logits, nsp_logits = model(tokens.to(self.META), positions)
        assert mlm_logits.shape == (predictions, TINY.vocab_size)
        losses = losses_of(mlm_logits, positions, nsp_logits, torch.zeros(len(nsp_logits), device=self.META).long())
        (losses.mlm_loss + losses.nsp_loss).backward()

    def model(self, **options: object) -> BertForPreTraining:
        with self.META:
            return BertForPreTraining(tiny(**options), seed=None).bfloat16()

    @pytest.mark.parametrize("options", [
        {}, {"attention_probs_dropout_prob": 0.0}, {"is_decoder": True},
        {"attention_probs_dropout_prob": 0.0, "is_decoder": True}, {"pre_layer_norm": True},
    ])  # fmt: skip
    def test_no_operation_waits_for_a_value(self, options):
        model = self.model(**options)
        self.step(model, batch(), predictions=6)
        assert all(parameter.grad.shape == parameter.shape for parameter in model.parameters())

    @pytest.mark.parametrize("attention_dropout", [0.0, 0.1])
    def test_no_layer_adds_rows_up(self, attention_dropout):
        """Nor copies them by number: a GPU does so in any order, or asked for one order sorts the numbers first."""
        counts = []
        for layers in (2, 4):
            model = self.model(num_hidden_layers=layers, attention_probs_dropout_prob=attention_dropout)
            with Operations() as operations:
                self.step(model, batch(), predictions=6)
            counts.append(
                {name: count for name, count in operations.counts.items() if re.match("index_|scatter", name)}
            )
        assert counts[0]["index_select"] > 0
        added = [{name: count for name, count in each.items() if name != "index_select"} for each in counts]
        assert added[0] == added[1] == {"index_add": 3}  # what is predicted, once a step: of a row one is not zero

    @pytest.mark.parametrize("attention_dropout", [pytest.param(0.0, marks=pytest.mark.slow), 0.1])
    def test_a_compiled_layer_is_one_graph_for_all_layers_and_batches(self, attention_dropout):
        """One with all tokens and one with those that are read, each for the first size and for any."""
        graphs = []
        for layers in (2, 4):
            model = self.model(num_hidden_layers=layers, attention_probs_dropout_prob=attention_dropout)
            torch._dynamo.reset()
            counter = CompileCounter()
            model.bert.compile_layers(backend=counter, fullgraph=True)  # raises where there would be a second
            counts = []
            for first in (9, 5, 12, 2, 7, 16, 3):
                tokens = dataclasses.replace(batch(torch.tensor([first, 4, 1])), longest=16)
                self.step(model, tokens.round_up(8), predictions=8 + first // 8)
                counts.append(counter.frame_count)
            assert counts[-1] == counts[-3]
            graphs.append(counts[-1])
        assert graphs[0] == graphs[1] <= 5
