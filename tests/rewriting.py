"""Shards whose content is not what it should be, though sizes, checksums and the manifest agree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from preprocessing.schema import checksum


def read_column(path: Path, column: str) -> list[Any]:
    """A column of a shard."""
    with pa.memory_map(str(path)) as source:
        found: list[Any] = pa.ipc.open_file(source).get_batch(0).column(column).to_pylist()
    return found


def rewrite_shard(path: Path, *, compression: str | None = None, **columns: object) -> None:
    """Write a shard anew with other columns, lists of values or arrays, and let the manifest tell of the new file."""
    with pa.memory_map(str(path)) as source:
        reader = pa.ipc.open_file(source)
        schema, table = reader.schema, reader.get_batch(0)
    arrays = []
    for field, old in zip(schema, table.columns, strict=True):
        new = columns.pop(field.name, old)
        arrays.append(new if isinstance(new, pa.Array) else pa.array(new, field.type))
    assert not columns
    content = pa.BufferOutputStream()  # the old file is mapped until the new one is whole
    with pa.ipc.new_file(content, schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    path.unlink()
    path.write_bytes(content.getvalue())
    manifest = path.parent / "manifest.json"
    told = json.loads(manifest.read_text(encoding="utf-8"))
    (entry,) = (entry for entry in told["shards"] if entry["file"] == path.name)
    entry |= {"bytes": path.stat().st_size, "blake2b": checksum(path)}
    manifest.write_text(json.dumps(told), encoding="utf-8")
