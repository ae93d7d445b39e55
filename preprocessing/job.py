"""A preprocessing job on disk: where it writes, and how far it has come.

In the output directory lie, in the order in which they are written:

    job.json        inputs and options; the same command compares itself with it
    .work/          files of tokens and the notes of finished pieces, removed at the end
    shard-...       each appears whole
    manifest.json   the commit

While a job is at work it holds a lock, .work/lock.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple, TextIO

from preprocessing import files
from preprocessing.encoder import Engine
from preprocessing.inputs import Input, text_bytes
from preprocessing.layout import Layout
from preprocessing.locks import holder, wait_and_lock
from preprocessing.options import Options
from preprocessing.schema import FORMAT_VERSION, MANIFEST, TOKENIZER, Manifest, ShardError, Vocabulary, token_type
from preprocessing.sources.registry import SOURCES
from preprocessing.tokenization import CONFIG_FILE, TOKENIZER_FILE, VOCABULARY_FILE, parse_vocabulary

JOB, WORK = "job.json", ".work"
LOCK = f"{WORK}/lock"
PATIENCE = 90.0  # seconds to wait for another job's end
ERROR = "error-"  # how the name of a file begins in which a worker leaves the user's error; watchdog.STUCK is one too
STORAGE = f"{ERROR}storage-"  # that nothing more can be written, or read
SHARD_BYTES = 64 << 20  # tokens of a shard
BYTES_PER_TOKEN = 4.5  # of plain text; a rough figure, good enough to choose the number of shards
DOCUMENTS_PER_SHARD = 32  # fewer are no random sample, and might leave a shard without a second document
_TOKENIZER_FILES = frozenset(f"{TOKENIZER}/{name}" for name in (VOCABULARY_FILE, TOKENIZER_FILE, CONFIG_FILE))
_WORK_FILE = re.compile(
    re.escape(WORK) + r"/(vocab\.txt|tokens-\d+\.json|(tokens|documents|lines|sample|found)-\d+\.arrow"
    r"|(lost|repeats|benchmark-(sequences|texts))\.arrow|drops\.json|(validation-)?shard-\d+-of-\d+\.arrow\.json"
    rf"|{ERROR}[\w.-]+|tmp-[0-9a-f]+)"
)
VERSIONS = ("apache-beam", "bert-pretraining", "numpy", "pyarrow", "sentencex", "tokenizers")


class JobError(ValueError):
    """A job that can't run as asked. The message says what to do."""


