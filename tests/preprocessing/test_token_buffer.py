from __future__ import annotations

import json

from preprocessing.layout import Layout
from preprocessing.token_buffer import TokenBuffer, UnitNote
from tests.preprocessing.encoded_documents import ONE_SHARD, VOCABULARY, document, first_pass, rows_of


def test_the_first_pass_leaves_rows_by_shard_and_tells_where() -> None:
    layout = Layout(seed=1, train_shards=3, validation_shards=1, validation_fraction=0.2)
    documents = [document(f"d{number}") for number in range(40)]
    note, batches = first_pass(documents, layout, batches=2)
    assert sum(note.totals.rows.values()) == 40
    for shard, spans in note.spans.items():
        assert [span.batch for span in spans] == [0, 1], "a batch has a shard's rows beside each other"
        rows = rows_of(note, batches, shard)
        assert len(rows) == note.totals.rows[shard]
        assert rows["title"].to_pylist() == [doc_id.upper() for doc_id in rows["doc_id"].to_pylist()]
        assert all(layout.place(d).shard(layout.threshold) == shard for d in rows["doc_id"].to_pylist())
        assert sum(len(tokens) for tokens in rows["tokens"].to_pylist()) == note.totals.tokens[shard]
    assert UnitNote.from_json(json.loads(json.dumps(note.to_json()))) == note


def test_a_buffer_tells_how_many_tokens_wait() -> None:
    """So that memory does not grow with the input."""
    buffer, one, other = TokenBuffer(ONE_SHARD, VOCABULARY), document("a"), document("b")
    buffer.add(one)
    buffer.add(other)
    assert buffer.tokens == len(one.tokens) + len(other.tokens)
    assert buffer.flush(0, 0, UnitNote()).tokens.num_rows == 2
    assert buffer.tokens == 0
    buffer.add(one)
    assert buffer.flush(0, 1, UnitNote()).tokens.num_rows == 1


def test_documents_of_one_id_and_revision_have_an_order_where_anything_else_of_them_differs() -> None:
    """Or the order of arrival would decide which of them stays."""
    buffer, one = TokenBuffer(ONE_SHARD, VOCABULARY), document("a")
    for changes in ({}, {"source": "wikipedia"}, {"title": "other"}):
        buffer.add(one._replace(document=one.document._replace(**changes)))
    buffer.add(one._replace(fingerprint=one.fingerprint._replace(text=1)))
    records = buffer.flush(0, 0, UnitNote()).documents
    assert len(set(records["content"].to_pylist())) == 4
