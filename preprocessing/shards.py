"""What happens to documents between the tokenizer and a shard's file; pure, on Arrow tables.

First pass: documents of one input are laid out in record batches ordered by target shard (TokenBuffer), and only
spans (file, batch, rows) travel on. Second pass: the rows that belong to one shard become the shard (build_shard).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from preprocessing.nsp import FIELDS, Negatives, PairRule, Sentences, draw_pairs, random_draws
from preprocessing.schema import (
    PAIR,
    SPECIAL_TOKENS_OF_A_PAIR,
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
    """Consecutive rows of one record batch of a file of tokens, all for one shard."""

    file: str
    batch: int
    begin: int
    end: int
    tokens: int


class Edge(NamedTuple):
    """A document at the lower or upper end of the split hash, which a small corpus may have to move between splits."""

    split_hash: int
    doc_id: str
    span: Span  # this document alone


def keep_edges(edges: Iterable[Edge]) -> list[Edge]:
    """Of some edges those that can matter: the four documents of lowest hash and the two of highest.

    Associative: what is kept of a whole is kept of its parts.
    """
    ordered = sorted(set(edges))
    documents = [list(rows) for _, rows in groupby(ordered, key=lambda edge: edge[:2])]
    inner = documents[MIN_VALIDATION_CORPUS:-MIN_ROWS]
    dropped = {edge for rows in inner for edge in rows}
    return [edge for edge in ordered if edge not in dropped]


@dataclass
class Totals:
    """What the first pass found out, in a form that adds up."""

    rows: Counter[str] = field(default_factory=Counter)  # by shard
    tokens: Counter[str] = field(default_factory=Counter)  # by shard
    edges: list[Edge] = field(default_factory=list)
    counts: Counts = field(default_factory=Counter)

    def add(self, other: Totals) -> Totals:
        """Add another part's totals to these."""
        self.rows.update(other.rows)
        self.tokens.update(other.tokens)
        self.counts.update(other.counts)
        self.edges = keep_edges([*self.edges, *other.edges])
        return self

    def move(self, span: Span, old: str, new: str) -> None:
        """Count a document for another shard."""
        for shard, sign in ((old, -1), (new, 1)):
            self.rows[shard] += sign * (span.end - span.begin)
            self.tokens[shard] += sign * span.tokens


@dataclass
class Part:
    """What the first pass tells about one unit of input: small, while the tokens stay in files."""

    spans: dict[str, list[Span]] = field(default_factory=dict)  # shard -> where its rows are
    totals: Totals = field(default_factory=Totals)

    def to_json(self) -> dict[str, Any]:
        """As plain lists and dictionaries."""
        return {"spans": self.spans, "totals": vars(self.totals)}

    @staticmethod
    def from_json(raw: dict[str, Any]) -> Part:
        """The inverse of to_json."""
        totals = raw["totals"]
        edges = [Edge(split_hash, doc_id, Span(*span)) for split_hash, doc_id, span in totals.pop("edges")]
        return Part(
            spans={shard: [Span(*span) for span in spans] for shard, spans in raw["spans"].items()},
            totals=Totals(edges=edges, **{name: Counter(counts) for name, counts in totals.items()}),
        )


class EncodedDocument(NamedTuple):
    """A document as token ids."""

    document: Document  # its text is no longer needed and may be empty
    tokens: np.ndarray  # [tokens]
    sentence_ends: np.ndarray  # int32 [sentences]


def tokens_schema(vocab_size: int) -> pa.Schema:
    """The schema of a file of tokens, which lies between the passes."""
    columns = shard_schema(vocab_size, [])
    return pa.schema([*columns, pa.field("revision", pa.int64(), nullable=False)])


