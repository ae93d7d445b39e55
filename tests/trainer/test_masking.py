import numpy as np
import pytest

from trainer.masking import STANDARD, MaskingConfig, _spans, mask_tokens

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


def test_without_a_limit_a_sample_has_its_share_of_predictions():
    _, _, masked = mask([140, 500, 512], 512, max_predictions=None)
    assert np.bincount(masked.positions // 512).tolist() == [21, 75, 77]


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


def test_what_becomes_of_a_token_does_not_depend_on_the_row_either():
    _, _, masked = mask([128, 128], 128, indices=np.array([7, 8]))
    _, _, turned = mask([128, 128], 128, indices=np.array([8, 7]))
    assert ((masked.tokens == MASK) == (turned.tokens == MASK)[::-1]).all()


def test_the_shortest_sample_has_a_prediction():
    """round(3 * 0.15) is 0, and google takes one at least."""
    tokens = np.array([[CLS, 10, SEP]])
    masked = mask_tokens(
        tokens, tokens == 10, np.array([3]), np.array([0]), seed=1, vocab_size=VOCAB, mask_id=MASK, max_predictions=20
    )
    assert masked.positions.tolist() == [1]


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


def test_random_tokens_are_the_first_of_the_vocabulary_to_the_last():
    tokens = np.full((50, 100), 5)
    masked = mask_tokens(
        tokens, tokens == 5, np.full(50, 100), np.arange(50), seed=1, vocab_size=20, mask_id=MASK, max_predictions=20,
        config=MaskingConfig(mask=0.0, random=1.0),
    )  # fmt: skip
    assert set(masked.tokens.reshape(-1)[masked.positions].tolist()) == set(range(20))


def test_every_place_is_chosen_equally_often():
    _, maskable, masked = mask([128] * 4000, 128)
    counts = np.bincount(masked.positions % 128, minlength=128)[maskable[0]]
    expected = 4000 * 19 / len(counts)
    assert ((counts - expected) ** 2 / expected).sum() < 187  # 0.1 % point, 124 degrees of freedom


@pytest.mark.parametrize(
    ("unit", "positions", "others"),
    [
        ("token", [17, 18, 24, 25, 28, 32, 51, 57, 63, 66, 74, 76], {57: 492, 63: 123, 74: 134}),
        ("word", [18, 24, 25, 26, 28, 29, 43, 62, 63, 74, 75, 76], {29: 129, 63: 123, 74: 134}),
        ("span", [10, 11, 12, 13, 14, 19, 58, 68, 69, 76, 77, 78], {}),
    ],
)
def test_masks_are_fixed_for_ever(unit, positions, others):
    """Other values would mean that a run that goes on sees other masks than one that was never stopped.

    At the other places there is [MASK].
    """
    rows = np.arange(100, 140)[None].repeat(2, 0)
    rows[:, [0, 20, 39]] = CLS, SEP, SEP
    masked = mask_tokens(
        rows, rows >= 100, np.array([40, 40]), np.array([7, 2**33 + 7]), seed=1, vocab_size=VOCAB, mask_id=MASK,
        max_predictions=20, config=MaskingConfig(unit=unit), continues=rows % 3 == 0,
    )  # fmt: skip
    assert masked.positions.tolist() == positions
    assert masked.tokens.reshape(-1)[positions].tolist() == [others.get(place, MASK) for place in positions]


@pytest.mark.parametrize(
    "shares", [{"mask": 1.0, "random": 0.0}, {"mask": 0.0, "random": 0.0}, {"mask": 0.0, "random": 1.0}]
)
def test_other_shares(shares):
    _, _, masked = mask([128] * 50, 128, config=MaskingConfig(**shares))
    chosen = masked.tokens.reshape(-1)[masked.positions]
    assert (chosen == MASK).all() == (shares["mask"] == 1.0)
    assert (chosen == masked.labels).all() == (sum(shares.values()) == 0.0)


@pytest.mark.parametrize(
    "bad",
    [
        {"span_probability": 0.0},
        {"span_probability": 1.0},
        {"longest_span": 0},
        {"longest_span": 10**400},
        {"probability": 0.0},
        {"probability": 1.0},
        {"mask": 0.9, "random": 0.2},
        {"random": -0.1},
    ],
)
def test_impossible_rates_are_refused(bad):
    with pytest.raises(ValueError, match="masking"):
        MaskingConfig(**bad)


def test_spans_may_be_of_one_word_or_of_any_number():
    assert [MaskingConfig("span", longest_span=most).longest_span for most in (1, 2**31 - 1)] == [1, 2**31 - 1]


def words_of(batch_size, width=128, seed=0):
    """Rows of [CLS] words [SEP] words [SEP]; a word has one to four pieces, and the pieces' ids tell which continue."""
    rng = np.random.default_rng(seed)
    tokens = np.zeros((batch_size, width), dtype=np.int64)
    continues = np.zeros_like(tokens, dtype=bool)
    for row in range(batch_size):
        continues[row] = rng.random(width) < 0.3
        tokens[row] = rng.integers(10, VOCAB, size=width)
        tokens[row, [0, 60, width - 1]] = CLS, SEP, SEP
        continues[row, [0, 1, 60, 61, width - 1]] = False
    maskable = (tokens != CLS) & (tokens != SEP)
    return tokens, maskable, continues


def mask_words(unit, batch_size=2000, seed=1, **settings):
    tokens, maskable, continues = words_of(batch_size)
    masked = mask_tokens(
        tokens, maskable, np.full(batch_size, 128), np.arange(batch_size), seed=seed, vocab_size=VOCAB, mask_id=MASK,
        max_predictions=20, config=MaskingConfig(unit=unit, **settings), continues=continues,
    )  # fmt: skip
    return tokens, maskable, continues, masked


def runs(positions):
    """Lengths of stretches of neighbouring positions."""
    return np.diff(np.flatnonzero(np.concatenate([[True], np.diff(positions) != 1, [True]])))


@pytest.mark.parametrize("unit", ["word", "span"])
def test_words_are_masked_whole_and_special_tokens_never(unit):
    tokens, maskable, continues, masked = mask_words(unit)
    chosen = np.zeros(tokens.size, dtype=bool)
    chosen[masked.positions] = True
    chosen = chosen.reshape(tokens.shape)
    assert not (chosen & ~maskable).any()
    inside = continues & maskable
    assert (chosen[:, 1:][inside[:, 1:]] == chosen[:, :-1][inside[:, 1:]]).all()
    assert (masked.labels == tokens.reshape(-1)[masked.positions]).all()
    per_row = chosen.sum(axis=1)
    assert per_row.max() <= 19  # round(128 * 0.15)
    assert per_row.mean() > 18.5


def test_spans_are_longer_than_words_and_share_one_fate():
    _, _, _, masked = mask_words("span", span_probability=0.2)
    lengths = runs(masked.positions)
    assert lengths.mean() > 3
    chosen = masked.tokens.reshape(-1)[masked.positions]
    assert abs((chosen == MASK).mean() - 0.8) < 0.02
    begins = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    mixed = sum(len(set((chosen[b : b + n] == MASK).tolist())) > 1 for b, n in zip(begins, lengths, strict=True))
    assert mixed < 0.1 * len(lengths)  # only where two spans happen to touch


@pytest.mark.parametrize("unit", ["word", "span"])
def test_a_word_whose_beginning_was_cut_off_is_masked_like_others(unit):
    """A segment may begin with a piece that continues a word."""
    tokens = np.tile([CLS, 10, 11, 12, SEP, 13, 14, 15, SEP], (300, 1))
    masked = mask_tokens(
        tokens, tokens >= 10, np.full(300, 9), np.arange(300), seed=1, vocab_size=VOCAB, mask_id=MASK,
        max_predictions=2, config=MaskingConfig(unit=unit, probability=0.25), continues=np.isin(tokens, (10, 11, 13)),
    )  # fmt: skip
    assert {1, 2, 5} <= set((masked.positions % 9).tolist())


def test_spans_that_meet_others_leave_no_prediction_out():
    """Six of ten words, in spans of one word: of many draws, most hit a word that is chosen already."""
    tokens = np.tile([CLS, *range(10, 20), SEP], (200, 1))
    masked = mask_tokens(
        tokens, tokens >= 10, np.full(200, 12), np.arange(200), seed=1, vocab_size=VOCAB, mask_id=MASK,
        max_predictions=6, config=MaskingConfig("span", 0.5, span_probability=0.999),
        continues=np.zeros(tokens.shape, dtype=bool),
    )  # fmt: skip
    assert len(masked.positions) == 200 * 6


def test_a_long_sample_has_tries_in_proportion():
    """Twenty of 21 words: 64 tries, which do for a short sample, would often leave some out."""
    tokens = np.tile([CLS, *range(10, 31), SEP], (200, 1))
    masked = mask_tokens(
        tokens, tokens >= 10, np.full(200, 23), np.arange(200), seed=1, vocab_size=VOCAB, mask_id=MASK,
        max_predictions=20, config=MaskingConfig("span", 0.9, span_probability=0.999),
        continues=np.zeros(tokens.shape, dtype=bool),
    )  # fmt: skip
    assert len(masked.positions) == 200 * 20


def test_a_span_ends_where_its_segment_does():
    """So the words at both sides of a [SEP] become [MASK] together no more often than by chance."""
    tokens = np.tile([CLS, 10, 11, SEP, 12, 13, SEP], (1000, 1))
    masked = mask_tokens(
        tokens, tokens >= 10, np.full(1000, 7), np.arange(1000), seed=1, vocab_size=VOCAB, mask_id=MASK,
        max_predictions=4, config=MaskingConfig("span", 0.6, mask=0.5, random=0.0, span_probability=0.001),
        continues=np.zeros(tokens.shape, dtype=bool),
    )  # fmt: skip
    before, after = masked.tokens[:, 2] == MASK, masked.tokens[:, 4] == MASK
    assert abs((before == after).mean() - 0.5) < 4 * 0.5 / 1000**0.5


def test_the_number_of_words_in_a_span_is_geometric():
    """p (1 - p)^(n - 1), cut at 10 words: 3.8 on average, as Joshi et al. say."""

    rng = np.random.default_rng(0)
    words = rng.integers(0, 2**32, size=(2000, 20), dtype=np.uint32)
    drawn = [length for row in words for _, length in _spans(row, 50, MaskingConfig(unit="span"))]
    assert min(drawn) == 1
    assert max(drawn) == 10
    weights = 0.2 * 0.8 ** np.arange(10)
    expected = weights / weights.sum() * len(drawn)
    counts = np.bincount(drawn, minlength=11)[1:]
    assert ((counts - expected) ** 2 / expected).sum() < 27.9  # 0.1 % point, 9 degrees of freedom
    assert abs(np.mean(drawn) - 3.8) < 0.05


@pytest.mark.parametrize("probability", [1e-9, 1e-17, 1e-300])
def test_spans_of_a_vanishing_probability_are_of_all_lengths_alike(probability):
    """1 - p is 1 to a computer."""
    words = np.random.default_rng(0).integers(0, 2**32, size=20_000, dtype=np.uint32)
    config = MaskingConfig(unit="span", span_probability=probability)
    counts = np.bincount([length for _, length in _spans(words, 50, config)], minlength=11)[1:]
    assert len(counts) == 10
    assert min(counts) > 800


@pytest.mark.parametrize("unit", ["token", "word", "span"])
def test_a_mask_of_any_unit_depends_on_seed_and_index_only(unit):
    first, again, other = (mask_words(unit, batch_size=8, seed=seed)[3] for seed in (1, 1, 2))
    assert (first.tokens == again.tokens).all()
    assert (first.tokens != other.tokens).any()


@pytest.mark.parametrize("unit", ["token", "word", "span"])
def test_every_visit_of_a_sample_has_a_mask_of_its_own(unit):
    tokens, maskable, continues = (np.repeat(made, 64, axis=0) for made in words_of(1))
    masked = mask_tokens(
        tokens, maskable, np.full(64, 128), np.arange(64), seed=1, vocab_size=VOCAB, mask_id=MASK, max_predictions=20,
        config=MaskingConfig(unit=unit), continues=continues,
    )  # fmt: skip
    rows, places = np.divmod(masked.positions, 128)
    assert len({frozenset(places[rows == row].tolist()) for row in range(64)}) == 64


@pytest.mark.parametrize("unit", ["token", "word", "span"])
def test_a_mask_of_any_unit_does_not_depend_on_the_rest_of_the_batch(unit):
    """A short sample's words are mostly too long for the one token to predict: few tries may all miss."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(10, VOCAB, size=(200, 128))
    lengths = np.where(np.arange(200) % 2, 128, 9)
    maskable = (np.arange(128) > 0) & (np.arange(128) < lengths[:, None] - 1)
    continues = np.broadcast_to(np.arange(128) % 3 != 1, tokens.shape)  # words of three pieces; the short end with one

    def masked(rows):
        found = mask_tokens(
            tokens[rows], maskable[rows], lengths[rows], rows, seed=1, vocab_size=VOCAB, mask_id=MASK,
            max_predictions=20, config=MaskingConfig(unit), continues=continues[rows],
        )  # fmt: skip
        of_rows, columns = np.divmod(found.positions, 128)
        return [(columns[of_rows == i].tolist(), found.tokens[i].tolist()) for i in range(len(rows))]

    alone = [masked(np.array([row]))[0] for row in range(200)]
    assert masked(np.arange(200)) == alone


def test_a_long_sample_gives_a_short_one_beside_it_no_more_tries():
    """One word of thirty is short enough for the one token to predict, and often none of its own tries finds it."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(10, VOCAB, size=(81, 700))
    lengths = np.where(np.arange(81) < 80, 61, 700)
    maskable = (np.arange(700) > 0) & (np.arange(700) < lengths[:, None] - 1)
    continues = np.broadcast_to((np.arange(700) > 0) & (np.arange(700) % 2 == 0), tokens.shape)

    def rows_with_a_span(rows):
        masked = mask_tokens(
            tokens[rows], maskable[rows], lengths[rows], rows, seed=1, vocab_size=VOCAB, mask_id=MASK,
            max_predictions=20, config=MaskingConfig("span", 0.02), continues=continues[rows],
        )  # fmt: skip
        return set((masked.positions // 700).tolist())

    alone = rows_with_a_span(np.arange(80))
    assert 40 < len(alone) < 80
    assert rows_with_a_span(np.arange(81)) == {*alone, 80}


def test_samples_of_few_words_have_a_span():
    """One word of five is short enough for the one token to predict."""
    tokens = np.tile([CLS, *range(10, 19), SEP], (500, 1))
    continues = np.isin(tokens, range(11, 19, 2))
    masked = mask_tokens(
        tokens, tokens >= 10, np.full(500, 10), np.arange(500), seed=1, vocab_size=VOCAB, mask_id=MASK,
        max_predictions=1, config=MaskingConfig("span"), continues=continues,
    )  # fmt: skip
    assert len(masked.positions) == 500
