"""What an evaluation is to do, from the words of the command, checked before anything is computed."""

from __future__ import annotations

import argparse
import dataclasses
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from eval.errors import UsageError
from eval.evaluated import learns_next_sentence, run_directory, settings_of
from eval.experiment import Bench, Experiment
from eval.features import FeatureTags
from eval.finetune import Settings
from eval.grid import Search
from eval.inputs import Checkpoint, check_heads, check_sentence, open_checkpoint, open_stream, read_sentences
from eval.kinds import Tags, Texts
from eval.options import without_effect
from eval.parts import Parts, read_parts
from eval.pretrained import build
from eval.probe import SENTENCES
from eval.results import RESULTS, by_command, read_results_of
from eval.tasks import Task, select
from eval.tasks.finetuned import FineTuned
from eval.tasks.intrinsic import Intrinsic, Subject
from preprocessing.status import is_dir
from preprocessing.tokenization import case_of
from trainer.lineage import code_version

_log = logging.getLogger("eval")
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Plan:
    """What is to be done, checked.

    Attributes:
        tasks: in the order that they were asked for.
        bench: what is evaluated, and how tasks are learned.
        subject: for the tasks that learn nothing; None without such.
        experiments: task -> its experiment, of those that learn.
    """

    tasks: list[Task]
    bench: Bench
    subject: Subject | None
    experiments: dict[str, Experiment]


def prepare(arguments: argparse.Namespace) -> Plan:
    """Load what is evaluated and what on, and see that it is complete and fits together.

    Raises:
        UsageError: something is missing, damaged or doesn't fit; the message says what to do.
        UnavailableError: something can't be read now.
    """
    selected = select(arguments.tasks)
    for note in () if arguments.effects_told else without_effect(arguments, selected):
        _log.warning(note)
    checkpoint = open_checkpoint(arguments.checkpoint)
    _ = checkpoint.lineage  # which the results will hold: a damaged one is refused now
    earlier = read_results_of(arguments.output / RESULTS, checkpoint.weights_blake2b)
    tasks, device = [adapt(task, arguments) for task in selected], _device(arguments)
    subject = _subject([task for task in tasks if isinstance(task, Intrinsic)], arguments, checkpoint, earlier)
    settings = Settings(optimizer=arguments.optimizer, precision=arguments.precision, max_tokens=arguments.max_tokens)
    bench = Bench(checkpoint, settings, device, arguments.output, arguments.save_models, code_version())
    experiments = _experiments([task for task in tasks if isinstance(task, FineTuned)], arguments, bench)
    _for_each(experiments.values(), Experiment.check)
    return Plan(tasks, bench, subject, experiments)


def adapt(task: Task, arguments: argparse.Namespace) -> Task:
    """A task with the settings of the command in the place of its own."""
    if isinstance(task, FineTuned) and arguments.max_length:
        task = dataclasses.replace(task, max_length=arguments.max_length)
    if isinstance(task, FineTuned) and isinstance(task.kind, Texts) and arguments.long_text:
        task = dataclasses.replace(task, kind=dataclasses.replace(task.kind, long_text=arguments.long_text))
    return task


def search_of(arguments: argparse.Namespace) -> Search:
    """What the command says of the points to try."""
    return Search(arguments.learning_rates, arguments.epochs, arguments.batch_sizes, tuple(range(arguments.seeds)))


