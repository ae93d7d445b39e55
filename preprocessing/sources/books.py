"""Books as plain text: a file is a document, or, in google's format, documents lie between blank lines."""

from __future__ import annotations

import codecs
import re
import string
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import PurePosixPath
from typing import BinaryIO, NamedTuple

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
    SourceError,
    Start,
    Wanted,
    every,
)
from preprocessing.sources.lines import decode_utf8, first_starts, has_too_many_values, lines, numbered, parse_json

SOURCE = "books"
WRAP = 100  # columns; a text is hard-wrapped when hardly any of its lines is longer
_EBOOK = "OF (?:THE|THIS) (?:COPYRIGHTED )?PROJECT GUTENBERG E-?(?:BOOK|TEXT)"
# A title may go on in the next lines; where no asterisks follow it, the line is all of the mark.
_START = re.compile(
    rf"^[ \t]*\*{{3}} ?START {_EBOOK}(?:[^\n]*?(?:\n[ \t]*+\S[^\n]*?){{0,3}}?\*{{3}}[^\n]*|[^\n]*)$", re.M | re.I
)
# The last line of the header before 2004 or so.
_SMALL_PRINT_ENDS = re.compile(r"^[ \t]*\*END ?\*? ?THE SMALL PRINT![^\n]*$", re.M | re.I)
_END = re.compile(rf"^[ \t]*(?:\*{{3}} ?END {_EBOOK}|End of (?:the )?Project Gutenberg)", re.M | re.I)
# The words of an end may be in anybody's text, these are not.
_MARK = re.compile(rf"^[ \t]*\*(?:\*\* ?(?:START|END) {_EBOOK}|END ?\*? ?THE SMALL PRINT!)", re.M | re.I)
# Names follow, or an edition's year: a book's own first words may be "Produced by the sun".
_CREDITS = re.compile(
    r"\s*(?:Produced by|E-text prepared by|Transcribed from)\s+(?:the\s+(?=Online|PG|Project|\d))?(?![a-z])\w"
    r".*?\n\s*\n",
    re.S,
)
_HEADER = 1 << 16  # characters, of which a header has a few thousand; a mark further on is another book's
# Of pictures, which may be of several paragraphs.
_CAPTIONS = re.compile(r"\[(?:Illustration|Picture)\b[^\[\]]{0,1000}\]")
# Between passages they are all of a line: to look at the beginnings of all lines would take eight times as long.
_ASTERISKS = re.compile(r"\*[ \t\r*]*+")
_INDENTED = 1000  # characters before them on their line, which are looked at
# Italics, also of a part of a word, within a paragraph; some transcribers close them by ___.
_ITALICS = re.compile(r"_(?![\s_])((?:[^_\n]++|\n(?![ \t]*\n))*+)(?<!\s)_+")
_TITLE = re.compile(r"^Title: *(\S[^\n]*(?:\n[ \t]+\S[^\n]*)*)", re.M)
# Bytes that no text has in any encoding read here, but for a stray one: not white space, nor the end of a file in DOS.
_CONTROL = bytes(set(range(0x20)) - set(b"\t\n\v\f\r\x1a\x1c\x1d\x1e\x1f"))
_LOOKED_AT = 1 << 16  # bytes
_LETTERS = string.ascii_letters.encode()
_ACCENTED = bytes(byte for byte in range(0x80, 0x100) if bytes([byte]).decode("cp1252", "ignore").isalpha())
_MOST_ACCENTED = 1 / 3  # of a text's letters; of Icelandic a seventh is
_FEW_ACCENTED = 20  # letters of a short text, which may be "Ça, là ?"
_BLANK = 1 << 20  # bytes of a file in google's format, in which its first line with text is looked for in every part
_STRAY = 0.01  # this part of them at most; of a compressed file every tenth is one, of UTF-16 in English every second
# The bytes of which white space is made in UTF-8: a line with any other has text.
_OF_WHITE = bytes({byte for code in range(0x3001) if chr(code).isspace() for byte in chr(code).encode()})
# Source -> how its files begin, which would pass for books.
_OTHERS = {"wikipedia": "<mediawiki", "wikiextractor": "<doc id="}
# How a JSON document begins that holds objects: with a key, which no prose does.
_JSON = re.compile(r'[\[\s]*\{\s*"(?:[^"\\\n]++|\\.)*+"\s*:')
_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class Decoded(NamedTuple):
    """The text of a file."""

    text: str
    replaced: int  # in how many places its bytes were none
    windows_1252: bool = False  # taken for it, as for anything that is no Unicode


