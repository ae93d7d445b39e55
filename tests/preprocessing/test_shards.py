from __future__ import annotations

import dataclasses
import json
import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from preprocessing.fingerprints import LINE, Fingerprint
from preprocessing.nsp import FIELDS, draw_pairs, random_draws
from preprocessing.schema import shard_schema
from preprocessing.shards import (
    Edge,
    EncodedDocument,
    Layout,
    PairOptions,
    Rows,
    ShardingError,
    Span,
    TokenBuffer,
    Totals,
    UnitNote,
    build_shard,
    check_shard_size,
    settle,
    shard_name,
    shard_sentences,
    split_of,
)
from preprocessing.sources import Document

VOCABULARY, UNKNOWN = 100, 1
OPTIONS = PairOptions((16, 32), duplicates=2, short_sequence_probability=0.1, negatives="uniform")
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


def test_places_are_fixed_for_ever_and_shards_named_by_split() -> None:
    place = Layout(seed=1, train_shards=3, validation_shards=1, validation_fraction=0.01).place("enwiki/12")
    assert place == (12941659061438186979, "shard-00001-of-00003.arrow", "validation-shard-00000-of-00001.arrow")
    assert place.shard(0) == place.train
    assert place.shard(place.split_hash + 1) == place.validation
    assert [split_of(place.train), split_of(place.validation)] == ["train", "validation"]


def test_shares_of_shards_and_of_the_validation_split_are_even() -> None:
    layout = Layout(seed=3, train_shards=4, validation_shards=2, validation_fraction=0.1)
    places = [layout.place(f"doc/{number}").shard(layout.threshold) for number in range(20_000)]
    counts = Counter(places)
    assert set(counts) == {*layout.names("train"), *layout.names("validation")}
    assert all(abs(counts[name] - 4500) < 4 * 60 for name in layout.names("train"))
    assert all(abs(counts[name] - 1000) < 4 * 31 for name in layout.names("validation"))


def test_the_first_pass_leaves_rows_by_shard_and_tells_where() -> None:
    layout = Layout(seed=1, train_shards=3, validation_shards=1, validation_fraction=0.2)
    documents = [document(f"d{number}") for number in range(40)]
    note, batches = first_pass(documents, layout, batches=2)
    assert sum(note.totals.rows.values()) == 40
    for shard in note.spans:
        rows = rows_of(note, batches, shard)
        assert len(rows) == note.totals.rows[shard]
        assert all(layout.place(d).shard(layout.threshold) == shard for d in rows["doc_id"].to_pylist())
        assert sum(len(tokens) for tokens in rows["tokens"].to_pylist()) == note.totals.tokens[shard]
    assert UnitNote.from_json(json.loads(json.dumps(note.to_json()))) == note


def known_of(layout: Layout, count: int) -> tuple[Totals, list[Edge]]:
    """The totals of some documents, and the edges; every document is one while there are no more than six."""
    note, (batch,) = first_pass([document(f"d{number}") for number in range(count)], layout)
    rows = [(layout.place(doc_id).split_hash, doc_id, row) for row, doc_id in enumerate(batch["doc_id"].to_pylist())]
    edges = [Edge(h, d, Span(0, 0, row, row + 1, len(batch["tokens"][row]))) for h, d, row in sorted(rows)]
    return note.totals, edges[:4] + edges[4:][-2:]


@pytest.mark.parametrize("fraction", [0.001, 0.5, 0.98])
@pytest.mark.parametrize("count", [4, 5, 9])
def test_either_split_has_two_documents_of_four(count: int, fraction: float) -> None:
    for seed in range(10):
        layout = Layout(seed, train_shards=1, validation_shards=1, validation_fraction=fraction)
        totals, edges = known_of(layout, count)
        settlement = settle(layout, totals, edges)
        held_out = sum(layout.place(f"d{n}").split_hash < settlement.threshold for n in range(count))
        assert 2 <= held_out <= count - 2
        assert totals.rows["validation-" + ONLY] == held_out
        assert totals.rows[ONLY] == count - held_out


