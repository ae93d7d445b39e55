"""The data contract: what a shard directory holds, and how to open one safely.

    shards/
        shard-00000-of-00008.arrow               training documents
        validation-shard-00000-of-00001.arrow    held-out documents
        tokenizer/                               vocab.txt, tokenizer.json, tokenizer_config.json
        manifest.json                            written last: without it there are no shards

A row of a shard is a document. Its tokens are stored once; a pair (a training example) is seven small numbers that
point into them, so drawing ten times as many pairs does not store the corpus ten times. Every shard is one
uncompressed Arrow IPC record batch, which maps into memory as it lies: opening it reads its header and where the
documents begin.

This module needs pyarrow and numpy only, so that a GPU node needs neither Beam nor a tokenizer to train.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from preprocessing.status import exists, is_dir, is_file
from preprocessing.storage_errors import is_no_file, reason, unavailable

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer"
_RUN = "config.toml"  # the trainer's, in a directory that has a manifest too
UINT16_VOCABULARY = 1 << 16  # vocabularies up to this size store a token in two bytes
SPECIAL_TOKENS_OF_A_PAIR = 3  # [CLS] a [SEP] b [SEP]
SPECIAL_TOKENS_OF_A_SINGLE = 2  # [CLS] a [SEP]
MIN_SEQUENCE_LENGTH, MAX_SEQUENCE_LENGTH = 8, 65_536
_MAKE = "make the shards again with --overwrite"
_AGAIN = f"copy it again, or {_MAKE}"  # what is missing or damaged

Split = Literal["train", "validation"]

PAIR = pa.struct(
    [
        pa.field("duplicate", pa.int16(), nullable=False),  # which pass over the document drew it
        pa.field("a_begin", pa.int32(), nullable=False),  # [a_begin, a_end) of this row's tokens is segment A
        pa.field("a_end", pa.int32(), nullable=False),
        pa.field("b_row", pa.int32(), nullable=False),  # row of this shard that segment B is taken from
        pa.field("b_begin", pa.int32(), nullable=False),  # b_begin == b_end: a single segment, no B
        pa.field("b_end", pa.int32(), nullable=False),
        pa.field("is_next", pa.bool_(), nullable=False),  # B really followed A
    ]
)


class ShardError(ValueError):
    """A shard directory that is missing, incomplete, damaged or of another version. The message names the file."""


def token_type(vocab_size: int) -> pa.DataType:
    """The smallest unsigned type that holds every id of a vocabulary: uint16 up to 65,536 entries, else uint32."""
    return pa.uint16() if vocab_size <= UINT16_VOCABULARY else pa.uint32()


def pairs_column(sequence_length: int) -> str:
    """The column that holds the pairs drawn for one sequence length."""
    return f"pairs_{sequence_length}"


def shard_schema(vocab_size: int, sequence_lengths: Sequence[int]) -> pa.Schema:
    """The Arrow schema of a shard for a vocabulary size and the sequence lengths that pairs are drawn for."""
    fields = [
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("title", pa.string(), nullable=True),
        pa.field("tokens", _list_of(token_type(vocab_size)), nullable=False),
        pa.field("sentence_ends", _list_of(pa.int32()), nullable=False),
    ]
    fields += [pa.field(pairs_column(length), _list_of(PAIR), nullable=False) for length in sequence_lengths]
    return pa.schema(fields, metadata={"format": "bert-pretraining-shard", "version": str(FORMAT_VERSION)})


def _list_of(value_type: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("item", value_type, nullable=False))


def lists(arrays: Sequence[np.ndarray], value_type: pa.DataType) -> pa.ListArray:
    """Arrays as one list column, whose values can't be null."""
    offsets = np.zeros(len(arrays) + 1, dtype=np.int32)
    np.cumsum([len(array) for array in arrays], out=offsets[1:])
    return list_column(offsets, pa.array(np.concatenate(arrays), type=value_type))


