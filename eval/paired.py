"""Two models on the same examples: how far their difference may be the doing of these examples.

A unit is what was drawn as a whole: an example, or a text with all of its questions. The interval is a bootstrap's
over units (Efron and Tibshirani, 1993, chapter 13: percentiles), the same units for both models. The test is
McNemar's (1947), exact, where a unit is right or wrong, and else approximate randomisation (Noreen, 1989; Yeh, 2000,
for F1): whether the difference is as large with the two models' answers swapped at random. Which test goes with
which metric is as in Dror et al. (2018, section 3).

scipy draws what is resampled and swapped. What the figures are then is here: of everything that is a function of sums
over units, those of many resamples are a product of matrices.

N units, K sums, R resamples, C classes. Figures are per cent.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import scipy.stats

CONFIDENCE = 0.95
MC_NEMAR, RANDOMISATION = "McNemar", "randomisation"
_AT_ONCE = 1 << 22  # drawn units that are in memory
_SAME = 1e-9  # per cent: figures that differ by rounding only


@dataclass(frozen=True)
class Difference:
    """Of two models' figures.

    Attributes:
        a: figure of the first.
        b: figure of the second.
        low: lower end of the interval of b - a.
        high: its upper end.
        p: two-sided, of no difference.
        test: which gave p.
        units: how many there are.
    """

    a: float
    b: float
    low: float
    high: float
    p: float
    test: str
    units: int


class Pairs(Protocol):
    """What two models made of the same units."""

    @property
    def units(self) -> int:
        """How many."""

    def figures(self) -> tuple[float, float]:
        """Of both, on all units."""

    def resampled(self, drawn: np.ndarray) -> np.ndarray:
        """Differences b - a [R] on the units that were drawn, int [R, N]."""

    def swapped(self, swaps: np.ndarray) -> np.ndarray:
        """Differences b - a [R] where each model has the other's answers at some units, bool [R, N]."""


@dataclass(frozen=True)
class Sums:
    """For a figure that is a function of sums over the units.

    Attributes:
        a: float64 [N, K], of the first model.
        b: the same of the second.
        figure: of sums [..., K].
        is_right: bool [N, 2], whether either is right at a unit; None where it may be so in part.
    """

    a: np.ndarray
    b: np.ndarray
    figure: Callable[[np.ndarray], np.ndarray]
    is_right: np.ndarray | None = None

    @property
    def units(self) -> int:
        """How many."""
        return len(self.a)

    def figures(self) -> tuple[float, float]:
        """Of both, on all units."""
        return float(self.figure(self.a.sum(axis=0))), float(self.figure(self.b.sum(axis=0)))

    def resampled(self, drawn: np.ndarray) -> np.ndarray:
        """See Pairs."""
        places = drawn + self.units * np.arange(len(drawn))[:, None]
        times = np.bincount(places.ravel(), minlength=drawn.size).reshape(drawn.shape).astype(np.float64)
        return np.asarray(self.figure(times @ self.b) - self.figure(times @ self.a))

    def swapped(self, swaps: np.ndarray) -> np.ndarray:
        """See Pairs."""
        moved = swaps.astype(np.float64) @ (self.b - self.a)
        return np.asarray(self.figure(self.b.sum(axis=0) - moved) - self.figure(self.a.sum(axis=0) + moved))


