"""The Beam transforms of the preprocessing job.

    units -> Tokenize -> unit notes -> Settle -> one settlement
                             |                        |
                             +-------- Build ---------+-> shard notes -> Commit

Settle finds what is repeated, in files of hashes that the first pass leaves, and then decides the split: by one worker.
It takes seconds where the passes take hours (a million lines a second), so spreading it would gain nothing.

Tokens never travel through Beam: the first pass leaves them in files, ordered by shard, and what is grouped by shard
are spans of rows in these files. So memory is bounded by one shard, whatever the engine's shuffle does.

Every step that writes may be run again, or twice at once: files appear by rename, with bytes that depend on the
inputs, the options and the seed alone, and a note beside a file says that it is whole.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import lru_cache, partial
from itertools import chain, groupby
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.pvalue import AsSingleton

from preprocessing import files
from preprocessing.contamination import FOUND, Search, shares
from preprocessing.dedup import LOST, REPEATS, Drops, Run, review
from preprocessing.encoder import Encoder, EncoderError, Engine
from preprocessing.fingerprints import fingerprint
from preprocessing.inputs import Unit
from preprocessing.job import STORAGE, Job, clear_work, versions
from preprocessing.options import Options
from preprocessing.reading import read_inputs
from preprocessing.schema import MANIFEST, TOKENIZER, Manifest, ShardEntry, Vocabulary, token_type
from preprocessing.shards import (
    LINES,
    Batch,
    Counts,
    Edge,
    EncodedDocument,
    Rows,
    Settlement,
    ShardingError,
    Span,
    TokenBuffer,
    Totals,
    UnitNote,
    build_shard,
    documents_schema,
    settle,
    split_of,
    tokens_schema,
)
from preprocessing.sources import Document, Skipped, SourceError, StorageError
from preprocessing.summary import tell_statistics
from preprocessing.text import clean, split_lines
from preprocessing.tokenization import (
    parse_vocabulary,
    special_ids,
    tokenizer_files,
)
from preprocessing.watchdog import Watchdog, watching

BATCH_TOKENS = 16 << 20  # of a record batch between the passes
ENCODED_AT_ONCE = 1 << 20  # characters


class LostDocumentsError(RuntimeError):
    """The engine did not hand on every document."""


class ShardNote(NamedTuple):
    """What is known of a finished shard."""

    entry: dict[str, Any]  # a ShardEntry
    counts: dict[str, int]


@contextmanager
def reporting(job: Job, place: str) -> Iterator[None]:
    """Leave an error of the user's where the launcher finds it, whatever the engine makes of exceptions."""
    try:
        yield
    except (EncoderError, SourceError, ShardingError) as error:
        files.write_text(job.error_file(place), str(error), job.work)
        raise
    except StorageError as error:
        files.write_text(job.error_file(place, STORAGE), str(error), job.work)
        raise
    except OSError as error:
        if files.is_full(error):
            # What is unfinished is gone by now, so that there may be room for this.
            with contextlib.suppress(OSError):
                files.write_text(job.error_file(place, STORAGE), files.FULL.format(job.output), job.work)
        raise


def finished(note: str, *made: str) -> Any:
    """What an earlier run noted when it had made some Arrow files; None where it did not come so far.

    Nor did it where the note or a file is cut: a machine that loses its power may leave such.
    """
    noted = files.read_json(note)
    return noted if noted is not None and all(map(files.is_arrow, made)) else None


@lru_cache(maxsize=2)
def _vocabulary(file: str, identity: Vocabulary) -> list[str]:
    """A job's vocabulary, once a process; the identity tells apart what successive jobs put at one place."""
    tokens = parse_vocabulary(files.read_text(file) or "", file)
    assert len(tokens) == identity.size
    return tokens


@lru_cache(maxsize=2)
def _encoder(file: str, identity: Vocabulary, engine: Engine) -> Encoder:
    return Encoder(_vocabulary(file, identity), identity.lowercase, engine)


def _job_vocabulary(job: Job) -> list[str]:
    return _vocabulary(job.vocabulary_file, job.vocabulary)


def encode_documents(
    documents: Sequence[Document], encoder: Encoder, options: Options, dtype: Any
) -> Iterator[EncodedDocument]:
    """Clean documents, split them into sentences and encode them together; sentences without tokens vanish."""
    texts = [clean(document.text) for document in documents]
    split = [
        [[line] for line in text.split("\n")] if document.split else split_lines(text, options.language)
        for document, text in zip(documents, texts, strict=True)
    ]
    encoded = encoder([sentence for lines in split for line in lines for sentence in line])
    ids, ends = encoded.ids.astype(dtype), encoded.ends
    kept = np.diff(ends, prepend=0) > 0
    first = origin = 0
    for document, text, lines in zip(documents, texts, split, strict=True):
        line_ends = np.cumsum([len(line) for line in lines])
        own_kept = kept[first : first + line_ends[-1]]
        own = ends[first : first + line_ends[-1]][own_kept]
        tokens = ids[origin : own[-1] if len(own) else origin]
        sentence_ends = (own - origin).astype(np.int32)
        line_sentences = np.diff(np.append(0, np.cumsum(own_kept))[line_ends], prepend=0)
        print_ = fingerprint(text, line_sentences.tolist(), sentence_ends, options.repeats)
        yield EncodedDocument(document._replace(text=""), tokens, sentence_ends, print_)
        first, origin = first + line_ends[-1], origin + len(tokens)


