"""The Beam transforms of the preprocessing job.

    units -> TokenizeInputs -> parts -> Settle -> one settlement
                                 |                   |
                                 +--- BuildShards ---+-> shard notes -> CommitManifest

Tokens never travel through Beam: the first pass leaves them in files, ordered by shard, and what is grouped by shard
are spans of rows in these files. So memory is bounded by one shard, whatever the engine's shuffle does.

Every step that writes may be run again, or twice at once: files appear by rename, with bytes that depend on the
inputs, the options and the seed alone, and a note beside a file says that it is whole.
"""

from __future__ import annotations

import importlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import lru_cache, partial
from itertools import chain
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
import pyarrow as pa
from apache_beam.pvalue import AsSingleton

from preprocessing import files
from preprocessing.encoder import Encoder, EncoderError, Engine
from preprocessing.job import Input, Job, Unit, clear_work, versions
from preprocessing.schema import MANIFEST, TOKENIZER, Manifest, ShardEntry, Vocabulary, token_type
from preprocessing.shards import (
    Counts,
    EncodedDocument,
    Part,
    Settlement,
    ShardingError,
    Span,
    TokenBuffer,
    Totals,
    build_shard,
    settle,
    split_of,
    tokens_schema,
)
from preprocessing.sources import Document, Skipped, SourceError
from preprocessing.text import clean, split_sentences
from preprocessing.tokenization import (
    parse_vocabulary,
    special_ids,
    tokenizer_files,
)

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
    documents: Sequence[Document], encoder: Encoder, language: str, dtype: Any
) -> Iterator[EncodedDocument]:
    """Clean documents, split them into sentences and encode them together; sentences without tokens vanish."""
    split = [split_sentences(clean(document.text), language) for document in documents]
    encoded = encoder([sentence for sentences in split for sentence in sentences])
    ids, ends = encoded.ids.astype(dtype), encoded.ends
    kept = np.diff(ends, prepend=0) > 0
    first = origin = 0
    for document, sentences in zip(documents, split, strict=True):
        beyond = first + len(sentences)
        own = ends[first:beyond][kept[first:beyond]]
        tokens = ids[origin : own[-1] if len(own) else origin]
        yield EncodedDocument(document._replace(text=""), tokens, (own - origin).astype(np.int32))
        first, origin = beyond, origin + len(tokens)


def read_input(file: Input) -> Iterator[Document | Skipped]:
    """The documents of one input, by the reader of its source.

    Raises:
        SourceError: the file can't be read.
    """
    reader = importlib.import_module(f"preprocessing.sources.{file.source}")
    with files.open_input(file.path) as stream:
        yield from reader.read(stream, file.name)


def tokenize_unit(job: Job, unit: Unit) -> Part:
    """First pass over one unit: write its file of tokens, and tell where in it the rows of every shard are.

    Raises:
        SourceError: an input can't be read.
    """
    part, batches = Part(), 0
    target = job.tokens_file(unit.number)
    buffer = TokenBuffer(job.layout, job.vocabulary.size)
    schema = tokens_schema(job.vocabulary.size)
    with files.publish(target, job.work) as sink, pa.ipc.new_file(sink, schema) as writer:
        for encoded in _encoded(job, unit, part.totals.counts):
            buffer.add(encoded)
            if buffer.tokens >= BATCH_TOKENS:
                writer.write_batch(buffer.flush(target, batches, part))
                batches += 1
        if buffer.tokens:
            writer.write_batch(buffer.flush(target, batches, part))
    return part


def _encoded(job: Job, unit: Unit, counts: Counts) -> Iterator[EncodedDocument]:
    """The documents of a unit that are long enough; the others are counted."""
    encoder = _encoder(job.vocabulary_file, job.vocabulary, job.encoder)
    dtype = token_type(job.vocabulary.size).to_pandas_dtype()
    blocks = _blocks(_documents(unit, counts))
    encode = partial(encode_documents, encoder=encoder, language=job.options.language, dtype=dtype)
    for encoded in chain.from_iterable(map(encode, blocks)):
        source = encoded.document.source
        if len(encoded.tokens) < job.options.min_tokens:
            counts[f"skipped/{source}/{'too_short' if len(encoded.tokens) else 'empty'}"] += 1
            continue
        counts[f"kept/{source}"] += 1
        yield encoded


