"""Exact match and F1 of answers, as the official scripts of SQuAD 1.1, SQuAD 2.0 and KorQuAD 1.0 have them.

Everything is in per cent. eval.metrics scores files with them.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

from eval.errors import UsageError

Scores = dict[str, float]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
_KOREAN_MARKS = str.maketrans(dict.fromkeys("'\"《》<>〈〉()‘’", " "))


def squad_v1(predictions: Mapping[str, str], references: Mapping[str, Sequence[str]]) -> Scores:
    """Exact match and F1 as SQuAD's evaluate-v1.1.py has them; a question without a prediction counts 0.

    Args:
        predictions: id -> text.
        references: id -> all right answers, one at least.

    Returns:
        "exact_match" and "f1": means over the references.

    Raises:
        UsageError: there are no references, or none for a question.
    """
    return _answer_scores(predictions, references, _normalize, str.split)


def korquad(predictions: Mapping[str, str], references: Mapping[str, Sequence[str]]) -> Scores:
    """As squad_v1, by the rules of KorQuAD 1.0's evaluate-v1.0.py.

    Quotation marks and brackets separate words, articles are no matter, and F1 is over characters but for spaces.
    """
    return _answer_scores(predictions, references, _normalize_korean, lambda text: list(text.replace(" ", "")))


def squad_v2(
    predictions: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    no_answer_probabilities: Mapping[str, float] | None = None,
    threshold: float = 1.0,
) -> Scores:
    """Exact match and F1 as SQuAD's evaluate-v2.0.py has them.

    The official script breaks off where a prediction is missing: here that's an error too, and no answer is "".

    Args:
        predictions: id -> text, empty for no answer.
        references: id -> all right answers, empty where there is none.
        no_answer_probabilities: id -> probability, or any other figure that grows with it, that there is no answer.
            Among equal ones the official best thresholds depend on the order, and so do these.
        threshold: a question with a probability above it counts as predicted to have no answer.

    Returns:
        "exact", "f1" and "total"; the same of the questions with an answer, with the prefix "HasAns_", and of those
        without, "NoAns_", where there are any; with probabilities "best_exact", "best_exact_thresh", "best_f1" and
        "best_f1_thresh", what the best threshold would give.

    Raises:
        UsageError: there are no references, or a prediction or probability is missing.
    """
    _check_ids(references, predictions, "prediction")
    if no_answer_probabilities is not None:
        _check_ids(references, no_answer_probabilities, "no-answer probability")
    odds = dict.fromkeys(references, 0.0) if no_answer_probabilities is None else no_answer_probabilities
    answerable = {key: bool(golds) for key, golds in references.items()}
    raw = {metric: _raw_scores(predictions, references, score) for metric, score in _V2_SCORES.items()}
    scores = {metric: _apply_threshold(found, odds, answerable, threshold) for metric, found in raw.items()}
    result = _means(scores, list(references), "")
    for prefix, wanted in (("HasAns_", True), ("NoAns_", False)):
        result |= _means(scores, [key for key, has_answer in answerable.items() if has_answer == wanted], prefix)
    if no_answer_probabilities is not None:
        for metric, found in raw.items():
            best, at = _best_threshold(predictions, found, no_answer_probabilities, answerable)
            result |= {f"best_{metric}": best, f"best_{metric}_thresh": at}
    return result


def best_f1_threshold(
    predictions: Mapping[str, str], references: Mapping[str, Sequence[str]], odds: Mapping[str, float]
) -> float:
    """The lowest of the thresholds whose F1 is best, below all odds where to answer nothing is.

    Questions of equal odds are answered together, as a threshold does; the official search, whose figures squad_v2 has
    as "best_f1", may end among them, at a score that no threshold has.

    Args:
        predictions: id -> text, empty for no answer.
        references: id -> all right answers, empty where there is none; at least one question.
        odds: id -> any figure that grows with the probability that there is no answer.
    """
    scores = _raw_scores(predictions, references, _v2_f1)
    answerable = {key: bool(golds) for key, golds in references.items()}
    now = best = float(sum(not has_answer for has_answer in answerable.values()))
    threshold = math.nextafter(min(odds[key] for key in references), -math.inf)
    for value, keys in groupby(sorted(references, key=lambda key: odds[key]), key=lambda key: odds[key]):
        now += sum(_gain(key, predictions, scores, answerable) for key in keys)
        if now > best:
            best, threshold = now, value
    return threshold


def _answer_scores(
    predictions: Mapping[str, str],
    references: Mapping[str, Sequence[str]],
    normalize: Callable[[str], str],
    split: Callable[[str], list[str]],
) -> Scores:
    if not references:
        raise UsageError("no references: nothing to score")
    exact = f1 = 0.0
    for key, golds in references.items():
        if not golds:
            raise UsageError(f"question {key}: no reference; each needs one, or squad_v2 scores it")
        if key in predictions:
            prediction, normalized = normalize(predictions[key]), [normalize(gold) for gold in golds]
            exact += prediction in normalized
            f1 += max(_overlap_f1(split(prediction), split(gold)) for gold in normalized)
    return {"exact_match": 100.0 * exact / len(references), "f1": 100.0 * f1 / len(references)}


def _normalize(text: str) -> str:
    """Lower case, without punctuation (of ASCII), articles and superfluous spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split())