def tokenize_unit(job: Job, unit: Unit) -> UnitNote:
    """First pass over one unit: write its file of tokens, and tell where in it the rows of every shard are.

    Raises:
        SourceError: an input can't be read.
    """
    note = UnitNote()
    buffer = TokenBuffer(job.layout, job.vocabulary.size)
    with ExitStack() as open_files:
        dog = open_files.enter_context(watching(job.work, job.patience))
        writers = Batch(
            *(
                open_files.enter_context(files.publish_arrow(path, job.work, schema))
                for path, schema in zip(job.unit_files(unit.number), unit_schemas(job), strict=True)
            )
        )
        batches = 0
        for encoded in _encoded(job, unit, note.totals.counts, dog):
            buffer.add(encoded)
            if buffer.tokens >= BATCH_TOKENS:
                _write(writers, buffer.flush(unit.number, batches, note))
                batches += 1
        if buffer.tokens:
            _write(writers, buffer.flush(unit.number, batches, note))
    return note


def unit_schemas(job: Job) -> Batch:
    """The schemas of the files that the first pass makes of a unit."""
    signatures = job.options.repeats.near_duplicates is not None
    return Batch(tokens_schema(job.vocabulary.size), documents_schema(signatures), LINES)


def _write(writers: Batch, batch: Batch) -> None:
    for writer, records in zip(writers, batch, strict=True):
        writer.write_batch(records)


def _encoded(job: Job, unit: Unit, counts: Counts, dog: Watchdog) -> Iterator[EncodedDocument]:
    """The documents of a unit that are long enough; the others are counted."""
    encoder = _encoder(job.vocabulary_file, job.vocabulary, job.encoder)
    dtype = np.dtype(str(token_type(job.vocabulary.size)))  # pyarrow's own way asks pandas
    documents = _documents(job, unit, counts, dog)
    blocks = _blocks(_searched(job, unit, documents) if job.benchmark else documents)
    encode = partial(encode_documents, encoder=encoder, options=job.options, dtype=dtype)
    for encoded in chain.from_iterable(map(encode, _watched(blocks, dog))):
        source = encoded.document.source
        if len(encoded.tokens) < job.options.min_tokens:
            counts[f"skipped/{source}/{'too_short' if len(encoded.tokens) else 'empty'}"] += 1
            continue
        counts[f"kept/{source}"] += 1
        yield encoded


def _watched(blocks: Iterable[list[Document]], dog: Watchdog) -> Iterator[list[Document]]:
    """Blocks, each watched until the next one is asked for."""
    for block in blocks:
        dog.watch(f"{block[0].doc_id} (or one of those after it up to {block[-1].doc_id})")
        yield block
        dog.rest()


def _documents(job: Job, unit: Unit, counts: Counts, dog: Watchdog) -> Iterator[Document]:
    """What the readers find in a unit; what they skipped is counted."""
    for document in read_inputs(unit.inputs, job.options.read, wanted=dog.watch):
        dog.rest()
        if isinstance(document, Skipped):
            counts[f"skipped/{document.source}/{document.reason}"] += 1
        else:
            counts[f"characters/{document.source}"] += len(document.text)
            counts[f"replaced/{document.source}"] += document.replaced
            yield document


def _searched(job: Job, unit: Unit, documents: Iterable[Document]) -> Iterator[Document]:
    """Hand documents on; after the last one, write what of the benchmark is in them."""
    with files.open_arrow(job.benchmark_sequences_file) as file:
        search = Search(file.get_batch(0))
    for document in documents:
        search.look_in(document.text)
        yield document
    with files.publish_arrow(job.found_file(unit.number), job.work, FOUND) as writer:
        writer.write_batch(search.positions())


def find_contamination(job: Job) -> dict[str, Any]:
    """How much of every file of the benchmark is in the corpus; see contamination.shares."""
    with files.open_arrow(job.benchmark_texts_file) as texts:
        return shares(texts.get_batch(0), map(_read_found, map(job.found_file, range(job.units))))


def _read_found(path: str) -> pa.RecordBatch:
    with files.open_arrow(path) as file:
        return file.get_batch(0)