def list_column(offsets: np.ndarray, values: pa.Array) -> pa.ListArray:
    """Row n holds values[offsets[n] : offsets[n + 1]]."""
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, type=_list_of(values.type))


def new_checksum(content: bytes = b"") -> hashlib.blake2b:
    """BLAKE2b (128 bit), for who has a file's bytes piece by piece; its ``hexdigest()`` is their checksum."""
    return hashlib.blake2b(content, digest_size=16)


def checksum(path: Path) -> str:
    """The checksum of a file's bytes, as hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, new_checksum).hexdigest()


def checksum_of(content: bytes) -> str:
    """The checksum of a file that holds these bytes."""
    return new_checksum(content).hexdigest()


@dataclass(frozen=True)
class ShardEntry:
    """One shard as the manifest lists it."""

    file: str
    split: Split
    rows: int
    tokens: int
    pairs: dict[str, int]  # sequence length -> number of pairs
    bytes: int
    blake2b: str


@dataclass(frozen=True)
class Vocabulary:
    """Which vocabulary made the tokens."""

    size: int
    blake2b: str  # of tokenizer/vocab.txt
    lowercase: bool


@dataclass(frozen=True)
class Manifest:
    """The commit record of a preprocessing job."""

    seed: int
    sequence_lengths: list[int]
    vocabulary: Vocabulary
    shards: list[ShardEntry]
    options: dict[str, Any] = field(default_factory=dict)
    statistics: dict[str, Any] = field(default_factory=dict)
    created_by: dict[str, str] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    def to_json(self) -> str:
        """The manifest as indented JSON with sorted keys, so that equal manifests are equal bytes."""
        return json.dumps(dataclasses.asdict(self), indent=2, sort_keys=True, ensure_ascii=False) + "\n"

    @staticmethod
    def from_json(text: str | bytes, where: str = MANIFEST) -> Manifest:
        """Parse a manifest, given as text or in UTF-8.

        Raises:
            ShardError: not JSON, another format version, a missing or wrongly typed entry, or a shard's name that
                is not a plain file name. ``where`` names the file in the message.
        """
        try:
            return _read_manifest(json.loads(text), where)
        except ShardError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ShardError(f"{where}: not a shard manifest ({error}); {_AGAIN}") from error

    def split(self, split: Split) -> list[ShardEntry]:
        """The shards of one split, in the manifest's order."""
        return [entry for entry in self.shards if entry.split == split]

    def pairs(self, split: Split, sequence_length: int) -> int:
        """How many pairs a split holds for a sequence length."""
        return sum(entry.pairs[str(sequence_length)] for entry in self.split(split))

    @property
    def next_sentence(self) -> bool:
        """Whether samples have second segments; false is make_shards' --no-nsp."""
        pairs = self.options.get("pairs")
        return not isinstance(pairs, dict) or pairs.get("next_sentence") is not False

    @property
    def duplicates(self) -> int:
        """How often an epoch of the pairs reads each text; make_shards' --duplicates."""
        pairs = self.options.get("pairs")
        found = pairs.get("duplicates") if isinstance(pairs, dict) else None
        return found if _is_count(found) and found else 1


