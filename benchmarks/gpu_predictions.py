"""What a step on a GPU should take: operations, bytes and instructions at the rates at which it does nothing else.

    python benchmarks/gpu_predictions.py [--tflops 790 --gbs 4000]      # assumed of an H200; measured were 668 and 3957

Operations go at the rate of a large product, bytes at that of a large copy; and where a kernel has more instructions
than fit into that time, at the rate at which an H200 begins them. benchmarks/gpu_pretrain.py prints these beside what
it measures, with the first two rates of its own run.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch
from torch import Tensor

from preprocessing.markdown import markdown_table
from trainer.metrics import training_flops
from trainer.model import BertConfig, parameter_count

# Assumed: what products 1,024 to 4,096 wide reach of one of 8,192^3, and attention's of the same.
PRODUCTS, ATTENTION = 0.87, 0.4
# Elements, in widths of the model, that a layer's kernels read and write for a token, forward and backward, all in 16
# bits. Each kernel by itself: residual, dropout and LayerNorm 2 x (7.5 + 10.5), activation 8 + 12, sums for the biases
# 9, attention 4 + 8, the gradients of queries, keys and values put together 6. torch.compile makes one kernel of
# residual, dropout and LayerNorm, 3.5 + 4.5 forward and 4.5 + 11 backward, where it computes the first LayerNorm's
# input anew and keeps it in 32 bits between two kernels; the rest it leaves (benchmarks/gpu_kernels.py shows each).
# trainer.fused has 4 + 4 twice and 8 + 12, has products read 2 of the residuals' gradients, and adds up its programs'
# sums, 1; without dropout 2 less are written. Its attention is counted by itself.
EAGER, COMPILED, FUSED = 83.0, 70.5, 39.0
# Kernels that compute for longer than they read and write: widths, and instructions for each element that the model is
# wide (benchmarks/gpu_kernels.py). The activation by erf, forward and backward, four times as wide; and what
# torch.compile makes of residual, dropout and LayerNorm forward: 70 of an element's instructions draw a random number.
# trainer.fused has none of these.
ACTIVATION, DRAWING = ((8.0, 4 * 38), (12.0, 4 * 52)), ((3.5, 86), (4.5, 90))
INSTRUCTION_RATE = 132 * 128 * 1.75e9  # a second: multiprocessors, what each begins in a cycle, cycles
# Kernels of trainer.fused_attention, of sequences of up to 128 tokens and of longer ones: queries and keys of a block,
# widths, instructions a weight. Dropout's bits are drawn in the first, and read by the others.
DRAW, ATTEND = (128, 0.0, 11.4), (64, 4.0, 16.5)
ATTEND_BACKWARD = {True: [(128, 7.0, 34.0)], False: [(64, 6.0, 14.4), (64, 6.0, 17.8)]}
EIGHT_BITS = 48.0  # to find each tensor's largest value and write it in 8 bits, along rows and along columns
PADDED = 18.0  # attention's rows copied out of and into packed order
# Bytes for each score of the vocabulary: 16 bits, to 32, softmax, gradient and back; torch.compile keeps 32 to itself.
HEAD, HEAD_COMPILED = 26, 10
# Bytes a parameter: the gradient made its sum in 32 bits 6, its norm 4, clipped 8, weight and two moments 28, weight
# in 16 bits 6. DeepSpeed clears the sum twice 8, widens the gradient 6, adds it 12, clears it 2 and, for one rank too,
# copies all sums together and back 16.
UPDATE, PEERS_UPDATE = 52, 90
GRAPHS = 8  # a graph's gradients are copied to one place and, for they change at the next micro-batch, from there


@dataclass(frozen=True)
class Row:
    """A rung of the ladder: the recipe's settings, and what they have the GPU do."""

    name: str
    settings: tuple[str, ...] = ()
    peer: bool = False  # transformers' model: all tokens of all slots, its head everywhere
    packed_attention: bool = False
    compiled: bool = False
    fused: bool = False
    fp8: bool = False
    graphs: bool = False
    dropout: bool = True  # of hidden states
    attention_dropout: bool = True  # of attention's weights; it counts where kernels of our own draw it


