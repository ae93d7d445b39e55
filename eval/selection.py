"""Which point of a grid is the best, and what the points together say of a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eval.errors import UsageError
from eval.metrics import half_width
from eval.parts import Parts
from eval.results import seedless
from eval.tasks.finetuned import FineTuned
from eval.tasks.result import Measurement, Result

_SHARES = ("accuracy", "exact_match", "exact")  # metrics that are shares of the examples
_BASELINE = "always the class that is most frequent in training"
_KEPT = ("point", "metrics", "error", "seconds", "device")  # of every point


def best_of(results: Sequence[dict[str, Any]], metric: str) -> dict[str, Any]:
    """The result with the highest figure on the dev set, the first of several; points that diverged have none.

    Raises:
        UsageError: all diverged.
    """
    usable = [result for result in results if result["error"] is None]
    if not usable:
        raise UsageError(f"every point diverged ({results[0]['error']}); try lower learning rates")
    return max(usable, key=lambda result: result["metrics"]["dev"][metric])


def restarts(results: Sequence[dict[str, Any]], best: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The results of all seeds with the best point's other hyperparameters, those that diverged left out."""
    alike = [result for result in results if seedless(result["point"]) == seedless(best["point"])]
    return [result for result in alike if result["error"] is None]


def conclude(task: FineTuned, parts: Parts, results: Sequence[dict[str, Any]], about: Mapping[str, Any]) -> Result:
    """What a task found by the results of all its points; ``about`` is what else is worth keeping.

    Raises:
        UsageError: all points diverged.
    """
    best = best_of(results, task.best)
    alike = [_flat(result["metrics"]) for result in restarts(results, best)]
    baseline = task.kind.baseline(parts["train"], parts["dev"])
    return Result(
        metrics={
            prefix_of(part) + metric: Measurement(
                value,
                half_width(value, len(parts[part])) if metric in _SHARES else None,
                baseline.get(metric) if part == "dev" else None,
                "percent",
            )
            for part, of_part in best["metrics"].items()
            for metric, value in of_part.items()
        },
        baselines=dict.fromkeys(baseline, _BASELINE),
        details={
            "selected_by": task.best,
            "splits": {part: list(split) for part, split in task.splits.items() if part in parts},
            "examples": {part: len(examples) for part, examples in parts.items()},
            **about,
            "best_point": best["point"],
            "seeds": {name: [metrics[name] for metrics in alike if name in metrics] for name in _flat(best["metrics"])},
            "points": [{name: result[name] for name in _KEPT} for result in results],
            **best["details"],
        },
    )


def _flat(by_part: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Metrics by one name each: f1, mm_accuracy, test_f1."""
    return {prefix_of(part) + metric: value for part, metrics in by_part.items() for metric, value in metrics.items()}


def prefix_of(part: str) -> str:
    """What the metrics of a part are called by: nothing of dev, mm_ of dev_mm."""
    name = "" if part == "dev" else part.removeprefix("dev_")
    return f"{name}_" if name else ""
