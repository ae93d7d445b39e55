"""The best point of a grid, and what counts as its restarts."""

from __future__ import annotations

import pytest

from eval.selection import best_of, restarts


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
