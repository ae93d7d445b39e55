"""The order of a directory's pairs: epoch after epoch, each a pseudo-random permutation in constant memory.

Shards are shuffled and dealt into groups of a few GB, and a Feistel network permutes the pairs of each. Reads stay
within a few shards at a time, and shards are random samples of the corpus already.

Where pairs have each text several times (make_shards' --duplicates), an epoch passes over the groups as often, and
takes a part of each one's pairs at a time. Or a run of half an epoch would read half of the texts ten times and the
others never, as all pairs of a text lie in one shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from preprocessing.schema import ShardEntry
from trainer.philox import derive_key, permute

_EPOCHS = 16  # whose order of shards is remembered: a step's may lie in several, where a corpus is small
_MOST_PASSES = 256  # an epoch has a number for each pass over each group


class _Epoch(NamedTuple):
    """The order of the shards in one epoch, and how it passes over them."""

    shards: np.ndarray  # [shards], shuffled
    starts: np.ndarray  # [shards + 1], the first pair of each, counted in that order
    groups: np.ndarray  # [groups + 1], the first pair of each group, counted likewise
    parts: np.ndarray  # [passes, groups], the first of each group's pairs, once permuted, that a pass takes
    places: np.ndarray  # [passes * groups + 1], where in the epoch these are


class PairOrder:
    """The endless order in which the pairs of some shards are read.

    Attributes:
        size: pairs of an epoch.
    """

    def __init__(
        self,
        entries: Sequence[ShardEntry],
        sequence_length: int,
        seed: Sequence[int],
        group_bytes: int,
        duplicates: int = 1,
    ):
        """Note the sizes of the shards.

        Args:
            entries: the shards.
            sequence_length: whose pairs are ordered.
            seed: of the order, a number or several.
            group_bytes: pairs are shuffled among shards of about so many bytes, one shard at least.
            duplicates: how often the pairs have each text.
        """
        self._pairs = np.array([entry.pairs[str(sequence_length)] for entry in entries], dtype=np.int64)
        self._bytes = np.array([entry.bytes for entry in entries], dtype=np.int64)
        self.size = int(self._pairs.sum())
        self._sequence_length = sequence_length
        self._seed = tuple(seed)
        self._group_bytes = group_bytes
        self._passes = min(duplicates, _MOST_PASSES)
        self._remembered: dict[int, _Epoch] = {}  # its own: a step reads all directories, maybe a hundred

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
            of_epoch = np.flatnonzero(epochs == epoch)
            visits = np.searchsorted(order.places, offsets[of_epoch], side="right") - 1
            for visit in set(visits.tolist()):
                mine = of_epoch[visits == visit]
                pass_, group = divmod(visit, len(order.groups) - 1)
                start, stop = order.groups[group], order.groups[group + 1]
                key = derive_key(*self._seed, "pairs", self._sequence_length, epoch, group)
                permuted = order.parts[pass_, group] + offsets[mine] - order.places[visit]
                places = start + permute(permuted, int(stop - start), key)
                slots = np.searchsorted(order.starts, places, side="right") - 1
                shard_ids[mine] = order.shards[slots]
                pair_ids[mine] = places - order.starts[slots]
        return shard_ids, pair_ids

    def _epoch(self, epoch: int) -> _Epoch:
        if epoch not in self._remembered:
            found = self._shuffle(epoch)
            if len(self._remembered) == _EPOCHS:
                del self._remembered[next(iter(self._remembered))]  # made before all others
            self._remembered[epoch] = found
        return self._remembered[epoch]

    def _shuffle(self, epoch: int) -> _Epoch:
        """Shuffle the shards, deal them into groups, and part the pairs of each."""
        key = derive_key(*self._seed, "shards", self._sequence_length, epoch)
        shards = permute(np.arange(len(self._pairs)), len(self._pairs), key)
        groups, filled = [0], 0
        for i, size in enumerate(self._bytes[shards]):
            if filled and filled + size > self._group_bytes:
                groups.append(i)
                filled = 0
            filled += int(size)
        starts = np.concatenate([[0], np.cumsum(self._pairs[shards])])
        group_starts = starts[[*groups, len(shards)]]
        bounds = np.arange(self._passes + 1)[:, None] * np.diff(group_starts) // self._passes
        places = np.concatenate([[0], np.cumsum(np.diff(bounds, axis=0))])
        return _Epoch(shards, starts, group_starts, bounds[:-1], places)
