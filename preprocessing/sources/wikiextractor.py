"""The <doc id= url= title=> files that WikiExtractor writes; its --json output is read as JSON lines.

<doc id="12" url="https://en.wikipedia.org/wiki?curid=12" title="Anarchism">
Anarchism

Anarchism is a political philosophy ...
</doc>
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import BinaryIO

from preprocessing.sources import DEFAULTS, MAX_DOCUMENT, Damaged, Document, Item, ReadOptions, Skipped, Wanted, every
from preprocessing.sources.lines import decode_utf8, lines

SOURCE = "wikiextractor"
# Titles hold quotation marks of their own; what is before one is looked for once (?>), so that time is linear.
_OPENING = re.compile(rb"(?><doc\s[^>]*?\btitle=\")(?P<title>.*)\"[^\">]*>")
_CLOSING = b"</doc>"


def read(file: BinaryIO, name: str, _options: ReadOptions = DEFAULTS, wanted: Wanted = every) -> Iterator[Item]:
    """The documents of a file in order; their ids are FILE#ROW, rows counted from 0.

    Args:
        file: the open file, decompressed.
        name: its path relative to the corpus.
        wanted: which documents.
    """
    row = 0
    for title, body in _documents(file):
        doc_id = f"{name}#{row}"
        row += 1
        if title is None:
            yield Damaged(
                doc_id,
                SOURCE,
                f"{doc_id}: {(body or b'').decode(errors='replace')!r} is outside of <doc ...> ... </doc>",
            )
        elif body is None:
            yield Skipped(doc_id, SOURCE, "too_large")
        elif wanted(doc_id):
            yield _document(doc_id, title, body)
    if not row:
        yield Skipped(name, SOURCE, "empty")


def _documents(file: BinaryIO) -> Iterator[tuple[bytes | None, bytes | None]]:
    """(title, text) of every document; text None: too large; title None: no document, and of its text the beginning."""
    title: bytes | None = None
    body: list[bytes] = []
    size = 0
    for line in lines(file):
        opening = _OPENING.fullmatch(line.strip()) if line else None
        closing = line is not None and line.strip() == _CLOSING
        if (opening or closing) and title is not None:
            yield title, b"\n".join(body) if size <= 4 * MAX_DOCUMENT else None
        elif line and title is None and not opening:
            yield None, line[:80]
        if opening or closing:
            title, body, size = opening and opening["title"], [], 0
        elif title is not None:
            size += 4 * MAX_DOCUMENT + 1 if line is None else len(line)
            body += [line] if line and size <= 4 * MAX_DOCUMENT else []
    if title is not None:
        yield None, b'<doc ... title="' + title[:80] + b'"> without its end'


def _document(doc_id: str, raw_title: bytes, raw: bytes) -> Item:
    text, replaced = decode_utf8(raw)
    title = html.unescape(decode_utf8(raw_title)[0])
    text = html.unescape(text)
    text = text.removeprefix(title).lstrip("\n") if text.split("\n", 1)[0] == title else text
    if len(text) > MAX_DOCUMENT:
        return Skipped(doc_id, SOURCE, "too_large")
    return Document(doc_id, SOURCE, title, text, replaced=replaced) if text else Skipped(doc_id, SOURCE, "empty")
