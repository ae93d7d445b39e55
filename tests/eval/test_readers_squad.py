"""SQuAD's format: literals, and the real files against a plain walk through them."""

import json
import logging

import pytest

from eval.readers.examples import Answer, DatasetError, QuestionExample
from eval.readers.squad import FILES, read

CONTEXT = "Beyoncé 𝄞 sang in Houston."


def question(key="q1", answers=(("Houston", 18),), **more):
    return {
        "id": key,
        "question": "Where?",
        "answers": [{"text": text, "answer_start": start} for text, start in answers],
        **more,
    }


def write(path, *questions):
    path.parent.mkdir(parents=True, exist_ok=True)
    data = [{"title": "Beyoncé", "paragraphs": [{"context": CONTEXT, "qas": list(questions)}]}]
    path.write_text(json.dumps({"version": "1.1", "data": data}, ensure_ascii=False), encoding="utf-8")
    return path


def message(*arguments):
    with pytest.raises(DatasetError) as raised:
        read(*arguments)
    return str(raised.value)


def test_version_1(tmp_path):
    file = write(tmp_path / "squad" / "dev-v1.1.json", question(answers=[("Houston", 18), ("in Houston", 15)]))
    expected = [QuestionExample("q1", "Where?", CONTEXT, (Answer("Houston", 18), Answer("in Houston", 15)))]
    assert read(tmp_path, "dev") == read(tmp_path / "squad", "dev") == read(file, "dev") == expected


def test_version_2(tmp_path):
    plausible = [{"text": "Houston", "answer_start": 18}]
    impossible = question("q2", (), is_impossible=True, plausible_answers=plausible)
    write(tmp_path / "dev-v2.0.json", question(is_impossible=False), impossible)
    assert [q.answers for q in read(tmp_path, "dev", FILES["v2.0"])] == [(Answer("Houston", 18),), ()]


def test_a_test_set_has_no_answers(tmp_path):
    without = {name: value for name, value in question("q2").items() if name != "answers"}
    write(tmp_path / "test.json", question(answers=()), without)
    assert [q.answers for q in read(tmp_path, "test")] == [None, None]
    write(tmp_path / "test.json", question("q1", (), is_impossible=True), question("q2", (), is_impossible=True))
    assert [q.answers for q in read(tmp_path, "test", FILES["v2.0"])] == [(), ()]


def test_a_test_set_has_all_answers_or_none(tmp_path):
    file = write(tmp_path / "test.json", question(), question("q7", ()))
    assert message(tmp_path, "test") == f"{file}: question q7: no answers; give some"
    write(file, question("q7", ()), question("q8", (), is_impossible=True))
    problem = f"{file}: question q7: no answers; give some, or mark it as is_impossible"
    assert message(tmp_path, "test", FILES["v2.0"]) == problem


MISPLACED = [("Houston", 17)]


def test_misplaced_answers_are_no_training_questions(tmp_path, caplog):
    """Nor is one that has a right answer beside."""
    several = [("Houston", 18), *MISPLACED, *MISPLACED]
    file = write(tmp_path / "train-v1.1.json", question("q1", several), question("q2"), question("q3", MISPLACED))
    with caplog.at_level(logging.WARNING):
        assert [q.id for q in read(tmp_path, "train")] == ["q2"]
    assert [record.message for record in caplog.records] == [
        f"{file}: left out 2 questions whose answer isn't at its answer_start, such as q1"
    ]


def test_a_training_set_of_misplaced_answers_alone_is_refused(tmp_path):
    """As of a program that counts in bytes; there is nothing to learn."""
    file = write(tmp_path / "train-v1.1.json", question("q1", MISPLACED), question("q2", MISPLACED))
    assert message(tmp_path, "train").startswith(f"{file}: question q1: the context has no 'Houston' at character 17")


def test_a_question_without_an_answer_is_refused_where_all_have_one(tmp_path):
    for version, name in (("v1.1", "train-v1.1"), ("korquad", "KorQuAD_v1.0_train")):
        file = write(tmp_path / f"{name}.json", question(), question("q7", (), is_impossible=True))
        problem = f"{file}: question q7: is_impossible, which no question of this data set is; "
        assert message(tmp_path, "train", FILES[version]).startswith(problem)


