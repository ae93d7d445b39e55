"""What happens to documents between the tokenizer and a shard's file; pure, on Arrow tables.

First pass: documents of one input are laid out in record batches ordered by target shard (TokenBuffer), and only
spans (unit, batch, rows) travel on, while records of documents and of long lines wait to be compared (dedup). Second
pass: the rows that belong to one shard, less what is repeated elsewhere, become the shard (build_shard).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from preprocessing.fingerprints import PERMUTATIONS, Fingerprint, keyed_hash
from preprocessing.nsp import Negatives, PairRule, Sentences
from preprocessing.nsp_lanes import draw_passes, draw_single_passes
from preprocessing.schema import (
    PAIR,
    SPECIAL_TOKENS_OF_A_PAIR,
    SPECIAL_TOKENS_OF_A_SINGLE,
    Split,
    pairs_column,
    shard_schema,
    token_type,
)
from preprocessing.sources import Document

VALIDATION_PREFIX = "validation-"
MIN_ROWS = 2  # a random next sentence comes from another document
MIN_VALIDATION_CORPUS = 4  # two documents to train on, two to validate with
MAX_SHARD_TOKENS = (1 << 31) - 1  # Arrow's list offsets are 32 bits
Counts = Counter[str]  # statistics by "/"-separated name
LINES = pa.schema({"hash": pa.uint64()} | dict.fromkeys(("row", "begin", "end", "tokens"), pa.uint32()))


class Reason(IntEnum):
    """Why a document of the first pass is in no shard."""

    COLLISION = 1  # there is a newer one of its id
    DUPLICATE_DOCUMENT = 2
    NEAR_DUPLICATE = 3
    REPEATED_LINES = 4  # too little is left without them


class ShardingError(ValueError):
    """A corpus that can't be cut into shards as asked. The message names the option to change."""


@dataclass(frozen=True)
class Layout:
    """Where documents go: what both passes must agree on.

    Attributes:
        seed: key of every hash.
        train_shards, validation_shards: how many of each; the latter may be 0.
        validation_fraction: share of the documents that are held out, before the rule for small corpora.
    """

    seed: int
    train_shards: int
    validation_shards: int
    validation_fraction: float

    @property
    def threshold(self) -> int:
        """Documents whose split hash is below this are held out."""
        return round(self.validation_fraction * 2**64) if self.validation_shards else 0

    def names(self, split: Split) -> list[str]:
        """The file names of a split's shards."""
        count = self.train_shards if split == "train" else self.validation_shards
        return [shard_name(split, number, count) for number in range(count)]

    def place(self, doc_id: str) -> Place:
        """A document's hash for the split and the shard it has in each split."""
        key = str(self.seed).encode()
        digest = hashlib.blake2b(doc_id.encode(), digest_size=16, key=key, person=b"shard and split").digest()
        shard = int.from_bytes(digest[8:], "big")
        return Place(
            split_hash=int.from_bytes(digest[:8], "big"),
            train=shard_name("train", shard % self.train_shards, self.train_shards),
            validation=shard_name("validation", shard % max(1, self.validation_shards), self.validation_shards),
        )


class Place(NamedTuple):
    """Where a document goes, in either split; see Layout.place."""

    split_hash: int
    train: str
    validation: str

    def shard(self, threshold: int) -> str:
        """The document's shard when everything below the threshold is held out."""
        return self.validation if self.split_hash < threshold else self.train


def shard_name(split: Split, number: int, count: int) -> str:
    """The file name of a shard."""
    return f"{VALIDATION_PREFIX if split == 'validation' else ''}shard-{number:05d}-of-{count:05d}.arrow"


def split_of(shard: str) -> Split:
    """The split that a shard's file name tells."""
    return "validation" if shard.startswith(VALIDATION_PREFIX) else "train"


