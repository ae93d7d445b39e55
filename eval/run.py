"""Evaluate an export.

    python -m eval.run --checkpoint runs/large/exports/step-001000 --tasks mlm,nsp,fill_mask --shards shards/ \
        --output results/

Everything that can be wrong with what was asked for is looked at before anything is computed. The results lie in
OUTPUT/results.json, are printed as tables, and become a run in MLflow, a child of the training run where there is one.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from eval.probe import SENTENCES
from eval.results import FORMAT_VERSION, RESULTS, figures_table, filled_table, write_results
from eval.tasks import GROUPS, TASKS, Subject, Task, select
from preprocessing.schema import ShardDirectory, ShardError, checksum
from preprocessing.tokenization import MASK, VOCABULARY_FILE, load_tokenizer
from trainer.data import SampleStream, validation_stream
from trainer.hugging_face import LINEAGE, WEIGHTS, Export, load_export
from trainer.lineage import code_version
from trainer.model import BertConfig, BertForPreTraining

_FEWEST = 2  # samples: one alone says nothing about its error


def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate; the exit code is 0, or 2 for a mistake in what was asked for."""
    arguments = _parse(argv)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    try:
        tasks = select([name.strip() for name in arguments.tasks.split(",") if name.strip()])
        lineage = read_lineage(arguments.checkpoint)
        subject = prepare(arguments, tasks)
        arguments.output.mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError) as error:
        return _refuse(error)
    try:
        results = evaluate(arguments.checkpoint, lineage, tasks, subject)
    except ShardError as error:
        return _refuse(error)
    write_results(arguments.output / RESULTS, results)
    print("\n".join(_shown(results)))
    if arguments.tracking:
        _track(arguments.output / RESULTS, results)
    return 0


def prepare(arguments: argparse.Namespace, tasks: Sequence[Task]) -> Subject:
    """Load what is evaluated, and see that it is complete and fits together.

    Raises:
        ValueError: something is missing, damaged or doesn't fit; the message says what to do.
    """
    export = load_export(arguments.checkpoint)
    _check_weights(export, arguments.checkpoint, tasks)
    tokenizer = load_tokenizer(arguments.checkpoint)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    positions = export.config.max_position_embeddings
    stream = None
    if any(task.needs_shards for task in tasks):
        stream = open_stream(arguments.shards, arguments.checkpoint, arguments.sequence_length, export.config)
    model = BertForPreTraining(export.config, seed=None)
    model.load_state_dict(export.state)
    return Subject(
        model=model.float().eval(),
        tokenizer=tokenizer,
        stream=stream,
        samples=min(arguments.samples, stream.size) if stream else 0,
        batch_size=arguments.batch_size,
        sentences=read_sentences(arguments.sentences, tokenizer, positions) if arguments.sentences else SENTENCES,
    )


def read_lineage(checkpoint: Path) -> dict[str, Any]:
    """Where an export comes from; empty for one that another program wrote.

    Raises:
        ValueError: lineage.json is not a JSON object.
    """
    path = checkpoint / LINEAGE
    if not path.is_file():
        return {}
    try:
        lineage = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error}); copy the export anew") from error
    if not isinstance(lineage, dict):
        raise ValueError(f"{path}: not a JSON object; copy the export anew")  # noqa: TRY004  a mistake in a file
    return lineage


def open_stream(shards: Path | None, checkpoint: Path, asked: int | None, config: BertConfig) -> SampleStream:
    """The held-out samples, made with the export's vocabulary and no longer than its model reads.

    Args:
        shards: a shard directory.
        checkpoint: the export.
        asked: the sequence length; None for the longest that there is and that fits.
        config: of the export's model.

    Raises:
        ValueError: no shards, incomplete ones, ones without held-out samples, of another vocabulary or too long.
    """
    if shards is None:
        raise ValueError("the tasks read held-out samples; give the shards with --shards")
    directory = ShardDirectory(shards)
    vocabulary = checkpoint / VOCABULARY_FILE
    if not vocabulary.is_file():
        raise ValueError(f"{vocabulary}: missing, so whether the shards fit can't be told; copy the export anew")
    if checksum(vocabulary) != directory.manifest.vocabulary.blake2b:
        raise ValueError(f"{shards}: made with another vocabulary than {vocabulary}; give shards made with that one")
    length = choose_length(asked, directory.manifest.sequence_lengths, config.max_position_embeddings)
    stream = validation_stream(directory, length, config.is_decoder)
    if stream.size < _FEWEST:
        raise ValueError(f"{shards}: {stream.size} held-out sample is too few for an estimate; hold out more documents")
    return stream


