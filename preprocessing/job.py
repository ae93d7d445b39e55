"""A preprocessing job: what its workers must know, where its files lie, and what of it is done."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any, NamedTuple
from unicodedata import unidata_version

from preprocessing import files
from preprocessing.encoder import EncoderError, Engine
from preprocessing.inputs import Input, text_bytes
from preprocessing.layout import Layout, ShardingError
from preprocessing.options import Options
from preprocessing.schema import FORMAT_VERSION, Vocabulary, token_type
from preprocessing.sources import ReadOptions, SourceError, StorageError
from preprocessing.sources.registry import ARTICLE_BYTES, holds_several
from preprocessing.tokenization import VOCABULARY_FILE, parse_vocabulary

WORK = ".work"
ERROR = "error-"  # how the name of a file begins in which a worker leaves the user's error; watchdog.STUCK is one too
STORAGE = f"{ERROR}storage-"  # that nothing more can be written, or read
UNIT_DONE = "tokens-"  # how the names of units' notes begin
UNIT_READING = "reading-"  # and those of their earlier ones
SHARD_BYTES = 64 << 20  # tokens of a shard
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
        vocabulary: the vocabulary's identity; its copy is ``vocabulary_file``.
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

    @property
    def vocabulary_file(self) -> str:
        """The vocabulary, where every worker can read it."""
        return files.join(self.work, VOCABULARY_FILE)

    def read_vocabulary(self) -> list[str]:
        """Its tokens in the order of their ids."""
        tokens = parse_vocabulary(files.read_text(self.vocabulary_file) or "", self.vocabulary_file)
        assert len(tokens) == self.vocabulary.size
        return tokens

    def unit_files(self, unit: int) -> UnitFiles:
        """The files that the first pass makes of a unit."""
        return UnitFiles(*(files.join(self.work, f"{kind}-{unit:05d}.arrow") for kind in UnitFiles._fields))

    @property
    def benchmark_sequences_file(self) -> str:
        """What is looked for in the corpus (contamination.SEQUENCES)."""
        return files.join(self.work, "benchmark-sequences.arrow")

    @property
    def benchmark_texts_file(self) -> str:
        """The texts that these are of (contamination.TEXTS)."""
        return files.join(self.work, "benchmark-texts.arrow")

    def found_file(self, unit: int) -> str:
        """What of a benchmark is in a unit (contamination.FOUND)."""
        return files.join(self.work, f"found-{unit:05d}.arrow")

    @property
    def lost_file(self) -> str:
        """Which documents are dropped (dedup.LOST)."""
        return files.join(self.work, "lost.arrow")

    @property
    def repeats_file(self) -> str:
        """Which lines are dropped (dedup.REPEATS)."""
        return files.join(self.work, "repeats.arrow")

    @property
    def drops_note(self) -> str:
        """The note of what is dropped: it exists once the two files that tell it are whole."""
        return files.join(self.work, "drops.json")

    def sample_file(self, unit: int) -> str:
        """What a vocabulary is trained on, of a unit."""
        return files.join(self.work, f"sample-{unit:05d}.arrow")

    def unit_note(self, unit: int) -> str:
        """The note of a unit: it exists once its files are whole."""
        return files.join(self.work, f"{UNIT_DONE}{unit:05d}.json")

    def reading_note(self, unit: int) -> str:
        """How far a large unit is, which nothing but the line of progress asks for."""
        return files.join(self.work, f"{UNIT_READING}{unit:05d}.json")

    def shard_file(self, shard: str) -> str:
        """A shard."""
        return files.join(self.output, shard)

    def shard_note(self, shard: str) -> str:
        """The note of a shard: it exists once the shard is whole."""
        return files.join(self.work, f"{shard}.json")

    def error_file(self, place: str, kind: str = ERROR) -> str:
        """Where a worker leaves the user's error, since runners pass on exceptions each in their own way."""
        return files.join(self.work, f"{kind}{place}")

    def left_error(self, kind: str) -> str | None:
        """The error that a worker left in a file whose name begins so; the first of several."""
        left = sorted(name for name in files.names_below(self.work) if name.startswith(kind))
        return files.read_text(files.join(self.work, left[0])) if left else None


def choose_layout(inputs: Sequence[Input], options: Options, vocab_size: int) -> Layout:
    """How many shards: a pure function of the options and the inputs' sizes."""
    text = sum(text_bytes(file) for file in inputs)
    token_bytes = text / BYTES_PER_TOKEN * int(token_type(vocab_size).bit_width) / 8
    documents = sum(_documents(file, options.read) for file in inputs)

    def shards(share: float) -> int:
        return max(1, min(round(token_bytes * share / SHARD_BYTES), int(documents * share) // DOCUMENTS_PER_SHARD))

    held_out = options.validation_fraction
    return Layout(
        seed=options.seed,
        train_shards=options.num_shards or shards(1 - held_out),
        validation_shards=shards(held_out) if held_out else 0,
        validation_fraction=held_out,
    )


def _documents(file: Input, options: ReadOptions) -> float:
    """About how many documents an input holds."""
    return text_bytes(file) / ARTICLE_BYTES if holds_several(file.source, options) else 1.0


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
    """Leave an error of the user's where the launcher finds it, whatever the engine makes of exceptions."""
    try:
        yield
    except (EncoderError, SourceError, ShardingError) as error:
        files.write_text(job.error_file(place), str(error), job.work)
        raise
    except StorageError as error:
        files.write_text(job.error_file(place, STORAGE), str(error), job.work)
        raise
    except OSError as error:
        if files.is_full(error):
            # What is unfinished is gone by now, so that there may be room for this.
            with contextlib.suppress(OSError):
                files.write_text(job.error_file(place, STORAGE), files.FULL.format(job.output), job.work)
        raise


def finished(note: str, *made: str) -> Any:
    """What an earlier run noted when it had made some Arrow files; None where it did not come so far.

    Nor did it where the note or a file is cut: a machine that loses its power may leave such.
    """
    noted = files.read_json(note)
    return noted if noted is not None and all(map(files.is_arrow, made)) else None
