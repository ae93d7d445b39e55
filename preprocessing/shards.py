"""What the second pass makes of the rows that belong to a shard: the shard, less what is repeated elsewhere; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from preprocessing.layout import Counts, Layout, ShardingError, check_shard_size, split_of
from preprocessing.nsp import Negatives, PairRule, Sentences
from preprocessing.nsp_lanes import draw_passes, draw_single_passes
from preprocessing.schema import (
    PAIR,
    SPECIAL_TOKENS_OF_A_PAIR,
    SPECIAL_TOKENS_OF_A_SINGLE,
    list_column,
    pairs_column,
    shard_schema,
)

AT_ONCE = 1 << 16  # documents, or passes over them, whose objects are in memory at one time


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


class Rows(NamedTuple):
    """What the first pass set aside for a shard, and what of it is dropped."""

    table: pa.Table  # tokens_schema
    reasons: np.ndarray  # uint8 [rows]: the dedup.Reason for which each is dropped, or 0
    lines: np.ndarray  # [repeated lines, 3]: row, and begin and end of the sentences that go


def build_shard(
    shard: str,
    rows: Rows,
    layout: Layout,
    threshold: int,
    options: PairOptions,
    begins_word: np.ndarray,
    unknown_id: int,
) -> tuple[pa.RecordBatch, Counts]:
    """The contents of one shard: the same whatever order its rows arrive in.

    Args:
        shard: its name.
        rows: everything the first pass set aside for it.
        layout: where documents go.
        threshold: the settled one; rows that it gives to the other split are left out.
        options: how pairs are drawn.
        begins_word: which entries of the vocabulary are no continuation of a word, bool [entries]; their number decides
            the type of tokens.
        unknown_id: the id of [UNK], for statistics.

    Raises:
        ShardingError: fewer than two documents are left, once repeated ones are dropped; or too many, as take_rows.
    """
    kept = _kept(shard, rows, layout, threshold)
    check_shard_size(shard, len(kept), 0)
    table, repeated = without_lines(take_rows(rows.table, kept), lines_of(kept, rows))
    ids, sentences = table.column("doc_id"), shard_sentences(table)
    pairs = [_pair_column(ids, sentences, options, layout.seed, length) for length in options.sequence_lengths]
    schema = shard_schema(len(begins_word), options.sequence_lengths)
    batch = pa.RecordBatch.from_arrays([*table.columns, *pairs], schema=schema)
    counts = _statistics(batch, shard, options.sequence_lengths, begins_word, unknown_id)
    counts.update(repeated)  # a sum of the two would lose counts of 0
    return batch, counts


def _kept(shard: str, rows: Rows, layout: Layout, threshold: int) -> np.ndarray:
    """The rows that make up a shard, by doc_id."""
    ids = rows.table.column("doc_id")
    blocks = (ids.slice(begin, AT_ONCE).to_pylist() for begin in range(0, len(ids), AT_ONCE))
    here = (layout.place(doc_id).shard(threshold) == shard for doc_id in chain.from_iterable(blocks))
    kept = np.flatnonzero(np.fromiter(here, bool, len(ids)) & (rows.reasons == 0))
    with _in_reach(rows.table):
        ordered: np.ndarray = kept[pc.sort_indices(ids.take(kept)).to_numpy()]
    return ordered


@contextmanager
def _in_reach(table: pa.Table) -> Iterator[None]:
    """Tell what to do where a table has more of ids or of titles than Arrow's offsets of 32 bits reach.

    Raises:
        ShardingError: it has.
    """
    try:
        yield
    except pa.ArrowInvalid as error:
        raise ShardingError(
            f"the ids or titles of {table.num_rows:,} documents have 2^31 bytes or more: use a greater --num-shards"
        ) from error


def take_rows(table: pa.Table, rows: np.ndarray) -> pa.RecordBatch:
    """Some rows of a table in tokens_schema, copied once: Table.take joins the whole table first, and copies twice.

    Raises:
        ShardingError: see _in_reach.
    """
    with _in_reach(table):
        columns = [
            _take_lists(column, rows) if pa.types.is_list(column.type) else column.take(rows).combine_chunks()
            for column in table.columns
        ]
    return pa.RecordBatch.from_arrays(columns, schema=table.schema)


def _take_lists(column: pa.ChunkedArray, rows: np.ndarray) -> pa.ListArray:
    """Some rows of a column of lists of numbers, block by block: views of short rows outweigh what is in them."""
    chunks = column.chunks
    values = [chunk.values.to_numpy() for chunk in chunks]
    chunk_of = np.arange(len(chunks)).repeat([len(chunk) for chunk in chunks])  # [rows of the column]
    begins = np.concatenate([chunk.offsets.to_numpy()[:-1] for chunk in chunks])
    ends = np.concatenate([chunk.offsets.to_numpy()[1:] for chunk in chunks])
    offsets = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum((ends - begins)[rows], out=offsets[1:])
    taken = np.empty(offsets[-1], values[0].dtype)
    for first in range(0, len(rows), AT_ONCE):
        block = rows[first : first + AT_ONCE]
        places = zip(chunk_of[block].tolist(), begins[block].tolist(), ends[block].tolist(), strict=True)
        lists = [values[chunk][begin:end] for chunk, begin, end in places]
        np.concatenate(lists, out=taken[offsets[first] : offsets[first + len(block)]])
    return list_column(offsets, pa.array(taken))


def lines_of(kept: np.ndarray, rows: Rows) -> np.ndarray:
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
        "tokens": list_column(offsets, pa.array(tokens)),
        "sentence_ends": list_column(
            np.concatenate([[0], np.cumsum(stays)])[first], pa.array(sentence_ends, pa.int32())
        ),
    }
    arrays = [columns.get(field.name, table.column(field.name)) for field in table.schema]
    counts: Counts = Counter()
    for source, own in _rows_of_sources(table):
        gone = ~stays & own[row_of]
        counts[f"repeated/{source}/lines"] = int(own[lines[:, 0]].sum())
        counts[f"repeated/{source}/sentences"] = int(gone.sum())
        counts[f"repeated/{source}/tokens"] = int(lengths[gone].sum())
    return pa.RecordBatch.from_arrays(arrays, schema=table.schema), counts


def shard_sentences(table: pa.RecordBatch) -> Sentences:
    """Where the sentences of a shard's documents lie, for drawing pairs."""
    offsets = table.column("tokens").offsets.to_numpy().astype(np.int64)
    column = table.column("sentence_ends")
    first = column.offsets.to_numpy().astype(np.int64)
    ends = column.values.to_numpy() + offsets[:-1].repeat(np.diff(first))
    return Sentences(ends=ends, first=first, offsets=offsets)


