"""The sources by name: what options, inputs and readers have to know of each other."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

from preprocessing import bzip2
from preprocessing.decompression import is_plain
from preprocessing.sources import (
    PartReader,
    Reader,
    ReadOptions,
    Starts,
    books,
    jsonl,
    parquet,
    wikiextractor,
    wikipedia,
)

# Bytes of a bzip2 dump, in which its second stream begins, if it has several: of Wikimedia's the first one is small.
_LOOKED_AT = 1 << 27
ARTICLE_BYTES = 4096  # of an encyclopedia's article; a rough figure, to choose the number of shards by


@dataclass(frozen=True)
class Source:
    """A format.

    Attributes:
        help: what --NAME takes.
        read: reads a whole file; None for a format that is always read in parts.
        read_part: reads a part of a file.
        has_parts: whether a file, open at its beginning, can be read in parts, as far as its first bytes tell; of a
            format that is always read in parts nobody asks.
        starts: where it can be cut; None where a reader finds that in any range of bytes.
        text_share: of a file's bytes, decompressed, the rest being markup.
        passed_over: in the name of files that lie beside the source's own and are not wanted.
    """

    help: str
    read: Reader | None
    read_part: PartReader
    has_parts: Callable[[BinaryIO, ReadOptions], bool] = lambda *_: True
    starts: Starts | None = None
    text_share: float = 1.0
    passed_over: re.Pattern[str] | None = None


SOURCES = {
    "wikipedia": Source(
        "Wikipedia dumps: pages-articles XML",
        wikipedia.read,
        wikipedia.read_part,
        lambda file, _: is_plain(file) or _has_streams(file),
        text_share=0.25,  # 0.17 of all English Wikipedia, up to 0.43 of some of its long articles
        passed_over=wikipedia.INDEX,
    ),
    "books": Source(
        "plain text files, of books or of anything else, one document each; see --books-format",
        books.read,
        books.read_part,
        lambda file, options: holds_several("books", options) and is_plain(file),
        books.starts,
    ),
    "parquet": Source(
        "Parquet files with a column of text, such as wikimedia/wikipedia", read=None, read_part=parquet.read
    ),
    "jsonl": Source(
        "files with a JSON object a line, a document each",
        jsonl.read,
        jsonl.read_part,
        lambda file, _: is_plain(file),
        jsonl.starts,
    ),
    "wikiextractor": Source(
        "files of <doc ...> ... </doc> that WikiExtractor writes",
        wikiextractor.read,
        wikiextractor.read_part,
        lambda file, _: is_plain(file),
        wikiextractor.starts,
    ),
}


def _has_streams(file: BinaryIO) -> bool:
    """Whether a file, at its beginning, is of several bzip2 streams."""
    return file.read(len(bzip2.MAGIC)) == bzip2.MAGIC and bzip2.first_start(file, 1, _LOOKED_AT) is not None


def numbers_rows(source: str, options: ReadOptions) -> bool:
    """Whether a source's documents are called FILE#ROW, so that no other such source may have a file of that name."""
    return source != "wikipedia" and holds_several(source, options)


def holds_several(source: str, options: ReadOptions) -> bool:
    """Whether a file of a source holds any number of documents; else it is one."""
    return source != "books" or options.books_format == "google"