def test_a_question_without_an_answer_is_marked_in_version_2(tmp_path):
    file = write(tmp_path / "dev-v2.0.json", question("q7", ()))
    problem = f"{file}: question q7: no answers; give some, or mark it as is_impossible"
    assert message(tmp_path, "dev", FILES["v2.0"]) == problem


@pytest.mark.parametrize(
    ("questions", "problem"),
    [
        ([question("q7", MISPLACED)],
         "question q7: the context has no 'Houston' at character 17; count answer_start in characters from 0"),
        ([question("q7", [("Houston", -8)])],
         "question q7: the context has no 'Houston' at character -8; count answer_start in characters from 0"),
        ([question("q7", [("", 3)])],
         "question q7: the context has no '' at character 3; count answer_start in characters from 0"),
        ([question("q7", ())], "question q7: no answers; give some"),
        ([question("q7", (), is_impossible=True)],
         "question q7: is_impossible, which no question of this data set is; leave it out, or take squad_v2 for such "
         "files"),
        ([question("q7", is_impossible=True)], "question q7: is_impossible, but with answers; remove either"),
        ([question("q7"), question("q7")], "question q7: there 2 times; ids must be unique"),
        ([], "no questions; give a file with some"),
        ([{"id": "q1", "question": "Where?", "answers": [{"text": "Houston"}]}],
         "data.0.paragraphs.0.qas.0.answers.0.answer_start: Field required; give a file in SQuAD's format"),
        ([{"id": 7, "question": "Where?", "answers": []}],
         "data.0.paragraphs.0.qas.0.id: Input should be a valid string; give a file in SQuAD's format"),
    ],
)  # fmt: skip
def test_malformed_files(tmp_path, questions, problem):
    file = write(tmp_path / "dev-v1.1.json", *questions)
    assert message(tmp_path, "dev") == f"{file}: {problem}"


def test_files_of_another_kind(tmp_path):
    file = tmp_path / "dev-v1.1.json"
    file.write_text("{'data'", encoding="utf-8")
    assert message(tmp_path, "dev").startswith(f"{file}: Invalid JSON: key must be a string at line 1 column 2")
    file.write_text('{"version": "1.1"}', encoding="utf-8")
    assert message(tmp_path, "dev") == f"{file}: data: Field required; give a file in SQuAD's format"
    file.write_bytes(b"\xff\xfe")
    assert message(tmp_path, "dev") == f"{file}: line 1: not UTF-8 (byte 0xff); convert the file with iconv"
    file.unlink()
    expected = f"{tmp_path}: no dev-v1.1.json in squad/, ./; put it there, or give the folder that holds it"
    assert message(tmp_path, "dev") == expected


# As the data sets' papers count them, but for v2.0, of which this is the half that CS224N gives out.
@pytest.mark.parametrize(
    ("version", "split", "file", "questions", "impossible"),
    [
        ("v1.1", "dev", "squad/dev-v1.1.json", 10570, 0),
        ("v1.1", "train-v1.1.subset", "squad/train-v1.1.subset.json", 2959, 0),
        ("v2.0", "dev-v2.0.cs224n", "squad/dev-v2.0.cs224n.json", 6078, 3168),
        ("korquad", "dev", "korean/KorQuAD_v1.0_dev.json", 5774, 0),
    ],
)
def test_real_files(real_data, version, split, file, questions, impossible):
    examples = read(real_data, split, FILES[version])
    assert (len(examples), sum(not example.answers for example in examples)) == (questions, impossible)
    walk = [
        (paragraph["context"], item["id"], [answer["text"] for answer in item["answers"]])
        for article in json.loads((real_data / file).read_text(encoding="utf-8"))["data"]
        for paragraph in article["paragraphs"]
        for item in paragraph["qas"]
    ]
    assert [(e.context, e.id, [answer.text for answer in e.answers]) for e in examples] == walk
    assert set(FILES) == {"v1.1", "v2.0", "korquad"}