def _subject(
    tasks: Sequence[Intrinsic], arguments: argparse.Namespace, checkpoint: Checkpoint, earlier: dict[str, Any] | None
) -> Subject | None:
    if not tasks:
        return None
    for task in tasks:
        check_heads(checkpoint, task.name, task.heads)
    stream = None
    if held_out := {task.name for task in tasks if task.needs_shards}:
        stream = open_stream(arguments.shards, checkpoint, arguments.sequence_length)
        if earlier:
            _check_shards(earlier, held_out, stream.directory.manifest_blake2b, arguments.output / RESULTS)
    if any(task.name == "fill_mask" for task in tasks) and not arguments.sentences:
        for sentence in SENTENCES:
            check_sentence(sentence, checkpoint, f"{sentence!r}, one of our --sentences,")
    export = {"path": str(checkpoint.path), "lineage": checkpoint.lineage}
    run = run_directory(export, arguments.output / RESULTS)
    return Subject(
        model=build(checkpoint.export).to(held_out_device(arguments)),
        tokenizer=checkpoint.tokenizer,
        stream=stream,
        samples=min(arguments.samples, stream.size) if stream else 0,
        batch_size=arguments.batch_size,
        sentences=read_sentences(arguments.sentences, checkpoint) if arguments.sentences else SENTENCES,
        judges_sentences=learns_next_sentence(settings_of(run)),
    )


def _check_shards(earlier: dict[str, Any], tasks: set[str], manifest_blake2b: str, path: Path) -> None:
    """See that no figures on other shards are replaced, which may have taken hours.

    Args:
        earlier: results of the same weights.
        tasks: that read held-out samples now.
        manifest_blake2b: of the shards that they are of.
        path: of the results.

    Raises:
        UsageError: some are of others.
    """
    for found in by_command(earlier):
        shards, again = found["shards"], sorted(tasks & found["tasks"].keys())
        if again and shards and shards["manifest_blake2b"] != manifest_blake2b:
            raise UsageError(
                f"{path}: has {' and '.join(again)} of other shards, that lay in {shards['path']}; choose another "
                "--output, or delete that file"
            )


def _experiments(tasks: Sequence[FineTuned], arguments: argparse.Namespace, bench: Bench) -> dict[str, Experiment]:
    check_source(tasks, arguments)
    if tasks and arguments.data and not is_dir(arguments.data):  # a file could pass for train and dev at once
        raise UsageError(f"{arguments.data}: no such directory; give the folder of the data sets with --data")
    tagged = [task.name for task in tasks if isinstance(task.kind, Tags | FeatureTags)]
    if tagged and case_of(bench.checkpoint.tokenizer.get_vocab()) == "uncased":
        _log.warning(
            "%s: the export's vocabulary has no upper case, by which names are known; the paper's models were cased",
            ", ".join(tagged),
        )
    longest = arguments.max_length or 0
    if tasks and longest > bench.checkpoint.positions:
        raise UsageError(
            f"--max-length {longest}: the export has {bench.checkpoint.positions} positions; give as many, or make one "
            "with more by trainer.new_positions"
        )
    search = search_of(arguments)

    def read(task: FineTuned) -> tuple[FineTuned, Parts]:
        return task.on(arguments.data), read_parts(task, arguments.data, arguments.test, arguments.limit)

    return {task.name: Experiment(task, parts, bench, search) for task, parts in _for_each(tasks, read)}


def _for_each(items: Iterable[_Item], do: Callable[[_Item], _Result]) -> list[_Result]:
    """What is done with each; all that is wrong with any of them is told at once."""
    done, wrong = [], dict[str, None]()
    for item in items:
        try:
            done.append(do(item))
        except UsageError as error:
            wrong[str(error)] = None
    if wrong:
        raise UsageError("; ".join(wrong))
    return done


def check_source(tasks: Sequence[FineTuned], arguments: argparse.Namespace) -> None:
    """See that the command says where data sets come from, if any is read.

    Raises:
        UsageError: it does not.
    """
    if tasks and not (arguments.data or arguments.hub):
        raise UsageError(f"{tasks[0].name} reads a data set; give the folder of its files with --data, or --hub")


def held_out_device(arguments: argparse.Namespace) -> str:
    """Where tasks compute that learn nothing: of the GPU's memory a training that is followed may need all."""
    return arguments.device or "cpu"


def _device(arguments: argparse.Namespace) -> torch.device:
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: torch finds no GPU here; leave the option out to learn on the CPU")
    return torch.device(arguments.device or ("cuda" if torch.cuda.is_available() else "cpu"))
