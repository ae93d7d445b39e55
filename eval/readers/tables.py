"""Tables of texts with labels: what GLUE, NSMC, KorNLI and KorSTS have in common.

Such a data set is a row of data, a TextTable: which columns of which files hold what. A table has a line for each
example and tabs between its cells; nothing is quoted, so a quotation mark is a character like any other.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path

from eval.readers.examples import DatasetError, TextExample
from eval.readers.files import SPLITS, find, read_lines
from preprocessing.status import is_file

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TextTable:
    """How the files of a data set hold its examples.

    Attributes:
        folders: where they may lie, see eval.readers.files.find.
        a: column of the text.
        b: column of the second text; None where there is one only.
        label: column of the label.
        labels: the words of the labels in the file, in the order of their indices; empty for a regression.
        scale: lowest and highest figure of a regression; all are finite.
        files: split -> its files, read one after the other; that of a split which is not here is SPLIT.tsv.
        id: column of the ids. Where a file lacks it, rows are numbered from 0.
        needs_id: refuse a file that lacks it.
        columns: names of the columns of a file whose first line doesn't name them.
        without_labels: splits in which the column of the label may be missing, or empty throughout.
        unlabelled: word of the rows that have no label, which are left out.
        drop_short: leave out rows with too few cells, which the original files are known to have.
    """

    folders: tuple[str, ...]
    a: str
    b: str | None = None
    label: str = "label"
    labels: tuple[str, ...] = ()
    scale: tuple[float, float] | None = None
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    id: str | None = None
    needs_id: bool = False
    columns: tuple[str, ...] = ()
    without_labels: tuple[str, ...] = ("test",)
    unlabelled: str | None = None
    drop_short: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a table: where it is, and its cells by column, of the columns that are read."""

    file: Path
    line: int
    cells: Mapping[str, str]

    def error(self, column: str, problem: str) -> DatasetError:
        """What to raise for a cell."""
        return DatasetError(f"{self.file}: line {self.line}, column {column!r}: {problem}")


def read(table: TextTable, data: Path, split: str) -> list[TextExample]:
    """The examples of a split, in the order of its files.

    Args:
        table: of the data set.
        data: a file of it, or a folder that holds it.
        split: "train", "dev", "test", or the name of a file without its ".tsv".

    Raises:
        DatasetError: a file or column is missing, a row malformed, a label impossible, or nothing left to read.
    """
    paths = _paths(table, data, split)
    rows = [row for path in paths for row in read_rows(path, _needed(table, split), table)]
    has_labels = split not in table.without_labels or any(row.cells.get(table.label) for row in rows)
    examples = [
        _example(table, row, number, has_labels) for number, row in enumerate(rows) if not _is_unlabelled(table, row)
    ]
    if len(examples) < len(rows):
        dropped = len(rows) - len(examples)
        _log.warning("%s: left out %d rows without a label (%r)", paths[0], dropped, table.unlabelled)
    if not examples:
        raise DatasetError(f"{paths[0]}: no row is left; give a file with whole and labelled rows")
    return examples


def _paths(table: TextTable, data: Path, split: str) -> list[Path]:
    if is_file(data):
        return [data]
    whole = [name for of_split in SPLITS for name in _names(table, of_split)]
    return [find(data, table.folders, name, whole) for name in _names(table, split)]


def _names(table: TextTable, split: str) -> tuple[str, ...]:
    return table.files.get(split, (f"{split}.tsv",))


def _needed(table: TextTable, split: str) -> list[str]:
    """Columns that a split must have."""
    label = None if split in table.without_labels else table.label
    return [column for column in (table.a, table.b, label, table.id if table.needs_id else None) if column]


def read_rows(path: Path, needed: Sequence[str], table: TextTable) -> Iterator[Row]:
    """The rows of a file; empty lines at its end are none.

    Raises:
        DatasetError: it lacks a column or rows, or a row has too few or too many cells.
    """
    cells = (line.split("\t") for line in _without_empty_end(read_lines(path)))
    begin = list(islice(cells, 2))
    has_header = bool(begin) and (not table.columns or table.a in begin[0])
    columns = begin[0] if has_header else table.columns
    if len(begin) <= has_header:
        raise DatasetError(f"{path}: no rows; give a file with examples")
    _check_columns(path, columns, needed)
    # The others are let go of line by line: nine tenths of MNLI's 400 MB are parse trees.
    kept = [(i, column) for i, column in enumerate(columns) if column in (table.a, table.b, table.label, table.id)]
    short = 0
    for line, row in enumerate(chain(begin[has_header:], cells), start=1 + has_header):
        if len(row) == len(columns):
            yield Row(path, line, {column: row[i] for i, column in kept})
        elif table.drop_short and len(row) < len(columns):
            short += 1
        else:
            raise DatasetError(
                f"{path}: line {line}: {len(row)} cells instead of {len(columns)} ({', '.join(columns)}); "
                "cells are separated by tabs and never quoted: mend the line"
            )
    if short:
        _log.warning("%s: left out %d rows with too few cells", path, short)


def _without_empty_end(lines: Iterable[str]) -> Iterator[str]:
    empty = 0
    for line in lines:
        if line:
            yield from [""] * empty
            yield line
        empty = 0 if line else empty + 1


def _check_columns(path: Path, columns: Sequence[str], needed: Sequence[str]) -> None:
    for column in needed:
        if columns.count(column) > 1:
            raise DatasetError(f"{path}: line 1: {columns.count(column)} columns are called {column!r}; leave one")
        if column not in columns:
            raise DatasetError(
                f"{path}: line 1: no column {column!r} among {', '.join(columns)[:200]!r}; is it a file of this task?"
            )


def _is_unlabelled(table: TextTable, row: Row) -> bool:
    return table.unlabelled is not None and row.cells.get(table.label) == table.unlabelled


def _example(table: TextTable, row: Row, number: int, has_label: bool) -> TextExample:
    return TextExample(
        id=row.cells.get(table.id, str(number)) if table.id else str(number),
        a=row.cells[table.a],
        b=row.cells[table.b] if table.b else None,
        label=_label(table, row) if has_label else None,
    )


def _label(table: TextTable, row: Row) -> int | float:
    word = row.cells[table.label]
    if table.scale:
        return _figure(word, table, row)
    if word not in table.labels:
        raise row.error(table.label, f"{word!r} is not a label; expected {' or '.join(table.labels)}")
    return table.labels.index(word)


def _figure(word: str, table: TextTable, row: Row) -> float:
    assert table.scale
    low, high = table.scale
    try:
        figure = float(word)
    except ValueError:
        figure = math.nan
    if not (math.isfinite(figure) and low <= figure <= high):
        expected = f"; expected one from {low:g} to {high:g}" if math.isfinite(low) else ""
        raise row.error(table.label, f"{word!r} is not a figure{expected}")
    return figure
