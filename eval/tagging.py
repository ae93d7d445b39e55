"""Words with tags: the first piece of a word stands for it, and a sentence is read within its document.

Paper, section 5.3: "we include the maximal document context provided by the data".
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from tokenizers import Encoding

from eval.encoding import Encoder, Sample
from eval.readers.conll import convert_tags
from eval.readers.examples import TaggedSentence
from trainer.model import EMPTY_SLOT


class Word(NamedTuple):
    """Where a word is: the number of its sentence and of itself in it, and the place of its first piece."""

    sentence: int
    word: int
    place: int


@dataclass(frozen=True)
class Passage(Sample):
    """Part of a document.

    Attributes:
        words: those whose tags are asked for, in the order of their places in the sequence.
    """

    words: tuple[Word, ...]


class _Question(NamedTuple):
    """Words that are asked for, and the pieces of their document that are shown: from begin up to, not with, end."""

    begin: int
    end: int
    words: list[Word]


def passages(
    sentences: Sequence[TaggedSentence], encoder: Encoder, tags: Sequence[str], context: bool, merged: bool
) -> list[Passage]:
    """A passage for each sentence, in order.

    A sentence longer than the encoder's sequences is divided. A word of which no piece is left, such as one of control
    characters, is in no passage.

    Args:
        sentences: of whole documents, in order.
        encoder: its sequences are as long as they may be.
        tags: of IOB2, in the order of their numbers.
        context: surround a sentence by as much of its document as fits, on both sides if there is enough.
        merged: let passages that show the same be one that asks for the words of all: the same predictions for less.
    """
    targets = [tag_numbers(sentence, tags) for sentence in sentences]
    found = []
    for _, group in itertools.groupby(range(len(sentences)), key=lambda i: sentences[i].document):
        numbers = list(group)
        encodings = encoder.word_pieces([sentences[i].words for i in numbers])
        ids = np.concatenate([np.array(encoding.ids, dtype=np.int32) for encoding in encodings])
        questions = list(_questions(numbers, encodings, encoder.max_length - 2, context))
        found += [
            _passage(ids, question, targets, encoder) for question in (_merge(questions) if merged else questions)
        ]
    return found


def tag_numbers(sentence: TaggedSentence, tags: Sequence[str]) -> tuple[int, ...]:
    """The numbers of a sentence's tags, whether the sentence has IOB1 or IOB2."""
    return tuple(tags.index(tag) for tag in convert_tags(sentence.tags))


def _questions(numbers: Sequence[int], encodings: Sequence[Encoding], room: int, context: bool) -> Iterator[_Question]:
    """A document's sentences, one after the other; those longer than ``room`` in several parts."""
    ends = list(itertools.accumulate(len(encoding.ids) for encoding in encodings))
    for number, encoding, begin, end in zip(numbers, encodings, [0, *ends], ends, strict=False):
        words = [Word(number, word, begin + piece) for word, piece in _first_pieces(encoding)]
        for part in range(begin, end, room):
            limit = min(part + room, end)
            shown = _surround(part, limit, ends[-1], room) if context else (part, limit)
            yield _Question(*shown, [word for word in words if part <= word.place < limit])


def _first_pieces(encoding: Encoding) -> list[tuple[int, int]]:
    """Each word that has pieces, and its first one."""
    first: dict[int, int] = {}
    for piece, word in enumerate(encoding.word_ids):
        if word is not None:  # special tokens belong to none; there are none here
            first.setdefault(word, piece)
    return list(first.items())


def _surround(begin: int, end: int, length: int, room: int) -> tuple[int, int]:
    """Widen a stretch of a document to ``room`` pieces: evenly, but for what one side lacks."""
    left = begin - (room - (end - begin)) // 2
    left = max(0, min(left, length - room))
    return left, min(left + room, length)


def _merge(questions: Sequence[_Question]) -> list[_Question]:
    merged: dict[tuple[int, int], _Question] = {}
    for question in questions:
        merged.setdefault(question[:2], _Question(*question[:2], [])).words.extend(question.words)
    return list(merged.values())


def _passage(ids: np.ndarray, question: _Question, targets: Sequence[Sequence[int]], encoder: Encoder) -> Passage:
    sequence = encoder.single(ids[question.begin : question.end])
    words = tuple(word._replace(place=word.place - question.begin + 1) for word in question.words)  # behind [CLS]
    by_piece = [EMPTY_SLOT] * len(sequence.ids)
    for sentence, word, place in words:
        by_piece[place] = targets[sentence][word]
    return Passage((sequence,), tuple(by_piece), words)


def read_tags(
    sentences: Sequence[TaggedSentence], found: Sequence[Passage], logits: Sequence[np.ndarray], tags: Sequence[str]
) -> list[list[str]]:
    """The most probable tag of every word; O for one that is in no passage.

    Args:
        sentences: as many as ``passages`` got.
        found: their passages.
        logits: of each passage, a row of [K] for each of its words.
        tags: as ``passages`` got them.
    """
    predicted = [["O"] * len(sentence.words) for sentence in sentences]
    for passage, scores in zip(found, logits, strict=True):
        for word, best in zip(passage.words, scores.argmax(axis=1), strict=True):
            predicted[word.sentence][word.word] = tags[best]
    return predicted
