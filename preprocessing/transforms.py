"""The Beam transforms of the preprocessing job.

    units -> Tokenize -> unit notes -> Settle -> one settlement
                             |                        |
                             +-------- Build ---------+-> shard notes -> Commit

Settle finds what is repeated, in files of hashes that the first pass leaves, and then decides the split: by one worker.
It takes a second for 1.5 to 4 million lines, so minutes where the passes take days: spreading it would gain little.

Tokens never travel through Beam: the first pass leaves them in files, ordered by shard, and what is grouped by shard
are spans of rows in these files. So a worker's memory is bounded by one shard, whatever the engine's shuffle does.

Every step that writes may be run again, or twice at once: files appear by rename, with bytes that depend on the
inputs, the options and the seed alone, and a note beside a file says that it is whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, reduce
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import AsSingleton

from preprocessing import files
from preprocessing.first_pass import tokenize_unit
from preprocessing.inputs import Unit
from preprocessing.job import Job, reporting
from preprocessing.layout import Edge, Settlement, Span, Totals, settle, split_of
from preprocessing.second_pass import ShardNote, commit, find_drops, write_shard
from preprocessing.token_buffer import UnitNote
from preprocessing.work_files import WorkFile


def tokenize(unit: Unit, job: Job) -> UnitNote:
    """The first pass over a unit."""
    note, made = job.path(WorkFile.UNIT_NOTE, unit=unit.number), job.unit_files(unit.number)
    return UnitNote.from_json(
        _once(job, f"unit-{unit.number:05d}", note, made, lambda: tokenize_unit(job, unit).to_json())
    )


def add_totals(several: Iterable[Totals]) -> Totals:
    """The sum of some totals."""
    return reduce(Totals.add, several, Totals())


def settle_corpus(totals: Totals, job: Job) -> Settlement:
    """What is between the passes, with the totals of every unit."""
    made = (job.path(WorkFile.LOST), job.path(WorkFile.REPEATS))
    counts, noted = _once(job, "drops", job.path(WorkFile.DROPS_NOTE), made, lambda: find_drops(job))
    known = Totals(counts=Counter(counts)).add(totals)
    edges = [Edge(split_hash, doc_id, Span(*span)) for split_hash, doc_id, span in noted]
    with reporting(job, "settle"):
        return settle(job.layout, known, edges)


def by_shard(spans: dict[str, list[Span]]) -> Iterator[tuple[str, Span]]:
    """(shard, Span) of the rows that are told by shard."""
    return ((shard, span) for shard, own in spans.items() for span in own)


def build(rows: tuple[str, Iterable[Span]], job: Job, settlement: Settlement) -> Iterator[ShardNote]:
    """The second pass over a shard."""
    shard, spans = rows
    if split_of(shard) == "validation" and not settlement.threshold:
        return  # too small a corpus: what was set aside for validation has been moved
    made = (files.join(job.output, shard),)
    write = partial(write_shard, job, shard, spans, settlement.threshold)
    yield ShardNote(*_once(job, shard, job.path(WorkFile.SHARD_NOTE, shard=shard), made, write))


def _once(job: Job, place: str, note: str, made: Sequence[str], work: Callable[[], Any]) -> Any:
    """What some work notes (JSON), unless an earlier run has done it: then what that has noted.

    It has not where the note is not as it was written or a file is cut: a machine that loses its power may leave such.

    Args:
        job: of which this is a part.
        place: the part's name, for errors.
        note: the file of the note, which appears when the work is done.
        made: the Arrow files that the work makes.
        work: the part.
    """
    with reporting(job, place):
        noted = files.read_note(note)
        if noted is None or not all(map(files.is_arrow, made)):
            noted = work()
            files.write_note(note, noted, job.work)
    return noted


def build_pipeline(pipeline: beam.Pipeline, job: Job, units: Iterable[Unit]) -> None:
    """Put the whole job into a pipeline; see the top of this file."""
    notes = (
        pipeline
        | "Units" >> beam.Create(list(units))
        | "Spread" >> beam.Reshuffle()
        | "Tokenize" >> beam.Map(tokenize, job=job)
    )
    settlement = (
        notes
        | "Totals" >> beam.Map(lambda note: note.totals)
        | "Add" >> beam.CombineGlobally(add_totals)
        | "Settle" >> beam.Map(settle_corpus, job=job)
    )
    spans = notes | "Spans" >> beam.Map(lambda note: note.spans)
    moved = settlement | "Moved" >> beam.Map(lambda settled: settled.moved)
    shards = (
        (spans, moved)
        | "Join" >> beam.Flatten()
        | "ByShard" >> beam.FlatMap(by_shard)
        | "Group" >> beam.GroupByKey()
        | "Build" >> beam.FlatMap(build, job=job, settlement=AsSingleton(settlement))
    )
    _ = (
        shards
        | "List" >> beam.combiners.ToList()
        | "Commit" >> beam.Map(commit, job=job, settlement=AsSingleton(settlement))
    )
