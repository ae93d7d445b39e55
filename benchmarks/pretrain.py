"""Training speed against transformers' BertForPreTraining in the same DeepSpeed engine, one measure at a time.

    deepspeed --num_accelerators 2 benchmarks/pretrain.py --shards shards/ --size demo --sequence-length 128
    deepspeed --num_accelerators 2 benchmarks/pretrain.py --shards shards/ --size large --sequence-length 512

Every row trains on the same batches of real text, in the same precision, with dropout, the same optimizer and ZeRO
stage, one thread a rank; rows take turns, round after round, and the fastest round of each counts. What is counted is
real tokens a second. The prediction is a sum of matrix products at the rate of a large one and of everything else at
the rate of copying memory, both measured here first.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn

sys.path = [folder for folder in sys.path if Path(folder).name != "benchmarks"]  # its preprocessing.py is another

import deepspeed

from preprocessing.schema import ShardDirectory
from trainer.data import Batch, DataConfig, SampleStream
from trainer.engine import World, join_world, leave_world
from trainer.masking import STANDARD
from trainer.metrics import measure_ceiling
from trainer.model import EMPTY_SLOT, BertConfig, BertForPreTraining, pretraining_losses
from trainer.optim import OptimizerConfig, build_optimizer, parameter_groups
from trainer.packing import PackedTokens

SIZES = {
    "demo": {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024},
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    "large": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
}


@dataclass(frozen=True)
class Row:
    """A way to compute a step, and what of the work it leaves out."""

    name: str
    padded: bool = True  # every sequence as long as the longest there may be
    head_everywhere: bool = True
    last_layer_everywhere: bool = True
    theirs: bool = False


ROWS = (
    Row("transformers (SDPA)", theirs=True),
    Row("our kernels, the same work"),
    Row("+ head on masked positions only", head_everywhere=False),
    Row("+ no padding", head_everywhere=False, padded=False),
    Row("+ last layer where it is read", head_everywhere=False, padded=False, last_layer_everywhere=False),
)


def main() -> None:
    """Measure all rows and print the table on the first rank."""
    arguments = _parse()
    world = join_world(threads=1)
    shards = ShardDirectory(arguments.shards)
    stream = SampleStream(
        shards, "train", arguments.sequence_length, seed=1, max_predictions=-(-arguments.sequence_length * 15 // 100),
        masking=STANDARD, data=DataConfig(),
    )  # fmt: skip
    size = arguments.micro_batch
    batches = [
        stream.batch(np.arange((r * world.size + world.rank) * size, (r * world.size + world.rank + 1) * size))
        for r in range(arguments.rounds + 1)
    ]
    vocab = shards.manifest.vocabulary.size
    config = BertConfig(vocab_size=vocab, **SIZES[arguments.size])  # type: ignore[arg-type]
    dtype = torch.bfloat16 if arguments.precision == "bf16" else torch.float32
    rates = measure_ceiling(world.device, dtype), copy_rate()
    models: dict[bool, nn.Module] = {False: Ours(config), True: Theirs(config)}
    engines = {theirs: start(model, arguments, world) for theirs, model in models.items()}

    seconds: dict[Row, list[float]] = {row: [] for row in ROWS}
    for number, batch in enumerate(batches):  # the first round warms up
        for row in ROWS:
            took = one_step(engines[row.theirs], row, batch, world)
            if number:
                seconds[row].append(took)
    tokens = world.sum([float(sum(int(batch.lengths.sum()) for batch in batches[1:]))])[0] / arguments.rounds
    slots = world.size * size * arguments.sequence_length
    if world.is_first:
        predicted = {row: sum(predict(config, row, batch, arguments, rates) for batch in batches[1:]) for row in ROWS}
        for line in table(arguments, seconds, predicted, tokens, 1 - tokens / slots, rates):
            print(line)
    leave_world()


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
        names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
        settings = transformers.BertConfig(**{name: getattr(config, name) for name in names})
        self.model = transformers.BertForPreTraining._from_config(settings, attn_implementation="sdpa")

    def forward(self, batch: Batch, _: Row) -> Tensor:
        """The loss of a micro-batch."""
        tokens = batch.tokens
        labels = torch.full_like(tokens.input_ids, EMPTY_SLOT).index_copy_(0, batch.positions, batch.mlm_labels)
        loss: Tensor = self.model(
            input_ids=tokens.pad(tokens.input_ids),
            token_type_ids=tokens.pad(tokens.token_type_ids),
            attention_mask=(torch.arange(tokens.longest) < tokens.lengths[:, None]).long(),
            labels=tokens.pad(labels, EMPTY_SLOT),
            next_sentence_label=batch.nsp_labels,
        ).loss
        return loss


def start(model: nn.Module, arguments: argparse.Namespace, world: World) -> Any:
    """A DeepSpeed engine of ZeRO 2 with our optimizer."""
    settings = {
        "train_batch_size": arguments.micro_batch * world.size,
        "train_micro_batch_size_per_gpu": arguments.micro_batch,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 2},
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


def one_step(engine: Any, row: Row, batch: Batch, world: World) -> float:
    """Seconds of a forward pass, a backward pass and an update, from one meeting of the ranks to the next."""
    batch = as_the_row_wants(row, batch)
    torch.manual_seed(0)
    world.barrier()
    began = time.perf_counter()
    engine.train()
    engine.backward(engine(batch, row))
    engine.step()
    world.barrier()
    return time.perf_counter() - began


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


def copy_rate() -> float:
    """Bytes a second that one thread reads or writes in a large copy."""
    source = torch.zeros(64 << 20, dtype=torch.uint8)
    target = torch.empty_like(source)
    rounds = []
    for _ in range(8):
        began = time.perf_counter()
        target.copy_(source)
        rounds.append(time.perf_counter() - began)
    return 2 * source.numel() / min(rounds)


def table(
    arguments: argparse.Namespace, seconds: dict[Row, list[float]], predicted: dict[Row, float], tokens: float,
    padding: float, rates: tuple[float, float],
) -> list[str]:  # fmt: skip
    """The rows as Markdown."""
    best = {row: min(times) for row, times in seconds.items()}
    first = ROWS[0]
    title = f"{arguments.size}, sequences of {arguments.sequence_length}, {arguments.precision}"
    lines = [
        f"### {title}: {padding:.1%} padding, {rates[0] / 1e9:.0f} GFLOP/s and {rates[1] / 1e9:.1f} GB/s a rank", "",
        "| | seconds a step | real tokens/s | times transformers | predicted |",
        "| --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for row in ROWS:
        lines.append(
            f"| {row.name} | {best[row]:.3f} | {tokens / best[row]:,.0f} | {best[first] / best[row]:.2f} "
            f"| {predicted[first] / predicted[row]:.2f} |"
        )
    return lines


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=Path, required=True)
    parser.add_argument("--size", choices=sorted(SIZES), default="demo")
    parser.add_argument("--sequence-length", type=int, default=128)
    parser.add_argument("--micro-batch", type=int, default=8, help="samples of a rank")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precision", choices=["float32", "bf16"], default="bf16")
    parser.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