def decode(data: bytes) -> Decoded:
    """Text of a file: UTF-16 where its mark says so; else UTF-8, also where a few bytes of it are damaged.

    Else what Latin-1 files really hold, Windows-1252, whatever it is.
    """
    if data.startswith(_MARKS):
        text, undamaged = (data.decode("utf-16", errors=how) for how in ("replace", "ignore"))
        return Decoded(text, text.count("\ufffd") - undamaged.count("\ufffd"))
    text, replaced = decode_utf8(data.removeprefix(codecs.BOM_UTF8))
    if not replaced or sum(not character.isascii() for character in text) > 2 * replaced:
        return Decoded(text, replaced)
    try:
        return Decoded(data.decode("cp1252"), 0, windows_1252=True)
    except UnicodeDecodeError:
        return Decoded(data.decode("latin-1"), 0, windows_1252=True)


def _may_be_windows_1252(data: bytes) -> bool:
    """Whether a text has as few letters with accents as in any language that is written in Windows-1252.

    In an encoding of Korean, Japanese, Chinese or Russian most bytes look like such letters.
    """
    plain, accented = (len(data) - len(data.translate(None, letters)) for letters in (_LETTERS, _ACCENTED))
    return accented <= max(_FEW_ACCENTED, _MOST_ACCENTED * (plain + accented))


def strip_gutenberg(text: str) -> tuple[str, str | None]:
    """What is between Project Gutenberg's header and footer, of several books in a row too, and the first title.

    Captions of its pictures, lines of asterisks, and the underscores in which it puts italics go as well. A text
    without header and footer keeps all it has, also where a line of it has no more than the words of a footer.
    """
    start = _START.search(text, 0, _HEADER) or _end_of_small_print(text)
    title = _TITLE.search(text[: start.start()]) if start else None
    body, rest = _until_footer(_without_credits(text[start.end() :]) if start else text, is_gutenbergs=bool(start))
    starts = list(_START.finditer(rest))
    ends = [*(start.start() for start in starts[1:]), len(rest)]
    others = (_without_credits(rest[start.end() : end]) for start, end in zip(starts, ends, strict=False))
    bodies = [body, *(_until_footer(other, is_gutenbergs=True)[0] for other in others)]
    joined = "\n\n".join(bodies)
    if start or rest:
        joined = _ITALICS.sub(r"\1", _CAPTIONS.sub("", _ASTERISKS.sub(_unless_all_of_line, joined)))
    return joined, " ".join(title[1].split()) if title else None


def _unless_all_of_line(asterisks: re.Match[str]) -> str:
    """Asterisks as they are; nothing where their line has nothing else."""
    text, (begin, end) = asterisks.string, asterisks.span()
    before = text[max(0, begin - _INDENTED) : begin].rpartition("\n")[2]
    return asterisks[0] if before.strip(" \t") or text[end : end + 1] not in ("", "\n") else ""


def _end_of_small_print(text: str) -> re.Match[str] | None:
    """The last line of an old header; None where the small print stands behind the book, as in some of the oldest."""
    found = _SMALL_PRINT_ENDS.search(text, 0, _HEADER)
    return found if found and not _END.search(text, 0, found.start()) else None


def _without_credits(body: str) -> str:
    found = _CREDITS.match(body)
    return body[found.end() :] if found else body


