"""Books as plain text: a file is a document."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import BinaryIO

from preprocessing.sources import Document, Skipped

SOURCE = "books"
WRAP = 100  # columns; a text is hard-wrapped when hardly any of its lines is longer
_START = re.compile(r"^[ \t]*\*{3} ?START OF (?:THE|THIS) PROJECT GUTENBERG EBOOK.*?\*{3}[^\n]*$", re.M | re.S | re.I)
_END = re.compile(
    r"^[ \t]*(?:\*{3} ?END OF (?:THE|THIS) PROJECT GUTENBERG EBOOK|End of (?:the )?Project Gutenberg)", re.M | re.I
)
_CREDITS = re.compile(r"\s*(?:Produced by|E-text prepared by|Transcribed from)\b.*?\n\s*\n", re.S)
_TITLE = re.compile(r"^Title: *(\S[^\n]*(?:\n[ \t]+\S[^\n]*)*)", re.M)
_MARKS = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


def decode(data: bytes) -> str:
    """Text of a file: UTF-16 where its mark says so, else UTF-8, else what Latin-1 files really hold, Windows-1252."""
    if (encoding := _MARKS.get(data[:2])) is not None:
        return data.decode(encoding, errors="replace")
    for encoding in ("utf-8-sig", "cp1252"):
        try:
            return data.decode(encoding)
        except UnicodeDecodeError:
            continue
    return data.decode("latin-1")


def strip_gutenberg(text: str) -> tuple[str, str | None]:
    """The book between Project Gutenberg's header and footer, and the title that the header names."""
    start = _START.search(text)
    header, body = (text[: start.start()], text[start.end() :]) if start else ("", text)
    title = _TITLE.search(header)
    if start and (credits_of_the_edition := _CREDITS.match(body)):
        body = body[credits_of_the_edition.end() :]
    footer = _END.search(body)
    return body[: footer.start()] if footer else body, " ".join(title[1].split()) if title else None


def unwrap(text: str) -> str:
    """One paragraph a line. In a hard-wrapped text a blank line ends a paragraph, in any other every line does."""
    lines = [line.strip() for line in text.split("\n")]
    written = [len(line) for line in lines if line]
    if sum(length > WRAP for length in written) > len(written) // 20:
        return "\n".join(line for line in lines if line)
    paragraphs = re.split(r"\n{2,}", "\n".join(lines).strip("\n"))
    return "\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs if paragraph)


def read(file: BinaryIO, name: str) -> Iterator[Document | Skipped]:
    """The one document of a text file.

    Args:
        file: the open file, decompressed.
        name: its path relative to the corpus, which becomes the doc_id.
    """
    text = decode(file.read()).replace("\r\n", "\n").replace("\r", "\n")
    body, title = strip_gutenberg(text)
    paragraphs = unwrap(body)
    if paragraphs:
        yield Document(doc_id=name, source=SOURCE, title=title or PurePosixPath(name).stem, text=paragraphs)
    else:
        yield Skipped(doc_id=name, source=SOURCE, reason="empty")