def test_fewer_than_four_documents_are_all_for_training() -> None:
    for seed in range(10):
        layout = Layout(seed, train_shards=1, validation_shards=1, validation_fraction=0.5)
        totals, edges = known_of(layout, 3)
        assert settle(layout, totals, edges).threshold == 0
        assert totals.rows[ONLY] == 3


def test_where_nothing_is_to_be_held_out_nothing_is() -> None:
    totals, edges = known_of(ONE_SHARD, 9)
    settlement = settle(ONE_SHARD, totals, edges)
    assert (settlement.threshold, settlement.moved) == (0, {})
    assert dict(totals.rows) == {ONLY: 9}


def test_a_corpus_that_cannot_be_sharded_is_refused_with_the_reason() -> None:
    with pytest.raises(ShardingError, match="no document with text"):
        settle(ONE_SHARD, Totals(), [])
    with pytest.raises(ShardingError, match=r"a single document, 'd0',.*give more inputs"):
        settle(ONE_SHARD, *known_of(ONE_SHARD, 1))
    many = dataclasses.replace(ONE_SHARD, train_shards=8)
    with pytest.raises(ShardingError, match=r"would hold [01] of the documents.*smaller --num-shards"):
        settle(many, *known_of(many, 9))
    with pytest.raises(ShardingError, match=r"would hold 1 of the documents"):
        check_shard_size(ONLY, 1, 10)
    with pytest.raises(ShardingError, match=r"2,147,483,648 tokens.*greater --num-shards"):
        check_shard_size(ONLY, 10, 2**31)
    check_shard_size(ONLY, 2, 2**31 - 1)


def nothing_dropped(table: pa.Table) -> Rows:
    return Rows(table, np.zeros(len(table), np.uint8), np.empty((0, 3), np.int64))


def build(table: pa.Table, options: PairOptions = OPTIONS) -> tuple[pa.RecordBatch, Counter[str]]:
    return build_shard(ONLY, nothing_dropped(table), ONE_SHARD, 0, options, VOCABULARY, UNKNOWN)


