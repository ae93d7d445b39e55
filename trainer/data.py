"""Shards -> the sample stream -> the batches of a step.

The training input is a pure function: sample(seed, index) for index = 0, 1, 2, ... Step s of global batch B takes the
indices [s * B, (s + 1) * B), whatever the number of ranks or loader workers. So the state of the loader is one
number, a resume is exact, no sample is seen twice in an epoch, and every rank takes the same number of steps.

Within an epoch the order is a pseudo-random permutation in constant memory: shards are shuffled and dealt into groups
of at most ``shuffle_bytes``, and a Feistel network permutes the pairs of one group after the other. Reads stay within
a few shards at a time, and shards are random samples of the corpus already.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from preprocessing.schema import Shard, ShardDirectory, ShardError, Split
from preprocessing.tokenization import CONTINUATION, VOCABULARY_FILE, load_vocabulary, special_ids
from trainer.masking import STANDARD, MaskingConfig, mask_tokens
from trainer.model import EMPTY_SLOT
from trainer.philox import derive_key, permute

VALIDATION_SEED = 0  # of its own, so that perplexities compare between runs of other seeds
_PAD_MULTIPLE = 8  # row lengths are rounded up to it, which matrix kernels like


@dataclass(frozen=True)
class DataConfig:
    """How samples are read.

    Attributes:
        workers: loader processes of each rank; 0 reads in the training process.
        shuffle_bytes: shards are shuffled in groups of about so many bytes.
        pad_to_longest: pad a micro-batch to its longest sample (less work) instead of the phase's sequence length
            (constant shapes).
    """

    workers: int = 0
    shuffle_bytes: int = 2 << 30
    pad_to_longest: bool = True

    def __post_init__(self) -> None:
        if self.workers < 0 or self.shuffle_bytes <= 0:
            raise ValueError("data.workers must be 0 or more and data.shuffle_bytes positive")


@dataclass(frozen=True)
class Batch:
    """A micro-batch of B samples padded to S tokens with P predictions in all.

    Attributes:
        input_ids: int64 [B, S], masked.
        token_type_ids: int64 [B, S], 0 for [CLS] A [SEP], 1 for B [SEP].
        attention_mask: bool [B, S], true where there is a token.
        positions: int64 [P], what to predict, into the flattened [B * S].
        mlm_labels: int64 [P], the original tokens.
        nsp_labels: int64 [B], 0 where B follows A, 1 where it is random (google's and Hugging Face's labels).
        indices: int64 [B], of the samples in the stream.
    """

    input_ids: torch.Tensor
    token_type_ids: torch.Tensor
    attention_mask: torch.Tensor
    positions: torch.Tensor
    mlm_labels: torch.Tensor
    nsp_labels: torch.Tensor
    indices: torch.Tensor

    def to(self, device: torch.device) -> Batch:
        """The same batch on a device."""
        return replace(self, **{f.name: getattr(self, f.name).to(device, non_blocking=True) for f in fields(self)})


class Samples(NamedTuple):
    """Unmasked samples, [CLS] A [SEP] B [SEP] and padding."""

    tokens: np.ndarray  # int64 [B, S]
    token_types: np.ndarray  # int64 [B, S]
    lengths: np.ndarray  # int64 [B]
    is_next: np.ndarray  # bool [B]


class _Epoch(NamedTuple):
    """The order of the shards in one epoch."""

    shards: np.ndarray  # [shards], shuffled
    starts: np.ndarray  # [shards + 1], the first pair of each in the epoch
    groups: np.ndarray  # [groups + 1], the first of `shards` of each group


class SampleStream:
    """The endless, shuffled, masked stream of samples of one split and one sequence length.

    Attributes:
        size: samples of an epoch.
    """

    def __init__(
        self,
        directory: ShardDirectory,
        split: Split,
        sequence_length: int,
        *,
        seed: int,
        max_predictions: int,
        masking: MaskingConfig,
        data: DataConfig,
    ):
        """Prepare a stream; shards are mapped when they are first needed.

        Raises:
            ShardError: the directory has no pairs of this length in this split.
        """
        manifest = directory.manifest
        if sequence_length not in manifest.sequence_lengths:
            raise ShardError(
                f"{directory.path}: no pairs for sequence length {sequence_length}, only for "
                f"{manifest.sequence_lengths}; make the shards with --sequence-lengths {sequence_length}"
            )
        self.directory = directory
        self.sequence_length = sequence_length
        self.entries = manifest.split(split)
        self.size = manifest.pairs(split, sequence_length)
        if not self.size:
            raise ShardError(f"{directory.path}: the {split} part has no pairs of length {sequence_length}")
        self._seed = seed
        self._max_predictions = max_predictions
        self._masking = masking
        self._data = data
        self._vocab_size = manifest.vocabulary.size
        vocabulary = load_vocabulary(directory.tokenizer / VOCABULARY_FILE)
        self._special = special_ids(vocabulary)
        self._continuation = np.array([token.startswith(CONTINUATION) for token in vocabulary])
        self._pairs = np.array([entry.pairs[str(sequence_length)] for entry in self.entries], dtype=np.int64)
        self._bytes = np.array([entry.bytes for entry in self.entries], dtype=np.int64)
        self._shards: dict[int, Shard] = {}

    def batch(self, indices: np.ndarray) -> Batch:
        """The masked samples at some indices of the stream.

        Args:
            indices: int64 [B], 0 or more; an index beyond the epoch belongs to a later one.

        Raises:
            ShardError: a shard is missing or damaged.
        """
        samples = self.samples(indices)
        special = self._special
        real = np.arange(samples.tokens.shape[1]) < samples.lengths[:, None]
        maskable = real & (samples.tokens != special.cls) & (samples.tokens != special.sep)
        masked = mask_tokens(
            samples.tokens,
            maskable,
            samples.lengths,
            indices,
            seed=self._seed,
            vocab_size=self._vocab_size,
            mask_id=special.mask,
            max_predictions=self._max_predictions,
            config=self._masking,
            continues=None if self._masking.unit == "token" else self._continuation[samples.tokens],
        )
        return Batch(
            input_ids=torch.from_numpy(masked.tokens),
            token_type_ids=torch.from_numpy(samples.token_types),
            attention_mask=torch.from_numpy(real),
            positions=torch.from_numpy(masked.positions),
            mlm_labels=torch.from_numpy(masked.labels),
            nsp_labels=torch.from_numpy((~samples.is_next).astype(np.int64)),
            indices=torch.from_numpy(np.asarray(indices, dtype=np.int64)),
        )

    def samples(self, indices: np.ndarray) -> Samples:
        """The samples at some indices of the stream before masking; see batch."""
        shard_ids, pair_ids = self.locate(np.asarray(indices, dtype=np.int64))
        size = len(shard_ids)
        tokens = np.full((size, self.sequence_length), self._special.pad, dtype=np.int64)
        token_types = np.zeros_like(tokens)
        lengths = np.zeros(size, dtype=np.int64)
        is_next = np.zeros(size, dtype=bool)
        for shard_id in np.unique(shard_ids):
            rows = np.flatnonzero(shard_ids == shard_id)
            shard = self._shard(int(shard_id))
            pairs = shard.pairs(self.sequence_length, pair_ids[rows])
            is_next[rows] = pairs.is_next
            a_begin, a_end = self._spans(shard, pairs.row, pairs.a_begin, pairs.a_end)
            b_begin, b_end = self._spans(shard, pairs.b_row, pairs.b_begin, pairs.b_end)
            for i, row in enumerate(rows):
                a, b = shard.tokens[a_begin[i] : a_end[i]], shard.tokens[b_begin[i] : b_end[i]]
                lengths[row] = self._lay_out(tokens[row], token_types[row], a, b)
        width = self._width(int(lengths.max()))
        return Samples(tokens[:, :width], token_types[:, :width], lengths, is_next)

    def locate(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where the samples lie: shard numbers and pair numbers within the shard, int64 [B] each."""
        epochs, offsets = np.divmod(indices, self.size)
        shard_ids, pair_ids = np.empty_like(indices), np.empty_like(indices)
        for epoch in np.unique(epochs):
            order = self._epoch(int(epoch))
            group_starts = order.starts[order.groups]
            of_epoch = np.flatnonzero(epochs == epoch)
            groups = np.searchsorted(group_starts, offsets[of_epoch], side="right") - 1
            for group in np.unique(groups):
                mine = of_epoch[groups == group]
                start, stop = group_starts[group], group_starts[group + 1]
                key = derive_key(self._seed, "pairs", self.sequence_length, int(epoch), int(group))
                places = start + permute(offsets[mine] - start, int(stop - start), key)
                slots = np.searchsorted(order.starts, places, side="right") - 1
                shard_ids[mine] = order.shards[slots]
                pair_ids[mine] = places - order.starts[slots]
        return shard_ids, pair_ids

    @functools.lru_cache(maxsize=4)  # noqa: B019  a stream lives as long as its process
    def _epoch(self, epoch: int) -> _Epoch:
        """Shuffle the shards and deal them into groups of at most ``shuffle_bytes``, at least one shard a group."""
        key = derive_key(self._seed, "shards", self.sequence_length, epoch)
        shards = permute(np.arange(len(self.entries)), len(self.entries), key)
        groups, filled = [0], 0
        for i, size in enumerate(self._bytes[shards]):
            if filled and filled + size > self._data.shuffle_bytes:
                groups.append(i)
                filled = 0
            filled += int(size)
        starts = np.concatenate([[0], np.cumsum(self._pairs[shards])])
        return _Epoch(shards, starts, np.array([*groups, len(shards)]))

    def _shard(self, shard_id: int) -> Shard:
        if shard_id not in self._shards:
            self._shards[shard_id] = self.directory.shard(self.entries[shard_id])
        return self._shards[shard_id]

    def _spans(self, shard: Shard, rows: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, ...]:
        """Spans within documents -> spans within the shard's tokens, after a look that they do lie within."""
        if ((rows < 0) | (rows >= len(shard))).any():
            raise ShardError(f"{shard.path}: a pair names a row that the shard does not have; make the shards again")
        documents = shard.token_offsets[rows], shard.token_offsets[rows + 1]
        if ((begins < 0) | (begins > ends) | (ends > documents[1] - documents[0])).any():
            raise ShardError(f"{shard.path}: a pair reaches beyond its document; make the shards again")
        return documents[0] + begins, documents[0] + ends

    def _lay_out(self, tokens: np.ndarray, token_types: np.ndarray, a: np.ndarray, b: np.ndarray) -> int:
        """Write [CLS] a [SEP] b [SEP] into a row, or [CLS] a [SEP] where b is empty; returns the length."""
        end_a = len(a) + 2
        length = end_a + (len(b) + 1 if len(b) else 0)
        if length > self.sequence_length:
            raise ShardError(
                f"{self.directory.path}: a pair of {length} tokens in the column for {self.sequence_length}; "
                "make the shards again"
            )
        tokens[0] = self._special.cls
        tokens[1 : end_a - 1] = a
        tokens[end_a - 1] = self._special.sep
        if len(b):
            tokens[end_a : length - 1] = b
            tokens[length - 1] = self._special.sep
            token_types[end_a:length] = 1
        return length

    def _width(self, longest: int) -> int:
        """How many columns a micro-batch gets."""
        if not self._data.pad_to_longest:
            return self.sequence_length
        return min(self.sequence_length, -(-longest // _PAD_MULTIPLE) * _PAD_MULTIPLE)


class Steps(Dataset[list[Batch]]):
    """One rank's share of every step: item s is the list of micro-batches that the rank computes in step s.

    A step's global batch is cut into micro-batches in the order of their indices, and micro-batch j goes to rank
    j mod world. So the micro-batches themselves, and whatever is derived from j, do not depend on the world size.
    """

    def __init__(self, stream: SampleStream, global_batch_size: int, micro_batch_size: int, rank: int, world: int):
        """Cut the stream into steps; the global batch is a multiple of micro-batch size times ranks."""
        assert global_batch_size % (micro_batch_size * world) == 0
        self._stream = stream
        self._global_batch_size = global_batch_size
        self._micro_batch_size = micro_batch_size
        self._rank = rank
        self._world = world
        self.accumulation = global_batch_size // (micro_batch_size * world)

    def __getitem__(self, step: int) -> list[Batch]:
        return [self._stream.batch(self._indices(step, i)) for i in range(self.accumulation)]

    def _indices(self, step: int, accumulated: int) -> np.ndarray:
        begin = step * self._global_batch_size + self.micro_batch_index(accumulated) * self._micro_batch_size
        return np.arange(begin, begin + self._micro_batch_size, dtype=np.int64)

    def micro_batch_index(self, accumulated: int) -> int:
        """The place within the step of this rank's micro-batch number ``accumulated``; the same at any world size."""
        return accumulated * self._world + self._rank


def load_steps(steps: Steps, first: int, last: int, workers: int) -> Iterator[list[Batch]]:
    """The steps [first, last) in order, read ahead by ``workers`` processes (0: in this process, when asked for)."""
    loader: DataLoader[list[Batch]] = DataLoader(
        steps,
        sampler=range(first, last),
        batch_size=None,
        collate_fn=_as_it_is,
        num_workers=workers,
        prefetch_factor=2 if workers else None,
    )
    return iter(loader)


def _as_it_is(step: list[Batch]) -> list[Batch]:
    return step


def validation_stream(directory: ShardDirectory, sequence_length: int) -> SampleStream:
    """The held-out samples with the standard masking, which no setting of a training changes."""
    return SampleStream(
        directory,
        "validation",
        sequence_length,
        seed=VALIDATION_SEED,
        max_predictions=sequence_length,
        masking=STANDARD,
        data=DataConfig(),
    )


def evaluation_batches(stream: SampleStream, samples: int, size: int, rank: int = 0, world: int = 1) -> Iterator[Batch]:
    """One rank's share of the first ``samples`` of a stream; every rank gets as many batches of ``size``.

    What is missing from the last ones is filled up with samples whose labels are empty.
    """
    for first in range(rank * size, -(-samples // (size * world)) * size * world, size * world):
        indices = np.arange(first, first + size, dtype=np.int64)
        yield _without_labels(stream.batch(indices), torch.from_numpy(indices >= samples))


def _without_labels(batch: Batch, rows: torch.Tensor) -> Batch:
    """A batch that predicts nothing in some of its rows, bool [B]."""
    of_rows = rows[batch.positions // batch.input_ids.shape[1]]
    return replace(
        batch,
        mlm_labels=batch.mlm_labels.masked_fill(of_rows, EMPTY_SLOT),
        nsp_labels=batch.nsp_labels.masked_fill(rows, EMPTY_SLOT),
    )