def choose_length(asked: int | None, lengths: Sequence[int], positions: int) -> int:
    """The sequence length to evaluate at: as asked, else the longest of the shards' that the model can read.

    Raises:
        ValueError: longer than the model has positions.
    """
    fitting = [length for length in ([asked] if asked else lengths) if length <= positions]
    if not fitting:
        raise ValueError(
            f"sequences of {asked or min(lengths)} tokens, but the model has {positions} positions; "
            "give shorter ones by --sequence-length, which the shards must have"
        )
    return max(fitting)


def read_sentences(path: Path, tokenizer: Tokenizer, positions: int) -> list[str]:
    """The sentences of a file, one a line; empty lines are passed over.

    Raises:
        ValueError: can't be read, holds no sentence, one without [MASK], or one longer than the model reads.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: can't read the sentences ({error}); give a file in UTF-8") from error
    numbered = [(number, line.strip()) for number, line in enumerate(lines, start=1) if line.strip()]
    if not numbered:
        raise ValueError(f"{path}: no sentences; write one a line, with {MASK} in it")
    for number, sentence in numbered:
        if MASK not in sentence:
            raise ValueError(f"{path}: line {number} has no {MASK}; write it where a word is to be guessed")
        if (length := len(tokenizer.encode(sentence).ids)) > positions:
            raise ValueError(f"{path}: line {number} has {length} tokens, but the model {positions} positions")
    return [sentence for _, sentence in numbered]


def evaluate(checkpoint: Path, lineage: dict[str, Any], tasks: Sequence[Task], subject: Subject) -> dict[str, Any]:
    """Run the tasks; what is returned is the content of results.json, see eval.results.

    Raises:
        ShardError: a shard is damaged.
    """
    began = time.perf_counter()
    found = {task.name: {"version": task.version, **dataclasses.asdict(task.evaluate(subject))} for task in tasks}
    return {
        "format_version": FORMAT_VERSION,
        "checkpoint": {
            "path": str(checkpoint.resolve()),
            "weights_blake2b": checksum(checkpoint / WEIGHTS),
            "lineage": lineage,
        },
        "shards": _origin(subject),
        "settings": {"dtype": "float32", "batch_size": subject.batch_size, "threads": torch.get_num_threads()},
        "tasks": found,
        "code": code_version(),
        "seconds": time.perf_counter() - began,
    }


def _origin(subject: Subject) -> dict[str, Any] | None:
    if subject.stream is None:
        return None
    return {
        "path": str(subject.stream.directory.path.resolve()),
        "manifest_blake2b": subject.stream.directory.manifest_blake2b,
        "sequence_length": subject.stream.sequence_length,
        "samples": subject.samples,
    }


def _check_weights(export: Export, checkpoint: Path, tasks: Sequence[Task]) -> None:
    """See that the heads that the tasks use were trained, and that every weight is a number."""
    for task in tasks:
        if missing := [name for name in export.initialized if name.startswith(task.heads)]:
            raise ValueError(
                f"{checkpoint / WEIGHTS}: lacks {missing[0]}, which {task.name} needs; "
                "give an export of the pretrained model with its heads"
            )
    for name, tensor in export.state.items():
        if not torch.isfinite(tensor).all():
            raise ValueError(f"{checkpoint / WEIGHTS}: {name} holds values that are no numbers; take an earlier step")


def _shown(results: dict[str, Any]) -> Iterator[str]:
    """The results for a reader at a terminal."""
    lineage, shards = results["checkpoint"]["lineage"], results["shards"]
    yield f"{results['checkpoint']['path']}, evaluated in {results['seconds']:.1f} s"
    if shards:
        size = f"{shards['samples']:,} held-out samples of {shards['sequence_length']} tokens"
        yield f"{size}; ± is half of the 95 % interval"
        if lineage.get("manifest_blake2b", shards["manifest_blake2b"]) != shards["manifest_blake2b"]:
            yield "note: the model was trained on other shards, whose training part may hold these samples"
    for table in (figures_table(results), filled_table(results)):
        if table:
            yield "\n" + table.rstrip("\n")


def _track(file: Path, results: dict[str, Any]) -> None:
    """Record results in MLflow; whatever goes wrong there is a warning, as the results are on disk."""
    checkpoint = Path(results["checkpoint"]["path"])
    # The run's directory as it was, and where it is now if it was moved with its exports.
    runs = [Path(results["checkpoint"]["lineage"].get("run", checkpoint.parent.parent)), checkpoint.parent.parent]
    try:
        from trainer.tracking import evaluation_store, log_evaluation  # seconds to import

        store = evaluation_store(dict.fromkeys(runs), file.parent)
        log_evaluation(store, f"eval {checkpoint.name}", tracked_metrics(results), tracked_tags(results), [file])
    except Exception as error:
        print(f"warning: not in MLflow: {str(error).partition(chr(10))[0] or type(error).__name__}", file=sys.stderr)
    else:
        print(
            f"\nMLflow: {store.tracking_uri}, {f'child of run {store.parent}' if store.parent else 'a run of its own'}"
        )


def tracked_metrics(results: dict[str, Any]) -> dict[str, float]:
    """The figures of all tasks as MLflow gets them: mlm_perplexity, nsp_accuracy, ..."""
    return {
        f"{name}_{metric}": measured["value"]
        for name, task in results["tasks"].items()
        for metric, measured in task["metrics"].items()
    }


def tracked_tags(results: dict[str, Any]) -> dict[str, str]:
    """Which weights, data, settings and code the figures are of; what isn't known is left out."""
    lineage, shards, code = results["checkpoint"]["lineage"], results["shards"] or {}, results["code"]
    tags = {
        "step": lineage.get("step"),
        "export_blake2b": results["checkpoint"]["weights_blake2b"],
        "manifest_blake2b": shards.get("manifest_blake2b"),
        "training_manifest_blake2b": lineage.get("manifest_blake2b"),
        "config_blake2b": lineage.get("config_blake2b"),
        "code_version": code["version"],
        "code_commit": code["commit"],
        "code_modified": code["modified"],
    }
    return {name: str(value) for name, value in tags.items() if value is not None}


