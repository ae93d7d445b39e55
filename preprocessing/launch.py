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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO

import apache_beam as beam
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions, StandardOptions
from apache_beam.runners.portability.fn_api_runner import worker_handlers

from preprocessing import files
from preprocessing import job as jobs
from preprocessing.encoder import available_engine
from preprocessing.job import Input, Job
from preprocessing.options import Arguments
from preprocessing.schema import MANIFEST, Manifest, ShardDirectory, Vocabulary
from preprocessing.sources import SourceError
from preprocessing.tokenization import load_vocabulary, tokenizer_files
from preprocessing.transforms import build_pipeline

PROGRESS_SECONDS = 1.0  # between two looks at the work folder
LOG_TAIL = 4000  # bytes of Beam's noise that are shown when a job fails
STRANGE_UNKNOWN_RATE = 0.05
PROGRESS_LINE_SECONDS = 30.0  # between two lines where stderr is no terminal


def prepare(arguments: Arguments, output: str) -> tuple[Job, list[Input], list[str]]:
    """Check what the command line names and lay out the job: the job, its inputs, the vocabulary's tokens.

    Raises:
        SourceError: inputs that are not there.
        VocabularyError: a vocabulary that can't be used.
        EncoderError: an encoder that is not installed.
    """
    available_engine(arguments.encoder)
    tokens = load_vocabulary(arguments.vocabulary)
    inputs = jobs.find_inputs(arguments.inputs)
    content = tokenizer_files(tokens, arguments.options.lowercase)["vocab.txt"]
    digest = hashlib.blake2b(content, digest_size=16).hexdigest()
    job = Job(
        output=output,
        options=arguments.options,
        vocabulary=Vocabulary(len(tokens), digest, arguments.options.lowercase),
        layout=jobs.choose_layout(inputs, arguments.options, len(tokens)),
        units=len(jobs.group_units(inputs)),
        encoder=arguments.encoder,
    )
    return job, inputs, tokens


def begin(job: Job, inputs: Sequence[Input], vocabulary: Sequence[str], overwrite: bool) -> jobs.State:
    """Claim the output directory: see what is there, clear it if asked, and write job.json first of all.

    Raises:
        JobError: the directory holds something else.
        ShardError: a finished job whose files have been lost since.
    """
    description = jobs.describe(job, inputs)
    if overwrite:
        names = job.layout.names("train") + job.layout.names("validation")
        jobs.clear(job.output, names)
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
        files.write_text(job.vocabulary_file, "\n".join(vocabulary) + "\n", job.work)
    except OSError as error:
        raise jobs.JobError(f"{job.output}: can't write there ({error.strerror}); use another directory") from error
    stale = [name for name in files.names_below(job.work) if name.startswith(("error-", "tmp-"))]
    files.remove(job.work, stale)
    return state


def execute(job: Job, inputs: Sequence[Input], beam_options: Sequence[str]) -> float:
    """Run the pipeline; returns the seconds it took.

    Raises:
        SourceError: an input that can't be read, or a corpus that can't be sharded as asked, wherever that was found.
        JobError: the engine made no manifest.
    """
    options = PipelineOptions(list(beam_options))
    if options.view_as(DirectOptions).direct_running_mode == "multi_processing":
        # One thread a worker process: there are as many processes as the user wants cores busy.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # A timed flush of Beam's data channel races with its writer and drops elements; 0 turns it off.
    worker_handlers.DATA_BUFFER_TIME_LIMIT_MS = 0
    embedded = options.view_as(StandardOptions).runner == "FnApiRunner"
    begun = time.monotonic()
    with _quiet(embedded) as terminal, _progress(job, terminal):
        try:
            pipeline = beam.Pipeline(options=options)
            build_pipeline(pipeline, job, jobs.group_units(inputs))
            pipeline.run().wait_until_finish()
        except Exception as error:
            if reason := _user_error(job):
                # What is wrong with the inputs or the options changes with them, and so what was made is of no use.
                jobs.clear(job.output)
                raise SourceError(reason) from error
            raise
    if files.read_text(files.join(job.output, MANIFEST)) is None:
        raise jobs.JobError(f"{job.output}: the engine ended without an error and without a {MANIFEST}; see its log")
    return time.monotonic() - begun


def _user_error(job: Job) -> str | None:
    """The error that a worker left; the first of several."""
    left = sorted(name for name in files.names_below(job.work) if name.startswith("error-"))
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
        level = logging.getLogger("apache_beam").level
        logging.getLogger("apache_beam").setLevel(logging.ERROR)
        try:
            yield terminal
        except SourceError:
            raise  # a worker's noise about it adds nothing
        except Exception:
            log.seek(max(0, log.tell() - LOG_TAIL))
            terminal.write(log.read().decode(errors="replace"))
            raise
        finally:
            logging.getLogger("apache_beam").setLevel(level)
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
    live = terminal.isatty()
    while not done.wait(PROGRESS_SECONDS):
        now = time.monotonic()
        if live or now - told >= PROGRESS_LINE_SECONDS:
            told = now
            line = _progress_line(job, now - begun)
            terminal.write(f"\r\033[K{line}" if live else f"{line}\n")
            terminal.flush()
    if live:
        terminal.write("\r\033[K")


def _progress_line(job: Job, seconds: float) -> str:
    notes = [name for name in files.names_below(job.work) if name.endswith(".json")]
    read = sum(name.startswith("tokens-") for name in notes)
    shards = job.layout.train_shards + job.layout.validation_shards
    minutes, rest = divmod(int(seconds), 60)
    return f"tokenized {read}/{job.units} parts, built {len(notes) - read}/{shards} shards, {minutes}:{rest:02d}"


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
        f"{documents['collisions']:,} older of one id dropped)",
        f"  text       {statistics['sentences']:,} sentences, {characters / 1e6:,.1f} M characters "
        f"({characters / 1e6 / seconds:.2f} M/s)",
        f"  tokens     {statistics['tokens']:,}, {statistics['unknown_rate']:.3%} unknown",
    ]
    for length, splits in statistics["pairs"].items():
        told = ", ".join(f"{n['pairs']:,} {split} ({n['is_next_rate']:.1%} next)" for split, n in splits.items())
        lines.append(f"  pairs {length:>4} {told}")
    skipped = [source["skipped"] for source in statistics["sources"].values()]
    if manifest.options["validation_fraction"] and not manifest.split("validation"):
        lines.append("  no validation split: it takes four documents")
    reasons = [f"{count:,} {reason}" for source in skipped for reason, count in source.items()]
    if reasons:
        lines.append(f"  skipped    {', '.join(reasons)}")
    lines.append(
        f"  shards     {counts['train']} train, {counts['validation']} validation, {size / 1e6:,.1f} MB, "
        f"{size / max(1, statistics['tokens']):.2f} bytes a token"
    )
    if statistics["unknown_rate"] > STRANGE_UNKNOWN_RATE:
        lines.append("  so many unknown tokens mean that the vocabulary is for another language, or --cased is wrong")
    return "\n".join(lines)
