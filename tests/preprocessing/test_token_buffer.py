from __future__ import annotations

import json

from preprocessing.layout import Layout
from preprocessing.token_buffer import UnitNote
from tests.preprocessing.encoded_documents import document, first_pass, rows_of


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
