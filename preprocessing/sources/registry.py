"""The sources by name: what options, inputs and readers have to know of each other."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

from preprocessing import bzip2
from preprocessing.decompression import is_plain
from preprocessing.sources import (
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
        read: its reader.
        has_parts: whether a file, open at its beginning, can be read in parts, as far as its first bytes tell; None of
            a format that is read in no other way.
        starts: where it can be cut; None where a reader finds that in any range of bytes.
        text_share: of a file's bytes, decompressed, the rest being markup.
        passed_over: in the name of files that lie beside the source's own and are not wanted.
        holds_several: whether a file holds any number of documents; else it is one.
        names_documents: whether documents are called as the file says; else they are FILE#ROW where it holds several.
        together: what of a source several workers read together though it is compressed.
        named: what a document's text and title are in, where the user can name it: a column, a field. ReadOptions has
            these names under the source's own.
    """

    help: str
    read: Reader
    has_parts: Callable[[BinaryIO, ReadOptions], bool] | None
    starts: Starts | None = None
    text_share: float = 1.0
    passed_over: re.Pattern[str] | None = None
    holds_several: Callable[[ReadOptions], bool] = lambda _: True
    names_documents: bool = False
    together: str | None = None
    named: str | None = None

    def numbers_rows(self, options: ReadOptions) -> bool:
        """Whether documents are called FILE#ROW, so that no other such source may have a file of that name."""
        return self.holds_several(options) and not self.names_documents


def _are_google_s(options: ReadOptions) -> bool:
    return options.books_format == "google"


SOURCES = {
    "wikipedia": Source(
        "Wikipedia dumps: pages-articles XML",
        wikipedia.read,
        lambda file, _: is_plain(file) or _has_streams(file),
        text_share=0.25,  # 0.17 of all English Wikipedia, up to 0.43 of some of its long articles
        passed_over=wikipedia.INDEX,
        names_documents=True,
        together="the multistream dump",
    ),
    "books": Source(
        "plain text files, of books or of anything else, one document each; see --books-format",
        books.read,
        lambda file, options: _are_google_s(options) and is_plain(file),
        books.starts,
        holds_several=_are_google_s,
    ),
    "parquet": Source(
        "Parquet files with a column of text, such as wikimedia/wikipedia",
        parquet.read,
        has_parts=None,
        named="column",
    ),
    "jsonl": Source(
        "files with a JSON object a line, a document each",
        jsonl.read,
        lambda file, _: is_plain(file),
        jsonl.starts,
        named="field",
    ),
    "wikiextractor": Source(
        "files of <doc ...> ... </doc> that WikiExtractor writes",
        wikiextractor.read,
        lambda file, _: is_plain(file),
        wikiextractor.starts,
    ),
}


def _has_streams(file: BinaryIO) -> bool:
    """Whether a file, at its beginning, is of several bzip2 streams."""
    return bzip2.is_bzip2(file) and bzip2.first_start(file, 1, _LOOKED_AT) is not None
