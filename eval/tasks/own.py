"""A task of the user's own: files in the folder that --data names, described by a TOML file.

tickets.toml                         train.tsv, dev.tsv and perhaps test.tsv: tables with a text and its label a row

text = "body"                        body    queue
label = "queue"                      ...     billing
labels = ["billing", "delivery"]

diseases.toml                        train.txt, dev.txt and perhaps test.txt: a word and its tag a line

kind = "tags"                        Chronic  B-Disease
                                     asthma   I-Disease

contracts.toml                       train.json, dev.json and perhaps test.json, as SQuAD has them

kind = "questions"
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

from eval.encoding import LongText
from eval.errors import UsageError
from eval.kinds import Kind, Questions, Tags, Texts
from eval.readers import conll, squad, tables
from eval.readers.conll import TagColumns
from eval.readers.examples import DatasetError, QuestionExample, TaggedSentence, TextExample
from eval.readers.files import find
from eval.readers.squad import QuestionFiles
from eval.readers.tables import TextTable
from eval.stamps import stamp
from eval.tasks.finetuned import FINE_TUNED, FineTuned
from trainer.settings import ConfigError, parse, read_toml

SUFFIX = ".toml"
_NAME = re.compile(r"[A-Za-z0-9_-]+")  # it becomes part of folders' and of metrics' names
_OF_FIGURES = ("spearman", "pearson")
_OF_CLASSES = ("accuracy", "macro_f1", "matthews")
_OF_TWO_CLASSES = (*_OF_CLASSES, "f1")
_ENTITIES, _ANSWERS = FINE_TUNED["conll2003"], FINE_TUNED["squad_v1"]


@dataclass(frozen=True, kw_only=True)
class OwnTask(ABC):
    """What the file says, of whatever kind the task is.

    Attributes:
        kind: of task.
        train: name of the file that is learned from.
        dev: of that which the figures are of.
        test: of that which is predicted for those who ask for it; it may be missing.
        learning_rates: to try.
        epochs: to try.
        batch_sizes: to try.
        max_length: tokens of a sequence.
    """

    kind: str
    train: str
    dev: str
    test: str
    learning_rates: tuple[float, ...] = FineTuned.learning_rates
    epochs: tuple[int, ...] = FineTuned.epochs
    batch_sizes: tuple[int, ...] = FineTuned.batch_sizes
    max_length: int = FineTuned.max_length

    def __post_init__(self) -> None:
        for split, name in self.files.items():
            if name in ("", ".", "..") or Path(name).name != name or "\0" in name:
                raise ValueError(f"{split}: {name!r} is no name of a file; --data names the folder that holds it")
        if len({name.casefold() for name in self.files.values()}) < len(self.files):
            raise ValueError("train, dev and test must be different files")
        if not (self.learning_rates and self.epochs and self.batch_sizes):
            raise ValueError("learning_rates, epochs and batch_sizes need a value each")
        if not all(0 < rate < 1 for rate in self.learning_rates):
            raise ValueError("learning_rates must lie between 0 and 1")
        if min(self.max_length, *self.epochs, *self.batch_sizes) < 1:
            raise ValueError("max_length, epochs and batch_sizes must be 1 or more")

    @property
    def files(self) -> Mapping[str, str]:
        """Split -> its file."""
        return {"train": self.train, "dev": self.dev, "test": self.test}

    @property
    @abstractmethod
    def learned_as(self) -> Kind:
        """How it is learned and judged, as far as the file says it."""

    @property
    @abstractmethod
    def best(self) -> str:
        """The metric that decides which point of the grid is best."""

    @abstractmethod
    def examples(self, name: str, split: str, data: Path) -> Sequence[Any]:
        """Those of a split.

        Args:
            name: of the task's file.
            split: "train", "dev" or "test".
            data: folder of the files, or a folder that has one for the task.

        Raises:
            DatasetError: a file is missing, or not as it should be.
        """

    def state(self, name: str, split: str, data: Path) -> tuple[int, ...]:
        """What changes whenever the file of a split is written anew; arguments and errors as of examples."""
        return tuple(stamp(find(data, (Path(name).stem, "."), self.files[split], self.files.values())) or ())

    def settle(self, name: str, kind: Kind, data: Path) -> Kind:  # noqa: ARG002
        """How the task is learned and judged, with what its files decide; arguments and errors as of examples."""
        return kind


@dataclass(frozen=True, kw_only=True)
class OwnTexts(OwnTask):
    """Texts, or pairs of texts, with labels in tables.

    Attributes:
        text: column of the text.
        second_text: column of the second text of a pair.
        label: column of the label, which the test set may lack.
        labels: all of them, as the tables write them; without any, the label is a figure.
        id: column of the ids that predictions are listed by; without it rows are numbered from 0.
        metrics: the first decides which point of the grid is best; f1 is that of the second of two labels.
        long_text: which part of a single text that is too long is read.
    """

    kind: Literal["texts"] = "texts"
    train: str = "train.tsv"
    dev: str = "dev.tsv"
    test: str = "test.tsv"
    text: str
    second_text: str | None = None
    label: str = "label"
    labels: tuple[str, ...] = ()
    id: str | None = None
    metrics: tuple[str, ...] = ()
    long_text: LongText = "head"

    def __post_init__(self) -> None:
        if "" in (self.text, self.second_text, self.label, self.id):
            raise ValueError("the name of a column is empty; write it, or leave out what the tables don't have")
        if len({self.text, self.second_text, self.label}) < 3:
            raise ValueError("text, second_text and label must be different columns")
        if self.labels and len(set(self.labels)) < max(2, len(self.labels)):
            raise ValueError("labels must be two or more, each once; leave them out where the label is a figure")
        if unknown := [name for name in self.metrics if name not in self._known_metrics]:
            raise ValueError(
                f"metrics: {unknown[0]!r} is none of {', '.join(self._known_metrics)}, which fit the labels"
            )
        super().__post_init__()

    @property
    def _known_metrics(self) -> tuple[str, ...]:
        if not self.labels:
            return _OF_FIGURES
        return _OF_TWO_CLASSES if len(self.labels) == 2 else _OF_CLASSES

    @property
    def learned_as(self) -> Texts:
        """With the labels."""
        return Texts(self.labels, self.metrics or self._known_metrics[:1], self.long_text)

    @property
    def best(self) -> str:
        """The first metric."""
        return self.learned_as.metrics[0]

    def examples(self, name: str, split: str, data: Path) -> list[TextExample]:
        """Rows of a table."""
        table = TextTable(
            folders=(Path(name).stem, "."),
            a=self.text,
            b=self.second_text,
            label=self.label,
            labels=self.labels,
            scale=None if self.labels else (-math.inf, math.inf),
            files={split: (file,) for split, file in self.files.items()},
            id=self.id,
            needs_id=self.id is not None,
        )
        return tables.read(table, data, split)


@dataclass(frozen=True, kw_only=True)
class OwnTags(OwnTask):
    """Words with the tags of entities in columns, in IOB1, IOB2, BIOES or BILOU; see eval.readers.conll.

    Attributes:
        types: of entities; without any, those that the training file has.
        tag: number of the column of the tag, the first being 1, the word's; without it the last.
    """

    kind: Literal["tags"] = "tags"
    train: str = "train.txt"
    dev: str = "dev.txt"
    test: str = "test.txt"
    types: tuple[str, ...] = ()
    tag: int | None = None
    learning_rates: tuple[float, ...] = _ENTITIES.learning_rates
    epochs: tuple[int, ...] = _ENTITIES.epochs
    batch_sizes: tuple[int, ...] = _ENTITIES.batch_sizes
    max_length: int = _ENTITIES.max_length

    def __post_init__(self) -> None:
        if len(set(self.types)) < len(self.types) or any(not name or name.split() != [name] for name in self.types):
            raise ValueError("types must be words, each once, as the tags have them behind B- and I-")
        if self.tag is not None and self.tag < 2:
            raise ValueError("tag: the column of the tag must be 2 or more; the first is the word's")
        super().__post_init__()

    @property
    def learned_as(self) -> Tags:
        """With the types that the file names."""
        return Tags(self.types)

    @property
    def best(self) -> str:
        """Of entities."""
        return _ENTITIES.best

    def examples(self, name: str, split: str, data: Path) -> list[TaggedSentence]:
        """Sentences with tags of known types; the training file's are all known where none are named."""
        types, advice = self.types, f"; mend the line, or add its type to types in {name}" if self.types else ""
        if split != "train" and not types:
            types = self._found(name, data)
            advice = f", as {self.train} has no others; add some there, or name all types by types = [...] in {name}"
        tag = -1 if self.tag is None else self.tag - 1
        return conll.read(data, split, TagColumns((Path(name).stem, "."), self.files, types, tag, advice))

    def settle(self, name: str, kind: Kind, data: Path) -> Kind:
        """With the types that there are."""
        return kind if self.types else Tags(self._found(name, data))

    def _found(self, name: str, data: Path) -> tuple[str, ...]:
        """The types in the training file."""
        types = _entity_types(self, name, data, self.state(name, "train", data))
        if not types:
            raise DatasetError(f"{name}: every tag in {self.train} is O; say by tag = N which column has the tags")
        return types


