"""The options of eval.run."""

from __future__ import annotations

import argparse
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

from eval.encoding import LongText
from eval.evaluated import EVALUATIONS
from eval.finetune import Optimizer, Precision, Settings
from eval.inputs import FEWEST
from eval.kinds import Texts
from eval.results import MODELS, RESULTS
from eval.tasks import Task, list_all
from eval.tasks.finetuned import FineTuned
from eval.tasks.intrinsic import Intrinsic
from preprocessing.command_line import OneLineParser, number, parse_path, whole_number
from preprocessing.tokenization import MASK
from trainer.run_directory import RunDirectory, without_links

SUBMISSION = "glue_submission.zip"
EFFECTS_TOLD = "--effects-told"
_LONGEST = 128  # bytes of a folder's name that are told; file systems take 255
T = TypeVar("T", int, float)


def parse(argv: Sequence[str], program: str = "python -m eval.run") -> argparse.Namespace:
    """Read the words of the command, links of the export resolved; a mistake ends the program with exit code 2."""
    parser = _parser(program)
    arguments = parser.parse_args(argv)
    # Once: a link such as exports/latest may lead to another export before the end.
    named, arguments.checkpoint = arguments.checkpoint, Path(os.path.realpath(arguments.checkpoint))
    if not (arguments.output or arguments.checkpoint.name):
        parser.error(f"--checkpoint {arguments.checkpoint}: results have no place beside it; give one by --output")
    arguments.output = arguments.output or default_output(without_links(named), arguments.tasks)
    if arguments.grid_index is None:
        if arguments.grid_count > 1:
            parser.error(f"--grid-count {arguments.grid_count} needs --grid-index, the number of this process")
        arguments.grid_index = 0
    if arguments.grid_index >= arguments.grid_count:
        last = arguments.grid_count - 1
        parser.error(f"--grid-index {arguments.grid_index} is not from 0 to {last}, as --grid-count is {last + 1}")
    return arguments


def _parser(program: str | None = None) -> OneLineParser:
    parser = OneLineParser(
        prog=program,
        description="Evaluate an export.",
        epilog=f"{list_all()} docs/evaluation.md says what each measures.",
    )
    parser.add_argument(
        "--checkpoint", type=parse_path, required=True, metavar="EXPORT", help="RUN/exports/step-NNNNNN"
    )
    parser.add_argument(
        "--tasks", type=split_words, required=True, metavar="NAME[,NAME...]",
        help="tasks, groups of tasks, and files that describe a task of your own",
    )  # fmt: skip
    parser.add_argument(
        "--output", type=parse_path, metavar="DIR",
        help=f"for {RESULTS}, where other tasks of the same weights stay (default: a folder for export and tasks in "
        f"RUN/{EVALUATIONS}, where eval.report looks, or beside an export that is of no run)",
    )  # fmt: skip
    parser.add_argument(
        "--threads",
        type=_threads,
        metavar="N",
        help="of each process (default: as many as torch takes, divided among --workers)",
    )
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        help="default: cuda where there is one for tasks that the model learns, and cpu for the others, which often "
        "follow a training that has the GPU's memory",
    )
    parser.add_argument("--no-tracking", dest="tracking", action="store_false", help="leave MLflow out")
    # Of a process that another one starts, which has told what without_effect finds.
    parser.add_argument(EFFECTS_TOLD, action="store_true", help=argparse.SUPPRESS)
    _add_held_out(parser.add_argument_group("tasks that learn nothing"))
    _add_learning(parser.add_argument_group("tasks that the model learns"))
    _add_sharing(parser.add_argument_group("several processes"))
    return parser


def without_effect(arguments: argparse.Namespace, tasks: Sequence[Task]) -> Iterator[str]:
    """Lines on options that were given and that none of some tasks heeds, and on test sets that there are not.

    That is no mistake: a cluster's settings may be for many evaluations. A watch, which passes the options of its final
    tasks to all evaluations, asks once for the tasks of all. Where things lie, and what computes them, is said for all
    tasks alike.
    """
    default, names = _parser().get_default, ", ".join(task.name for task in tasks)
    for what, options, heeds in _HEEDED:
        given = [option for option in options if getattr(arguments, option) != default(option)]
        if given and not any(map(heeds, tasks)):
            shown = ", ".join(f"--{option.replace('_', '-')}" for option in given)
            yield f"{shown}: for {what} only, without effect on {names}"
    learned = [task for task in tasks if isinstance(task, FineTuned)]
    if arguments.test and (untested := [task.name for task in learned if not task.test]):
        yield f"--test: without effect on {', '.join(untested)}: no test set besides what is judged on"


_HEEDED: tuple[tuple[str, tuple[str, ...], Callable[[Task], bool]], ...] = (
    (
        "tasks that read held-out samples",
        ("sequence_length", "batch_size", "samples"),
        lambda task: isinstance(task, Intrinsic) and task.needs_shards,
    ),
    ("fill_mask", ("sentences",), lambda task: task.name == "fill_mask"),
    (
        "tasks that the model learns",
        (
            *("test", "save_models", "seeds", "learning_rates", "epochs", "batch_sizes", "max_length"),
            *("optimizer", "precision", "max_tokens", "limit"),
        ),
        lambda task: isinstance(task, FineTuned),
    ),
    ("tasks of texts", ("long_text",), lambda task: isinstance(task, FineTuned) and isinstance(task.kind, Texts)),
)


