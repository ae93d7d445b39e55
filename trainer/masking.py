"""Dynamic masking: which tokens of a sample the model must predict, as a pure function of (seed, sample index).

Follows google-research/bert, create_masked_lm_predictions: of n tokens, max(1, round(0.15 n)) are chosen, at most
``max_predictions``; of those 80 % become [MASK], 10 % a random token, 10 % stay. Google masks once while it
preprocesses; here every visit of a sample has a new index and so a new mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from trainer.philox import below, derive_key, random_words

_CHOICE, _REPLACEMENT = 0, 1  # independent streams of random words for one sample


@dataclass(frozen=True)
class MaskingConfig:
    """How tokens are masked.

    Attributes:
        probability: share of a sample's tokens that is predicted.
        mask: share of the predicted tokens that becomes [MASK].
        random: share that becomes a random token; the rest stays as it is.
    """

    probability: float = 0.15
    mask: float = 0.8
    random: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.probability < 1:
            raise ValueError(f"masking.probability is {self.probability}; it must lie between 0 and 1")
        if self.mask < 0 or self.random < 0 or self.mask + self.random > 1:
            raise ValueError(
                f"masking.mask + masking.random is {self.mask + self.random}; shares must add up to 1 at most"
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
    max_predictions: int,
    config: MaskingConfig = STANDARD,
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
        max_predictions: at most so many predictions a sample.
        config: rates.
    """
    batch, width = tokens.shape
    key = derive_key(seed, "masking")
    wanted = np.clip(np.rint(lengths * config.probability).astype(np.int64), 1, max_predictions)
    wanted = np.minimum(wanted, maskable.sum(axis=1))

    # The `wanted` maskable positions with the smallest random words, found by one sort of (word, position). A word
    # belongs to a position, so padding a sample further changes nothing.
    words = random_words(key, indices, width, _CHOICE).astype(np.uint64)
    order = np.where(maskable, words << np.uint64(32) | np.arange(width, dtype=np.uint64), np.iinfo(np.uint64).max)
    order.sort(axis=1)
    taken = np.arange(width) < wanted[:, None]
    rows = np.repeat(np.arange(batch), wanted)
    columns = (order[taken] & np.uint64(0xFFFFFFFF)).astype(np.int64)
    positions = np.sort(rows * width + columns)

    labels = tokens.reshape(-1)[positions].astype(np.int64)
    draws = random_words(key, indices, 2 * width, _REPLACEMENT).reshape(batch * width, 2)[positions]
    fate = draws[:, 0] / 2.0**32
    replaced = np.where(fate < config.mask, mask_id, labels)
    randomised = (fate >= config.mask) & (fate < config.mask + config.random)
    replaced = np.where(randomised, below(draws[:, 1], vocab_size), replaced)

    masked = tokens.copy()
    masked.reshape(-1)[positions] = replaced
    return Masked(masked, positions, labels)
