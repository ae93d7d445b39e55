"""Each figure, interval and p beside a plain loop, an exact count or scipy's own."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import pytest
import scipy.stats

from eval.metrics import LABEL_METRICS, entity_counts, entity_f1
from eval.paired import Correlated, Sums, compare, holm, mc_nemar, of_counts, of_labels, of_scores, welch

TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


def predictions(metric: str, units: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels and what two models make of them, the second one better."""
    generator = np.random.default_rng(5)
    if metric in ("pearson", "spearman"):
        labels = generator.normal(size=units)
        return labels, labels + 2 * generator.normal(size=units), 3 + 0.1 * (labels + generator.normal(size=units))
    classes = 2 if metric == "f1" else 3
    labels = generator.integers(classes, size=units)
    noise = generator.integers(classes, size=(2, units))
    a, b = (np.where(generator.random(units) < share, labels, of) for share, of in zip((0.2, 0.5), noise, strict=True))
    return labels, a, b


@pytest.mark.parametrize("metric", sorted(LABEL_METRICS))
def test_figures_and_resamples_are_those_of_the_metric_itself(metric: str) -> None:
    labels, a, b = predictions(metric, 40)
    pairs, score = of_labels(metric, labels, a, b), LABEL_METRICS[metric]
    assert pairs.figures() == pytest.approx((100 * score(labels, a), 100 * score(labels, b)))
    drawn = np.random.default_rng(0).integers(40, size=(50, 40))
    expected = [100 * (score(labels[i], b[i]) - score(labels[i], a[i])) for i in drawn]
    np.testing.assert_allclose(pairs.resampled(drawn), expected, atol=1e-9)


@pytest.mark.parametrize("metric", ["accuracy", "macro_f1", "matthews"])
def test_a_class_that_only_the_models_have_counts_as_the_metric_itself_has_it(metric: str) -> None:
    labels, a, b = (np.array(of) for of in ([0, 0, 1, 1, 1], [0, 2, 1, 1, 0], [0, 0, 1, 2, 1]))
    expected = [100 * LABEL_METRICS[metric](labels, of) for of in (a, b)]
    assert of_labels(metric, labels, a, b).figures() == pytest.approx(expected)


@pytest.mark.parametrize("metric", ["accuracy", "macro_f1"])
def test_classes_that_are_not_among_what_is_drawn_count_as_the_metric_itself_has_it(metric: str) -> None:
    labels, a, b = (np.array(of) for of in ([0, 0, 2, 2], [0, 2, 2, 0], [0, 0, 2, 0]))
    pairs, score = of_labels(metric, labels, a, b), LABEL_METRICS[metric]
    drawn = np.array([[0, 1, 2, 3], [0, 0, 0, 0], [1, 1, 1, 1], [2, 2, 2, 2]])
    with np.errstate(divide="raise", invalid="raise"):
        found = pairs.resampled(drawn)
    np.testing.assert_allclose(found, [100 * (score(labels[i], b[i]) - score(labels[i], a[i])) for i in drawn])


@pytest.mark.parametrize("metric", sorted(LABEL_METRICS))
def test_swapped_answers_are_scored_as_the_metric_itself_does(metric: str) -> None:
    labels, a, b = predictions(metric, 40)
    pairs, score = of_labels(metric, labels, a, b), LABEL_METRICS[metric]
    if isinstance(pairs, Correlated):
        a, b = pairs.a, pairs.b
    swaps = np.random.default_rng(0).random((50, 40)) < 0.5
    expected = [100 * (score(labels, np.where(swap, a, b)) - score(labels, np.where(swap, b, a))) for swap in swaps]
    np.testing.assert_allclose(pairs.swapped(swaps), expected, atol=1e-9)


def test_entities_are_counted_so_that_their_sums_give_f1() -> None:
    generator = np.random.default_rng(2)
    gold, a, b = ([list(generator.choice(TAGS, size=6)) for _ in range(12)] for _ in range(3))
    counts = [[entity_counts(*both) for both in zip(gold, ours, strict=True)] for ours in (a, b)]
    pairs = of_counts(*counts)
    assert pairs.figures() == pytest.approx((entity_f1(gold, a)["f1"], entity_f1(gold, b)["f1"]))
    drawn = generator.integers(12, size=(20, 12))
    expected = [
        entity_f1(*([of[i] for i in sample] for of in (gold, b)))["f1"]
        - entity_f1(*([of[i] for i in sample] for of in (gold, a)))["f1"]
        for sample in drawn
    ]
    np.testing.assert_allclose(pairs.resampled(drawn), expected, atol=1e-9)


def test_sentences_without_entities_make_an_f1_of_nothing() -> None:
    pairs = of_counts([(0, 0, 0), (1, 1, 1)], [(0, 0, 0), (0, 1, 1)])
    with np.errstate(divide="raise", invalid="raise"):
        np.testing.assert_array_equal(pairs.resampled(np.array([[0, 0], [0, 1]])), [0, -100])