_VARLEN = ("model.attention_probs_dropout_prob=0.0",)
_FIXED = (*_VARLEN, "data.token_multiple=1024")
_COMPILED = (*_FIXED, "train.compile=true")
_FUSED = (*_COMPILED, "train.fused=true")
_RECIPE = ("data.token_multiple=1024", "train.compile=true", "train.fused=true")
_GRAPHS = ("train.cuda_graphs=true",)
LADDER = (
    Row("transformers, SDPA", peer=True),
    Row("transformers, SDPA, torch.compile", peer=True, compiled=True),
    Row("ours, dropout everywhere (SDPA)"),
    Row("+ attention of packed sequences, which has no dropout", _VARLEN, packed_attention=True),
    Row("+ shapes of few kinds", _FIXED, packed_attention=True),
    Row("+ layers by torch.compile", _COMPILED, packed_attention=True, compiled=True),
    Row("+ layers by kernels of our own (losses still compiled)", _FUSED, packed_attention=True, compiled=True,
        fused=True, attention_dropout=False),
    Row("kernels of our own, dropout everywhere", _RECIPE, packed_attention=True, compiled=True, fused=True),
    Row("that in CUDA graphs", (*_RECIPE, *_GRAPHS), packed_attention=True, compiled=True, fused=True, graphs=True),
    Row("kernels of our own without any dropout", (*_FUSED, "model.hidden_dropout_prob=0.0"), packed_attention=True,
        compiled=True, fused=True, dropout=False, attention_dropout=False),
    Row("kernels of our own with sums in any order (train.deterministic=false)",
        (*_RECIPE, "train.deterministic=false"), packed_attention=True, compiled=True, fused=True),
    Row("layers by torch.compile in eight bits", (*_COMPILED, "train.fp8=true"), packed_attention=True, compiled=True,
        fp8=True),
    # Beside ours without dropout of attention. The same work by this count, for which dropout in a kernel is nothing.
    Row("transformers, SDPA, torch.compile, no dropout of attention", _VARLEN, peer=True, compiled=True),
    Row("layers by torch.compile in CUDA graphs", (*_COMPILED, *_GRAPHS), packed_attention=True, compiled=True,
        graphs=True),
)  # fmt: skip
PEER = LADDER[1]  # the faster one of theirs
BEST_BY_TORCH = LADDER[5]  # ours with dropout of hidden states, in 16 bits
BEST, BEST_IN_GRAPHS = LADDER[7:9]  # with all that the recipe has
BY_TORCH_IN_GRAPHS = LADDER[-1]
SHARES = {128: 0.91, 512: 0.66}  # of real tokens in the slots of a length


