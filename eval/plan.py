"""What an evaluation is to do, from the words of the command, checked before anything is computed."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from eval.experiment import Bench, Experiment, read_parts
from eval.finetune import Settings
from eval.grid import Search
from eval.inputs import Checkpoint, check_heads, open_checkpoint, open_stream, read_lineage, read_sentences
from eval.kinds import Texts
from eval.pretrained import build
from eval.probe import SENTENCES
from eval.tasks import Task, select
from eval.tasks.finetuned import FineTuned
from eval.tasks.intrinsic import Intrinsic, Subject


@dataclass(frozen=True)
class Plan:
    """What is to be done, checked.

    Attributes:
        tasks: in the order that they were asked for.
        checkpoint: what is evaluated.
        lineage: where it comes from.
        subject: for the tasks that learn nothing; None without such.
        experiments: task -> its experiment, of those that learn.
        settings: of the learning.
        device: to learn on.
    """

    tasks: list[Task]
    checkpoint: Checkpoint
    lineage: dict[str, Any]
    subject: Subject | None
    experiments: dict[str, Experiment]
    settings: Settings
    device: torch.device


def prepare(arguments: argparse.Namespace) -> Plan:
    """Load what is evaluated and what on, and see that it is complete and fits together.

    Raises:
        ValueError: something is missing, damaged or doesn't fit; the message says what to do.
    """
    selected = select(arguments.tasks)
    checkpoint = open_checkpoint(arguments.checkpoint)
    lineage = read_lineage(arguments.checkpoint)
    tasks = [_adapt(task, arguments, checkpoint.export.config.max_position_embeddings) for task in selected]
    plan = Plan(
        tasks=tasks,
        checkpoint=checkpoint,
        lineage=lineage,
        subject=_subject([task for task in tasks if isinstance(task, Intrinsic)], arguments, checkpoint),
        experiments=_experiments(
            [task for task in tasks if isinstance(task, FineTuned)], arguments, checkpoint, lineage
        ),
        settings=_settings(arguments),
        device=_device(arguments),
    )
    for experiment in plan.experiments.values():
        experiment.check()
    return plan


def _adapt(task: Task, arguments: argparse.Namespace, positions: int) -> Task:
    """A task with the settings of the command in the place of its own."""
    if isinstance(task, FineTuned) and arguments.max_length:
        if arguments.max_length > positions:
            raise ValueError(f"--max-length {arguments.max_length}: the export has {positions} positions; give as many")
        task = dataclasses.replace(task, max_length=arguments.max_length)
    if isinstance(task, FineTuned) and isinstance(task.kind, Texts) and arguments.long_text:
        task = dataclasses.replace(task, kind=dataclasses.replace(task.kind, long_text=arguments.long_text))
    return task


def _subject(tasks: Sequence[Intrinsic], arguments: argparse.Namespace, checkpoint: Checkpoint) -> Subject | None:
    if not tasks:
        return None
    export, tokenizer = checkpoint.export, checkpoint.tokenizer
    for task in tasks:
        check_heads(checkpoint, task.name, task.heads)
    stream = None
    if any(task.needs_shards for task in tasks):
        stream = open_stream(arguments.shards, checkpoint.path, arguments.sequence_length, export.config)
    positions = export.config.max_position_embeddings
    return Subject(
        model=build(export),
        tokenizer=tokenizer,
        stream=stream,
        samples=min(arguments.samples, stream.size) if stream else 0,
        batch_size=arguments.batch_size,
        sentences=read_sentences(arguments.sentences, tokenizer, positions) if arguments.sentences else SENTENCES,
    )


def _experiments(
    tasks: Sequence[FineTuned], arguments: argparse.Namespace, checkpoint: Checkpoint, lineage: dict[str, Any]
) -> dict[str, Experiment]:
    check_source(tasks, arguments)
    if tasks and arguments.data and not arguments.data.is_dir():  # a file could pass for train and dev at once
        raise ValueError(f"{arguments.data}: no such directory; give the folder of the data sets with --data")
    bench = Bench(
        export=checkpoint.export,
        tokenizer=checkpoint.tokenizer,
        export_blake2b=checkpoint.blake2b,
        settings=_settings(arguments),
        device=_device(arguments),
        output=arguments.output,
        checkpoint=checkpoint.path,
        lineage=lineage,
        saves_models=arguments.save_models,
    )
    search = Search(arguments.learning_rates, arguments.epochs, arguments.batch_sizes, tuple(range(arguments.seeds)))
    return {
        task.name: Experiment(task, read_parts(task, arguments.data, arguments.test, arguments.limit), bench, search)
        for task in tasks
    }


def check_source(tasks: Sequence[FineTuned], arguments: argparse.Namespace) -> None:
    """See that the command says where data sets come from, if any is read.

    Raises:
        ValueError: it does not.
    """
    if tasks and not (arguments.data or arguments.hub):
        raise ValueError(f"{tasks[0].name} reads a data set; give the folder of its files with --data, or --hub")


def _settings(arguments: argparse.Namespace) -> Settings:
    return Settings(optimizer=arguments.optimizer, precision=arguments.precision, max_tokens=arguments.max_tokens)


def _device(arguments: argparse.Namespace) -> torch.device:
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch finds no GPU here; leave the option out to learn on the CPU")
    return torch.device(arguments.device or ("cuda" if torch.cuda.is_available() else "cpu"))