def test_questions_of_one_text_stand_and_fall_together() -> None:
    a, b, texts = [100.0, 0.0, 50.0], [100.0, 100.0, 20.0], ["x", "y", "x"]
    pairs = of_scores(a, b, texts)
    assert pairs.units == 2
    assert pairs.figures() == pytest.approx((50, 220 / 3))
    np.testing.assert_allclose(pairs.resampled(np.array([[0, 0], [0, 1], [1, 1]])), [-15, 70 / 3, 100])
    np.testing.assert_allclose(pairs.swapped(np.array([[False, True], [True, True]])), [-130 / 3, -70 / 3])


def test_p_of_a_randomisation_is_that_of_all_swaps() -> None:
    generator = np.random.default_rng(3)
    a, b = generator.random(10), generator.random(10) + 0.1
    pairs = of_scores(100 * a, 100 * b, range(10))
    every = pairs.swapped(np.array(list(itertools.product([False, True], repeat=10))))
    exact = np.mean(np.abs(every) >= abs(100 * (b - a).mean()) - 1e-9)
    assert 0.01 < exact < 0.5
    found = compare(pairs, 20_000, seed=0)
    assert found.p == pytest.approx(exact)
    assert found.test == "randomisation"
    assert compare(pairs, 1000, seed=0).p == pytest.approx(exact, abs=0.05)  # of fewer than all 1,024


class Counted(Sums):
    """Keeps how many resamples are asked for at once."""

    @cached_property
    def sizes(self) -> dict[str, list[int]]:
        return {"resampled": [], "swapped": []}

    def resampled(self, drawn: np.ndarray) -> np.ndarray:
        self.sizes["resampled"].append(len(drawn))
        return super().resampled(drawn)

    def swapped(self, swaps: np.ndarray) -> np.ndarray:
        self.sizes["swapped"].append(len(swaps))
        return super().swapped(swaps)


@pytest.mark.parametrize("units", [100, 60_000])
def test_as_many_are_drawn_as_are_asked_for_and_no_more_at_once_than_memory_holds(units: int) -> None:
    """All of 1,000 resamples of 60,000 questions would be a gigabyte."""
    scores = np.random.default_rng(0).random((2, units))
    first, second = (np.stack([of, np.ones(units)], axis=1) for of in scores)
    pairs = Counted(first, second, lambda sums: 100 * sums[..., 0] / sums[..., 1])
    compare(pairs, 101, seed=0)
    for sizes in pairs.sizes.values():
        assert 101 <= sum(sizes) <= 103  # scipy asks for the difference itself too, in some versions
        assert max(sizes) * units < 5_000_000


@pytest.mark.parametrize("metric", sorted(LABEL_METRICS))
def test_a_comparison_the_other_way_round_is_the_same_mirrored(metric: str) -> None:
    labels, a, b = predictions(metric, 100)
    there, back = (compare(of_labels(metric, labels, *both), 1000, seed=0) for both in ((a, b), (b, a)))
    assert there.p == pytest.approx(back.p)
    assert there.p < 0.5
    assert (there.low, there.high) == pytest.approx((-back.high, -back.low))


def test_the_interval_is_scipys() -> None:
    labels, a, b = predictions("accuracy", 200)
    found = compare(of_labels("accuracy", labels, a, b), 10_000, seed=1)
    right = [(of == labels).astype(float) for of in (a, b)]
    theirs = scipy.stats.bootstrap(
        right, lambda x, y, axis: 100 * (y - x).mean(axis=axis), paired=True, method="percentile", random_state=0,
    ).confidence_interval  # fmt: skip
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=1)
    assert found.low < found.b - found.a < found.high


def test_the_interval_of_a_lopsided_difference_is_of_what_may_be_drawn() -> None:
    found = compare(of_scores(np.zeros(10), [100.0, *np.zeros(9)], range(10)), 1000, seed=0)
    assert found.low == 0  # mirrored at the difference it would be below, where no draw is
    assert found.high >= 30


@pytest.mark.parametrize(("only_a", "only_b", "p"), [(1, 9, 22 / 1024), (0, 5, 2 / 32), (4, 4, 1), (0, 0, 1)])
def test_mc_nemar_by_hand(only_a: int, only_b: int, p: float) -> None:
    is_right = [[True, False]] * only_a + [[False, True]] * only_b + [[True, True], [False, False]] * 3
    assert mc_nemar(np.array(is_right)) == pytest.approx(p)


@pytest.mark.parametrize("metric", sorted(LABEL_METRICS))
def test_models_that_say_the_same_do_not_differ(metric: str) -> None:
    labels, a, _ = predictions(metric, 30)
    found = compare(of_labels(metric, labels, a, a), 200, seed=0)
    assert (found.low, found.high, found.p) == (0, 0, 1)


