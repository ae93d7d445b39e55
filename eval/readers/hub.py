"""The same data sets from the Hugging Face hub, through `datasets`: pip install 'bert-pretraining[hub]'.

Where the hub's copy is not the original: CoNLL-2003 there has IOB2 tags and no marks between documents, so every
sentence is a document by itself; KorSTS there has 8,532 of its 8,628 rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eval.readers.examples import (
    Answer,
    ChoiceExample,
    DatasetError,
    QuestionExample,
    TaggedSentence,
    TextExample,
)
from eval.readers.glue import GLUE
from eval.readers.imdb import LABELS
from eval.readers.korean import KOREAN

Example = TextExample | ChoiceExample | QuestionExample | TaggedSentence
Rows = Iterable[Mapping[str, Any]]
Convert = Callable[[Rows, Sequence[str]], Sequence[Example]]
_UNLABELLED = -1  # what the hub writes where a test split has no label


@dataclass(frozen=True, slots=True)
class HubSource:
    """A data set on the hub.

    Attributes:
        path: repository.
        splits: our name of a split -> the hub's, (configuration, split), one after the other. The configuration is
            None where a repository has one only.
        convert: rows, and the words of their labels in the order of their indices, to examples.
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
            column, a label is impossible, or it is empty.
    """
    if name not in HUB:
        raise DatasetError(f"unknown data set {name!r}; known on the hub: {', '.join(HUB)}")
    source = HUB[name]
    if split not in source.splits:
        raise DatasetError(f"{source.path}: no split {split!r}; known here: {', '.join(source.splits)}")
    rows = _load(source, split)
    try:
        examples = source.convert(rows, _words(rows, source.words))
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


def _texts(
    labels: Sequence[str],
    scale: tuple[float, float] | None,
    a: str,
    b: str | None = None,
    id_column: str = "idx",
    label: str = "label",
) -> Convert:
    """Rows with texts in columns ``a`` and ``b``, and a label; they are numbered where there is no column of ids."""

    def convert(rows: Rows, words: Sequence[str]) -> list[TextExample]:
        # The hub's words are ours (then their order may differ), or prose for our 0 and 1.
        indices = [labels.index(word) for word in words] if set(words) == set(labels) else list(range(len(labels)))
        return [
            TextExample(
                id=str(row.get(id_column, number)),
                a=row[a],
                b=row[b] if b else None,
                label=_figure(row[label], scale, number) if scale else _index(row[label], indices, number),
            )
            for number, row in enumerate(rows)
        ]

    return convert


def _index(label: int, indices: Sequence[int], number: int) -> int | None:
    if label == _UNLABELLED:
        return None
    if not 0 <= label < len(indices):
        raise DatasetError(f"row {number}: label {label} is not from 0 to {len(indices) - 1}")
    return indices[label]


def _figure(label: float, scale: tuple[float, float], number: int) -> float | None:
    if label == _UNLABELLED:
        return None
    if not scale[0] <= label <= scale[1]:
        raise DatasetError(f"row {number}: label {label} is not from {scale[0]:g} to {scale[1]:g}")
    return label


def _choices(rows: Rows, _: Sequence[str]) -> list[ChoiceExample]:
    return [
        ChoiceExample(
            id=str(number),
            context=row["sent1"],
            start=row["sent2"],
            endings=tuple(row[f"ending{i}"] for i in range(4)),
            label=_index(row["label"], range(4), number),
        )
        for number, row in enumerate(rows)
    ]


def _questions(rows: Rows, _: Sequence[str]) -> list[QuestionExample]:
    return [QuestionExample(row["id"], row["question"], row["context"], _answers(row["answers"])) for row in rows]


def _answers(given: Mapping[str, Any]) -> tuple[Answer, ...]:
    return tuple(Answer(*answer) for answer in zip(given["text"], given["answer_start"], strict=True))


def _tagged(rows: Rows, words: Sequence[str]) -> list[TaggedSentence]:
    if not words:
        raise DatasetError("its tags have no names")
    return [
        TaggedSentence(
            id=f"{number}-0",
            words=tuple(row["tokens"]),
            tags=tuple(words[tag] for tag in row["ner_tags"]),
            document=number,
        )
        for number, row in enumerate(rows)
    ]


_THREE = {"train": "train", "dev": "validation", "test": "test"}
_TRAIN_AND_DEV = {"train": "train", "dev": "validation"}
_TRAIN_AND_TEST = {"train": "train", "test": "test"}
_PARQUET = "refs/convert/parquet"


def _splits(names: Mapping[str, str] = _THREE, config: str | None = None) -> dict[str, list[tuple[str | None, str]]]:
    return {split: [(config, name)] for split, name in names.items()}


def _glue(task: str, config: str, a: str, b: str | None = None, names: Mapping[str, str] = _THREE) -> HubSource:
    return HubSource("nyu-mll/glue", _splits(names, config), _texts(GLUE[task].labels, GLUE[task].scale, a, b))


def _mnli(task: str, genres: str) -> HubSource:
    names = {"train": "train", "dev": f"validation_{genres}", "test": f"test_{genres}"}
    return _glue(task, "mnli", "premise", "hypothesis", names)


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
    "SQuAD v1.1": HubSource("rajpurkar/squad", _splits(_TRAIN_AND_DEV), _questions),
    "SQuAD v2.0": HubSource("rajpurkar/squad_v2", _splits(_TRAIN_AND_DEV), _questions),
    "KorQuAD": HubSource("KorQuAD/squad_kor_v1", _splits(_TRAIN_AND_DEV), _questions),
    "SWAG": HubSource("allenai/swag", _splits(config="regular"), _choices),
    "CoNLL-2003": HubSource("lhoestq/conll2003", _splits(), _tagged, words="ner_tags"),
    "IMDB": HubSource("stanfordnlp/imdb", _splits(_TRAIN_AND_TEST), _texts(LABELS, None, "text")),
    "NSMC": HubSource(
        "e9t/nsmc",
        _splits(_TRAIN_AND_TEST),
        _texts(KOREAN["NSMC"].labels, None, "document", id_column="id"),
        revision=_PARQUET,
    ),
    "KorNLI": HubSource(
        "kakaobrain/kor_nli",
        {
            "train": [("multi_nli", "train"), ("snli", "train")],
            "dev": [("xnli", "validation")],
            "test": [("xnli", "test")],
        },
        _texts(KOREAN["KorNLI"].labels, None, "premise", "hypothesis"),
    ),
    "KorSTS": HubSource(
        "dkoterwa/kor-sts",
        _splits({"train": "train", "dev": "valid", "test": "test"}),
        _texts((), KOREAN["KorSTS"].scale, "sentence1", "sentence2", label="score"),
        words=None,
    ),
}
