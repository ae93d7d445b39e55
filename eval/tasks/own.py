"""A task of the user's own: texts with labels in tables, described by a TOML file.

tickets.toml                         train.tsv, dev.tsv and perhaps test.tsv in the folder that --data names

text = "body"                        body    queue
label = "queue"                      ...     billing
labels = ["billing", "delivery"]
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from eval.encoding import LongText
from eval.errors import UsageError
from eval.kinds import Texts
from eval.readers import tables
from eval.readers.examples import DatasetError, TextExample
from eval.readers.tables import TextTable
from eval.tasks.finetuned import FineTuned
from trainer.settings import ConfigError, parse, read_toml

SUFFIX = ".toml"
_NAME = re.compile(r"[A-Za-z0-9_-]+")  # it becomes part of folders' and of metrics' names
_OF_FIGURES = ("spearman", "pearson")
_OF_CLASSES = ("accuracy", "macro_f1", "matthews")
_OF_TWO_CLASSES = (*_OF_CLASSES, "f1")


@dataclass(frozen=True)
class OwnTask:
    """What the file says.

    Attributes:
        text: column of the text.
        second_text: column of the second text of a pair.
        label: column of the label, which test.tsv may lack.
        labels: all of them, as the tables write them; without any, the label is a figure.
        id: column of the ids that predictions are listed by; without it rows are numbered from 0.
        metrics: the first decides which point of the grid is best; f1 is that of the second of two labels.
        long_text: which part of a single text that is too long is read.
        max_length: tokens of a sequence.
        learning_rates: to try.
        epochs: to try.
        batch_sizes: to try.
    """

    text: str
    second_text: str | None = None
    label: str = "label"
    labels: tuple[str, ...] = ()
    id: str | None = None
    metrics: tuple[str, ...] = ()
    long_text: LongText = "head"
    max_length: int = 128
    learning_rates: tuple[float, ...] = FineTuned.learning_rates
    epochs: tuple[int, ...] = FineTuned.epochs
    batch_sizes: tuple[int, ...] = FineTuned.batch_sizes

    def __post_init__(self) -> None:
        if "" in (self.text, self.second_text, self.label, self.id):
            raise ValueError("the name of a column is empty; write it, or leave out what the tables don't have")
        if len({self.text, self.second_text, self.label}) < 3:
            raise ValueError("text, second_text and label must be different columns")
        if self.labels and len(set(self.labels)) < max(2, len(self.labels)):
            raise ValueError("labels must be two or more, each once; leave them out where the label is a figure")
        if unknown := [name for name in self.metrics if name not in self._known_metrics]:
            raise ValueError(
                f"metrics: {unknown[0]!r} is none of {', '.join(self._known_metrics)}, which fit the labels"
            )
        if not (self.learning_rates and self.epochs and self.batch_sizes):
            raise ValueError("learning_rates, epochs and batch_sizes need a value each")
        if not all(0 < rate < 1 for rate in self.learning_rates):
            raise ValueError("learning_rates must lie between 0 and 1")
        if min(self.max_length, *self.epochs, *self.batch_sizes) < 1:
            raise ValueError("max_length, epochs and batch_sizes must be 1 or more")

    @property
    def _known_metrics(self) -> tuple[str, ...]:
        if not self.labels:
            return _OF_FIGURES
        return _OF_TWO_CLASSES if len(self.labels) == 2 else _OF_CLASSES

    @property
    def kind(self) -> Texts:
        """How it is learned and judged."""
        return Texts(self.labels, self.metrics or self._known_metrics[:1], self.long_text)

    def table(self, name: str) -> TextTable:
        """How the files of a task of this name are read."""
        return TextTable(
            folders=(name, "."),
            a=self.text,
            b=self.second_text,
            label=self.label,
            labels=self.labels,
            scale=None if self.labels else (-math.inf, math.inf),
            id=self.id,
            needs_id=self.id is not None,
        )


def read_task(path: Path) -> FineTuned:
    """The task that a file describes, named like the file.

    Raises:
        UsageError: no such file, its name won't do, or it is not as it should be.
    """
    if not _NAME.fullmatch(path.stem):
        raise UsageError(f"{path}: a task is named like its file; use letters, digits, - and _ only")
    try:
        own = parse(read_toml(path, "task"), OwnTask, str(path))
    except ConfigError as error:
        raise UsageError(str(error)) from error
    return FineTuned(
        name=path.stem,
        version=1,
        kind=own.kind,
        best=own.kind.metrics[0],
        train=(path.name, "train"),
        dev={"": (path.name, "dev")},
        test=((path.name, "test"),),
        learning_rates=own.learning_rates,
        epochs=own.epochs,
        batch_sizes=own.batch_sizes,
        max_length=own.max_length,
        read=partial(_read, own.table(path.stem)),
    )


def _read(table: TextTable, name: str, split: str, data: Path | None) -> Sequence[TextExample]:
    """The examples of a split.

    Raises:
        DatasetError: see tables.read; or no folder was given.
    """
    if data is None:
        raise DatasetError(f"{name}: tables of your own are not on the hub; give their folder with --data")
    return tables.read(table, data, split)
