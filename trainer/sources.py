"""The shard directories that a stream mixes, each with its order of pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from preprocessing.schema import ShardDirectory, ShardEntry, ShardError, Split
from preprocessing.terminal import counted
from trainer.mixture import Mixture
from trainer.order import PairOrder


class Source(NamedTuple):
    """One split of a shard directory."""

    directory: ShardDirectory
    entries: list[ShardEntry]  # of the split's shards
    order: PairOrder  # in which its pairs are read


def open_sources(
    directories: Sequence[ShardDirectory],
    split: Split,
    sequence_length: int,
    seed: int,
    stretches: Sequence[tuple[int, Sequence[float]]],
    shuffle_bytes: int,
) -> tuple[list[Source], Mixture]:
    """What a stream reads, and how that is mixed; who has no weight anywhere is left out.

    Args:
        directories: of shards.
        split: of them.
        sequence_length: whose pairs are read.
        seed: of the orders.
        stretches: of the stream, one after the other: samples, and the directories' weights; empty for their numbers
            of pairs.
        shuffle_bytes: of the groups of all of them together, which they share as they share the samples.

    Raises:
        ShardError: a directory has no pairs of this length, or none in this split; or there are other than the weights.
    """
    pairs = [_count_pairs(directory, split, sequence_length) for directory in directories]
    for _, weights in stretches:
        check_weights(weights, directories)
        for directory, count, weight in zip(directories, pairs, weights or pairs, strict=True):
            if not count and (weight or not any(pairs)):
                raise ShardError(f"{directory.path}: {_why_no_pairs(directory, split, sequence_length)}")
    resolved = [(samples, weights or pairs) for samples, weights in stretches]
    found = [i for i in range(len(directories)) if any(weights[i] for _, weights in resolved)]
    mixture = Mixture([(samples, [weights[i] for i in found]) for samples, weights in resolved])
    sources, total = [], sum(mixture.shares)
    for i, share in zip(found, mixture.shares, strict=True):
        manifest = directories[i].manifest
        entries, group_bytes = manifest.split(split), int(shuffle_bytes * share / total)
        seeds = (seed, i) if i else (seed,)  # the first directory's order does not depend on whether there are others
        order = PairOrder(entries, sequence_length, seeds, group_bytes, manifest.duplicates)
        sources.append(Source(directories[i], entries, order))
    return sources, mixture


def check_weights(weights: Sequence[float], directories: Sequence[ShardDirectory]) -> None:
    """See that there is a weight for each directory, or none at all.

    Raises:
        ShardError: there are others.
    """
    if weights and len(weights) != len(directories):
        raise ShardError(
            f"weights {list(weights)} for {len(directories)} shard directories; give data.weights, or "
            "phases.N.weights, one number for each"
        )


def _count_pairs(directory: ShardDirectory, split: Split, sequence_length: int) -> int:
    manifest = directory.manifest
    if sequence_length not in manifest.sequence_lengths:
        raise ShardError(
            f"{directory.path}: no pairs for sequence length {sequence_length}, only for "
            f"{manifest.sequence_lengths}; make the shards with --sequence-lengths {sequence_length}"
        )
    return manifest.pairs(split, sequence_length)


def _why_no_pairs(directory: ShardDirectory, split: Split, sequence_length: int) -> str:
    if split == "train":
        return f"the train part has no pairs of length {sequence_length}"
    return (
        f"no pairs of length {sequence_length} are held out of its "
        f"{counted(sum(entry.rows for entry in directory.manifest.shards), 'document')}; make shards of four documents "
        "or more with --validation-fraction"
    )
