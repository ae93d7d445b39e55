"""Kinds of tasks: how examples become samples, which head learns them, and what its scores mean.

A task (eval.tasks) has a kind with its settings; the loop (eval.finetune) knows only what is common to all.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import sklearn.metrics
import torch
from torch import nn
from typing_extensions import override

from eval import squad, tagging
from eval.encoding import Encoder, LongText, Sample, collate
from eval.finetune import Settings
from eval.heads import ChoiceHead, ClassificationHead, SpanHead, TagHead, fine_tuned
from eval.metrics import entity_f1, score_labels
from eval.readers.conll import ENTITY_TYPES, convert_tags
from eval.readers.examples import ChoiceExample, QuestionExample, TaggedSentence, TextExample
from eval.squad_metrics import korquad, squad_v1, squad_v2
from trainer.hugging_face import Export
from trainer.model import BertConfig

# Files of predictions: of texts and of choices, of questions, and of tags.
PREDICTIONS, _CONFUSION = "predictions.tsv", "confusion.tsv"
ANSWERS, _N_BEST, _ODDS = "predictions.json", "nbest.json", "null_odds.json"
TAGS = "predictions.txt"


@dataclass(frozen=True)
class Outcome:
    """What a model made of a data set.

    Attributes:
        metrics: in per cent; none where the data set has no labels.
        files: name -> content: predictions, and what helps to understand them.
        details: figures that are no metrics.
    """

    metrics: dict[str, float]
    files: dict[str, str]
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Frozen:
    """An encoder that computes and doesn't learn.

    Attributes:
        export: the pretrained model.
        settings: precision, and how much at once.
        device: to compute on.
        folder: for what is computed.
        name: of it, another one for other weights or examples.
    """

    export: Export
    settings: Settings
    device: torch.device
    folder: Path
    name: str


class Kind(ABC):
    """A kind of task.

    Attributes:
        files: names of all files that its outcomes may have.
        published_as: the end of the name of the class of transformers that is such a model; None where none is.
    """

    files: ClassVar[tuple[str, ...]]
    published_as: ClassVar[str | None] = None

    @property
    def classes(self) -> Sequence[str]:
        """Names of the classes, in the order of their numbers; none for kinds without."""
        return ()

    def check(self, config: BertConfig) -> None:  # noqa: B027  most kinds take any
        """See that a model of this shape will do.

        Raises:
            UsageError: it won't.
        """

    def encoding(self, max_length: int) -> dict[str, Any]:  # noqa: ARG002
        """What decides how examples become samples of so many tokens, beside what a kind is and its task's version."""
        return {}

    @abstractmethod
    def encode(self, examples: Sequence[Any], encoder: Encoder, training: bool) -> list[Any]:
        """Samples of examples, to learn from or to predict."""

    def embed(self, examples: Sequence[Any], samples: Sequence[Any], frozen: Frozen) -> Sequence[Any]:  # noqa: ARG002
        """What a frozen encoder makes of samples; the samples themselves for kinds that train it."""
        return samples

    def collate(self, samples: Sequence[Any]) -> Any:
        """A batch of samples."""
        return collate(samples)

    @abstractmethod
    def build(self, export: Export, seed: int) -> nn.Module:
        """An export's encoder with a new head."""

    @abstractmethod
    def conclude(self, examples: Sequence[Any], samples: Sequence[Any], logits: Sequence[np.ndarray]) -> Outcome:
        """What the logits of all samples say about the examples."""

    def tuned(self, dev: Outcome) -> Kind:  # noqa: ARG002
        """The kind with what came of the dev set, to conclude by on a test set."""
        return self

    def baseline(self, train: Sequence[Any], examples: Sequence[Any]) -> dict[str, float]:  # noqa: ARG002
        """Metrics without a model: always the class that is most frequent in training; none where there are none."""
        return {}


@dataclass(frozen=True)
class Texts(Kind):
    """A text or a pair of texts, to classify or, without labels, to rate.

    Attributes:
        labels: words of the classes.
        metrics: names of eval.metrics.LABEL_METRICS.
        long_text: which part of a text that is too long is read; of a pair it is always the beginnings.
        names: of the classes in a model that is kept, where labels are numbers; no part of what it is made of.
    """

    files = (PREDICTIONS, _CONFUSION)
    published_as = "ForSequenceClassification"

    labels: tuple[str, ...]
    metrics: tuple[str, ...] = ("accuracy",)
    long_text: LongText = "head"
    names: tuple[str, ...] = field(default=(), repr=False)

    @property
    @override
    def classes(self) -> Sequence[str]:
        return self.labels

    @override
    def encode(self, examples: Sequence[TextExample], encoder: Encoder, training: bool) -> list[Sample]:
        """One sequence each."""
        first = encoder.ids([example.a for example in examples])
        second = iter(encoder.ids([example.b for example in examples if example.b is not None]))
        return [
            Sample(
                (encoder.single(a, self.long_text) if example.b is None else encoder.pair(a, next(second)),),
                () if example.label is None else (example.label if self.labels else float(example.label),),
            )
            for example, a in zip(examples, first, strict=True)
        ]

    @override
    def build(self, export: Export, seed: int) -> nn.Module:
        """With a class, or a figure, of the pooled output."""
        return fine_tuned(export, ClassificationHead(export.config, len(self.labels) or 1), seed)

    @override
    def conclude(
        self, examples: Sequence[TextExample], samples: Sequence[Sample], logits: Sequence[np.ndarray]
    ) -> Outcome:
        """The most probable class, or the figure itself."""
        return _labelled(self, examples, np.stack(logits))

    @override
    def baseline(self, train: Sequence[TextExample], examples: Sequence[TextExample]) -> dict[str, float]:
        """Of the most frequent class."""
        return _majority(self, train, examples) if self.labels else {}


