"""Reading inputs: the right reader on the right bytes, and what happens to what can't be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from preprocessing import files
from preprocessing.inputs import Input
from preprocessing.sources import (
    DEFAULTS,
    MAX_DOCUMENT,
    MAX_LINES,
    MAX_TITLE,
    Damaged,
    DamagedError,
    Document,
    Item,
    ReadOptions,
    Skipped,
    SourceError,
    Wanted,
    every,
)
from preprocessing.sources.registry import SOURCES


def read_inputs(
    inputs: Iterable[Input], options: ReadOptions = DEFAULTS, wanted: Wanted = every
) -> Iterator[Document | Skipped]:
    """The documents of some inputs in order.

    With ``on_error`` "skip", what is damaged counts as one document that was passed over, and what its file, or part
    of a file, has before the damage is kept. Where a reader can tell where the damage ends, as with lines, it goes on
    there; else the rest of the file or part is lost.

    Args:
        inputs: files, or parts of them.
        options: what the user said.
        wanted: asked with a document's id before work is spent on it.

    Raises:
        DamagedError: a file is damaged, or something in it, unless that is to be skipped. Names the file by its path.
        StorageError: a file's storage fails, which is never skipped: it would be there the next time.
    """
    for file in inputs:
        try:
            for item in _items(file, options, wanted):
                yield _settled(item, options)
        except SourceError as error:
            if options.on_error == "fail":
                raise DamagedError(_with_path(str(error), file)) from error
            yield Skipped(file.name, file.source, "damaged")


def _items(file: Input, options: ReadOptions, wanted: Wanted) -> Iterator[Item]:
    opened = files.open_input if file.part is None else files.open_raw
    with opened(file.path) as stream:
        yield from SOURCES[file.source].read(stream, file.name, options, wanted, file.part)


def _with_path(message: str, file: Input) -> str:
    """What is wrong with a file by the path that opens it: readers know its name alone, with which they begin."""
    if message.startswith(file.path):
        return message
    return file.path + message.removeprefix(file.name) if message.startswith(file.name) else message


def _has_too_many_lines(text: str) -> bool:
    """Lines end as they do in any system, which is how text.clean takes them."""
    if len(text) < MAX_LINES:  # as nearly all: nothing to count
        return False
    return text.count("\n") + text.count("\r") - text.count("\r\n") >= MAX_LINES


def _settled(item: Item, options: ReadOptions) -> Document | Skipped:
    if isinstance(item, Damaged):
        if options.on_error == "fail":
            raise SourceError(f"{item.message}; mend it, or use --on-error skip")
        return Skipped(item.doc_id, item.source, "damaged")
    if isinstance(item, Document) and (len(item.text) > MAX_DOCUMENT or _has_too_many_lines(item.text)):
        return Skipped(item.doc_id, item.source, "too_large")
    if isinstance(item, Document) and item.title and len(item.title) > MAX_TITLE:
        return item._replace(title=item.title[:MAX_TITLE])
    return item
