"""One reader per input format; each turns an open binary file into documents.

A reader is a function ``read(file, name) -> Iterator[Document | Skipped]``: it opens nothing itself, so that the
same reader serves a local file and any file system that Beam knows.
"""

from __future__ import annotations

from typing import NamedTuple


class Document(NamedTuple):
    """One document as a reader yields it."""

    doc_id: str  # stable and unique in the corpus: DBNAME/PAGE, a relative path, FILE#ROW
    source: str  # wikipedia, books, ...
    title: str | None
    text: str  # one paragraph a line, no markup
    revision: int = 0  # of two documents with one doc_id, the one with the greater revision stays


class Skipped(NamedTuple):
    """Something that a reader passed over, counted by reason in the manifest."""

    doc_id: str
    source: str
    reason: str  # redirect, namespace, empty, too_large, ...


class SourceError(ValueError):
    """An input that can't be read. The message names the file and what to do."""
