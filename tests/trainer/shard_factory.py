"""Shard directories small enough for a test, written with nothing but the data contract."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from preprocessing.schema import MANIFEST, Manifest, ShardEntry, Split, Vocabulary, checksum, shard_schema
from preprocessing.tokenization import tokenizer_files

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PAD, UNK, CLS, SEP, MASK = range(5)


def save_tokenizer(vocabulary: list[str], lowercase: bool, directory: Path) -> None:
    """Write a tokenizer's files into a directory, which is made if need be."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in tokenizer_files(vocabulary, lowercase).items():
        (directory / name).write_bytes(content)


def write_shards(
    directory: Path,
    *,
    vocab_size: int = 64,
    sequence_lengths: tuple[int, ...] = (32,),
    train: tuple[int, ...] = (7, 5, 6),
    validation: tuple[int, ...] = (4,),
    pairs_per_row: int = 3,
    seed: int = 0,
) -> Path:
    """Write a complete shard directory of random words and pairs.

    Args:
        directory: new.
        vocab_size: entries of the vocabulary, the special ones first.
        sequence_lengths: to draw pairs for.
        train: documents of each training shard.
        validation: documents of each validation shard.
        pairs_per_row: of each document and sequence length.
        seed: of the content.
    """
    directory.mkdir(parents=True)
    vocabulary = [*SPECIAL, *(f"word{i}" for i in range(vocab_size - len(SPECIAL)))]
    save_tokenizer(vocabulary, True, directory / "tokenizer")
    rng = np.random.default_rng(seed)
    entries = [
        _write_shard(directory, f"{prefix}shard-{i:05d}-of-{len(rows):05d}.arrow", split, n, rng, vocab_size,
                     sequence_lengths, pairs_per_row)
        for split, prefix, rows in (("train", "", train), ("validation", "validation-", validation))
        for i, n in enumerate(rows)
    ]  # fmt: skip
    manifest = Manifest(
        seed=seed,
        sequence_lengths=list(sequence_lengths),
        vocabulary=Vocabulary(vocab_size, checksum(directory / "tokenizer" / "vocab.txt"), lowercase=True),
        shards=entries,
    )
    (directory / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    return directory


def _write_shard(
    directory: Path, name: str, split: Split, rows: int, rng: np.random.Generator, vocab_size: int,
    sequence_lengths: tuple[int, ...], pairs_per_row: int,
) -> ShardEntry:  # fmt: skip
    documents = [rng.integers(len(SPECIAL), vocab_size, size=rng.integers(40, 80)).tolist() for _ in range(rows)]
    columns = {
        "doc_id": [f"{name}/{row}" for row in range(rows)],
        "source": ["test"] * rows,
        "title": [None] * rows,
        "tokens": documents,
        "sentence_ends": [[len(document) // 2, len(document)] for document in documents],
        **{
            f"pairs_{length}": [
                [_pair(row, documents, length, i, rng) for i in range(pairs_per_row)] for row in range(rows)
            ]
            for length in sequence_lengths
        },
    }
    schema = shard_schema(vocab_size, sequence_lengths)
    batch = pa.RecordBatch.from_arrays([pa.array(columns[f.name], f.type) for f in schema], schema=schema)
    with pa.OSFile(str(directory / name), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(batch)
    return ShardEntry(
        file=name,
        split=split,
        rows=rows,
        tokens=sum(map(len, documents)),
        pairs={str(length): rows * pairs_per_row for length in sequence_lengths},
        bytes=(directory / name).stat().st_size,
        blake2b=checksum(directory / name),
    )


def _pair(
    row: int, documents: list[list[int]], length: int, duplicate: int, rng: np.random.Generator
) -> dict[str, object]:
    """Two spans that fill at most ``length`` with their special tokens; the second is the first's sequel or not."""
    longest = (length - 3) // 2
    a_begin = int(rng.integers(0, 10))
    a_end = min(len(documents[row]), a_begin + int(rng.integers(3, longest + 1)))
    is_next = bool(rng.integers(2))
    b_row = row if is_next else int(rng.integers(len(documents)))
    b_begin = a_end if is_next else int(rng.integers(0, 10))
    b_end = min(len(documents[b_row]), b_begin + int(rng.integers(3, longest + 1)))
    return {"duplicate": duplicate, "a_begin": a_begin, "a_end": a_end, "b_row": b_row, "b_begin": b_begin,
            "b_end": b_end, "is_next": is_next}  # fmt: skip
