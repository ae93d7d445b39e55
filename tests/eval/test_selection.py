"""The best point of a grid, and what counts as its restarts."""

from __future__ import annotations

import pytest

from eval.metrics import half_width
from eval.readers.examples import TextExample
from eval.selection import best_of, conclude, restarts
from eval.tasks.finetuned import FINE_TUNED
from eval.tasks.result import Measurement


def result(rate: float, seed: int, f1: float | None) -> dict:
    metrics = {} if f1 is None else {"dev": {"f1": f1}}
    point = {"learning_rate": rate, "epochs": 3, "batch_size": 32, "seed": seed}
    return {"point": point, "metrics": metrics, "error": "the loss of step 3 is nan" if f1 is None else None}


def test_the_best_on_dev_and_its_restarts() -> None:
    found = [
        *(result(5e-5, 0, 80.0), result(5e-5, 1, None)),
        *(result(2e-5, 0, 84.0), result(2e-5, 1, 82.0), result(2e-5, 2, None)),
    ]
    best = best_of(found, "f1")
    assert best is found[2]
    assert restarts(found, best) == [found[2], found[3]]
    assert best_of([result(5e-5, 0, 7.0), result(4e-5, 0, 7.0)], "f1")["point"]["learning_rate"] == 5e-5


def test_all_diverged() -> None:
    with pytest.raises(
        ValueError, match=r"^every point diverged \(the loss of step 3 is nan\); try lower learning rates$"
    ):
        best_of([result(1.0, 0, None)], "f1")


def test_every_part_has_its_own_figures_and_shares_alone_have_intervals() -> None:
    """Of three in four of MNLI's examples the class is the second, and of one in four of the dev set."""
    examples = [TextExample(str(number), "a", "b", int(number % 4 > 0)) for number in range(100)]
    parts = {"train": examples, "dev": examples[:12:4] + examples[1:2], "dev_mm": examples[:40]}
    metrics = {"dev": {"accuracy": 75.0, "f1": 60.0}, "dev_mm": {"accuracy": 50.0, "f1": 40.0}}
    found = {**result(5e-5, 0, 0.0), "metrics": metrics, "seconds": 1.0, "device": "cpu", "details": {"steps": 9}}
    concluded = conclude(FINE_TUNED["mnli"], parts, [found], {"export": "e0"})
    assert concluded.metrics == {
        "accuracy": Measurement(75.0, half_width(75.0, 4), 25.0, "percent"),
        "f1": Measurement(60.0, None, None, "percent"),
        "mm_accuracy": Measurement(50.0, half_width(50.0, 40), None, "percent"),
        "mm_f1": Measurement(40.0, None, None, "percent"),
    }
    assert concluded.details["splits"] == {
        "train": ["MNLI", "train"], "dev": ["MNLI", "dev"], "dev_mm": ["MNLI-mm", "dev"]
    }  # fmt: skip
    assert concluded.details["seeds"] == {"accuracy": [75.0], "f1": [60.0], "mm_accuracy": [50.0], "mm_f1": [40.0]}
    assert concluded.details["export"] == "e0"
