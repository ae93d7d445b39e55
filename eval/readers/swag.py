"""Which ending fits: SWAG (Zellers et al., 2018), and CODAH (Chen et al., 2019), which can stand in for it."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from eval.readers.examples import ChoiceExample, DatasetError, is_id
from eval.readers.files import find, read_lines, read_text

_FILES = {"train": "train.csv", "dev": "val.csv", "test": "test.csv"}
_ENDINGS = ("ending0", "ending1", "ending2", "ending3")
_COLUMNS = ("sent1", "sent2", *_ENDINGS)
_CODAH = ("category", "prompt", *_ENDINGS, "label")
_FOLDS = 5  # as many as CODAH's authors validate over


def read(data: Path, split: str) -> list[ChoiceExample]:
    """SWAG's examples in the order of the file.

    Args:
        data: a CSV file, or a folder that holds it, itself or in swag/ or swag/data/.
        split: "train", "dev" (val.csv), "test" (without labels, or with empty ones), or the name of another file
            without its ".csv".

    Raises:
        DatasetError: the file or a column is missing, a row malformed, a label impossible, or there are no rows.
    """
    name = _FILES.get(split, f"{split}.csv")
    path = find(data, ("swag", "swag/data", "SWAG/data", "."), name, _FILES.values())
    table = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    try:
        header, *rows = [(table.line_num, row) for row in table if row] or [(1, [])]
    except csv.Error as error:
        raise DatasetError(f"{path}: line {table.line_num}: not CSV ({error}); mend the line") from error
    columns = header[1]
    for column in (*_COLUMNS, *(("label",) if split != "test" else ())):
        if column not in columns:
            raise DatasetError(f"{path}: line 1: no column {column!r}; is it a file of SWAG?")
    _check(path, rows, columns)
    cells = [(line, dict(zip(columns, row, strict=True))) for line, row in rows]
    has_labels = split != "test" or any(of_row.get("label") for _, of_row in cells)
    return [_swag_example(path, line, number, of_row, has_labels) for number, (line, of_row) in enumerate(cells)]


def read_codah(data: Path, split: str) -> list[ChoiceExample]:
    """CODAH's examples in the order of the file, with the whole prompt as the context.

    Args:
        data: full_data.tsv, or a folder that holds it, itself or in codah/ or swag/ (there also as
            codah.full_data.tsv).
        split: the file isn't divided: "dev" is every fifth row, "train" the others.

    Raises:
        DatasetError: the file is missing, a row malformed, a label impossible, there are no rows, or no such split.
    """
    if split not in ("train", "dev"):
        raise DatasetError(f"CODAH has no split {split!r}; known here: train, dev")
    path = _codah_file(data)
    lines = enumerate(read_lines(path), start=1)
    rows = [(line, text.split("\t")) for line, text in lines if text]
    _check(path, rows, _CODAH)
    examples = [_codah_example(path, line, row) for line, row in rows]
    return [e for i, e in enumerate(examples) if (i % _FOLDS == _FOLDS - 1) == (split == "dev")]


def _codah_file(data: Path) -> Path:
    try:
        return find(data, ("codah", "swag", "."), "full_data.tsv")
    except DatasetError:
        return find(data, ("codah", "swag", "."), "codah.full_data.tsv")


def _check(path: Path, rows: Sequence[tuple[int, list[str]]], columns: Sequence[str]) -> None:
    """Refuse a file without rows, and one whose rows are longer or shorter than its columns."""
    if not rows:
        raise DatasetError(f"{path}: no rows; give a file with examples")
    for line, row in rows:
        if len(row) != len(columns):
            raise DatasetError(f"{path}: line {line}: {len(row)} cells instead of {len(columns)}; mend the line")


def _swag_example(path: Path, line: int, number: int, cells: dict[str, str], has_label: bool) -> ChoiceExample:
    key = cells.get("", str(number))
    if not is_id(key):
        raise DatasetError(
            f"{path}: line {line}, column '': {key!r} holds a tab or a line's end, which no id may; mend the line"
        )
    return ChoiceExample(
        id=key,
        context=cells["sent1"],
        start=cells["sent2"],
        endings=tuple(cells[ending] for ending in _ENDINGS),
        label=_label(path, line, cells["label"]) if has_label else None,
    )


def _codah_example(path: Path, line: int, row: list[str]) -> ChoiceExample:
    _, prompt, *endings, label = row
    return ChoiceExample(str(line - 1), prompt, "", tuple(endings), _label(path, line, label))


def _label(path: Path, line: int, word: str) -> int:
    if word not in ("0", "1", "2", "3"):
        raise DatasetError(f"{path}: line {line}, column 'label': {word!r} is not the number of an ending, 0 to 3")
    return int(word)
