"""Reading by lines, and bytes that are no UTF-8; what the readers of text formats share."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import BinaryIO

from preprocessing.sources import MAX_DOCUMENT

MAX_LINE = 4 * MAX_DOCUMENT  # bytes: a line this long holds too long a document in any case


def decode_utf8(data: bytes) -> tuple[str, int]:
    """Text, with U+FFFD in place of whatever is no UTF-8, and how many places that were."""
    try:
        return data.decode(), 0
    except UnicodeDecodeError:
        text = data.decode(errors="replace")
        return text, text.count("\ufffd") - data.count("\ufffd".encode())


def lines(file: BinaryIO) -> Iterator[bytes | None]:
    """The lines of a file without what ends them; None for one too long to be held, which is passed over.

    Byte order marks at their beginnings go: of files that were put together there are several.
    """
    while line := file.readline(MAX_LINE):
        if len(line) == MAX_LINE and not line.endswith(b"\n"):
            while (rest := file.readline(MAX_LINE)) and not rest.endswith(b"\n"):
                pass
            yield None
        else:
            yield line.removeprefix(codecs.BOM_UTF8).rstrip(b"\r\n")
