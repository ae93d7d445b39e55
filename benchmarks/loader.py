"""How many tokens a second one core turns from shards into masked batches.

    python benchmarks/loader.py --shards shards/ [--sequence-length 128] [--micro-batch 32] [--seconds 5]

Counts real tokens and the process's own CPU time, so that other work on the machine does not count. Peer in the same
run: samples gathered and masked one by one in plain Python, as google-research/bert's script masks them. The last
rows mix so many directories, which are one and the same here: each batch is looked up in so many orders.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from preprocessing.markdown import markdown_table
from preprocessing.schema import ShardDirectory
from trainer.data import DataConfig, SampleStream
from trainer.masking import MaskingConfig

MASK_ID, CLS_ID, SEP_ID = 103, 101, 102


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=Path, required=True)
    parser.add_argument("--sequence-length", type=int, default=128)
    parser.add_argument("--micro-batch", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=5.0, help="CPU seconds of each row")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    directory = ShardDirectory(arguments.shards)

    def batches(unit: Literal["token", "word", "span"], directories: int = 1) -> Callable[[np.ndarray], int]:
        stream = SampleStream(
            [directory] * directories, "train", arguments.sequence_length, seed=1, max_predictions=80,
            masking=MaskingConfig(unit=unit), data=DataConfig(),
        )  # fmt: skip
        return lambda indices: len(stream.batch(indices).tokens.input_ids)

    peer = rate(plain_python(directory, arguments.sequence_length), arguments)
    table = [
        [f"loader, sequences of {arguments.sequence_length}", "tokens/s of one core", "times the peer"],
        ["one by one in Python", f"{peer:,.0f}", "1.0"],
    ]
    ways = {f"SampleStream, masking.unit {unit}": batches(unit) for unit in ("token", "word", "span")}
    ways |= {f"{count} directories mixed, tokens": batches("token", count) for count in (2, 4)}
    for name, read in ways.items():
        mine = rate(read, arguments)
        table.append([name, f"{mine:,.0f}", f"{mine / peer:.1f}"])
    print(markdown_table(table, (1, 2)))


def rate(read: Callable[[np.ndarray], int], arguments: argparse.Namespace) -> float:
    """Tokens a second of CPU time."""
    read(np.arange(arguments.micro_batch))
    tokens, step, began = 0, 1, time.process_time()
    while time.process_time() - began < arguments.seconds:
        tokens += read(np.arange(step * arguments.micro_batch, (step + 1) * arguments.micro_batch))
        step += 1
    return tokens / (time.process_time() - began)


def plain_python(directory: ShardDirectory, length: int) -> Callable[[np.ndarray], int]:
    """The peer: lists of tokens, a shuffle of candidate positions, a coin for each."""
    shard = directory.shard(directory.manifest.split("train")[0])
    pairs = shard.pairs(length)
    chance = random.Random(1)

    def read(indices: np.ndarray) -> int:
        rows = []
        for _ in indices:
            i = chance.randrange(len(pairs))
            a = shard.document(pairs.row[i])[pairs.a_begin[i] : pairs.a_end[i]].tolist()
            b = shard.document(pairs.b_row[i])[pairs.b_begin[i] : pairs.b_end[i]].tolist()
            tokens = [CLS_ID, *a, SEP_ID, *b, SEP_ID]
            candidates = [place for place, token in enumerate(tokens) if token not in (CLS_ID, SEP_ID)]
            chance.shuffle(candidates)
            for place in candidates[: max(1, round(len(tokens) * 0.15))]:
                draw = chance.random()
                tokens[place] = MASK_ID if draw < 0.8 else chance.randrange(30522) if draw < 0.9 else tokens[place]
            rows.append(tokens)
        width = max(map(len, rows))
        torch.tensor([row + [0] * (width - len(row)) for row in rows])
        return sum(map(len, rows))

    return read


if __name__ == "__main__":
    main()