def _normalize_korean(text: str) -> str:
    return " ".join(text.translate(_KOREAN_MARKS).lower().translate(_WITHOUT_PUNCTUATION).split())


def _overlap_f1(prediction: Sequence[str], gold: Sequence[str]) -> float:
    """F1 of two bags of tokens; 0 where they share none, both empty or not."""
    same = (Counter(prediction) & Counter(gold)).total()
    if same == 0:
        return 0.0
    precision, recall = same / len(prediction), same / len(gold)
    return 2 * precision * recall / (precision + recall)


def _v2_exact(prediction: str, gold: str) -> float:
    return float(prediction == gold)


def _v2_f1(prediction: str, gold: str) -> float:
    """Version 2 counts two empty answers as equal."""
    return _overlap_f1(prediction.split(), gold.split()) if prediction and gold else float(prediction == gold)


_V2_SCORES = {"exact": _v2_exact, "f1": _v2_f1}


def _raw_scores(
    predictions: Mapping[str, str], references: Mapping[str, Sequence[str]], score: Callable[[str, str], float]
) -> Scores:
    """Each question's score, the best over its answers; answers of which normalising leaves nothing are none."""
    result = {}
    for key, golds in references.items():
        prediction = _normalize(predictions[key])
        result[key] = max(score(prediction, gold) for gold in list(filter(None, map(_normalize, golds))) or [""])
    return result


def _apply_threshold(
    scores: Scores, odds: Mapping[str, float], answerable: Mapping[str, bool], threshold: float
) -> Scores:
    return {key: float(not answerable[key]) if odds[key] > threshold else score for key, score in scores.items()}


def _means(scores: Mapping[str, Scores], keys: Sequence[str], prefix: str) -> Scores:
    if not keys:
        return {}
    means = {
        f"{prefix}{metric}": 100.0 * sum(found[key] for key in keys) / len(keys) for metric, found in scores.items()
    }
    return {**means, f"{prefix}total": len(keys)}


def _best_threshold(
    predictions: Mapping[str, str], scores: Scores, odds: Mapping[str, float], answerable: Mapping[str, bool]
) -> tuple[float, float]:
    """The best score over all thresholds, and the lowest such threshold.

    Questions are answered one by one, the likeliest to have an answer first: one that has is worth its score, and one
    that hasn't costs the point that it gives unanswered.
    """
    now = best = float(sum(not has_answer for has_answer in answerable.values()))
    threshold = 0.0
    for key in sorted((key for key in odds if key in scores), key=lambda key: odds[key]):
        now += _gain(key, predictions, scores, answerable)
        if now > best:
            best, threshold = now, odds[key]
    return 100.0 * best / len(scores), threshold


def _gain(key: str, predictions: Mapping[str, str], scores: Scores, answerable: Mapping[str, bool]) -> float:
    """What is won where a question is answered rather than not."""
    return scores[key] if answerable[key] else -float(bool(predictions[key]))


def _check_ids(references: Mapping[str, Any], given: Mapping[str, Any], what: str) -> None:
    if not references:
        raise UsageError("no references: nothing to score")
    missing = [key for key in references if key not in given]
    if missing:
        raise UsageError(f"{len(missing)} questions have no {what}, such as {missing[0]}; give one for each")
