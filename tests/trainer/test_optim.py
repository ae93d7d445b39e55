import copy
import math

import pytest
import torch

from tests.trainer import reference
from trainer.model import BertConfig, BertForPreTraining
from trainer.optim import Adam, Lamb, OptimizerConfig, build_optimizer, parameter_groups
from trainer.ownership import Owned
from trainer.sharded_state import Fragment


def gradients(step, shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(step), dtype=torch.float64)


def run(optimizer, parameter, steps=20):
    for step in range(steps):
        parameter.grad = gradients(step, parameter.shape)
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * (1 + step)
        optimizer.step()
    return parameter.detach()


def new_parameter():
    return torch.nn.Parameter(gradients(99, (5, 3)))


def new_layer():
    layer = torch.nn.Linear(3, 5).double()
    layer.weight.data, layer.bias.data = gradients(99, (5, 3)), gradients(98, (5,))
    return layer


def test_with_bias_correction_it_is_torchs_adamw():
    ours, theirs = new_parameter(), new_parameter()
    run(Adam([ours], OptimizerConfig(name="adamw", beta2=0.98, eps=1e-3, weight_decay=0.1)), ours)
    run(torch.optim.AdamW([theirs], betas=(0.9, 0.98), eps=1e-3, weight_decay=0.1), theirs)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_without_it_is_googles_adam_as_the_formula_has_it():
    """optimization.py, AdamWeightDecayOptimizer: m / (sqrt(v) + eps) + decay * p, times the learning rate."""
    ours = new_parameter()
    run(Adam([ours], OptimizerConfig()), ours)
    p = new_parameter().detach()
    m, v = torch.zeros_like(p), torch.zeros_like(p)
    for step in range(20):
        g = gradients(step, p.shape)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        p = p - 1e-2 * (1 + step) * (m / (v.sqrt() + 1e-6) + 0.01 * p)
    torch.testing.assert_close(ours.detach(), p, rtol=1e-12, atol=1e-12)


def test_a_restored_state_goes_on_exactly():
    whole = new_parameter()
    run(Adam([whole], OptimizerConfig()), whole)
    first = new_parameter()
    optimizer = Adam([first], OptimizerConfig())
    run(optimizer, first, steps=20)
    twin = torch.nn.Parameter(first.detach().clone())
    restored = Adam([twin], OptimizerConfig())
    restored.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for optimizer_, parameter in ((optimizer, first), (restored, twin)):
        parameter.grad = gradients(21, parameter.shape)
        optimizer_.step()
    assert torch.equal(first, twin)


def test_biases_and_layer_norms_are_not_decayed_and_everything_else_is():
    model = BertForPreTraining(BertConfig(vocab_size=16, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
                                          intermediate_size=16, max_position_embeddings=8))  # fmt: skip
    decayed, undecayed = parameter_groups(model, 0.01)
    assert (decayed["weight_decay"], undecayed["weight_decay"]) == (0.01, 0.0)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    of_group = [sorted(names[id(p)] for p in group["params"]) for group in (decayed, undecayed)]
    assert all(name.endswith("weight") and "norm" not in name for name in of_group[0])
    assert all(name.endswith("bias") or "norm" in name for name in of_group[1])
    assert sorted(of_group[0] + of_group[1]) == sorted(names.values())
    assert "bert.embeddings.word.weight" in of_group[0]


def test_every_bias_of_an_lstm_is_not_decayed():
    """torch calls them bias_ih_l0 and bias_hh_l0_reverse; google's rule looks for the word anywhere in a name."""
    lstm = torch.nn.LSTM(3, 4, bidirectional=True)
    decayed, undecayed = parameter_groups(lstm, 0.01)
    names = {id(parameter): name for name, parameter in lstm.named_parameters()}
    of_group = [{names[id(p)].split("_")[0] for p in group["params"]} for group in (decayed, undecayed)]
    assert of_group == [{"weight"}, {"bias"}]


@pytest.mark.parametrize("weight_decay", [0.01, 0.0])
@pytest.mark.parametrize("bounds", [(0.0, math.inf), (0.01, 0.3), (2.0, math.inf)])
def test_lamb_is_the_papers(bounds, weight_decay):
    """The ratio is for the matrix, decayed or not, and not for the bias."""
    config = OptimizerConfig(name="lamb", min_trust_ratio=bounds[0], max_trust_ratio=bounds[1])
    groups = [parameter_groups(new_layer(), weight_decay) for _ in range(2)]
    optimizers = (
        build_optimizer(groups[0], config),
        reference.Lamb(groups[1], lambda r: min(max(r, bounds[0]), bounds[1])),
    )
    for step in range(20):
        for optimizer in optimizers:
            for number, group in enumerate(optimizer.param_groups):
                group["lr"] = 1e-2
                (parameter,) = group["params"]
                parameter.grad = gradients(step + 100 * number, parameter.shape)
            optimizer.step()
    for ours, theirs in zip(*groups, strict=True):
        torch.testing.assert_close(ours["params"][0], theirs["params"][0], rtol=1e-12, atol=1e-12)


