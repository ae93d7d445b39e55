"""Parquet files of documents, such as Hugging Face's wikimedia/wikipedia; read a group of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, repeat
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
_MAGIC = b"PAR1"
_ROWS = 256  # held at once, or fewer of
_HELD = 1 << 24  # bytes, by the mean of a group of rows
_BUFFER = 1 << 20  # bytes of a column that are read ahead; by itself pyarrow reads a whole group of rows


def read(
    file: BinaryIO, name: str, options: ReadOptions = DEFAULTS, wanted: Wanted = every, part: Part | None = None
) -> Iterator[Item]:
    """The documents of the groups of rows that begin in a part of a file; their ids are FILE#ROW, from 0.

    Args:
        file: the file as it lies.
        name: its path relative to the corpus.
        options: the names of the columns.
        wanted: which documents.
        part: which bytes of it; None: all.

    Raises:
        SourceError: it is no Parquet file, is damaged, or has no such column of strings.
    """
    try:
        if file.read(len(_MAGIC)) not in (_MAGIC, b""):
            raise SourceError(
                f"{name}: no Parquet file, as these begin with PAR1; unpack archives and compressed files first, and "
                "name others by the option of their format"
            )
        stream = pa.PythonFile(file, mode="r")
        table = pq.ParquetFile(stream, buffer_size=_BUFFER, pre_buffer=False, page_checksum_verification=True)
        columns = _columns(table.schema_arrow, options.parquet, name)
        sizes = [table.metadata.row_group(group).num_rows for group in range(table.metadata.num_row_groups)]
        for group, row in zip(range(len(sizes)), accumulate(sizes, initial=0), strict=False):
            if part is None or part.begin <= _offset(table.metadata.row_group(group)) < part.end:
                yield from _rows(table, group, row, columns, name, wanted)
        if not sum(sizes) and (part is None or part.begin == 0):
            yield Skipped(name, SOURCE, "empty")
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # the last for names of columns
        if is_of_storage(error):
            raise
        raise SourceError(f"{name}: not a readable Parquet file ({error}); fetch it again") from error


def _columns(schema: pa.Schema, columns: Columns, name: str) -> Columns:
    """The columns that are there, the title being optional unless it was asked for by another name than usual."""
    asked = columns.title != Columns.title
    for option, column, needed in (("text", columns.text, True), ("title", columns.title, asked)):
        if schema.names.count(column) > 1:
            raise SourceError(f"{name}: several columns are called {column!r}; use --parquet-{option}-column")
        kind = schema.field(column).type if column in schema.names else None
        if kind is None and needed:
            raise SourceError(
                f"{name}: no column {column!r}, but {', '.join(map(repr, schema.names))}; use --parquet-{option}-column"
            )
        if kind is not None and not (
            _is_text(kind) or pa.types.is_null(kind) or (option == "title" and _is_plain(kind))
        ):
            raise SourceError(f"{name}: the column {column!r} holds {kind}, not strings; use --parquet-{option}-column")
    return Columns(columns.text, columns.title if columns.title in schema.names else "")


def _is_text(kind: pa.DataType) -> bool:
    of = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(of) or pa.types.is_large_string(of) or pa.types.is_string_view(of))


def _is_plain(kind: pa.DataType) -> bool:
    """Whether values can be written as strings: numbers and dates."""
    return bool(pa.types.is_primitive(kind))


def _raw(column: pa.Array) -> Iterator[bytes | None]:
    """Strings as bytes: a file's need not be UTF-8, and then can't be turned into Python's. One at a time is copied.

    Of one that is longer than any document as much is as shows that: what packs well may take more than memory has.
    """
    plain = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    if pa.types.is_timestamp(plain.type):
        plain = plain.cast(pa.timestamp(plain.type.unit))  # in UTC: what is where in another zone, machines disagree on
    if not _is_text(plain.type):
        plain = plain.cast(pa.large_string())
    longest = 4 * MAX_DOCUMENT + 1  # bytes: more than MAX_DOCUMENT characters
    for value in pc.cast(plain, pa.large_binary()):
        yield value.as_buffer()[:longest].to_pybytes() if value.is_valid else None


def _offset(group: pq.RowGroupMetaData) -> int:
    """Where a group of rows begins in the file."""
    first = group.column(0)
    return int(first.dictionary_page_offset or first.data_page_offset)


def _rows(
    table: pq.ParquetFile, group: int, row: int, columns: Columns, name: str, wanted: Wanted
) -> Iterator[Document | Skipped]:
    names = [column for column in (columns.text, columns.title) if column]
    for batch in table.iter_batches(_held(table.metadata.row_group(group), names), row_groups=[group], columns=names):
        texts = _raw(batch.column(columns.text))
        titles = _raw(batch.column(columns.title)) if columns.title else repeat(None, len(batch))
        for number, (text, title) in enumerate(zip(texts, titles, strict=True), start=row):
            doc_id = f"{name}#{number}"
            if wanted(doc_id):
                yield _document(doc_id, text, title)
        row += len(batch)


def _held(group: pq.RowGroupMetaData, names: Sequence[str]) -> int:
    """How many rows of some columns are decoded at once: few of books.

    A dictionary's values are in the file once, however many rows have them: one may be as large as all of its column.
    """
    columns = [group.column(number) for number in range(group.num_columns)]
    largest = [c.total_uncompressed_size for c in columns if c.path_in_schema in names and c.has_dictionary_page]
    bounds = [_HELD * group.num_rows // max(1, group.total_byte_size), *(_HELD // max(1, size) for size in largest)]
    return int(max(1, min(_ROWS, *bounds)))


def _document(doc_id: str, raw: bytes | None, title: bytes | None) -> Document | Skipped:
    text, replaced = decode_utf8(raw or b"")
    if len(text) > MAX_DOCUMENT:
        return Skipped(doc_id, SOURCE, "too_large")
    if not text.strip():
        return Skipped(doc_id, SOURCE, "empty")
    return Document(doc_id, SOURCE, None if title is None else decode_utf8(title)[0], text, replaced=replaced)
