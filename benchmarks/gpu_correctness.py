"""Is what is fast on a GPU right? What dropout drops there, and how far gradients are from the formula in float32."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend

from gpu_rows import Bench
from trainer.attention import attention
from trainer.data import Batch
from trainer.determinism import use_deterministic_kernels
from trainer.fp8 import to_fp8
from trainer.graphs import InGraphs
from trainer.model import EMPTY_SLOT, BertConfig, BertForPreTraining, pretraining_losses
from trainer.objective import Objective
from trainer.packing import PackedTokens

OWN_KERNELS = "kernels of our own"
COMPARED = 4096  # tokens at most of the comparison with float32, whose formula stores every weight of attention
DEEP = 4  # layers of that comparison: the errors of 24 layers' roundings would hide a mistake in one
# How far off a gradient may be, as a multiple of the formula's in bfloat16. What eight bits round away is only told.
TOLERANCE, FREE = 2.0, 1e6


# --- Dropout ---


def dropout_in_effect(device: torch.device, probability: float = 0.1) -> list[dict[str, Any]]:
    """What attention drops by torch's choice of a kernel, without cuDNN's, and in the trainer, of bf16 with a mask.

    All scores are equal and the values are the identity, so that the weights themselves come out, and zeros can be
    counted: of 4 million weights, which tells 0.1 from 1/16 and from 1/8. Their mean, times their number, should be 1.
    """
    use_deterministic_kernels(False, device)  # cuDNN's kernel is none of those
    query, value, packed = _even_attention(device)
    mask = torch.zeros(len(query), 1, 1, query.shape[2], dtype=torch.bfloat16, device=device)
    torch.manual_seed(1)
    rows, values = (x.transpose(1, 2).flatten(0, 1) for x in (query, value))  # [B*S, N, H]
    weights = {"trainer.attention": attention(rows, rows, values, packed, None, probability)}
    for cudnn in (True, False):
        torch.backends.cuda.enable_cudnn_sdp(cudnn)
        backend = SDPBackend(torch._fused_sdp_choice(query, query, value, mask, probability)).name
        way = f"SDPA{'' if cudnn else ' without cuDNN'}: {backend}"
        weights[way] = F.scaled_dot_product_attention(query, query, value, mask, probability)
    torch.backends.cuda.enable_cudnn_sdp(True)
    return [_dropped(way, of_way, probability) for way, of_way in weights.items()]


def own_dropout_in_effect(device: torch.device, probability: float = 0.1) -> list[dict[str, Any]]:
    """As dropout_in_effect, what our own kernels drop."""
    from trainer.fused_attention import Attention, How  # its kernels want triton

    query, value, packed = _even_attention(device)
    rows, values = (x.transpose(1, 2).flatten(0, 1).flatten(1) for x in (query, value))  # [B*S, N*H]
    seed = torch.ones(1, dtype=torch.int64, device=device)
    how = How(packed, packed, query.shape[1], False, probability, seed)
    return [_dropped(OWN_KERNELS, Attention.apply(rows, rows, values, how), probability)]


def _even_attention(device: torch.device) -> tuple[Tensor, Tensor, PackedTokens]:
    """Queries, which are the keys too, values, [B, N, S, H], and the tokens, [B*S]."""
    size, heads, width = 64, 16, 64
    query = torch.zeros(size, heads, width, width, dtype=torch.bfloat16, device=device, requires_grad=True)
    value = torch.eye(width, dtype=torch.bfloat16, device=device).expand(size, heads, width, width)
    ids = torch.zeros(size * width, dtype=torch.int64)
    return query, value, PackedTokens.from_flat(ids, ids, torch.full((size,), width)).to(device)


def _dropped(way: str, weights: Tensor, probability: float) -> dict[str, Any]:
    weights = weights.detach().double()
    dropped, mean = float((weights == 0).double().mean()), float(weights.mean()) * weights.shape[-1]
    return {"way": way, "asked": probability, "dropped": dropped, "mean": mean}


# --- Rounding ---


FORMULA = "the formula, bfloat16"
Found = dict[str, Tensor]  # the loss, and gradients by parameter
Ways = Callable[[BertForPreTraining, Batch], dict[str, Found]]


def compare_with_float32(ways: Ways, length: int, bench: Bench, tolerance: float) -> dict[str, Any]:
    """Relative errors of loss and gradients in bfloat16, by some ways to compute them, against float32's formula.

    Dropout is off, no bias is zero, attention is sharp, and the batch is real text, so that every term counts.

    Raises:
        ArithmeticError: a gradient is further off than bfloat16 explains, or not a number.
    """
    batch_size = min(COMPARED // length, bench.batches[length])
    none = "model.hidden_dropout_prob=0.0", "model.attention_probs_dropout_prob=0.0"
    settings = *none, f"model.num_hidden_layers={DEEP}"
    recipe = bench.recipe(bench.best, length, *settings, batch=batch_size)
    use_deterministic_kernels(recipe.train.deterministic, bench.world.device)
    batch = bench.steps(bench.best, recipe)[0][0].to(bench.world.device)
    model = _random_model(recipe.model).to(bench.world.device)
    with mock.patch("trainer.attention._fastest", return_value="reference"):
        exact = _loss_and_gradients(model, batch)
        formula = _loss_and_gradients(model.bfloat16(), batch)
    errors = {
        way: {name: float((found[name] - x).norm() / x.norm()) for name, x in exact.items()}
        for way, found in {FORMULA: formula, **ways(model, batch)}.items()
    }
    usual = statistics.median(errors[FORMULA].values())  # some of few numbers are right by chance
    for way, off in errors.items():
        for name in exact:
            if not off[name] <= (allowed := tolerance * max(errors[FORMULA][name], usual)):
                raise ArithmeticError(
                    f"{way}: {name} is {off[name]:.1e} off float32's gradient, where bfloat16 explains {allowed:.1e}"
                )
    figures = {
        way: {"loss": off["loss"], "median": statistics.median(off.values()), "worst": max(off.values())}
        for way, off in errors.items()
    }
    return {"length": length, "samples": batch_size, "errors": figures}


def _random_model(config: BertConfig) -> BertForPreTraining:
    """In float32, of numbers that bfloat16 has too."""
    model, generator = BertForPreTraining(config, seed=3), torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
            else:
                parameter.mul_(64 / config.hidden_size**0.5)  # 2 for BERT-LARGE; scores of about 1.6 at any width
            parameter.copy_(parameter.bfloat16())
    return model


def by_operations(model: BertForPreTraining, batch: Batch) -> dict[str, Found]:
    """What torch's own operations find, with padding and without."""
    with mock.patch("trainer.attention._fastest", return_value="sdpa"):
        padded = _loss_and_gradients(model, batch)
    return {"SDPA with dropout 0": padded, "packed sequences": _loss_and_gradients(model, batch)}


