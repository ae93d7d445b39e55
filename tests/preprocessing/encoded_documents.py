"""Documents as tokens, and what a first pass over them leaves, for tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from preprocessing.fingerprints import LINE, Fingerprint
from preprocessing.layout import Layout
from preprocessing.sources import Document
from preprocessing.token_buffer import EncodedDocument, TokenBuffer, UnitNote

VOCABULARY, UNKNOWN = 100, 1
ONE_SHARD = Layout(seed=1, train_shards=1, validation_shards=0, validation_fraction=0.0)
ONLY = "shard-00000-of-00001.arrow"


def document(doc_id: str, revision: int = 0, seed: int = 0, sentences: int = 12) -> EncodedDocument:
    chance = np.random.default_rng([seed, len(doc_id), *doc_id.encode()])
    lengths = chance.integers(1, 9, size=sentences)
    tokens = chance.integers(UNKNOWN, VOCABULARY, size=lengths.sum()).astype(np.uint16)
    made = Document(doc_id, "books", title=None if seed else doc_id.upper(), text="", revision=revision)
    nothing = Fingerprint(text=0, lines=np.empty(0, LINE), signature=None)
    return EncodedDocument(made, tokens, np.cumsum(lengths).astype(np.int32), nothing)


def first_pass(
    documents: Sequence[EncodedDocument], layout: Layout, batches: int = 1
) -> tuple[UnitNote, list[pa.RecordBatch]]:
    note, made = UnitNote(), []
    for number in range(batches):
        buffer = TokenBuffer(layout, VOCABULARY)
        for encoded in documents[number::batches]:
            buffer.add(encoded)
        made.append(buffer.flush(0, number, note).tokens)
    return note, made


def rows_of(note: UnitNote, batches: list[pa.RecordBatch], shard: str) -> pa.Table:
    return pa.Table.from_batches([batches[s.batch].slice(s.begin, s.end - s.begin) for s in note.spans[shard]])
