"""What readers give: one type for each kind of task, whatever the format of its files."""

from __future__ import annotations

from dataclasses import dataclass

from eval.errors import UsageError


class DatasetError(UsageError):
    """Files of a data set that are missing or not as they should be. The message names the file and the place."""


def is_id(text: str) -> bool:
    """Whether an example may be called so: predictions are listed in tables, whose cells and lines it must not end."""
    return "\t" not in text and "\n" not in text


@dataclass(frozen=True, slots=True)
class TextExample:
    """A text, or a pair of them, to classify or to rate.

    Attributes:
        id: as in the file, else the number of the row, from 0.
        a: the text.
        b: the second text; None for tasks of one.
        label: index into the task's list of labels, or the figure of a regression; None where it is not given.
    """

    id: str
    a: str
    b: str | None
    label: int | float | None


@dataclass(frozen=True, slots=True)
class ChoiceExample:
    """A beginning, and endings of which one is right.

    Attributes:
        id: as in the file, else the number of the row, from 0.
        context: SWAG's sent1.
        start: how every ending begins, SWAG's sent2; may be empty.
        endings: to choose from.
        label: index of the right one; None where it is not given.
    """

    id: str
    context: str
    start: str
    endings: tuple[str, ...]
    label: int | None


@dataclass(frozen=True, slots=True)
class Answer:
    """A span of a context: its text, and the character that it starts at."""

    text: str
    start: int


@dataclass(frozen=True, slots=True)
class QuestionExample:
    """A question about a text.

    Attributes:
        id: unique within a file.
        question: to be answered.
        context: the text.
        answers: all that are right; empty where there is none, and None where that is not given.
    """

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...] | None


@dataclass(frozen=True, slots=True)
class TaggedSentence:
    """Words with a tag each.

    Attributes:
        id: DOCUMENT-POSITION, both from 0.
        words: of the sentence.
        tags: as in the file.
        document: number of the document, from 0.
    """

    id: str
    words: tuple[str, ...]
    tags: tuple[str, ...]
    document: int