def serialized(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def test_a_shard_is_the_same_in_any_order_of_arrival() -> None:
    documents = [document(f"d{n}", seed=n % 2) for n in range(9)]
    made = set()
    for seed in range(4):
        shuffled = random.Random(seed).sample(documents, len(documents))
        note, batches = first_pass(shuffled, ONE_SHARD, batches=1 + seed)
        batch, counts = build(rows_of(note, batches, ONLY))
        made.add(serialized(batch))
        assert counts["documents/books"] == 9
    assert len(made) == 1


def test_pairs_are_those_of_every_pass_and_a_length_more_changes_none() -> None:
    note, batches = first_pass([document(f"d{number}") for number in range(6)], ONE_SHARD)
    rows = rows_of(note, batches, ONLY)
    batch, counts = build(rows)
    assert batch.schema.equals(shard_schema(VOCABULARY, (16, 32)), check_metadata=True)
    sentences = shard_sentences(batch)
    for length in (16, 32):
        for row, pairs in enumerate(batch.column(f"pairs_{length}").to_pylist()):
            expected = []
            for duplicate in range(2):
                flat = draw_pairs(row, sentences, OPTIONS.rule(length), random_draws(1, f"d{row}", duplicate, length))
                expected += [(duplicate, *flat[at : at + FIELDS]) for at in range(0, len(flat), FIELDS)]
            assert [tuple(pair.values()) for pair in pairs] == expected
        values = batch.column(f"pairs_{length}").values
        assert counts[f"pairs/{length}/train"] == len(values)
        assert counts[f"next/{length}/train"] == sum(values.field("is_next").to_pylist())
    alone, _ = build(rows, dataclasses.replace(OPTIONS, sequence_lengths=(32,)))
    assert alone.column("pairs_32").equals(batch.column("pairs_32"))
    more, _ = build(rows, dataclasses.replace(OPTIONS, duplicates=3))
    for old, new in zip(batch.column("pairs_16").to_pylist(), more.column("pairs_16").to_pylist(), strict=True):
        assert new[: len(old)] == old


def test_unknown_tokens_count_for_the_source_that_has_them() -> None:
    """At either end of a document too."""
    encoded = []
    for number, source in enumerate(["books", "wikipedia", "books", "wikipedia"]):
        one = document(f"d{number}")
        tokens = np.full(len(one.tokens), UNKNOWN + 1, np.uint16)
        if source == "wikipedia":
            tokens[[0, -1]] = UNKNOWN
        encoded.append(one._replace(document=one.document._replace(source=source), tokens=tokens))
    part, batches = first_pass(encoded, ONE_SHARD)
    _, counts = build(rows_of(part, batches, ONLY))
    assert (counts["unknown/wikipedia"], counts["unknown/books"]) == (4, 0)


def test_documents_of_one_sentence_are_counted() -> None:
    part, batches = first_pass([document(f"d{number}", sentences=number) for number in (1, 2, 3)], ONE_SHARD)
    _, counts = build(rows_of(part, batches, ONLY))
    assert counts["one_sentence/books"] == 1


def test_statistics_count_what_is_there() -> None:
    documents = [document(f"d{number}") for number in range(5)]
    note, batches = first_pass(documents, ONE_SHARD)
    _, counts = build(rows_of(note, batches, ONLY))
    assert counts["tokens/books"] == sum(len(d.tokens) for d in documents)
    assert counts["sentences/books"] == 5 * 12
    assert counts["unknown/books"] == sum(int((d.tokens == UNKNOWN).sum()) for d in documents) > 0


@pytest.mark.parametrize("next_sentence", [True, False])
def test_tokens_that_no_pair_reaches_are_counted(next_sentence: bool) -> None:
    note, batches = first_pass([document(f"d{number}") for number in range(6)], ONE_SHARD)
    options = dataclasses.replace(OPTIONS, sequence_lengths=(8, 16), duplicates=1, next_sentence=next_sentence)
    batch, counts = build(rows_of(note, batches, ONLY), options)
    offsets = batch.column("tokens").offsets.to_pylist()
    for length in (8, 16):
        reached = set()
        for row, pairs in enumerate(batch.column(f"pairs_{length}").to_pylist()):
            for pair in pairs:
                reached.update(range(offsets[row] + pair["a_begin"], offsets[row] + pair["a_end"]))
                reached.update(range(offsets[pair["b_row"]] + pair["b_begin"], offsets[pair["b_row"]] + pair["b_end"]))
        assert counts[f"unreached/{length}/train"] == offsets[-1] - len(reached)
    assert counts["unreached/8/train"] > counts["unreached/16/train"] > 0


def test_large_vocabularies_store_wider_tokens() -> None:
    buffer = TokenBuffer(ONE_SHARD, vocab_size=100_000)
    for name in ("a", "b"):
        encoded = document(name)
        buffer.add(encoded._replace(tokens=encoded.tokens.astype(np.uint32) + 90_000))
    rows = nothing_dropped(pa.Table.from_batches([buffer.flush(0, 0, UnitNote()).tokens]))
    batch, _ = build_shard(ONLY, rows, ONE_SHARD, 0, OPTIONS, 100_000, UNKNOWN)
    assert batch.column("tokens").type.value_type == pa.uint32()
    assert min(batch.column("tokens").values.to_pylist()) > 90_000


def test_names() -> None:
    assert shard_name("train", 3, 8) == "shard-00003-of-00008.arrow"
    assert shard_name("validation", 0, 1) == "validation-shard-00000-of-00001.arrow"