def _documents(unit: Unit, counts: Counts) -> Iterator[Document]:
    """What the readers find in a unit; what they skipped is counted."""
    for document in chain.from_iterable(read_input(file) for file in unit.inputs):
        if isinstance(document, Skipped):
            counts[f"skipped/{document.source}/{document.reason}"] += 1
        else:
            counts[f"characters/{document.source}"] += len(document.text)
            yield document


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
    """Unit -> Part. A unit whose note is there has been done by an earlier run."""

    def __init__(self, job: Job):
        self._job = job

    def process(self, unit: Unit) -> Iterator[Part]:
        """One unit."""
        job = self._job
        note = files.read_text(job.part_file(unit.number))
        if note is not None:
            yield Part.from_json(json.loads(note))
            return
        with reporting(job, f"unit-{unit.number:05d}"):
            part = tokenize_unit(job, unit)
        files.write_text(job.part_file(unit.number), json.dumps(part.to_json()), job.work)
        yield part


class AddTotals(beam.CombineFn):
    """Adds up the totals of parts."""

    def create_accumulator(self) -> Totals:
        """Nothing yet."""
        return Totals()

    def add_input(self, accumulator: Totals, part: Part) -> Totals:
        """Add a part."""
        return accumulator.add(part.totals)

    def merge_accumulators(self, accumulators: Iterable[Totals]) -> Totals:
        """Add accumulators."""
        total = Totals()
        for accumulator in accumulators:
            total.add(accumulator)
        return total

    def extract_output(self, accumulator: Totals) -> Totals:
        """The sum."""
        return accumulator


class SettleSplit(beam.DoFn):
    """Totals -> Settlement."""

    def __init__(self, job: Job):
        self._job = job

    def process(self, totals: Totals) -> Iterator[Settlement]:
        """The totals of the whole corpus."""
        with reporting(self._job, "settle"):
            yield settle(self._job.layout, totals)


class SpansOfPart(beam.DoFn):
    """Part -> (shard, Span)."""

    def process(self, part: Part) -> Iterator[tuple[str, Span]]:
        """One part."""
        for shard, spans in part.spans.items():
            for span in spans:
                yield shard, span


class SpansOfMoved(beam.DoFn):
    """Settlement -> (shard, Span) of documents that a small corpus has to move between the splits."""

    def process(self, settlement: Settlement) -> Iterator[tuple[str, Span]]:
        """The one settlement."""
        for shard, spans in settlement.moved.items():
            for span in spans:
                yield shard, span


def read_spans(spans: Iterable[Span], vocab_size: int) -> pa.Table:
    """The rows that spans name, as one table in a fixed order."""
    slices: list[pa.RecordBatch] = []
    by_file: dict[str, list[Span]] = {}
    for span in sorted(spans):
        by_file.setdefault(span.file, []).append(span)
    for file, own in by_file.items():
        with files.open_arrow(file) as reader:
            slices += (reader.get_batch(span.batch).slice(span.begin, span.end - span.begin) for span in own)
    return pa.Table.from_batches(slices, schema=tokens_schema(vocab_size))


def write_shard(job: Job, shard: str, spans: Iterable[Span], threshold: int) -> ShardNote:
    """Second pass over one shard: gather its rows, draw its pairs, write it.

    Raises:
        ShardingError: it would hold fewer than two documents.
    """
    rows = read_spans(spans, job.vocabulary.size)
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
        note = files.read_text(job.shard_note(shard))
        if note is not None:
            yield ShardNote(*json.loads(note))
            return
        with reporting(job, shard):
            made = write_shard(job, shard, spans, settlement.threshold)
        files.write_text(job.shard_note(shard), json.dumps(made), job.work)
        yield made


class ListNotes(beam.CombineFn):
    """Collects the notes of all shards."""

    def create_accumulator(self) -> list[ShardNote]:
        """None yet."""
        return []

    def add_input(self, accumulator: list[ShardNote], note: ShardNote) -> list[ShardNote]:
        """Add a note."""
        return [*accumulator, note]

    def merge_accumulators(self, accumulators: Iterable[list[ShardNote]]) -> list[ShardNote]:
        """Join accumulators."""
        return list(chain.from_iterable(accumulators))

    def extract_output(self, accumulator: list[ShardNote]) -> list[ShardNote]:
        """All notes."""
        return accumulator


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


def _under(counts: Counts, prefix: str) -> dict[str, int]:
    """The counts whose names begin with prefix/, without it."""
    return {name.removeprefix(f"{prefix}/"): count for name, count in counts.items() if name.startswith(f"{prefix}/")}


