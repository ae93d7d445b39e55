from __future__ import annotations

import dataclasses
import random
import tracemalloc
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from preprocessing import shards
from preprocessing.layout import Layout, Place, ShardingError
from preprocessing.nsp import FIELDS, draw_pairs, random_draws
from preprocessing.schema import shard_schema
from preprocessing.shards import PairOptions, Rows, build_shard, shard_sentences, take_rows
from preprocessing.token_buffer import EncodedDocument, TokenBuffer, UnitNote
from tests.preprocessing.encoded_documents import ONE_SHARD, ONLY, UNKNOWN, VOCABULARY, document, first_pass, rows_of

BEGINS_WORD = np.arange(VOCABULARY) % 3 > 0
OPTIONS = PairOptions((16, 32), duplicates=2, short_sequence_probability=0.1, negatives="uniform")


def nothing_dropped(table: pa.Table) -> Rows:
    return Rows(table, np.zeros(len(table), np.uint8), np.empty((0, 3), np.int64))


def build(table: pa.Table, options: PairOptions = OPTIONS) -> tuple[pa.RecordBatch, Counter[str]]:
    return build_shard(ONLY, nothing_dropped(table), ONE_SHARD, 0, options, BEGINS_WORD, UNKNOWN)


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


TOO_MANY_BYTES = r"titles of 2,048 documents have 2\^31 bytes or more: use a greater"


def two_gigabytes_of(name: str) -> pa.Table:
    """2,048 rows that are views of one, of which a column has a megabyte."""
    note, batches = first_pass([document("d")], ONE_SHARD)
    one = rows_of(note, batches, ONLY)
    one = one.set_column(one.schema.get_field_index(name), name, pa.array(["x" * (1 << 20)]))
    return pa.concat_tables([one] * (1 << 11))


@pytest.mark.parametrize("name", ["doc_id", "title"])
def test_more_of_ids_or_titles_than_arrow_can_index_is_told(name: str) -> None:
    table = two_gigabytes_of(name)
    with pytest.raises(ShardingError, match=TOO_MANY_BYTES):
        take_rows(table, np.arange(len(table)))


def test_more_of_ids_than_arrow_can_index_is_told_before_they_are_put_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "AT_ONCE", 8)
    monkeypatch.setattr(Layout, "place", lambda *_: Place(0, ONLY, ""))  # to hash two gigabytes takes a while
    with pytest.raises(ShardingError, match=TOO_MANY_BYTES):
        build(two_gigabytes_of("doc_id"))


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


@pytest.mark.parametrize("next_sentence", [True, False])
def test_a_shard_is_the_same_however_many_documents_are_at_work_at_once(
    next_sentence: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    note, batches = first_pass([document(f"d{number}") for number in range(9)], ONE_SHARD, batches=2)
    options = dataclasses.replace(OPTIONS, next_sentence=next_sentence)
    made = set()
    for at_once in (1, 5, 1 << 16):
        monkeypatch.setattr(shards, "AT_ONCE", at_once)
        batch, counts = build(rows_of(note, batches, ONLY), options)
        made.add((serialized(batch), str(sorted(counts.items()))))
    assert len(made) == 1


def test_a_short_document_takes_hardly_more_memory_than_its_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "AT_ONCE", 1 << 8)
    options = dataclasses.replace(OPTIONS, sequence_lengths=(32,))
    peaks = []
    for count in (1000, 5000):
        note, batches = first_pass([document(f"d{number}", sentences=1) for number in range(count)], ONE_SHARD)
        rows = rows_of(note, batches, ONLY)
        tracemalloc.start()
        build(rows, options)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 300 * (5000 - 1000)  # bytes; with objects of Python for each it is 1,300


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