class Span(NamedTuple):
    """Consecutive rows of one record batch of a unit's file of tokens, all for one shard."""

    unit: int
    batch: int
    begin: int
    end: int
    tokens: int

    def keys(self) -> np.ndarray:
        """The rows' names in the files that tell what is dropped; uint64 [rows]."""
        first = row_key(self.unit, self.batch, self.begin)
        return np.arange(first, first + self.end - self.begin, dtype=np.uint64)


def row_key(unit: int, batch: int, row: int) -> int:
    """A number for a row of the first pass, ascending with unit, batch and row."""
    assert batch < 1 << 16
    assert row < 1 << 24
    return unit << 40 | batch << 24 | row


class Edge(NamedTuple):
    """A document at the lower or upper end of the split hash, which a small corpus may have to move between splits."""

    split_hash: int
    doc_id: str
    span: Span  # this document alone


@dataclass
class Totals:
    """What the first pass found out, in a form that adds up."""

    rows: Counter[str] = field(default_factory=Counter)  # by shard
    tokens: Counter[str] = field(default_factory=Counter)  # by shard
    counts: Counts = field(default_factory=Counter)

    def add(self, other: Totals) -> Totals:
        """Add another unit's totals to these."""
        self.rows.update(other.rows)
        self.tokens.update(other.tokens)
        self.counts.update(other.counts)
        return self

    def move(self, span: Span, old: str, new: str) -> None:
        """Count a document for another shard."""
        for shard, sign in ((old, -1), (new, 1)):
            self.rows[shard] += sign * (span.end - span.begin)
            self.tokens[shard] += sign * span.tokens


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


class EncodedDocument(NamedTuple):
    """A document as token ids."""

    document: Document  # its text is no longer needed and may be empty
    tokens: np.ndarray  # [tokens]
    sentence_ends: np.ndarray  # int32 [sentences]
    fingerprint: Fingerprint


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


def _lists(arrays: Sequence[np.ndarray], value_type: pa.DataType) -> pa.ListArray:
    """Arrays as one list column."""
    offsets = np.zeros(len(arrays) + 1, dtype=np.int32)
    np.cumsum([len(array) for array in arrays], out=offsets[1:])
    return _list_column(offsets, pa.array(np.concatenate(arrays), type=value_type))


def _list_column(offsets: np.ndarray, values: pa.Array) -> pa.ListArray:
    """Row n holds values[offsets[n] : offsets[n + 1]]."""
    item = pa.field("item", values.type, nullable=False)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, type=pa.list_(item))


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
            _lists([row.tokens for row in rows], self._token_type),
            _lists([row.sentence_ends for row in rows], pa.int32()),
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


@dataclass
class Settlement:
    """What is decided between the passes, once every document has been seen.

    Attributes:
        threshold: documents whose split hash is below this are held out.
        moved: shard -> documents that lie in the spans of the other split.
        counts: statistics of the first pass.
    """

    threshold: int
    moved: dict[str, list[Span]]
    counts: Counts


def _settled_threshold(layout: Layout, documents: list[int]) -> int:
    """The threshold that leaves each split two documents at least, from the ordered hashes of the edges."""
    if not layout.threshold or len(documents) < MIN_VALIDATION_CORPUS:
        return 0
    at_least = documents[MIN_ROWS - 1] + 1
    at_most = documents[-MIN_ROWS]
    return min(max(layout.threshold, at_least), at_most)