def _until_footer(body: str, is_gutenbergs: bool) -> tuple[str, str]:
    """A text up to the footer, and what follows from there.

    Args:
        body: the text without its header.
        is_gutenbergs: whether it had one. Else a footer is one where Gutenberg's mark is in it, or behind it.
    """
    # Looking for the footer line by line takes as long as all the rest of reading.
    mentions = [at for name in ("Gutenberg", "GUTENBERG", "gutenberg") if (at := body.find(name)) >= 0]
    footer = _END.search(body, body.rfind("\n", 0, min(mentions)) + 1) if mentions else None
    if footer and (is_gutenbergs or _MARK.search(body, footer.start())):
        return body[: footer.start()], body[footer.start() :]
    return body, ""


def unwrap(text: str) -> str:
    """One paragraph a line. In a hard-wrapped text a blank line ends a paragraph, in any other every line does."""
    lines = list(map(str.strip, text.split("\n")))
    lengths = list(map(len, lines))
    if sum(map(WRAP.__lt__, lengths)) > (len(lengths) - lengths.count(0)) // 20:
        return "\n".join(line for line in lines if line)
    paragraphs = (paragraph.strip("\n").replace("\n", " ") for paragraph in "\n".join(lines).split("\n\n"))
    return "\n".join(paragraph for paragraph in paragraphs if paragraph)


def read(
    file: BinaryIO, name: str, options: ReadOptions = DEFAULTS, wanted: Wanted = every, part: Part | None = None
) -> Iterator[Item]:
    """The one document of a text file, or those of a file in google's format.

    Args:
        file: the open file, decompressed.
        name: its path relative to the corpus, which becomes the doc_id; FILE#ROW, counted from 0, of several documents.
        options: which format.
        wanted: which documents.
        part: of a plain file in google's format, which begins and ends as starts finds it; None: all of it.

    Raises:
        SourceError: the file is of another source, whose marks would become text, or a JSON document, or it is in
            google's format, and UTF-16. What it is its beginning tells, so every part raises this.
    """
    if options.books_format == "google":
        if part:
            _check_beginning(file, name)
        found = lines(file, part) if part else _plain_lines(lines(file), name)
        yield from numbered(_between_blank_lines(found), name, SOURCE, partial(_document, wanted=wanted), part)
    elif wanted(name):
        yield _book(file, name)


def starts(file: BinaryIO, offsets: Sequence[int]) -> Iterator[Start]:
    """Of a plain file in google's format, where it can be cut: behind the blank line after a document."""
    documents = _between_blank_lines(lines(file))
    return first_starts((Start(file.tell(), row) for row, _ in enumerate(documents, start=1)), offsets, file)


def _book(file: BinaryIO, name: str) -> Item:
    data = file.read(4 * MAX_DOCUMENT + 1)
    if not _is_text(data[:_LOOKED_AT]):
        return Damaged(name, SOURCE, f"{name}: not text in UTF-8, Windows-1252, or UTF-16 that begins with its mark")
    raw, replaced, windows_1252 = decode(data)
    _check_plain(raw, name)
    if windows_1252 and not _may_be_windows_1252(data):
        told = f"{name}: neither UTF-8 nor Windows-1252 but another encoding; iconv -f ENCODING -t UTF-8 converts it"
        return Damaged(name, SOURCE, told)
    if len(data) > 4 * MAX_DOCUMENT or len(raw) > MAX_DOCUMENT:
        return Skipped(doc_id=name, source=SOURCE, reason="too_large")
    body, title = strip_gutenberg(raw.replace("\r\n", "\n").replace("\r", "\n"))
    paragraphs = unwrap(body)
    if not paragraphs:
        return Skipped(doc_id=name, source=SOURCE, reason="empty")
    title = title or PurePosixPath(name).stem
    return Document(name, SOURCE, title, paragraphs, replaced=replaced, windows_1252=windows_1252)


