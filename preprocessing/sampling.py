"""The sample that a vocabulary is trained on: by all workers of a job the same as from a stream of documents."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, count
from typing import NamedTuple

import apache_beam as beam
import pyarrow as pa

from preprocessing import files
from preprocessing.inputs import Unit, check_unchanged, text_bytes
from preprocessing.job import Job, reporting
from preprocessing.output import reaching
from preprocessing.reading import read_inputs
from preprocessing.runner import run_pipeline
from preprocessing.sources import Document, Skipped
from preprocessing.text import clean
from preprocessing.watchdog import Watchdog, watching
from preprocessing.work_files import WorkFile

ALL = 1 << 64  # no hash is as high
SPARE = 2.0  # text that is sampled at first, for a budget of 1: what inputs hold is known roughly
ROWS = 256  # of a record batch
FOUND = b"found"  # in the metadata of a unit's sample: documents below the cutoff
SAMPLE = pa.schema([pa.field("hash", pa.uint64()), pa.field("text", pa.large_string())])


def sample_hash(doc_id: str, seed: int) -> int:
    """A document's place in the order in which samples take documents: 64 bits."""
    key = str(seed).encode()
    digest = hashlib.blake2b(doc_id.encode(), digest_size=8, key=key, person=b"vocab sample").digest()
    return int.from_bytes(digest, "big")


Entry = tuple[int, str]  # a document's hash and its text


class Lowest(NamedTuple):
    """The entries with the lowest hashes, in the hashes' order."""

    taken: list[Entry]
    next: list[Entry]  # the first one that had no room; none where there was room for all


def lowest(entries: Iterable[Entry], budget: int) -> Lowest:
    """The entries with the lowest hashes, as many as fit into a budget.

    Of what it took of some parts, with the next one of each, it takes what it would of the whole: the entry that ends
    the whole's sample is among these.

    Args:
        entries: in any order.
        budget: bytes of UTF-8; the first text is taken even if it is larger.
    """
    heap: list[Entry] = []  # highest hash on top
    cut: list[Entry] = []  # the last one that was taken off it
    total = 0
    for number, text in entries:
        entry = (-number, text)
        # Once a document had no room, none of a higher hash may slip in: which one did would be the files' order.
        if cut and entry <= cut[0]:
            continue
        heapq.heappush(heap, entry)
        total += len(text.encode())
        while total > budget and len(heap) > 1:
            cut = [heapq.heappop(heap)]
            total -= len(cut[0][1].encode())
    return Lowest(*([(-number, text) for number, text in sorted(each, reverse=True)] for each in (heap, cut)))


def hashed_texts(documents: Iterable[Document | Skipped], seed: int) -> Iterator[Entry]:
    """(hash, cleaned text) of documents; what a reader skipped is passed over."""
    return (
        (sample_hash(document.doc_id, seed), clean(document.text))
        for document in documents
        if isinstance(document, Document)
    )


def sample_texts(documents: Iterable[Document | Skipped], budget: int, seed: int) -> list[str]:
    """The texts of the documents with the lowest keyed hashes, as many as fit into a budget, in the hashes' order."""
    return [text for _, text in lowest(hashed_texts(documents, seed), budget).taken]


def first_cutoff(budget: int, seeming: float) -> int:
    """A bound of hashes below which lies more than a budget, if inputs hold about so much text."""
    return min(ALL, int(ALL * SPARE * budget / max(1.0, seeming)))


def draw_sample(job: Job, units: Sequence[Unit], budget: int, beam_options: Sequence[str]) -> list[str]:
    """The texts with the lowest hashes. Where the units hold less than it seemed, they are read a second time.

    Raises:
        SourceError, JobError, JobFailedError: as run_pipeline, and where the samples can't be read.
    """
    numbers = [unit.number for unit in units]
    seeming = sum(text_bytes(file) for unit in units for file in unit.inputs)
    for cutoff in (first_cutoff(budget, seeming), ALL):
        run_pipeline(job, beam_options, partial(build_sampling, job=job, units=units, budget=budget, cutoff=cutoff))
        with reaching(job.output):
            sample = lowest(chain.from_iterable(_rows(job, unit) for unit in numbers), budget).taken
            found = sum(_found(job, unit) for unit in numbers)
        if cutoff == ALL or len(sample) < found:
            break
    return [text for _, text in sample]


def sample_unit(unit: Unit, job: Job, budget: int, cutoff: int) -> None:
    """Write the file of a unit's sampled documents."""
    with reporting(job, f"unit-{unit.number:05d}"), watching(job.work, job.patience) as dog:
        found = count()
        texts = hashed_texts(_documents(unit, job, cutoff, dog), job.options.seed)
        taken, following = lowest((entry for entry, _ in zip(texts, found, strict=False)), budget)
        sample = taken + following
        check_unchanged(unit.inputs)
        schema = SAMPLE.with_metadata({FOUND: str(next(found))})
        with files.publish_arrow(job.path(WorkFile.SAMPLE, unit=unit.number), job.work, schema) as writer:
            for begin in range(0, len(sample), ROWS):
                hashes, drawn = zip(*sample[begin : begin + ROWS], strict=True)
                arrays = [pa.array(hashes, pa.uint64()), pa.array(drawn, pa.large_string())]
                writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))


def _documents(unit: Unit, job: Job, cutoff: int, dog: Watchdog) -> Iterator[Document | Skipped]:
    """The documents that may be in the sample: the others are not even read to their end."""

    def is_wanted(doc_id: str) -> bool:
        return sample_hash(doc_id, job.options.seed) < cutoff and dog.watch(doc_id)

    for document in read_inputs(unit.inputs, job.options.read, wanted=is_wanted):
        yield document
        dog.rest()


def build_sampling(pipeline: beam.Pipeline, job: Job, units: Iterable[Unit], budget: int, cutoff: int) -> None:
    """Put the drawing of a sample into a pipeline; the sampled documents are left in files."""
    _ = (
        pipeline
        | "Units" >> beam.Create(list(units))
        | "Spread" >> beam.Reshuffle()
        | "Sample" >> beam.Map(sample_unit, job=job, budget=budget, cutoff=cutoff)
    )


def _rows(job: Job, unit: int) -> Iterator[Entry]:
    with files.open_arrow(job.path(WorkFile.SAMPLE, unit=unit)) as reader:
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            yield from zip(batch.column("hash").to_pylist(), batch.column("text").to_pylist(), strict=True)


def _found(job: Job, unit: int) -> int:
    """How many documents a unit has below the cutoff, whether or not its sample had room for them."""
    with files.open_arrow(job.path(WorkFile.SAMPLE, unit=unit)) as reader:
        return int(reader.schema.metadata[FOUND])
