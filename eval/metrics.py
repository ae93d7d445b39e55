"""Metrics as the official scripts compute them, for predictions from anywhere.

    python -m eval.metrics squad_v1 dev-v1.1.json predictions.json
    python -m eval.metrics squad_v2 dev-v2.0.json predictions.json --na-prob-file null_odds.json
    python -m eval.metrics korquad KorQuAD_v1.0_dev.json predictions.json
    python -m eval.metrics glue MRPC dev.tsv predictions.tsv
    python -m eval.metrics conll eng.testa predictions.txt

Everything is in per cent: 100 is perfect, for correlations too, and -100 the worst of those.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import numpy as np
import pydantic
import scipy.stats
import seqeval.scheme
import sklearn.metrics
from seqeval.metrics import sequence_labeling, v1

from eval.errors import UsageError, first_problem
from eval.readers import conll, squad, tables
from eval.readers.conll import TagColumns, convert_tags
from eval.readers.examples import DatasetError
from eval.readers.files import read_text
from eval.readers.glue import GLUE
from eval.readers.tables import TextTable
from eval.squad_metrics import Scores, korquad, squad_v1, squad_v2
from preprocessing.command_line import OneLineParser, number, parse_path
from preprocessing.status import is_file
from preprocessing.storage_errors import UnavailableError, exit_code
from preprocessing.terminal import print_result, tell_error

Scheme = Literal["conlleval", "IOB1", "IOB2"]

# ---- labels and figures ---------------------------------------------------------------------------------------------


def _correlation(function: Callable[..., Any], labels: Sequence[float], predictions: Sequence[float]) -> float:
    """0 where all predictions, or all labels, are the same."""
    if len(set(labels)) == 1 or len(set(predictions)) == 1:
        return 0.0
    return float(function(labels, predictions).statistic)


_LARGEST = 1e150  # whose square is finite, and the sum of many

# Name -> function of labels and predictions, 1 at best.
LABEL_METRICS: dict[str, Callable[[Sequence[Any], Sequence[Any]], float]] = {
    "accuracy": sklearn.metrics.accuracy_score,
    "f1": partial(sklearn.metrics.f1_score, zero_division=0),  # of class 1 of two
    "macro_f1": partial(sklearn.metrics.f1_score, average="macro", zero_division=0),  # over the classes that occur
    "matthews": sklearn.metrics.matthews_corrcoef,  # 0 where all predictions are the same
    "pearson": partial(_correlation, scipy.stats.pearsonr),
    "spearman": partial(_correlation, scipy.stats.spearmanr),
}

GLUE_METRICS = {
    "CoLA": ("matthews",),
    "SST-2": ("accuracy",),
    "MRPC": ("accuracy", "f1"),
    "STS-B": ("pearson", "spearman"),
    "QQP": ("accuracy", "f1"),
    "MNLI": ("accuracy",),
    "MNLI-mm": ("accuracy",),
    "QNLI": ("accuracy",),
    "RTE": ("accuracy",),
    "WNLI": ("accuracy",),
    "AX": ("matthews",),
}


def score_labels(
    metrics: Sequence[str], labels: Sequence[float] | np.ndarray, predictions: Sequence[float] | np.ndarray
) -> Scores:
    """Several metrics of the same predictions.

    Args:
        metrics: keys of LABEL_METRICS.
        labels: indices of classes, or figures, one at least, [N]: a list, or an array as transformers' Trainer gives.
        predictions: as many of the same kind.

    Raises:
        UsageError: there are none, they are not of one length, or a figure is not finite or too large to be squared.
    """
    gold, found = (np.asarray(values).tolist() for values in (labels, predictions))
    if len(gold) != len(found) or not gold:
        raise UsageError(f"{len(gold)} labels and {len(found)} predictions: give as many, and one at least")
    if not all(map(math.isfinite, found)):
        raise UsageError("a prediction is not a finite number; train again with a lower learning rate")
    if any(map(math.isnan, gold)):
        raise UsageError("a label is no number; leave its example out, or give it one")
    if max(map(abs, (*gold, *found))) > _LARGEST:
        raise UsageError(
            f"a label or prediction is beyond {_LARGEST:g}, too large to be correlated; bring all to another scale"
        )
    return {metric: 100.0 * float(LABEL_METRICS[metric](gold, found)) for metric in metrics}


def half_width(share: float, count: int) -> float:
    """Half of the 95 % confidence interval of a share, by Wilson, who has more than 0 where all or none are right.

    Args:
        share: such as an accuracy, in per cent.
        count: of independent examples.
    """
    interval = scipy.stats.binomtest(round(share / 100 * count), count).proportion_ci(0.95, method="wilson")
    return float(100 * (interval.high - interval.low) / 2)


# ---- entities -------------------------------------------------------------------------------------------------------


def entity_f1(
    tags: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]], scheme: Scheme = "conlleval"
) -> Scores:
    """Precision, recall and F1 of entities that are right in both place and type.

    Args:
        tags: of each sentence, O, B-TYPE or I-TYPE.
        predictions: as many.
        scheme: how tags are read. "conlleval", the shared task's script, takes every I-TYPE for an entity, begun
            anew where the tag before is O or of another type: so it reads IOB1 and IOB2 alike, and forgives tags that
            neither has. "IOB1" and "IOB2" are strict: an entity that is not begun as the scheme wants is none,
            except that by seqeval's "IOB1" an I-TYPE behind such a B-TYPE begins one.

    Raises:
        UsageError: there are no sentences, or they differ in number or length.
    """
    if not (tags or predictions):
        raise UsageError("no sentences: nothing to score")
    if [len(sentence) for sentence in tags] != [len(sentence) for sentence in predictions]:
        raise UsageError("tags and predictions differ in the number or length of sentences; give a tag for each word")
    sentences = [list(sentence) for sentence in tags], [list(sentence) for sentence in predictions]
    options: dict[str, Any] = {"average": "micro", "zero_division": 0}
    if scheme == "conlleval":
        found = sequence_labeling.precision_recall_fscore_support(*sentences, **options)
    else:
        found = v1.precision_recall_fscore_support(*sentences, scheme=getattr(seqeval.scheme, scheme), **options)
    return {name: 100.0 * float(value) for name, value in zip(("precision", "recall", "f1"), found, strict=False)}


def entity_counts(tags: Sequence[str], predictions: Sequence[str]) -> tuple[int, int, int]:
    """Entities of a sentence that were found rightly, found, and are there, as conlleval reads tags.

    Their sums over sentences give entity_f1's figures.

    Args:
        tags: of each word, O, B-TYPE or I-TYPE.
        predictions: as many.
    """
    gold, found = (set(sequence_labeling.get_entities(list(of))) for of in (tags, predictions))
    return len(gold & found), len(found), len(gold)


# ---- files ----------------------------------------------------------------------------------------------------------


_TEXTS = pydantic.TypeAdapter(Mapping[str, str])
_FIGURES = pydantic.TypeAdapter(Mapping[str, pydantic.FiniteFloat])
T = TypeVar("T")


def main(argv: Sequence[str] | None = None) -> int:
    """Score files; the exit code is 0, 1 if the storage failed, or 2 for a mistake in them."""
    arguments = _parse(argv)
    try:
        scores = arguments.score(arguments)
    except (UsageError, OSError, UnavailableError) as error:
        tell_error(error)
        return exit_code(error)
    return print_result(json.dumps(scores, indent=2))


def _score_answers(arguments: argparse.Namespace) -> Scores:
    metric = {"squad_v1": squad_v1, "korquad": korquad}[arguments.metric]
    predictions, references = read_answers(arguments.predictions), _references(arguments)
    if missing := [key for key in references if key not in predictions]:
        print(
            f"warning: {arguments.predictions}: {len(missing)} of {len(references)} questions have no prediction, such "
            f"as {missing[0]}; they count 0",
            file=sys.stderr,
        )
    return metric(predictions, references)


def _score_squad_v2(arguments: argparse.Namespace) -> Scores:
    return squad_v2(
        read_answers(arguments.predictions),
        _references(arguments),
        _read_json(arguments.na_prob_file, _FIGURES) if arguments.na_prob_file else None,
        arguments.na_prob_thresh,
    )


def _score_glue(arguments: argparse.Namespace) -> Scores:
    """Predictions in labels' words, as GLUE wants them submitted (index, prediction) or as eval.run has them (id)."""
    table = GLUE[arguments.task]
    examples = tables.read(table, _file(arguments.data), "dev")
    file = _file(arguments.predictions)
    key = "id" if read_text(file).startswith("id\t") else "index"
    scale = table.scale and (-math.inf, math.inf)  # a regression may well leave the labels' scale
    submitted = TextTable(folders=(), a=key, label="prediction", labels=table.labels, scale=scale, id=key)
    rows = tables.read(submitted, file, "dev")
    index, times = Counter(row.id for row in rows).most_common(1)[0]
    if times > 1:
        raise DatasetError(f"{file}: index {index} has {times} predictions; give one")
    predictions = {row.id: row.label for row in rows}
    missing = [example.id for example in examples if example.id not in predictions]
    if missing:
        raise DatasetError(
            f"{arguments.predictions}: {len(missing)} examples have no prediction, such as index {missing[0]}; "
            "give one for each"
        )
    known = {example.id for example in examples}
    if surplus := [index for index in predictions if index not in known]:
        raise DatasetError(
            f"{file}: {len(surplus)} predictions are of no example of {arguments.data}, such as index {surplus[0]}; "
            "give those of this data set"
        )
    labels, ours = zip(*((e.label, predictions[e.id]) for e in examples), strict=True)
    return score_labels(GLUE_METRICS[arguments.task], labels, ours)