def lamb_step(start, gradient, **settings):
    """What one update adds to a bias."""
    layer = torch.nn.Linear(2, len(start)).double()
    layer.bias.data, layer.bias.grad = start.clone(), gradient
    optimizer = build_optimizer(parameter_groups(layer, 0.01), OptimizerConfig(name="lamb", **settings))
    for group in optimizer.param_groups:
        group["lr"] = 0.5
    optimizer.step()
    return layer.bias.detach() - start


def test_lamb_s_ratio_is_for_biases_too_where_that_is_asked_for():
    start, gradient = gradients(98, (5,)), gradients(1, (5,))
    plain, adapted = lamb_step(start, gradient), lamb_step(start, gradient, adapt_undecayed=True)
    ratio = start.norm() / (plain / 0.5).norm()
    assert abs(ratio - 1) > 0.01
    torch.testing.assert_close(adapted, plain * ratio, rtol=1e-9, atol=0)


def test_lamb_s_ratio_is_1_where_there_is_none():
    """A ratio of 0 would leave a bias at the zeros that it begins with, and without a gradient it would be 0 / 0."""
    zeros, gradient = torch.zeros(5, dtype=torch.float64), gradients(1, (5,))
    moved = lamb_step(zeros, gradient, adapt_undecayed=True)
    assert moved.all()
    assert torch.equal(moved, lamb_step(zeros, gradient))
    assert not lamb_step(gradients(98, (5,)), zeros, adapt_undecayed=True).any()


def test_lamb_moves_a_single_number_by_its_own_size_however_small():
    """The ratio is |w| / |u| and the step u, whose size is about 1; so what is left of it is its sign."""
    start = torch.tensor([1e-3], dtype=torch.float64)
    moved = lamb_step(start, torch.tensor([7.0], dtype=torch.float64), adapt_undecayed=True)
    torch.testing.assert_close(moved, -0.5 * start, rtol=1e-12, atol=0)


def test_lamb_s_ratio_is_right_for_millions_of_numbers():
    """As an embedding has. Their squares, summed in float32, are wrong by several in a thousand."""
    start = torch.full((1 << 22,), 0.1)
    parameter = torch.nn.Parameter(start.clone())
    parameter.grad = torch.ones_like(start)
    Lamb([{"params": [parameter], "weight_decay": 0.0, "lr": 0.5}], OptimizerConfig(name="lamb")).step()
    torch.testing.assert_close(parameter.detach(), 0.5 * start, rtol=1e-5, atol=0)


def test_lamb_without_bias_correction_takes_the_moments_as_they_are():
    """After one step they are 0.1 g and 0.001 g^2."""
    start, gradient = gradients(98, (5,)), gradients(1, (5,))
    expected = -0.5 * 0.1 * gradient / ((0.001 * gradient**2).sqrt() + 1e-6)
    moved = lamb_step(start, gradient, bias_correction=False)
    torch.testing.assert_close(moved, expected, rtol=1e-12, atol=0)


def test_a_parameter_in_fragments_has_the_ratio_of_the_whole():
    """Two ranks hold a flat tensor of two parameters, cut in the middle of the second; each sees only its half."""
    config = OptimizerConfig(name="lamb")
    first, second = new_parameter(), torch.nn.Parameter(gradients(98, (7, 2)))
    whole = Lamb([{"params": [first, second], "weight_decay": 0.01, "lr": 0.1}], config)
    flat = torch.cat([first.detach().reshape(-1), second.detach().reshape(-1)])
    halves = [torch.nn.Parameter(flat[:20].clone()), torch.nn.Parameter(flat[20:].clone())]
    fragments = [[Fragment(0, 15, "a", 0), Fragment(15, 5, "b", 0)], [Fragment(0, 9, "b", 5)]]
    first.grad, second.grad = gradients(1, first.shape), gradients(2, second.shape)
    grads = torch.cat([first.grad.reshape(-1), second.grad.reshape(-1)])
    halves[0].grad, halves[1].grad = grads[:20].clone(), grads[20:].clone()

    sums = []  # the first go of each rank leaves its own sums, the second has the total

    def own_sums(values):
        sums.append(values.clone())

    for half, own in zip(halves, fragments, strict=True):
        rank = Lamb([{"params": [half], "weight_decay": 0.01, "lr": 0.0}], config)
        rank.partition([Owned(half, own, ["a", "b"])], own_sums, {})
        rank.step()
    total = sums[0] + sums[1]
    for half, own in zip(halves, fragments, strict=True):
        rank = Lamb([{"params": [half], "weight_decay": 0.01, "lr": 0.1}], config)
        rank.partition([Owned(half, own, ["a", "b"])], lambda values: values.copy_(total), {})
        rank.step()
    whole.step()
    expected = torch.cat([first.detach().reshape(-1), second.detach().reshape(-1)])
    torch.testing.assert_close(torch.cat([half.detach() for half in halves]), expected, rtol=1e-12, atol=1e-12)


