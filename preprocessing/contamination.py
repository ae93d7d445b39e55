"""How much of a benchmark occurs in the corpus: the share of its texts that a model has seen; pure but for reading it.

A text of a benchmark is a line of a .txt file, a field of a .tsv file, or a string anywhere in a .json or .jsonl file.
It occurs in the corpus when 70 % of its sequences of eight words do, anywhere, in any case and with any punctuation
(the rule of PaLM, Chowdhery et al. 2022). Texts of fewer words are passed over: they occur everywhere.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from preprocessing.fingerprints import word_sequences, words_of
from preprocessing.globs import files_below
from preprocessing.schema import new_checksum
from preprocessing.sources import SourceError, unread
from preprocessing.sources.lines import parse_json
from preprocessing.status import is_dir
from preprocessing.terminal import counted
from preprocessing.text import clean

WORDS = 8
OCCURS = 0.7  # of a text's sequences
SEQUENCES = pa.schema({"sequence": pa.uint64()})
TEXTS = pa.schema({"file": pa.string(), "sequences": pa.list_(pa.uint32())})
FOUND = pa.schema({"sequence": pa.uint32()})


class Benchmark(NamedTuple):
    """The texts of a benchmark, as hashes."""

    sequences: pa.RecordBatch  # SEQUENCES: every sequence of words once, ascending
    texts: pa.RecordBatch  # TEXTS: where each text's sequences are among them

    @property
    def identity(self) -> str:
        """A checksum of all of it."""
        content = new_checksum()
        for batch in self:
            content.update(batch.serialize())
        return content.hexdigest()


def read_benchmark(folder: Path, note: Callable[[str], None]) -> Benchmark:
    """The benchmark in the files below a folder, but for hidden ones.

    Args:
        folder: the folder.
        note: told of files that are passed over.

    Raises:
        SourceError: no such folder, no text in it, or something below it that can't be searched or parsed.
        StorageError: a file or a folder can't be read.
    """
    endings = ", ".join(sorted(_READERS))
    paths = files_below(folder)
    try:
        is_there = is_dir(folder)
    except OSError as error:
        raise unread(folder, error) from error
    if not is_there:
        raise SourceError(f"{folder}: no such folder; --contamination takes one that holds a benchmark's files")
    if others := {path for path in paths if path.suffix.lower() not in _READERS}:
        note(f"{counted(len(others), 'file')} below {folder} passed over, such as {min(others)}: read are {endings}")
    names, hashes = [], []
    for path in paths:
        if path in others:
            continue
        name = path.relative_to(Path.cwd() / folder).as_posix()
        for text in sorted(set(_texts(path, name))):
            cleaned = clean(text)
            if len(words_of(cleaned)) >= WORDS:
                names.append(name)
                hashes.append(np.unique(word_sequences(cleaned, WORDS)))
    if not names:
        raise SourceError(f"{folder}: no text of {WORDS} words or more in any file that ends in {endings}")
    distinct, positions = np.unique(np.concatenate(hashes), return_inverse=True)
    offsets = np.cumsum([0, *map(len, hashes)], dtype=np.int32)
    lists = pa.ListArray.from_arrays(pa.array(offsets), pa.array(positions, pa.uint32()))
    return Benchmark(
        pa.RecordBatch.from_arrays([pa.array(distinct)], schema=SEQUENCES),
        pa.RecordBatch.from_arrays([pa.array(names), lists], schema=TEXTS),
    )


def _texts(path: Path, name: str) -> Iterator[str]:
    try:
        name.encode()  # it will be in the manifest
        yield from _READERS[path.suffix.lower()](path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise unread(path, error) from error
    except ValueError as error:
        raise SourceError(f"{path}: can't be read as {path.suffix} in UTF-8 ({error}); mend or remove it") from error


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner)


_READERS: dict[str, Callable[[str], Iterable[str]]] = {
    ".txt": lambda text: text.split("\n"),
    ".tsv": lambda text: re.split(r"[\n\t]", text),
    ".json": lambda text: _strings(parse_json(text)),
    ".jsonl": lambda text: _strings([parse_json(line) for line in text.split("\n") if line.strip()]),
}


class Search:
    """Looks for a benchmark's sequences in documents.

    Attributes:
        found: bool [sequences] whether each has been met.
    """

    def __init__(self, sequences: pa.RecordBatch):
        self._wanted: np.ndarray = sequences.column("sequence").to_numpy()
        self.found = np.zeros(len(self._wanted), bool)

    def look_in(self, text: str) -> None:
        """Look in one document's cleaned text."""
        met = word_sequences(text, WORDS)
        at = np.minimum(np.searchsorted(self._wanted, met), len(self._wanted) - 1)
        self.found[at[self._wanted[at] == met]] = True

    def positions(self) -> pa.RecordBatch:
        """FOUND: what has been met."""
        return pa.RecordBatch.from_arrays([pa.array(np.flatnonzero(self.found), pa.uint32())], schema=FOUND)


def shares(texts: pa.RecordBatch, found: Iterable[pa.RecordBatch]) -> dict[str, dict[str, Any]]:
    """For each file of a benchmark its number of texts, how many occur in the corpus, and their share.

    Args:
        texts: TEXTS.
        found: FOUND, of all parts of the corpus.
    """
    column = texts.column("sequences")
    positions, offsets = column.values.to_numpy(), column.offsets.to_numpy()
    met = np.zeros(int(positions.max()) + 1, bool)
    for part in found:
        met[part.column("sequence").to_numpy()] = True
    occurs = np.add.reduceat(met[positions], offsets[:-1], dtype=np.int64) >= OCCURS * np.diff(offsets)
    files = texts.column("file").to_pylist()
    counts, seen = Counter(files), Counter(name for name, is_there in zip(files, occurs, strict=True) if is_there)
    return {
        name: {"texts": count, "in_corpus": seen[name], "share": seen[name] / count}
        for name, count in sorted(counts.items())
    }