def test_models_that_are_as_good_at_other_examples_do_not_differ() -> None:
    """Though with their answers swapped at some examples nearly always one would be better."""
    scores = np.random.default_rng(0).normal(size=40)
    found = compare(of_scores(list(scores), list(scores[::-1]), range(40)), 999, seed=0)
    assert found.a == pytest.approx(found.b)
    assert found.low < 0 < found.high
    assert found.p == 1


@pytest.mark.parametrize("metric", ["pearson", "spearman"])
def test_scale_and_mean_of_a_models_figures_do_not_count(metric: str) -> None:
    """Swapped as they are, figures around 0 among figures around 3 would correlate with nothing."""
    labels, a, b = predictions(metric, 100)
    found, scaled = (compare(of_labels(metric, labels, a, of), 1000, seed=0) for of in (b, 100 * b - 7))
    assert found.p == scaled.p < 0.05
    assert (found.low, found.high) == pytest.approx((scaled.low, scaled.high))
    constant = compare(of_labels(metric, labels, a, np.zeros(100)), 1000, seed=0)
    assert constant.b == 0
    assert compare(of_labels(metric, labels, a, np.full(100, 0.1)), 1000, seed=0) == constant


def test_the_scale_of_figures_whose_ranks_count_is_any_that_keeps_their_order() -> None:
    labels, a, b = predictions("spearman", 100)
    found, scaled = (compare(of_labels("spearman", labels, of, b), 1000, seed=0) for of in (a, np.exp(a)))
    assert found == scaled


@pytest.mark.parametrize("metric", ["pearson", "spearman"])
def test_what_does_not_vary_correlates_with_nothing(metric: str) -> None:
    """Though rounding leaves something of a figure less the mean of as many; and what varies little does."""
    labels, a, b = predictions(metric, 30)
    pairs = of_labels(metric, labels / 100, a, b)
    assert pairs.figures() == pytest.approx(of_labels(metric, labels, a, b).figures())
    assert not pairs.resampled(np.repeat(np.arange(30)[:, None], 30, axis=1)).any()
    assert of_labels(metric, np.full(30, 0.1), a, b).figures() == (0, 0)
    equal_but_for_one = np.r_[np.full(29, 0.1), 1]
    for gold, ours in ((labels, equal_but_for_one), (equal_but_for_one, labels)):
        without_it, with_it = of_labels(metric, gold, ours, np.zeros(30)).resampled(np.arange(30) % [[29], [30]])
        assert without_it == 0 != with_it


def test_figures_with_squares_of_nothing_correlate_with_nothing() -> None:
    labels, a, b = predictions("pearson", 30)
    with np.errstate(divide="raise", invalid="raise"):
        assert of_labels("pearson", labels * 1e-200, a, b).figures() == (0, 0)
        first, second = of_labels("pearson", labels, a * 1e-200, b).figures()
    assert (first, second > 0) == (0, True)


def test_a_seed_gives_the_same_figures_again_and_another_one_others() -> None:
    pairs = of_labels("f1", *predictions("f1", 50))
    assert compare(pairs, 500, seed=4) == compare(pairs, 500, seed=4)
    assert compare(pairs, 500, seed=4) != compare(pairs, 500, seed=5)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1, 1]


def test_means_over_seeds_are_compared_where_they_vary() -> None:
    a, b = [70.0, 71.0, 72.5], [73.0, 74.0]
    assert welch(a, b) == pytest.approx(scipy.stats.ttest_ind(a, b, equal_var=False).pvalue)
    assert welch(a, [70.0]) is None
    assert welch([1.0, 1.0], [2.0, 2.0 + 1e-13]) is None
    with warnings.catch_warnings(action="error"):  # that one of both doesn't vary is no matter for a terminal
        assert welch([70.0, 70.0], [72.0, 74.0]) == pytest.approx(2 * scipy.stats.t.sf(3, df=1))


@pytest.mark.parametrize("metric", ["f1", "spearman"])
def test_scipy_gets_a_figure_of_each_row_and_of_one_row_a_figure(metric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From 1.18 on, which needs Python 3.12, it takes nothing else."""
    drawn, asked = np.random.default_rng(0).permuted(np.tile(np.arange(40), (3, 1)), axis=1), []

    def ask(of: str) -> None:
        really_call = getattr(scipy.stats, of)

        def call(data: tuple[np.ndarray, ...], statistic: Callable[..., np.ndarray], **options: Any) -> Any:
            each = statistic(*(drawn for _ in data), axis=-1)
            assert each.shape == (3,)
            for row, figure in zip(drawn, each, strict=True):
                alone = statistic(*(row for _ in data), axis=-1)
                assert (alone.shape, float(alone)) == ((), figure)
            asked.append(of)
            return really_call(data, statistic, **options)

        monkeypatch.setattr(scipy.stats, of, call)

    ask("bootstrap")
    ask("permutation_test")
    compare(of_labels(metric, *predictions(metric, 40)), 200, seed=0)
    assert asked == ["bootstrap", "permutation_test"]