def of_two_sources() -> tuple[dict[str, list[EncodedDocument]], pa.Table]:
    """Documents of 3 to 6 sentences by source, and the rows of all; of wikipedia's one has no title."""
    found: dict[str, list[EncodedDocument]] = {"books": [], "wikipedia": []}
    for number, source in enumerate(["books", "wikipedia", "books", "wikipedia"]):
        one = document(f"d{number}", seed=number // 3, sentences=3 + number)
        found[source].append(one._replace(document=one.document._replace(source=source)))
    note, batches = first_pass([*found["books"], *found["wikipedia"]], ONE_SHARD)
    return found, rows_of(note, batches, ONLY)


def test_every_source_has_statistics_of_its_own() -> None:
    by_source, table = of_two_sources()
    _, counts = build(table)
    for source, documents in by_source.items():
        assert counts[f"documents/{source}"] == 2
        assert counts[f"titles/{source}"] == {"books": 2, "wikipedia": 1}[source]
        assert counts[f"sentences/{source}"] == sum(len(each.sentence_ends) for each in documents)
        assert counts[f"tokens/{source}"] == sum(len(each.tokens) for each in documents)
        assert counts[f"words/{source}"] == sum(int(BEGINS_WORD[each.tokens].sum()) for each in documents)


def test_repeated_lines_count_for_the_source_that_has_them() -> None:
    by_source, table = of_two_sources()
    row_of = {doc_id: row for row, doc_id in enumerate(table["doc_id"].to_pylist())}
    lines = np.array([[row_of["d0"], 0, 1], [row_of["d0"], 2, 3], [row_of["d1"], 1, 3]])
    rows = Rows(table, np.zeros(4, np.uint8), lines)
    batch, counts = build_shard(ONLY, rows, ONE_SHARD, 0, OPTIONS, BEGINS_WORD, UNKNOWN)
    ends, others = ([0, *by_source[source][0].sentence_ends.tolist()] for source in ("books", "wikipedia"))
    gone = {"books": ends[1] + ends[3] - ends[2], "wikipedia": others[3] - others[1]}
    for source, (count, sentences) in {"books": (2, 2), "wikipedia": (1, 2)}.items():
        told = [counts[f"repeated/{source}/{what}"] for what in ("lines", "sentences", "tokens")]
        assert told == [count, sentences, gone[source]]
    assert batch["sentence_ends"][0].as_py() == [ends[2] - ends[1]]
    assert batch["tokens"][0].as_py() == by_source["books"][0].tokens[ends[1] : ends[2]].tolist()


def test_a_shard_has_the_documents_that_the_settled_split_gives_it_and_none_that_is_dropped() -> None:
    layout = dataclasses.replace(ONE_SHARD, validation_shards=1, validation_fraction=0.9)
    documents = [document(f"d{number}") for number in range(9)]
    note, batches = first_pass(documents, ONE_SHARD)
    rows = nothing_dropped(rows_of(note, batches, ONLY))
    hashes = sorted((layout.place(f"d{number}").split_hash, f"d{number}") for number in range(9))
    rows.reasons[[doc_id == hashes[-1][1] for doc_id in rows.table["doc_id"].to_pylist()]] = 1
    for name, first, end in ((ONLY, 5, 8), ("validation-" + ONLY, 0, 5)):
        batch, _ = build_shard(name, rows, layout, hashes[5][0], OPTIONS, BEGINS_WORD, UNKNOWN)
        assert batch["doc_id"].to_pylist() == sorted(doc_id for _, doc_id in hashes[first:end])
    with pytest.raises(ShardingError, match="would hold 1 of the documents"):
        build_shard(ONLY, rows, layout, hashes[7][0], OPTIONS, BEGINS_WORD, UNKNOWN)


def test_documents_of_one_sentence_are_counted() -> None:
    part, batches = first_pass([document(f"d{number}", sentences=number) for number in (1, 2, 3)], ONE_SHARD)
    _, counts = build(rows_of(part, batches, ONLY))
    assert counts["one_sentence/books"] == 1


def test_counts_of_nothing_are_told_too() -> None:
    """The manifest has a place for them."""
    part, batches = first_pass([document(f"d{number}", sentences=1) for number in range(2)], ONE_SHARD)
    _, counts = build(rows_of(part, batches, ONLY))
    assert {name: count for name, count in counts.items() if name.startswith("next/")} == {
        "next/16/train": 0,
        "next/32/train": 0,
    }


def test_pairs_follow_from_the_seed() -> None:
    note, batches = first_pass([document(f"d{number}") for number in range(6)], ONE_SHARD)
    rows = nothing_dropped(rows_of(note, batches, ONLY))
    made = [
        build_shard(ONLY, rows, dataclasses.replace(ONE_SHARD, seed=seed), 0, OPTIONS, BEGINS_WORD, UNKNOWN)[0]
        for seed in (1, 2)
    ]
    assert made[0]["tokens"] == made[1]["tokens"]
    assert made[0]["pairs_16"] != made[1]["pairs_16"]


def test_a_single_segment_has_the_room_of_a_separator_more() -> None:
    assert OPTIONS.rule(16).max_tokens == 13
    assert dataclasses.replace(OPTIONS, next_sentence=False).rule(16).max_tokens == 14


def test_statistics_count_what_is_there() -> None:
    documents = [document(f"d{number}") for number in range(5)]
    note, batches = first_pass(documents, ONE_SHARD)
    _, counts = build(rows_of(note, batches, ONLY))
    assert counts["tokens/books"] == sum(len(d.tokens) for d in documents)
    assert counts["words/books"] == sum(int((d.tokens % 3 > 0).sum()) for d in documents)
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
    batch, _ = build_shard(ONLY, rows, ONE_SHARD, 0, OPTIONS, np.ones(100_000, bool), UNKNOWN)
    assert batch.column("tokens").type.value_type == pa.uint32()
    assert min(batch.column("tokens").values.to_pylist()) > 90_000
