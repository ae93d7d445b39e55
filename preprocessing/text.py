"""Cleaning of plain text and splitting into sentences; pure."""

from __future__ import annotations

import re
import unicodedata

from sentencex import segment

# Control characters but those that count as white space, soft hyphens, byte order marks, and halves of surrogate
# pairs, which have no encoding. Other format characters mean something in some scripts, so they stay.
_DROPPED = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\ufeff\ud800-\udfff]")


def clean(text: str) -> str:
    """Text in Unicode's composed form (NFC), one paragraph a line, single blanks, no control characters.

    Args:
        text: any text with one paragraph a line; the ends of lines may be those of any system.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not unicodedata.is_normalized("NFC", text):  # ten times as fast as to normalize
        text = unicodedata.normalize("NFC", text)
    # Most lines are as they should be: of all that is dropped or a blank, only " " is printable.
    lines = [
        line
        if line.isprintable() and "  " not in line and line[:1] != " " and line[-1:] != " "
        else " ".join(_DROPPED.sub("", line).split())
        for line in text.split("\n")
    ]
    return "\n".join(filter(None, lines))


def split_sentences(text: str, language: str) -> list[str]:
    """The sentences of a cleaned text in order; no sentence reaches over the end of a paragraph.

    Args:
        text: as clean returns it.
        language: code of the language whose rules and abbreviations apply; those of its nearest relative in
            `sentencex`, in the end English, serve for one that it does not know.
    """
    return [sentence for line in split_lines(text, language) for sentence in line]


def split_lines(text: str, language: str) -> list[list[str]]:
    """The sentences of each line of a cleaned text; see split_sentences."""
    lines = (map(str.strip, segment(language, line)) for line in text.split("\n"))
    return [[sentence for sentence in line if sentence] for line in lines]