@lru_cache(maxsize=1)  # it is asked for with each split that is read
def _entity_types(own: OwnTags, name: str, data: Path, state: tuple[int, ...]) -> tuple[str, ...]:  # noqa: ARG001
    """Those that the training file has in a state."""
    return conll.entity_types(own.examples(name, "train", data))


@dataclass(frozen=True, kw_only=True)
class OwnQuestions(OwnTask):
    """Questions whose answers are parts of texts, in SQuAD's format.

    They are judged by the rules of SQuAD 2.0 where the dev set has a question without an answer, else by those of 1.1.
    """

    kind: Literal["questions"] = "questions"
    train: str = "train.json"
    dev: str = "dev.json"
    test: str = "test.json"
    learning_rates: tuple[float, ...] = _ANSWERS.learning_rates
    epochs: tuple[int, ...] = _ANSWERS.epochs
    batch_sizes: tuple[int, ...] = _ANSWERS.batch_sizes
    max_length: int = _ANSWERS.max_length

    @property
    def learned_as(self) -> Questions:
        """As if there were always an answer."""
        return Questions("v1.1")

    @property
    def best(self) -> str:
        """Of words."""
        return _ANSWERS.best

    def examples(self, name: str, split: str, data: Path) -> list[QuestionExample]:
        """Questions, some of which may have no answer."""
        found = squad.read(data, split, QuestionFiles((Path(name).stem, "."), self.files, impossible=True))
        if split == "test" and any(q.answers == () for q in found) and self._are_all_answered(name, data):
            raise DatasetError(
                f"{name}: {self.test} has questions without an answer and {self.dev}, which shows when to give none, "
                f"has not; leave them out, or add some to {self.dev}"
            )
        return found

    def settle(self, name: str, kind: Kind, data: Path) -> Kind:
        """By the rules that fit the dev set."""
        return kind if self._are_all_answered(name, data) else Questions("v2.0")

    def _are_all_answered(self, name: str, data: Path) -> bool:
        """Whether each question of the dev set has an answer."""
        return _are_answered(self, name, data, self.state(name, "dev", data))


