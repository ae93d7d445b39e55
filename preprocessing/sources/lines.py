"""Reading by lines, bytes that are no UTF-8, and JSON of any size; what the readers of text formats share."""

from __future__ import annotations

import codecs
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, islice
from typing import Any, BinaryIO, TypeVar

from preprocessing.sources import MAX_DOCUMENT, Item, Part, Skipped, Start

T = TypeVar("T")
MAX_LINE = 4 * MAX_DOCUMENT  # bytes: a line this long holds too long a document in any case
MAX_VALUES = 1 << 20  # of JSON: strings, objects, lists and commas, which take some hundred bytes each once parsed
_VALUE = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[,{\[]', re.DOTALL)
MAX_DEPTH = 200  # of JSON: Python would parse what is nested as deep as its callers leave of the stack
_BRACKET = re.compile(r'"(?:[^"\\]++|\\.)*+"?|([{\[])|[}\]]', re.DOTALL)


def decode_utf8(data: bytes) -> tuple[str, int]:
    """Text, with U+FFFD in place of whatever is no UTF-8, and how many places that were."""
    try:
        return data.decode(), 0
    except UnicodeDecodeError:
        text = data.decode(errors="replace")
        return text, text.count("\ufffd") - data.count("\ufffd".encode())


def lines(file: BinaryIO, part: Part | None = None) -> Iterator[bytes | None]:
    """The lines of a file without what ends them; None for one too long to be held, which is passed over.

    Byte order marks at their beginnings go: of files that were put together there are several.

    Args:
        file: the open file, decompressed.
        part: whole lines of it, of a seekable file; None: all.
    """
    if part is not None:
        file.seek(part.begin)
    left = part.end - part.begin if part is not None else None
    while (left is None or left > 0) and (line := file.readline(MAX_LINE)):
        length, is_held = len(line), len(line) < MAX_LINE or line.endswith(b"\n")
        if not is_held:
            while rest := file.readline(MAX_LINE):
                length += len(rest)
                if rest.endswith(b"\n"):
                    break
        if left is not None:
            left -= length
        yield line.removeprefix(codecs.BOM_UTF8).rstrip(b"\r\n") if is_held else None


def numbered(
    found: Iterable[T], name: str, source: str, item: Callable[[str, T], Item | None], part: Part | None = None
) -> Iterator[Item]:
    """What there is in a file, or in a part of it, under ids FILE#ROW; a file in which there is nothing is empty.

    Args:
        found: the documents, in order.
        name: the file's.
        source: whose it is.
        item: makes of an id and a document what the reader yields, if it yields it.
        part: which one it is; None: the whole file.
    """
    first = part.row if part else 0
    row = first - 1
    for row, document in enumerate(found, start=first):
        if made := item(f"{name}#{row}", document):
            yield made
    if row < 0 and (part is None or part.begin == 0):  # the first part has the first document, whatever its length
        yield Skipped(name, source, "empty")


def has_too_many_values(text: bytes) -> bool:
    """Whether JSON would not fit into memory once it is parsed, however few bytes it has."""
    if len(text) <= MAX_VALUES:
        return False
    return next(islice(_VALUE.finditer(text), MAX_VALUES, None), None) is not None


def _is_too_deep(text: str) -> bool:
    """Whether JSON is nested deeper than is parsed here, on any stack."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    steps = (1 if found[1] else -1 for found in _BRACKET.finditer(text) if found[0][0] != '"')
    return any(depth > MAX_DEPTH for depth in accumulate(steps))


def parse_json(text: str) -> Any:
    """What JSON holds: the same, or the same error, wherever this is called.

    Raises:
        ValueError: it is no JSON, or nested too deep.
    """
    if _is_too_deep(text):
        raise ValueError(f"nested more than {MAX_DEPTH} deep")
    return json.loads(text)


def first_starts(starts: Iterator[Start], offsets: Sequence[int], file: BinaryIO) -> Iterator[Start]:
    """Of all places where a file can be cut the first one at or after each of some offsets, or the file's end.

    Args:
        starts: the places within the file, in ascending order.
        offsets: in ascending order.
        file: which starts reads.
    """
    found: Start | None = Start(0, 0)
    for offset in offsets:
        while found and found.offset < offset:
            found = next(starts, None)
        yield found or Start(file.seek(0, os.SEEK_END), 0)
