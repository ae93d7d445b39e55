"""Dynamic masking: which tokens of a sample the model must predict, as a pure function of (seed, sample index).

Follows google-research/bert, create_masked_lm_predictions: of n tokens, max(1, round(0.15 n)) are chosen, at most
``max_predictions`` where there is such a limit; of those 80 % become [MASK], 10 % a random token, 10 % stay. Google
masks once while it preprocesses; here every visit of a sample has a new index and so a new mask.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from trainer.philox import below, derive_key, random_words, random_words_at

_CHOICE, _REPLACEMENT, _SPANS = 0, 1, 2  # independent streams of random words for one sample
_TRIES = 8  # spans that are drawn for each token to predict, before what is missing is left out
_FEWEST_TRIES = 64  # for a sample: of few words, most may be too long for the little that is to be predicted


@dataclass(frozen=True)
class MaskingConfig:
    """How tokens are masked.

    Attributes:
        unit: what is chosen: single tokens; whole words, all of whose pieces are masked (google-research/bert,
            do_whole_word_mask); or spans of words (Joshi et al., 2020, SpanBERT), which share one fate.
        probability: share of a sample's tokens that is predicted.
        mask: share of the predicted tokens that becomes [MASK].
        random: share that becomes a random token; the rest stays as it is.
        span_probability: p; a span has n words with probability p (1 - p)^(n - 1), up to longest_span.
        longest_span: the most words of a span.
    """

    unit: Literal["token", "word", "span"] = "token"
    probability: float = 0.15
    mask: float = 0.8
    random: float = 0.1
    span_probability: float = 0.2
    longest_span: int = 10

    def __post_init__(self) -> None:
        if not 0 < self.probability < 1:
            raise ValueError(f"masking.probability is {self.probability}; it must lie between 0 and 1")
        if not (self.mask >= 0 and self.random >= 0 and self.mask + self.random <= 1):
            raise ValueError(
                f"masking.mask is {self.mask}, masking.random {self.random}; shares must add up to 1 at most"
            )
        if not (0 < self.span_probability < 1 and 0 < self.longest_span < 2**31):
            raise ValueError(
                "masking.span_probability must lie between 0 and 1, masking.longest_span be 1 or more and below 2^31"
            )


STANDARD = MaskingConfig()


class Masked(NamedTuple):
    """A masked batch; P predictions over all samples, sample after sample, in the order of positions."""

    tokens: np.ndarray  # [B, S] as given, with [MASK] and random tokens in place
    positions: np.ndarray  # int64 [P], into the flattened [B * S]
    labels: np.ndarray  # int64 [P], the original tokens


def mask_tokens(
    tokens: np.ndarray,
    maskable: np.ndarray,
    lengths: np.ndarray,
    indices: np.ndarray,
    *,
    seed: int,
    vocab_size: int,
    mask_id: int,
    max_predictions: int | None = None,
    config: MaskingConfig = STANDARD,
    continues: np.ndarray | None = None,
) -> Masked:
    """Choose and replace the tokens to predict.

    Args:
        tokens: integers [B, S].
        maskable: bool [B, S], false for special tokens and padding, which are never chosen.
        lengths: [B], tokens of each sample with its special tokens, of which ``config.probability`` is taken.
        indices: [B], the samples' indices in the stream: the only thing but the seed that the mask depends on.
        seed: of the run.
        vocab_size: random tokens are drawn from all of the vocabulary, as google does.
        mask_id: id of [MASK].
        max_predictions: at most so many predictions a sample; None for as many as ``config.probability`` says.
        config: rates.
        continues: bool [B, S], true for a piece that continues the word before it; words and spans need it.
    """
    batch, width = tokens.shape
    key = derive_key(seed, "masking")
    wanted = np.minimum(count_predictions(lengths, config.probability, max_predictions), maskable.sum(axis=1))
    # One random word for every place: a place keeps its word however far a row is padded, and so its mask.
    words = random_words(key, indices, width, _CHOICE)
    if config.unit == "token":
        positions = _choose_tokens(words, maskable, wanted)
        decides = positions
    else:
        assert continues is not None
        choose = _choose_words if config.unit == "word" else _choose_spans
        used = np.full(batch, width)
        if config.unit == "span":
            # Of a row's own number: others of its batch, which resuming on other GPUs changes, give it no more tries.
            used = 2 * np.maximum(_FEWEST_TRIES, _TRIES * wanted)
            words = random_words(key, indices, int(used.max()), _SPANS)
        chosen = [
            place
            for row in range(batch)
            for place in choose(
                words[row, : used[row]], maskable[row], continues[row], int(wanted[row]), row * width, config
            )
        ]
        positions, decides = np.array(sorted(chosen), dtype=np.int64).reshape(-1, 2).T

    labels = tokens.reshape(-1)[positions].astype(np.int64)
    draws = random_words_at(key, np.asarray(indices)[positions // width], positions % width, 2, _REPLACEMENT)
    fate = draws[np.searchsorted(positions, decides), 0] / 2.0**32  # who decides is itself among the chosen
    replaced = np.where(fate < config.mask, mask_id, labels)
    randomised = (fate >= config.mask) & (fate < config.mask + config.random)
    replaced = np.where(randomised, below(draws[:, 1], vocab_size), replaced)

    masked = tokens.copy()
    masked.reshape(-1)[positions] = replaced
    return Masked(masked, positions, labels)


def count_predictions(lengths: np.ndarray, probability: float, max_predictions: int | None) -> np.ndarray:
    """How many tokens of samples with so many are predicted, int64 [B]: a share, one at least; see mask_tokens."""
    counts: np.ndarray = np.clip(np.rint(lengths * probability).astype(np.int64), 1, max_predictions)
    return counts


def _choose_tokens(words: np.ndarray, maskable: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The ``wanted`` places of each row with the smallest random words, found by one sort of (word, place)."""
    batch, width = maskable.shape
    places = np.arange(width, dtype=np.uint64)
    order = np.where(maskable, words.astype(np.uint64) << np.uint64(32) | places, np.iinfo(np.uint64).max)
    order.sort(axis=1)
    rows = np.repeat(np.arange(batch), wanted)
    columns = (order[np.arange(width) < wanted[:, None]] & np.uint64(0xFFFFFFFF)).astype(np.int64)
    return np.sort(rows * width + columns)


