"""Questions about a text: SQuAD 1.1 and 2.0 (Rajpurkar et al., 2016, 2018), and KorQuAD 1.0 in their format."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pydantic

from eval.errors import first_problem
from eval.readers.examples import Answer, DatasetError, QuestionExample
from eval.readers.files import find, read_text

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QuestionFiles:
    """Where the files of a data set lie, and what they may hold.

    Attributes:
        folders: where they may lie, see eval.readers.files.find.
        files: split -> its file; that of a split which is not here is SPLIT.json.
        impossible: whether questions may have no answer, which their mark, is_impossible, says.
    """

    folders: tuple[str, ...]
    files: Mapping[str, str]
    impossible: bool = False


FILES = {
    "v1.1": QuestionFiles(("squad", "."), {"train": "train-v1.1.json", "dev": "dev-v1.1.json"}),
    "v2.0": QuestionFiles(("squad", "."), {"train": "train-v2.0.json", "dev": "dev-v2.0.json"}, impossible=True),
    "korquad": QuestionFiles(
        ("korquad", "korean", "."), {"train": "KorQuAD_v1.0_train.json", "dev": "KorQuAD_v1.0_dev.json"}
    ),
}


class _Answer(pydantic.BaseModel):
    text: str
    answer_start: int


class _Question(pydantic.BaseModel):
    id: str
    question: str
    answers: list[_Answer] = []
    is_impossible: bool = False


class _Paragraph(pydantic.BaseModel):
    context: str
    qas: list[_Question]


class _Article(pydantic.BaseModel):
    paragraphs: list[_Paragraph]


class _File(pydantic.BaseModel):
    data: list[_Article]


def read(data: Path, split: str, of: QuestionFiles = FILES["v1.1"]) -> list[QuestionExample]:
    """Questions in the order of the file.

    Answers lie where they are said to. In the split "train", questions for which that isn't so are left out with a
    warning, as google-research/bert does (run_squad.py, read_squad_examples); anywhere else it is an error, as a dev
    set without them would be another one, and so it is where none would be left.

    Args:
        data: a JSON file, or a folder that holds it.
        split: "train", "dev", "test" (all answers may be missing), or the name of another file without its ".json".
        of: the data set.

    Raises:
        DatasetError: the file is missing, not of this format, without questions, or has a question twice, one
            without an answer that isn't marked as impossible, one that is where none may be, or an answer that isn't
            in its context.
    """
    path = find(data, of.folders, of.files.get(split, f"{split}.json"), of.files.values())
    paragraphs = [paragraph for article in _parse(path).data for paragraph in article.paragraphs]
    asked = [question for paragraph in paragraphs for question in paragraph.qas]
    marked = _marked(path, asked, of.impossible)
    given = split != "test" or any(question.is_impossible or question.answers for question in asked)
    questions = [_example(question, paragraph.context, given) for paragraph in paragraphs for question in paragraph.qas]
    if flaw := find_flaw(questions, split, marked if of.impossible else None):
        raise DatasetError(f"{path}: {flaw.problem}; {flaw.advice}")
    return in_place(questions, str(path))


class Flaw(NamedTuple):
    """What is wrong with a question, which it names, and what to do about it in a file."""

    problem: str
    advice: str


def find_flaw(questions: Sequence[QuestionExample], split: str, impossible: Collection[str] | None) -> Flaw | None:
    """What is wrong with the questions of a split, wherever they are from; None where nothing is.

    Args:
        questions: all of them.
        split: "train" may have some whose answers aren't in place.
        impossible: ids of those that are marked to have no answer; None where none may be.
    """
    if not questions:
        return Flaw("no questions", "give a file with some")
    key, times = Counter(question.id for question in questions).most_common(1)[0]
    if times > 1:
        return Flaw(f"question {key}: there {times} times", "ids must be unique")
    for question in questions:
        if question.answers == () and question.id not in (impossible or ()):
            mark = "" if impossible is None else ", or mark it as is_impossible"
            return Flaw(f"question {question.id}: no answers", f"give some{mark}")
    misplaced = [(question, answer) for question in questions for answer in _misplaced(question)]
    if misplaced and (split != "train" or len({question.id for question, _ in misplaced}) == len(questions)):
        question, answer = misplaced[0]
        problem = f"question {question.id}: the context has no {answer.text!r} at character {answer.start}"
        return Flaw(problem, "count answer_start in characters from 0")
    return None


def in_place(questions: Sequence[QuestionExample], source: str) -> list[QuestionExample]:
    """Those whose answers lie where they are said to; a warning, which names the source, counts the others."""
    left_out = {question.id: None for question in questions if _misplaced(question)}
    if left_out:
        _log.warning(
            "%s: left out %d questions whose answer isn't at its answer_start, such as %s",
            *(source, len(left_out), next(iter(left_out))),
        )
    return [question for question in questions if question.id not in left_out]


def _parse(path: Path) -> _File:
    try:
        return _File.model_validate_json(read_text(path))
    except pydantic.ValidationError as error:
        raise DatasetError(f"{path}: {first_problem(error)}; give a file in SQuAD's format") from error


def _marked(path: Path, questions: list[_Question], impossible: bool) -> set[str]:
    """The ids of questions that are marked to have no answer."""
    marked = [question for question in questions if question.is_impossible]
    for question in marked:
        if question.answers:
            raise DatasetError(f"{path}: question {question.id}: is_impossible, but with answers; remove either")
        if not impossible:
            raise DatasetError(
                f"{path}: question {question.id}: is_impossible, which no question of this data set is; "
                "leave it out, or take squad_v2 for such files"
            )
    return {question.id for question in marked}


def _example(question: _Question, context: str, is_given: bool) -> QuestionExample:
    answers = tuple(Answer(answer.text, answer.answer_start) for answer in question.answers)
    return QuestionExample(question.id, question.question, context, answers if is_given else None)


def _misplaced(question: QuestionExample) -> list[Answer]:
    """The answers that aren't where they are said to be."""
    return [
        answer
        for answer in question.answers or ()
        if not answer.text or answer.start < 0 or not question.context.startswith(answer.text, answer.start)
    ]