def _read_manifest(raw: dict[str, Any], where: str) -> Manifest:
    """Manifest.from_json of what the JSON holds; of types that are other than they should be Python complains too."""
    version = raw["format_version"]
    if version is True or version != FORMAT_VERSION:
        raise ShardError(f"{where}: format version {version}, this program reads {FORMAT_VERSION}; {_MAKE}")
    lengths, shards = raw["sequence_lengths"], raw["shards"]
    if not isinstance(lengths, list) or not all(map(_is_count, lengths)) or not isinstance(shards, list):
        raise ShardError(f"{where}: its sequence lengths are not whole numbers, or its shards are no list; {_AGAIN}")
    if len(set(lengths)) < len(lengths):
        raise ShardError(f"{where}: it has a sequence length twice; {_AGAIN}")
    manifest = Manifest(
        seed=int(raw["seed"]),
        sequence_lengths=lengths,
        vocabulary=Vocabulary(**raw["vocabulary"]),
        shards=[ShardEntry(**entry) for entry in shards],
        options=dict(raw["options"]),
        statistics=dict(raw["statistics"]),
        created_by=dict(raw["created_by"]),
    )
    size, name, lowercase = dataclasses.astuple(manifest.vocabulary)
    if not _is_count(size) or not size or not isinstance(name, str) or not isinstance(lowercase, bool):
        raise ShardError(f"{where}: its vocabulary is not a size, a checksum and a yes or no; {_AGAIN}")
    names = set()
    for entry in manifest.shards:
        if not _is_file_name(entry.file):
            raise ShardError(f"{where}: the shard name {entry.file!r} is not a plain file name")
        if entry.file in names:  # whose samples an epoch, or training and validation, would have twice
            raise ShardError(f"{where}: it has {entry.file} twice; {_AGAIN}")
        names.add(entry.file)
        if entry.split not in ("train", "validation"):
            raise ShardError(f"{where}: {entry.file} belongs to an unknown split {entry.split!r}")
        counts = [entry.rows, entry.tokens, *entry.pairs.values()]
        if not all(map(_is_count, counts)) or not _is_count(entry.bytes, 1 << 63):
            raise ShardError(f"{where}: the counts of {entry.file} are not whole numbers of a shard's size; {_AGAIN}")
        if entry.pairs.keys() != set(map(str, lengths)):
            raise ShardError(f"{where}: {entry.file} has pairs for other sequence lengths than the directory")
    return manifest


def _is_count(value: object, end: int = 1 << 31) -> bool:
    """Whether so many things may lie in a shard, whose offsets are int32; true and false are no numbers."""
    return type(value) is int and 0 <= value < end


def _is_file_name(name: object) -> bool:
    """Whether a file of a directory may have this name: nothing that leads elsewhere or that no file system takes."""
    return isinstance(name, str) and name.isprintable() and Path(name).name == name and name not in {"", ".."}