def _blocks(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Documents in blocks of about as much text: one by one, short ones would cost more than their text does."""
    block: list[Document] = []
    waiting = 0
    for document in documents:
        block.append(document)
        waiting += len(document.text)
        if waiting >= ENCODED_AT_ONCE:
            yield block
            block, waiting = [], 0
    if block:
        yield block


class TokenizeUnit(beam.DoFn):
    """Unit -> UnitNote. A unit whose note is there has been done by an earlier run."""

    def __init__(self, job: Job):
        self._job = job

    def process(self, unit: Unit) -> Iterator[UnitNote]:
        """One unit."""
        job, path = self._job, self._job.unit_note(unit.number)
        noted = finished(path, *job.unit_files(unit.number))
        if noted is not None:
            yield UnitNote.from_json(noted)
            return
        with reporting(job, f"unit-{unit.number:05d}"):
            note = tokenize_unit(job, unit)
        files.write_text(path, json.dumps(note.to_json()), job.work)
        yield note


def add_totals(several: Iterable[Totals]) -> Totals:
    """The sum of some totals."""
    total = Totals()
    for one in several:
        total.add(one)
    return total


class DropsNote(NamedTuple):
    """What the search for repetitions tells, beside the files that it writes."""

    counts: Counts  # of dropped documents
    edges: list[Edge]  # of those that stay


def find_drops(job: Job) -> DropsNote:
    """Between the passes, once every unit is done: write which documents and lines are dropped."""
    with TemporaryDirectory() as folder:
        found = review(list(_runs(job, folder)), job.options.repeats)
        with files.publish_arrow(job.repeats_file, job.work, REPEATS) as writer:
            for batch in found.drop_lines(job.options.min_tokens):
                writer.write_batch(batch)
        with files.publish_arrow(job.lost_file, job.work, LOST) as writer:
            writer.write_batch(found.lost_documents())
        return DropsNote(found.counts(), found.edges())


def _runs(job: Job, folder: str) -> Iterator[Run]:
    """The records of every batch of the first pass, mapped; copied to a folder first where they are far away."""
    for unit in range(job.units):
        documents_file, lines_file = (files.local_copy(path, folder) for path in job.unit_files(unit)[1:])
        # Mapped batches outlive their files, of which there may be more than a process can have open.
        with files.open_arrow(documents_file) as documents, files.open_arrow(lines_file) as lines:
            for batch in range(documents.num_record_batches):
                yield Run(unit, batch, documents.get_batch(batch), lines.get_batch(batch))


class Settle(beam.DoFn):
    """Totals -> Settlement. Where the note of what is dropped is there, an earlier run has searched for it."""

    def __init__(self, job: Job):
        self._job = job

    def process(self, totals: Totals) -> Iterator[Settlement]:
        """The totals of the whole corpus, which are there once every unit is done."""
        job = self._job
        note = finished(job.drops_note, job.lost_file, job.repeats_file)
        if note is None:
            with reporting(job, "drops"):
                note = find_drops(job)
            files.write_text(job.drops_note, json.dumps(note), job.work)
        counts, noted = note
        known = Totals(counts=Counter(counts)).add(totals)
        edges = [Edge(split_hash, doc_id, Span(*span)) for split_hash, doc_id, span in noted]
        with reporting(job, "settle"):
            settlement = settle(job.layout, known, edges)
        yield settlement


def by_shard(spans: dict[str, list[Span]]) -> Iterator[tuple[str, Span]]:
    """(shard, Span) of the rows that are told by shard."""
    return ((shard, span) for shard, own in spans.items() for span in own)


def read_spans(job: Job, spans: Iterable[Span]) -> Rows:
    """The rows that spans name, in a fixed order, with what is dropped of them."""
    ordered = sorted(spans)
    slices: list[pa.RecordBatch] = []
    for unit, own in groupby(ordered, key=lambda span: span.unit):
        with files.open_arrow(job.unit_files(unit).tokens) as reader:
            slices += (reader.get_batch(span.batch).slice(span.begin, span.end - span.begin) for span in own)
    keys = np.concatenate([np.empty(0, np.uint64), *(span.keys() for span in ordered)])
    with files.open_arrow(job.lost_file) as lost, files.open_arrow(job.repeats_file) as repeats:
        drops = Drops(lost.get_batch(0), map(repeats.get_batch, range(repeats.num_record_batches)))
        reasons, lines = drops.reasons(keys), drops.lines(keys)
    return Rows(pa.Table.from_batches(slices, schema=tokens_schema(job.vocabulary.size)), reasons, lines)


def write_shard(job: Job, shard: str, spans: Iterable[Span], threshold: int) -> ShardNote:
    """Second pass over one shard: gather its rows, draw its pairs, write it.

    Raises:
        ShardingError: it would hold fewer than two documents.
    """
    rows = read_spans(job, spans)
    size, unknown_id = job.vocabulary.size, special_ids(_job_vocabulary(job)).unknown
    batch, counts = build_shard(shard, rows, job.layout, threshold, job.options.pairs, size, unknown_id)
    with files.publish(job.shard_file(shard), job.work) as sink:
        with pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
        lengths = job.options.pairs.sequence_lengths
        entry = ShardEntry(
            file=shard,
            split=split_of(shard),
            rows=batch.num_rows,
            tokens=len(batch.column("tokens").values),
            pairs={str(length): counts[f"pairs/{length}/{split_of(shard)}"] for length in lengths},
            bytes=sink.bytes,
            blake2b=sink.blake2b,
        )
    return ShardNote(asdict(entry), dict(counts))


class BuildShard(beam.DoFn):
    """(shard, spans) -> ShardNote. A shard whose note is there has been written by an earlier run."""

    def __init__(self, job: Job):
        self._job = job

    def process(self, element: tuple[str, Iterable[Span]], settlement: Settlement) -> Iterator[ShardNote]:
        """One shard."""
        job, (shard, spans) = self._job, element
        if split_of(shard) == "validation" and not settlement.threshold:
            return  # too small a corpus: what was set aside for validation has been moved
        note = finished(job.shard_note(shard), job.shard_file(shard))
        if note is not None:
            yield ShardNote(*note)
            return
        with reporting(job, shard):
            made = write_shard(job, shard, spans, settlement.threshold)
        files.write_text(job.shard_note(shard), json.dumps(made), job.work)
        yield made


def make_manifest(job: Job, notes: Iterable[ShardNote], settlement: Settlement) -> Manifest:
    """The manifest of a job whose shards are all written.

    Raises:
        LostDocumentsError: a shard is missing, or documents in are not documents out and those dropped.
    """
    ordered = sorted(notes, key=lambda note: (note.entry["split"], note.entry["file"]))
    names = job.layout.names("train") + (job.layout.names("validation") if settlement.threshold else [])
    if [note.entry["file"] for note in ordered] != names:
        raise LostDocumentsError(
            f"{len(ordered)} shards came out where {len(names)} were expected; report this as a bug"
        )
    counts = Counter(settlement.counts)
    for note in ordered:
        counts.update(note.counts)
    statistics = tell_statistics(counts, job.options.pairs.sequence_lengths)
    if job.benchmark:
        statistics["contamination"] = find_contamination(job)
    documents = statistics["documents"]
    if documents["read"] != documents["in_shards"] + documents["collisions"] + documents["skipped"]:
        raise LostDocumentsError(f"documents were lost on the way: {documents}; report this with the engine's name")
    return Manifest(
        seed=job.options.seed,
        sequence_lengths=list(job.options.pairs.sequence_lengths),
        vocabulary=job.vocabulary,
        shards=[ShardEntry(**note.entry) for note in ordered],
        options=asdict(job.options),
        statistics=statistics,
        created_by=versions(),
    )


class WriteManifest(beam.DoFn):
    """All shard notes -> the manifest, written last."""

    def __init__(self, job: Job):
        self._job = job

    def process(self, notes: list[ShardNote], settlement: Settlement) -> None:
        """The notes of every shard."""
        job = self._job
        manifest = make_manifest(job, notes, settlement)
        for name, content in tokenizer_files(_job_vocabulary(job), job.vocabulary.lowercase).items():
            with files.publish(files.join(job.output, TOKENIZER, name), job.work) as sink:
                sink.write(content)
        files.write_text(files.join(job.output, MANIFEST), manifest.to_json(), job.work)
        clear_work(job.output)


def build_pipeline(pipeline: beam.Pipeline, job: Job, units: Iterable[Unit]) -> None:
    """Put the whole job into a pipeline; see the top of this file."""
    notes = (
        pipeline
        | "Units" >> beam.Create(list(units))
        | "Spread" >> beam.Reshuffle()
        | "Tokenize" >> beam.ParDo(TokenizeUnit(job))
    )
    settlement = (
        notes
        | "Totals" >> beam.Map(lambda note: note.totals)
        | "Add" >> beam.CombineGlobally(add_totals)
        | "Settle" >> beam.ParDo(Settle(job))
    )
    spans = notes | "Spans" >> beam.Map(lambda note: note.spans)
    moved = settlement | "Moved" >> beam.Map(lambda settled: settled.moved)
    shards = (
        (spans, moved)
        | "Join" >> beam.Flatten()
        | "ByShard" >> beam.FlatMap(by_shard)
        | "Group" >> beam.GroupByKey()
        | "Build" >> beam.ParDo(BuildShard(job), settlement=AsSingleton(settlement))
    )
    _ = (
        shards
        | "List" >> beam.combiners.ToList()
        | "Commit" >> beam.ParDo(WriteManifest(job), settlement=AsSingleton(settlement))
    )
