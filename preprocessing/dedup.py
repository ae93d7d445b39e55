"""What is dropped between the passes: older revisions, repeated documents, repeated lines; pure, on Arrow and numpy.

The first pass leaves, beside every batch of tokens, a record of each document and of each long line. Of all copies
the one in the document of the smallest id stays, and within a document the first: a rule that knows no order of
arrival. Documents are decided upon first, so that no line is dropped for a copy that is dropped itself. Only a document
that keeps fewer tokens than are wanted (min_tokens) goes afterwards, with the copies that had stayed in it.

Records are read where they lie, in mapped files; what is held in memory is some 60 bytes a document, and the lines of
one range of hashes at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from preprocessing.fingerprints import PERMUTATIONS, RepeatRule
from preprocessing.layout import MIN_ROWS, MIN_VALIDATION_CORPUS, Counts, Edge, Span, row_key
from preprocessing.sources import SourceError
from preprocessing.token_buffer import documents_schema

RANGE_RECORDS = 1 << 20  # lines of one range of hashes, or repeated lines of one range of rows, about
SAMPLED = 256  # of so many repeated lines one is looked at to find ranges of rows
REPEATS = pa.schema([("row", pa.uint64()), ("begin", pa.uint32()), ("end", pa.uint32())])
LOST = pa.schema([("row", pa.uint64()), ("reason", pa.uint8())])


class Reason(IntEnum):
    """Why a document of the first pass is in no shard."""

    COLLISION = 1  # there is a newer one of its id
    DUPLICATE_DOCUMENT = 2
    NEAR_DUPLICATE = 3
    REPEATED_LINES = 4  # too little is left without them


class Run(NamedTuple):
    """The records of one batch of the first pass."""

    unit: int
    batch: int
    documents: pa.RecordBatch  # token_buffer.documents_schema, in the order of the batch's rows
    lines: pa.RecordBatch  # token_buffer.LINES, by hash


def repeated(hashes: np.ndarray, *order: np.ndarray) -> np.ndarray:
    """Positions of the elements that are not the first of their hash in an order, the first key counting most."""
    by: np.ndarray = np.lexsort((*reversed(order), hashes))
    again: np.ndarray = by[1:][hashes[by[1:]] == hashes[by[:-1]]]
    return again


def _column(batch: pa.RecordBatch, name: str) -> np.ndarray:
    column: np.ndarray = batch.column(name).to_numpy()
    return column


def _cuts(batches: Sequence[pa.RecordBatch], by: str, bounds: np.ndarray) -> np.ndarray:
    """Where to cut batches that are ordered by a column, at each bound; uint32 [pieces + 1, batches]."""
    cuts = np.zeros((len(bounds) + 2, len(batches)), np.uint32)
    for number, batch in enumerate(batches):
        cuts[1:-1, number] = np.searchsorted(_column(batch, by), bounds)
        cuts[-1, number] = batch.num_rows
    return cuts


class Review:
    """Looks through the records of the whole corpus and marks what is lost: documents at once, lines by drop_lines.

    Attributes:
        lost: [documents] the Reason for which each is dropped, or 0; in the order of the runs.
    """

    def __init__(self, runs: Iterable[Run], rule: RepeatRule):
        """Rank the documents by id, drop all but the newest of one id, and then those that the rule drops.

        Raises:
            SourceError: documents of two sources have one id, so that neither is a version of the other.
        """
        self._runs = sorted(runs, key=lambda run: (run.unit, run.batch))
        sizes = [run.documents.num_rows for run in self._runs]
        self._first = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])  # [runs + 1] of each run's documents
        self.lost = np.zeros(self._first[-1], np.uint8)
        self._rank = np.zeros(self._first[-1], np.int64)
        self._rank_documents()
        if rule.documents:
            self._drop_documents()
        if rule.near_duplicates is not None:
            self._drop_near_duplicates(rule.near_duplicates)

    def _all(self, name: str) -> np.ndarray:
        """A column of numbers of all documents' records; uint64 [documents]."""
        return np.concatenate([np.empty(0, np.uint64), *(_column(run.documents, name) for run in self._runs)])

    def _rank_documents(self) -> None:
        keys = {"doc_id": "ascending", "revision": "descending", "content": "ascending"}
        schema = pa.schema([documents_schema(False).field(name) for name in keys])
        table = pa.Table.from_batches([run.documents.select(schema.names) for run in self._runs], schema)
        order = pc.sort_indices(table, sort_keys=list(keys.items())).to_numpy().view(np.int64)
        self._rank[order] = np.arange(len(order))
        ids = self._all("split_hash")[order]  # a hash of the id: neighbours that share it are of one id
        is_older = ids[1:] == ids[:-1]
        older = order[1:][is_older]
        self._check_sources(order[:-1][is_older], older)
        self.lost[older] = Reason.COLLISION

    def _check_sources(self, versions: np.ndarray, older: np.ndarray) -> None:
        """See that what passes for an older version of a document is of the same source.

        Args:
            versions: [collisions] documents of whose id there is another.
            older: [collisions] these others.

        Raises:
            SourceError: two documents that have nothing to do with each other have one id.
        """
        numbers: dict[str, int] = {}
        one, other = (self._sources(rows, numbers) for rows in (versions, older))
        differ = np.flatnonzero(one != other)
        if len(differ):
            names = list(numbers)
            source, another = sorted(names[of[differ[0]]] for of in (one, other))
            run, row = self._place(int(versions[differ[0]]))
            raise SourceError(
                f"{run.documents.column('doc_id')[row].as_py()!r} is the id of a document of --{source} and of one of "
                f"--{another}, which must differ; rename a file or its folder, or name the files by another glob"
            )

    def _sources(self, documents: np.ndarray, numbers: dict[str, int]) -> np.ndarray:
        """The sources of some documents, as numbers; new ones are given on.

        Run by run: the names of millions of documents don't fit into one array of strings.
        """
        found = np.empty(len(documents), np.int32)
        for run, own, rows in self._by_run(documents):
            column = run.documents.column("source").take(pa.array(rows)).dictionary_encode()
            of = [numbers.setdefault(name, len(numbers)) for name in column.dictionary.to_pylist()]
            found[own] = np.array(of, np.int32)[column.indices.to_numpy()]
        return found

    def _by_run(self, documents: np.ndarray) -> Iterator[tuple[Run, np.ndarray, np.ndarray]]:
        """Some documents by the runs they are in: (run, positions among the documents, rows of the run)."""
        run_of = np.searchsorted(self._first, documents, side="right") - 1
        by = np.argsort(run_of, kind="stable")
        numbers, begins = np.unique(run_of[by], return_index=True)
        for number, own in zip(numbers.tolist(), np.split(by, begins[1:]), strict=False):
            yield self._runs[number], own, documents[own] - self._first[number]

    def _alive(self) -> np.ndarray:
        return np.flatnonzero(self.lost == 0)

    def _drop_documents(self) -> None:
        """Drop documents whose text another one has."""
        alive = self._alive()
        again = repeated(self._all("text")[alive], self._rank[alive])
        self.lost[alive[again]] = Reason.DUPLICATE_DOCUMENT

    def _drop_near_duplicates(self, threshold: float) -> None:
        """Drop documents that share so much with another one; of a whole cluster of such the smallest id stays.

        Candidates share a band of their signatures with the smallest id in that band; what both signatures say
        decides. Memory: 40 bytes a document while bands are compared, and 16 a pair found.
        """
        from datasketch import MinHashLSH  # slow to import, as in fingerprints
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        # A candidate too many costs a comparison, one too few a duplicate that stays.
        bands = MinHashLSH(threshold=threshold, num_perm=PERMUTATIONS, weights=(0.1, 0.9))
        alive = self._alive()
        rank = self._rank[alive]
        pairs = [np.empty((0, 2), np.int64)]
        for band in range(bands.b):
            keys = self._band_keys(band * bands.r, (band + 1) * bands.r)[alive]
            by = np.lexsort((rank, keys))
            begins = np.concatenate([[True], keys[by[1:]] != keys[by[:-1]]]) if len(by) else np.empty(0, bool)
            smallest = by[np.flatnonzero(begins)][np.cumsum(begins) - 1]
            candidates = np.stack([smallest, by], axis=1)[~begins]
            pairs.append(candidates[self._shared(alive[candidates]) >= threshold])
        linked = np.unique(np.concatenate(pairs), axis=0)
        graph = coo_array((np.ones(len(linked), np.int8), linked.T), shape=(len(alive), len(alive)))
        _, cluster = connected_components(graph, directed=False)
        self.lost[alive[repeated(cluster, rank)]] = Reason.NEAR_DUPLICATE

    def _signatures(self, run: Run) -> np.ndarray:
        values: np.ndarray = run.documents.column("signature").flatten().to_numpy()
        return values.reshape(-1, PERMUTATIONS)

    def _band_keys(self, begin: int, end: int) -> np.ndarray:
        """A hash of some columns of every document's signature."""
        keys = np.zeros(len(self.lost), np.uint64)
        for run, first in zip(self._runs, self._first.tolist(), strict=False):
            columns = self._signatures(run)[:, begin:end].astype(np.uint64)
            own = keys[first : first + len(columns)]
            for column in columns.T:
                own *= np.uint64(0x9E3779B97F4A7C15)
                own += column + np.uint64(1)
                own ^= own >> np.uint64(29)
        return keys

    def _shared(self, pairs: np.ndarray) -> np.ndarray:
        """The share of their shingles that pairs of documents have in common, by their signatures; [pairs]."""
        shared = np.empty(len(pairs))
        for begin in range(0, len(pairs), 1 << 14):
            one, other = (self._gather(side) for side in pairs[begin : begin + (1 << 14)].T)
            shared[begin : begin + len(one)] = (one == other).mean(axis=1)
        return shared

    def _gather(self, documents: np.ndarray) -> np.ndarray:
        """The signatures of some documents."""
        found = np.empty((len(documents), PERMUTATIONS), np.uint32)
        for run, own, rows in self._by_run(documents):
            found[own] = self._signatures(run)[rows]
        return found

    def drop_lines(self, min_tokens: int) -> Iterator[pa.RecordBatch]:
        """Find repeated lines, range of hashes by range; when all are told, drop documents that keep too few tokens.

        Yields:
            REPEATS, of each range, by row: the sentences that go.
        """
        tokens = self._all("tokens").astype(np.int64)
        for records in self._line_ranges():
            records = records[self.lost[records["document"]] == 0]
            document = records["document"]
            gone = records[repeated(records["hash"], self._rank[document], records["begin"])]
            gone = gone[np.lexsort((gone["begin"], gone["document"]))]
            document_of = gone["document"]
            np.subtract.at(tokens, document_of, gone["tokens"].astype(np.int64))
            if len(gone):
                sentences = [pa.array(np.ascontiguousarray(gone[name])) for name in ("begin", "end")]
                yield pa.RecordBatch.from_arrays([pa.array(self._keys(document_of)), *sentences], schema=REPEATS)
        self.lost[(self.lost == 0) & (tokens < min_tokens)] = Reason.REPEATED_LINES

    def _line_ranges(self) -> Iterator[np.ndarray]:
        """The lines of all runs, a range of hashes at a time."""
        dtype = [("hash", "<u8"), ("document", "<i8"), ("begin", "<u4"), ("end", "<u4"), ("tokens", "<u4")]
        count = 1 + sum(run.lines.num_rows for run in self._runs) // RANGE_RECORDS
        bounds = np.array([number * 2**64 // count for number in range(1, count)], np.uint64)
        for begins, ends in pairwise(_cuts([run.lines for run in self._runs], "hash", bounds)):
            pieces = [
                run.lines.slice(begin, end - begin)
                for run, begin, end in zip(self._runs, begins.tolist(), ends.tolist(), strict=True)
            ]
            records = np.empty(sum(piece.num_rows for piece in pieces), dtype)
            at = 0
            for piece, first in zip(pieces, self._first.tolist(), strict=False):
                own = records[at : at + piece.num_rows]
                own["document"] = first + _column(piece, "row").astype(np.int64)
                for name in ("hash", "begin", "end", "tokens"):
                    own[name] = _column(piece, name)
                at += piece.num_rows
            yield records

    def _keys(self, documents: np.ndarray) -> np.ndarray:
        """What names documents to the second pass; ascending as they are."""
        run_of = np.searchsorted(self._first, documents, side="right") - 1
        first: np.ndarray = np.array([row_key(run.unit, run.batch, 0) for run in self._runs], np.uint64)
        keys: np.ndarray = first[run_of] + (documents - self._first[run_of]).astype(np.uint64)
        return keys

    def lost_documents(self) -> pa.RecordBatch:
        """LOST: every document that is dropped, by row."""
        gone = np.flatnonzero(self.lost)
        return pa.RecordBatch.from_arrays([pa.array(self._keys(gone)), pa.array(self.lost[gone])], schema=LOST)

    def counts(self) -> Counts:
        """How many documents are dropped, by source and reason."""
        counts: Counts = Counter()
        for run, first in zip(self._runs, self._first.tolist(), strict=False):
            own = self.lost[first : first + run.documents.num_rows]
            gone = np.flatnonzero(own)
            sources = run.documents.column("source").take(gone).to_pylist()
            reasons = (Reason(reason).name.lower() for reason in own[gone].tolist())
            counts.update(f"dropped/{source}/{reason}" for source, reason in zip(sources, reasons, strict=True))
        return counts

    def edges(self) -> list[Edge]:
        """Of the documents that stay the four of lowest split hash and the two of highest, in that order."""
        alive = self._alive()
        order = alive[np.lexsort((self._rank[alive], self._all("split_hash")[alive]))]
        ends = dict.fromkeys([*order[:MIN_VALIDATION_CORPUS].tolist(), *order[-MIN_ROWS:].tolist()])
        return [self._edge(document) for document in ends]

    def _place(self, document: int) -> tuple[Run, int]:
        """The run that a document is in, and its row there."""
        number = int(np.searchsorted(self._first, document, side="right")) - 1
        return self._runs[number], document - int(self._first[number])

    def _edge(self, document: int) -> Edge:
        run, row = self._place(document)
        record = {name: run.documents.column(name)[row].as_py() for name in ("split_hash", "doc_id", "tokens")}
        span = Span(run.unit, run.batch, row, row + 1, record["tokens"])
        return Edge(record["split_hash"], record["doc_id"], span)


def reasons_of(rows: np.ndarray, lost: pa.RecordBatch) -> np.ndarray:
    """The Reason for which each row, by its key, is dropped, or 0; uint8 [rows]. ``lost`` is LOST."""
    found = np.zeros(len(rows), np.uint8)
    keys = _column(lost, "row")
    if len(keys):
        at = np.minimum(np.searchsorted(keys, rows), len(keys) - 1)
        hit = keys[at] == rows
        found[hit] = _column(lost, "reason")[at[hit]]
    return found


def by_row(repeats: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """REPEATS of every range of hashes, merged: no two batches have rows between each other's, nor one row in common.

    Memory: that of one batch, of RANGE_RECORDS or about as many.
    """
    count = 1 + sum(batch.num_rows for batch in repeats) // RANGE_RECORDS
    sample = np.sort(np.concatenate([np.empty(0, np.uint64), *(_column(batch, "row")[::SAMPLED] for batch in repeats)]))
    bounds = sample[[len(sample) * number // count for number in range(1, count)]]
    for begins, ends in pairwise(_cuts(repeats, "row", bounds)):
        places = zip(repeats, begins.tolist(), ends.tolist(), strict=True)
        pieces = [batch.slice(begin, end - begin) for batch, begin, end in places if begin < end]
        if pieces:
            columns = [np.concatenate([_column(piece, name) for piece in pieces]) for name in REPEATS.names]
            order = np.argsort(columns[0], kind="stable")
            yield pa.RecordBatch.from_arrays([pa.array(column[order]) for column in columns], schema=REPEATS)


def repeats_of(rows: np.ndarray, repeats: Iterable[pa.RecordBatch]) -> np.ndarray:
    """The sentences that go of rows: [repeated lines, 3] of (position in ``rows``, begin, end).

    Args:
        rows: ascending keys.
        repeats: as by_row makes them: of most batches no more than the first row and the last are looked at.
    """
    found = [np.empty((0, 3), np.int64)]
    for batch in repeats:
        if not batch.num_rows:
            continue
        keys = _column(batch, "row")
        first, after = np.searchsorted(rows, keys[0]), np.searchsorted(rows, keys[-1], side="right")
        begin, end = (np.searchsorted(keys, rows[first:after], side=side) for side in ("left", "right"))
        count = end - begin
        # The records of one row lie together: count[i] of them from begin[i] on.
        at = np.repeat(end - np.cumsum(count), count) + np.arange(count.sum())
        positions = np.repeat(np.arange(first, after), count)
        columns = [positions, *(_column(batch, name)[at] for name in ("begin", "end"))]
        found.append(np.stack([column.astype(np.int64) for column in columns], axis=1))
    return np.concatenate(found)