def tell_statistics(counts: Counts, lengths: Iterable[int]) -> dict[str, Any]:
    """The statistics of a manifest, from the counts of both passes."""
    totals = {name: sum(_under(counts, name).values()) for name in ("kept", "skipped", "documents", "collisions")}
    tokens, unknown = (sum(_under(counts, name).values()) for name in ("tokens", "unknown"))
    sources = sorted({name.split("/")[1] for name in counts if name.startswith(("kept/", "skipped/"))})
    return {
        "documents": {
            "read": totals["kept"] + totals["skipped"],
            "in_shards": totals["documents"],
            "collisions": totals["collisions"],
            "skipped": totals["skipped"],
        },
        "sentences": sum(_under(counts, "sentences").values()),
        "tokens": tokens,
        "unknown_tokens": unknown,
        "unknown_rate": unknown / max(1, tokens),
        "pairs": {str(length): _pair_statistics(counts, length) for length in lengths},
        "sources": {source: _source_statistics(counts, source) for source in sources},
    }


def _pair_statistics(counts: Counts, length: int) -> dict[str, Any]:
    pairs, true_next = (_under(counts, f"{name}/{length}") for name in ("pairs", "next"))
    return {
        split: {"pairs": pairs[split], "is_next": true_next[split], "is_next_rate": true_next[split] / pairs[split]}
        for split in sorted(pairs)
    }


def _source_statistics(counts: Counts, source: str) -> dict[str, Any]:
    names = ("documents", "sentences", "characters", "tokens", "unknown", "collisions")
    own: dict[str, Any] = {name: counts[f"{name}/{source}"] for name in names}
    return own | {"skipped": dict(sorted(_under(counts, f"skipped/{source}").items()))}


class WriteManifest(beam.DoFn):
    """All shard notes -> the manifest, written last; yields its path."""

    def __init__(self, job: Job):
        self._job = job

    def process(self, notes: list[ShardNote], settlement: Settlement) -> Iterator[str]:
        """The notes of every shard."""
        job = self._job
        manifest = make_manifest(job, notes, settlement)
        for name, content in tokenizer_files(_job_vocabulary(job), job.vocabulary.lowercase).items():
            with files.publish(files.join(job.output, TOKENIZER, name), job.work) as sink:
                sink.write(content)
        path = files.join(job.output, MANIFEST)
        files.write_text(path, manifest.to_json(), job.work)
        clear_work(job.output)
        yield path


class TokenizeInputs(beam.PTransform):
    """Units -> parts; the tokens are left in files."""

    def __init__(self, job: Job):
        super().__init__()
        self._job = job

    def expand(self, units: beam.PCollection) -> beam.PCollection:
        """Spread the units over the workers."""
        return units | "Spread" >> beam.Reshuffle() | "Tokenize" >> beam.ParDo(TokenizeUnit(self._job))


class Settle(beam.PTransform):
    """Parts -> one settlement."""

    def __init__(self, job: Job):
        super().__init__()
        self._job = job

    def expand(self, parts: beam.PCollection) -> beam.PCollection:
        """Add up and decide."""
        totals = parts | "AddTotals" >> beam.CombineGlobally(AddTotals())
        return totals | "Decide" >> beam.ParDo(SettleSplit(self._job))


class BuildShards(beam.PTransform):
    """(parts, settlement) -> shard notes."""

    def __init__(self, job: Job):
        super().__init__()
        self._job = job

    def expand(self, inputs: tuple[beam.PCollection, beam.PCollection]) -> beam.PCollection:
        """Group spans by shard, and build."""
        parts, settlement = inputs
        spans = parts | "Spans" >> beam.ParDo(SpansOfPart())
        moved = settlement | "Moved" >> beam.ParDo(SpansOfMoved())
        grouped = (spans, moved) | "Join" >> beam.Flatten() | "ByShard" >> beam.GroupByKey()
        return grouped | "Build" >> beam.ParDo(BuildShard(self._job), settlement=AsSingleton(settlement))


class CommitManifest(beam.PTransform):
    """(shard notes, settlement) -> the manifest."""

    def __init__(self, job: Job):
        super().__init__()
        self._job = job

    def expand(self, inputs: tuple[beam.PCollection, beam.PCollection]) -> beam.PCollection:
        """Collect and write."""
        notes, settlement = inputs
        listed = notes | "List" >> beam.CombineGlobally(ListNotes())
        return listed | "Write" >> beam.ParDo(WriteManifest(self._job), settlement=AsSingleton(settlement))


def build_pipeline(pipeline: beam.Pipeline, job: Job, units: Iterable[Unit]) -> None:
    """Put the whole job into a pipeline."""
    parts = pipeline | "Units" >> beam.Create(list(units)) | "TokenizeInputs" >> TokenizeInputs(job)
    settlement = parts | "Settle" >> Settle(job)
    notes = (parts, settlement) | "BuildShards" >> BuildShards(job)
    (notes, settlement) | "CommitManifest" >> CommitManifest(job)  # the graph is built by its side effects
