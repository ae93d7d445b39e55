"""Parquet files of documents, such as Hugging Face's wikimedia/wikipedia; read a group of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from preprocessing.sources import (
    DEFAULTS,
    MAX_DOCUMENT,
    Columns,
    Document,
    Item,
    Part,
    ReadOptions,
    Skipped,
    SourceError,
    Wanted,
    every,
    is_of_storage,
)
from preprocessing.sources.lines import decode_utf8

SOURCE = "parquet"
_ROWS = 256  # held at once


def read(
    file: BinaryIO, name: str, part: Part, options: ReadOptions = DEFAULTS, wanted: Wanted = every
) -> Iterator[Item]:
    """The documents of the groups of rows that begin in a part of a file; their ids are FILE#ROW, from 0.

    Args:
        file: the file as it lies.
        name: its path relative to the corpus.
        part: which bytes of it.
        options: the names of the columns.
        wanted: which documents.

    Raises:
        SourceError: it is no Parquet file, is damaged, or has no such column of strings.
    """
    try:
        table = pq.ParquetFile(pa.PythonFile(file, mode="r"))
        columns = _columns(table.schema_arrow, options.parquet, name)
        sizes = [table.metadata.row_group(group).num_rows for group in range(table.metadata.num_row_groups)]
        for group, row in enumerate(accumulate(sizes[:-1], initial=0)):
            if sizes and part.begin <= _offset(table.metadata.row_group(group)) < part.end:
                yield from _rows(table, group, row, columns, name, wanted)
        if not sum(sizes) and part.begin == 0:
            yield Skipped(name, SOURCE, "empty")
    except (pa.ArrowException, OSError) as error:
        if is_of_storage(error):
            raise
        raise SourceError(f"{name}: not a readable Parquet file ({error}); fetch it again") from error


def _columns(schema: pa.Schema, columns: Columns, name: str) -> Columns:
    """The columns that are there, the title being optional."""
    for column in (columns.text, columns.title):
        kind = schema.field(column).type if column in schema.names else None
        if kind is not None and not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise SourceError(f"{name}: the column {column!r} holds {kind}, not strings; use --parquet-text-column")
    if columns.text not in schema.names:
        raise SourceError(
            f"{name}: no column {columns.text!r}, but {', '.join(map(repr, schema.names))}; use --parquet-text-column"
        )
    return Columns(columns.text, columns.title if columns.title in schema.names else "")


def _offset(group: pq.RowGroupMetaData) -> int:
    """Where a group of rows begins in the file."""
    first = group.column(0)
    return int(first.dictionary_page_offset or first.data_page_offset)


def _rows(
    table: pq.ParquetFile, group: int, row: int, columns: Columns, name: str, wanted: Wanted
) -> Iterator[Document | Skipped]:
    names = [column for column in (columns.text, columns.title) if column]
    for batch in table.iter_batches(_ROWS, row_groups=[group], columns=names):
        # As bytes: a file's strings need not be UTF-8, and then can't be turned into Python's.
        texts = pc.cast(batch.column(columns.text), pa.large_binary()).to_pylist()
        titles = pc.cast(batch.column(columns.title), pa.large_binary()).to_pylist() if columns.title else texts
        for number, (text, title) in enumerate(zip(texts, titles, strict=True), start=row):
            doc_id = f"{name}#{number}"
            if wanted(doc_id):
                yield _document(doc_id, text, title if columns.title else None)
        row += len(texts)


def _document(doc_id: str, raw: bytes | None, title: bytes | None) -> Document | Skipped:
    text, replaced = decode_utf8(raw or b"")
    if len(text) > MAX_DOCUMENT:
        return Skipped(doc_id, SOURCE, "too_large")
    if not text.strip():
        return Skipped(doc_id, SOURCE, "empty")
    return Document(doc_id, SOURCE, None if title is None else decode_utf8(title)[0], text, replaced=replaced)