def _check_plain(text: str, name: str, following: Iterable[bytes | None] = ()) -> None:
    """Refuse a text that begins as the files of another source do, or that is a JSON document.

    Args:
        text: a file, or its first line with text.
        name: what error messages call it.
        following: the lines after the text; asked only where it is JSON.

    Raises:
        SourceError: it is such a text; names the other source's option.
    """
    text = text.lstrip()  # itself where there is nothing to strip
    other = next((source for source, beginning in _OTHERS.items() if text.startswith(beginning)), None)
    if _is_json_lines(text, following):
        other = "jsonl"
    if other:
        raise SourceError(f"{name}: not plain text but a file for --{other}; name it there")
    if _JSON.match(text) and _is_json(text):
        raise SourceError(
            f"{name}: one JSON document, and no list of texts; put its texts into plain files, or into lines of "
            '{"text": ...} for --jsonl, which has --jsonl-text-field for a text of another name'
        )


def _is_json(text: str) -> bool:
    """Whether a text that begins as JSON does is JSON to its end; more of it than may be parsed is no book either."""
    if has_too_many_values(text.encode()):
        return True
    try:
        parse_json(text)
    except ValueError:
        return False
    return True


def _is_json_lines(text: str, following: Iterable[bytes | None]) -> bool:
    """Whether the first line is a JSON object with something in it, and has a text or is not the last one."""
    if not text.startswith("{"):
        return False
    line, _, rest = text.partition("\n")
    if has_too_many_values(line.encode()):
        return False  # one document
    try:
        record = parse_json(line)
    except ValueError:
        return False
    if not record or isinstance(record.get(Columns.text), str):
        return bool(record)
    return bool(rest.strip()) or any(line is None or line.strip() for line in following)


def _is_text(beginning: bytes) -> bool:
    """Whether a file may be text: else archives and pictures, being no UTF-8, would pass for Windows-1252."""
    controls = len(beginning) - len(beginning.translate(None, _CONTROL))
    if beginning.startswith(_MARKS):
        return not beginning.startswith(codecs.BOM_UTF32_LE)  # which begins as UTF-16's does
    return controls <= max(1, _STRAY * len(beginning))


def _document(doc_id: str, document: bytes | None, wanted: Wanted) -> Item | None:
    """A document of several, a sentence a line, if it is wanted."""
    if document is None:
        return Skipped(doc_id, SOURCE, "too_large")
    if not wanted(doc_id):
        return None
    text, replaced = decode_utf8(document)
    if len(text) > MAX_DOCUMENT:
        return Skipped(doc_id, SOURCE, "too_large")
    # A carriage return within a line ends none there.
    return Document(doc_id, SOURCE, None, text.replace("\r", " "), replaced=replaced, split=True)


def _check_beginning(file: BinaryIO, name: str) -> None:
    """Refuse a file as _plain_lines does, which is read no further than to its first line with text, if that is near.

    Raises:
        SourceError: as _plain_lines.
    """
    any(line and not _is_blank(line) for line in _plain_lines(lines(file, Part(0, _BLANK)), name))


def _plain_lines(found: Iterator[bytes | None], name: str) -> Iterator[bytes | None]:
    """The lines of a file, of which the first one with text in it is looked at.

    Raises:
        SourceError: it is of another source, JSON, or UTF-16, of which no line would be blank.
    """
    looked = False
    for line in found:
        if line and not looked and not _is_blank(line):
            if line.startswith(_MARKS) or b"\0" in line:
                raise SourceError(f"{name}: UTF-16, and google's format is UTF-8; convert it: iconv -f UTF-16 -t UTF-8")
            _check_plain(decode_utf8(line)[0], name, found)
            looked = True
        yield line


def _is_blank(line: bytes) -> bool:
    """Whether a line is white space, Unicode's too, which bytes by themselves don't know."""
    return not line.lstrip(_OF_WHITE) and not line.decode(errors="replace").strip()


def _between_blank_lines(found: Iterable[bytes | None]) -> Iterator[bytes | None]:
    """The documents of lines as google-research/bert reads them, blank ones between them; None for one too large."""
    held: list[bytes] = []
    size, most = 0, 4 * MAX_DOCUMENT + 1  # bytes, ends of lines included
    for line in chain(found, [b""]):
        if line is None or not _is_blank(line):
            size += most + 1 if line is None else len(line) + 1
            if line and size <= most:
                held.append(line)
        elif size:
            yield b"\n".join(held) if size <= most else None
            held, size = [], 0