class JobInUseError(RuntimeError):
    """Another job holds the output directory. The message names it."""


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
        return files.join(self.work, f"tokens-{unit:05d}.json")

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
    documents = sum(_documents(file) for file in inputs)

    def shards(share: float) -> int:
        return max(1, min(round(token_bytes * share / SHARD_BYTES), int(documents * share) // DOCUMENTS_PER_SHARD))

    held_out = options.validation_fraction
    return Layout(
        seed=options.seed,
        train_shards=options.num_shards or shards(1 - held_out),
        validation_shards=shards(held_out) if held_out else 0,
        validation_fraction=held_out,
    )


def _documents(file: Input) -> float:
    """About how many documents an input holds."""
    size = SOURCES[file.source].document_bytes
    return text_bytes(file) / size if size else 1.0


def versions() -> dict[str, str]:
    """The installed versions of what decides a shard's bytes."""
    return {package: version(package) for package in VERSIONS}


def describe(job: Job, inputs: Iterable[Input]) -> dict[str, Any]:
    """What job.json holds: equal for equal jobs, wherever inputs and output lie."""
    description = {
        "format_version": FORMAT_VERSION,
        "inputs": [{"source": file.source, "name": file.name, "bytes": file.bytes} for file in inputs],
        "units": job.units,
        "options": asdict(job.options),
        "vocabulary": asdict(job.vocabulary),
        "benchmark": job.benchmark,
        "shards": {"train": job.layout.train_shards, "validation": job.layout.validation_shards},
        "versions": versions(),
    }
    return dict(json.loads(json.dumps(description)))  # tuples are lists in what this is compared with


def difference(old: dict[str, Any], new: dict[str, Any], at: str = "") -> str | None:
    """The first place where two descriptions differ, in words; None when they are equal."""
    for key in sorted(old.keys() | new.keys()):
        was, now = old.get(key), new.get(key)
        if isinstance(was, dict) and isinstance(now, dict):
            inner = difference(was, now, f"{at}{key}.")
            if inner:
                return inner
        elif was != now:
            pairs = itertools.zip_longest(was, now) if isinstance(was, list) and isinstance(now, list) else ()
            first = next((theirs or ours for theirs, ours in pairs if theirs != ours), None)
            if isinstance(first, dict):  # one of many files
                return f"its {at}{key} differ, first in {first.get('name')}"
            return f"{at}{key} was {was} there and is {now} here"
    return None


State = Literal["new", "interrupted", "finished"]


def _own_names(output: str, present: dict[str, int]) -> set[str]:
    """Of the files in a directory, those that a job of ours wrote: by its job.json, its manifest and its .work."""
    own = {name for name in present if _WORK_FILE.fullmatch(name)}
    old = _read_job(output) if JOB in present else None
    if old:
        shards = Layout(0, old["shards"]["train"], old["shards"]["validation"], 0.0)
        own |= {JOB, *_TOKENIZER_FILES, *shards.names("train"), *shards.names("validation")}
    try:
        text = files.read_text(files.join(output, MANIFEST)) if MANIFEST in present else None
        if text is not None:
            own |= {MANIFEST, *_TOKENIZER_FILES, *(entry.file for entry in Manifest.from_json(text).shards)}
    except (ShardError, UnicodeDecodeError):
        pass  # somebody else's manifest.json
    return own & present.keys() if old or MANIFEST in own else set()


def _read_job(output: str) -> dict[str, Any] | None:
    """The job.json of a directory, None when there is none of ours."""
    try:
        raw = json.loads(files.read_text(files.join(output, JOB)) or "null")
        return raw if isinstance(raw, dict) and raw["format_version"] and raw["shards"]["train"] else None
    except (ValueError, KeyError, TypeError):
        return None


def inspect(output: str, description: dict[str, Any]) -> State:
    """What the same command finds in the output directory.

    Raises:
        JobError: another job's output, or files that no job of ours wrote.
    """
    present = _present(output)
    if all(_WORK_FILE.fullmatch(name) for name in present):
        return "new"  # nothing, or what is left of a command that was killed before it could write its job.json
    advice = "use --overwrite to replace it, or another directory"
    old = _read_job(output) if JOB in present else None
    finished = MANIFEST in present
    if old is None:
        if _own_names(output, present):
            raise JobError(f"{output}: holds shards without their {JOB}; {advice}")
        raise JobError(
            f"{output}: contains files that are not from this program, such as {min(present)!r}; use another directory"
        )
    if finished:
        # A later version of a library does not unmake a finished job.
        description = description | {"versions": old.get("versions")}
    differs = difference(old, description)
    if differs:
        whose = "another job's output" if finished else "another job, interrupted"
        raise JobError(f"{output}: holds {whose}: {differs}; {advice}")
    return "finished" if finished else "interrupted"


def clear(output: str, wanted: Iterable[str] = (), needed: str | None = None) -> None:
    """Remove what a job of ours left in a directory, and nothing else.

    The manifest goes first, job.json last, and notes before what they tell is whole, so that nobody takes a directory
    for more than it is if this is interrupted.

    Args:
        output: the directory.
        wanted: the shards that the new job will write.
        needed: a file that the new job reads.

    Raises:
        JobError: a file that is not ours has a name that the new job will write, or the needed file would go.
    """
    present = _present(output)
    own = _own_names(output, present)
    in_the_way = sorted({JOB, MANIFEST, *_TOKENIZER_FILES, *wanted} & (present.keys() - own))
    if in_the_way:
        raise JobError(f"{output}: {in_the_way[0]!r} was not written by a job of this program; use another directory")
    if needed and any(files.is_same(needed, files.join(output, name)) for name in own):
        raise JobError(f"{needed}: would be removed with the shards that it lies among; copy it to another place first")
    order = sorted(own, key=lambda name: (name != MANIFEST, name == JOB, not name.endswith(".json"), name))
    files.remove(output, order)


def clear_work(output: str) -> None:
    """Remove the intermediate files of a finished job."""
    files.remove(output, [name for name in _present(output) if _WORK_FILE.fullmatch(name)])


@contextmanager
def alone(output: str, note: Callable[[str], None]) -> Iterator[None]:
    """Hold a directory: two jobs at a time would each take the other's files for its own, and mix their shards.

    Remote ones have no locks. Nor is there one where nothing can be written, which is for others to tell.

    Args:
        output: the directory, absolute or a URL.
        note: told what is waited for, and where the file system has no locks.

    Raises:
        JobInUseError: another job holds it, and did not end.
    """
    with ExitStack() as held:
        if not files.is_remote(output):
            with suppress(OSError):
                held.enter_context(_locked(Path(output), note))
        yield


@contextmanager
def _locked(output: Path, note: Callable[[str], None]) -> Iterator[None]:
    path = output / LOCK
    with ExitStack() as undo:  # the last first: a file that is still open would keep its folder on NFS
        undo.callback(_remove_empty, path.parent, *([] if output.exists() else [output]))
        undo.enter_context(_lock(path, note))
        undo.callback(files.remove, str(output), [LOCK])
        yield


def _lock(path: Path, note: Callable[[str], None]) -> TextIO:
    """The open file, which holds the lock; an earlier job gets time to end, or NFS to see that its node has."""
    output = path.parent.parent

    def in_use(who: str) -> str:
        return f"{output}: another job is at work there, {who}; "

    def wait(who: str) -> None:
        note(f"{in_use(who)}waiting up to {PATIENCE:.0f} s for it to end")

    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", encoding="utf-8", errors="replace")
        held = wait_and_lock(file, PATIENCE, wait)
        if held is False:
            with file:
                raise JobInUseError(f"{in_use(holder(file))}end that job, or choose another --output")
        if held is None:
            note(f"{output}: the file system has no locks; make sure that no other job works there")
        if _is_open_at(path, file.fileno()):
            return file
        file.close()  # that of a job that has just ended, and removed it


def _is_open_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _remove_empty(*folders: Path) -> None:
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def _present(output: str) -> dict[str, int]:
    """All files in a directory but for the lock."""
    return {name: size for name, size in files.names_below(output).items() if name != LOCK}
