"""Make a WordPiece vocabulary of a sample of texts: a new one, or a published one with the words that it lacks."""

from __future__ import annotations

import heapq
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from tokenizers import Tokenizer, models, trainers

from preprocessing.tokenization import (
    CONTINUATION,
    LONGEST_WORD,
    SPECIAL_TOKENS,
    UNKNOWN,
    VocabularyError,
    build_tokenizer,
    cut,
)

MIN_FREQUENCY = 2  # a piece seen once in the sample says nothing about the language
ALPHABET_SHARE = 8  # at most one entry in this many is a single character, and another one the same inside words


def train_vocabulary(texts: Sequence[str], size: int, lowercase: bool) -> list[str]:
    """Train a WordPiece vocabulary: the same for the same texts, whatever their order and the number of processes.

    The trainer of `tokenizers` numbers characters in the order of a hash table, and breaks ties between merges by
    these numbers, so its result changes from run to run. Here the characters come first, sorted, as if they were
    special tokens; then every later number is determined.

    Args:
        texts: the sample to learn from.
        size: how many entries are wanted; fewer are returned when the sample has no more pieces seen twice.
        lowercase: uncased model.

    Returns:
        The tokens in the order of their ids, the special tokens at 0-4.

    Raises:
        VocabularyError: no text, or a size that has no room for the special tokens and the alphabet.
    """
    tokenizer = build_tokenizer(SPECIAL_TOKENS, lowercase)
    pieces = _count_pieces(texts, tokenizer)
    if not pieces:
        raise VocabularyError("there is no text to train a vocabulary on")
    characters = max(64, size // ALPHABET_SHARE)
    leading = [*SPECIAL_TOKENS, *_alphabet(pieces, characters)]
    if size <= len(leading):
        raise VocabularyError(f"size {size} leaves no room beside {len(leading)} special tokens and characters")
    vocabulary = _merged(texts, leading, size, tokenizer)
    # In Chinese every character is a word: there is little to merge, and room for more of them.
    if room := size - len(vocabulary):
        leading = [*SPECIAL_TOKENS, *_alphabet(pieces, characters, room)]
        vocabulary = _merged(texts, leading, size, tokenizer)
    return vocabulary


def _merged(texts: Sequence[str], leading: Sequence[str], size: int, tokenizer: Tokenizer) -> list[str]:
    """The tokens that come first, and what is merged of characters among them, in the order of their ids."""
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=MIN_FREQUENCY,
        special_tokens=list(leading),
        limit_alphabet=0,  # `leading` is the alphabet
        show_progress=False,
    )
    # A fresh tokenizer: special tokens that are registered already would be kept out of the training.
    learner = Tokenizer(models.WordPiece(unk_token=UNKNOWN))
    learner.normalizer, learner.pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
    learner.train_from_iterator(texts, trainer)
    ids: dict[str, int] = learner.get_vocab()
    return sorted(ids, key=ids.__getitem__)


class Extended(NamedTuple):
    """A vocabulary with more entries.

    Attributes:
        tokens: in the order of their ids: the given ones, then the new ones, those first that save most.
        before: how many tokens the given ones make of a word of the sample, on average.
        after: and all of them.
    """

    tokens: list[str]
    before: float
    after: float


def extend_vocabulary(given: Sequence[str], texts: Iterable[str], size: int, lowercase: bool) -> Extended:
    """Add the words of a domain to a vocabulary, whose entries keep their ids; the same for any order of the texts.

    Added is, one after the other, what then saves most tokens in the sample: a word that is cut up, what several such
    words begin with, or a character that makes words unknown. An unknown word counts as one that is cut in two.

    Args:
        given: a checked vocabulary, such as a published model's.
        texts: the sample to learn from.
        size: how many entries are wanted; fewer are returned where nothing more that is seen twice would save any.
        lowercase: uncased model.

    Raises:
        VocabularyError: no text.
    """
    found = _count_pieces(texts, build_tokenizer(given, lowercase))
    words = Counter({word: count for word, count in found.items() if len(word) <= LONGEST_WORD})
    if not words:
        raise VocabularyError("there is no text to learn words from")
    ids = {token: number for number, token in enumerate(given)}
    before = _tokens_per_word(words, ids)
    missing: Counter[str] = Counter()  # characters
    beginnings: Counter[str] = Counter()  # of words, as far as they are cut: unab, unabash and unabashed
    for word, count in words.items():
        pieces = [given[number].removeprefix(CONTINUATION) for number in cut(word, ids)]
        for beginning in accumulate(pieces or [word]):
            beginnings[beginning] += count
        for character in () if pieces else (word[0], *(CONTINUATION + inner for inner in word[1:])):
            if character not in ids:
                missing[character] += count
    ordered = sorted(words)

    def saved(entry: str) -> int:
        if entry in missing:
            return missing[entry]
        begun = ordered[bisect_left(ordered, entry) : bisect_left(ordered, entry + chr(sys.maxunicode))]
        return sum(words[word] * _saved_in(word, entry, ids) for word in begun)

    seen_twice = {
        entry for counts in (missing, beginnings) for entry, count in counts.items() if count >= MIN_FREQUENCY
    }
    candidates = [(-saved(entry), entry) for entry in seen_twice if entry not in ids]
    heapq.heapify(candidates)
    while candidates and len(ids) < size:
        promised, entry = heapq.heappop(candidates)
        if (now := -saved(entry)) > promised:  # an entry that was added since has saved some of it
            heapq.heappush(candidates, (now, entry))
        elif now < 0:
            ids[entry] = len(ids)
    return Extended(list(ids), before, _tokens_per_word(words, ids))


def _saved_in(word: str, beginning: str, ids: Mapping[str, int]) -> int:
    """How many tokens fewer a word is once there is an entry for what it begins with: the longest one is taken."""
    now = cut(word, ids)
    if word == beginning:
        return (len(now) or 2) - 1
    if not now or any(word[:length] in ids for length in range(len(beginning) + 1, len(word) + 1)):
        return 0
    rest = cut(CONTINUATION + word[len(beginning) :], ids)
    return len(now) - 1 - len(rest) if rest else -1  # it would become unknown


def _tokens_per_word(words: Counter[str], ids: Mapping[str, int]) -> float:
    return sum(count * (len(cut(word, ids)) or 1) for word, count in words.items()) / words.total()


def _count_pieces(texts: Iterable[str], tokenizer: Tokenizer) -> Counter[str]:
    """How often each stretch without white space or punctuation occurs; punctuation marks count as such too."""
    words: Counter[str] = Counter()
    for text in texts:
        words.update(tokenizer.normalizer.normalize_str(text).split())
    pieces: Counter[str] = Counter()
    for word, count in words.items():
        for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(word):
            pieces[piece] += count
    return pieces


def _alphabet(pieces: Counter[str], limit: int, room: int = 0) -> list[str]:
    """The most frequent characters, sorted, and then the ## forms of those that occur inside words.

    Args:
        pieces: of the text, with how often they occur.
        limit: how many characters.
        room: entries for more of them, as far as these occur more than once.
    """
    frequency: Counter[str] = Counter()
    inside: set[str] = set()
    for piece, count in pieces.items():
        for character in piece:
            frequency[character] += count
        inside.update(piece[1:])
    ranked = sorted(frequency, key=lambda character: (-frequency[character], character))
    for character in ranked[limit:]:
        room -= 1 + (character in inside)
        if room < 0 or frequency[character] < MIN_FREQUENCY:
            break
        limit += 1
    kept = sorted(ranked[:limit])
    return kept + [CONTINUATION + character for character in kept if character in inside]