def _pair_column(
    ids: pa.StringArray, sentences: Sentences, options: PairOptions, seed: int, sequence_length: int
) -> pa.ListArray:
    """The pairs of every document of a shard for one sequence length."""
    rule = options.rule(sequence_length)
    draw = draw_passes if options.next_sentence else draw_single_passes
    numbers = np.arange(options.duplicates, dtype=np.int16)
    sizes, blocks = [np.zeros(1, np.int64)], []
    documents = max(1, AT_ONCE // options.duplicates)
    for begin in range(0, len(ids), documents):
        doc_ids = ids.slice(begin, documents).to_pylist()
        rows = np.arange(begin, begin + len(doc_ids)).repeat(options.duplicates)
        names = [(seed, doc_id, number, sequence_length) for doc_id in doc_ids for number in range(options.duplicates)]
        drawn = draw(rows, names, sentences, rule)
        sizes.append(drawn.sizes.reshape(len(doc_ids), -1).sum(axis=1))
        fields = [np.tile(numbers, len(doc_ids)).repeat(drawn.sizes), *drawn.pairs.T[:-1], drawn.pairs[:, -1] != 0]
        blocks.append([pa.array(np.ascontiguousarray(values)) for values in fields])
    # Field by field, and what is joined is let go: they are most of the memory where documents are short.
    joined = [pa.concat_arrays([block.pop() for block in blocks]) for _ in PAIR]
    pairs = pa.StructArray.from_arrays(joined[::-1], fields=list(PAIR))
    return list_column(np.cumsum(np.concatenate(sizes)), pairs)


def _rows_of_sources(table: pa.RecordBatch) -> Iterator[tuple[str, np.ndarray]]:
    """The sources of a shard, and which rows are of each; bool [rows]."""
    column = table.column("source").dictionary_encode()
    numbers = column.indices.to_numpy()
    for number, source in enumerate(column.dictionary.to_pylist()):
        yield source, numbers == number


def _statistics(
    table: pa.RecordBatch, shard: str, lengths: Iterable[int], begins_word: np.ndarray, unknown_id: int
) -> Counts:
    """Documents, titles, sentences, words, tokens and unknown ones by source; what pairs are by length and split."""
    tokens, offsets = table.column("tokens").values.to_numpy(), table.column("tokens").offsets.to_numpy()
    sentences = np.diff(table.column("sentence_ends").offsets.to_numpy())
    unknown = count_by_row(tokens == unknown_id, offsets)
    sizes = np.diff(offsets)
    words = sizes - count_by_row(~begins_word[tokens], offsets)
    titled = table.column("title").is_valid().to_numpy(zero_copy_only=False)
    counts: Counts = Counter()
    for source, own in _rows_of_sources(table):
        counts[f"documents/{source}"] = int(own.sum())
        counts[f"titles/{source}"] = int(titled[own].sum())
        counts[f"sentences/{source}"] = int(sentences[own].sum())
        counts[f"one_sentence/{source}"] = int((sentences[own] == 1).sum())
        counts[f"words/{source}"] = int(words[own].sum())
        counts[f"tokens/{source}"] = int(sizes[own].sum())
        counts[f"unknown/{source}"] = int(unknown[own].sum())
    for length in lengths:
        pairs = table.column(pairs_column(length)).values
        counts[f"pairs/{length}/{split_of(shard)}"] = len(pairs)
        counts[f"next/{length}/{split_of(shard)}"] = pairs.field("is_next").true_count
        counts[f"unreached/{length}/{split_of(shard)}"] = _unreached(table, length)
    return counts


def count_by_row(hits: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """How many tokens of each document are hits; int64 [documents].

    Args:
        hits: bool [tokens] the documents one after the other.
        offsets: [documents + 1] where each begins.
    """
    counts: np.ndarray = np.diff(np.searchsorted(np.flatnonzero(hits), offsets))
    return counts


def _unreached(table: pa.RecordBatch, length: int) -> int:
    """How many tokens of a shard are in no pair of a sequence length: what is cut off long sentences in every pass."""
    offsets = table.column("tokens").offsets.to_numpy()
    column = table.column(pairs_column(length))
    pair = {field.name: values for field, values in zip(PAIR, column.values.flatten(), strict=True)}
    own_row = np.arange(table.num_rows, dtype=np.int32).repeat(np.diff(column.offsets.to_numpy()))
    halves = np.empty((2, len(own_row)), np.int64)  # each segment as begin * 2^32 + length, which sorts by begins
    for half, row, name in zip(halves, (own_row, pair["b_row"].to_numpy()), "ab", strict=True):
        begin, end = (pair[f"{name}_{edge}"].to_numpy() for edge in ("begin", "end"))
        half[:] = (offsets[row].astype(np.int64) + begin << 32) + (end - begin)
    segments = halves.ravel()
    segments.sort()
    begins, ends = segments >> 32, segments & 0xFFFFFFFF
    ends += begins
    np.maximum.accumulate(ends, out=ends)  # how far all segments so far reach
    gaps = np.maximum(np.append(begins, offsets[-1]) - np.concatenate([[0], ends]), 0)
    return int(gaps.sum())
