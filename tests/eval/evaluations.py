"""Results of evaluations for tests, as eval.run leaves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from eval.results import FORMAT_VERSION, RESULTS, write_results
from preprocessing.schema import checksum
from trainer.hugging_face import WEIGHTS
from trainer.run_directory import step_name


def task(details: dict[str, Any] | None = None, **metrics: float) -> dict[str, Any]:
    """What a task of results.json holds."""
    measured = {
        name: {"value": value, "half_width": None, "baseline": None, "unit": ""} for name, value in metrics.items()
    }
    return {"version": 1, "metrics": measured, "baselines": {}, "details": details or {}, "files": []}


def results(run: Path, step: int, tasks: dict[str, Any], weights: str | None = None) -> dict[str, Any]:
    """The results of the export of a step."""
    lineage = {"run": str(run), "step": step, "manifest_blake2b": "0d", "config_blake2b": "c0"}
    return {
        "format_version": FORMAT_VERSION,
        "checkpoint": {
            "path": str(run / "exports" / step_name(step)),
            "weights_blake2b": weights or f"ab{step}",
            "lineage": lineage,
        },
        "shards": None,
        "settings": {"dtype": "float32", "batch_size": 32, "threads": 2},
        "tasks": tasks,
        "failed": {},
        "files": [],
        "code": {"version": "0.1.0", "commit": "0123456789abcdef", "modified": True},
        "seconds": 1.0,
    }


def results_of(output: Path) -> dict[str, Any]:
    """What a command has left in its output."""
    found: dict[str, Any] = json.loads((output / RESULTS).read_text(encoding="utf-8"))
    return found


def write_evaluation(run: Path, step: int, name: str | None = None, **tasks: dict[str, Any]) -> Path:
    """Put results among the evaluations of a run; the weights are those of its export where it has one."""
    weights = run / "exports" / step_name(step) / WEIGHTS
    file = run / "evaluations" / (name or step_name(step)) / RESULTS
    file.parent.mkdir(parents=True)
    write_results(file, results(run, step, tasks, checksum(weights) if weights.is_file() else None))
    return file