def _whole_words(maskable: np.ndarray, continues: np.ndarray) -> list[tuple[int, int]]:
    """[begin, end) of every word of a row. A piece after a special token begins a word, whatever it looks like."""
    begins = maskable & ~(continues & np.concatenate([[False], maskable[:-1]]))
    starts = np.flatnonzero(begins)
    # A word ends where the next one begins or the maskable stretch ends, whichever comes first.
    stops = np.flatnonzero(np.concatenate([maskable, [False]]) & ~np.concatenate([maskable[1:], [False, False]])) + 1
    next_stop = stops[np.searchsorted(stops, starts, side="right")]
    return list(zip(starts.tolist(), np.minimum(np.append(starts[1:], 1 << 60), next_stop).tolist(), strict=True))


# In the flattened batch: a place, and the place whose draw decides what becomes of it.
_Chosen = Iterator[tuple[int, int]]


def _choose_words(
    words: np.ndarray, maskable: np.ndarray, continues: np.ndarray, wanted: int, base: int, _: MaskingConfig
) -> _Chosen:
    """Whole words in random order, passing over those that would be too many."""
    left = wanted
    for begin, end in sorted(_whole_words(maskable, continues), key=lambda word: (words[word[0]], word[0])):
        if end - begin <= left:
            left -= end - begin
            yield from ((base + place, base + place) for place in range(begin, end))


def _choose_spans(
    words: np.ndarray, maskable: np.ndarray, continues: np.ndarray, wanted: int, base: int, config: MaskingConfig
) -> _Chosen:
    """Spans of whole words from random places, cut where they meet the end, another span or the number wanted."""
    stretches = _whole_words(maskable, continues)
    free = [True] * len(stretches)
    left = wanted
    for begin, length in _spans(words, len(stretches), config):
        first = stretches[begin][0] if stretches else 0
        for number in range(begin, min(begin + length, len(stretches))):
            start, stop = stretches[number]
            if not free[number] or stop - start > left or (number > begin and stretches[number - 1][1] != start):
                break
            free[number] = False
            left -= stop - start
            yield from ((base + place, base + first) for place in range(start, stop))
        if not left:
            return


def _spans(words: np.ndarray, count: int, config: MaskingConfig) -> Iterator[tuple[int, int]]:
    """Random (first word, number of words), two random words each."""
    uniform = (words[1::2].astype(np.float64) + 0.5) / 2.0**32
    log_q = np.log1p(-config.span_probability)  # by which a p that is lost in 1 - p has its spans too
    # The geometric distribution cut at the longest span, by inversion.
    lengths = 1 + np.floor(np.log1p(uniform * np.expm1(config.longest_span * log_q)) / log_q)
    lengths = np.minimum(lengths, config.longest_span).astype(np.int64)
    yield from zip(below(words[::2], count).tolist(), lengths.tolist(), strict=True)