def default_output(export: Path, tasks: Sequence[str]) -> Path:
    """A folder for the results of some tasks on an export, which those of others do not replace.

    Args:
        export: see trainer.run_directory.without_links.
        tasks: as they are asked for.
    """
    around = export.parent.parent
    if export.parent.name == RunDirectory(around).exports.name:
        folder, of = around / EVALUATIONS, export.name
    elif export.parent.name == MODELS and around.parent.name == EVALUATIONS:  # a task's model, of an evaluation
        folder, of = around.parent, f"{around.name}-{MODELS}-{export.name}"
    else:
        folder, of = export.with_name(f"{export.name}-{EVALUATIONS}"), export.name
    name = "-".join([of, *(Path(task).stem for task in tasks)])
    whole = os.fsencode(name)
    if len(whole) > _LONGEST:
        begin = whole[:_LONGEST].decode(errors="ignore")  # a letter that is cut
        name = f"{begin}-{hashlib.blake2b(whole, digest_size=8).hexdigest()}"
    return folder / name


class _OneDirectory(argparse.Action):
    """A folder of shards; several, as the trainer takes them, end the program with a line on what to do instead."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        """Keep the folder."""
        if len(values) > 1 or getattr(namespace, self.dest) is not None:
            told = "an evaluation reads one directory; run python -m eval.run for each, with an --output of its own"
            parser.error(f"{option}: {told}")
        setattr(namespace, self.dest, values[0])


def _add_held_out(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--shards",
        type=parse_path,
        nargs="+",
        action=_OneDirectory,
        metavar="DIR",
        help="their validation part is evaluated on; one directory",
    )
    group.add_argument(
        "--sequence-length",
        type=_positive,
        metavar="N",
        help="default: the longest of the shards' that the model reads",
    )
    group.add_argument("--batch-size", type=_positive, default=32, metavar="N", help="default: %(default)s")
    group.add_argument(
        "--samples", type=_fewest, default=2000, metavar="N", help="at most so many samples (default: %(default)s)"
    )
    group.add_argument(
        "--sentences",
        type=parse_path,
        metavar="FILE",
        help=f"sentences to fill, one a line with {MASK} (default: ten of ours)",
    )


def _add_learning(group: argparse._ArgumentGroup) -> None:
    source = group.add_mutually_exclusive_group()
    source.add_argument("--data", type=parse_path, metavar="DIR", help="folder with the files of the data sets")
    source.add_argument("--hub", action="store_true", help="take the data sets from the Hugging Face hub instead")
    group.add_argument("--test", action="store_true", help=f"predict test sets too; GLUE's go to {SUBMISSION}")
    group.add_argument(
        "--save-models", action="store_true", help="keep each task's best model, as a folder that transformers loads"
    )
    group.add_argument("--seeds", type=_seeds, default=1, metavar="N", help="random restarts (default: %(default)s)")
    several: dict[str, Any] = {"metavar": "X[,X...]", "help": "to try, instead of the task's own"}
    group.add_argument("--learning-rates", type=_several(_rate), **several)
    group.add_argument("--epochs", type=_several(_positive), **several)
    group.add_argument("--batch-sizes", type=_several(_positive), **several)
    group.add_argument(
        "--max-length", type=_positive, metavar="N", help="tokens of a sequence, instead of the task's own"
    )
    group.add_argument(
        "--long-text",
        choices=get_args(LongText),
        help="which part of a text that is too long is read, of tasks of texts",
    )
    group.add_argument(
        "--optimizer", choices=get_args(Optimizer), default="bert_adam", help="(default: %(default)s, the paper's)"
    )
    group.add_argument("--precision", choices=get_args(Precision), default="float32", help="(default: %(default)s)")
    group.add_argument(
        "--max-tokens",
        type=_positive,
        default=Settings.max_tokens,
        metavar="N",
        help="computed at once; lower it when memory is short (default: %(default)s)",
    )
    group.add_argument("--limit", type=_positive, metavar="N", help="take N examples of each data set, to try it out")


def _add_sharing(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--workers", type=_workers, default=1, metavar="N", help="processes here, each with a GPU where there are some"
    )
    group.add_argument("--grid-index", type=_index, metavar="I", help="this process's number, from 0")
    group.add_argument(
        "--grid-count", type=_positive, default=1, metavar="N", help="processes that share the grids' points"
    )
    group.add_argument("--points-only", action="store_true", help="leave the results to another process")


def _several(kind: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    def parse_all(text: str) -> tuple[T, ...]:
        if not split_words(text):
            raise argparse.ArgumentTypeError("there is no value in it")
        return tuple(kind(word) for word in split_words(text))

    return parse_all


def split_words(text: str) -> list[str]:
    """What stands between the commas of a text."""
    return [word.strip() for word in text.split(",") if word.strip()]


_rate = number("a learning rate, such as 5e-5", lambda rate: 0 < rate < 1)
_index, _positive, _fewest = (whole_number(least, 2**31 - 1) for least in (0, 1, FEWEST))
_threads = _workers = whole_number(1, 1024)  # with many more threads, torch crashes
_seeds = whole_number(1, 10_000)  # each is a point of the grid, which is kept in memory
