"""Shards -> the sample stream -> the batches of a step.

The training input is a pure function: sample(seed, index) for index = 0, 1, 2, ... Step s of global batch B takes the
indices [s * B, (s + 1) * B), behind those of phases of the same length before it, whatever the number of ranks or
loader workers. So the state of the loader is one number, a resume is exact, no sample is seen twice in an epoch, and
every rank takes the same number of steps.

Where a sample lies is decided twice: trainer.mixture says which of several shard directories it comes from, and
trainer.order which of that directory's pairs it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional as F

from preprocessing.schema import MANIFEST, SPECIAL_TOKENS_OF_A_SINGLE, Pairs, Shard, ShardDirectory, ShardError, Split
from preprocessing.tokenization import CONTINUATION, VOCABULARY_FILE, load_vocabulary, special_ids
from trainer.masking import STANDARD, Masked, MaskingConfig, mask_tokens
from trainer.model import EMPTY_SLOT
from trainer.packing import PackedTokens, send
from trainer.sources import open_sources

_NO_WORDS = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))  # segments of a sample that is skipped
MAX_TOKEN_MULTIPLE = 1 << 16  # what fills up is computed on
MAX_WEIGHTS = 1e100  # whose products with numbers of samples and bytes are finite
_MAPPED = 2048  # shards at a time: what Arrow keeps of each takes 40 kB, and an epoch passes through all
VALIDATION_SEED = 0  # of its own, so that perplexities compare between runs of other seeds


@dataclass(frozen=True)
class DataConfig:
    """How samples are read.

    Attributes:
        workers: loader processes of each rank; 0 reads in the training process. -1 is 4 where the rank computes on a
            GPU, which would wait otherwise, and 0 on a CPU.
        shuffle_bytes: shards are shuffled in groups of about so many bytes; several directories share them by weight.
        weights: what part of the samples each shard directory gives, in proportion; empty for as many as it has pairs.
            A phase may have its own.
        skip: ranges [first, end) of the stream's indices whose samples are left out, in every phase; their places stay
            empty, so that all other samples keep theirs.
        cache_dir: copy the shards to this local directory of each node first; needed where they are not local files.
            Each node puts in its own ~ and variables, such as $SLURM_TMPDIR/shards.
        verify: compare the checksum of every shard with its manifest before training.
        token_multiple: the tokens of a micro-batch, laid end to end, are filled up to a multiple of this, and its
            predictions to a multiple of an eighth of it, so that CUDA graphs and compiled kernels meet few shapes; 1
            adds nothing, which is best on CPUs.
    """

    workers: int = -1
    shuffle_bytes: int = 2 << 30
    weights: tuple[float, ...] = ()
    skip: tuple[tuple[int, int], ...] = ()
    cache_dir: str = ""
    verify: bool = True
    token_multiple: int = 1

    def __post_init__(self) -> None:
        if not (-1 <= self.workers <= 1024 and 0 < self.shuffle_bytes < 2**63):
            raise ValueError("data.workers must be -1 to 1024 and data.shuffle_bytes positive and below 2^63")
        if not 1 <= self.token_multiple <= MAX_TOKEN_MULTIPLE:
            raise ValueError(f"data.token_multiple must be 1 to {MAX_TOKEN_MULTIPLE:,}")
        if not (all(weight > 0 for weight in self.weights) and sum(self.weights) < MAX_WEIGHTS):
            raise ValueError(
                f"data.weights must be positive numbers, and less than {MAX_WEIGHTS:g} together; leave a directory "
                "that is not wanted out of --shards"
            )
        if not all(0 <= first < end < 2**63 for first, end in self.skip):
            raise ValueError("data.skip must be pairs [first, end] of sample indices with 0 <= first < end < 2^63")

    def processes(self, device: torch.device) -> int:
        """Loader processes of a rank that computes on a device."""
        return self.workers if self.workers >= 0 else 4 if device.type == "cuda" else 0


@dataclass(frozen=True)
class Batch:
    """A micro-batch of B samples with P predictions in all.

    Attributes:
        tokens: the samples, masked and laid end to end; there may be sequences behind them that only fill up.
        positions: int64 [P], what to predict, among the T tokens.
        mlm_labels: int64 [P], the original tokens; EMPTY_SLOT where nothing is to be predicted.
        nsp_labels: int64 [B and those that fill up], 0 where the second segment follows the first, 1 where it is random
            (google's and Hugging Face's labels); EMPTY_SLOT for what is no sample.
        indices: int64 [B], of the samples in the stream.
    """

    tokens: PackedTokens
    positions: torch.Tensor
    mlm_labels: torch.Tensor
    nsp_labels: torch.Tensor
    indices: torch.Tensor

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
        """With what a function makes of each tensor that the model and its losses read."""
        return replace(
            self,
            tokens=self.tokens.map(function),
            positions=function(self.positions),
            mlm_labels=function(self.mlm_labels),
            nsp_labels=function(self.nsp_labels),
        )

    def to(self, device: torch.device) -> Batch:
        """The same batch on a device."""
        return self.map(lambda tensor: send(tensor, device))

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All that the model and its losses read."""
        return *self.tokens.tensors, self.positions, self.mlm_labels, self.nsp_labels

    @property
    def lengths(self) -> torch.Tensor:
        """int32 [B], tokens of each sample."""
        return self.tokens.lengths[: len(self.indices)]

    @property
    def sequences(self) -> torch.Tensor:
        """int64 [P], the sequence that each prediction belongs to."""
        return torch.searchsorted(self.tokens.bounds[1:].long(), self.positions, right=True)


