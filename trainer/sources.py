"""The shard directories that a stream mixes, each with its order of pairs and its mapped shards."""

from __future__ import annotations

from collections.abc import Sequence

from preprocessing.schema import Shard, ShardDirectory, ShardError, Split
from trainer.order import PairOrder

_MAPPED = 2048  # shards at a time: what Arrow keeps of each takes 40 kB, and an epoch passes through all


class Source:
    """One split of a shard directory.

    Attributes:
        directory: the directory.
        entries: the split's shards.
        order: in which its pairs are read.
    """

    def __init__(
        self, directory: ShardDirectory, split: Split, sequence_length: int, seed: Sequence[int], group_bytes: int
    ):
        """Prepare to read; see PairOrder for the seed and the bytes of a group."""
        self.directory = directory
        self.entries = directory.manifest.split(split)
        self.order = PairOrder(self.entries, sequence_length, seed, group_bytes)
        self._shards: dict[int, Shard] = {}

    def shard(self, number: int) -> Shard:
        """One of the shards, mapped when it is first needed.

        Raises:
            ShardError: it is missing or damaged.
        """
        if number not in self._shards:
            shard = self.directory.shard(self.entries[number])
            if len(self._shards) == _MAPPED:
                del self._shards[next(iter(self._shards))]  # mapped before all others
            self._shards[number] = shard
        return self._shards[number]


def open_sources(
    directories: Sequence[ShardDirectory],
    split: Split,
    sequence_length: int,
    seed: int,
    weights: Sequence[float],
    shuffle_bytes: int,
) -> tuple[list[Source], list[float]]:
    """What a stream reads, with weights: without any given, the numbers of pairs, and who has none is left out.

    Raises:
        ShardError: a directory has no pairs of this length, or none in this split; or there are other than the weights.
    """
    if weights and len(weights) != len(directories):
        raise ShardError(f"data.weights has {len(weights)} number(s) for {len(directories)} shard directories")
    pairs = [_count_pairs(directory, split, sequence_length) for directory in directories]
    for directory, count in zip(directories, pairs, strict=True):
        if not count and (weights or not any(pairs)):
            raise ShardError(f"{directory.path}: the {split} part has no pairs of length {sequence_length}")
    found = [(i, weight) for i, weight in enumerate(weights or pairs) if weight]
    total = sum(weight for _, weight in found)
    sources = [
        # The first directory's order does not depend on whether there are others.
        Source(directories[i], split, sequence_length, (seed, i) if i else (seed,), int(shuffle_bytes * weight / total))
        for i, weight in found
    ]
    return sources, [weight for _, weight in found]


def _count_pairs(directory: ShardDirectory, split: Split, sequence_length: int) -> int:
    manifest = directory.manifest
    if sequence_length not in manifest.sequence_lengths:
        raise ShardError(
            f"{directory.path}: no pairs for sequence length {sequence_length}, only for "
            f"{manifest.sequence_lengths}; make the shards with --sequence-lengths {sequence_length}"
        )
    return manifest.pairs(split, sequence_length)
