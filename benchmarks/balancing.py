"""How much more than the mean the rank with the most tokens has, as samples come and as trainer.balancing deals them.

    python benchmarks/balancing.py --shards shards/

Ranks meet in every step, and where none computes on padding, that is what they wait for. With it stands what a rank
spends on dealing: the lengths of all samples of a step, by their pairs, and the dealing itself.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from preprocessing.markdown import markdown_table
from preprocessing.schema import ShardDirectory
from trainer.balancing import deal
from trainer.data import DataConfig, SampleStream
from trainer.masking import STANDARD

STEPS = 20
CLUSTERS = ((2, 32), (8, 8), (8, 32), (8, 256), (64, 32), (64, 64), (64, 512), (512, 32))  # ranks, samples of each


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=Path, required=True)
    directory = ShardDirectory(parser.parse_args().shards)
    table = [["tokens", "ranks", "samples of each", "as they come", "dealt", "ms a step"]]
    for length in directory.manifest.sequence_lengths:
        stream = SampleStream(directory, "train", length, seed=1, masking=STANDARD, data=DataConfig())
        stream.lengths(np.arange(100))  # maps the shards
        table += [
            [f"{length}", f"{ranks}", f"{samples}", *measure(stream, ranks, samples)] for ranks, samples in CLUSTERS
        ]
    print(markdown_table(table, range(6)))


def measure(stream: SampleStream, ranks: int, samples: int) -> list[str]:
    """The last columns of a row: means of the steps, and the median of the times."""
    ahead, seconds = [], []
    for step in range(STEPS):
        indices = np.arange(step * ranks * samples, (step + 1) * ranks * samples)
        began = time.perf_counter()
        lengths = stream.lengths(indices)
        dealt = deal(lengths, samples)
        seconds.append(time.perf_counter() - began)
        both = (tokens.sum(axis=1) for tokens in (lengths.reshape(ranks, samples), lengths[dealt]))
        ahead.append([tokens.max() / tokens.mean() - 1 for tokens in both])
    in_order, even = np.mean(ahead, axis=0)
    return [f"+{in_order:.1%}", f"+{even:.2%}", f"{1e3 * np.median(seconds):.1f}"]


if __name__ == "__main__":
    main()
