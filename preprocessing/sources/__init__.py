"""One reader per input format; each turns an open binary file into documents.

A reader is a function ``read(file, name, options, wanted, part) -> Iterator[Item]``: it opens nothing itself, so that
the same reader serves a local file and any file system that Beam knows. ``preprocessing.sources.registry`` lists them.
What it says of a file begins with the name that it was given, for which preprocessing.reading puts the path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Literal, NamedTuple

from preprocessing.storage_errors import reason

MAX_DOCUMENT = 1 << 25  # characters, of any source; MediaWiki itself stores no more than 2 MiB a page
MAX_LINES = 1 << 20  # of a document: each is an object of its own while it is read
MAX_TITLE = 1 << 10  # characters, to which a longer one is cut: MediaWiki's have 255 bytes


class Document(NamedTuple):
    """One document as a reader yields it."""

    doc_id: str  # stable and unique in the corpus: DBNAME/PAGE, a relative path, FILE#ROW
    source: str  # wikipedia, books, ...
    title: str | None
    text: str  # one paragraph a line, no markup
    revision: int = 0  # of two documents with one doc_id, the one with the greater revision stays
    replaced: int = 0  # places where the file held bytes that are no text, and the text has U+FFFD now
    split: bool = False  # every line is a sentence: they are not looked for
    windows_1252: bool = False  # what it was taken for, as it is nothing else that the reader knows


class Skipped(NamedTuple):
    """Something that a reader passed over, counted by reason in the manifest."""

    doc_id: str
    source: str
    reason: str  # redirect, namespace, empty, too_large, ...


class Damaged(NamedTuple):
    """Something that can't be read, after which the reader goes on: an error, or counted where the user says so."""

    doc_id: str
    source: str
    message: str


Item = Document | Skipped | Damaged


class SourceError(ValueError):
    """An input that can't be read. The message names the file and what to do."""


class DamagedError(SourceError):
    """An input that is damaged, or something in it, which --on-error skip would pass over."""


class MissingInputError(SourceError):
    """A path or a glob that matches no file."""


class StorageError(RuntimeError):
    """An input whose storage fails, whatever is in it: nothing to skip, and no reason to throw finished work away."""


def unread(path: object, error: OSError) -> StorageError:
    """What to raise of an input that can't be opened or read on."""
    return StorageError(f"{path}: can't be read ({reason(error)}); once it can, the same command goes on")


def is_of_storage(error: BaseException) -> bool:
    """Whether reading failed for the operating system's reasons: these have a number, a damaged file's have none."""
    return isinstance(error, OSError) and error.errno is not None


class Part(NamedTuple):
    """Bytes of a file as it lies. What begins in them belongs to the part: a page, a group of rows, a document."""

    begin: int
    end: int
    row: int = 0  # of the first document in it, where a format's documents are numbered and the file does not say how


@dataclass(frozen=True)
class Columns:
    """Where a table or a record has its text and its title; a missing title is none."""

    text: str = "text"
    title: str = "title"


@dataclass(frozen=True)
class ReadOptions:
    """What the user says about reading.

    Attributes:
        books_format: what a file of books holds.
        parquet, jsonl: where tables and records have their text.
        on_error: of what is damaged, whether it fails the job or is passed over and counted.
    """

    books_format: Literal["file", "google"] = "file"
    parquet: Columns = Columns()
    jsonl: Columns = Columns()
    on_error: Literal["fail", "skip"] = "fail"


DEFAULTS = ReadOptions()

# Asked with a document's id before work is spent on it; a document that is not wanted is passed over in silence.
Wanted = Callable[[str], bool]


def every(_doc_id: str) -> bool:
    """All documents are wanted."""
    return True


# Gives the documents that are wanted, in order: of a part of a file as it lies, or, without one, of a whole file,
# decompressed.
Reader = Callable[[BinaryIO, str, ReadOptions, Wanted, Part | None], Iterator[Item]]


class Start(NamedTuple):
    """Where a file, as it lies, can be cut: no document is on both sides, and so many are before it."""

    offset: int
    row: int


# Of a file, and of some offsets in ascending order, the first place at or after each where it can be cut, or its end.
Starts = Callable[[BinaryIO, Sequence[int]], Iterator[Start]]
