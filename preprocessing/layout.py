"""Which document goes to which shard and split; pure.

A document's place follows from its id. Only the split of a small corpus is decided once every document has been seen
(settle), so that each side has enough.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from preprocessing.schema import Split

VALIDATION_PREFIX = "validation-"
MIN_ROWS = 2  # a random next sentence comes from another document
MIN_VALIDATION_CORPUS = 4  # two documents to train on, two to validate with
MAX_SHARD_TOKENS = (1 << 31) - 1  # Arrow's list offsets are 32 bits
SEVERAL = "a file holds several documents between blank lines with --books-format google, or a line each with --jsonl"
Counts = Counter[str]  # statistics by "/"-separated name


class ShardingError(ValueError):
    """A corpus that can't be cut into shards as asked. The message names the option to change."""


@dataclass(frozen=True)
class Layout:
    """Where documents go: what both passes must agree on.

    Attributes:
        seed: key of every hash.
        train_shards, validation_shards: how many of each; the latter 0 where nothing is held out.
        validation_fraction: share of the documents that are held out, before the rule for small corpora.
    """

    seed: int
    train_shards: int
    validation_shards: int
    validation_fraction: float

    @property
    def threshold(self) -> int:
        """Documents whose split hash is below this are held out; 0 where none is to be."""
        return max(1, round(self.validation_fraction * 2**64)) if self.validation_fraction else 0

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
        """Count a document, which is all of a span, for another shard."""
        for shard, sign in ((old, -1), (new, 1)):
            self.rows[shard] += sign
            self.tokens[shard] += sign * span.tokens


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
            if name.startswith(("skipped/", "dropped/"))
        ]  # fmt: skip
        why = f" (passed over: {', '.join(reasons)})" if reasons else ""
        raise ShardingError(
            f"the inputs hold {found}{why}, but a shard needs at least {MIN_ROWS}; give more inputs; {SEVERAL}"
        )
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


def _settled_threshold(layout: Layout, documents: list[int]) -> int:
    """The threshold that leaves each split two documents at least, from the ordered hashes of the edges."""
    if not layout.threshold or len(documents) < MIN_VALIDATION_CORPUS:
        return 0
    at_least = documents[MIN_ROWS - 1] + 1
    at_most = documents[-MIN_ROWS]
    return min(max(layout.threshold, at_least), at_most)


def check_shard_size(shard: str, rows: int, tokens: int) -> None:
    """See that a shard's pairs can be drawn and its tokens indexed.

    Raises:
        ShardingError: fewer than two documents, or 2^31 tokens or more.
    """
    if rows < MIN_ROWS:
        advice = "fewer shards, as by --num-shards 1" if split_of(shard) == "train" else "another --validation-fraction"
        raise ShardingError(
            f"{shard} would hold {rows} of the documents, and a shard needs at least {MIN_ROWS}: ask for {advice}"
        )
    if tokens > MAX_SHARD_TOKENS:
        raise ShardingError(f"{shard} would hold {tokens:,} tokens, 2^31 or more: use a greater --num-shards")
