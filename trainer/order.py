"""The order of a directory's pairs: epoch after epoch, each a pseudo-random permutation in constant memory.

Shards are shuffled and dealt into groups of a few GB, and a Feistel network permutes the pairs of one group after the
other. Reads stay within a few shards at a time, and shards are random samples of the corpus already.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from preprocessing.schema import ShardEntry
from trainer.philox import derive_key, permute


class _Epoch(NamedTuple):
    """The order of the shards in one epoch."""

    shards: np.ndarray  # [shards], shuffled
    starts: np.ndarray  # [shards + 1], the first pair of each in the epoch
    groups: np.ndarray  # [groups + 1], the first of `shards` of each group


class PairOrder:
    """The endless order in which the pairs of some shards are read.

    Attributes:
        size: pairs of an epoch.
    """

    def __init__(self, entries: Sequence[ShardEntry], sequence_length: int, seed: Sequence[int], group_bytes: int):
        """Note the sizes of the shards.

        Args:
            entries: the shards.
            sequence_length: whose pairs are ordered.
            seed: of the order, a number or several.
            group_bytes: pairs are shuffled among shards of about so many bytes, one shard at least.
        """
        self._pairs = np.array([entry.pairs[str(sequence_length)] for entry in entries], dtype=np.int64)
        self._bytes = np.array([entry.bytes for entry in entries], dtype=np.int64)
        self.size = int(self._pairs.sum())
        self._sequence_length = sequence_length
        self._seed = tuple(seed)
        self._group_bytes = group_bytes

    def locate(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where the pairs at some places of the order lie.

        Args:
            indices: int64 [n], 0 or more; one beyond the epoch belongs to a later epoch.

        Returns:
            Which of the shards, and which pair of that shard, int64 [n] each.
        """
        epochs, offsets = np.divmod(indices, self.size)
        shard_ids, pair_ids = np.empty_like(indices), np.empty_like(indices)
        for epoch in set(epochs.tolist()):
            order = self._epoch(epoch)
            group_starts = order.starts[order.groups]
            of_epoch = np.flatnonzero(epochs == epoch)
            groups = np.searchsorted(group_starts, offsets[of_epoch], side="right") - 1
            for group in set(groups.tolist()):
                mine = of_epoch[groups == group]
                start, stop = group_starts[group], group_starts[group + 1]
                key = derive_key(*self._seed, "pairs", self._sequence_length, epoch, group)
                places = start + permute(offsets[mine] - start, int(stop - start), key)
                slots = np.searchsorted(order.starts, places, side="right") - 1
                shard_ids[mine] = order.shards[slots]
                pair_ids[mine] = places - order.starts[slots]
        return shard_ids, pair_ids

    @functools.lru_cache(maxsize=64)  # noqa: B019  orders live as long as their process
    def _epoch(self, epoch: int) -> _Epoch:
        """Shuffle the shards and deal them into groups."""
        key = derive_key(*self._seed, "shards", self._sequence_length, epoch)
        shards = permute(np.arange(len(self._pairs)), len(self._pairs), key)
        groups, filled = [0], 0
        for i, size in enumerate(self._bytes[shards]):
            if filled and filled + size > self._group_bytes:
                groups.append(i)
                filled = 0
            filled += int(size)
        starts = np.concatenate([[0], np.cumsum(self._pairs[shards])])
        return _Epoch(shards, starts, np.array([*groups, len(shards)]))