@lru_cache(maxsize=1)  # it is asked for with each split that is read
def _are_answered(own: OwnQuestions, name: str, data: Path, state: tuple[int, ...]) -> bool:  # noqa: ARG001
    """Whether all questions are that the dev set has in a state."""
    return all(question.answers for question in own.examples(name, "dev", data))


_KINDS: dict[str, type[OwnTask]] = {"texts": OwnTexts, "tags": OwnTags, "questions": OwnQuestions}


def read_task(path: Path) -> FineTuned:
    """The task that a file describes, named like the file.

    Raises:
        UsageError: no such file, its name won't do, or it is not as it should be.
    """
    if not _NAME.fullmatch(path.stem):
        raise UsageError(f"{path}: a task is named like its file; use letters, digits, - and _ only")
    try:
        raw = read_toml(path, "task")
        own = parse(raw, _KINDS[_kind_of(path, raw)], str(path))
    except ConfigError as error:
        raise UsageError(str(error)) from error
    return FineTuned(
        name=path.stem,
        version=1,
        kind=own.learned_as,
        best=own.best,
        train=(path.name, "train"),
        dev={"": (path.name, "dev")},
        test=((path.name, "test"),),
        learning_rates=own.learning_rates,
        epochs=own.epochs,
        batch_sizes=own.batch_sizes,
        max_length=own.max_length,
        read=partial(_read, own),
        settle=partial(_settle, own, path.name),
    )


def _kind_of(path: Path, raw: Mapping[str, Any]) -> str:
    """The kind that a file names; of texts where it names none.

    Raises:
        UsageError: there is no such kind, or a setting is one of another's.
    """
    kind = raw.get("kind", "texts")
    if kind not in list(_KINDS):
        raise UsageError(f"{path}: kind: {kind!r} is none of {', '.join(_KINDS)}")
    settings = {name: {field.name for field in fields(own)} for name, own in _KINDS.items()}
    for key in raw:
        others = [name for name, known in settings.items() if key in known]
        if others and kind not in others:
            raise UsageError(
                f'{path}: {key} is a setting of kind = "{others[0]}", not of "{kind}"; write that kind, or leave it out'
            )
    return str(kind)


def _read(own: OwnTask, name: str, split: str, data: Path | None) -> Sequence[Any]:
    return own.examples(name, split, _folder(name, data))


def _settle(own: OwnTask, name: str, kind: Kind, data: Path | None) -> Kind:
    return own.settle(name, kind, _folder(name, data))


def _folder(name: str, data: Path | None) -> Path:
    """That of the files.

    Raises:
        DatasetError: none was given.
    """
    if data is None:
        raise DatasetError(f"{name}: files of your own are not on the hub; give their folder with --data")
    return data
