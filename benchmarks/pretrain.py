"""Training speed against transformers' BertForPreTraining in the same DeepSpeed engine, one measure at a time.

    deepspeed --num_accelerators 2 benchmarks/pretrain.py --shards shards/ --size demo --sequence-length 128
    deepspeed --num_accelerators 2 benchmarks/pretrain.py --shards shards/ --size large --sequence-length 512

Every row trains on the same batches of real text, in the same precision, with dropout, the same optimizer and ZeRO
stage, one thread a rank. What is counted is real tokens a second, and the median over the steps of transformers' time
over a row's for the same step. Transformers' turn comes before ours and again after it, and counts with the mean. The
prediction is a sum of matrix products at the rate of a large one, of everything else at the rate of copying memory, and
of what a step with almost no tokens takes (exchange of gradients, update), all three measured here, for the rank that
has the most to do.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import deepspeed
import numpy as np
import torch
from torch import Tensor, nn

import transformers_pretraining as transformers_model
from common import copy_bandwidth, release, require_cpu
from preprocessing.markdown import markdown_table
from preprocessing.schema import ShardDirectory
from trainer.balancing import deal
from trainer.data import Batch, DataConfig, SampleStream
from trainer.joining import join_world
from trainer.masking import STANDARD
from trainer.metrics import measure_ceiling
from trainer.model import EMPTY_SLOT, BertConfig, BertForPreTraining, pretraining_losses
from trainer.optim import OptimizerConfig, build_optimizer, parameter_groups
from trainer.packing import PackedTokens
from trainer.world import World, leave_world

# The vocabulary is the demo's and the paper's, whatever that of the shards.
SIZES = {
    "demo": BertConfig(8192, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024),
    "base": BertConfig(30522, hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072),
    "large": BertConfig(30522),
}


@dataclass(frozen=True)
class Row:
    """A way to compute a step, and what of the work it leaves out."""

    name: str
    padded: bool = True  # every sequence as long as the longest there may be
    head_everywhere: bool = True
    last_layer_everywhere: bool = True
    dealt: bool = False  # micro-batches of about as many tokens, instead of samples as they come
    theirs: bool = False


ROWS = (
    Row("transformers (SDPA)", theirs=True),
    Row("our kernels, the same work"),
    Row("+ head on masked positions only", head_everywhere=False),
    Row("+ no padding", head_everywhere=False, padded=False),
    Row("+ as many tokens for every rank", head_everywhere=False, padded=False, dealt=True),
    Row("+ last layer where it is read", head_everywhere=False, padded=False, dealt=True, last_layer_everywhere=False),
)


def main() -> None:
    """Measure all rows and print the table on the first rank."""
    arguments = _parse()
    require_cpu()
    world = join_world(threads=1)
    shards = ShardDirectory(arguments.shards)
    stream = SampleStream(shards, "train", arguments.sequence_length, seed=1, masking=STANDARD, data=DataConfig())
    samples = arguments.accumulation * world.size * arguments.micro_batch
    steps = [
        [read(stream, np.arange(first, first + samples), is_dealt, arguments, world) for is_dealt in (False, True)]
        for first in range(0, (arguments.rounds + 1) * samples, samples)
    ]
    config = SIZES[arguments.size]
    if shards.manifest.vocabulary.size > config.vocab_size:
        sys.exit(f"{arguments.size} has {config.vocab_size:,} words, the shards {shards.manifest.vocabulary.size:,}")
    dtype = torch.bfloat16 if arguments.precision == "bf16" else torch.float32
    rates = measure_ceiling(world.device, dtype), copy_bandwidth(world.device)
    passes, floors = [], []
    for theirs in (True, False, True):  # one engine at a time, as two of BERT-LARGE take 20 GB
        rows = [row for row in ROWS if row.theirs == theirs]
        engine = start(Theirs(config) if theirs else Ours(config), arguments, world)
        passes.append([[one_step(engine, row, step[row.dealt]) for row in rows] for step in steps])
        floors.append(one_step(engine, rows[-1], [almost_nothing(steps[0][0][0])] * arguments.accumulation))
        engine.destroy()
        del engine
        release()
        ctypes.CDLL(None).malloc_trim(0)  # glibc keeps gigabytes otherwise
    before, ours, after = (np.array(seconds[1:]).T for seconds in passes)  # the first step warms up
    work = [
        [sum(predict(config, row, part, arguments, rates) for part in step[row.dealt]) for step in steps[1:]]
        for row in ROWS
    ]
    slowest = np.max(world.gather(work), axis=0)
    tokens = world.sum([float(sum(part.lengths.sum() for part in step[0])) for step in steps[1:]])
    if world.is_first:
        measured = Measured(
            np.vstack([(before + after) / 2, ours]), slowest + min(floors), tokens,
            min(floors), float(np.median(after / before)) - 1,
        )  # fmt: skip
        print(table(arguments, measured, world.size, rates))
    leave_world()


@dataclass(frozen=True)
class Measured:
    """What a step of each row took.

    Attributes:
        seconds, predicted: float64 [rows, steps]. The prediction is for the rank that has the most work.
        tokens: Real tokens of all ranks, for each step.
        floor: Seconds of a step with almost no tokens, which every row's prediction has in it.
        drift: How much longer transformers took after ours than before, as a share: the machine's own noise.
    """

    seconds: np.ndarray[Any, np.dtype[np.float64]]
    predicted: np.ndarray[Any, np.dtype[np.float64]]
    tokens: list[float]
    floor: float
    drift: float


def read(
    stream: SampleStream, indices: np.ndarray[Any, np.dtype[np.int64]], is_dealt: bool, arguments: argparse.Namespace,
    world: World,
) -> list[Batch]:  # fmt: skip
    """This rank's micro-batches of a step, dealt as the trainer does or as they come."""
    order = deal(stream.lengths(indices), arguments.micro_batch) if is_dealt else np.arange(len(indices))
    micro_batches = indices[order].reshape(-1, arguments.micro_batch)
    return [stream.batch(micro_batch) for micro_batch in micro_batches[world.rank :: world.size]]