@dataclass(frozen=True)
class Correlated:
    """For correlations with the labels.

    Attributes:
        labels: float64 [N].
        a: the first model's predictions, as many, on the same scale as the second's: swapped they would tell less
            together where one model only has another mean or spread, which no correlation minds.
        b: the second's.
        ranked: whether it is Spearman's, of the ranks within each resample, and not Pearson's.
    """

    labels: np.ndarray
    a: np.ndarray
    b: np.ndarray
    ranked: bool

    @property
    def units(self) -> int:
        """How many."""
        return len(self.labels)

    def figures(self) -> tuple[float, float]:
        """Of both, on all units."""
        found = self._correlations(self.labels[None], np.stack([self.a, self.b]))
        return float(found[0]), float(found[1])

    def resampled(self, drawn: np.ndarray) -> np.ndarray:
        """See Pairs."""
        labels = self.labels[drawn]
        return np.asarray(self._correlations(labels, self.b[drawn]) - self._correlations(labels, self.a[drawn]))

    def swapped(self, swaps: np.ndarray) -> np.ndarray:
        """See Pairs."""
        a, b = np.where(swaps, self.b, self.a), np.where(swaps, self.a, self.b)
        return np.asarray(self._correlations(self.labels[None], b) - self._correlations(self.labels[None], a))

    def _correlations(self, labels: np.ndarray, predictions: np.ndarray) -> np.ndarray:
        """Row by row; 0 where all labels or all predictions are the same."""
        x, y = (scipy.stats.rankdata(rows, axis=1) if self.ranked else rows for rows in (labels, predictions))
        varied = (np.ptp(x, axis=1) > 0) & (np.ptp(y, axis=1) > 0)
        x, y = (rows - rows.mean(axis=1, keepdims=True) for rows in (x, y))
        norm = np.sqrt((x**2).sum(axis=1) * (y**2).sum(axis=1))
        return np.asarray(100 * np.divide((x * y).sum(axis=1), norm, out=np.zeros(len(y)), where=varied & (norm > 0)))


# ---- figures of sums ------------------------------------------------------------------------------------------------


