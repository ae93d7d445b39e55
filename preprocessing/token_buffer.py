"""What the first pass makes of documents: record batches in the order of shards, and where in them these are; pure.

Tokens stay where they are written. What travels on are spans of their rows (UnitNote), while records of documents and
of long lines wait to be compared (dedup).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from preprocessing.fingerprints import PERMUTATIONS, Fingerprint, keyed_hash
from preprocessing.layout import Layout, Place, Span, Totals
from preprocessing.schema import lists, shard_schema, token_type
from preprocessing.sources import Document

LINES = pa.schema({"hash": pa.uint64()} | dict.fromkeys(("row", "begin", "end", "tokens"), pa.uint32()))


class EncodedDocument(NamedTuple):
    """A document as token ids."""

    document: Document  # its text is no longer needed and may be empty
    tokens: np.ndarray  # [tokens]
    sentence_ends: np.ndarray  # int32 [sentences]
    fingerprint: Fingerprint


@dataclass
class UnitNote:
    """What the first pass tells about one unit of input: small, while the tokens stay in files."""

    spans: dict[str, list[Span]] = field(default_factory=dict)  # shard -> where its rows are
    totals: Totals = field(default_factory=Totals)

    def to_json(self) -> dict[str, Any]:
        """As plain lists and dictionaries."""
        return {"spans": self.spans, "totals": vars(self.totals)}

    @staticmethod
    def from_json(raw: dict[str, Any]) -> UnitNote:
        """The inverse of to_json."""
        return UnitNote(
            spans={shard: [Span(*span) for span in spans] for shard, spans in raw["spans"].items()},
            totals=Totals(**{name: Counter(counts) for name, counts in raw["totals"].items()}),
        )


def tokens_schema(vocab_size: int) -> pa.Schema:
    """The schema of a file of tokens, which lies between the passes."""
    return pa.schema(list(shard_schema(vocab_size, [])))


def documents_schema(signatures: bool) -> pa.Schema:
    """The schema of the records of documents, which lie between the passes.

    Args:
        signatures: whether near duplicates are looked for.
    """
    numbers = {"content": pa.uint64(), "text": pa.uint64(), "split_hash": pa.uint64(), "tokens": pa.uint32()}
    columns = {"doc_id": pa.string(), "source": pa.string(), "revision": pa.int64()} | numbers
    return pa.schema(columns | ({"signature": pa.list_(pa.uint32(), PERMUTATIONS)} if signatures else {}))


class Batch(NamedTuple):
    """Some documents of the first pass, in the order of their shards."""

    tokens: pa.RecordBatch  # tokens_schema
    documents: pa.RecordBatch  # documents_schema
    lines: pa.RecordBatch  # LINES, by hash


class TokenBuffer:
    """Documents waiting to be written as one record batch, ordered by shard.

    Attributes:
        tokens: how many tokens wait, to decide when to flush.
    """

    def __init__(self, layout: Layout, vocab_size: int):
        self._layout = layout
        self._schema = tokens_schema(vocab_size)
        self._token_type = token_type(vocab_size)
        self._waiting: list[tuple[Place, EncodedDocument]] = []
        self.tokens = 0

    @property
    def documents(self) -> int:
        """How many documents wait."""
        return len(self._waiting)

    def add(self, encoded: EncodedDocument) -> None:
        """Take a document, which has at least one token."""
        self._waiting.append((self._layout.place(encoded.document.doc_id), encoded))
        self.tokens += len(encoded.tokens)

    def flush(self, unit: int, batch: int, note: UnitNote) -> Batch:
        """What waits, ordered by shard; where it will lie, as a batch of the unit's file, is noted in ``note``."""
        threshold = self._layout.threshold
        rows = sorted(self._waiting, key=lambda row: row[0].shard(threshold))
        begin = 0
        for shard, group in groupby(rows, key=lambda row: row[0].shard(threshold)):
            sizes = [len(encoded.tokens) for _, encoded in group]
            span = Span(unit, batch, begin, begin + len(sizes), sum(sizes))
            note.spans.setdefault(shard, []).append(span)
            note.totals.rows[shard] += len(sizes)
            note.totals.tokens[shard] += span.tokens
            begin = span.end
        self._waiting, self.tokens = [], 0
        documents = [encoded for _, encoded in rows]
        hashes = [place.split_hash for place, _ in rows]
        return Batch(self._tokens(documents), _records(documents, hashes), _line_records(documents))

    def _tokens(self, rows: list[EncodedDocument]) -> pa.RecordBatch:
        columns = [
            pa.array([row.document.doc_id for row in rows], pa.string()),
            pa.array([row.document.source for row in rows], pa.string()),
            pa.array([row.document.title for row in rows], pa.string()),
            lists([row.tokens for row in rows], self._token_type),
            lists([row.sentence_ends for row in rows], pa.int32()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _records(rows: list[EncodedDocument], split_hashes: list[int]) -> pa.RecordBatch:
    """The records of documents."""
    documents, prints = [row.document for row in rows], [row.fingerprint for row in rows]
    columns: list[Any] = [
        [document.doc_id for document in documents],
        [document.source for document in documents],
        [document.revision for document in documents],
        # A fixed order among documents of one id and revision, whose texts or titles differ all the same.
        [keyed_hash(f"{d.source}\0{d.title}\0{p.text}", b"content") for d, p in zip(documents, prints, strict=True)],
        [print_.text for print_ in prints],
        split_hashes,
        [len(row.tokens) for row in rows],
    ]
    signatures = [print_.signature for print_ in prints if print_.signature is not None]
    schema = documents_schema(bool(signatures))
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=False)]
    if signatures:
        arrays.append(pa.FixedSizeListArray.from_arrays(np.concatenate(signatures), PERMUTATIONS))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _line_records(rows: list[EncodedDocument]) -> pa.RecordBatch:
    """The records of the documents' long lines, by hash."""
    lines = np.concatenate([row.fingerprint.lines for row in rows])
    of_row = np.repeat(np.arange(len(rows), dtype=np.uint32), [len(row.fingerprint.lines) for row in rows])
    by = np.argsort(lines["hash"], kind="stable")
    columns = [of_row if name == "row" else lines[name] for name in LINES.names]
    return pa.RecordBatch.from_arrays([pa.array(column[by]) for column in columns], schema=LINES)
