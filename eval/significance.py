"""Whether one model is better than another, or the examples happen to suit it.

    python -m eval.significance runs/a/evaluations/step-900000 runs/b/evaluations/step-900000

Both are folders that eval.run has left: results.json says what was evaluated, predictions/ what the best point of each
task's grid made of the dev set. How they are compared is in eval.paired.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

from preprocessing.extras import needs
from preprocessing.status import is_file

with needs("eval"):
    from eval.errors import UsageError
    from eval.features import FeatureTags
    from eval.kinds import ANSWERS, PREDICTIONS, TAGS, Choices, Kind, Questions, Tags, Texts, read_predictions
    from eval.metrics import entity_counts, read_answers
    from eval.options import split_words
    from eval.paired import Difference, Pairs, compare, holm, of_counts, of_labels, of_scores, welch
    from eval.parts import read_dev
    from eval.readers.conll import convert_tags
    from eval.readers.examples import DatasetError, QuestionExample, TaggedSentence
    from eval.results import PREDICTED, RESULTS, by_command, is_learned, read_results
    from eval.selection import prefix_of
    from eval.squad_metrics import korquad, squad_v1, squad_v2
    from eval.storage import reading
    from eval.tasks import select
    from eval.tasks.finetuned import FINE_TUNED, FineTuned
    from eval.tasks.own import SUFFIX
    from preprocessing.command_line import OneLineParser, parse_path, whole_number
    from preprocessing.markdown import markdown_table
    from preprocessing.storage_errors import UnavailableError, exit_code
    from preprocessing.terminal import in_line, print_result, tell_error

_FEWEST = 100  # resamples
_SAME = 1e-6  # per cent: a figure of predictions is that of the results but for rounding
_SCORERS = {"v1.1": squad_v1, "v2.0": squad_v2, "korquad": korquad}
_NOTES = (
    "B - A is better above 0. The interval (95 %) and p are of the dev examples: how far others could have turned the "
    "difference. They are of one model each, the best point of its grid, and say nothing of what another seed would "
    "have made of it.",
    "Several rows are several tests: p of all is p adjusted for their number (Holm, 1979).",
)
_NOTE_ON_SEEDS = "Under seeds are means over those that share the best point's other hyperparameters; p is Welch's."
T = TypeVar("T")


@dataclass(frozen=True)
class Evaluation:
    """What one folder holds of a task.

    Attributes:
        folder: with results.json and predictions/.
        task: what the task is.
        found: results of the command that evaluated it.
    """

    folder: Path
    task: FineTuned
    found: Mapping[str, Any]

    @property
    def content(self) -> dict[str, Any]:
        """The task's own results."""
        content: dict[str, Any] = self.found["tasks"][self.task.name]
        return content

    @property
    def data(self) -> dict[str, Any]:
        """Path and limit of the data set."""
        return self.found.get("data") or {}

    def seeds(self, metric: str) -> list[float]:
        """Figures of the restarts of the best point, itself included."""
        figures: list[float] = self.content["details"].get("seeds", {}).get(metric, [])
        return figures

    def predictions(self, part: str, name: str, read: Callable[[Path], T]) -> T:
        """What a file of predictions holds.

        Raises:
            UsageError: it is missing, damaged or not for this user to read.
            UnavailableError: it can't be read now.
        """
        path = self.folder / PREDICTED / self.task.name / f"{part}_{name}"
        try:
            with reading(path):
                return read(path)
        except OSError as error:
            raise UsageError(f"{path}: can't be read ({error.strerror}); evaluate {self.task.name} again") from error
        except DatasetError as error:
            raise UsageError(f"{error}; evaluate {self.task.name} again") from error
        except UsageError:  # it is another user's, and may be whole
            raise
        except (ValueError, IndexError) as error:
            raise UsageError(f"{path}: damaged; evaluate {self.task.name} again") from error