@dataclass(frozen=True)
class Choices(Kind):
    """Which of four endings fits (paper, section 4.4): four sequences of the beginning and an ending."""

    files = (PREDICTIONS, _CONFUSION)
    published_as = "ForMultipleChoice"
    metrics: ClassVar[tuple[str, ...]] = ("accuracy",)

    endings: int = 4

    @property
    def labels(self) -> tuple[str, ...]:
        """Words of the classes: the numbers of the endings."""
        return tuple(map(str, range(self.endings)))

    @override
    def encode(self, examples: Sequence[ChoiceExample], encoder: Encoder, training: bool) -> list[Sample]:
        """As many sequences as endings."""
        contexts = encoder.ids([example.context for example in examples])
        texts = [f"{example.start} {ending}".strip() for example in examples for ending in example.endings]
        endings = encoder.ids(texts)
        n = self.endings
        return [
            Sample(
                tuple(encoder.pair(context, ending) for ending in endings[n * i : n * i + n]),
                () if example.label is None else (example.label,),
            )
            for i, (example, context) in enumerate(zip(examples, contexts, strict=True))
        ]

    @override
    def build(self, export: Export, seed: int) -> nn.Module:
        """With a score of each sequence."""
        return fine_tuned(export, ChoiceHead(export.config, self.endings), seed)

    @override
    def conclude(
        self, examples: Sequence[ChoiceExample], samples: Sequence[Sample], logits: Sequence[np.ndarray]
    ) -> Outcome:
        """The ending with the best score."""
        return _labelled(self, examples, np.stack(logits))

    @override
    def baseline(self, train: Sequence[ChoiceExample], examples: Sequence[ChoiceExample]) -> dict[str, float]:
        """Of the most frequent place."""
        return _majority(self, train, examples)


@dataclass(frozen=True)
class Questions(Kind):
    """A question about a text, which answers it or, in version 2, may not.

    Attributes:
        version: whose rules the answers are judged by.
        threshold: of odds, above which there is no answer; None to find the best for the examples, and no part of
            what a model is made of.
    """

    files = (ANSWERS, _N_BEST, _ODDS)
    published_as = "ForQuestionAnswering"

    version: Literal["v1.1", "v2.0", "korquad"]
    threshold: float | None = field(default=None, repr=False)

    @override
    def encoding(self, max_length: int) -> dict[str, Any]:
        """How far apart windows begin where that is not as in sequences of the usual length."""
        stride = squad.shortest_stride(max_length)
        return {"stride": stride} if stride < squad.STRIDE else {}

    @override
    def encode(self, examples: Sequence[QuestionExample], encoder: Encoder, training: bool) -> list[squad.Window]:
        """A sequence for each window over the text."""
        return squad.windows(examples, encoder)

    @override
    def build(self, export: Export, seed: int) -> nn.Module:
        """With scores of each token as first and last of the answer."""
        return fine_tuned(export, SpanHead(export.config), seed)

    @override
    def conclude(
        self, examples: Sequence[QuestionExample], samples: Sequence[squad.Window], logits: Sequence[np.ndarray]
    ) -> Outcome:
        """The best span, or no answer where that scores better by the threshold."""
        found = dict(zip((e.id for e in examples), squad.candidates(examples, samples, logits), strict=True))
        references = {example.id: [answer.text for answer in example.answers or ()] for example in examples}
        are_given = all(example.answers is not None for example in examples)
        answers = {key: of_it.text for key, of_it in found.items()}
        may_be_nothing = self.version == "v2.0"
        files = {_N_BEST: _json({key: squad.n_best(of_it, may_be_nothing) for key, of_it in found.items()})}
        details: dict[str, Any] = {}
        if may_be_nothing:
            threshold = squad.tune_threshold(found, references) if self.threshold is None else self.threshold
            answers = {key: "" if of_it.odds > threshold else of_it.text for key, of_it in found.items()}
            files[_ODDS] = _json({key: of_it.odds for key, of_it in found.items()})
            details["null_threshold"] = threshold
        metrics = self._score(answers, references) if are_given else {}
        return Outcome(metrics, {ANSWERS: _json(answers), **files}, details=details)

    def _score(self, answers: Mapping[str, str], references: Mapping[str, Sequence[str]]) -> dict[str, float]:
        if self.version != "v2.0":
            return (korquad if self.version == "korquad" else squad_v1)(answers, references)
        counts = ("total", "HasAns_total", "NoAns_total")
        return {name: value for name, value in squad_v2(answers, references).items() if name not in counts}

    @override
    def tuned(self, dev: Outcome) -> Questions:
        """With the threshold that was best for the dev set."""
        return replace(self, threshold=dev.details.get("null_threshold"))