def _of_classes(sums: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How often each class was [..., C] predicted rightly, predicted, and right."""
    right, predicted, gold = np.split(sums, 3, axis=-1)
    return right, predicted, gold


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """0 where there is nothing."""
    return np.asarray(np.divide(part, whole, out=np.zeros(np.broadcast(part, whole).shape), where=whole > 0))


def _accuracy(sums: np.ndarray) -> np.ndarray:
    right, _, gold = _of_classes(sums)
    return 100 * _ratio(right.sum(axis=-1), gold.sum(axis=-1))


def _f1(sums: np.ndarray) -> np.ndarray:
    """Of the last class: of two that of class 1, as of entities, which have one."""
    right, predicted, gold = (of_class[..., -1] for of_class in _of_classes(sums))
    return 100 * _ratio(2 * right, predicted + gold)


def _macro_f1(sums: np.ndarray) -> np.ndarray:
    """Mean over the classes that occur."""
    right, predicted, gold = _of_classes(sums)
    return 100 * _ratio(_ratio(2 * right, predicted + gold).sum(axis=-1), (predicted + gold > 0).sum(axis=-1))


def _matthews(sums: np.ndarray) -> np.ndarray:
    """Gorodkin's (2004) correlation of any number of classes; 0 where all predictions, or all labels, are the same."""
    right, predicted, gold = _of_classes(sums)
    n = gold.sum(axis=-1)
    covariance = n * right.sum(axis=-1) - (predicted * gold).sum(axis=-1)
    variances = (n**2 - (predicted**2).sum(axis=-1)) * (n**2 - (gold**2).sum(axis=-1))
    return 100 * _ratio(covariance, np.sqrt(variances))


def _mean(sums: np.ndarray) -> np.ndarray:
    total, number = np.moveaxis(sums, -1, 0)
    return _ratio(total, number)


_OF_CLASSES = {"accuracy": _accuracy, "f1": _f1, "macro_f1": _macro_f1, "matthews": _matthews}


# ---- what two models made of ... ------------------------------------------------------------------------------------


def of_labels(metric: str, labels: Sequence[float], a: Sequence[float], b: Sequence[float]) -> Pairs:
    """Examples with labels.

    Args:
        metric: a key of eval.metrics.LABEL_METRICS.
        labels: indices of classes, or figures, one at least.
        a: as many predictions of the first model.
        b: as many of the second.
    """
    gold, *ours = (np.asarray(figures, np.float64) for figures in (labels, a, b))
    if metric not in _OF_CLASSES:
        ranked = metric == "spearman"
        first, second = (scipy.stats.rankdata(of) if ranked else _standardised(of) for of in ours)
        return Correlated(gold, first, second, ranked)
    classes = np.arange(max(2, 1 + int(max(figures.max() for figures in (gold, *ours)))))
    one_hot = gold[:, None] == classes  # [N, C]
    first, second = (np.hstack([one_hot & (of == gold)[:, None], of[:, None] == classes, one_hot]) for of in ours)
    is_right = np.stack([of == gold for of in ours], axis=1) if metric == "accuracy" else None
    return Sums(first.astype(np.float64), second.astype(np.float64), _OF_CLASSES[metric], is_right)


def _standardised(figures: np.ndarray) -> np.ndarray:
    centred = figures - figures.mean()
    spread = centred.std()
    return centred / spread if np.ptp(figures) > 0 and spread > 0 else np.zeros(len(figures))


def of_counts(a: Sequence[Sequence[int]], b: Sequence[Sequence[int]]) -> Pairs:
    """Sentences, for F1 over all: how many entities each has that were found rightly, found, and are there [N, 3]."""
    return Sums(np.asarray(a, np.float64), np.asarray(b, np.float64), _f1)


def of_scores(a: Sequence[float], b: Sequence[float], groups: Sequence[object]) -> Pairs:
    """Questions, for the mean of their scores in per cent; those of one group stand and fall together."""
    numbers: dict[object, int] = {}
    group = np.array([numbers.setdefault(name, len(numbers)) for name in groups])
    counts = np.bincount(group)
    first, second = (np.stack([np.bincount(group, scores), counts], axis=1) for scores in (a, b))
    return Sums(first, second, _mean)


# ---- the comparison -------------------------------------------------------------------------------------------------


def compare(pairs: Pairs, resamples: int, seed: int) -> Difference:
    """The difference of two models' figures, its interval, and p, by as many resamples for each of both.

    Args:
        pairs: of two units or more.
        resamples: drawn for each; where there are fewer ways to swap, all of these are tried, and p is exact.
        seed: of what is drawn.
    """
    a, b = pairs.figures()
    n = pairs.units
    units, batch, generator = np.arange(n), max(1, _AT_ONCE // n), np.random.default_rng(seed)
    drawn = scipy.stats.bootstrap(
        (units,), lambda drawn, **_: _by_rows(pairs.resampled, drawn), n_resamples=resamples, batch=batch,
        vectorized=True, confidence_level=CONFIDENCE, method="percentile", random_state=generator,
    )  # fmt: skip
    low, high = drawn.confidence_interval
    if isinstance(pairs, Sums) and pairs.is_right is not None:
        return Difference(a, b, float(low), float(high), mc_nemar(pairs.is_right), MC_NEMAR, n)
    if abs(b - a) < _SAME:  # every difference is as large; twice scipy's smaller tail of those drawn falls short of 1
        return Difference(a, b, float(low), float(high), 1.0, RANDOMISATION, n)
    swapped = scipy.stats.permutation_test(
        (units, units + n), lambda first, _, **__: _by_rows(pairs.swapped, first >= n), n_resamples=resamples,
        batch=batch, vectorized=True, permutation_type="samples", random_state=generator,
    )  # fmt: skip
    return Difference(a, b, float(low), float(high), float(swapped.pvalue), RANDOMISATION, n)


def _by_rows(differences: Callable[[np.ndarray], np.ndarray], drawn: np.ndarray) -> np.ndarray:
    """A method of Pairs on arrays [..., N] as scipy has them: [...], of one row alone too."""
    return differences(drawn.reshape(-1, drawn.shape[-1])).reshape(drawn.shape[:-1])


def mc_nemar(is_right: np.ndarray) -> float:
    """Exact two-sided p of McNemar's test (1947): of the units where one of two is right, either is as likely to be.

    Args:
        is_right: bool [N, 2].
    """
    first, second = is_right.astype(bool).T
    only = int((first & ~second).sum()), int((second & ~first).sum())
    return float(scipy.stats.binomtest(only[0], sum(only)).pvalue) if sum(only) else 1.0


def holm(p: Sequence[float]) -> list[float]:
    """Adjust p of several tests for their number (Holm, 1979), in their order; the tests may be dependent."""
    order = sorted(range(len(p)), key=lambda i: p[i])
    adjusted, most = [0.0] * len(p), 0.0
    for rank, i in enumerate(order):
        most = max(most, min(1.0, (len(p) - rank) * p[i]))
        adjusted[i] = most
    return adjusted


def welch(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Two-sided p of Welch's t-test (1947) of two means; None with fewer than two of either, or where none differ."""
    if min(len(a), len(b)) < 2 or max(np.ptp(a), np.ptp(b)) < _SAME:
        return None
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # that one of the two doesn't vary
        return float(scipy.stats.ttest_ind(a, b, equal_var=False).pvalue)
