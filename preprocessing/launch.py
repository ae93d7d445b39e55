"""A preprocessing job from its command line to its end: prepared, begun, run, and its failures told."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import sys
import tempfile
import time
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
from preprocessing.contamination import Benchmark, read_benchmark
from preprocessing.encoder import available_engine
from preprocessing.inputs import Input, find_inputs, text_bytes, units_of
from preprocessing.interruption import before_end
from preprocessing.job import ERROR, STORAGE, Job, choose_layout, describe
from preprocessing.options import Arguments, VocabularyRule
from preprocessing.output import JOB, JobError, JobFailedError, State, clear, clear_work, inspect
from preprocessing.progress import show_progress
from preprocessing.sampling import ALL, build_sampling, first_cutoff, sampled_texts
from preprocessing.schema import MANIFEST, Manifest, ShardDirectory, Vocabulary
from preprocessing.sources import SourceError
from preprocessing.terminal import tell
from preprocessing.tokenization import (
    VocabularyError,
    case_of,
    load_vocabulary,
    parse_vocabulary,
    train_vocabulary,
    vocabulary_text,
)
from preprocessing.transforms import build_pipeline
from preprocessing.watchdog import STUCK, Watchdog
from preprocessing.workers import deaths_noticed, reach_by_no_proxy

LOG_TAIL = 4000  # bytes of Beam's noise that are shown when a job fails


def prepare(arguments: Arguments, output: str) -> tuple[Job, list[Input], list[str] | None]:
    """Check what the command line names and lay out the job.

    Returns:
        The job, its inputs, and the vocabulary's tokens; None where they are to be trained, and the job's vocabulary
        says how many are wanted.

    Raises:
        SourceError: inputs that are not there.
        VocabularyError: a vocabulary that can't be used, or is of the other case than --cased says.
        EncoderError: an encoder that is not installed.
    """
    available_engine(arguments.encoder)
    options = arguments.options
    tokens = load_vocabulary(arguments.vocabulary) if arguments.vocabulary is not None else None
    wanted = options.train_vocabulary.size if options.train_vocabulary else 0
    vocabulary = _identity(tokens, options.lowercase) if tokens else Vocabulary(wanted, "", options.lowercase)
    if tokens:
        _check_case(tokens, options.lowercase, str(arguments.vocabulary))
    inputs = find_inputs(arguments.inputs, note, options.read)
    job = Job(
        output=output,
        options=options,
        vocabulary=vocabulary,
        layout=choose_layout(inputs, options, vocabulary.size),
        units=len(units_of(inputs)),
        encoder=arguments.encoder,
        patience=arguments.patience,
    )
    return job, inputs, tokens


def note(text: str) -> None:
    """Tell the user something beside the job's result."""
    print(f"make_shards: {text}", file=sys.stderr)


def _check_case(tokens: Sequence[str], lowercase: bool, file: str) -> None:
    """See that a vocabulary is of the case that is asked for: shards of the other one look right, and learn badly.

    Raises:
        VocabularyError: it is not. The evaluation would refuse a model that was trained with it.
    """
    case = case_of(tokens)
    if case == "cased" and lowercase:
        raise VocabularyError(f"{file}: has upper-case letters, so it is a cased vocabulary; add --cased")
    if case == "uncased" and not lowercase:
        raise VocabularyError(f"{file}: has no upper-case letter, so it is an uncased vocabulary; leave --cased out")


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
        with files.publish_arrow(path, job.work, batch.schema) as writer:
            writer.write_batch(batch)


def begin(job: Job, inputs: Sequence[Input], vocabulary: Sequence[str] | None, arguments: Arguments) -> State:
    """Claim the output directory: see what is there, clear it if asked, and write job.json first of all.

    Raises:
        JobError: the directory holds something else, or the vocabulary that is asked for among what is to be removed.
        ShardError: a finished job whose files have been lost since.
    """
    description = describe(job, inputs)
    try:
        if arguments.overwrite:
            names = job.layout.names("train") + job.layout.names("validation")
            clear(job.output, names, needed=arguments.vocabulary)
            state: State = "new"
        else:
            state = inspect(job.output, description)
        if state == "finished":
            if not files.is_remote(job.output):
                ShardDirectory(job.output)
            clear_work(job.output)
            return state
        if state == "new":
            clear_work(job.output)
            text = json.dumps(description, indent=2, ensure_ascii=False) + "\n"
            files.write_text(files.join(job.output, JOB), text, job.work)
        if vocabulary is not None:
            _write_vocabulary(job, vocabulary)
    except OSError as error:
        raise JobError(f"{job.output}: can't write there ({error.strerror}); use another directory") from error
    stale = [name for name in files.names_below(job.work) if name.startswith((ERROR, "tmp-"))]
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
            clear(job.output)
            raise
        try:
            _write_vocabulary(job, tokens)
        except OSError as error:
            if files.is_full(error):
                raise JobError(files.FULL.format(job.output)) from error
            raise
        files.remove(job.work, [name for name in files.names_below(job.work) if name.startswith("sample-")])
    else:
        tokens = parse_vocabulary(text, job.vocabulary_file)
    return replace(job, vocabulary=_identity(tokens, job.options.lowercase))


