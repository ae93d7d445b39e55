"""Whether a GPU gets trainer.fused right: compilers have made wrong kernels for one kind of GPU alone."""

from __future__ import annotations

import copy
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cluster.checkup.asking import ask
from cluster.checkup.findings import Finding, judge
from trainer.attention import dropped_of_65536, is_modern, scale_of_kept
from trainer.model import BertConfig, Layer, initialize
from trainer.packing import PackedTokens

_SIZE = BertConfig(30522)  # BERT-LARGE
_LENGTHS = (128, 97, 9), (512, 130)  # tokens of sequences that a backward pass has as a whole, and of longer ones
_PATIENCE = 100  # seconds, in which kernels are built too; other ranks of a doctor wait for 120
_TOLERANCE = 2.0  # how far off a result may be, as a multiple of torch's own in bfloat16
_DROPOUT, _OFF_WITH_DROPOUT = 0.1, 2e-2
_ADVICE = (
    "Leave train.fused out (train.compile is as exact), or let Triton use another assembler, such as that of a newer "
    "CUDA: export TRITON_PTXAS_PATH=.../ptxas."
)


class Error(NamedTuple):
    """How far off something is, relative in the 2-norm, and how far it may be."""

    what: str
    found: float
    allowed: float


def check_kernels() -> Iterator[Finding]:
    """On this process's first GPU, if trainer.fused is for it.

    By another process: a kernel may take the GPU from the one that it runs in, or never come to its end.
    """
    if not torch.cuda.is_available() or not find_spec("triton"):
        return
    try:
        told = ask([sys.executable, "-m", __name__], _PATIENCE)
    except subprocess.TimeoutExpired:
        yield Finding("kernels", "wrong", f"kernels of our own take more than {_PATIENCE} s", _ADVICE)
        return
    except subprocess.CalledProcessError as error:
        reason = (error.stderr.strip() or f"exit code {error.returncode}").splitlines()[-1]
        yield Finding("kernels", "wrong", f"kernels of our own fail ({reason[:200]})", _ADVICE)
        return
    if found := [Error(*one) for one in json.loads(told)]:
        yield _judge(found)


def _judge(found: Sequence[Error]) -> Finding:
    wrong = [error for error in found if not error.found <= error.allowed]  # which no NaN is
    told = ", ".join(f"{what}: {off:.1e} off, where {allowed:.1e} is explained" for what, off, allowed in wrong[:3])
    return judge(
        "kernels",
        f"kernels of our own are wrong ({told})" if wrong else "kernels of our own agree with the formula",
        _ADVICE,
        wrong=bool(wrong),
    )


def errors(config: BertConfig, lengths: Sequence[int], device: torch.device) -> Iterator[Error]:
    """Those of a layer, forward and backward, and of attention with dropout, in bfloat16, of random tokens.

    Args:
        config: of the layer.
        lengths: of the sequences.
        device: a GPU, or a CPU where Triton interprets kernels.
    """
    ids = torch.zeros(sum(lengths), dtype=torch.int64)
    tokens = PackedTokens.from_flat(ids, ids, torch.tensor(lengths)).to(device)
    which = f"up to {max(lengths)} tokens"
    yield from (Error(f"{what}, {which}", *off) for what, *off in _of_a_layer(config, tokens, device))
    with_dropout = _with_dropout(config, tokens, lengths, device)
    yield from (Error(f"{what} with dropout, {which}", *off) for what, *off in with_dropout)