@dataclass(frozen=True)
class Row:
    """A comparison of two models by one metric of a task.

    Attributes:
        task: its name.
        metric: as results.json has it.
        difference: on the dev examples.
        seeds: figures of each model's restarts; empty where they say nothing of them.
    """

    task: str
    metric: str
    difference: Difference
    seeds: tuple[list[float], list[float]]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the comparison; the exit code is 0, 1 if the storage failed, or 2 for a mistake in what was asked for."""
    arguments = _parse(argv)
    wanted = arguments.tasks
    try:
        folders = arguments.evaluations = list(map(_folder, arguments.evaluations))
        learned = of_a, of_b = [read_learned(folder) for folder in folders]
        own = [name for name in of_a if name in of_b and name not in FINE_TUNED]
        pairs = pair_up(folders, learned, _tasks(wanted, own), own if wanted is None else None)
        rows = [row for pair in pairs for row in compare_task(*pair, arguments)]
    except (UsageError, OSError, UnavailableError) as error:
        tell_error(error)
        return exit_code(error)
    if own and wanted is None:
        are = "are" if len(own) > 1 else "is"
        note = f"note: {', '.join(own)} {are} in both and left out; {_by_file(own, pairs)}"
        print(in_line(note), file=sys.stderr)
    return print_result(_json(rows, arguments) if arguments.json else "\n".join(_report(rows, arguments)))


def _folder(path: Path) -> Path:
    """The one of an evaluation, whose results.json may be given in its place, as eval.run tells it.

    Raises:
        UsageError: this user may not look there.
        UnavailableError: what is there can't be told now.
    """
    with reading(path):
        return path.parent if path.name == RESULTS and is_file(path) else path


def _tasks(wanted: Sequence[str] | None, own: Sequence[str]) -> list[FineTuned]:
    """Those to compare where both have them: named ones, or all but the user's own, which only a file describes.

    Args:
        wanted: what names them; None for all.
        own: tasks of the user's that both have.

    Raises:
        UsageError: an unknown name, one that is a user's task and not its file, or one of a task that learns nothing.
    """
    if wanted is None:
        return list(FINE_TUNED.values())
    if unnamed := [name for name in wanted if name in own]:
        files = ",".join(f"{name}{SUFFIX}" if name in own else name for name in wanted)
        raise UsageError(f"{unnamed[0]}: a task of your own, which its file describes; name that by --tasks {files}")
    tasks = select(wanted)
    if other := [task.name for task in tasks if not isinstance(task, FineTuned)]:
        raise UsageError(f"{other[0]}: none of the tasks that can be compared: {', '.join(FINE_TUNED)}, and your own")
    return [task for task in tasks if isinstance(task, FineTuned)]


def _by_file(own: Sequence[str], pairs: Sequence[tuple[Evaluation, Evaluation]] = ()) -> str:
    """How to have tasks of the user's own compared, and those that are anyway."""
    names = [*(f"{name}{SUFFIX}" for name in own), *(a.task.name for a, _ in pairs)]
    return f"name the file{'s' if len(own) > 1 else ''} by --tasks {','.join(names)}"


def read_learned(folder: Path) -> dict[str, dict[str, Any]]:
    """Task -> results of the command that evaluated it, of those in a folder that a model learned.

    Raises:
        UsageError: it holds no results.
        UnavailableError: they can't be read now.
    """
    return {
        name: found
        for found in by_command(read_results(folder / RESULTS))
        for name, content in found["tasks"].items()
        if is_learned(content["details"])
    }


def pair_up(
    folders: Sequence[Path],
    learned: Sequence[Mapping[str, Mapping[str, Any]]],
    tasks: Sequence[FineTuned],
    left_out: Sequence[str] | None,
) -> list[tuple[Evaluation, Evaluation]]:
    """The tasks that two folders have both, on the same examples.

    Args:
        folders: of the first and of the second model.
        learned: what read_learned found in either.
        tasks: to look for.
        left_out: tasks of the user's own that both have beside these; None where all of these are wanted, so that a
            folder that lacks one is refused.

    Raises:
        UsageError: there are none, one lacks a task that is wanted, their examples differ, or they are one folder.
    """
    (first, second), (of_a, of_b) = folders, learned
    if os.path.realpath(first) == os.path.realpath(second):
        raise UsageError(f"{first}: twice the same evaluation; give two")
    for folder, found in ((first, of_a), (second, of_b)):
        if left_out is None and (lacking := [task.name for task in tasks if task.name not in found]):
            raise UsageError(f"{folder}: {lacking[0]} was not evaluated there")
    pairs = [
        (Evaluation(first, task, of_a[task.name]), Evaluation(second, task, of_b[task.name]))
        for task in tasks
        if task.name in of_a and task.name in of_b
    ]
    if not pairs:
        but = f" but {', '.join(left_out)}, of your own; {_by_file(left_out)}" if left_out else ""
        raise UsageError(f"{first} and {second} have no task in common that a model learns{but}")
    for pair in pairs:
        _check_alike(*pair)
    return pairs


