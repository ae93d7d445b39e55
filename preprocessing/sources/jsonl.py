"""A JSON object a line, such as the copies of corpora on hubs and WikiExtractor's --json output."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice
from typing import BinaryIO

from preprocessing.sources import (
    DEFAULTS,
    MAX_DOCUMENT,
    Columns,
    Damaged,
    Document,
    Item,
    ReadOptions,
    Skipped,
    Wanted,
    every,
)
from preprocessing.sources.lines import decode_utf8, lines

SOURCE = "jsonl"
_MAX_VALUES = 1 << 20  # of a line: strings, objects, lists and commas, which take some hundred bytes each once parsed
_VALUE = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[,{\[]', re.DOTALL)
_HALF_PAIR = re.compile("[\ud800-\udfff]")


def read(file: BinaryIO, name: str, options: ReadOptions = DEFAULTS, wanted: Wanted = every) -> Iterator[Item]:
    """The documents of a file in order; their ids are FILE#ROW, rows counted from 0.

    Args:
        file: the open file, decompressed.
        name: its path relative to the corpus.
        options: the names of the fields.
        wanted: which documents.
    """
    row, first = -1, True
    for row, line in enumerate(lines(file)):
        doc_id = f"{name}#{row}"
        if line is None:
            yield Skipped(doc_id, SOURCE, "too_large")
        elif not line.strip():
            yield Skipped(doc_id, SOURCE, "empty")
        elif wanted(doc_id):
            item = _document(line, doc_id, options.jsonl, first)
            first = first and isinstance(item, Damaged)
            yield item
    if row < 0:
        yield Skipped(name, SOURCE, "empty")


def _document(line: bytes, doc_id: str, fields: Columns, first: bool) -> Item:
    if _has_too_many_values(line):
        return Skipped(doc_id, SOURCE, "too_large")
    text, replaced = decode_utf8(line)
    if first and text.lstrip().startswith("["):
        return Damaged(doc_id, SOURCE, f"{doc_id}: a JSON array; what is read is one object a line")
    if first and text.strip() == "{":
        return Damaged(doc_id, SOURCE, f"{doc_id}: a JSON object of several lines; what is read is one object a line")
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
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


def _has_too_many_values(line: bytes) -> bool:
    """Whether a line would not fit into memory once it is parsed, however few bytes it has."""
    if len(line) <= _MAX_VALUES:
        return False
    return next(islice(_VALUE.finditer(line), _MAX_VALUES, None), None) is not None
