"""The same data sets from the Hugging Face hub, through `datasets`: pip install 'bert-pretraining[hub]'.

Where the hub's copy is not the original: CoNLL-2003 there has IOB2 tags and no marks between documents, so every
sentence is a document by itself; KorSTS there has 8,532 of its 8,628 rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pydantic

from eval.readers import squad
from eval.readers.conll import ENTITY_TYPES, is_tag, is_word
from eval.readers.examples import (
    Answer,
    ChoiceExample,
    DatasetError,
    QuestionExample,
    TaggedSentence,
    TextExample,
    is_id,
)
from eval.readers.glue import GLUE
from eval.readers.imdb import LABELS
from eval.readers.korean import KOREAN
from eval.readers.tables import TextTable

Example = TextExample | ChoiceExample | QuestionExample | TaggedSentence
Row = Mapping[str, Any]
Convert = Callable[[Iterable[Row], Sequence[str], str], Sequence[Example]]
_UNLABELLED = (-1, None)  # what the hub has where a test split has no label
_TEST = ("test",)


@dataclass(frozen=True, slots=True)
class HubSource:
    """A data set on the hub.

    Attributes:
        path: repository.
        splits: our name of a split -> the hub's, (configuration, split), one after the other. The configuration is
            None where a repository has one only.
        convert: rows, the words of their labels in the order of their indices, and our name of the split to examples.
        words: column whose feature names these words; None where there are none.
        revision: branch. The hub keeps its Parquet copies of data sets that were once scripts in one of their own.
    """

    path: str
    splits: Mapping[str, Sequence[tuple[str | None, str]]]
    convert: Convert
    words: str | None = "label"
    revision: str | None = None


def read_hub(name: str, split: str) -> Sequence[Example]:
    """Examples of a data set on the hub, in its order and as the types of eval.readers.examples.

    Args:
        name: a key of HUB.
        split: "train", "dev" or "test", as far as there are such.

    Raises:
        DatasetError: `datasets` is not installed, there is no such data set or split, it can't be had, it lacks a
            column, it is empty, or a row is not as the readers of files want theirs.
    """
    if name not in HUB:
        raise DatasetError(f"unknown data set {name!r}; known on the hub: {', '.join(HUB)}")
    source = HUB[name]
    if split not in source.splits:
        raise DatasetError(f"{source.path}: no split {split!r}; known here: {', '.join(source.splits)}")
    rows = _load(source, split)
    try:
        examples = source.convert(rows, _words(rows, source.words), split)
    except KeyError as error:
        raise DatasetError(f"{source.path}: no column {error}; it has changed: use the files with --data") from error
    except DatasetError as error:
        raise DatasetError(f"{source.path}: {error}; it has changed: use the files with --data") from error
    if not examples:
        raise DatasetError(f"{source.path}: the split {split!r} is empty")
    return examples


def _load(source: HubSource, split: str) -> Any:
    try:
        import datasets
        import huggingface_hub
    except ImportError as error:
        raise DatasetError("the hub is read through datasets: pip install 'bert-pretraining[hub]'") from error
    for library in (datasets, huggingface_hub):
        library.utils.logging.disable_propagation()  # they have handlers of their own: a line is told once
    try:
        return datasets.concatenate_datasets(
            [
                datasets.load_dataset(source.path, config, split=part, revision=source.revision)
                for config, part in source.splits[split]
            ]
        )
    except Exception as error:  # of many kinds: those libraries have their own, and so have those that they call
        why = ": ".join(_first_line(reason) for reason in (error, error.__cause__) if reason)
        raise DatasetError(f"{source.path}: can't be had from the hub ({why}); use the files with --data") from error


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _words(rows: Any, column: str | None) -> Sequence[str]:
    """Names of the classes of a column, or of the items of its lists; none where it holds plain values."""
    feature = rows.features.get(column)
    return getattr(getattr(feature, "feature", feature), "names", None) or ()


def _texts(table: TextTable) -> Convert:
    """Rows with the columns of such a table, but its label is the index of a word, or a figure."""

    def convert(rows: Iterable[Row], words: Sequence[str], split: str) -> list[TextExample]:
        labels, scale = table.labels, table.scale
        # The hub's words are ours (then their order may differ), or prose for our 0 and 1.
        indices = [labels.index(word) for word in words] if set(words) == set(labels) else list(range(len(labels)))
        may_lack = split in table.without_labels

        def known(given: Any, number: int) -> int | float:
            return _figure(given, scale, number) if scale else indices[_index(given, len(indices), number)]

        return [
            TextExample(
                id=_id(row.get(table.id, number) if table.id else number, number),
                a=_text(row, table.a, number),
                b=_text(row, table.b, number) if table.b else None,
                label=None if _is_unlabelled(row[table.label], number, may_lack) else known(row[table.label], number),
            )
            for number, row in enumerate(rows)
        ]

    return convert


def _id(given: Any, number: int) -> str:
    if not isinstance(given, int | str) or not is_id(str(given)):
        raise DatasetError(f"row {number}: {given!r} is no id")
    return str(given)


def _text(row: Row, column: str, number: int) -> str:
    text = row[column]
    if not isinstance(text, str):
        raise DatasetError(f"row {number}, column {column!r}: {text!r} is no text")
    return text


def _is_unlabelled(label: Any, number: int, may_be: bool) -> bool:
    if label in _UNLABELLED and not may_be:
        raise DatasetError(f"row {number}: no label")
    return label in _UNLABELLED


def _index(label: Any, count: int, number: int) -> int:
    if label not in range(count):
        raise DatasetError(f"row {number}: label {label} is not from 0 to {count - 1}")
    return int(label)


def _figure(label: Any, scale: tuple[float, float], number: int) -> float:
    if not isinstance(label, int | float) or not scale[0] <= label <= scale[1]:
        raise DatasetError(f"row {number}: label {label} is not from {scale[0]:g} to {scale[1]:g}")
    return label


def _choices(rows: Iterable[Row], _: Sequence[str], split: str) -> list[ChoiceExample]:
    return [
        ChoiceExample(
            id=str(number),
            context=_text(row, "sent1", number),
            start=_text(row, "sent2", number),
            endings=tuple(_text(row, f"ending{i}", number) for i in range(4)),
            label=None if _is_unlabelled(row["label"], number, split in _TEST) else _index(row["label"], 4, number),
        )
        for number, row in enumerate(rows)
    ]


def _questions(
    rows: Iterable[Row], _: Sequence[str], split: str, *, path: str, may_be_impossible: bool
) -> list[QuestionExample]:
    questions = [
        QuestionExample(
            id=_text(row, "id", number),
            question=_text(row, "question", number),
            context=_text(row, "context", number),
            answers=_answers(row["answers"], number),
        )
        for number, row in enumerate(rows)
    ]
    impossible = {question.id for question in questions if not question.answers}  # the hub has no other mark
    if flaw := squad.find_flaw(questions, split, impossible if may_be_impossible else None):
        raise DatasetError(flaw.problem)
    return squad.in_place(questions, path)


class _Answers(pydantic.BaseModel):
    text: list[str]
    answer_start: list[int]


def _answers(given: Any, number: int) -> tuple[Answer, ...]:
    try:
        found = _Answers.model_validate(given)
        return tuple(Answer(*answer) for answer in zip(found.text, found.answer_start, strict=True))
    except ValueError as error:  # which pydantic's are, too
        raise DatasetError(f"row {number}: {given!r} are no answers with their places") from error


def _tagged(rows: Iterable[Row], words: Sequence[str], _: str) -> list[TaggedSentence]:
    if not words:
        raise DatasetError("its tags have no names")
    if unknown := [word for word in words if not is_tag(word, ENTITY_TYPES)]:
        raise DatasetError(f"{unknown[0]!r} is not a tag")
    return [_sentence(row["tokens"] or (), row["ner_tags"] or (), words, number) for number, row in enumerate(rows)]


def _sentence(tokens: Sequence[Any], tags: Sequence[Any], words: Sequence[str], number: int) -> TaggedSentence:
    for token in tokens:
        if not isinstance(token, str) or not is_word(token):
            raise DatasetError(f"row {number}: {token!r} is no word")
    if not tokens or len(tags) != len(tokens):
        raise DatasetError(f"row {number}: {len(tokens)} words and {len(tags)} tags")
    return TaggedSentence(
        id=f"{number}-0",
        words=tuple(tokens),
        tags=tuple(words[_index(tag, len(words), number)] for tag in tags),
        document=number,
    )


_THREE = {"train": "train", "dev": "validation", "test": "test"}
_TRAIN_AND_DEV = {"train": "train", "dev": "validation"}
_TRAIN_AND_TEST = {"train": "train", "test": "test"}
_PARQUET = "refs/convert/parquet"
_IMDB = TextTable(folders=(), a="text", labels=LABELS, without_labels=())


def _splits(names: Mapping[str, str] = _THREE, config: str | None = None) -> dict[str, list[tuple[str | None, str]]]:
    return {split: [(config, name)] for split, name in names.items()}


def _glue(task: str, config: str, a: str, b: str | None = None, names: Mapping[str, str] = _THREE) -> HubSource:
    table = replace(GLUE[task], id="idx", a=a, b=b, label="label")
    return HubSource("nyu-mll/glue", _splits(names, config), _texts(table))


def _mnli(task: str, genres: str) -> HubSource:
    names = {"train": "train", "dev": f"validation_{genres}", "test": f"test_{genres}"}
    return _glue(task, "mnli", "premise", "hypothesis", names)


def _squad(path: str, may_be_impossible: bool = False) -> HubSource:
    convert = partial(_questions, path=path, may_be_impossible=may_be_impossible)
    return HubSource(path, _splits(_TRAIN_AND_DEV), convert)


HUB = {
    "CoLA": _glue("CoLA", "cola", "sentence"),
    "SST-2": _glue("SST-2", "sst2", "sentence"),
    "MRPC": _glue("MRPC", "mrpc", "sentence1", "sentence2"),
    "STS-B": _glue("STS-B", "stsb", "sentence1", "sentence2"),
    "QQP": _glue("QQP", "qqp", "question1", "question2"),
    "MNLI": _mnli("MNLI", "matched"),
    "MNLI-mm": _mnli("MNLI-mm", "mismatched"),
    "QNLI": _glue("QNLI", "qnli", "question", "sentence"),
    "RTE": _glue("RTE", "rte", "sentence1", "sentence2"),
    "WNLI": _glue("WNLI", "wnli", "sentence1", "sentence2"),
    "AX": _glue("AX", "ax", "premise", "hypothesis", {"test": "test"}),
    "SQuAD v1.1": _squad("rajpurkar/squad"),
    "SQuAD v2.0": _squad("rajpurkar/squad_v2", may_be_impossible=True),
    "KorQuAD": _squad("KorQuAD/squad_kor_v1"),
    "SWAG": HubSource("allenai/swag", _splits(config="regular"), _choices),
    "CoNLL-2003": HubSource("lhoestq/conll2003", _splits(), _tagged, words="ner_tags"),
    "IMDB": HubSource("stanfordnlp/imdb", _splits(_TRAIN_AND_TEST), _texts(_IMDB)),
    "NSMC": HubSource("e9t/nsmc", _splits(_TRAIN_AND_TEST), _texts(KOREAN["NSMC"]), revision=_PARQUET),
    "KorNLI": HubSource(
        "kakaobrain/kor_nli",
        {
            "train": [("multi_nli", "train"), ("snli", "train")],
            "dev": [("xnli", "validation")],
            "test": [("xnli", "test")],
        },
        _texts(replace(KOREAN["KorNLI"], a="premise", b="hypothesis", label="label")),
    ),
    "KorSTS": HubSource(
        "dkoterwa/kor-sts",
        _splits({"train": "train", "dev": "valid", "test": "test"}),
        _texts(KOREAN["KorSTS"]),
        words=None,
    ),
}