def _score_conll(arguments: argparse.Namespace) -> Scores:
    """Predictions as the data set has its tags: a word a line, its tag, of entities of any type, in the last column."""
    columns = TagColumns(folders=(), files={})
    gold, predicted = (conll.read(_file(path), "dev", columns) for path in (arguments.data, arguments.predictions))
    for ours, theirs in itertools.zip_longest(gold, predicted):
        if ours is None or theirs is None or ours.words != theirs.words:
            where = f"sentence {ours.id}" if ours else "the end"
            raise DatasetError(f"{arguments.predictions}: not the words of {arguments.data} at {where}; give the same")
    tags, predictions = ([_in_scheme(sentence.tags, arguments.scheme) for sentence in of] for of in (gold, predicted))
    return entity_f1(tags, predictions, arguments.scheme)


def _in_scheme(tags: Sequence[str], scheme: Scheme) -> Sequence[str]:
    """Tags of a sentence as entity_f1 takes them."""
    if scheme == "conlleval":
        return convert_tags(tags)
    if other := [tag for tag in tags if tag[0] not in "BIO"]:
        raise DatasetError(f"--scheme {scheme} has no tag {other[0]}; leave the option out")
    return tags


def _references(arguments: argparse.Namespace) -> dict[str, list[str]]:
    version = {"squad_v1": "v1.1", "squad_v2": "v2.0", "korquad": "korquad"}[arguments.metric]
    questions = squad.read(_file(arguments.data), "dev", squad.FILES[version])
    return {question.id: [answer.text for answer in question.answers or ()] for question in questions}


