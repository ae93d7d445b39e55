"""Questions about a text: SQuAD 1.1 and 2.0 (Rajpurkar et al., 2016, 2018), and KorQuAD 1.0 in their format."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

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


def read(data: Path, split: str, version: str = "v1.1") -> list[QuestionExample]:
    """As read_files, of a published data set; ``version`` is a key of FILES."""
    return read_files(data, split, FILES[version])


def read_files(data: Path, split: str, of: QuestionFiles) -> list[QuestionExample]:
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
    _check(path, [q for paragraph in paragraphs for q in paragraph.qas], of.impossible, split)
    questions = [_example(question, paragraph.context) for paragraph in paragraphs for question in paragraph.qas]
    misplaced = [question for question in questions if not _answers_are_in_place(question)]
    if misplaced and (split != "train" or len(misplaced) == len(questions)):
        raise DatasetError(
            f"{path}: question {misplaced[0].id}: the context has no {misplaced[0].answers[0].text!r} at character "
            f"{misplaced[0].answers[0].start}; count answer_start in characters from 0"
        )
    if misplaced:
        _log.warning(
            "%s: left out %d questions whose answer isn't at its answer_start, such as %s",
            *(path, len(misplaced), misplaced[0].id),
        )
    left_out = {question.id for question in misplaced}
    return [question for question in questions if question.id not in left_out]


def _parse(path: Path) -> _File:
    try:
        return _File.model_validate_json(read_text(path))
    except pydantic.ValidationError as error:
        raise DatasetError(f"{path}: {first_problem(error)}; give a file in SQuAD's format") from error


def _check(path: Path, questions: list[_Question], impossible: bool, split: str) -> None:
    if not questions:
        raise DatasetError(f"{path}: no questions; give a file with some")
    question, times = Counter(question.id for question in questions).most_common(1)[0]
    if times > 1:
        raise DatasetError(f"{path}: question {question}: there {times} times; ids must be unique")
    answered = split != "test" or any(found.is_impossible or found.answers for found in questions)
    for found in questions:
        if found.is_impossible and found.answers:
            raise DatasetError(f"{path}: question {found.id}: is_impossible, but with answers; remove either")
        if found.is_impossible and not impossible:
            raise DatasetError(
                f"{path}: question {found.id}: is_impossible, which no question of this data set is; "
                "leave it out, or take squad_v2 for such files"
            )
        if answered and not found.is_impossible and not found.answers:
            mark = ", or mark it as is_impossible" if impossible else ""
            raise DatasetError(f"{path}: question {found.id}: no answers; give some{mark}")


def _example(question: _Question, context: str) -> QuestionExample:
    answers = tuple(Answer(answer.text, answer.answer_start) for answer in question.answers)
    return QuestionExample(question.id, question.question, context, answers)


def _answers_are_in_place(question: QuestionExample) -> bool:
    return all(
        answer.text and answer.start >= 0 and question.context.startswith(answer.text, answer.start)
        for answer in question.answers
    )