class Ours(nn.Module):
    """Our model with a switch for each measure."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.model = BertForPreTraining(config, seed=1)

    def forward(self, batch: Batch, row: Row) -> Tensor:
        """The loss of a micro-batch."""
        if row.last_layer_everywhere:
            model, tokens = self.model, batch.tokens
            hidden = model.bert(tokens)
            words = model.mlm(hidden.index_select(0, batch.positions), model.bert.embeddings.word.weight)
            sentences = model.nsp(model.pooler(hidden.index_select(0, tokens.firsts)))
        else:
            words, sentences = self.model(batch.tokens, batch.positions)
        losses = pretraining_losses(words, batch.mlm_labels, sentences, batch.nsp_labels)
        count = (batch.mlm_labels != EMPTY_SLOT).sum()
        loss: Tensor = losses.mlm_loss / count + losses.nsp_loss / len(batch.nsp_labels)
        return loss


class Theirs(nn.Module):
    """Transformers' model, padded, with its own loss."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.model = transformers_model.build(config, seed=1)

    def forward(self, batch: Batch, _: Row) -> Tensor:
        """The loss of a micro-batch."""
        loss: Tensor = self.model(**transformers_model.inputs(batch, batch.tokens.longest)).loss
        return loss


def start(model: nn.Module, arguments: argparse.Namespace, world: World) -> Any:
    """A DeepSpeed engine of ZeRO 1 with our optimizer."""
    settings = {
        "train_batch_size": arguments.micro_batch * world.size * arguments.accumulation,
        "train_micro_batch_size_per_gpu": arguments.micro_batch,
        "gradient_accumulation_steps": arguments.accumulation,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 1},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    if arguments.precision == "bf16":
        settings |= {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
    optimizer = build_optimizer(parameter_groups(model, 0.01), OptimizerConfig())
    for group in optimizer.param_groups:
        group["lr"] = 1e-5
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
    return engine


def one_step(engine: Any, row: Row, step: list[Batch]) -> float:
    """Seconds of all forward and backward passes and an update, from one meeting of the ranks to the next."""
    step = [as_the_row_wants(row, batch) for batch in step]
    torch.manual_seed(0)
    torch.distributed.barrier()
    began = time.perf_counter()
    engine.train()
    for batch in step:
        engine.backward(engine(batch, row))
        engine.step()
    torch.distributed.barrier()
    return time.perf_counter() - began


def almost_nothing(batch: Batch) -> Batch:
    """The first eight tokens of a batch, one of them to predict: what a step of it takes, no measure can save."""
    ids, types = batch.tokens.input_ids[:8], batch.tokens.token_type_ids[:8]
    return replace(
        batch, tokens=PackedTokens.from_flat(ids, types, torch.tensor([8])), positions=torch.tensor([4]),
        mlm_labels=ids[4:5], nsp_labels=batch.nsp_labels[:1], indices=batch.indices[:1],
    )  # fmt: skip


def as_the_row_wants(row: Row, batch: Batch) -> Batch:
    """The batch with padding as if it were text, and a prediction everywhere, where the row does that work."""
    if row.theirs or not row.padded:
        return batch
    tokens = batch.tokens
    size = len(tokens.lengths)
    to_padded = (torch.arange(tokens.longest) < tokens.lengths[:, None]).flatten().nonzero().squeeze(1)
    labels = torch.full((size * tokens.longest,), EMPTY_SLOT)
    labels[to_padded[batch.positions]] = batch.mlm_labels
    padded = PackedTokens.from_flat(
        tokens.pad(tokens.input_ids).flatten(),
        tokens.pad(tokens.token_type_ids).flatten(),
        torch.full((size,), tokens.longest),
    )
    if row.head_everywhere:
        return replace(batch, tokens=padded, positions=torch.arange(len(labels)), mlm_labels=labels)
    return replace(batch, tokens=padded, positions=to_padded[batch.positions])


def predict(
    config: BertConfig, row: Row, batch: Batch, arguments: argparse.Namespace, rates: tuple[float, float]
) -> float:
    """Seconds of a step by a count of matrix products and of bytes moved, forward and backward."""
    d, f, v, heads = config.hidden_size, config.intermediate_size, config.vocab_size, config.num_attention_heads
    longest = batch.tokens.longest
    lengths = np.full(len(batch.indices), longest) if row.padded else batch.lengths.numpy().astype(np.int64)
    tokens = int(lengths.sum())
    predicted = tokens if row.head_everywhere else len(batch.positions)
    read = tokens if row.last_layer_everywhere else len(batch.positions) + len(lengths)
    share = read / tokens  # of the last layer's queries and rows
    attention = float((lengths**2).sum())
    layers = config.num_hidden_layers - 1
    flops = tokens * layers * 2 * (4 * d * d + 2 * d * f) + layers * 4 * d * attention
    flops += 2 * tokens * 2 * d * d + 2 * read * (2 * d * d + 2 * d * f) + 4 * d * attention * share
    flops += predicted * (2 * d * d + 2 * d * v)
    # Passes over memory: twelve of the width D and three of the width F a token and layer (norms, residuals, dropout,
    # activation), four over the attention's weights, four over the scores of the vocabulary.
    elements = (
        (tokens * layers + read) * (12 * d + 3 * f) + (layers + share) * 4 * heads * attention + 4 * predicted * v
    )
    width = 2 if arguments.precision == "bf16" else 4
    return 3 * (flops / rates[0] + elements * width / rates[1])


def table(arguments: argparse.Namespace, measured: Measured, ranks: int, rates: tuple[float, float]) -> str:
    """The rows as Markdown."""
    sequences = ranks * arguments.micro_batch * arguments.accumulation
    padding = 1 - np.mean(measured.tokens) / (sequences * arguments.sequence_length)
    title = f"{arguments.size}, sequences of {arguments.sequence_length}, {arguments.precision}"
    seconds = np.median(measured.seconds, axis=1)
    speed = np.median(measured.tokens / measured.seconds, axis=1)
    gain, foretold = (np.median(times[0] / times, axis=1) for times in (measured.seconds, measured.predicted))
    text = (
        f"### {title}\n\n"
        f"{ranks} ranks with {arguments.accumulation} x {arguments.micro_batch} sequences a step, of which "
        f"{padding:.1%} is padding. Products: {rates[0] / 1e9:.0f} GFLOP/s a rank, copies: {rates[1] / 1e9:.1f} GB/s; "
        f"{measured.floor:.2f} s of every step are exchange of gradients and update. Medians of "
        f"{len(measured.tokens)} steps; transformers took {measured.drift:+.1%} time in its second turn.\n\n"
    )
    rows = [
        [row.name, f"{took:.3f}", f"{rate:,.0f}", f"{times:.2f}", f"{predicted:.2f}"]
        for row, took, rate, times, predicted in zip(ROWS, seconds, speed, gain, foretold, strict=True)
    ]
    return text + markdown_table(
        [["", "seconds a step", "real tokens/s", "times transformers", "predicted"], *rows], (1, 2, 3, 4)
    )


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=Path, required=True)
    parser.add_argument("--size", choices=sorted(SIZES), default="demo")
    parser.add_argument("--sequence-length", type=int, default=128)
    parser.add_argument("--micro-batch", type=int, default=8, help="samples of a rank")
    parser.add_argument("--accumulation", type=int, default=1, help="micro-batches of a step")
    parser.add_argument("--rounds", type=int, default=5, help="steps of each row that count")
    parser.add_argument("--precision", choices=["float32", "bf16"], default="bf16")
    parser.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