def compiled(model: BertForPreTraining, batch: Batch) -> dict[str, Found]:
    """What torch.compile makes of the layers and of the losses."""
    model.bert.compile_layers()
    objective = Objective(model, batch.lengths.device, torch.compile(pretraining_losses))
    return {"packed sequences, compiled": _loss_and_gradients(model, batch, objective)}


def by_own_kernels(model: BertForPreTraining, batch: Batch) -> dict[str, Found]:
    """What kernels of our own find."""
    from trainer.fused import fuse  # its kernels want triton

    fuse(model.bert.layers, model.config)
    return {"packed sequences, kernels of our own": _loss_and_gradients(model, batch)}


def in_eight_bits(model: BertForPreTraining, batch: Batch) -> dict[str, Found]:
    """As compiled, with the layers' products in eight bits."""
    to_fp8(model.bert.layers, batch.lengths.device)
    return {f"{way}, eight bits": found for way, found in compiled(model, batch).items()}


def in_graphs(model: BertForPreTraining, batch: Batch) -> dict[str, Found]:
    """What kernels of our own find when they are replayed, of another batch than the one that was recorded."""
    from trainer.fused import fuse  # its kernels want triton

    fuse(model.bert.layers, model.config)
    objective = InGraphs(Objective(model, batch.lengths.device))
    tokens = replace(batch.tokens, input_ids=batch.tokens.input_ids.flip(0))
    _loss_and_gradients(model, replace(batch, tokens=tokens), objective)  # of which nothing may be left
    return {"kernels of our own in CUDA graphs, replayed": _loss_and_gradients(model, batch, objective)}


def _loss_and_gradients(model: BertForPreTraining, batch: Batch, objective: nn.Module | None = None) -> Found:
    """By the model itself or, where it is given, by an objective of it."""
    model.zero_grad()
    losses = (objective or Objective(model, batch.lengths.device))(batch)
    loss = losses.mlm_loss / (batch.mlm_labels != EMPTY_SLOT).sum() + losses.nsp_loss / len(batch.indices)
    loss.backward()
    gradients = {name: p.grad.double() for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": loss.detach().double(), **gradients}