def _refuse(error: Exception) -> int:
    print(f"error: {error}", file=sys.stderr)
    return 2


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m eval.run",
        description="Evaluate an export.",
        epilog=f"Tasks: {', '.join(TASKS)}; groups: {', '.join(GROUPS)}. docs/evaluation.md says what each measures.",
    )
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="EXPORT", help="RUN/exports/step-NNNNNN")
    parser.add_argument("--tasks", required=True, metavar="NAME[,NAME...]", help="tasks and groups of tasks")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help=f"for {RESULTS}, which is replaced")
    parser.add_argument("--shards", type=Path, metavar="DIR", help="their validation part is evaluated on")
    parser.add_argument(
        "--sequence-length",
        type=_positive,
        metavar="N",
        help="default: the longest of the shards' that the model reads",
    )
    parser.add_argument("--batch-size", type=_positive, default=32, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--samples",
        type=_at_least_two,
        default=2000,
        metavar="N",
        help="at most so many samples (default: %(default)s)",
    )
    parser.add_argument(
        "--sentences",
        type=Path,
        metavar="FILE",
        help=f"sentences to fill, one a line with {MASK} (default: ten of ours)",
    )
    parser.add_argument("--threads", type=_positive, metavar="N", help="default: as many as torch takes")
    parser.add_argument("--no-tracking", dest="tracking", action="store_false", help="leave MLflow out")
    return parser.parse_args(argv)


def _positive(text: str) -> int:
    return _at_least(text, 1)


def _at_least_two(text: str) -> int:
    return _at_least(text, _FEWEST)


def _at_least(text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {least} or more")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
