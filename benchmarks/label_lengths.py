"""How many labels of next sentence prediction can be told from the lengths of A and B alone.

    python benchmarks/label_lengths.py --shards shards/ by-sentence/

Half of the training pairs are counted by their two lengths, in steps of four tokens; of the other half each gets the
label that was commoner there. A model can learn as much without reading a word.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from preprocessing.markdown import markdown_table
from preprocessing.schema import Pairs, ShardDirectory

STEP = 4  # tokens


def main() -> None:
    """Print a table with a row for each directory and length."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=Path, nargs="+", required=True)
    table = [["shards", "sequence length", "pairs", "commoner label", "told by lengths"]]
    for path in parser.parse_args().shards:
        directory = ShardDirectory(path)
        for length in directory.manifest.sequence_lengths:
            shards = map(directory.shard, directory.manifest.split("train"))
            counted, asked = count([shard.pairs(length) for shard in shards], length)
            commoner = asked.sum(axis=(0, 1)).max() / asked.sum()
            told = share_told(counted, asked)
            table.append([str(path), str(length), f"{counted.sum() + asked.sum():,}", f"{commoner:.0%}", f"{told:.0%}"])
    print(markdown_table(table, (1, 2, 3, 4)))


def count(pairs: list[Pairs], length: int) -> tuple[np.ndarray, np.ndarray]:
    """How often the labels occur with lengths of A and B, int64 [steps, steps, 2], among every other pair each."""
    steps = length // STEP + 1
    counts = np.zeros((2, steps, steps, 2), dtype=np.int64)
    for of_shard in pairs:
        a, b = of_shard.a_end - of_shard.a_begin, of_shard.b_end - of_shard.b_begin
        half = np.arange(len(a)) % 2
        np.add.at(counts, (half, a // STEP, b // STEP, of_shard.is_next.astype(int)), 1)
    return counts[0], counts[1]


def share_told(counted: np.ndarray, asked: np.ndarray) -> float:
    """Which share of the asked pairs has the label that is commoner among the counted ones of its lengths."""
    guess = counted.argmax(axis=2)[..., None]
    return float(np.take_along_axis(asked, guess, axis=2).sum() / asked.sum())


if __name__ == "__main__":
    main()
