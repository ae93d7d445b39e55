"""The <doc id= url= title=> files that WikiExtractor writes; its --json output is read as JSON lines.

<doc id="12" url="https://en.wikipedia.org/wiki?curid=12" title="Anarchism">
Anarchism

Anarchism is a political philosophy ...
</doc>
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import BinaryIO, NamedTuple

from preprocessing.sources import (
    DEFAULTS,
    MAX_DOCUMENT,
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
from preprocessing.sources.lines import decode_utf8, first_starts, lines, numbered
from preprocessing.sources.wikitext import unescaped

SOURCE = "wikiextractor"
# Titles hold quotation marks of their own. What is before one is looked for once (?>), and of attributes behind it
# there are few, so that time is linear.
_OPENING = re.compile(
    rb"(?><doc\s[^>]*?\btitle=\")(?P<title>.*?)\"(?:\s++[\w:.-]++=\"[^\"]*+\"){0,16}+[^\">]*+>", re.DOTALL
)
_CLOSING = b"</doc>"


def read(
    file: BinaryIO, name: str, _options: ReadOptions = DEFAULTS, wanted: Wanted = every, part: Part | None = None
) -> Iterator[Item]:
    """The documents of a file in order; their ids are FILE#ROW, rows counted from 0.

    Args:
        file: the open file, decompressed.
        name: its path relative to the corpus.
        wanted: which documents.
        part: of a plain file, which begins and ends as starts finds it; None: all of it.
    """
    yield from numbered(_documents(lines(file, part)), name, SOURCE, partial(_item, wanted=wanted), part)


def starts(file: BinaryIO, offsets: Sequence[int]) -> Iterator[Start]:
    """Of a plain file, where it can be cut: behind the ends of documents."""
    ends = (Start(file.tell(), row) for row, found in enumerate(_documents(lines(file)), start=1) if found.is_closed)
    return first_starts(ends, offsets, file)


class _Found(NamedTuple):
    """What there is in a file: a document, or text that is in none."""

    title: bytes | None  # None: no document
    body: bytes | None  # None: too large; where there is no document, the beginning of what is there
    is_closed: bool = False  # nothing of it follows


def _item(doc_id: str, found: _Found, wanted: Wanted) -> Item | None:
    title, body, _ = found
    if title is None:
        text = (body or b"").decode(errors="replace")
        return Damaged(doc_id, SOURCE, f"{doc_id}: {text!r} is outside of <doc ...> ... </doc>")
    if body is None:
        return Skipped(doc_id, SOURCE, "too_large")
    return _document(doc_id, title, body) if wanted(doc_id) else None


def _documents(found: Iterable[bytes | None]) -> Iterator[_Found]:
    """The documents of lines, and the lines that are in none."""
    title: bytes | None = None
    body: list[bytes] = []
    size = 0
    for line in found:
        opening = _OPENING.fullmatch(line.strip()) if line else None
        closing = line is not None and line.strip() == _CLOSING
        if (opening or closing) and title is not None:
            yield _Found(title, b"\n".join(body) if size <= 4 * MAX_DOCUMENT else None, is_closed=closing)
        elif line and title is None and not opening:
            yield _Found(None, line[:80])
        if opening or closing:
            title, body, size = opening and opening["title"], [], 0
        elif title is not None:
            size += 4 * MAX_DOCUMENT + 1 if line is None else len(line)
            body += [line] if line and size <= 4 * MAX_DOCUMENT else []
    if title is not None:
        yield _Found(None, b'<doc ... title="' + title[:80] + b'"> without its end')


def _document(doc_id: str, raw_title: bytes, raw: bytes) -> Item:
    text, replaced = decode_utf8(raw)
    title = unescaped(decode_utf8(raw_title)[0])
    text = unescaped(text)
    text = text.removeprefix(title).lstrip("\n") if text.split("\n", 1)[0] == title else text
    if len(text) > MAX_DOCUMENT:
        return Skipped(doc_id, SOURCE, "too_large")
    return Document(doc_id, SOURCE, title, text, replaced=replaced) if text else Skipped(doc_id, SOURCE, "empty")
