"""The evaluations that lie in run directories, and the figures in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.results import RESULTS, read_results

EVALUATIONS = "evaluations"  # the folder of a run directory where eval.watch leaves them
_LOWER_IS_BETTER = ("loss", "perplexity")


@dataclass(frozen=True)
class Evaluated:
    """A results.json.

    Attributes:
        file: it.
        results: its content, see eval.results.
    """

    file: Path
    results: dict[str, Any]

    @property
    def weights_blake2b(self) -> str:
        """The checksum of the weights that were evaluated."""
        return str(self.results["checkpoint"]["weights_blake2b"])

    @property
    def export(self) -> Path:
        """Where the export lay."""
        return Path(self.results["checkpoint"]["path"])

    @property
    def run(self) -> str:
        """The name of the training run; that of the export's folder where another program wrote it."""
        lineage = self.results["checkpoint"]["lineage"]
        return Path(lineage["run"]).name if "run" in lineage else self.export.name

    @property
    def step(self) -> int | None:
        """Of the training; None for an export that another program wrote."""
        step: int | None = self.results["checkpoint"]["lineage"].get("step")
        return step

    @property
    def limit(self) -> int | None:
        """Examples of each data set that were taken at most; None for whole data sets, and where none was read."""
        limit: int | None = (self.results.get("data") or {}).get("limit")
        return limit

    def figure(self, task: str, metric: str) -> float | None:
        """A figure; None where it was not measured."""
        measured = self.results["tasks"].get(task, {}).get("metrics", {}).get(metric)
        return None if measured is None else float(measured["value"])


def find_results(folders: Iterable[Path]) -> Iterator[Path]:
    """Every results.json in some folders, one folder below each, or among a run's evaluations; each once."""
    patterns = (RESULTS, f"*/{RESULTS}", f"{EVALUATIONS}/*/{RESULTS}")
    found = (file.resolve() for folder in folders for pattern in patterns for file in sorted(folder.glob(pattern)))
    return iter(dict.fromkeys(found))


def read_evaluations(files: Iterable[Path]) -> list[Evaluated]:
    """Read results, sorted by step.

    Raises:
        ValueError: one is damaged or of another version.
    """
    found = [Evaluated(file, read_results(file)) for file in files]
    return sorted(found, key=lambda evaluated: (evaluated.run, evaluated.step or 0, str(evaluated.file)))


def best_evaluation(evaluations: Sequence[Evaluated], task: str, metric: str) -> Evaluated:
    """The evaluation with the best figure, the earliest of several; a loss or perplexity is best when it is low.

    Raises:
        ValueError: none has that figure.
    """
    figures = [(figure, e) for e in evaluations if (figure := e.figure(task, metric)) is not None]
    if not figures:
        measured = sorted(
            {f"{name}.{m}" for e in evaluations for name, t in e.results["tasks"].items() for m in t["metrics"]}
        )
        raise ValueError(f"no evaluation has {task}.{metric}; there are {', '.join(measured) or 'no figures'}")
    sign = -1 if metric in _LOWER_IS_BETTER else 1
    return max(figures, key=lambda pair: sign * pair[0])[1]
