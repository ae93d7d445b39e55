import copy

import pytest
import torch

from trainer.model import BertConfig, BertForPreTraining
from trainer.optim import Adam, OptimizerConfig, build_optimizer, parameter_groups


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


def test_with_bias_correction_it_is_torchs_adamw():
    ours, theirs = new_parameter(), new_parameter()
    run(Adam([ours], betas=(0.9, 0.98), eps=1e-6, weight_decay=0.1, bias_correction=True), ours)
    run(torch.optim.AdamW([theirs], betas=(0.9, 0.98), eps=1e-6, weight_decay=0.1), theirs)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_without_it_is_googles_adam_as_the_formula_has_it():
    """optimization.py, AdamWeightDecayOptimizer: m / (sqrt(v) + eps) + decay * p, times the learning rate."""
    ours = new_parameter()
    run(Adam([ours], betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01), ours)
    p = new_parameter().detach()
    m, v = torch.zeros_like(p), torch.zeros_like(p)
    for step in range(20):
        g = gradients(step, p.shape)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        p = p - 1e-2 * (1 + step) * (m / (v.sqrt() + 1e-6) + 0.01 * p)
    torch.testing.assert_close(ours.detach(), p, rtol=1e-12, atol=1e-12)


def test_a_restored_state_goes_on_exactly():
    whole = new_parameter()
    run(Adam([whole]), whole)
    first = new_parameter()
    optimizer = Adam([first])
    run(optimizer, first, steps=20)
    twin = torch.nn.Parameter(first.detach().clone())
    restored = Adam([twin])
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


def test_the_recipes_names():
    parameter = new_parameter()
    for name, corrected in (("bert_adam", False), ("adamw", True)):
        optimizer = build_optimizer([{"params": [parameter], "weight_decay": 0.0}], OptimizerConfig(name=name))
        assert optimizer.bias_correction is corrected


@pytest.mark.parametrize("bad", [{"beta1": 1.0}, {"eps": 0.0}, {"weight_decay": -1.0}, {"max_gradient_norm": -1.0}])
def test_impossible_constants_are_refused(bad):
    with pytest.raises(ValueError, match="optimizer"):
        OptimizerConfig(**bad)