@dataclass(frozen=True)
class Tags(Kind):
    """Entities by a tag for each word.

    Attributes:
        types: of entities.
        context: whether a sentence is read within its document.
    """

    files = (TAGS,)
    published_as = "ForTokenClassification"

    types: tuple[str, ...] = ENTITY_TYPES
    context: bool = True

    @property
    @override
    def classes(self) -> Sequence[str]:
        return ["O", *(f"{prefix}-{kind}" for kind in self.types for prefix in "BI")]

    @override
    def encode(self, examples: Sequence[TaggedSentence], encoder: Encoder, training: bool) -> list[tagging.Passage]:
        """A sequence for each sentence, or to predict for all that show the same."""
        return tagging.passages(examples, encoder, self.classes, self.context, merged=not training)

    @override
    def build(self, export: Export, seed: int) -> nn.Module:
        """With scores of each token's tag."""
        return fine_tuned(export, TagHead(export.config, len(self.classes)), seed)

    @override
    def conclude(
        self, examples: Sequence[TaggedSentence], samples: Sequence[tagging.Passage], logits: Sequence[np.ndarray]
    ) -> Outcome:
        """The most probable tags."""
        return judge_tags(examples, tagging.read_tags(examples, samples, logits, self.classes))


def judge_tags(examples: Sequence[TaggedSentence], predicted: Sequence[Sequence[str]]) -> Outcome:
    """Entities by their tags; the file has a word a line with its tag and the predicted one, as conlleval reads it."""
    gold = [convert_tags(sentence.tags) for sentence in examples]
    blocks = [
        "".join(f"{' '.join(columns)}\n" for columns in zip(sentence.words, of_gold, of_ours, strict=True))
        for sentence, of_gold, of_ours in zip(examples, gold, predicted, strict=True)
    ]
    return Outcome(entity_f1(gold, predicted), {TAGS: "\n".join(blocks)})


def _labelled(kind: Texts | Choices, examples: Sequence[Any], scores: np.ndarray) -> Outcome:
    """Predictions as a table and, of classes, how often each was taken for each."""
    words = kind.labels
    predicted = scores.argmax(axis=1).tolist() if words else scores[:, 0].tolist()
    named = [words[int(label)] if words else repr(label) for label in predicted]
    columns = [f"score_{word}" for word in words]
    rows = [["id", "prediction", *columns]] + [
        [example.id, word, *(f"{score:.6g}" for score in row[: len(words)])]
        for example, word, row in zip(examples, named, scores, strict=True)
    ]
    files = {PREDICTIONS: "".join("\t".join(row) + "\n" for row in rows)}
    labels = [example.label for example in examples if example.label is not None]
    if len(labels) < len(examples):
        return Outcome({}, files)
    if words:
        files[_CONFUSION] = _confusion(labels, predicted, words)
    return Outcome(score_labels(kind.metrics, labels, predicted), files)


def read_predictions(path: Path, words: Sequence[str]) -> list[tuple[str, float]]:
    """(id, label) of each example, from the table that a task of texts leaves; ``words`` are those of its labels.

    Raises:
        OSError: it can't be read.
        ValueError: a prediction is not one of these words or, without any, no finite figure.
        IndexError: a line has none.
    """
    rows = [line.split("\t") for line in path.read_bytes().decode().split("\n")[1:-1]]
    found = [(row[0], words.index(row[1]) if words else float(row[1])) for row in rows]
    if infinite := [label for _, label in found if not math.isfinite(label)]:
        raise ValueError(f"{infinite[0]} is not a finite number")
    return found


def _confusion(labels: Sequence[float], predicted: Sequence[float], words: Sequence[str]) -> str:
    """A row for each class, a column for what it was taken for."""
    counts = sklearn.metrics.confusion_matrix(labels, predicted, labels=range(len(words)))
    rows = [["label", *words]] + [[word, *map(str, row)] for word, row in zip(words, counts, strict=True)]
    return "".join("\t".join(row) + "\n" for row in rows)


def _majority(kind: Texts | Choices, train: Sequence[Any], examples: Sequence[Any]) -> dict[str, float]:
    [(most, _)] = Counter(example.label for example in train).most_common(1)
    return score_labels(kind.metrics, [example.label for example in examples], [most] * len(examples))


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
