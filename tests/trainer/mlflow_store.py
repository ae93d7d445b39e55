"""MLflow stores and runs for tests."""

from __future__ import annotations

import functools
import json
import shutil
import tempfile
from pathlib import Path

from mlflow.tracking import MlflowClient

CONFIG = """
[model]
vocab_size = 64
hidden_act = "gelu"

[[phases]]
steps = 3

[[phases]]
steps = 5

[tracking]
experiment = "tests"
"""
CODE = {"version": "0.1.0", "commit": "c0ffee", "modified": False}


@functools.cache
def _template() -> Path:
    """A store with nothing in it; its tables take seconds to make, so it is made once and copied."""
    path = Path(tempfile.mkdtemp(prefix="mlflow-")) / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


def empty_store(path: Path) -> str:
    """Put an SQLite store at a path; returns its URI."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(_template(), path)
    return f"sqlite:///{path}"


def write_run(path: Path, steps: int = 3) -> Path:
    """A run directory as a training leaves it, without checkpoints and exports."""
    path.mkdir(parents=True)
    (path / "config.toml").write_text(CONFIG, encoding="utf-8")
    for name in ("ds_config.json", "manifest.json"):
        (path / name).write_text("{}\n", encoding="utf-8")
    (path / "code.json").write_text(json.dumps(CODE), encoding="utf-8")
    (path / "code.diff").write_text("", encoding="utf-8")
    add_lines(path / "metrics.jsonl", 1, steps)
    add_lines(path / "validation.jsonl", steps, steps)
    return path


def metrics(step: int) -> dict[str, float]:
    """The line of a step, with values that need all their digits."""
    third = step / 3
    return {
        "step": step, "time": 1_700_000_000.123 + step, "samples": 32 * step, "loss": 10 - third, "mlm_loss": 9 - third,
        "nsp_loss": 0.1 + 0.2 * step, "mlm_accuracy": 0.01 * third, "nsp_accuracy": 0.5 + 0.01 * third,
        "perplexity": 1e3 / step, "grad_norm": 1e-300 * step, "learning_rate": 1e-4 * third, "data_seconds": 0.25,
        "compute_seconds": 0.75, "tokens_per_second": 1000.0 + step,
    }  # fmt: skip


def add_lines(path: Path, first: int, last: int) -> None:
    """Append the lines of steps first to last."""
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(metrics(step)) + "\n" for step in range(first, last + 1))
