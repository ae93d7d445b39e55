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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import AsSingleton

from preprocessing import files
from preprocessing.encoder import EncoderError
from preprocessing.first_pass import tokenize_unit
from preprocessing.inputs import Unit
from preprocessing.job import STORAGE, Job
from preprocessing.layout import Edge, Settlement, ShardingError, Span, Totals, settle, split_of
from preprocessing.second_pass import ShardNote, commit, find_drops, write_shard
from preprocessing.sources import SourceError, StorageError
from preprocessing.token_buffer import UnitNote


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


class WriteManifest(beam.DoFn):
    """All shard notes -> the manifest, written last."""

    def __init__(self, job: Job):
        self._job = job

    def process(self, notes: list[ShardNote], settlement: Settlement) -> None:
        """The notes of every shard."""
        commit(self._job, notes, settlement)


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
