"""The steps of a preprocessing job: prepared, begun, given its vocabulary, and executed."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from preprocessing import files
from preprocessing.contamination import Benchmark, read_benchmark
from preprocessing.encoder import available_engine
from preprocessing.inputs import (
    Input,
    Unit,
    find_inputs,
    large_and_whole,
    located,
    text_bytes,
    units_checksum,
    units_of,
)
from preprocessing.job import Job, choose_layout, describe
from preprocessing.options import Arguments
from preprocessing.output import JOB, JobError, State, check_free, clear, clear_work, inspect, reaching
from preprocessing.runner import run_pipeline
from preprocessing.sampling import draw_sample
from preprocessing.schema import MANIFEST, Manifest, ShardDirectory, Vocabulary, checksum_of
from preprocessing.sources import MissingInputError, StorageError
from preprocessing.sources.registry import SOURCES
from preprocessing.storage_errors import reason
from preprocessing.terminal import in_line
from preprocessing.tokenization import VocabularyError, check_case, load_vocabulary, parse_vocabulary, vocabulary_text
from preprocessing.transforms import build_pipeline
from preprocessing.vocabulary import train_vocabulary
from preprocessing.work_files import WORK, WorkFile

_STALE = (WorkFile.ERROR, WorkFile.READING_NOTE, WorkFile.UNFINISHED)  # of an earlier start


def prepare(arguments: Arguments, output: str) -> tuple[Job, list[Input], list[Unit], list[str] | None]:
    """Check what the command line names and lay out the job.

    Returns:
        The job, its inputs, these as units that are to be located yet, and the vocabulary's tokens; None where they
        are to be trained, and the job's vocabulary says how many are wanted.

    Raises:
        SourceError: inputs that are not there.
        StorageError: an input can't be read.
        VocabularyError: a vocabulary that can't be used, or is of the other case than --cased says.
        EncoderError: an encoder that is not installed.
    """
    available_engine(arguments.encoder)
    options = arguments.options
    tokens = load_vocabulary(arguments.vocabulary) if arguments.vocabulary is not None else None
    wanted = options.train_vocabulary.size if options.train_vocabulary else 0
    vocabulary = _identity(tokens, options.lowercase) if tokens else Vocabulary(wanted, "", options.lowercase)
    if tokens:
        check_case(tokens, options.lowercase, str(arguments.vocabulary))
    try:
        inputs = find_inputs(arguments.inputs, note, options.read, output)
        units = units_of(inputs, options.read)
    except (MissingInputError, StorageError) as error:
        if not _are_finished(output):
            raise
        finished = f"the shards in {output} are finished, and need their inputs no more"
        raise type(error)(f"{error}; {finished}") from error
    job = Job(
        output=output,
        options=options,
        vocabulary=vocabulary,
        layout=choose_layout(inputs, options, vocabulary.size),
        units=len(units),
        units_blake2b=units_checksum(units),
        encoder=arguments.encoder,
        patience=arguments.patience,
    )
    return job, inputs, units, tokens


def _are_finished(output: str) -> bool:
    """Whether a directory has shards, as far as that can be told."""
    try:
        return files.exists(files.join(output, MANIFEST))
    except (OSError, ValueError):  # the latter of a URL that Beam does not know
        return False


def note(text: str) -> None:
    """Tell the user something beside the job's result."""
    print(f"make_shards: {in_line(text)}", file=sys.stderr)


def _identity(tokens: Sequence[str], lowercase: bool) -> Vocabulary:
    content = vocabulary_text(tokens).encode()
    return Vocabulary(len(tokens), checksum_of(content), lowercase)


def with_benchmark(job: Job, folder: str | None) -> tuple[Job, Benchmark | None]:
    """The job that also looks for a benchmark in the corpus, and that benchmark, if a folder of one is given.

    Raises:
        SourceError: nothing in it can be looked for.
        StorageError: a file of it can't be read.
    """
    if folder is None:
        return job, None
    benchmark = read_benchmark(Path(folder), note)
    return replace(job, benchmark=benchmark.identity), benchmark


def place_benchmark(job: Job, benchmark: Benchmark) -> None:
    """Put a benchmark where every worker can read it."""
    for kind, batch in zip((WorkFile.BENCHMARK_SEQUENCES, WorkFile.BENCHMARK_TEXTS), benchmark, strict=True):
        with files.publish_arrow(job.path(kind), job.work, batch.schema) as writer:
            writer.write_batch(batch)