def _check_alike(a: Evaluation, b: Evaluation) -> None:
    details = [evaluation.content["details"] for evaluation in (a, b)]
    facts = {
        "--limit": [evaluation.data.get("limit") for evaluation in (a, b)],
        "data": [of.get("data_blake2b") for of in details],
        "version of the task": [evaluation.content.get("version") for evaluation in (a, b)],
    }
    for name, (of_a, of_b) in facts.items():
        if of_a != of_b:
            raise UsageError(
                f"{a.task.name}: {a.folder} and {b.folder} are of another {name} ({of_a} and {of_b}), so the examples "
                "differ; evaluate both alike"
            )


def compare_task(a: Evaluation, b: Evaluation, arguments: argparse.Namespace) -> list[Row]:
    """A row for each metric of each development set, of two models on the same examples.

    Raises:
        UsageError: predictions are missing, damaged, or not of these examples.
        DatasetError: the data set can't be read.
    """
    rows, data = [], _data(a, arguments)
    kind = a.task.on(data).kind
    for part, examples in read_dev(a.task, data, a.data.get("limit")).items():
        for name, pairs in _pairs(kind, a, b, part, examples).items():
            metric = prefix_of(part) + name
            if pairs.units < 2:
                raise UsageError(f"{a.task.name}: {part} has one unit, which tells nothing; evaluate more examples")
            for evaluation, figure in zip((a, b), pairs.figures(), strict=True):
                _check_figure(evaluation, metric, figure)
            seeds = (a.seeds(metric), b.seeds(metric))
            rows.append(Row(a.task.name, metric, compare(pairs, arguments.resamples, arguments.seed), seeds))
    return rows


def _data(evaluation: Evaluation, arguments: argparse.Namespace) -> Path | None:
    """Folder of the data set; None for the hub."""
    if arguments.hub or arguments.data:
        return None if arguments.hub else arguments.data
    known = evaluation.data.get("path")
    if not isinstance(known, str):
        raise UsageError(f"{evaluation.folder}: does not say where its data lie; give --data")
    return None if known == "hub" else Path(known)


def _pairs(kind: Kind, a: Evaluation, b: Evaluation, part: str, examples: Sequence[Any]) -> dict[str, Pairs]:
    """Metric -> what both made of the examples of a part."""
    if isinstance(kind, Texts | Choices):
        labels = [example.label for example in examples]
        ours = [_labels(evaluation, part, examples, kind.labels) for evaluation in (a, b)]
        return {name: of_labels(name, labels, *ours) for name in kind.metrics}
    if isinstance(kind, Questions):
        texts = [example.context for example in examples]
        first, second = (_answer_scores(evaluation, kind, part, examples) for evaluation in (a, b))
        metrics = ("exact" if kind.version == "v2.0" else "exact_match", "f1")
        return {name: of_scores([of[name] for of in first], [of[name] for of in second], texts) for name in metrics}
    assert isinstance(kind, Tags | FeatureTags)
    return {"f1": of_counts(*(_entities(evaluation, part, examples) for evaluation in (a, b)))}


def _labels(evaluation: Evaluation, part: str, examples: Sequence[Any], words: Sequence[str]) -> list[float]:
    rows = evaluation.predictions(part, PREDICTIONS, lambda path: read_predictions(path, words))
    if [key for key, _ in rows] != [example.id for example in examples]:
        raise _foreign(evaluation, part)
    return [label for _, label in rows]


def _answer_scores(
    evaluation: Evaluation, kind: Questions, part: str, examples: Sequence[QuestionExample]
) -> list[dict[str, float]]:
    """Those of each question, by the official rules."""
    answers = evaluation.predictions(part, ANSWERS, read_answers)
    if answers.keys() != {example.id for example in examples}:
        raise _foreign(evaluation, part)
    score = _SCORERS[kind.version]
    return [score({e.id: answers[e.id]}, {e.id: [answer.text for answer in e.answers or ()]}) for e in examples]


def _entities(evaluation: Evaluation, part: str, examples: Sequence[TaggedSentence]) -> list[tuple[int, int, int]]:
    """See entity_counts, of each sentence."""
    sentences = evaluation.predictions(part, TAGS, _read_tags)
    gold = [list(zip(e.words, convert_tags(e.tags), strict=True)) for e in examples]
    if [[columns[:2] for columns in sentence] for sentence in sentences] != gold:
        raise _foreign(evaluation, part)
    return [entity_counts(*zip(*(columns[1:] for columns in sentence), strict=True)) for sentence in sentences]


def _read_tags(path: Path) -> list[list[tuple[str, str, str]]]:
    """Sentences of words, each with its tag and the predicted one."""
    lines = path.read_bytes().decode().split("\n")
    blocks = [list(block) for is_text, block in groupby(lines, key=bool) if is_text]
    rows = [[line.rsplit(" ", 2) for line in block] for block in blocks]
    return [[(word, gold, predicted) for word, gold, predicted in block] for block in rows]


