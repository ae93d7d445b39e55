"""GLUE's submission: a zip of one table per task with the predictions for its test set."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from eval.readers.glue import GLUE
from trainer.files import write_atomically

# Task -> its file in the zip, and how many examples the test set has.
_TASKS = {
    "CoLA": ("CoLA.tsv", 1_063),
    "SST-2": ("SST-2.tsv", 1_821),
    "MRPC": ("MRPC.tsv", 1_725),
    "STS-B": ("STS-B.tsv", 1_379),
    "QQP": ("QQP.tsv", 390_965),
    "MNLI": ("MNLI-m.tsv", 9_796),
    "MNLI-mm": ("MNLI-mm.tsv", 9_847),
    "QNLI": ("QNLI.tsv", 5_463),
    "RTE": ("RTE.tsv", 3_000),
    "WNLI": ("WNLI.tsv", 146),
    "AX": ("AX.tsv", 1_104),
}
_LONG_AGO = (1980, 1, 1, 0, 0, 0)  # the time that a zip can't do without


def write_glue_submission(predictions: Mapping[str, Sequence[tuple[str, int | float]]], path: Path) -> tuple[str, ...]:
    """Write predictions as gluebenchmark.com takes them; the bytes depend on nothing else.

    Args:
        predictions: task (a key of eval.readers.glue.GLUE) -> (id, index of the label) of each test example, or for
            STS-B (id, figure), which is brought within [0, 5].
        path: of the zip, which appears whole or not at all.

    Returns:
        Why GLUE would refuse it, a line for each task that is missing or whose test set isn't whole; empty if it
        wouldn't. What there is, is written all the same.

    Raises:
        ValueError: an unknown task, or a label that the task doesn't have.
    """
    unknown = [task for task in predictions if task not in _TASKS]
    if unknown:
        raise ValueError(f"GLUE has no task {unknown[0]!r}; it has {', '.join(_TASKS)}")
    tables = {name: _table(task, predictions[task]) for task, (name, _) in _TASKS.items() if task in predictions}
    write_atomically(path, _zip(tables))
    found = {task: len(predictions.get(task, ())) for task in _TASKS}
    return tuple(
        f"{task}: {found[task]:,} predictions for {expected:,} test examples"
        for task, (_, expected) in _TASKS.items()
        if found[task] != expected
    )


def tables_in(path: Path) -> list[str]:
    """The names of the tables in a zip, in their order; none where there is no zip, or a damaged one."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return []


def _table(task: str, predictions: Sequence[tuple[str, int | float]]) -> str:
    rows = (f"{key}\t{_word(task, label)}\n" for key, label in predictions)
    return "".join(("index\tprediction\n", *rows))


def _word(task: str, label: int | float) -> str:
    """A label as GLUE writes it; figures have three decimals, like those of the data set."""
    table = GLUE[task]
    if table.scale:
        low, high = table.scale
        if math.isnan(label):
            raise ValueError(f"{task}: a prediction is not a number")
        return f"{min(max(label, low), high):.3f}"
    if label not in range(len(table.labels)):
        raise ValueError(f"{task}: {label} is not the index of a label, 0 to {len(table.labels) - 1}")
    return table.labels[int(label)]


def _zip(tables: Mapping[str, str]) -> bytes:
    """Not compressed, as another zlib would give other bytes."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, table in tables.items():
            archive.writestr(zipfile.ZipInfo(name, _LONG_AGO), table)
    return file.getvalue()