def begin(
    job: Job,
    inputs: Sequence[Input],
    vocabulary: Sequence[str] | None,
    arguments: Arguments,
    benchmark: Benchmark | None = None,
) -> State:
    """Claim the output directory: see what is there, clear it if asked, and write job.json first of all.

    Where the job is not finished, what every worker reads is then put there: the vocabulary and the benchmark.

    Raises:
        JobError: the directory holds something else, or the vocabulary that is asked for among what is to be removed;
            or nothing can be written there.
        JobFailedError: its storage fails.
        ShardError: a finished job whose files have been lost since.
    """
    description = describe(job, inputs)
    names = job.layout.names("train") + job.layout.names("validation")
    with reaching(job.output):
        check_free(job.output, names)
        if arguments.overwrite:
            clear(job.output, names, needed=arguments.vocabulary)
            state: State = "new"
        else:
            state = inspect(job.output, description, arguments.vocabulary)
            if state == "failed":
                clear(job.output, names, needed=arguments.vocabulary)
                state = "new"
        if state == "finished":
            if not files.is_remote(job.output):
                ShardDirectory(job.output)
            _tidy(job.output)
            return state
        if state == "new":
            clear_work(job.output)
        # Also of an interrupted job, which may go on with another --on-error.
        text = json.dumps(description, indent=2, ensure_ascii=False) + "\n"
        files.write_text(files.join(job.output, JOB), text, job.work)
        if vocabulary is not None:
            _write_vocabulary(job, vocabulary)
        if benchmark is not None:
            place_benchmark(job, benchmark)
        _remove_work(job, *_STALE)
    return state


def _tidy(output: str) -> None:
    """Remove the intermediate files of a finished job, as far as that can be done: its shards need them no more."""
    try:
        clear_work(output)
    except OSError as error:
        later = "the shards are finished, and the same command removes it later"
        note(f"{output}: {WORK} can't be removed ({reason(error)}); {later}")


def _remove_work(job: Job, *kinds: WorkFile) -> None:
    present = files.names_below(job.work)
    files.remove(job.work, [name for name in present if any(kind.fits(name) for kind in kinds)])


def _write_vocabulary(job: Job, tokens: Sequence[str]) -> None:
    files.write_text(job.path(WorkFile.VOCABULARY), vocabulary_text(tokens), job.work)


def locate(job: Job, units: Sequence[Unit]) -> list[Unit]:
    """What the first pass reads, by its tasks, once it is known where files can be cut; tells what will take long.

    Raises:
        StorageError: an input can't be read, or has changed.
    """
    for file in large_and_whole(units, job.options.read):
        together = SOURCES[file.source].together
        otherwise = f" from {together}, or" if together else ""
        note(
            f"{file.path}: one worker reads all of it, some {text_bytes(file) / 1e9:.1f} GB of text; all read it "
            f"together{otherwise} once it is decompressed"
        )
    return located(units, note)


def provide_vocabulary(job: Job, units: Sequence[Unit], beam_options: Sequence[str]) -> Job:
    """The job with the vocabulary that is trained on its inputs, now or by the interrupted one that it goes on with.

    Raises:
        VocabularyError: too little text, or too small a size.
        SourceError, JobError, JobFailedError: as run_pipeline.
    """
    rule = job.options.train_vocabulary
    if rule is None:
        return job
    path = job.path(WorkFile.VOCABULARY)
    with reaching(job.output):
        text = files.read_text(path)
    if text is None:
        texts = draw_sample(job, units, rule.sample_bytes, beam_options)
        try:
            tokens = train_vocabulary(texts, rule.size, job.options.lowercase)
        except VocabularyError:
            with contextlib.suppress(OSError):  # what stays is told by the next command
                clear(job.output)
            raise
        with reaching(job.output):
            _write_vocabulary(job, tokens)
        with contextlib.suppress(OSError):  # they go with the other intermediate files then
            _remove_work(job, WorkFile.SAMPLE)
    else:
        tokens = parse_vocabulary(text, path)
    return replace(job, vocabulary=_identity(tokens, job.options.lowercase))


def execute(job: Job, units: Sequence[Unit], beam_options: Sequence[str]) -> Manifest:
    """Make the shards; returns their manifest.

    Raises:
        JobError: the engine made no manifest.
        SourceError, JobError, JobFailedError: as run_pipeline.
    """
    run_pipeline(job, beam_options, partial(build_pipeline, job=job, units=units))
    with reaching(job.output):
        manifest = files.read_text(files.join(job.output, MANIFEST))
    if manifest is None:
        raise JobError(f"{job.output}: the engine ended without an error and without a {MANIFEST}; see its log")
    _tidy(job.output)
    return Manifest.from_json(manifest, job.output)