def _foreign(evaluation: Evaluation, part: str) -> UsageError:
    return UsageError(
        f"{evaluation.folder}: its predictions of {evaluation.task.name} ({part}) are not of the examples in the data "
        "set; give --data of those that it was evaluated on, or evaluate it again"
    )


def _check_figure(evaluation: Evaluation, metric: str, figure: float) -> None:
    """See that predictions and labels are those that the results are of."""
    known = evaluation.content["metrics"].get(metric)
    if known is None or abs(known["value"] - figure) > _SAME:
        told = "none" if known is None else f"{known['value']:.4f}"
        raise UsageError(
            f"{evaluation.folder}: {evaluation.task.name}'s predictions make {metric} {figure:.4f} on this data set, "
            f"and its results say {told}; give --data of that it was evaluated on, or evaluate it again"
        )


def _adjusted(rows: Sequence[Row]) -> list[float]:
    return holm([row.difference.p for row in rows])


def _report(rows: Sequence[Row], arguments: argparse.Namespace) -> list[str]:
    """Paragraphs and tables in Markdown, which show as plain text too."""
    a, b = arguments.evaluations
    header = ["task", "metric", "A", "B", "B - A", "interval", "p", "p of all", "units", "test"]
    table = [[row.task, row.metric, *_cells(row.difference, p)] for row, p in zip(rows, _adjusted(rows), strict=True)]
    seeds = [[row.task, row.metric, *_seed_cells(*row.seeds)] for row in rows if min(map(len, row.seeds)) > 1]
    told = [
        f"{in_line(f'A: {a}')}\n{in_line(f'B: {b}')}\n",
        markdown_table([header, *table], numbers=range(2, 9)),
        *(f"{n}\n" for n in _NOTES),
    ]
    if seeds:
        header = ["task", "metric", "A, seeds", "B, seeds", "B - A", "p"]
        told += [markdown_table([header, *seeds], numbers=range(2, 6)), _NOTE_ON_SEEDS]
    return told


def _cells(found: Difference, p_of_all: float) -> list[str]:
    interval = f"{found.low:+.2f} to {found.high:+.2f}"
    figures = [f"{found.a:.2f}", f"{found.b:.2f}", f"{found.b - found.a:+.2f}", interval]
    return [*figures, _p(found.p), _p(p_of_all), f"{found.units:,}", found.test]


def _seed_cells(a: Sequence[float], b: Sequence[float]) -> list[str]:
    means, p = [sum(of) / len(of) for of in (a, b)], welch(a, b)
    shown = [f"{mean:.2f}, {len(of)}" for mean, of in zip(means, (a, b), strict=True)]
    return [*shown, f"{means[1] - means[0]:+.2f}", "" if p is None else _p(p)]


def _p(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else f"{p:.1e}"


def _json(rows: Sequence[Row], arguments: argparse.Namespace) -> str:
    content = {
        **dict(zip("ab", map(str, arguments.evaluations), strict=True)),
        "resamples": arguments.resamples,
        "seed": arguments.seed,
        "rows": [
            {
                "task": row.task,
                "metric": row.metric,
                **asdict(row.difference),
                "p_of_all": p,
                "seeds": dict(zip("ab", row.seeds, strict=True)),
                "p_of_seeds": welch(*row.seeds),
            }
            for row, p in zip(rows, _adjusted(rows), strict=True)
        ],
    }
    return json.dumps(content, indent=2, ensure_ascii=False)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = OneLineParser(
        prog="python -m eval.significance",
        description="Compare two evaluations by their predictions of the same dev sets.",
    )
    parser.add_argument(
        "evaluations", nargs=2, type=parse_path, metavar="EVALUATION", help="folders with results.json and predictions/"
    )
    parser.add_argument(
        "--tasks", type=split_words, metavar="NAME[,NAME...]",
        help="tasks, groups of tasks, and files that describe a task of your own (default: all that both have and a "
        "model learns, but none of your own)",
    )  # fmt: skip
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--data", type=parse_path, metavar="DIR", help="of the data sets (default: where A had them)")
    source.add_argument("--hub", action="store_true", help="take the data sets from the Hugging Face hub")
    parser.add_argument(
        "--resamples",
        type=whole_number(_FEWEST, 1_000_000),
        default=10_000,
        metavar="N",
        help="(default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=whole_number(0, (1 << 64) - 1),
        default=0,
        metavar="N",
        help="of the resamples (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
