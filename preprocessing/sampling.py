"""The sample that a job trains its vocabulary on, drawn by all workers: the one that train_vocab draws."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, count

import apache_beam as beam
import pyarrow as pa

from preprocessing import files
from preprocessing.inputs import Unit, check_unchanged
from preprocessing.job import Job, reporting
from preprocessing.reading import read_inputs
from preprocessing.sources import Document, Skipped
from preprocessing.train_vocab import hashed_texts, lowest, sample_hash
from preprocessing.watchdog import Watchdog, watching

ALL = 1 << 64  # no hash is as high
SPARE = 2.0  # text that is sampled at first, for a budget of 1: what inputs hold is known roughly
ROWS = 256  # of a record batch
FOUND = b"found"  # in the metadata of a unit's sample: documents below the cutoff
SAMPLE = pa.schema([pa.field("hash", pa.uint64()), pa.field("text", pa.large_string())])


def first_cutoff(budget: int, text_bytes: float) -> int:
    """A bound of hashes below which lies more than a budget, if inputs hold about so much text."""
    return min(ALL, int(ALL * SPARE * budget / max(1.0, text_bytes)))


def sample_unit(unit: Unit, job: Job, budget: int, cutoff: int) -> None:
    """Write the file of a unit's sampled documents."""
    with reporting(job, f"unit-{unit.number:05d}"), watching(job.work, job.patience) as dog:
        found = count()
        texts = hashed_texts(_documents(unit, job, cutoff, dog), job.options.seed)
        sample = lowest((entry for entry, _ in zip(texts, found, strict=False)), budget)
        check_unchanged(unit)
        schema = SAMPLE.with_metadata({FOUND: str(next(found))})
        with files.publish_arrow(job.sample_file(unit.number), job.work, schema) as writer:
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


def sampled_texts(job: Job, budget: int) -> tuple[list[str], bool]:
    """The texts of a drawn sample, and whether there was more than it has room for."""
    units = range(job.units)
    sample = lowest(chain.from_iterable(_rows(job, unit) for unit in units), budget)
    found = sum(_found(job, unit) for unit in units)
    return [text for _, text in sample], len(sample) < found


def _rows(job: Job, unit: int) -> Iterator[tuple[int, str]]:
    with files.open_arrow(job.sample_file(unit)) as reader:
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            yield from zip(batch.column("hash").to_pylist(), batch.column("text").to_pylist(), strict=True)


def _found(job: Job, unit: int) -> int:
    """How many documents a unit has below the cutoff, whether or not its sample had room for them."""
    with files.open_arrow(job.sample_file(unit)) as reader:
        return int(reader.schema.metadata[FOUND])