class Samples(NamedTuple):
    """Unmasked samples, [CLS] A [SEP] B [SEP] and padding."""

    tokens: np.ndarray  # int64 [B, S]
    token_types: np.ndarray  # int64 [B, S]
    lengths: np.ndarray  # int64 [B]
    is_next: np.ndarray  # bool [B]


class Reads(NamedTuple):
    """What a stretch of a stream takes from a directory."""

    directory: ShardDirectory
    samples: int
    epochs: float  # of the directory's pairs

    def describe(self, source: str) -> str:
        """In words; ``source`` is what the directory is called."""
        duplicates = self.directory.manifest.duplicates
        texts = f", {_two_digits(self.epochs * duplicates)} readings of each text" if duplicates > 1 else ""
        return f"{self.samples:,} samples from {source} ({_two_digits(self.epochs)} epochs{texts})"


def _two_digits(number: float) -> str:
    """With as many decimals as two digits take, and two at least: 0.0012, 0.59, 25.00."""
    decimals = 1 - math.floor(math.log10(number)) if 0 < number < 0.1 else 2
    return f"{number:.{decimals}f}"


class SampleStream:
    """The endless, shuffled, masked stream of samples of one split and one sequence length.

    Attributes:
        directory: the first of the shard directories.
        size: pairs of all directories together: an epoch, unless weights say that some are read more often.
    """

    def __init__(
        self,
        shards: ShardDirectory | Sequence[ShardDirectory],
        split: Split,
        sequence_length: int,
        *,
        seed: int,
        masking: MaskingConfig,
        data: DataConfig,
        max_predictions: int | None = None,
        stretches: Sequence[tuple[int, Sequence[float]]] = (),
        causal: bool = False,
    ):
        """Prepare a stream; shards are mapped when they are first needed.

        Args:
            shards: one directory, or several of one vocabulary to be mixed.
            split: which part of them.
            sequence_length: whose pairs are read.
            seed: of the order and the masks.
            masking: how tokens are chosen and replaced.
            data: the settings.
            max_predictions: at most so many masked tokens a sample; None for as many as the masking says.
            stretches: of the stream, samples and weights of each, where the weights change on the way; without them
                data.weights hold all through.
            causal: predict every next token instead, and mask none.

        Raises:
            ShardError: a directory has no pairs of this length or split, there are other than its weights, or the
                manifest tells of another vocabulary than the tokenizer has.
        """
        directories = [shards] if isinstance(shards, ShardDirectory) else list(shards)
        self.directory = directories[0]
        self.sequence_length = sequence_length
        self._sources, self._mixture = open_sources(
            directories, split, sequence_length, seed, stretches or [(1, data.weights)], data.shuffle_bytes
        )
        self._entries = [(source.directory, entry) for source in self._sources for entry in source.entries]
        self._first_shards = np.cumsum([0, *(len(source.entries) for source in self._sources)])
        self._shards: dict[int, Shard] = {}  # those that are mapped, of all directories
        self.size = sum(source.order.size for source in self._sources)
        self._split = split
        self._seed = seed
        self._max_predictions = max_predictions
        self._masking = masking
        self._causal = causal
        self._data = data
        self._skip = np.array(data.skip, dtype=np.int64).reshape(-1, 2)
        self._vocab_size = self.directory.manifest.vocabulary.size
        vocabulary = load_vocabulary(self.directory.tokenizer / VOCABULARY_FILE)
        if len(vocabulary) != self._vocab_size:
            raise ShardError(
                f"{self.directory.path / MANIFEST}: a vocabulary of {self._vocab_size} entries, but "
                f"{VOCABULARY_FILE} has {len(vocabulary)}; make the shards again"
            )
        self._special = special_ids(vocabulary)
        self._continuation = np.array([token.startswith(CONTINUATION) for token in vocabulary])

    def batch(self, indices: np.ndarray) -> Batch:
        """The masked samples at some indices of the stream.

        Args:
            indices: int64 [B], 0 or more; an index beyond the epoch belongs to a later one.

        Raises:
            ShardError: a shard is missing or damaged.
            UnavailableError: it can't be read now.
        """
        samples = self.samples(indices)
        real = np.arange(samples.tokens.shape[1]) < samples.lengths[:, None]
        masked = self._next_tokens(samples) if self._causal else self._masked(samples, real, indices)
        packed_places = np.cumsum(real) - 1  # flattened [B, S] -> T
        tokens = PackedTokens(
            torch.from_numpy(masked.tokens[real]),
            torch.from_numpy(samples.token_types[real]),
            position_ids=torch.from_numpy(np.nonzero(real)[1]),
            bounds=torch.from_numpy(np.cumsum([0, *samples.lengths]).astype(np.int32)),
            longest=self.sequence_length,
        )
        batch = Batch(
            tokens=tokens,
            positions=torch.from_numpy(packed_places[masked.positions]),
            mlm_labels=torch.from_numpy(masked.labels),
            nsp_labels=torch.from_numpy((~samples.is_next).astype(np.int64)),
            indices=torch.from_numpy(np.asarray(indices, dtype=np.int64)),
        )
        if (skipped := self.skipped(batch.indices.numpy())).any():
            batch = _without_labels(batch, torch.from_numpy(skipped))
        return batch if self._data.token_multiple == 1 else _rounded_up(batch, self._data.token_multiple)

    def _masked(self, samples: Samples, real: np.ndarray, indices: np.ndarray) -> Masked:
        special = self._special
        return mask_tokens(
            samples.tokens,
            real & (samples.tokens != special.cls) & (samples.tokens != special.sep),
            samples.lengths,
            indices,
            seed=self._seed,
            vocab_size=self._vocab_size,
            mask_id=special.mask,
            max_predictions=self._max_predictions,
            config=self._masking,
            continues=None if self._masking.unit == "token" else self._continuation[samples.tokens],
        )

    def _next_tokens(self, samples: Samples) -> Masked:
        """Nothing is masked, and every token predicts the one after it (paper, section 5.1, LTR & No NSP)."""
        width = samples.tokens.shape[1]
        positions = np.flatnonzero(np.arange(width) < samples.lengths[:, None] - 1)
        return Masked(samples.tokens, positions, samples.tokens.reshape(-1)[positions + 1])

    def samples(self, indices: np.ndarray) -> Samples:
        """The samples at some indices of the stream before masking; see batch. Skipped ones have no words."""
        indices = np.asarray(indices, dtype=np.int64)
        segments = [_NO_WORDS] * len(indices)
        is_next = np.zeros(len(indices), dtype=bool)
        for places, shard, pairs in self._pairs(indices):
            is_next[places] = pairs.is_next
            try:
                found = shard.segments(pairs, self.sequence_length)
            except ShardError as error:
                raise self._naming(error, indices[places]) from error
            for place, both in zip(places.tolist(), found, strict=True):
                segments[place] = both
        samples = self._lay_out(segments, is_next)
        if samples.tokens.max() >= self._vocab_size:
            foreign = indices[(samples.tokens >= self._vocab_size).any(axis=1)]
            shard = self._shard(int(self.locate(foreign)[0][0]))
            raise self._naming(shard.wrong("a token that the vocabulary does not have"), foreign)
        return samples

    def lengths(self, indices: np.ndarray) -> np.ndarray:
        """Tokens of the samples at some indices, special ones too, int64 [B], by their pairs alone: no token is read.

        Raises:
            ShardError: a shard is missing or damaged; a damaged pair has some length or other.
            UnavailableError: it can't be read now.
        """
        lengths = np.full(len(indices), SPECIAL_TOKENS_OF_A_SINGLE, dtype=np.int64)  # of those that are skipped
        for places, _, pairs in self._pairs(indices):
            lengths[places] = pairs.lengths
        return lengths

    def _pairs(self, indices: np.ndarray) -> Iterator[tuple[np.ndarray, Shard, Pairs]]:
        """What is drawn for some indices, but for skipped ones: a shard's pairs, [n], and their places in indices."""
        kept = np.flatnonzero(~self.skipped(indices))
        shard_ids, pair_ids = self.locate(indices[kept])
        for shard_id in set(shard_ids.tolist()):
            mine = shard_ids == shard_id
            shard = self._shard(shard_id)
            yield kept[mine], shard, shard.pairs(self.sequence_length, pair_ids[mine])

    def locate(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where the samples lie: shard numbers, counted over all directories, and pair numbers, int64 [B] each."""
        sources, positions = self._mixture.deal(indices)
        shard_ids, pair_ids = np.empty_like(indices), np.empty_like(indices)
        for source in set(sources.tolist()):
            mine = sources == source
            shards, pair_ids[mine] = self._sources[source].order.locate(positions[mine])
            shard_ids[mine] = self._first_shards[source] + shards
        return shard_ids, pair_ids

    def by_directory(self, indices: np.ndarray) -> list[tuple[ShardDirectory, np.ndarray]]:
        """The directories that some indices' samples come from, each with its own of the indices, in their order."""
        numbers, _ = self._mixture.deal(indices)
        return [
            (source.directory, indices[numbers == number])
            for number, source in enumerate(self._sources)
            if (numbers == number).any()
        ]

    def reads(self, first: int, last: int) -> list[Reads]:
        """What the samples [first, last) take from each directory that has a part in the stream."""
        counts = zip(self._sources, self._mixture.given(first), self._mixture.given(last), strict=True)
        return [
            Reads(source.directory, after - before, (after - before) / source.order.size)
            for source, before, after in counts
        ]

    def skipped(self, indices: np.ndarray) -> np.ndarray:
        """Which of some indices are to be left out, bool [B]."""
        ranges = self._skip
        inside = (indices[:, None] >= ranges[:, 0]) & (indices[:, None] < ranges[:, 1])
        return np.asarray(inside.any(axis=1))

    def check_files(self) -> None:
        """See that the shards are still there and as long as they should be.

        Raises:
            ShardError: names the first that is not.
        """
        for source in self._sources:
            ShardDirectory(source.directory.path)

    def _shard(self, shard_id: int) -> Shard:
        if shard_id not in self._shards:
            directory, entry = self._entries[shard_id]
            shard = directory.shard(entry)
            if len(self._shards) == _MAPPED:
                del self._shards[next(iter(self._shards))]  # mapped before all others
            self._shards[shard_id] = shard
        return self._shards[shard_id]

    def _naming(self, error: ShardError, indices: np.ndarray) -> ShardError:
        """The same error, in training with the samples, by their places in the stream, that may be left out."""
        if self._split != "train":
            return error
        named = ", ".join(map(str, indices))
        return ShardError(f"{error}, or leave out by data.skip what is wrong among the samples {named}")

    def _lay_out(self, segments: Sequence[tuple[np.ndarray, np.ndarray]], is_next: np.ndarray) -> Samples:
        """[CLS] a [SEP] b [SEP] in each row, or [CLS] a [SEP] where b is empty."""
        cls, sep = (np.array([token], dtype=np.int64) for token in (self._special.cls, self._special.sep))
        pieces = [piece for a, b in segments for piece in ((cls, a, sep, b, sep) if len(b) else (cls, a, sep))]
        first = np.array([len(a) for a, _ in segments]) + 2
        second = np.array([len(b) for _, b in segments])
        lengths = first + second + (second > 0)
        columns = np.arange(lengths.max())
        real = columns < lengths[:, None]
        tokens = np.full(real.shape, self._special.pad, dtype=np.int64)
        tokens[real] = np.concatenate(pieces)
        return Samples(tokens, (real & (columns >= first[:, None])).astype(np.int64), lengths, is_next)


def _rounded_up(batch: Batch, multiple: int) -> Batch:
    """The same samples and predictions in shapes that are multiples; what is added predicts nothing."""
    tokens = batch.tokens.round_up(multiple)
    unread = torch.ones(len(tokens.input_ids), dtype=torch.bool)
    unread[batch.positions] = unread[tokens.firsts.long()] = False  # no kernel has room for a token that asks twice
    missing = -len(batch.positions) % max(1, multiple // 8)
    added = len(tokens.lengths) - len(batch.nsp_labels)
    return replace(
        batch,
        tokens=tokens,
        positions=torch.cat([batch.positions, F.pad(unread.nonzero().squeeze(1), (0, missing))[:missing]]),
        mlm_labels=F.pad(batch.mlm_labels, (0, missing), value=EMPTY_SLOT),
        nsp_labels=F.pad(batch.nsp_labels, (0, added), value=EMPTY_SLOT),
    )


def validation_stream(
    shards: ShardDirectory | Sequence[ShardDirectory], sequence_length: int, causal: bool = False
) -> SampleStream:
    """The held-out samples of all directories with the standard masking, which no setting of a training changes.

    Args:
        shards: directories of one vocabulary.
        sequence_length: of the samples.
        causal: for a model that reads from left to right: every token predicts the next one, none is masked.
    """
    return SampleStream(
        shards,
        "validation",
        sequence_length,
        seed=VALIDATION_SEED,
        masking=STANDARD,
        data=DataConfig(),
        causal=causal,
    )


def evaluation_batches(
    stream: SampleStream, indices: np.ndarray, size: int, rank: int = 0, world: int = 1
) -> Iterator[Batch]:
    """One rank's share of the samples at some indices, int64 [n]; every rank gets as many batches of ``size``.

    What is missing from the last ones is filled up with samples whose labels are empty.
    """
    missing = -len(indices) % (size * world)
    filled = np.concatenate([indices, indices[-1:] + 1 + np.arange(missing)])
    for first in range(rank * size, len(filled), size * world):
        places = np.arange(first, first + size)
        yield _without_labels(stream.batch(filled[places]), torch.from_numpy(places >= len(indices)))


def _without_labels(batch: Batch, rows: torch.Tensor) -> Batch:
    """A batch that predicts nothing in some of its rows, bool [B]."""
    of_rows = rows[batch.sequences]
    return replace(
        batch,
        mlm_labels=batch.mlm_labels.masked_fill(of_rows, EMPTY_SLOT),
        nsp_labels=batch.nsp_labels.masked_fill(rows, EMPTY_SLOT),
    )
