"""Starting a preprocessing job and telling its user how it goes."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO

import apache_beam as beam
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, StandardOptions
from apache_beam.runners.portability.fn_api_runner import worker_handlers

from preprocessing import files
from preprocessing import job as jobs
from preprocessing.contamination import Benchmark, read_benchmark
from preprocessing.encoder import available_engine
from preprocessing.job import Input, Job
from preprocessing.options import Arguments, VocabularyRule
from preprocessing.sampling import ALL, build_sampling, first_cutoff, sampled_texts
from preprocessing.schema import MANIFEST, Manifest, ShardDirectory, Vocabulary
from preprocessing.sources import SourceError
from preprocessing.tokenization import (
    VocabularyError,
    load_vocabulary,
    parse_vocabulary,
    train_vocabulary,
    vocabulary_text,
)
from preprocessing.transforms import build_pipeline, publish_arrow
from preprocessing.watchdog import STUCK, Watchdog

PROGRESS_SECONDS = 1.0  # between two looks at the work folder
LOG_TAIL = 4000  # bytes of Beam's noise that are shown when a job fails
STRANGE_UNKNOWN_RATE = 0.05
CASE_SHARE = 0.01  # of a vocabulary's entries: uncased ones have a stray few with upper case
STUCK_CODE = 1  # exit code when a document takes for ever
QUIET_SECONDS = 3.0  # as PROGRESS_SECONDS, where stderr is no terminal
PROGRESS_LINE_SECONDS = 30.0  # between two lines where stderr is no terminal


class StuckError(RuntimeError):
    """A document takes for ever, which is a bug of this program. The message names it."""


def prepare(arguments: Arguments, output: str) -> tuple[Job, list[Input], list[str] | None]:
    """Check what the command line names and lay out the job.

    Returns:
        The job, its inputs, and the vocabulary's tokens; None where they are to be trained, and the job's vocabulary
        says how many are wanted.

    Raises:
        SourceError: inputs that are not there.
        VocabularyError: a vocabulary that can't be used, or not without --cased.
        EncoderError: an encoder that is not installed.
    """
    available_engine(arguments.encoder)
    options = arguments.options
    tokens = load_vocabulary(arguments.vocabulary) if arguments.vocabulary is not None else None
    wanted = options.train_vocabulary.size if options.train_vocabulary else 0
    vocabulary = _identity(tokens, options.lowercase) if tokens else Vocabulary(wanted, "", options.lowercase)
    if tokens:
        _check_case(tokens, options.lowercase, str(arguments.vocabulary))
    inputs = jobs.find_inputs(arguments.inputs, _note, options.read)
    job = Job(
        output=output,
        options=options,
        vocabulary=vocabulary,
        layout=jobs.choose_layout(inputs, options, vocabulary.size),
        units=len(jobs.units_of(inputs)),
        encoder=arguments.encoder,
        patience=arguments.patience,
    )
    return job, inputs, tokens


def _note(text: str) -> None:
    print(f"make_shards: {text}", file=sys.stderr)


def _check_case(tokens: Sequence[str], lowercase: bool, file: str) -> None:
    """See that a vocabulary is of the case that is asked for: shards of the other one look right, and learn badly.

    Raises:
        VocabularyError: a cased vocabulary, and all text would be lower-cased.
    """
    words = [token for token in tokens if not (token.startswith("[") and token.endswith("]"))]
    upper, lower = (sum(any(map(has, word)) for word in words) for has in (str.isupper, str.islower))
    few = CASE_SHARE * len(words)
    if upper > few and lowercase:
        raise VocabularyError(
            f"{file}: {upper:,} of its {len(tokens):,} entries contain upper-case letters, so it is a cased "
            "vocabulary; add --cased"
        )
    if lower > few >= upper and not lowercase:
        _note(f"{file}: hardly any upper-case letter in it, so it seems to be an uncased vocabulary; leave --cased out")


def _identity(tokens: Sequence[str], lowercase: bool) -> Vocabulary:
    content = vocabulary_text(tokens).encode()
    return Vocabulary(len(tokens), hashlib.blake2b(content, digest_size=16).hexdigest(), lowercase)


def with_benchmark(job: Job, folder: str | None) -> tuple[Job, Benchmark | None]:
    """The job that also looks for a benchmark in the corpus, and that benchmark, if a folder of one is given.

    Raises:
        SourceError: nothing in it can be looked for.
    """
    if folder is None:
        return job, None
    benchmark = read_benchmark(Path(folder))
    return replace(job, benchmark=benchmark.identity), benchmark


def place_benchmark(job: Job, benchmark: Benchmark) -> None:
    """Put a benchmark where every worker can read it."""
    for path, batch in zip((job.benchmark_sequences_file, job.benchmark_texts_file), benchmark, strict=True):
        with publish_arrow(job, path, batch.schema) as writer:
            writer.write_batch(batch)


def begin(job: Job, inputs: Sequence[Input], vocabulary: Sequence[str] | None, arguments: Arguments) -> jobs.State:
    """Claim the output directory: see what is there, clear it if asked, and write job.json first of all.

    Raises:
        JobError: the directory holds something else, or the vocabulary that is asked for among what is to be removed.
        ShardError: a finished job whose files have been lost since.
    """
    description = jobs.describe(job, inputs)
    if arguments.overwrite:
        names = job.layout.names("train") + job.layout.names("validation")
        jobs.clear(job.output, names, needed=arguments.vocabulary)
        state: jobs.State = "new"
    else:
        state = jobs.inspect(job.output, description)
    if state == "finished":
        if not files.is_remote(job.output):
            ShardDirectory(job.output)
        jobs.clear_work(job.output)
        return state
    try:
        if state == "new":
            jobs.clear_work(job.output)
            text = json.dumps(description, indent=2, ensure_ascii=False) + "\n"
            files.write_text(files.join(job.output, jobs.JOB), text, job.work)
        if vocabulary is not None:
            _write_vocabulary(job, vocabulary)
    except OSError as error:
        raise jobs.JobError(f"{job.output}: can't write there ({error.strerror}); use another directory") from error
    stale = [name for name in files.names_below(job.work) if name.startswith((jobs.ERROR, "tmp-"))]
    files.remove(job.work, stale)
    return state


def _write_vocabulary(job: Job, tokens: Sequence[str]) -> None:
    files.write_text(job.vocabulary_file, vocabulary_text(tokens), job.work)


def provide_vocabulary(job: Job, inputs: Sequence[Input], beam_options: Sequence[str]) -> Job:
    """The job with the vocabulary that is trained on its inputs, now or by the interrupted one that it goes on with.

    Raises:
        SourceError: an input that can't be read.
        VocabularyError: too little text, or too small a size.
    """
    rule = job.options.train_vocabulary
    if rule is None:
        return job
    text = files.read_text(job.vocabulary_file)
    if text is None:
        texts = _draw_sample(job, inputs, rule, beam_options)
        try:
            tokens = train_vocabulary(texts, rule.size, job.options.lowercase)
        except VocabularyError:
            jobs.clear(job.output)
            raise
        with _storage_told(job):
            _write_vocabulary(job, tokens)
        files.remove(job.work, [name for name in files.names_below(job.work) if name.startswith("sample-")])
    else:
        tokens = parse_vocabulary(text, job.vocabulary_file)
    return replace(job, vocabulary=_identity(tokens, job.options.lowercase))


def _draw_sample(job: Job, inputs: Sequence[Input], rule: VocabularyRule, beam_options: Sequence[str]) -> list[str]:
    """The texts with the lowest hashes. Where the inputs hold less than it seemed, they are read a second time."""
    budget = rule.sample_bytes
    units = jobs.units_of(inputs)
    texts: list[str] = []
    for cutoff in (first_cutoff(budget, sum(map(jobs.text_bytes, inputs))), ALL):
        _run_pipeline(job, beam_options, partial(build_sampling, job=job, units=units, budget=budget, cutoff=cutoff))
        texts, filled = sampled_texts(job, budget)
        if filled or cutoff == ALL:
            break
    return texts


def execute(job: Job, inputs: Sequence[Input], beam_options: Sequence[str]) -> float:
    """Make the shards; returns the seconds it took.

    Raises:
        SourceError: an input that can't be read, or a corpus that can't be sharded as asked, wherever that was found.
        JobError: nothing can be written any more, or an input not be read, or the engine made no manifest.
        StuckError: a document takes for ever.
    """
    begun = time.monotonic()
    _run_pipeline(job, beam_options, partial(build_pipeline, job=job, units=jobs.units_of(inputs)))
    if files.read_text(files.join(job.output, MANIFEST)) is None:
        raise jobs.JobError(f"{job.output}: the engine ended without an error and without a {MANIFEST}; see its log")
    return time.monotonic() - begun


def _run_pipeline(job: Job, beam_options: Sequence[str], build: Callable[[beam.Pipeline], None]) -> None:
    options = PipelineOptions(list(beam_options))
    if options.view_as(DirectOptions).direct_running_mode == "multi_processing":
        # One thread a worker process: there are as many processes as the user wants cores busy.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # A timed flush of Beam's data channel races with its writer and drops elements; 0 turns it off.
    worker_handlers.DATA_BUFFER_TIME_LIMIT_MS = 0
    embedded = options.view_as(StandardOptions).runner == "FnApiRunner"
    with _quiet(embedded) as terminal, _progress(job, terminal):
        try:
            pipeline = beam.Pipeline(options=options)
            build(pipeline)
            pipeline.run().wait_until_finish()
        except Exception as error:
            if reason := _left_error(job, STUCK):
                raise StuckError(reason) from error
            if reason := _left_error(job, jobs.STORAGE):
                raise jobs.JobError(reason) from error
            if files.is_full(error):
                raise jobs.JobError(files.FULL.format(job.output)) from error
            if reason := _left_error(job, jobs.ERROR):
                # What is wrong with the inputs or the options changes with them, and so what was made is of no use.
                jobs.clear(job.output)
                raise SourceError(reason) from error
            raise


@contextmanager
def _storage_told(job: Job) -> Iterator[None]:
    """Tell a full disk in a line."""
    try:
        yield
    except OSError as error:
        raise jobs.JobError(files.FULL.format(job.output)) if files.is_full(error) else error from error


def _left_error(job: Job, kind: str) -> str | None:
    """The error that a worker left in a file whose name begins so; the first of several."""
    left = sorted(name for name in files.names_below(job.work) if name.startswith(kind))
    return files.read_text(files.join(job.work, left[0])) if left else None


@contextmanager
def _quiet(embedded: bool) -> Iterator[IO[str]]:
    """Keep what Beam and its worker processes write to stderr in a file, shown only if the job fails.

    Worker processes inherit the descriptor, so it is the descriptor that is turned aside.

    Yields:
        The terminal (or whatever stderr was), to tell the user something.
    """
    if not embedded:
        yield sys.stderr
        return
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as log, os.fdopen(saved, "w", buffering=1) as terminal:
        os.dup2(log.fileno(), 2)
        Watchdog.terminal = terminal.fileno()
        level = logging.getLogger("apache_beam").level
        logging.getLogger("apache_beam").setLevel(logging.ERROR)
        try:
            yield terminal
        except (jobs.JobError, SourceError, StuckError):
            raise  # a worker's noise about it adds nothing
        except Exception:
            log.seek(max(0, log.tell() - LOG_TAIL))
            terminal.write(log.read().decode(errors="replace"))
            raise
        finally:
            logging.getLogger("apache_beam").setLevel(level)
            Watchdog.terminal = None
            os.dup2(saved, 2)


@contextmanager
def _progress(job: Job, terminal: IO[str]) -> Iterator[None]:
    """Say on the terminal how far the job is, from the notes in its work folder: any engine, any worker."""
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(job, terminal, done), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _watch(job: Job, terminal: IO[str], done: threading.Event) -> None:
    begun = told = time.monotonic()
    live, progress = terminal.isatty(), Progress(job)
    while not done.wait(PROGRESS_SECONDS if live else QUIET_SECONDS):
        if reason := _left_error(job, STUCK):
            # The worker is dead, and not every engine notices.
            terminal.write(f"make_shards: error: {reason}\n")
            terminal.flush()
            os._exit(STUCK_CODE)
        now = time.monotonic()
        if live or now - told >= PROGRESS_LINE_SECONDS:
            told = now
            line = progress.line(now - begun)
            terminal.write(f"\r\033[K{line}" if live else f"{line}\n")
            terminal.flush()
    if live:
        terminal.write("\r\033[K")


class Progress:
    """How far a job is, by the notes in its work folder; each is read once."""

    def __init__(self, job: Job):
        self._job = job
        self._parts: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._look()
        self._characters_before = self._total("characters")  # an earlier run's, which took none of this one's time

    def _look(self) -> int:
        """Read the new notes of parts; returns how many shards are built."""
        notes = [name for name in files.names_below(self._job.work) if name.endswith(".json")]
        for name in {name for name in notes if name.startswith("tokens-")} - self._parts:
            # At its very end a job removes its notes.
            if (note := files.read_json(files.join(self._job.work, name))) is not None:
                self._parts.add(name)
                self._counts.update(note["totals"]["counts"])
        return sum("shard-" in name for name in notes)

    def _total(self, count: str) -> int:
        return sum(number for name, number in self._counts.items() if name.startswith(f"{count}/"))

    def line(self, seconds: float) -> str:
        """What there is to tell after so many seconds."""
        built, job = self._look(), self._job
        skipped = self._total("skipped")
        rate = (self._total("characters") - self._characters_before) / 1e6 / seconds
        minutes, rest = divmod(int(seconds), 60)
        shards = job.layout.train_shards + job.layout.validation_shards
        return (
            f"{minutes}:{rest:02d}  read {len(self._parts)}/{job.units} parts, "
            f"{self._total('kept') + skipped:,} documents ({skipped:,} skipped), {rate:.2f} M characters/s; "
            f"built {built}/{shards} shards"
        )


def summary(output: str, inputs: Sequence[Input], seconds: float) -> str:
    """What a finished job says: what was read, what was dropped, what was made."""
    manifest = Manifest.from_json(files.read_text(files.join(output, MANIFEST)) or "", output)
    statistics, documents = manifest.statistics, manifest.statistics["documents"]
    size = sum(entry.bytes for entry in manifest.shards)
    counts = {split: len(manifest.split(split)) for split in ("train", "validation")}  # type: ignore[arg-type]
    characters = sum(source["characters"] for source in statistics["sources"].values())
    lines = [
        f"{output}: done in {seconds:.1f} s",
        f"  inputs     {len(inputs):,} files, {sum(file.bytes for file in inputs) / 1e6:,.1f} MB",
        f"  documents  {documents['in_shards']:,} ({documents['skipped']:,} skipped, "
        f"{documents['collisions']:,} older versions of a document (same id) dropped)",
        f"  text       {statistics['sentences']:,} sentences, {characters / 1e6:,.1f} M characters "
        f"({characters / 1e6 / seconds:.2f} M/s)",
        f"  tokens     {statistics['tokens']:,}, {statistics['unknown_rate']:.3%} unknown",
    ]
    if rule := manifest.options["train_vocabulary"]:
        entries, wanted = manifest.vocabulary.size, rule["size"]
        fewer = f" ({wanted:,} wanted; the corpus has no more)" if entries < wanted else ""
        lines.append(f"  vocabulary {entries:,} entries{fewer}")
    for length, splits in statistics["pairs"].items():
        next_rate = " ({:.1%} next)" if manifest.options["pairs"]["next_sentence"] else ", single segments"
        told = ", ".join(f"{n['pairs']:,} {split}{next_rate.format(n['is_next_rate'])}" for split, n in splits.items())
        unreached = sum(n["unreached_tokens"] for n in splits.values()) / max(1, statistics["tokens"])
        lines.append(f"  pairs {length:>4} {told}; {unreached:.1%} of tokens in no pair")
    skipped = [source["skipped"] for source in statistics["sources"].values()]
    if manifest.options["validation_fraction"] and not manifest.split("validation"):
        lines.append("  no validation split: it needs at least four documents")
    reasons = [f"{count:,} {reason}" for source in skipped for reason, count in source.items()]
    if reasons:
        lines.append(f"  skipped    {', '.join(reasons)}")
    if replaced := sum(source["replaced"] for source in statistics["sources"].values()):
        lines.append(f"  replaced   {replaced:,} places that were not UTF-8")
    repeated = Counter[str]()
    for source in statistics["sources"].values():
        repeated.update(source["repeated"])
    if repeated["lines"]:
        lines.append(f"  repeated   {repeated['lines']:,} lines dropped, {repeated['tokens']:,} tokens")
    for name, told in statistics.get("contamination", {}).items():
        lines.append(f"  benchmark  {name}: {told['in_corpus']:,} of {told['texts']:,} texts are in the corpus")
    lines.append(
        f"  shards     {counts['train']} train, {counts['validation']} validation, {size / 1e6:,.1f} MB, "
        f"{size / max(1, statistics['tokens']):.2f} bytes a token"
    )
    if statistics["unknown_rate"] > STRANGE_UNKNOWN_RATE:
        lines.append("  this many unknown tokens suggest the wrong vocabulary, or a wrong --cased")
    return "\n".join(lines)