def _of_a_layer(config: BertConfig, tokens: PackedTokens, device: torch.device) -> Iterator[tuple[str, float, float]]:
    from trainer.fused import fuse  # its kernels want triton

    config = replace(config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    plain, generator = Layer(config), torch.Generator().manual_seed(1)
    initialize(plain, 1.5 / config.hidden_size**0.5, seed=1)  # scores are sharp
    for parameter in plain.parameters():
        if parameter.dim() == 1:  # no bias is zero
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    plain = plain.to(device, torch.bfloat16)
    exact, fused = copy.deepcopy(plain).float(), copy.deepcopy(plain)
    fuse(nn.ModuleList([fused]), config)
    hidden, upstream = torch.randn(2, len(tokens.input_ids), config.hidden_size, generator=generator).bfloat16()

    def of(layer: Layer) -> dict[str, Tensor]:
        given = hidden.to(layer.attention_norm.weight).requires_grad_()
        result = layer(given, tokens)
        wanted = {"states": given, **dict(layer.named_parameters())}
        gradients = torch.autograd.grad(result, list(wanted.values()), upstream.to(result))
        return {"result": result.detach(), **dict(zip(wanted, gradients, strict=True))}

    truth, theirs, ours = map(of, (exact, plain, fused))
    usual = {name: _relative(theirs[name], truth[name]) for name in truth}
    least = statistics.median(usual.values())  # some of few numbers are right by chance
    for name, own in ours.items():
        yield name, _relative(own, truth[name]), _TOLERANCE * max(usual[name], least)


def _with_dropout(
    config: BertConfig, tokens: PackedTokens, lengths: Sequence[int], device: torch.device
) -> Iterator[tuple[str, float, float]]:
    from trainer.fused_attention import Attention, How, attend

    heads, count, width = config.num_attention_heads, len(tokens.input_ids), config.hidden_size
    how = How(tokens, tokens, heads, False, _DROPOUT, torch.ones(1, dtype=torch.int64, device=device))
    generator = torch.Generator().manual_seed(2)
    joint = (1.5 * torch.randn(count, 3 * width, generator=generator)).to(device, torch.bfloat16)
    upstream = torch.randn(count, width, generator=generator).to(device, torch.bfloat16)
    given = [x.detach().requires_grad_() for x in joint.chunk(3, dim=-1)]
    exact = [x.detach().float().requires_grad_() for x in given]
    _, _, bits = attend(given[0], given[1], given[2], how)
    assert bits is not None
    kept = (bits[..., None] >> torch.arange(8, device=device) & 1).flatten(2)  # [T, N, at least the longest]
    query, key, value = (x.unflatten(-1, (heads, -1)) for x in exact)
    parts, shares = [], []
    for end, length in zip(accumulate(lengths), lengths, strict=True):
        of = slice(end - length, end)
        mask = kept[of, :, :length].float()
        scores = torch.einsum("rnh,snh->rns", query[of], key[of]) * query.shape[-1] ** -0.5
        parts.append(torch.einsum("rns,snh->rnh", scores.softmax(-1) * mask * scale_of_kept(_DROPOUT), value[of]))
        shares.append(mask.flatten())
    truth, ours = torch.cat(parts).flatten(1), Attention.apply(*given, how)
    kept_of_all = torch.cat(shares).double()
    asked = dropped_of_65536(_DROPOUT) / 2**16
    chance = 5 * (asked * (1 - asked) / len(kept_of_all)) ** 0.5  # five standard deviations
    yield "the share of weights", abs(1 - asked - float(kept_of_all.mean())), chance
    pairs = zip(
        ("gathered", "queries", "keys", "values"),
        (ours, *torch.autograd.grad(ours, given, upstream)),
        (truth, *torch.autograd.grad(truth, exact, upstream.float())),
        strict=True,
    )
    for name, own, right in pairs:
        yield name, _relative(own, right), _OFF_WITH_DROPOUT


def _relative(found: Tensor, truth: Tensor) -> float:
    return float((found.detach().double() - truth.detach().double()).norm() / truth.detach().double().norm())


def main() -> None:
    """Print the errors as JSON; none for a GPU that trainer.fused is not for."""
    device = torch.device("cuda")
    print(json.dumps([one for lengths in _LENGTHS if is_modern(device) for one in errors(_SIZE, lengths, device)]))


if __name__ == "__main__":
    main()