@dataclass(frozen=True)
class Pairs:
    """Some pairs of a shard, column by column; all arrays have shape [pairs]."""

    row: np.ndarray  # int64: the document that segment A is taken from
    a_begin: np.ndarray  # int32, as in PAIR
    a_end: np.ndarray
    b_row: np.ndarray
    b_begin: np.ndarray
    b_end: np.ndarray
    is_next: np.ndarray  # bool

    def __len__(self) -> int:
        return len(self.row)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of the samples that they make, special ones too, int64 [n]; of damaged pairs some number or other."""
        a, b = (end.astype(np.int64) - begin for begin, end in ((self.a_begin, self.a_end), (self.b_begin, self.b_end)))
        lengths: np.ndarray = a + b + SPECIAL_TOKENS_OF_A_SINGLE + (b > 0)
        return lengths


_PairColumns = tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]


class Shard:
    """One memory-mapped shard. Arrays are views of the file; nothing is read before it is touched.

    Attributes:
        path: the file.
        table: the Arrow record batch.
        tokens: uint16 or uint32 [tokens], the documents one after the other.
        token_offsets: int32 [rows + 1], where each document begins in ``tokens``.
    """

    def __init__(self, path: Path, vocab_size: int, sequence_lengths: Sequence[int]):
        """Map a shard.

        Raises:
            ShardError: the file is missing, not an Arrow file of one batch, damaged, compressed, has another schema, or
                lacks values; or this user may not read it.
            UnavailableError: it can't be opened or mapped now.
        """
        self.path = path
        with reading(path):
            mapped = pa.memory_map(str(path))
        try:
            with mapped as source:
                reader = pa.ipc.open_file(source)
                if reader.num_record_batches != 1:
                    raise ShardError(f"{path}: {reader.num_record_batches} record batches where one is expected")
                if not reader.schema.equals(shard_schema(vocab_size, sequence_lengths)):
                    raise ShardError(f"{path}: its columns are not those of a shard of this version; {_MAKE}")
                self.table = reader.get_batch(0)
                self.table.validate()  # reads no values, but keeps views within the file
                if not _lies_within(source, self.table):
                    raise ShardError(f"{path}: compressed, so that it can't be mapped; {_MAKE}")
        except (pa.ArrowException, OSError) as error:
            raise ShardError(f"{path}: not a readable Arrow file ({error}); {_AGAIN}") from error
        for column, kind in zip(self.table.columns, self.table.schema, strict=True):
            if not kind.nullable and any(part.null_count for part in _parts(column)):
                raise ShardError(f"{path}: its column {kind.name} lacks values; {_AGAIN}")
        column = self.table.column("tokens")
        self.tokens: np.ndarray = column.values.to_numpy(zero_copy_only=True)
        self.token_offsets = self._offsets("tokens")
        self._pairs: dict[int, _PairColumns] = {}

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def document(self, row: int) -> np.ndarray:
        """The tokens of one document, [tokens of the document]."""
        return self.tokens[self.token_offsets[row] : self.token_offsets[row + 1]]

    def text(self, column: str) -> pa.StringArray:
        """A column of strings, [rows], after a look at every byte of it.

        Raises:
            ShardError: they are no UTF-8.
        """
        strings = self.table.column(column)
        try:
            strings.validate(full=True)
        except pa.ArrowInvalid as error:
            raise ShardError(f"{self.path}: its column {column} is not text ({error}); {_AGAIN}") from error
        return strings

    def pairs(self, sequence_length: int, indices: np.ndarray | None = None) -> Pairs:
        """The pairs drawn for a sequence length: all of them in row order, or those at ``indices`` ([n] integers).

        Only the pages that hold the asked pairs are read.
        """
        offsets, bits, columns = self._pair_columns(sequence_length)
        wanted = np.arange(self.count_pairs(sequence_length)) if indices is None else np.asarray(indices)
        rows = np.searchsorted(offsets, wanted, side="right") - 1
        is_next = (bits[wanted >> 3] >> (wanted & 7)) & 1 != 0
        return Pairs(row=rows, is_next=is_next, **{name: values[wanted] for name, values in columns.items()})

    def count_pairs(self, sequence_length: int) -> int:
        """How many pairs were drawn for a sequence length."""
        return len(self.table.column(pairs_column(sequence_length)).values)

    def segments(self, pairs: Pairs, sequence_length: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """The tokens of both segments of each pair; those of the second one are none where there is a single segment.

        That the vocabulary has them all, whoever reads many looks at once.

        Raises:
            ShardError: see spans.
        """
        spans = (span.tolist() for span in self.spans(pairs, sequence_length))
        return [(self.tokens[i:j], self.tokens[k:end]) for i, j, k, end in zip(*spans, strict=True)]

    def spans(self, pairs: Pairs, sequence_length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Begin and end of the first segments and of the second ones in ``tokens``, integers [pairs] each.

        Raises:
            ShardError: a segment lies in no document of this shard, the first one is empty, or both are too long.
        """
        a_begin, a_end = self._spans(pairs.row, pairs.a_begin, pairs.a_end, np.greater_equal)
        b_begin, b_end = self._spans(pairs.b_row, pairs.b_begin, pairs.b_end, np.greater)
        if (pairs.lengths > sequence_length).any():
            raise self.wrong(f"a pair of more than {sequence_length} tokens in the column for {sequence_length}")
        return a_begin, a_end, b_begin, b_end

    def _spans(
        self, rows: np.ndarray, begins: np.ndarray, ends: np.ndarray, refused: np.ufunc
    ) -> tuple[np.ndarray, np.ndarray]:
        """Spans within documents -> spans within the shard's tokens, [n] each; refused(begin, end) may not be."""
        if ((rows < 0) | (rows >= len(self))).any():
            raise self.wrong("a pair names a row that the shard does not have")
        documents = self.token_offsets[rows], self.token_offsets[rows + 1]
        if ((begins < 0) | refused(begins, ends) | (ends > documents[1] - documents[0])).any():
            raise self.wrong("a pair has an empty segment, or one that reaches beyond its document")
        return documents[0] + begins, documents[0] + ends

    def wrong(self, what: str) -> ShardError:
        """The error of a shard that says what it may not."""
        return ShardError(f"{self.path}: {what}; {_MAKE}")

    def _offsets(self, column: str) -> np.ndarray:
        """Where the rows of a column of lists begin, and the last one ends, int32 [rows + 1]."""
        offsets: np.ndarray = self.table.column(column).offsets.to_numpy(zero_copy_only=True)
        if (offsets[1:] < offsets[:-1]).any():
            raise ShardError(f"{self.path}: the rows of its column {column} overlap; {_AGAIN}")
        return offsets

    def _pair_columns(self, sequence_length: int) -> _PairColumns:
        """Views: the rows' offsets; is_next, eight to a byte, so that a shard's pairs stay on disk; the rest."""
        if sequence_length not in self._pairs:
            column = self.table.column(pairs_column(sequence_length))
            columns = dict(zip((field.name for field in PAIR), column.values.flatten(), strict=True))
            del columns["duplicate"]  # which nothing here asks for
            bits = np.frombuffer(columns.pop("is_next").buffers()[1], dtype=np.uint8)
            views = {name: values.to_numpy(zero_copy_only=True) for name, values in columns.items()}
            self._pairs[sequence_length] = self._offsets(pairs_column(sequence_length)), bits, views
        return self._pairs[sequence_length]


