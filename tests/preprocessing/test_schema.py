from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from preprocessing.schema import (
    PAIR,
    Manifest,
    ShardDirectory,
    ShardEntry,
    ShardError,
    Vocabulary,
    checksum,
    shard_schema,
    token_type,
)

LENGTHS = [16]
FILE = "shard-00000-of-00001.arrow"


def rewrite_manifest(directory: Path, **changes: object) -> None:
    path = directory / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    pair = {"duplicate": 0, "a_begin": 0, "a_end": 2, "b_row": 1, "b_begin": 0, "b_end": 1, "is_next": False}
    true = pair | {"a_end": 1, "b_row": 0, "b_begin": 1, "b_end": 3, "is_next": True}
    rows = [
        {"doc_id": "a", "source": "books", "title": None, "tokens": [5, 6, 7], "sentence_ends": [1, 3]}
        | {"pairs_16": [pair, true]},
        {"doc_id": "b", "source": "books", "title": "B", "tokens": [8], "sentence_ends": [1], "pairs_16": []},
    ]
    schema = shard_schema(10, LENGTHS)
    with pa.OSFile(str(tmp_path / FILE), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_pylist(rows, schema=schema))
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "vocab.txt").write_text("[PAD]\n")
    file = tmp_path / FILE
    entry = ShardEntry(FILE, "train", 2, 4, {"16": 2}, file.stat().st_size, checksum(file))
    vocabulary = Vocabulary(10, checksum(tmp_path / "tokenizer" / "vocab.txt"), lowercase=True)
    (tmp_path / "manifest.json").write_text(Manifest(1, LENGTHS, vocabulary, [entry]).to_json())
    return tmp_path


def test_a_shard_reads_as_it_was_written(directory: Path) -> None:
    opened = ShardDirectory(directory)
    opened.verify()
    (entry,) = opened.manifest.split("train")
    assert opened.manifest.split("validation") == []
    assert opened.manifest.pairs("train", 16) == 2
    shard = opened.shard(entry)
    assert shard.tokens.dtype == np.uint16
    assert shard.document(0).tolist() == [5, 6, 7]
    assert shard.document(1).tolist() == [8]
    assert shard.table.column("sentence_ends").to_pylist()[0] == [1, 3]
    pairs = shard.pairs(16)
    assert len(pairs) == 2
    assert pairs.row.tolist() == [0, 0]
    assert pairs.b_row.tolist() == [1, 0]
    assert pairs.is_next.tolist() == [False, True]
    assert pairs.b_end.dtype == np.int32


def test_a_manifest_survives_json(directory: Path) -> None:
    text = (directory / "manifest.json").read_text()
    assert Manifest.from_json(text).to_json() == text


def test_token_types() -> None:
    assert token_type(1 << 16) == pa.uint16()
    assert token_type((1 << 16) + 1) == pa.uint32()
    assert [field.nullable for field in PAIR] == [False] * 7


def entry_of(directory: Path) -> dict[str, object]:
    (entry,) = json.loads((directory / "manifest.json").read_text())["shards"]
    return dict(entry)


def cut_the_shard(directory: Path) -> None:
    (directory / FILE).write_bytes((directory / FILE).read_bytes()[:-8])


def damage_the_shard(directory: Path) -> None:
    content = bytearray((directory / FILE).read_bytes())
    content[-1] ^= 1
    (directory / FILE).write_bytes(content)


BREAKAGES: list[tuple[Callable[[Path], object], str]] = [
    (lambda d: (d / "manifest.json").unlink(), "no manifest.json"),
    (lambda d: (d / "manifest.json").write_text("{"), "not a shard manifest"),
    (lambda d: rewrite_manifest(d, format_version=99), "format version 99"),
    (lambda d: rewrite_manifest(d, vocabulary={}), "not a shard manifest"),
    (lambda d: rewrite_manifest(d, sequence_lengths=[16, 32]), "other sequence lengths"),
    (lambda d: rewrite_manifest(d, seed="x"), "not a shard manifest"),
    (lambda d: rewrite_manifest(d, seed=float("inf")), "not a shard manifest"),
    (lambda d: rewrite_manifest(d, shards=[entry_of(d) | {"pairs": 3}]), "not a shard manifest"),
    (lambda d: rewrite_manifest(d, shards=[entry_of(d) | {"bytes": "12"}]), "counts of .* are not whole numbers"),
    (
        lambda d: rewrite_manifest(d, vocabulary={"size": "9", "blake2b": "", "lowercase": True}),
        "its vocabulary is not",
    ),
    (lambda d: (d / "manifest.json").write_bytes(b'{"seed": "\xff"}'), "not a shard manifest"),
    (lambda d: (d / "manifest.json").write_text("[" * 100_000), "not a shard manifest"),
    (lambda d: (d / FILE).unlink(), "is not there"),
    (cut_the_shard, "bytes where the manifest says"),
    (lambda d: (d / "tokenizer" / "vocab.txt").write_text("[UNK]\n"), "not the vocabulary"),
    (lambda d: (d / "tokenizer" / "vocab.txt").unlink(), "vocabulary is missing"),
]


@pytest.mark.parametrize(("breakage", "message"), BREAKAGES)
def test_a_broken_directory_is_refused(directory: Path, breakage: Callable[[Path], object], message: str) -> None:
    breakage(directory)
    with pytest.raises(ShardError, match=message):
        ShardDirectory(directory)


def test_a_damaged_shard_is_found(directory: Path) -> None:
    damage_the_shard(directory)
    opened = ShardDirectory(directory)
    with pytest.raises(ShardError, match="checksum differs"):
        opened.verify()
    with pytest.raises(ShardError, match="not a readable Arrow file"):
        opened.shard(opened.manifest.shards[0])


def test_a_name_that_leaves_the_directory_is_refused(directory: Path) -> None:
    entry = json.loads((directory / "manifest.json").read_text())["shards"][0]
    rewrite_manifest(directory, shards=[entry | {"file": "../" + FILE}])
    with pytest.raises(ShardError, match="not a plain file name"):
        ShardDirectory(directory)


def test_a_shard_that_differs_from_its_entry_is_refused(directory: Path) -> None:
    entry = json.loads((directory / "manifest.json").read_text())["shards"][0]
    rewrite_manifest(directory, shards=[entry | {"rows": 3}])
    opened = ShardDirectory(directory)
    with pytest.raises(ShardError, match="rows and tokens where the manifest says"):
        opened.shard(opened.manifest.shards[0])


def test_no_directory_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ShardError, match="beam run"):
        ShardDirectory(tmp_path / "none")


def test_no_damage_of_a_shard_that_nobody_verified_is_more_than_an_error(directory: Path) -> None:
    """Arrow has several kinds of errors for a header that lies, and finds some of it only where it is asked to."""
    opened = ShardDirectory(directory)
    whole = (directory / FILE).read_bytes()
    for at in range(0, len(whole), 3):
        (directory / FILE).write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        with contextlib.suppress(ShardError):
            opened.shard(opened.manifest.shards[0]).pairs(16)
