from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from preprocessing.layout import (
    Edge,
    Layout,
    ShardingError,
    Span,
    Totals,
    check_shard_size,
    row_key,
    settle,
    shard_name,
    split_of,
)
from tests.preprocessing.encoded_documents import ONE_SHARD, ONLY, document, first_pass


def test_places_are_fixed_for_ever_and_shards_named_by_split() -> None:
    place = Layout(seed=1, train_shards=3, validation_shards=1, validation_fraction=0.01).place("enwiki/12")
    assert place == (12941659061438186979, "shard-00001-of-00003.arrow", "validation-shard-00000-of-00001.arrow")
    assert place.shard(0) == place.train
    assert place.shard(place.split_hash + 1) == place.validation
    assert Layout(seed=2, train_shards=3, validation_shards=1, validation_fraction=0.01).place("enwiki/12") != place
    assert [split_of(place.train), split_of(place.validation)] == ["train", "validation"]


def test_names() -> None:
    assert shard_name("train", 3, 8) == "shard-00003-of-00008.arrow"
    assert shard_name("validation", 0, 1) == "validation-shard-00000-of-00001.arrow"


def test_shares_of_shards_and_of_the_validation_split_are_even() -> None:
    layout = Layout(seed=3, train_shards=4, validation_shards=2, validation_fraction=0.1)
    places = [layout.place(f"doc/{number}").shard(layout.threshold) for number in range(20_000)]
    counts = Counter(places)
    assert set(counts) == {*layout.names("train"), *layout.names("validation")}
    assert all(abs(counts[name] - 4500) < 4 * 60 for name in layout.names("train"))
    assert all(abs(counts[name] - 1000) < 4 * 31 for name in layout.names("validation"))


def test_keys_of_rows_are_distinct_and_ascend_up_to_the_largest() -> None:
    """What is dropped is found by them."""
    rows, batches = (1 << 24) - 1, (1 << 16) - 1
    places = [(u, b, r) for u in (0, 1, 100_000) for b in (0, 1, batches) for r in (0, 1, 1 << 16, rows)]
    keys = [row_key(*place) for place in places]
    assert keys == sorted(set(keys))
    for beyond in ((0, 1 << 16, 0), (0, 0, 1 << 24)):  # which would be another row's
        with pytest.raises(AssertionError):
            row_key(*beyond)
    assert Span(2, 3, begin=5, end=8, tokens=9).keys().tolist() == [row_key(2, 3, row) for row in (5, 6, 7)]


def known_of(layout: Layout, count: int) -> tuple[Totals, list[Edge]]:
    """The totals of some documents, and the edges; every document is one while there are no more than six."""
    note, (batch,) = first_pass([document(f"d{number}") for number in range(count)], layout)
    rows = [(layout.place(doc_id).split_hash, doc_id, row) for row, doc_id in enumerate(batch["doc_id"].to_pylist())]
    edges = [Edge(h, d, Span(0, 0, row, row + 1, len(batch["tokens"][row]))) for h, d, row in sorted(rows)]
    return note.totals, edges[:4] + edges[4:][-2:]


def test_the_totals_of_units_add_up() -> None:
    one, other = (Totals(Counter(a=n), Counter(a=10 * n), Counter({"read": 100 * n})) for n in (1, 2))
    assert one.add(other) == Totals(Counter(a=3), Counter(a=30), Counter({"read": 300}))


@pytest.mark.parametrize("fraction", [1e-30, 0.001, 0.5, 0.98])
@pytest.mark.parametrize("count", [4, 5, 9])
def test_either_split_has_two_documents_of_four(count: int, fraction: float) -> None:
    for seed in range(10):
        layout = Layout(seed, train_shards=1, validation_shards=1, validation_fraction=fraction)
        totals, edges = known_of(layout, count)
        tokens = totals.tokens.total()
        settlement = settle(layout, totals, edges)
        ways = [
            [layout.place(edge.doc_id).shard(t) for t in (layout.threshold, settlement.threshold)] for edge in edges
        ]
        moved = [(new, edge.span) for (old, new), edge in zip(ways, edges, strict=True) if old != new]
        assert [(shard, span) for shard, spans in settlement.moved.items() for span in spans] == moved
        assert totals.tokens.total() == tokens
        held_out = sum(layout.place(f"d{n}").split_hash < settlement.threshold for n in range(count))
        assert 2 <= held_out <= count - 2
        assert held_out == 2 or fraction > 0.001, "no more than asked for, but for the two"
        assert totals.rows["validation-" + ONLY] == held_out
        assert totals.rows[ONLY] == count - held_out


def test_fewer_than_four_documents_are_all_for_training() -> None:
    for seed in range(10):
        layout = Layout(seed, train_shards=1, validation_shards=1, validation_fraction=0.5)
        totals, edges = known_of(layout, 3)
        assert settle(layout, totals, edges).threshold == 0
        assert totals.rows[ONLY] == 3


def test_two_documents_are_enough() -> None:
    totals, edges = known_of(ONE_SHARD, 2)
    assert settle(ONE_SHARD, totals, edges).threshold == 0
    assert totals.rows[ONLY] == 2


def test_where_nothing_is_to_be_held_out_nothing_is() -> None:
    totals, edges = known_of(ONE_SHARD, 9)
    settlement = settle(ONE_SHARD, totals, edges)
    assert (settlement.threshold, settlement.moved) == (0, {})
    assert dict(totals.rows) == {ONLY: 9}


def test_a_corpus_that_cannot_be_sharded_is_refused_with_the_reason() -> None:
    with pytest.raises(ShardingError, match="no document with text"):
        settle(ONE_SHARD, Totals(), [])
    counts = Counter({"skipped/books/too_short": 2, "kept/books": 9, "dropped/books/exact_copies": 1000})
    with pytest.raises(ShardingError, match=r"no document with text \(passed over: 1,000 exact_copies, 2 too_short\)"):
        settle(ONE_SHARD, Totals(counts=counts), [])
    with pytest.raises(ShardingError, match=r"a single document, 'd0',.*give more inputs; a file holds several"):
        settle(ONE_SHARD, *known_of(ONE_SHARD, 1))
    many = dataclasses.replace(ONE_SHARD, train_shards=8)
    with pytest.raises(ShardingError, match=r"would hold [01] of the documents.*fewer shards, as by --num-shards 1$"):
        settle(many, *known_of(many, 9))
    thin = Layout(seed=1, train_shards=1, validation_shards=8, validation_fraction=0.5)
    with pytest.raises(ShardingError, match=r"validation-\S+ would hold [01] of the documents.*--validation-fraction"):
        settle(thin, *known_of(thin, 9))
    with pytest.raises(ShardingError, match=r"would hold 1 of the documents"):
        check_shard_size(ONLY, 1, 10)
    with pytest.raises(ShardingError, match=r"2,147,483,648 tokens.*greater --num-shards"):
        check_shard_size(ONLY, 10, 2**31)
    check_shard_size(ONLY, 2, 2**31 - 1)