def predict(
    config: BertConfig, row: Row, lengths: Tensor, length: int, predictions: int, ceiling: float, bandwidth: float
) -> dict[str, float]:
    """Seconds of each part of a step.

    Args:
        config: of the model.
        row: how it is computed.
        lengths: [samples], real tokens.
        length: tokens of a slot.
        predictions: of all samples.
        ceiling: operations a second.
        bandwidth: bytes read or written a second.
    """
    if row.peer:
        lengths = torch.full_like(lengths, length)
    tokens, layers, d = float(lengths.sum()), config.num_hidden_layers, config.hidden_size
    scored = tokens if row.peer else predictions
    encoder = training_flops(config, lengths, 0)
    head = training_flops(config, lengths * 0, int(scored))
    asked = torch.full_like(lengths, length) if not row.packed_attention else lengths
    attention = 3 * layers * 4 * d * float((asked.double() ** 2).sum())
    products = encoder - 3 * layers * 4 * d * float((lengths.double() ** 2).sum())
    moved = FUSED - (0 if row.dropout else 2) if row.fused else COMPILED if row.compiled else EAGER
    moved += (EIGHT_BITS if row.fp8 else 0) + (PADDED if not row.packed_attention and not row.peer else 0)
    head_moves = HEAD_COMPILED if row.compiled else HEAD
    slow = () if row.fused else (*ACTIVATION, *(DRAWING if row.compiled and row.dropout else ()))
    computing = sum(  # seconds an element, beyond reading and writing
        max(0.0, instructions / INSTRUCTION_RATE - 2 * widths / bandwidth) for widths, instructions in slow
    )
    by_operations = attention / (ATTENTION * ceiling)
    return {
        "matrix products": (products / (2 if row.fp8 else 1) + head) / (PRODUCTS * ceiling),
        "attention": _own_attention(config, row, lengths, length, bandwidth) if row.fused else by_operations,
        "elementwise": (2 * moved * d * layers * tokens + head_moves * scored * config.vocab_size) / bandwidth
        + computing * d * layers * tokens,
        "optimizer": (PEERS_UPDATE if row.peer else UPDATE + GRAPHS * row.graphs) * parameter_count(config) / bandwidth,
    }


def _own_attention(config: BertConfig, row: Row, lengths: Tensor, length: int, bandwidth: float) -> float:
    """Seconds of trainer.fused_attention's kernels, each waiting for memory or for its instructions."""
    tokens, heads, d = float(lengths.sum()), config.num_attention_heads, config.hidden_size
    bits = heads * length / 8 / 2 if row.attention_dropout else 0.0  # in elements of 16 bits a token
    kernels = [*([DRAW] if row.attention_dropout else []), ATTEND, *ATTEND_BACKWARD[length <= 128]]
    took = 0.0
    for block, widths, instructions in kernels:
        weights = heads * float(((lengths / block).ceil() * block).square().sum())
        took += max(2 * (widths * d + bits) * tokens / bandwidth, instructions * weights / INSTRUCTION_RATE)
    return config.num_hidden_layers * took


def main() -> None:
    """The ladder for full slots at 128 and 512, and for slots as long texts fill them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tflops", type=float, default=790.0, help="of a large bf16 product")
    parser.add_argument("--gbs", type=float, default=4000.0, help="of a large copy, reads and writes")
    parser.add_argument(
        "--shares", type=float, nargs=2, default=list(SHARES.values()), help="of real tokens in both lengths"
    )
    arguments = parser.parse_args()
    ceiling, bandwidth = arguments.tflops * 1e12, arguments.gbs * 1e9
    config = BertConfig(30522)
    table = [["", "tokens", "seq/s", "real tokens/s", "TFLOP/s", "of the ceiling", "products", "elementwise"]]
    for length, samples, share in zip((128, 512), (256, 64), arguments.shares, strict=True):
        lengths = lengths_of(length, samples, share)
        predictions = int(0.15 * float(lengths.sum()))
        flops = training_flops(config, lengths, predictions)
        for row in LADDER:
            parts = predict(config, row, lengths, length, predictions, ceiling, bandwidth)
            took = sum(parts.values())
            shares = flops / took / ceiling, parts["matrix products"] / took, parts["elementwise"] / took
            table.append([
                row.name, str(length), f"{samples / took:,.0f}", f"{float(lengths.sum()) / took:,.0f}",
                f"{flops / took / 1e12:.0f}", *(f"{share:.0%}" for share in shares),
            ])  # fmt: skip
    print(markdown_table(table, range(1, 8)))


def lengths_of(length: int, samples: int, share: float) -> Tensor:
    """Most slots full, one in ten of any length, as the preprocessing draws them, or fewer full for a lower share."""
    short = round(samples * min(1.0, 2 * (1 - share)))
    drawn = torch.linspace(8, length, max(short, 1))[:short]
    return torch.cat([drawn, torch.full((samples - short,), float(length))]).round().long()


if __name__ == "__main__":
    main()
