"""A preprocessing job: what its workers must know, where its files lie, and what of it is done."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from math import ceil
from typing import Any, NamedTuple
from unicodedata import unidata_version

from preprocessing import files
from preprocessing.encoder import EncoderError, Engine
from preprocessing.inputs import Input, text_bytes
from preprocessing.layout import Layout, ShardingError
from preprocessing.options import Options
from preprocessing.output import DISK_FULL, UNAVAILABLE
from preprocessing.schema import FORMAT_VERSION, Vocabulary, token_type
from preprocessing.sources import DamagedError, ReadOptions, SourceError, StorageError
from preprocessing.sources.registry import ARTICLE_BYTES, SOURCES
from preprocessing.storage_errors import comes_of_passing, is_full, reason
from preprocessing.terminal import in_line
from preprocessing.tokenization import parse_vocabulary
from preprocessing.work_files import WORK, WorkFile

SHARD_BYTES = 64 << 20  # tokens of a shard
MOST_SHARDS = 2000  # of a split; then they get larger, as every one is gathered from all units
FULL_SHARD = 1 << 29  # tokens of a shard that gets no larger: a quarter of what it can hold, as sizes are rough
BYTES_PER_TOKEN = 4.5  # of plain text; a rough figure, good enough to choose the number of shards
DOCUMENTS_PER_SHARD = 32  # fewer are no random sample, and might leave a shard without a second document
VERSIONS = (
    "apache-beam", "bert-pretraining", "datasketch", "lxml", "numpy", "pyarrow", "scipy", "sentencex", "tokenizers",
)  # fmt: skip


class UnitFiles(NamedTuple):
    """The intermediate files of a unit; see token_buffer.Batch."""

    tokens: str
    documents: str
    lines: str


@dataclass(frozen=True)
class Job:
    """Everything that a worker must know; small, since it travels with every task.

    Attributes:
        output: the shard directory, absolute or a URL.
        options: what was asked for.
        vocabulary: the vocabulary's identity; its copy is among the intermediate files.
        layout: where documents go.
        units: how many units the first pass reads.
        units_blake2b: tells them from others of the same inputs, cut in other places.
        encoder: which engine makes the ids; they are the same ids, so another one may go on with the job.
        patience: seconds that a document may take before the job is ended, 0 for any time.
        benchmark: the identity of the one that is looked for in the corpus; empty for none.
    """

    output: str
    options: Options
    vocabulary: Vocabulary
    layout: Layout
    units: int
    encoder: Engine = "auto"
    patience: float = 0.0
    benchmark: str = ""
    units_blake2b: str = ""

    @property
    def work(self) -> str:
        """The folder of intermediate files."""
        return files.join(self.output, WORK)

    def read_vocabulary(self) -> list[str]:
        """Its tokens in the order of their ids."""
        path = self.path(WorkFile.VOCABULARY)
        tokens = parse_vocabulary(files.read_text(path) or "", path)
        assert len(tokens) == self.vocabulary.size
        return tokens

    def path(self, kind: WorkFile, **which: str | int) -> str:
        """An intermediate file: of a unit, a shard, a place or the job, as its name says."""
        return files.join(self.work, kind.format(**which))

    def unit_files(self, unit: int) -> UnitFiles:
        """The files that the first pass makes of a unit."""
        kinds = (WorkFile.TOKENS, WorkFile.DOCUMENTS, WorkFile.LINES)
        return UnitFiles(*(self.path(kind, unit=unit) for kind in kinds))

    def left_error(self, kind: WorkFile) -> str | None:
        """The error that a worker left, of a kind or of a narrower one; the first of several."""
        left = sorted(filter(kind.fits, files.names_below(self.work)))
        return files.read_text(files.join(self.work, left[0])) if left else None


def choose_layout(inputs: Sequence[Input], options: Options, vocab_size: int) -> Layout:
    """How many shards: a pure function of the options and the inputs' sizes."""
    tokens = sum(text_bytes(file) for file in inputs) / BYTES_PER_TOKEN
    token_bytes = tokens * int(token_type(vocab_size).bit_width) / 8
    documents = sum(_documents(file, options.read) for file in inputs)

    def shards(share: float) -> int:
        by_size = min(round(token_bytes * share / SHARD_BYTES), max(MOST_SHARDS, ceil(tokens * share / FULL_SHARD)))
        return max(1, min(by_size, int(documents * share) // DOCUMENTS_PER_SHARD))

    held_out = options.validation_fraction
    return Layout(
        seed=options.seed,
        train_shards=options.num_shards or shards(1 - held_out),
        validation_shards=shards(held_out) if held_out else 0,
        validation_fraction=held_out,
    )


def _documents(file: Input, options: ReadOptions) -> float:
    """About how many documents an input holds."""
    return text_bytes(file) / ARTICLE_BYTES if SOURCES[file.source].holds_several(options) else 1.0


def describe(job: Job, inputs: Iterable[Input]) -> dict[str, Any]:
    """What job.json holds: equal for equal jobs, wherever inputs and output lie."""
    description = {
        "format_version": FORMAT_VERSION,
        "inputs": [{"source": file.source, "name": file.name, "bytes": file.bytes} for file in inputs],
        "units": {"number": job.units, "blake2b": job.units_blake2b},
        "options": asdict(job.options),
        "vocabulary": asdict(job.vocabulary),
        "benchmark": job.benchmark,
        "shards": {"train": job.layout.train_shards, "validation": job.layout.validation_shards},
        "versions": versions(),
    }
    return dict(json.loads(json.dumps(description)))  # tuples are lists in what this is compared with


def versions() -> dict[str, str]:
    """The installed versions of what decides a shard's bytes; Unicode's is Python's, which says what a letter is."""
    return {package: version(package) for package in VERSIONS} | {"unicode": unidata_version}


@contextlib.contextmanager
def reporting(job: Job, place: str) -> Iterator[None]:
    """Leave an error of the user's or of storage where the launcher finds it, whatever engines make of exceptions."""
    try:
        yield
    except (EncoderError, SourceError, ShardingError, StorageError) as error:
        users = WorkFile.DAMAGE_ERROR if isinstance(error, DamagedError) else WorkFile.ERROR
        lasting = WorkFile.STORAGE_ERROR if isinstance(error, StorageError) else users
        kind = WorkFile.PASSING_ERROR if comes_of_passing(error) else lasting
        # In it may be a path that is not UTF-8.
        files.write_text(job.path(kind, place=place), in_line(str(error)), job.work)
        raise
    except OSError as error:
        if error.errno:  # else it is a library's own, and no fault of storage
            full = is_full(error)
            kind = WorkFile.STORAGE_ERROR if full else WorkFile.PASSING_ERROR
            told = (DISK_FULL if full else UNAVAILABLE).format(job.output, reason(error))
            # What is unfinished is gone by now, so that there may be room for this.
            try:
                files.write_text(job.path(kind, place=place), in_line(told), job.work)
            except OSError:
                error.filename = error.filename or job.output  # which the launcher then finds in an engine's words
        raise