def _draw_sample(job: Job, inputs: Sequence[Input], rule: VocabularyRule, beam_options: Sequence[str]) -> list[str]:
    """The texts with the lowest hashes. Where the inputs hold less than it seemed, they are read a second time."""
    budget = rule.sample_bytes
    units = units_of(inputs)
    texts: list[str] = []
    for cutoff in (first_cutoff(budget, sum(map(text_bytes, inputs))), ALL):
        _run_pipeline(job, beam_options, partial(build_sampling, job=job, units=units, budget=budget, cutoff=cutoff))
        texts, filled = sampled_texts(job, budget)
        if filled or cutoff == ALL:
            break
    return texts


def execute(job: Job, inputs: Sequence[Input], beam_options: Sequence[str]) -> tuple[Manifest, float]:
    """Make the shards; returns their manifest and the seconds it took.

    Raises:
        SourceError: an input that can't be read, or a corpus that can't be sharded as asked, wherever that was found.
        JobError: nothing can be written any more, or an input not be read, or the engine made no manifest.
        JobFailedError: a document takes for ever, or a worker process has died.
    """
    begun = time.monotonic()
    _run_pipeline(job, beam_options, partial(build_pipeline, job=job, units=units_of(inputs)))
    manifest = files.read_text(files.join(job.output, MANIFEST))
    if manifest is None:
        raise JobError(f"{job.output}: the engine ended without an error and without a {MANIFEST}; see its log")
    return Manifest.from_json(manifest, job.output), time.monotonic() - begun


def _run_pipeline(job: Job, beam_options: Sequence[str], build: Callable[[beam.Pipeline], None]) -> None:
    options = PipelineOptions(list(beam_options))
    if options.view_as(DirectOptions).direct_running_mode == "multi_processing":
        # One thread a worker process: there are as many processes as the user wants cores busy.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    reach_by_no_proxy()
    # A timed flush of Beam's data channel races with its writer and drops elements; 0 turns it off.
    worker_handlers.DATA_BUFFER_TIME_LIMIT_MS = 0
    embedded = options.view_as(StandardOptions).runner == "FnApiRunner"
    with _quiet(embedded) as terminal, show_progress(job, terminal), deaths_noticed(terminal) as why_a_worker_died:
        try:
            pipeline = beam.Pipeline(options=options)
            build(pipeline)
            running = pipeline.run()
            # The workers of another machine's engine would go on, and write among the files of the next job.
            with contextlib.nullcontext() if embedded else before_end(running.cancel):
                running.wait_until_finish()
        except Exception as error:
            if reason := job.left_error(STUCK):
                raise JobFailedError(reason) from error
            if reason := job.left_error(STORAGE):
                raise JobError(reason) from error
            if files.is_full(error):
                raise JobError(files.FULL.format(job.output)) from error
            if reason := job.left_error(ERROR):
                # What is wrong with the inputs or the options changes with them, and so what was made is of no use.
                clear(job.output)
                raise SourceError(reason) from error
            if reason := why_a_worker_died():
                raise JobFailedError(reason) from error
            raise


def _temporary_file() -> IO[bytes]:
    try:
        return tempfile.TemporaryFile()
    except OSError as error:
        raise JobError(f"no temporary file can be made ({error.strerror}); free some space, or set TMPDIR") from error


@contextmanager
def _quiet(embedded: bool) -> Iterator[int]:
    """Keep what Beam and its worker processes write to stderr in a file, shown only if the job fails.

    Worker processes inherit the descriptor, so it is the descriptor that is turned aside.

    Yields:
        A descriptor of the terminal (or whatever stderr was), to tell the user something.
    """
    if not embedded:
        yield 2
        return
    sys.stderr.flush()
    terminal = os.dup(2)
    with _temporary_file() as log:
        os.dup2(log.fileno(), 2)
        Watchdog.terminal = terminal
        level = logging.getLogger("apache_beam").level
        logging.getLogger("apache_beam").setLevel(logging.ERROR)
        try:
            yield terminal
        except (JobError, JobFailedError, SourceError):
            raise  # a worker's noise about it adds nothing
        except Exception:
            log.seek(max(0, log.tell() - LOG_TAIL))
            tell(terminal, log.read().decode(errors="replace"))
            raise
        finally:
            logging.getLogger("apache_beam").setLevel(level)
            Watchdog.terminal = None
            os.dup2(terminal, 2)
            os.close(terminal)
