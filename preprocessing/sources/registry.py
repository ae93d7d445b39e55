"""The sources by name: what options, inputs and readers have to know of each other."""

from __future__ import annotations

import re
from dataclasses import dataclass

from preprocessing import bzip2
from preprocessing.sources import PartReader, Reader, ReadOptions, books, jsonl, parquet, wikiextractor, wikipedia

ARTICLE_BYTES = 4096  # of an encyclopedia's article; a rough figure, to choose the number of shards by


@dataclass(frozen=True)
class Source:
    """A format.

    Attributes:
        help: what --NAME takes.
        read: reads a whole file; None for a format that is always read in parts.
        read_part: reads a part of a file; None for a format whose files are read whole.
        part_magic: how a file begins that can be read in parts.
        text_share: of a file's bytes, decompressed, the rest being markup.
        passed_over: in the name of files that lie beside the source's own and are not wanted.
    """

    help: str
    read: Reader | None
    read_part: PartReader | None = None
    part_magic: bytes = b""
    text_share: float = 1.0
    passed_over: re.Pattern[str] | None = None


SOURCES = {
    "wikipedia": Source(
        "Wikipedia dumps: pages-articles XML",
        wikipedia.read,
        wikipedia.read_part,
        bzip2.MAGIC,
        text_share=0.25,  # 0.17 of all English Wikipedia, up to 0.43 of some of its long articles
        passed_over=wikipedia.INDEX,
    ),
    "books": Source(
        "plain text files, of books or of anything else, one document each; see --books-format", books.read
    ),
    "parquet": Source("Parquet files with a column of text, such as wikimedia/wikipedia", None, parquet.read, b"PAR1"),
    "jsonl": Source("files with a JSON object a line, a document each", jsonl.read),
    "wikiextractor": Source("files of <doc ...> ... </doc> that WikiExtractor writes", wikiextractor.read),
}


def numbers_rows(source: str, options: ReadOptions) -> bool:
    """Whether a source's documents are called FILE#ROW, so that no other such source may have a file of that name."""
    return source != "wikipedia" and holds_several(source, options)


def holds_several(source: str, options: ReadOptions) -> bool:
    """Whether a file of a source holds any number of documents; else it is one."""
    return source != "books" or options.books_format == "google"