def settle(layout: Layout, totals: Totals, edges: Sequence[Edge]) -> Settlement:
    """Decide the split, and see that every shard has documents enough and not too many tokens.

    Args:
        layout: where documents go.
        totals: those of every unit, added up; the moves are counted in them.
        edges: of the documents that are not dropped the four of lowest hash and the two of highest, ascending.

    Raises:
        ShardingError: no documents, one document, or a shard with too few or too much of them.
    """
    if len(edges) < MIN_ROWS:
        found = f"a single document, {edges[0].doc_id!r}" if edges else "no document with text"
        reasons = [
            f"{count:,} {name.rpartition('/')[2]}" for name, count in sorted(totals.counts.items())
            if count and name.startswith(("skipped/", "dropped/"))
        ]  # fmt: skip
        why = f" (passed over: {', '.join(reasons)})" if reasons else ""
        raise ShardingError(f"the inputs hold {found}{why}, but a shard needs at least {MIN_ROWS}; give more inputs")
    threshold = _settled_threshold(layout, [edge.split_hash for edge in edges])
    moved: dict[str, list[Span]] = {}
    for edge in edges:
        place = layout.place(edge.doc_id)
        old, new = place.shard(layout.threshold), place.shard(threshold)
        if old != new:
            moved.setdefault(new, []).append(edge.span)
            totals.move(edge.span, old, new)
    for shard in layout.names("train") + (layout.names("validation") if threshold else []):
        check_shard_size(shard, totals.rows[shard], totals.tokens[shard])
    return Settlement(threshold, moved, totals.counts)


def check_shard_size(shard: str, rows: int, tokens: int) -> None:
    """See that a shard's pairs can be drawn and its tokens indexed.

    Raises:
        ShardingError: fewer than two documents, or 2^31 tokens or more.
    """
    option = "--num-shards" if split_of(shard) == "train" else "--validation-fraction"
    if rows < MIN_ROWS:
        wanted = "use a smaller" if option == "--num-shards" else "use another"
        raise ShardingError(
            f"{shard} would hold {rows} of the documents, and a shard needs at least {MIN_ROWS}: "
            f"{wanted} {option}, or leave it out"
        )
    if tokens > MAX_SHARD_TOKENS:
        raise ShardingError(f"{shard} would hold {tokens:,} tokens, 2^31 or more: use a greater --num-shards")


@dataclass(frozen=True)
class PairOptions:
    """How pairs are drawn; see nsp.PairRule."""

    sequence_lengths: tuple[int, ...]
    duplicates: int
    short_sequence_probability: float
    negatives: Negatives
    next_sentence: bool = True  # False: single segments

    def rule(self, sequence_length: int) -> PairRule:
        """The rule for one sequence length."""
        specials = SPECIAL_TOKENS_OF_A_PAIR if self.next_sentence else SPECIAL_TOKENS_OF_A_SINGLE
        room = sequence_length - specials
        return PairRule(room, self.short_sequence_probability, self.negatives)


def _pair_column(
    doc_ids: list[str], sentences: Sentences, options: PairOptions, seed: int, sequence_length: int
) -> pa.ListArray:
    """The pairs of every document of a shard for one sequence length."""
    rule = options.rule(sequence_length)
    rows = np.arange(len(doc_ids)).repeat(options.duplicates).tolist()
    names = [(seed, doc_id, number, sequence_length) for doc_id in doc_ids for number in range(options.duplicates)]
    draw = draw_passes if options.next_sentence else draw_single_passes
    passes = draw(rows, names, sentences, rule)
    sizes = np.array([len(drawn) for drawn in passes])
    duplicate_of = np.tile(np.arange(options.duplicates, dtype=np.int16), len(doc_ids)).repeat(sizes)
    numbers = np.concatenate(passes)
    offsets = np.zeros(len(doc_ids) + 1, dtype=np.int32)
    np.cumsum(sizes.reshape(len(doc_ids), -1).sum(axis=1), out=offsets[1:])
    columns = [pa.array(duplicate_of), *(pa.array(np.ascontiguousarray(column)) for column in numbers.T[:-1])]
    pairs = pa.StructArray.from_arrays([*columns, pa.array(numbers[:, -1] != 0)], fields=list(PAIR))
    return _list_column(offsets, pairs)


def count_by_row(tokens: np.ndarray, offsets: np.ndarray, token: int) -> np.ndarray:
    """How often a token is in each document; int64 [documents].

    Args:
        tokens: [tokens] the documents one after the other.
        offsets: [documents + 1] where each begins.
        token: its id.
    """
    row = np.searchsorted(offsets, np.flatnonzero(tokens == token), side="right") - 1
    return np.bincount(row, minlength=len(offsets) - 1)


