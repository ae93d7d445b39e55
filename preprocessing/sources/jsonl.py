"""A JSON object a line, such as the copies of corpora on hubs and WikiExtractor's --json output."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import BinaryIO

from preprocessing.sources import (
    DEFAULTS,
    MAX_DOCUMENT,
    Columns,
    Damaged,
    Document,
    Item,
    Part,
    ReadOptions,
    Skipped,
    Start,
    Wanted,
    every,
)
from preprocessing.sources.lines import decode_utf8, has_too_many_values, lines, parse_json

SOURCE = "jsonl"
_HALF_PAIR = re.compile("[\ud800-\udfff]")
_BLOCK = 1 << 20  # bytes in which line ends are counted at once


def read(
    file: BinaryIO, name: str, options: ReadOptions = DEFAULTS, wanted: Wanted = every, part: Part | None = None
) -> Iterator[Item]:
    """The documents of a file in order; their ids are FILE#ROW, rows counted from 0.

    Args:
        file: the open file, decompressed.
        name: its path relative to the corpus.
        options: the names of the fields.
        wanted: which documents.
        part: whole lines of a plain file, as starts finds them; None: all of it.
    """
    rows = enumerate(lines(file, part), start=part.row if part else 0)
    head = next(rows, None)
    if head:
        yield from _rows(chain([head], rows), name, options, wanted, begins=part is None or part.begin == 0)
    elif part is None:
        yield Skipped(name, SOURCE, "empty")


def starts(file: BinaryIO, offsets: Sequence[int]) -> Iterator[Start]:
    """Of a plain file, where the first line begins at or after each of some offsets; their line ends are counted."""
    at = row = 0
    is_begin = True
    for offset in offsets:
        while at < offset and (block := file.read(min(_BLOCK, offset - at))):
            at += len(block)
            row += block.count(b"\n")
            is_begin = block.endswith(b"\n")
        while not is_begin and (rest := file.readline(_BLOCK)):
            at += len(rest)
            is_begin = rest.endswith(b"\n")
            row += is_begin
        yield Start(at, row)


def _rows(
    rows: Iterable[tuple[int, bytes | None]], name: str, options: ReadOptions, wanted: Wanted, begins: bool
) -> Iterator[Item]:
    """The documents of numbered lines; ``begins``: the first one is the file's, which tells if it is JSON lines."""
    first = begins
    for row, line in rows:
        doc_id = f"{name}#{row}"
        if line is None:
            yield Skipped(doc_id, SOURCE, "too_large")
        elif not line.strip():
            yield Skipped(doc_id, SOURCE, "empty")
        elif (is_wanted := wanted(doc_id)) or first:
            item = _document(line, doc_id, options.jsonl, first)
            is_damaged = isinstance(item, Damaged)
            first = first and is_damaged
            if is_wanted or is_damaged:  # who samples documents learns too that a file has no such field
                yield item


def _document(line: bytes, doc_id: str, fields: Columns, first: bool) -> Item:
    if has_too_many_values(line):
        return Skipped(doc_id, SOURCE, "too_large")
    text, replaced = decode_utf8(line)
    if first and text.lstrip().startswith("["):
        return Damaged(doc_id, SOURCE, f"{doc_id}: a JSON array; what is read is one object a line")
    if first and text.strip() == "{":
        return Damaged(doc_id, SOURCE, f"{doc_id}: a JSON object of several lines; what is read is one object a line")
    try:
        record = parse_json(text)
    except ValueError as error:
        return Damaged(doc_id, SOURCE, f"{doc_id}: not a JSON object ({error})")
    if not isinstance(record, dict):
        return Damaged(doc_id, SOURCE, f"{doc_id}: a JSON {type(record).__name__} where an object is expected")
    if first and fields.text not in record:
        fields_there = ", ".join(map(_told, record.items()))
        told = f"{doc_id}: no field {fields.text!r}, but {fields_there}; use --jsonl-text-field"
        return Damaged(doc_id, SOURCE, told)
    body, title = record.get(fields.text), record.get(fields.title)
    if body is not None and not isinstance(body, str):
        return Skipped(doc_id, SOURCE, "no_text")
    if not body or not body.strip():
        return Skipped(doc_id, SOURCE, "empty")
    if len(body) > MAX_DOCUMENT:
        return Skipped(doc_id, SOURCE, "too_large")
    # JSON can spell half a surrogate pair, which has no encoding; of the text it is dropped when that is cleaned.
    title = None if title is None else _HALF_PAIR.sub("", str(title))
    return Document(doc_id, SOURCE, title, body, replaced=replaced)


def _told(field: tuple[str, object]) -> str:
    """A field's name, and of one that can't hold a text what it holds."""
    name, value = field
    return repr(name) if value is None or isinstance(value, str) else f"{name!r} ({type(value).__name__})"
