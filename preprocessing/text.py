"""Cleaning of plain text and splitting into sentences; pure."""

from __future__ import annotations

import re
import string
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate, islice

from sentencex import segment

LONG = 1 << 14  # characters of a line; a real paragraph has fewer
WINDOW = 1 << 12  # characters of a longer line that are looked at together, up to where a sentence seems to end
WIDEST = 4 * WINDOW  # where none does: there the line is cut, at a blank if it has one
MARKS = 1 << 11  # of punctuation in a window at most; a paragraph of LONG characters has some 600
_MARK = re.compile(r"[^\w\s]")
_LETTERS = f"{string.ascii_letters} ".encode()
MOST = 30  # combining marks on a letter; no language has more than a few
_COMBINING = frozenset(chr(code) for code in range(0x300, 0x20000) if unicodedata.combining(chr(code)))
_TOO_MANY = re.compile("[{0}]{{{1}}}(?=[{0}])".format("".join(sorted(_COMBINING)), MOST))
_JOINER = "\u034f"  # shows nothing, and what is behind it is ordered by itself
# Control characters but those that count as white space, soft hyphens, byte order marks, and halves of surrogate
# pairs, which have no encoding. Other format characters mean something in some scripts, so they stay.
_DROPPED = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\ufeff\ud800-\udfff]")
# Marks that end a sentence even without a blank: Unicode's Sentence_Terminal but for the full stop.
_MARKS = (
    "!?\u0589\u061f\u06d4\u0700-\u0702\u07f9\u0964\u0965\u104a\u104b\u1362\u1367\u1368\u166e\u1735\u1736\u1803\u1809\u1944"
    "\u1945\u1aa8-\u1aab\u1b5a-\u1b5f\u1c3b\u1c3c\u1c7e\u1c7f\u203c\u203d\u2047-\u2049\u2e2e\u2e3c\u3002\ua4ff\ua60e"
    "\ua60f\ua6f3\ua6f7\ua876\ua877\ua8ce\ua8cf\ua92f\ua9c8\ua9c9\uaa5d-\uaa5f\uaaf0\uaaf1\uabeb\ufe52\ufe56\ufe57"
    "\uff01\uff0e\uff1f\uff61"
)
_END = re.compile(rf"[{_MARKS}](?![{_MARKS}a-z]|[\"'”’»)\]]?\s)|[.…{_MARKS}][\"'”’»)\]]*\s")
# Of HTML what stands in texts that were taken from pages: other words in angle brackets may be anything.
_TAG = re.compile(r"</?(?:a|b|blockquote|br|div|em|font|h[1-6]|i|img|li|p|span|strong|td|tr|u|ul)\b[^<>]*>", re.I)


def holds_tags(text: str) -> bool:
    """Whether a text has something of HTML's in it, such as <br />."""
    return "<" in text and _TAG.search(text) is not None


def clean(text: str) -> str:
    """Text in Unicode's composed form (NFC), one paragraph a line, single blanks, no control characters.

    Args:
        text: any text with one paragraph a line; the ends of lines may be those of any system.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = _composed(text)
    # Most lines are as they should be: of all that is dropped or a blank, only " " is printable.
    lines = [
        line if line.isprintable() and "  " not in line and line[:1] != " " and line[-1:] != " " else _tidy(line)
        for line in text.split("\n")
    ]
    return "\n".join(filter(None, lines))


def _tidy(line: str) -> str:
    # What is dropped may have stood between a letter and its accent.
    return _composed(" ".join(_DROPPED.sub("", line).split()))


def _composed(text: str) -> str:
    """Text in NFC. Combining marks are put in order, which of many on one letter takes time as their number squared.

    So where there are more than MOST they get a joiner after every MOST, as Unicode has it (Standard Annex 15,
    Stream-Safe Text Format).
    """
    step = MOST // 2  # of more than MOST in a row two such places are marks, and all between
    places = text[::step]
    if not _COMBINING.isdisjoint(places):
        marked = (at * step for at, letter in enumerate(places) if letter in _COMBINING)
        if any(_COMBINING.issuperset(text[at : at + step]) for at in marked):
            text = _TOO_MANY.sub(rf"\g<0>{_JOINER}", text)
    return text if unicodedata.is_normalized("NFC", text) else unicodedata.normalize("NFC", text)


def split_lines(text: str, language: str) -> list[list[str]]:
    """The sentences of each line of a cleaned text in order.

    Args:
        text: as clean returns it.
        language: code of the language whose rules and abbreviations apply; those of its nearest relative in
            `sentencex`, in the end English, serve for one that it does not know.
    """
    lines = (map(str.strip, _segments(language, line)) for line in text.split("\n"))
    return [[sentence for sentence in line if sentence] for line in lines]


def _segments(language: str, line: str) -> Iterable[str]:
    """The sentences of a line as `segment` finds them; a long line, or one of many marks, is looked at in windows.

    `segment` takes what is between two quotation marks or brackets for one sentence. A mark that is missing in a
    paragraph spoils that paragraph; in a book that is one line, half of it would be such sentences, whose tokens no
    pair reaches. The time of `segment` is the line's length times the number of marks that are not closed, or of
    sentences that end without a blank, as in Chinese; in windows, of so many marks at most, it is linear.
    """
    if len(line) > LONG or (len(line) > MARKS and _marks_end(line, 0, len(line)) < len(line)):
        return _windowed(language, line)
    whole: list[str] = segment(language, line)
    return whole


def _windowed(language: str, line: str) -> Iterator[str]:
    """The sentences of one window after the other.

    Of what is found in a window the second half is looked at again with what follows, so that a quotation that goes on
    there is not cut; but seven eighths of the characters at most, so that nothing is looked at more than eight times.
    """
    at = 0
    while at < len(line):
        end = _window_end(line, at)
        found = segment(language, line[at:end])
        if end < len(line):
            ends = list(accumulate(map(len, found)))
            found = found[: max(len(found) // 2, 1 + bisect_left(ends, (end - at) / 8))]
        yield from found
        at += sum(map(len, found))


def _window_end(line: str, at: int) -> int:
    """Where the window ends that begins at a place of a line."""
    widest = at + WIDEST
    if end := _END.search(line, at + WINDOW, widest):
        return _marks_end(line, at, end.end())
    if widest < len(line):
        widest = line.rfind(" ", at + WINDOW, widest) + 1 or widest
    return _marks_end(line, at, min(widest, len(line)))


def _marks_end(line: str, begin: int, end: int) -> int:
    """How far a line has no more marks than a window may have."""
    if len(line[begin:end].encode().translate(None, _LETTERS)) <= MARKS:  # as of nearly all, for a tenth of the time
        return end
    one_more = next(islice(_MARK.finditer(line, begin, end), MARKS, None), None)
    return one_more.start() if one_more else end
