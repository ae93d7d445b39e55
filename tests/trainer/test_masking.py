import numpy as np
import pytest

from trainer.masking import STANDARD, MaskingConfig, mask_tokens

CLS, SEP, MASK, VOCAB = 2, 3, 4, 1000


def batch(lengths, width):
    """Rows of [CLS] words [SEP] words [SEP] and padding (0); words are 10 and above."""
    rng = np.random.default_rng(0)
    tokens = np.zeros((len(lengths), width), dtype=np.int64)
    for row, length in enumerate(lengths):
        tokens[row, :length] = rng.integers(10, VOCAB, size=length)
        tokens[row, [0, length // 2, length - 1]] = CLS, SEP, SEP
    maskable = (tokens != CLS) & (tokens != SEP) & (tokens != 0)
    return tokens, maskable, np.asarray(lengths)


def mask(lengths, width, indices=None, seed=1, max_predictions=20, config=STANDARD):
    tokens, maskable, lengths = batch(lengths, width)
    indices = np.arange(len(lengths)) if indices is None else indices
    masked = mask_tokens(
        tokens, maskable, lengths, indices, seed=seed, vocab_size=VOCAB, mask_id=MASK,
        max_predictions=max_predictions, config=config,
    )  # fmt: skip
    return tokens, maskable, masked


@pytest.mark.parametrize(
    ("length", "predictions"),
    # google: min(20, max(1, int(round(length * 0.15)))), and round() goes to the even neighbour
    [(5, 1), (10, 2), (30, 4), (64, 10), (100, 15), (127, 19), (128, 19), (140, 20)],
)
def test_googles_number_of_predictions(length, predictions):
    _, _, masked = mask([length], 140)
    assert len(masked.positions) == predictions


def test_labels_are_the_original_tokens_and_the_rest_is_untouched():
    tokens, maskable, masked = mask([128, 60, 90], 128)
    flat = tokens.reshape(-1)
    assert (masked.labels == flat[masked.positions]).all()
    untouched = np.setdiff1d(np.arange(flat.size), masked.positions)
    assert (masked.tokens.reshape(-1)[untouched] == flat[untouched]).all()
    assert maskable.reshape(-1)[masked.positions].all()
    assert len(np.unique(masked.positions)) == len(masked.positions)


def test_a_sample_has_the_same_mask_alone_in_a_batch_and_padded_further():
    _, _, alone = mask([50], 56, indices=np.array([7]))
    tokens, maskable, lengths = batch([50], 128)
    wide = mask_tokens(
        tokens, maskable, lengths, np.array([7]), seed=1, vocab_size=VOCAB, mask_id=MASK, max_predictions=20
    )
    assert (alone.positions == wide.positions).all()
    assert (alone.tokens[0, :50] == wide.tokens[0, :50]).all()


def test_another_visit_and_another_seed_give_another_mask():
    first = mask([128], 128, indices=np.array([0]))[2].positions.tolist()
    assert mask([128], 128, indices=np.array([1]))[2].positions.tolist() != first
    assert mask([128], 128, indices=np.array([0]), seed=2)[2].positions.tolist() != first
    assert mask([128], 128, indices=np.array([0]))[2].positions.tolist() == first


def test_nothing_to_mask_is_no_prediction():
    tokens = np.array([[CLS, SEP, SEP]])
    masked = mask_tokens(
        tokens, np.zeros((1, 3), dtype=bool), np.array([3]), np.array([0]), seed=1, vocab_size=VOCAB, mask_id=MASK,
        max_predictions=20,
    )  # fmt: skip
    assert len(masked.positions) == 0


def test_shares_over_many_samples():
    _, _, masked = mask([128] * 4000, 128)
    chosen = masked.tokens.reshape(-1)[masked.positions]
    n = len(chosen)
    assert n == 4000 * 19
    became_mask = (chosen == MASK).mean()
    stayed = (chosen == masked.labels).mean()
    assert abs(became_mask - 0.8) < 4 * (0.8 * 0.2 / n) ** 0.5
    assert abs(stayed - 0.1 - 0.1 / VOCAB) < 4 * (0.1 * 0.9 / n) ** 0.5
    random = chosen[(chosen != MASK) & (chosen != masked.labels)]
    assert random.min() < 10  # google draws from all of the vocabulary, special tokens included
    counts = np.histogram(random, bins=20, range=(0, VOCAB))[0]
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 43.8  # 0.1 % point, 19 degrees of freedom


def test_every_place_is_chosen_equally_often():
    _, maskable, masked = mask([128] * 4000, 128)
    counts = np.bincount(masked.positions % 128, minlength=128)[maskable[0]]
    expected = 4000 * 19 / len(counts)
    assert ((counts - expected) ** 2 / expected).sum() < 187  # 0.1 % point, 124 degrees of freedom


@pytest.mark.parametrize(
    "shares", [{"mask": 1.0, "random": 0.0}, {"mask": 0.0, "random": 0.0}, {"mask": 0.0, "random": 1.0}]
)
def test_other_shares(shares):
    _, _, masked = mask([128] * 50, 128, config=MaskingConfig(**shares))
    chosen = masked.tokens.reshape(-1)[masked.positions]
    assert (chosen == MASK).all() == (shares["mask"] == 1.0)
    assert (chosen == masked.labels).all() == (sum(shares.values()) == 0.0)


@pytest.mark.parametrize(
    "bad", [{"probability": 0.0}, {"probability": 1.0}, {"mask": 0.9, "random": 0.2}, {"random": -0.1}]
)
def test_impossible_rates_are_refused(bad):
    with pytest.raises(ValueError, match="masking"):
        MaskingConfig(**bad)