def _statistics(table: pa.RecordBatch, shard: str, lengths: Iterable[int], unknown_id: int) -> Counts:
    """Documents, sentences, tokens and unknown ones by source; what pairs are by length and split."""
    sources = np.array(table.column("source").to_pylist())
    offsets = table.column("tokens").offsets.to_numpy()
    sentences = np.diff(table.column("sentence_ends").offsets.to_numpy())
    unknown = count_by_row(table.column("tokens").values.to_numpy(), offsets, unknown_id)
    counts: Counts = Counter()
    for source in sorted(set(sources.tolist())):
        own = sources == source
        counts[f"documents/{source}"] = int(own.sum())
        counts[f"sentences/{source}"] = int(sentences[own].sum())
        counts[f"one_sentence/{source}"] = int((sentences[own] == 1).sum())
        counts[f"tokens/{source}"] = int(np.diff(offsets)[own].sum())
        counts[f"unknown/{source}"] = int(unknown[own].sum())
    for length in lengths:
        pairs = table.column(pairs_column(length)).values
        counts[f"pairs/{length}/{split_of(shard)}"] = len(pairs)
        counts[f"next/{length}/{split_of(shard)}"] = pairs.field("is_next").true_count
        counts[f"unreached/{length}/{split_of(shard)}"] = _unreached(table, length)
    return counts


def _unreached(table: pa.RecordBatch, length: int) -> int:
    """How many tokens of a shard are in no pair of a sequence length: what is cut off long sentences in every pass."""
    offsets = table.column("tokens").offsets.to_numpy()
    column = table.column(pairs_column(length))
    pair = {field.name: values for field, values in zip(PAIR, column.values.flatten(), strict=True)}
    row = np.repeat(np.arange(table.num_rows), np.diff(column.offsets.to_numpy()))
    covering = np.zeros(offsets[-1] + 1, np.int32)  # first the change at each token, then how many segments hold it
    for origin, segment in ((offsets[row], "a"), (offsets[pair["b_row"].to_numpy()], "b")):
        np.add.at(covering, origin + pair[f"{segment}_begin"].to_numpy(), 1)
        np.subtract.at(covering, origin + pair[f"{segment}_end"].to_numpy(), 1)
    np.cumsum(covering, out=covering)
    return int(offsets[-1] - np.count_nonzero(covering[:-1]))


class Rows(NamedTuple):
    """What the first pass set aside for a shard, and what of it is dropped."""

    table: pa.Table  # tokens_schema
    reasons: np.ndarray  # uint8 [rows]: the Reason for which each is dropped, or 0
    lines: np.ndarray  # [repeated lines, 3]: row, and begin and end of the sentences that go


def build_shard(
    shard: str, rows: Rows, layout: Layout, threshold: int, options: PairOptions, vocab_size: int, unknown_id: int
) -> tuple[pa.RecordBatch, Counts]:
    """The contents of one shard: the same whatever order its rows arrive in.

    Args:
        shard: its name.
        rows: everything the first pass set aside for it.
        layout: where documents go.
        threshold: the settled one; rows that it gives to the other split are left out.
        options: how pairs are drawn.
        vocab_size: decides the type of tokens.
        unknown_id: the id of [UNK], for statistics.

    Raises:
        ShardingError: fewer than two documents are left, once repeated ones are dropped.
    """
    doc_ids = rows.table.column("doc_id").to_pylist()
    here = (row for row, doc_id in enumerate(doc_ids) if layout.place(doc_id).shard(threshold) == shard)
    kept = sorted((row for row in here if not rows.reasons[row]), key=doc_ids.__getitem__)
    check_shard_size(shard, len(kept), 0)
    table, repeated = without_lines(take_rows(rows.table, kept), lines_of(kept, rows))
    sentences = shard_sentences(table)
    doc_ids = table.column("doc_id").to_pylist()
    pairs = [_pair_column(doc_ids, sentences, options, layout.seed, length) for length in options.sequence_lengths]
    schema = shard_schema(vocab_size, options.sequence_lengths)
    batch = pa.RecordBatch.from_arrays([*table.columns, *pairs], schema=schema)
    counts = _statistics(batch, shard, options.sequence_lengths, unknown_id)
    counts.update(repeated)  # a sum of the two would lose counts of 0
    return batch, counts


