"""From texts to sequences of tokens, and from these to batches.

B samples, T tokens of all their sequences laid end to end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from tokenizers import Encoding, Tokenizer
from torch import Tensor

from eval.errors import UsageError
from preprocessing.tokenization import CLS, MASK, SEP, UNKNOWN
from trainer.model import EMPTY_SLOT
from trainer.packing import PackedTokens, send

LongText = Literal["head", "tail", "head+tail"]
_SHORTEST = 4  # [CLS], a token, [SEP] and, of a pair, another [SEP]
_AT_ONCE = 1000  # texts to the tokenizer, which takes some 100 bytes for a token whose id takes four
_FRONT = 128 / 510  # Sun et al. (2019), section 5.3.1: the first 128 and the last 382 of 510


class Segments(NamedTuple):
    """A sequence of S tokens with [CLS] and [SEP].

    Attributes:
        ids: int32 [S].
        second: where the second segment begins; S where there is none.
    """

    ids: np.ndarray
    second: int


@dataclass(frozen=True)
class Sample:
    """What is learned from, or predicted for, as one.

    Attributes:
        sequences: one, or one for each choice.
        targets: what a head should say; EMPTY_SLOT for a class that doesn't count, nothing where it isn't known.
    """

    sequences: tuple[Segments, ...]
    targets: tuple[float, ...]

    @property
    def size(self) -> int:
        """Tokens of all sequences."""
        return sum(len(sequence.ids) for sequence in self.sequences)


@dataclass(frozen=True)
class Batch:
    """Samples on a device.

    Attributes:
        tokens: of all sequences.
        targets: int64, or float32 for figures: those of all samples, one after the other.
        counted: int64 [R], ascending, which targets count: of figures all of them, whichever they are. Found before
            they are on a device, where the host would wait for their number.
    """

    tokens: PackedTokens
    targets: Tensor
    counted: Tensor

    @property
    def count(self) -> int:
        """Targets that count."""
        return len(self.counted)

    def to(self, device: torch.device) -> Batch:
        """The same on a device."""
        targets, counted = send(self.targets, device), send(self.counted, device)
        return replace(self, tokens=self.tokens.to(device), targets=targets, counted=counted)


def collate(samples: Sequence[Sample]) -> Batch:
    """Lay samples end to end; targets are figures where any of them has a fraction's type."""
    sequences = [sequence for sample in samples for sequence in sample.sequences]
    ids = np.concatenate([sequence.ids for sequence in sequences]).astype(np.int64)
    types = np.concatenate([np.arange(len(sequence.ids)) >= sequence.second for sequence in sequences])
    lengths = torch.tensor([len(sequence.ids) for sequence in sequences])
    tokens = PackedTokens.from_flat(torch.from_numpy(ids), torch.from_numpy(types.astype(np.int64)), lengths)
    targets = torch.tensor([target for sample in samples for target in sample.targets])
    counts = torch.ones_like(targets) if targets.is_floating_point() else targets != EMPTY_SLOT
    return Batch(tokens, targets, counts.nonzero().squeeze(1))


class Encoder:
    """A tokenizer, and how long a sequence may be.

    Args:
        tokenizer: of a BERT; its own settings say how it cuts words and whether it lowers their case.
        max_length: tokens of a sequence, special ones included.

    Raises:
        UsageError: that leaves no room for texts.
    """

    def __init__(self, tokenizer: Tokenizer, max_length: int) -> None:
        if max_length < _SHORTEST:
            raise UsageError(f"sequences of {max_length} tokens have no room for texts; give {_SHORTEST} or more")
        self.max_length = max_length
        self._unknown = tokenizer.token_to_id(UNKNOWN)
        self._cls, self._sep = tokenizer.token_to_id(CLS), tokenizer.token_to_id(SEP)
        self._tokenizer = Tokenizer.from_str(tokenizer.to_str())
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True  # a "[SEP]" in a text is text

    def pieces(self, texts: Sequence[str]) -> Iterator[Encoding]:
        """Each text's ids and the characters that they stand for, without special tokens."""
        for some in _parts(texts):
            yield from self._tokenizer.encode_batch(some, add_special_tokens=False)

    def ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Each text's ids, int32, without special tokens."""
        return [
            np.array(encoding.ids, dtype=np.int32)
            for some in _parts(texts)
            for encoding in self._tokenizer.encode_batch_fast(some, add_special_tokens=False)
        ]

    def word_pieces(self, sentences: Sequence[Sequence[str]]) -> list[Encoding]:
        """Each sentence's ids and which of its words they belong to, without special tokens."""
        words = [list(sentence) for sentence in sentences]
        return list(self._tokenizer.encode_batch(words, is_pretokenized=True, add_special_tokens=False))

    def unknown_share(self, ids: np.ndarray) -> float:
        """Of the pieces of texts, special tokens aside; 1 where none is left of any text."""
        pieces = ids[(ids != self._cls) & (ids != self._sep)]
        return float(np.mean(pieces == self._unknown)) if len(pieces) else 1.0

    def single(self, ids: np.ndarray, long_text: LongText = "head") -> Segments:
        """[CLS] text [SEP], the text shortened to fit."""
        ids = shorten(ids, self.max_length - 2, long_text)
        return Segments(np.concatenate([[self._cls], ids, [self._sep]]).astype(np.int32), len(ids) + 2)

    def pair(self, first: np.ndarray, second: np.ndarray) -> Segments:
        """[CLS] first [SEP] second [SEP], the longer one shortened until both fit."""
        kept_first, kept_second = truncate_pair(len(first), len(second), self.max_length - 3)
        first, second = first[:kept_first], second[:kept_second]
        ids = np.concatenate([[self._cls], first, [self._sep], second, [self._sep]]).astype(np.int32)
        return Segments(ids, kept_first + 2)


def _parts(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    return (texts[begin : begin + _AT_ONCE] for begin in range(0, len(texts), _AT_ONCE))


def mask_places(tokenizer: Tokenizer, encoding: Encoding) -> list[int]:
    """Where a text that was encoded has [MASK]. By its id: a tokenizer may take the blank before it into the token."""
    mask = tokenizer.token_to_id(MASK)
    return [place for place, number in enumerate(encoding.ids) if number == mask]


def truncate_pair(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens two texts keep (google-research/bert, run_classifier.py, _truncate_seq_pair).

    A token at a time is taken from the end of the longer text, from the second one if they are equally long.
    """
    excess = max(0, first + second - room)
    from_longer = min(excess, abs(first - second))
    if first > second:
        first -= from_longer
    else:
        second -= from_longer
    left = excess - from_longer
    return first - left // 2, second - (left + 1) // 2


def shorten(ids: np.ndarray, room: int, long_text: LongText) -> np.ndarray:
    """Keep the beginning, the end, or a quarter of the beginning and three of the end, where there is too much."""
    if len(ids) <= room:
        return ids
    front = {"head": room, "tail": 0, "head+tail": int(room * _FRONT)}[long_text]
    return np.concatenate([ids[:front], ids[len(ids) - (room - front) :]])
