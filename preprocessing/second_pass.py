"""What is done once every unit is: say what is repeated, write the shards, write the manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from functools import lru_cache
from itertools import groupby
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from preprocessing import files
from preprocessing.contamination import shares
from preprocessing.dedup import LOST, REPEATS, Review, Run, by_row, reasons_of, repeats_of
from preprocessing.job import Job, reporting, versions
from preprocessing.layout import Counts, Edge, Settlement, Span, split_of
from preprocessing.schema import MANIFEST, TOKENIZER, Manifest, ShardEntry
from preprocessing.shards import Rows, build_shard
from preprocessing.summary import tell_statistics
from preprocessing.token_buffer import tokens_schema
from preprocessing.tokenization import CONTINUATION, special_ids, tokenizer_files
from preprocessing.work_files import WorkFile


class LostDocumentsError(RuntimeError):
    """The engine did not hand on every document."""


class ShardNote(NamedTuple):
    """What is known of a finished shard."""

    entry: dict[str, Any]  # a ShardEntry
    counts: dict[str, int]


class DropsNote(NamedTuple):
    """What the search for repetitions tells, beside the files that it writes."""

    counts: Counts  # of dropped documents
    edges: list[Edge]  # of those that stay


def find_drops(job: Job) -> DropsNote:
    """Between the passes, once every unit is done: write which documents and lines are dropped."""
    with TemporaryDirectory() as folder:
        found = Review(_runs(job, folder), job.options.repeats)
        by_hash = job.path(WorkFile.REPEATS_BY_HASH)
        with files.publish_arrow(by_hash, job.work, REPEATS) as writer:
            for batch in found.drop_lines(job.options.min_tokens):
                writer.write_batch(batch)
        with (
            files.open_arrow(files.local_copy(by_hash, folder)) as ranges,
            files.publish_arrow(job.path(WorkFile.REPEATS), job.work, REPEATS) as writer,
        ):
            for batch in by_row([ranges.get_batch(number) for number in range(ranges.num_record_batches)]):
                writer.write_batch(batch)
        with files.publish_arrow(job.path(WorkFile.LOST), job.work, LOST) as writer:
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


def write_shard(job: Job, shard: str, spans: Iterable[Span], threshold: int) -> ShardNote:
    """Second pass over one shard: gather its rows, draw its pairs, write it.

    Raises:
        ShardingError: it would hold fewer than two documents.
    """
    rows = read_spans(job, spans)
    batch, counts = build_shard(shard, rows, job.layout, threshold, job.options.pairs, *_of_vocabulary(job))
    with files.publish(files.join(job.output, shard), job.work) as sink:
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


@lru_cache(maxsize=2)
def _of_vocabulary(job: Job) -> tuple[np.ndarray, int]:
    """Which of its entries begin a word, bool [entries], and the id of [UNK]."""
    tokens = job.read_vocabulary()
    return np.array([not token.startswith(CONTINUATION) for token in tokens]), special_ids(tokens).unknown


def read_spans(job: Job, spans: Iterable[Span]) -> Rows:
    """The rows that spans name, in a fixed order, with what is dropped of them."""
    ordered = sorted(spans)
    slices: list[pa.RecordBatch] = []
    for unit, own in groupby(ordered, key=lambda span: span.unit):
        with files.open_arrow(job.unit_files(unit).tokens) as reader:
            pieces = (reader.get_batch(span.batch).slice(span.begin, span.end - span.begin) for span in own)
            # A batch that is not mapped has been read whole, and would stay in memory for the sake of its piece.
            slices += map(_copied, pieces) if files.is_remote(job.output) else pieces
    keys = np.concatenate([span.keys() for span in ordered])
    reasons = reasons_of(keys, files.read_batch(job.path(WorkFile.LOST)))
    with files.open_arrow(job.path(WorkFile.REPEATS)) as repeats:
        lines = repeats_of(keys, map(repeats.get_batch, range(repeats.num_record_batches)))
    return Rows(pa.Table.from_batches(slices, schema=tokens_schema(job.vocabulary.size)), reasons, lines)


def _copied(piece: pa.RecordBatch) -> pa.RecordBatch:
    """A piece of a batch without the rest of it."""
    return pa.ipc.read_record_batch(piece.serialize(), piece.schema)


def commit(notes: Iterable[ShardNote], job: Job, settlement: Settlement) -> None:
    """Write the tokenizer's files and, last of all, the manifest, once every shard is written.

    Raises:
        LostDocumentsError: see make_manifest.
    """
    with reporting(job, "commit"):
        manifest = make_manifest(job, notes, settlement)
        for name, content in tokenizer_files(job.read_vocabulary(), job.vocabulary.lowercase).items():
            with files.publish(files.join(job.output, TOKENIZER, name), job.work) as sink:
                sink.write(content)
        files.write_text(files.join(job.output, MANIFEST), manifest.to_json(), job.work)


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


def find_contamination(job: Job) -> dict[str, Any]:
    """How much of every file of the benchmark is in the corpus; see contamination.shares."""
    found = (files.read_batch(job.path(WorkFile.FOUND, unit=unit)) for unit in range(job.units))
    return shares(files.read_batch(job.path(WorkFile.BENCHMARK_TEXTS)), found)