def _lies_within(source: pa.MemoryMappedFile, table: pa.RecordBatch) -> bool:
    """Whether all that a table holds lies in a mapped file, so that nothing was copied or decompressed."""
    source.seek(0)
    whole = source.read_buffer()
    buffers = (buffer for column in table.columns for buffer in column.buffers() if buffer is not None and buffer.size)
    return all(whole.address <= buffer.address < whole.address + whole.size for buffer in buffers)


def _parts(array: pa.Array) -> Iterator[pa.Array]:
    """A column and all that it is made of."""
    yield array
    if pa.types.is_list(array.type):
        yield from _parts(array.values)
    elif pa.types.is_struct(array.type):
        yield from (array.field(i) for i in range(array.type.num_fields))


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Around a look at a shard directory or a file of one: what keeps it from being read, as whose matter it is.

    Raises:
        ShardError: it is not there, can't be, or is not for this user to read.
        UnavailableError: anything else.
    """
    try:
        yield
    except OSError as error:
        file = error.filename or path
        if isinstance(error, FileNotFoundError):
            raise ShardError(f"{file}: the manifest lists this shard but it is not there; {_AGAIN}") from error
        if isinstance(error, PermissionError):
            raise ShardError(f"{file}: this user may not read it; ask its owner for that") from error
        if is_no_file(error):
            raise ShardError(f"{file}: {reason(error)}; is it the folder of the shards?") from error
        raise unavailable(file, reason(error)) from error


def _why_no_directory(path: Path) -> str:
    """What is wrong with a path that is no directory, and what to do."""
    if exists(path):
        return f"is a file; give its folder, {path.parent}"
    parts = [part.strip() for part in str(path).split(",")]
    if len(parts) > 1 and all(map(is_dir, parts)):
        return "several names with commas; name one, or put blanks between them where several are taken"
    return "no such directory; make shards with `beam run preprocessing/make_shards.py`"


def _why_no_manifest(path: Path) -> str:
    """What is wrong with a directory that has no manifest, and what to do."""
    if within := sorted(path.glob(f"*/{MANIFEST}")):
        others = f" or another of the {len(within)} within that have one" if len(within) > 1 else ""
        return f"no {MANIFEST}; give {within[0].parent}{others}"
    if any(path.glob("*.arrow")):
        return f"no {MANIFEST}, so its shards are not complete; run the preprocessing again"
    return f"no {MANIFEST} nor shards; make some with `beam run preprocessing/make_shards.py`"


class ShardDirectory:
    """A complete shard directory.

    Attributes:
        path: the directory.
        manifest: its manifest.
        manifest_text: that, as the file has it.
        manifest_blake2b: the checksum of that, which names every shard's checksum: the identity of the data.
    """

    def __init__(self, path: Path | str):
        """Open a shard directory: parse its manifest and see that every file is there and as long as it should be.

        Raises:
            ShardError: no directory, no manifest (the job that makes it has not finished), a damaged one, a missing
                or cut file, or one that this user may not read.
            UnavailableError: it can't be read now.
        """
        self.path = Path(path)
        with reading(self.path):
            self._open()

    def _open(self) -> None:
        manifest = self.path / MANIFEST
        if not is_dir(self.path):
            raise ShardError(f"{self.path}: {_why_no_directory(self.path)}")
        if is_file(self.path / _RUN):
            raise ShardError(
                f"{self.path}: a training's run directory, which has its shards' manifest alone; give the shards "
                "themselves, as the training got them by --shards"
            )
        if not is_file(manifest):
            raise ShardError(f"{self.path}: {_why_no_manifest(self.path)}")
        content = manifest.read_bytes()
        self.manifest_text = content.decode(errors="replace")
        self.manifest = Manifest.from_json(self.manifest_text, where=str(manifest))
        self.manifest_blake2b = checksum_of(content)
        for entry in self.manifest.shards:
            file = self.path / entry.file
            status = file.stat()  # once: of thousands of files on a network, for every rank
            if not stat.S_ISREG(status.st_mode):
                raise ShardError(f"{file}: not a file; {_AGAIN}")
            if status.st_size != entry.bytes:
                raise ShardError(f"{file}: {status.st_size} bytes where the manifest says {entry.bytes}; {_AGAIN}")
        vocabulary = self.tokenizer / "vocab.txt"
        if not is_file(vocabulary):
            raise ShardError(f"{vocabulary}: the tokenizer's vocabulary is missing; {_AGAIN}")
        if checksum(vocabulary) != self.manifest.vocabulary.blake2b:
            raise ShardError(f"{vocabulary}: not the vocabulary that the manifest names; {_AGAIN}")

    @property
    def tokenizer(self) -> Path:
        """The folder of tokenizer files, in the layout that Hugging Face's AutoTokenizer loads."""
        return self.path / TOKENIZER

    def shard(self, entry: ShardEntry) -> Shard:
        """Map one shard and compare its size with the manifest.

        Raises:
            ShardError: see Shard; also when it holds other numbers of rows, tokens or pairs than the manifest says.
            UnavailableError: see Shard.
        """
        shard = Shard(self.path / entry.file, self.manifest.vocabulary.size, self.manifest.sequence_lengths)
        found = (len(shard), int(shard.token_offsets[-1] - shard.token_offsets[0]))
        if found != (entry.rows, entry.tokens):
            raise ShardError(
                f"{shard.path}: {found} rows and tokens where the manifest says {entry.rows, entry.tokens}; {_AGAIN}"
            )
        for length in self.manifest.sequence_lengths:
            count, told = shard.count_pairs(length), entry.pairs[str(length)]
            if count != told:
                raise ShardError(f"{shard.path}: {count} pairs for {length} where the manifest says {told}; {_AGAIN}")
        return shard

    def verify(self, split: Split | None = None) -> None:
        """Read every shard, or every one of a split, once and compare its checksum with the manifest.

        Raises:
            ShardError: names the first shard that differs, is gone, or that this user may not read.
            UnavailableError: one can't be read now.
        """
        for entry in self.manifest.shards if split is None else self.manifest.split(split):
            self.verify_shard(entry)

    def verify_shard(self, entry: ShardEntry) -> None:
        """Read one shard and compare its checksum with the manifest; raises what verify does."""
        file = self.path / entry.file
        with reading(file):
            found = checksum(file)
        if found != entry.blake2b:
            raise ShardError(f"{file}: checksum differs from the manifest; {_AGAIN}")