def take_rows(table: pa.Table, rows: Sequence[int]) -> pa.RecordBatch:
    """Some rows of a table in tokens_schema, copied once: Table.take joins the whole table first, and copies twice."""
    columns = []
    for column in table.columns:
        if pa.types.is_list(column.type):
            arrays: list[np.ndarray] = []
            for chunk in column.chunks:
                values = chunk.values.to_numpy()
                arrays += (values[begin:end] for begin, end in pairwise(chunk.offsets.tolist()))
            columns.append(_lists([arrays[row] for row in rows], column.type.value_type))
        else:
            columns.append(column.take(rows).combine_chunks())
    return pa.RecordBatch.from_arrays(columns, schema=table.schema)


def lines_of(kept: list[int], rows: Rows) -> np.ndarray:
    """The repeated lines of the rows that are kept, which become rows 0, 1, ..."""
    becomes = np.full(len(rows.reasons), -1)
    becomes[kept] = np.arange(len(kept))
    lines = np.column_stack([becomes[rows.lines[:, 0]], rows.lines[:, 1:]])
    return lines[lines[:, 0] >= 0]


def without_lines(table: pa.RecordBatch, lines: np.ndarray) -> tuple[pa.RecordBatch, Counts]:
    """A table without some of its sentences, and what went, by source.

    Args:
        table: in tokens_schema; every row keeps a token at least.
        lines: [lines, 3] row, and begin and end of consecutive sentences; no two overlap.
    """
    if not len(lines):
        return table, Counter()
    first = table.column("sentence_ends").offsets.to_numpy()
    row_of = np.repeat(np.arange(len(first) - 1), np.diff(first))  # [sentences]
    lengths = np.diff(shard_sentences(table).ends, prepend=0)  # [sentences]
    goes = np.zeros(len(lengths) + 1, np.int32)
    np.add.at(goes, first[lines[:, 0]] + lines[:, 1], 1)
    np.add.at(goes, first[lines[:, 0]] + lines[:, 2], -1)
    stays = np.cumsum(goes[:-1]) == 0  # [sentences]
    ends = np.concatenate([[0], np.cumsum(lengths * stays)])
    offsets = ends[first]
    sentence_ends = ends[1:][stays] - offsets[row_of[stays]]
    tokens = table.column("tokens").values.to_numpy()[np.repeat(stays, lengths)]
    columns = {
        "tokens": _list_column(offsets, pa.array(tokens)),
        "sentence_ends": _list_column(
            np.concatenate([[0], np.cumsum(stays)])[first], pa.array(sentence_ends, pa.int32())
        ),
    }
    arrays = [columns.get(field.name, table.column(field.name)) for field in table.schema]
    counts: Counts = Counter()
    sources = np.array(table.column("source").to_pylist())
    for source in np.unique(sources[lines[:, 0]]).tolist():
        gone = ~stays & (sources == source)[row_of]
        counts[f"repeated/{source}/lines"] = int((sources[lines[:, 0]] == source).sum())
        counts[f"repeated/{source}/sentences"] = int(gone.sum())
        counts[f"repeated/{source}/tokens"] = int(lengths[gone].sum())
    return pa.RecordBatch.from_arrays(arrays, schema=table.schema), counts


def shard_sentences(table: pa.RecordBatch) -> Sentences:
    """Where the sentences of a shard's documents lie, for drawing pairs."""
    offsets = table.column("tokens").offsets.to_numpy()
    column = table.column("sentence_ends")
    first = column.offsets.to_numpy()
    ends = column.values.to_numpy() + offsets[:-1].repeat(np.diff(first))
    return Sentences(ends=ends.tolist(), first=first.tolist(), offsets=offsets.tolist())