def read_answers(path: Path) -> Mapping[str, str]:
    """Question -> its predicted answer, from a file such as SQuAD's scripts take.

    Raises:
        DatasetError: it can't be read, or is not such a file.
    """
    return _read_json(path, _TEXTS)


def _read_json(path: Path, kind: pydantic.TypeAdapter[T]) -> T:
    try:
        return kind.validate_json(read_text(path))
    except pydantic.ValidationError as error:
        raise DatasetError(
            f"{path}: {first_problem(error)}; give a JSON object of questions' ids and predictions"
        ) from error


def _file(path: Path) -> Path:
    if not is_file(path):
        raise DatasetError(f"{path}: no such file")
    return path


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = OneLineParser(
        prog="python -m eval.metrics", description="Score predictions as the official scripts do, in per cent, as JSON."
    )
    commands = parser.add_subparsers(dest="metric", required=True)

    def add(name: str, score: Callable[[argparse.Namespace], Scores], data: str, predictions: str) -> Any:
        command = commands.add_parser(name, help=f"{data} and {predictions}")
        command.set_defaults(score=score)
        if name == "glue":
            command.add_argument("task", choices=[task for task in GLUE if task != "AX"])
        command.add_argument("data", type=parse_path, help=data)
        command.add_argument("predictions", type=parse_path, help=predictions)
        return command

    answers = "JSON object of ids and texts"
    add("squad_v1", _score_answers, "data set in SQuAD's format", answers)
    add("korquad", _score_answers, "data set in SQuAD's format", answers)
    v2 = add("squad_v2", _score_squad_v2, "data set in SQuAD's format", answers)
    v2.add_argument(
        "--na-prob-file", type=parse_path, help="JSON object of ids and probabilities that there is no answer"
    )
    finite = number("a finite figure", math.isfinite)
    v2.add_argument("--na-prob-thresh", type=finite, default=1.0, help="above it there is none (default: 1)")
    add("glue", _score_glue, "labelled table of the task", "table with the columns index and prediction")
    entities = add("conll", _score_conll, "words with tags in the last column", "the same words with predicted tags")
    entities.add_argument("--scheme", choices=get_args(Scheme), default="conlleval", help="(default: conlleval)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
