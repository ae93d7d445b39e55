"""Products in 16 bits on processors without instructions for them, which this one is taken for."""

import pytest
import torch
from torch.nn import functional as F

from trainer import products
from trainer.products import Linear, baddbmm, linear, matmul


@pytest.fixture(autouse=True)
def slow(monkeypatch):
    monkeypatch.setattr(products, "LACKING", {torch.bfloat16, torch.float16})


@pytest.fixture
def draw():
    generator = torch.Generator().manual_seed(0)
    return lambda *shape, dtype=torch.bfloat16: torch.randn(*shape, generator=generator).to(dtype)


def error(found, exact):
    return float((found.double() - exact.double()).norm() / exact.double().norm())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_linear_layer_is_rounded_once(draw, dtype):
    x, weight, bias = (draw(*shape, dtype=dtype) for shape in ((24, 96), (40, 96), (40,)))
    assert torch.equal(linear(x, weight, bias), F.linear(x.float(), weight.float(), bias.float()).to(dtype))


@pytest.mark.parametrize("shape", [(24, 96), (3, 8, 96), (96,)])
def test_gradients_of_a_linear_layer_are_float64s(draw, shape):
    x, weight, bias = given = [tensor.requires_grad_() for tensor in (draw(*shape), draw(40, 96), draw(40))]
    upstream = draw(*shape[:-1], 40)
    linear(x, weight, bias).backward(upstream)
    exact = [tensor.detach().double().requires_grad_() for tensor in given]
    F.linear(*exact).backward(upstream.double())
    for tensor, reference in zip(given, exact, strict=True):
        assert tensor.grad.dtype == torch.bfloat16
        assert error(tensor.grad, reference.grad) < 3e-3


@pytest.mark.parametrize("frozen", range(3))
def test_what_needs_no_gradient_gets_none(draw, frozen):
    given = [draw(4, 96), draw(40, 96), draw(40)]
    for place, tensor in enumerate(given):
        tensor.requires_grad_(place != frozen)
    linear(*given).sum().backward()
    assert [tensor.grad is None for tensor in given] == [place == frozen for place in range(3)]


def test_autocast_asks_for_bfloat16_and_float32_stays_exact(draw):
    layer, x = Linear(96, 40), draw(24, 96, dtype=torch.float32)
    assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(x)
    assert torch.equal(found, linear(x.bfloat16(), layer.weight.bfloat16(), layer.bias.bfloat16()))
    found.sum().backward()
    assert layer.weight.grad.dtype == torch.float32
    assert error(layer.weight.grad, x.sum(dim=0).expand(40, 96)) < 3e-3


def test_autocast_rounds_what_is_multiplied(draw):
    a, b = (draw(6, *shape, dtype=torch.float32) for shape in ((24, 96), (96, 40)))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(matmul(a, b), matmul(a.bfloat16(), b.bfloat16()))


@pytest.mark.parametrize("region", [False, True])
def test_batches_of_products_are_rounded_once(draw, region):
    a, b, bias = draw(6, 24, 96), draw(6, 96, 40), draw(6, 24, 40)
    exact = a.float() @ b.float()
    with torch.autocast("cpu", torch.bfloat16, enabled=region):
        assert torch.equal(matmul(a, b), exact.bfloat16())
        assert torch.equal(matmul(a.float(), b.float()), exact.bfloat16() if region else exact)
        assert torch.equal(matmul(a.double(), b.double()), a.double() @ b.double())
        assert torch.equal(baddbmm(bias, a, b, alpha=0.5), (bias.float() + exact * 0.5).bfloat16())
        assert torch.equal(baddbmm(bias, a, b, beta=0.0, alpha=0.5), (exact * 0.5).bfloat16())
