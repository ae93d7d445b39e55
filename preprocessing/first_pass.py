"""The first pass over a unit of input: its documents as tokens, in a file ordered by shard."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import lru_cache, partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from preprocessing import files
from preprocessing.contamination import FOUND, Search
from preprocessing.encoder import Encoder
from preprocessing.fingerprints import RepeatRule, fingerprint
from preprocessing.inputs import Unit, check_unchanged
from preprocessing.job import Job
from preprocessing.layout import Counts
from preprocessing.reading import read_inputs
from preprocessing.schema import token_type
from preprocessing.sources import Document, Skipped
from preprocessing.text import clean, holds_tags, split_lines
from preprocessing.token_buffer import (
    LINES,
    Batch,
    EncodedDocument,
    TokenBuffer,
    UnitNote,
    documents_schema,
    tokens_schema,
)
from preprocessing.watchdog import Watchdog, watching
from preprocessing.work_files import WorkFile

BATCH_TOKENS = 16 << 20  # of a record batch between the passes
BATCH_DOCUMENTS = 1 << 16  # of one: as objects short ones weigh a hundred times what their tokens do
ENCODED_AT_ONCE = 1 << 20  # characters


def tokenize_unit(job: Job, unit: Unit) -> UnitNote:
    """First pass over one unit: write its file of tokens, and tell where in it the rows of every shard are.

    Raises:
        SourceError: an input can't be read.
        StorageError: its storage fails, or it has changed since the job began.
    """
    note = UnitNote()
    buffer = TokenBuffer(job.layout, job.vocabulary.size)
    with ExitStack() as open_files:
        dog = open_files.enter_context(watching(job.work, job.patience))
        writers = [
            open_files.enter_context(files.publish_arrow(path, job.work, schema))
            for path, schema in zip(job.unit_files(unit.number), unit_schemas(job), strict=True)
        ]
        batches = 0
        for encoded in _encoded(job, unit, note.totals.counts, dog):
            buffer.add(encoded)
            if buffer.tokens >= BATCH_TOKENS or buffer.documents >= BATCH_DOCUMENTS:
                _write(writers, buffer.flush(unit.number, batches, note))
                batches += 1
                path = job.path(WorkFile.READING_NOTE, unit=unit.number)
                files.write_text(path, json.dumps(note.totals.counts), job.work)
        if buffer.documents:
            _write(writers, buffer.flush(unit.number, batches, note))
        check_unchanged(unit.inputs)
    return note


def unit_schemas(job: Job) -> tuple[pa.Schema, pa.Schema, pa.Schema]:
    """The schemas of the files that the first pass makes of a unit, in the order of Job.unit_files."""
    signatures = job.options.repeats.near_duplicates is not None
    return tokens_schema(job.vocabulary.size), documents_schema(signatures), LINES


def _write(writers: Sequence[pa.RecordBatchFileWriter], batch: Batch) -> None:
    for writer, records in zip(writers, batch, strict=True):
        writer.write_batch(records)


def _encoded(job: Job, unit: Unit, counts: Counts, dog: Watchdog) -> Iterator[EncodedDocument]:
    """The documents of a unit that are long enough; the others are counted."""
    encoder = _encoder(job)
    dtype = np.dtype(str(token_type(job.vocabulary.size)))  # pyarrow's own way asks pandas
    documents = _split(_documents(job, unit, counts, dog), job.options.language, dog)
    blocks = _blocks(_searched(job, unit, documents) if job.benchmark else documents)
    encode = partial(encode_documents, encoder=encoder, rule=job.options.repeats, dtype=dtype)
    for encoded in chain.from_iterable(map(encode, _watched(blocks, dog))):
        source = encoded.document.source
        if len(encoded.tokens) < job.options.min_tokens:
            counts[f"skipped/{source}/{'too_short' if len(encoded.tokens) else 'empty'}"] += 1
            continue
        counts[f"kept/{source}"] += 1
        yield encoded


def _documents(job: Job, unit: Unit, counts: Counts, dog: Watchdog) -> Iterator[Document]:
    """What the readers find in a unit; what they skipped is counted."""
    for document in read_inputs(unit.inputs, job.options.read, wanted=dog.watch):
        dog.rest()
        if isinstance(document, Skipped):
            counts[f"skipped/{document.source}/{document.reason}"] += 1
        else:
            counts[f"characters/{document.source}"] += len(document.text)
            counts[f"replaced/{document.source}"] += document.replaced
            counts[f"windows_1252/{document.source}"] += document.windows_1252
            counts[f"tagged/{document.source}"] += holds_tags(document.text)
            yield document


def _split(documents: Iterable[Document], language: str, dog: Watchdog) -> Iterator[SplitDocument]:
    """Documents cleaned and split, each watched."""
    for document in documents:
        dog.watch(document.doc_id)
        split = split_document(document, language)
        dog.rest()
        yield split


def _searched(job: Job, unit: Unit, documents: Iterable[SplitDocument]) -> Iterator[SplitDocument]:
    """Hand documents on; after the last one, write what of the benchmark is in them."""
    search = Search(files.read_batch(job.path(WorkFile.BENCHMARK_SEQUENCES)))
    for document in documents:
        search.look_in(document.text)
        yield document
    with files.publish_arrow(job.path(WorkFile.FOUND, unit=unit.number), job.work, FOUND) as writer:
        writer.write_batch(search.positions())


def _blocks(documents: Iterable[SplitDocument]) -> Iterator[list[SplitDocument]]:
    """Documents in blocks of about as much text: one by one, short ones would cost more than their text does."""
    block: list[SplitDocument] = []
    waiting = 0
    for document in documents:
        block.append(document)
        waiting += len(document.text)
        if waiting >= ENCODED_AT_ONCE or len(block) >= BATCH_DOCUMENTS:
            yield block
            block, waiting = [], 0
    if block:
        yield block


def _watched(blocks: Iterable[list[SplitDocument]], dog: Watchdog) -> Iterator[list[SplitDocument]]:
    """Blocks, each watched until the next one is asked for."""
    for block in blocks:
        first, last = (block[place].document.doc_id for place in (0, -1))
        dog.watch(f"{first} (or one of those after it up to {last})")
        yield block
        dog.rest()


class SplitDocument(NamedTuple):
    """A document with its sentences."""

    document: Document  # its own text is no longer needed, and empty
    text: str  # cleaned
    lines: list[list[str]]  # the sentences of each line


def split_document(document: Document, language: str) -> SplitDocument:
    """Clean a document, and split it into sentences."""
    text = clean(document.text)
    lines = [[line] for line in text.split("\n")] if document.split else split_lines(text, language)
    return SplitDocument(document._replace(text=""), text, lines)


def encode_documents(
    documents: Sequence[SplitDocument], encoder: Encoder, rule: RepeatRule, dtype: Any
) -> Iterator[EncodedDocument]:
    """Encode documents together; sentences without tokens vanish."""
    encoded = encoder([sentence for document in documents for line in document.lines for sentence in line])
    ids, ends = encoded.ids.astype(dtype), encoded.ends
    kept = np.diff(ends, prepend=0) > 0
    first = origin = 0
    for document, text, lines in documents:
        line_ends = np.cumsum([len(line) for line in lines])
        own_kept = kept[first : first + line_ends[-1]]
        own = ends[first : first + line_ends[-1]][own_kept]
        tokens = ids[origin : own[-1] if len(own) else origin]
        sentence_ends = (own - origin).astype(np.int32)
        line_sentences = np.diff(np.append(0, np.cumsum(own_kept))[line_ends], prepend=0)
        print_ = fingerprint(text, line_sentences.tolist(), sentence_ends, rule)
        yield EncodedDocument(document, tokens, sentence_ends, print_)
        first, origin = first + line_ends[-1], origin + len(tokens)


@lru_cache(maxsize=2)
def _encoder(job: Job) -> Encoder:
    """A job's encoder, once a process."""
    return Encoder(job.read_vocabulary(), job.vocabulary.lowercase, job.encoder)