def test_queries_keys_and_values_have_a_ratio_each_wherever_they_are_cut():
    """As where they are three parameters, as in google's and NVIDIA's models."""
    config = OptimizerConfig(name="lamb")
    three = [torch.nn.Parameter(scale * gradients(90 + i, (4, 4))) for i, scale in enumerate((1.0, 0.1, 3.0))]
    bias = torch.nn.Parameter(gradients(98, (5,)))
    for i, parameter in enumerate((*three, bias)):
        parameter.grad = gradients(i, parameter.shape)
    flat, slope = (
        torch.cat([x.reshape(-1) for x in each])
        for each in ([p.detach().clone() for p in (*three, bias)], [p.grad for p in (*three, bias)])
    )
    Lamb([{"params": [*three, bias], "weight_decay": 0.01, "lr": 0.1}], config).step()
    expected = torch.cat([parameter.detach().reshape(-1) for parameter in (*three, bias)])

    def update(begin, end, add):
        """What a rank makes of its part of the flat tensor."""
        part = torch.nn.Parameter(flat[begin:end].clone())
        part.grad = slope[begin:end].clone()
        held = [(name, max(first, begin), min(last, end), first) for name, first, last in (("a", 0, 48), ("b", 48, 53))]
        fragments = [
            Fragment(low - begin, high - low, name, low - first) for name, low, high, first in held if low < high
        ]
        rank = Lamb([{"params": [part], "weight_decay": 0.01, "lr": 0.1}], config)
        rank.partition([Owned(part, fragments, ["a", "b"])], add, {"a": [16, 16, 16]})
        rank.step()
        return part.detach()

    for cut in (53, 16, 20, 40, 48, 50):
        sums = []
        for share in ((0, cut), (cut, 53)):
            update(*share, lambda values, sums=sums: sums.append(values.clone()))
        found = [update(*share, lambda values, sums=sums: values.copy_(sum(sums))) for share in ((0, cut), (cut, 53))]
        torch.testing.assert_close(torch.cat(found), expected, rtol=1e-12, atol=1e-12)


def test_a_group_without_parameters_is_none():
    (group,) = parameter_groups(torch.nn.Embedding(3, 2), 0.01)
    assert group["weight_decay"] == 0.01


def test_what_is_not_trained_is_not_decayed():
    layer = new_layer()
    (group,) = parameter_groups(layer, 0.01, [layer.weight])
    assert (group["weight_decay"], group["undecayed"], len(group["params"])) == (0.0, True, 2)


@pytest.mark.parametrize("name", ["adamw", "lamb"])
def test_a_group_without_gradients_stays_as_it_is(name):
    layer = new_layer()
    optimizer = build_optimizer(parameter_groups(layer, 0.01), OptimizerConfig(name=name))
    layer.bias.grad = gradients(1, (5,))
    for group in optimizer.param_groups:
        group["lr"] = 1.0
    optimizer.step()
    assert torch.equal(layer.weight, new_layer().weight)
    assert not torch.equal(layer.bias, new_layer().bias)


def test_the_recipes_names():
    parameter = new_parameter()
    for name, kind in (("bert_adam", Adam), ("adamw", Adam), ("lamb", Lamb)):
        assert type(build_optimizer([{"params": [parameter]}], OptimizerConfig(name=name))) is kind


@pytest.mark.parametrize(
    "bad",
    [
        {"beta1": 1.0},
        {"beta2": 1.0},
        {"eps": 0.0},
        {"weight_decay": -1.0},
        {"name": "lamb", "min_trust_ratio": -1.0},
        {"max_gradient_norm": -1.0},
        {"eps": math.inf},
        {"eps": math.nan},
        {"weight_decay": math.inf},
        {"max_gradient_norm": math.nan},
        {"max_gradient_norm": math.inf},
        {"name": "lamb", "min_trust_ratio": 2.0, "max_trust_ratio": 1.0},
        {"name": "lamb", "min_trust_ratio": math.inf},
        {"name": "adamw", "bias_correction": False},
        {"name": "bert_adam", "max_trust_ratio": 10.0},
        {"name": "bert_adam", "adapt_undecayed": True},
    ],
)
def test_impossible_constants_are_refused(bad):
    with pytest.raises(ValueError, match="optimizer"):
        OptimizerConfig(**bad)
