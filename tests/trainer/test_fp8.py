"""Products in eight bits, as a CPU emulates them; GPUs that have them are told apart by their names."""

import copy

import torch
from torch import Tensor, nn

from trainer import fp8, pretrain
from trainer.fp8 import to_fp8, why_not_fp8

CPU = torch.device("cpu")


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """To eight bits and back, the largest value of the tensor on the largest of the format."""
    scale = torch.finfo(dtype).max / x.abs().max()
    return (x * scale).to(dtype).float() / scale


def test_forward_and_backward_multiply_rounded_numbers():
    torch.manual_seed(0)
    layers = nn.ModuleList([nn.Linear(32, 48)])
    weight, bias = layers[0].weight.detach().clone(), layers[0].bias.detach().clone()
    x, upstream = torch.randn(64, 32, requires_grad=True), torch.randn(64, 48)
    to_fp8(layers, CPU)
    output = layers[0](x)
    output.backward(upstream)
    e4m3, e5m2 = torch.float8_e4m3fn, torch.float8_e5m2
    w8, x8, g8 = rounded(weight, e4m3), rounded(x.detach(), e4m3), rounded(upstream, e5m2)
    torch.testing.assert_close(output, x8 @ w8.T + bias, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(x.grad, g8 @ w8, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(layers[0].weight.grad, g8.T @ x8, rtol=1e-5, atol=1e-5)
    assert (output - (x @ weight.T + bias)).abs().max() > 1e-3, "nothing was rounded"


def test_parameters_stay_the_same_objects_under_the_same_names():
    layers = nn.ModuleList([nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16))])
    before = dict(layers.named_parameters())
    values = copy.deepcopy(before)
    to_fp8(layers, CPU)
    after = dict(layers.named_parameters())
    assert list(after) == list(before)
    assert all(after[name] is before[name] and after[name].equal(values[name]) for name in before)


def test_what_a_machine_lacks_is_named(monkeypatch):
    assert why_not_fp8(CPU) == ""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100-SXM4-80GB")
    lacks = "NVIDIA A100-SXM4-80GB has no products in eight bits; an L40S, H100 or later has"
    for capability, reason in (((8, 0), lacks), ((8, 9), ""), ((9, 0), "")):  # 8.9 is an L40S
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
        assert why_not_fp8(torch.device("cuda")).startswith(reason)
        assert bool(why_not_fp8(torch.device("cuda"))) == bool(reason)
    monkeypatch.setattr(fp8, "find_spec", lambda name: None)
    assert "pip install 'bert-pretraining[fp8]'" in why_not_fp8(CPU)


def test_without_torchao_nothing_is_written(monkeypatch, capsys, recipe, shards, deepspeed_config, tmp_path):
    monkeypatch.setattr(fp8, "find_spec", lambda name: None)
    given = {"config": recipe, "deepspeed_config": deepspeed_config(), "shards": shards, "output": tmp_path / "run"}
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    assert pretrain.main([*words, "train.fp8=true"]) == 2
    assert "error: train.fp8: torchao is not installed" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
