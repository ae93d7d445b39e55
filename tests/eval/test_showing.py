"""What a reader is shown of results, word by word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eval.showing import best_points, figures_table, filled_table, paragraphs, shown_figures, spread
from tests.eval.evaluations import results, task

SHARDS = {"path": "/data", "manifest_blake2b": "0d", "sequence_length": 128, "samples": 2000}
POINT = {"learning_rate": 3e-5, "epochs": 3, "batch_size": 32, "seed": 0}
DETAILS = {"best_point": POINT, "selected_by": "f1", "max_length": 128, "points": [{"point": POINT}]}


def of_tasks(tasks: dict[str, Any], **others: Any) -> dict[str, Any]:
    """Results with those fields that an evaluation has besides; on shards of which the model has others."""
    return {**results(Path("runs/demo"), 60, tasks), "data": None, **others}


def measured(
    value: float | None, unit: str = "", half_width: float | None = None, baseline: float | None = None
) -> Any:
    return {"value": value, "half_width": half_width, "baseline": baseline, "unit": unit}


def test_all_that_an_evaluation_has_found() -> None:
    mlm: dict[str, Any] = {"metrics": {"accuracy": measured(0.125, "share", 0.003, 0.0625)}, "details": {}}
    mlm["baselines"] = {"accuracy": "the commonest token"}
    masks = [
        [{"token": "|", "probability": 0.5}, {"token": "x", "probability": 0.01234}],
        [{"token": "y", "probability": 1}],
    ]
    filled = task(
        {"sentences": [{"sentence": "a [MASK] [MASK]", "masks": masks}, {"sentence": "[MASK]", "masks": masks[1:]}]}
    )
    two = {**DETAILS, "points": [{"point": POINT}] * 2, "seeds": {"f1": [88.9]}}
    found = of_tasks(
        {"mlm": mlm, "mrpc": task(DETAILS, f1=88.9), "cola": task(two), "fill_mask": filled},
        shards=SHARDS, data={"limit": 1400}, earlier=[{"tasks": {"rte": task(f1=1.0), "sst2": task()}}],
    )  # fmt: skip
    assert "\n".join(paragraphs(found)) == (
        "runs/demo/exports/step-000060, evaluated in 1.0 s\n"
        "2,000 held-out samples of 128 tokens; ± is half of the 95 % interval\n"
        "at most 1,400 examples of each data set, so of little weight\n"
        "\n"
        "|              |            model | baseline | which is            |\n"
        "| ------------ | ---------------: | -------: | ------------------- |\n"
        "| mlm accuracy | 12.50 % ± 0.30 % |   6.25 % | the commonest token |\n"
        "| mrpc f1      |          88.9000 |          |                     |\n"
        "\n"
        "mrpc: the only point: learning rate 3e-05, 3 epochs, batches of 32, seed 0, at most 128 tokens\n"
        "cola: the best of 2 points by f1: learning rate 3e-05, 3 epochs, batches of 32, seed 0, at most 128 tokens\n"
        "\n"
        "| sentence        | most probable, % |        |\n"
        "| --------------- | ---------------- | ------ |\n"
        "| a [MASK] [MASK] | \\| 50            | x 1.23 |\n"
        "| ... [MASK] 2    | y 100            |        |\n"
        "| [MASK]          | y 100            |        |\n"
        "\n"
        "kept as they were: rte, sst2"
    )


def test_of_what_was_not_asked_for_nothing_is_shown() -> None:
    found = of_tasks({"mrpc": task(f1=88.9)}, data={"limit": None})
    assert list(paragraphs(found)) == [
        "runs/demo/exports/step-000060, evaluated in 1.0 s",
        "\n|         |   model | baseline | which is |\n| ------- | ------: | -------: | -------- |\n"
        "| mrpc f1 | 88.9000 |          |          |",
    ]
    assert figures_table(of_tasks({})) == filled_table(of_tasks({})) == ""


@pytest.mark.parametrize(
    ("lineage", "is_told"),
    [
        ({"manifest_blake2b": "0d"}, False),
        ({"manifest_blake2b": "1e"}, True),
        ({"manifest_blake2b": "1e", "shards_blake2b": ["2f", "0d"]}, False),  # of a run on several directories
        ({"manifest_blake2b": "0d", "shards_blake2b": ["2f", "1e"]}, True),
        ({}, False),  # nobody knows
    ],
)
def test_held_out_samples_that_the_training_may_have_read_are_told(lineage: dict[str, Any], is_told: bool) -> None:
    found = of_tasks({}, shards=SHARDS)
    found["checkpoint"]["lineage"] = lineage
    note = "note: the model was trained on other shards, whose training part may hold these samples"
    assert list(paragraphs(found))[2:] == [note] * is_told


def test_the_name_of_an_export_commands_no_terminal() -> None:
    found = of_tasks({})
    found["checkpoint"]["path"] = "runs/\x1b[31m"
    assert list(paragraphs(found)) == [r"runs/\x1b[31m, evaluated in 1.0 s"]


@pytest.mark.parametrize(
    ("metric", "of", "shown"),
    [
        ("perplexity", measured(1234.56, "", 7.89), "1,234.6 ± 7.9"),
        ("loss", measured(7.118), "7.1180"),
        ("loss", measured(-0.00001, "", 0.5), "0.0000 ± 0.5000"),
        ("accuracy", measured(0.125, "share", 0.0), "12.50 % ± 0.00 %"),
        ("f1", measured(88.9, "%", 1.5), "88.90 % ± 1.50 %"),
        ("f1", measured(None), ""),
    ],
)
def test_a_figure_has_the_digits_that_tell_something(metric: str, of: dict[str, Any], shown: str) -> None:
    assert shown_figures("mlm", {"metrics": {metric: of}, "details": {}}) == {f"mlm {metric}": shown}


def test_a_figure_of_another_kind_than_its_task_has_says_so() -> None:
    found = {"metrics": {"loss": measured(1.0)}, "details": {"instead": "next words"}}
    assert shown_figures("mlm", found) == {"mlm loss, next words": "1.0000"}


@pytest.mark.parametrize(
    ("seeds", "diverged", "shown"),
    [
        ([], 0, ""),
        ([], 2, ""),
        ([60.0], 0, "1"),
        ([60.0], 2, "1 of 3"),
        ([60.0, 62.0], 0, "2: 61.0 ± 1.4"),
        ([60.0, 62.0], 1, "2 of 3: 61.0 ± 1.4"),
    ],
)
def test_of_seeds_mean_and_deviation_are_told_and_how_many_there_were(
    seeds: list[float], diverged: int, shown: str
) -> None:
    assert spread(seeds, diverged, 1) == shown


def test_the_line_of_a_best_point_says_how_it_was_learned_and_judged() -> None:
    """Its seeds are those of its other hyperparameters, the diverged ones too."""
    other = {**POINT, "learning_rate": 5e-5}
    points: list[dict[str, Any]] = [{"point": {**POINT, "seed": seed}} for seed in range(2)]
    points += [{"point": {**POINT, "seed": 2}, "error": "nan"}, {"point": other, "error": "nan"}]
    examples = {"train": 3668, "dev": 1408, "dev_mm": 1, "test": 1725}
    details = {**DETAILS, "points": points, "examples": examples, "seeds": {"f1": [88.0, 90.0], "accuracy": [1.0, 2.0]}}
    learned = {"optimizer": "adamw", "precision": "bf16", "dropout": 0.1}
    found = of_tasks({"mrpc": task(details), "mlm": task()}, fine_tuning=learned)
    assert list(best_points(found, ["mlm", "mrpc"])) == [
        "mrpc: the best of 4 points, of which 2 diverged, by f1: learning rate 3e-05, 3 epochs, batches of 32, seed 0, "
        "at most 128 tokens, adamw, bf16, on 1,408 dev and 1 dev_mm examples; f1 over seeds, 2 of 3: 89.00 ± 1.41"
    ]
    assert list(best_points(found, ["mlm"])) == []