def _lists(arrays: Sequence[np.ndarray], value_type: pa.DataType) -> pa.ListArray:
    """Arrays as one list column."""
    offsets = np.zeros(len(arrays) + 1, dtype=np.int32)
    np.cumsum([len(array) for array in arrays], out=offsets[1:])
    values = pa.array(np.concatenate(arrays), type=value_type)
    item = pa.list_(pa.field("item", value_type, nullable=False))
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=item)


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

    def flush(self, file: str, batch: int, part: Part) -> pa.RecordBatch:
        """What waits, ordered by shard; where it will lie, as batch ``batch`` of ``file``, is noted in ``part``."""
        threshold = self._layout.threshold
        rows = sorted(self._waiting, key=lambda row: row[0].shard(threshold))
        begin = 0
        for shard, group in groupby(rows, key=lambda row: row[0].shard(threshold)):
            sizes = [len(encoded.tokens) for _, encoded in group]
            span = Span(file, batch, begin, begin + len(sizes), sum(sizes))
            part.spans.setdefault(shard, []).append(span)
            part.totals.rows[shard] += len(sizes)
            part.totals.tokens[shard] += span.tokens
            begin = span.end
        alone = (
            Edge(place.split_hash, encoded.document.doc_id, Span(file, batch, row, row + 1, len(encoded.tokens)))
            for row, (place, encoded) in enumerate(rows)
        )
        part.totals.edges = keep_edges([*part.totals.edges, *alone])
        self._waiting, self.tokens = [], 0
        return self._batch([encoded for _, encoded in rows])

    def _batch(self, rows: list[EncodedDocument]) -> pa.RecordBatch:
        columns = [
            pa.array([row.document.doc_id for row in rows], pa.string()),
            pa.array([row.document.source for row in rows], pa.string()),
            pa.array([row.document.title for row in rows], pa.string()),
            _lists([row.tokens for row in rows], self._token_type),
            _lists([row.sentence_ends for row in rows], pa.int32()),
            pa.array([row.document.revision for row in rows], pa.int64()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


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


def settle(layout: Layout, totals: Totals) -> Settlement:
    """Decide the split, and see that every shard has documents enough and not too many tokens.

    Args:
        layout: where documents go.
        totals: those of every part of the first pass, added up; the moves are counted in them.

    Raises:
        ShardingError: no documents, one document, or a shard with too few or too much of them.
    """
    documents = sorted({(edge.split_hash, edge.doc_id) for edge in totals.edges})
    if len(documents) < MIN_ROWS:
        found = f"a single document, {documents[0][1]!r}," if documents else "no document with text"
        raise ShardingError(
            f"the inputs hold {found} but a pair's random next sentence comes from another document; give more inputs"
        )
    threshold = _settled_threshold(layout, [split_hash for split_hash, _ in documents])
    moved: dict[str, list[Span]] = {}
    for edge in totals.edges:
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
            f"{shard} would hold {rows} of the documents, and pairs need at least {MIN_ROWS} in a shard: "
            f"{wanted} {option}, or leave it out"
        )
    if tokens > MAX_SHARD_TOKENS:
        raise ShardingError(f"{shard} would hold {tokens:,} tokens, 2^31 or more: use a greater --num-shards")


def _content(table: pa.Table, row: int) -> tuple[Any, ...]:
    """A fixed order among documents that share a doc_id: the greatest stays, which has the greatest revision."""
    values = table.slice(row, 1).to_pylist()[0]
    tokens = hashlib.blake2b(np.asarray(values["tokens"], dtype="<u4").tobytes()).digest()
    return values["revision"], values["source"], values["title"] or "", tokens, values["sentence_ends"]


def resolve(table: pa.Table, rows: Iterable[int]) -> tuple[list[int], list[int]]:
    """Of some rows those that stay, ordered by doc_id, and those dropped for a greater one of the same doc_id."""
    doc_ids = table.column("doc_id").to_pylist()
    kept, dropped = [], []
    for _, group in groupby(sorted(rows, key=doc_ids.__getitem__), key=doc_ids.__getitem__):
        same = list(group)
        stays = same[0] if len(same) == 1 else max(same, key=lambda row: _content(table, row))
        kept.append(stays)
        dropped += [row for row in same if row != stays]
    return kept, dropped


@dataclass(frozen=True)
class PairOptions:
    """How pairs are drawn; see nsp.PairRule."""

    sequence_lengths: tuple[int, ...]
    duplicates: int
    short_sequence_probability: float
    negatives: Negatives

    def rule(self, sequence_length: int) -> PairRule:
        """The rule for one sequence length."""
        room = sequence_length - SPECIAL_TOKENS_OF_A_PAIR
        return PairRule(room, self.short_sequence_probability, self.negatives)


def _pair_column(
    doc_ids: list[str], sentences: Sentences, options: PairOptions, seed: int, sequence_length: int
) -> pa.ListArray:
    """The pairs of every document of a shard for one sequence length."""
    rule = options.rule(sequence_length)
    passes: list[np.ndarray] = []
    for row, doc_id in enumerate(doc_ids):
        for duplicate in range(options.duplicates):
            draws = random_draws(seed, doc_id, duplicate, sequence_length)
            passes.append(np.array(draw_pairs(row, sentences, rule, draws), dtype=np.int32))
    sizes = np.array([len(drawn) // FIELDS for drawn in passes])
    duplicate_of = np.tile(np.arange(options.duplicates, dtype=np.int16), len(doc_ids)).repeat(sizes)
    numbers = np.concatenate(passes).reshape(-1, FIELDS)
    offsets = np.zeros(len(doc_ids) + 1, dtype=np.int32)
    np.cumsum(sizes.reshape(len(doc_ids), -1).sum(axis=1), out=offsets[1:])
    columns = [pa.array(duplicate_of), *(pa.array(np.ascontiguousarray(column)) for column in numbers.T[:-1])]
    pairs = pa.StructArray.from_arrays([*columns, pa.array(numbers[:, -1] != 0)], fields=list(PAIR))
    item = pa.list_(pa.field("item", PAIR, nullable=False))
    return pa.ListArray.from_arrays(pa.array(offsets), pairs, type=item)


def _statistics(table: pa.RecordBatch, shard: str, lengths: Iterable[int], unknown_id: int) -> Counts:
    """Documents, sentences, tokens and unknown tokens by source; pairs and true nexts by length and split."""
    sources = np.array(table.column("source").to_pylist())
    offsets = table.column("tokens").offsets.to_numpy()
    sentences = np.diff(table.column("sentence_ends").offsets.to_numpy())
    unknown_at = np.flatnonzero(table.column("tokens").values.to_numpy() == unknown_id)
    unknown = np.bincount(np.searchsorted(offsets, unknown_at, side="right") - 1, minlength=len(sources))
    counts: Counts = Counter()
    for source in sorted(set(sources.tolist())):
        own = sources == source
        counts[f"documents/{source}"] = int(own.sum())
        counts[f"sentences/{source}"] = int(sentences[own].sum())
        counts[f"tokens/{source}"] = int(np.diff(offsets)[own].sum())
        counts[f"unknown/{source}"] = int(unknown[own].sum())
    for length in lengths:
        pairs = table.column(pairs_column(length)).values
        counts[f"pairs/{length}/{split_of(shard)}"] = len(pairs)
        counts[f"next/{length}/{split_of(shard)}"] = pairs.field("is_next").true_count
    return counts


def build_shard(
    shard: str, rows: pa.Table, layout: Layout, threshold: int, options: PairOptions, vocab_size: int, unknown_id: int
) -> tuple[pa.RecordBatch, Counts]:
    """The contents of one shard: the same whatever order its rows arrive in.

    Args:
        shard: its name.
        rows: everything the first pass set aside for it, in tokens_schema.
        layout: where documents go.
        threshold: the settled one; rows that it gives to the other split are left out.
        options: how pairs are drawn.
        vocab_size: decides the type of tokens.
        unknown_id: the id of [UNK], for statistics.

    Raises:
        ShardingError: fewer than two documents are left, once repeated ones are dropped.
    """
    doc_ids = rows.column("doc_id").to_pylist()
    here = (row for row, doc_id in enumerate(doc_ids) if layout.place(doc_id).shard(threshold) == shard)
    kept, dropped = resolve(rows, here)
    check_shard_size(shard, len(kept), 0)
    collisions = Counter(f"collisions/{rows.column('source')[row]}" for row in dropped)
    table = rows.drop_columns(["revision"]).take(kept).combine_chunks().to_batches()[0]
    sentences = shard_sentences(table)
    doc_ids = table.column("doc_id").to_pylist()
    pairs = [_pair_column(doc_ids, sentences, options, layout.seed, length) for length in options.sequence_lengths]
    schema = shard_schema(vocab_size, options.sequence_lengths)
    batch = pa.RecordBatch.from_arrays([*table.columns, *pairs], schema=schema)
    return batch, _statistics(batch, shard, options.sequence_lengths, unknown_id) + collisions


def shard_sentences(table: pa.RecordBatch) -> Sentences:
    """Where the sentences of a shard's documents lie, for drawing pairs."""
    offsets = table.column("tokens").offsets.to_numpy()
    column = table.column("sentence_ends")
    first = column.offsets.to_numpy()
    ends = column.values.to_numpy() + offsets[:-1].repeat(np.diff(first))
    return Sentences(ends=ends.tolist(), first=first.tolist(), offsets=offsets.tolist())
