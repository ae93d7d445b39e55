"""What the scores of a model mean, by the kind of the task."""

import json
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from eval.encoding import Encoder, LongText
from eval.kinds import PREDICTIONS, Choices, Outcome, Questions, Tags, Texts, judge_tags, read_predictions
from eval.readers.examples import Answer, ChoiceExample, QuestionExample, TaggedSentence, TextExample
from preprocessing.tokenization import SPECIAL_TOKENS, build_tokenizer


def test_confusion_has_a_row_for_each_class_and_a_column_for_what_it_was_taken_for() -> None:
    examples = [TextExample(str(i), "", None, label) for i, label in enumerate([0, 0, 1, 2, 2])]
    scores = list(np.eye(4)[[0, 1, 1, 0, 2]])
    found = Texts(("a", "b", "c", "d")).conclude(examples, [], scores)
    assert found.files["confusion.tsv"].splitlines() == [
        "label\ta\tb\tc\td",
        "a\t1\t1\t0\t0",
        "b\t0\t1\t0\t0",
        "c\t1\t0\t1\t0",
        "d\t0\t0\t0\t0",
    ]


@pytest.mark.parametrize(("long_text", "shown"), [("head", "a b c d"), ("tail", "c d e f"), ("head+tail", "a d e f")])
def test_of_a_text_that_is_too_long_the_part_is_read_that_is_asked_for_and_of_pairs_the_beginnings(
    long_text: LongText, shown: str
) -> None:
    tokenizer = build_tokenizer([*SPECIAL_TOKENS, *"abcdef"], lowercase=False)
    examples = [TextExample("0", "a b c d e f", None, 1), TextExample("1", "a b c", "d e f", 0)]
    samples = Texts(("no", "yes"), long_text=long_text).encode(examples, Encoder(tokenizer, 6), training=True)
    texts = [" ".join(tokenizer.id_to_token(i) for i in sample.sequences[0].ids) for sample in samples]
    assert texts == [f"[CLS] {shown} [SEP]", "[CLS] a b [SEP] d [SEP]"]
    assert [sample.targets for sample in samples] == [(1,), (0,)]


@pytest.mark.parametrize(("labels", "expected"), [(("no", "yes"), [1, 0]), ((), [0.25, 1.5])])
def test_predictions_are_read_as_they_were_written(tmp_path: Path, labels: tuple[str, ...], expected: list) -> None:
    """Whatever an id holds: lines end with LF alone."""
    examples = [TextExample(id, "", None, None) for id in ("a\rb", "\u2028")]  # noqa: A001
    scores = np.array([[0.25, 0.5], [1.5, 0.0]])
    found = Texts(labels).conclude(examples, [], list(scores))
    assert found.metrics == {}
    (tmp_path / PREDICTIONS).write_text(found.files[PREDICTIONS], encoding="utf-8")
    assert read_predictions(tmp_path / PREDICTIONS, labels) == list(zip(("a\rb", "\u2028"), expected, strict=True))


def test_each_ending_stands_behind_the_beginning_with_what_all_endings_begin_with() -> None:
    tokenizer = build_tokenizer([*SPECIAL_TOKENS, *"abcdef"], lowercase=False)
    examples = [ChoiceExample("0", "a b", "c", ("d", "e"), 1), ChoiceExample("1", "a", "", ("f", "b"), None)]
    samples = Choices(endings=2).encode(examples, Encoder(tokenizer, 10), training=True)
    texts = [
        [" ".join(tokenizer.id_to_token(i) for i in sequence.ids) for sequence in sample.sequences]
        for sample in samples
    ]
    assert texts == [
        ["[CLS] a b [SEP] c d [SEP]", "[CLS] a b [SEP] c e [SEP]"],
        ["[CLS] a [SEP] f [SEP]", "[CLS] a [SEP] b [SEP]"],
    ]
    assert [sample.targets for sample in samples] == [(1,), ()]


ASKED = build_tokenizer([*SPECIAL_TOKENS, "where", "서울", "부산"], lowercase=False)


def conclude(kind: Questions, asked: dict[str, tuple[str | None, float]], are_given: bool = True) -> Outcome:
    """Of a model that answers "부산" with a score of 2, and nothing with another, to questions with these answers."""
    context = "서울 부산 시"
    examples = [
        QuestionExample(key, "where", context, ((Answer(answer, 3),) if answer else ()) if are_given else None)
        for key, (answer, _) in asked.items()
    ]
    windows = kind.encode(examples, Encoder(ASKED, 80), training=False)
    logits = [np.zeros((window.size, 2)) for window in windows]
    for window, scores, (_, nothing) in zip(windows, logits, asked.values(), strict=True):
        scores[0], scores[window.offset + 1] = nothing / 2, 1.0
    return kind.conclude(examples, windows, logits)


def test_there_is_no_answer_where_that_scores_better_by_more_than_the_best_threshold() -> None:
    """Which is what the last question that is answered has itself."""
    found = conclude(Questions("v2.0"), {"first": ("부산", 0.0), "second": ("부산", 6.0), "third": (None, 8.0)})
    files = {name: json.loads(text) for name, text in found.files.items()}
    assert files["predictions.json"] == {"first": "부산", "second": "부산", "third": ""}
    assert "부산" in found.files["predictions.json"]  # for readers
    assert files["null_odds.json"] == {"first": -2.0, "second": 4.0, "third": 6.0}
    assert found.details == {"null_threshold": 4.0}
    assert set(found.metrics.values()) == {100.0}
    assert list(found.metrics) == ["exact", "f1", "HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1"]


def test_a_test_set_is_answered_by_the_threshold_of_the_dev_set_and_judged_where_its_answers_are_given() -> None:
    dev = conclude(Questions("v2.0"), {"first": ("부산", 0.0), "second": ("부산", 6.0), "third": (None, 8.0)})
    tuned = Questions("v2.0").tuned(dev)
    assert (tuned.threshold, repr(tuned)) == (4.0, repr(Questions("v2.0")))  # which points that are finished name
    unknown = conclude(tuned, {"a": (None, 5.9), "b": (None, 6.1)}, are_given=False)
    assert json.loads(unknown.files["predictions.json"]) == {"a": "부산", "b": ""}
    assert unknown.metrics == {}
    assert conclude(tuned, {"a": ("부산", 5.9), "b": (None, 5.9)}).metrics["exact"] == 50.0
    assert conclude(tuned, {"a": (None, 5.9), "b": (None, 6.1)}).metrics["NoAns_exact"] == 50.0  # to none an answer
    assert conclude(Questions("v2.0", threshold=0.0), {"a": ("부산", 2.5)}).metrics["exact"] == 0.0
    always = Questions("v1.1")
    assert always.tuned(conclude(always, {"a": ("부산", 9.0)})) == always
    assert conclude(always, {"a": (None, 9.0)}, are_given=False).metrics == {}


@pytest.mark.parametrize(("version", "f1"), [("v1.1", 250 / 3), ("korquad", 90.0)])
def test_where_there_is_always_an_answer_it_is_judged_by_its_words_or_in_korean_by_its_characters(
    version: Literal["v1.1", "korquad"], f1: float
) -> None:
    found = conclude(Questions(version), {"first": ("부산", 9.0), "second": ("부산 시", 9.0)})
    assert json.loads(found.files["predictions.json"]) == {"first": "부산", "second": "부산"}
    assert found.metrics == {"exact_match": 50.0, "f1": pytest.approx(f1)}
    assert (found.files.keys(), found.details) == ({"predictions.json", "nbest.json"}, {})


def test_a_sentence_is_learned_from_by_itself_and_predicted_with_those_of_its_document() -> None:
    sentences = [TaggedSentence(f"0-{i}", (word,), ("O",), 0) for i, word in enumerate(("서울", "부산", "where"))]
    found = {training: Tags().encode(sentences, Encoder(ASKED, 9), training) for training in (True, False)}
    assert [len(found[training]) for training in (True, False)] == [3, 1]
    assert {len(passage.sequences[0].ids) for passages in found.values() for passage in passages} == {5}


def test_tags_are_listed_as_conlleval_reads_them() -> None:
    """A word a line with its tag in IOB2 and the predicted one, and an empty line between sentences."""
    sentences = [
        TaggedSentence("0-0", ("U.N.", "official"), ("I-ORG", "O"), 0),
        TaggedSentence("0-1", ("Ekeus",), ("I-PER",), 0),
    ]
    found = judge_tags(sentences, [["B-ORG", "B-PER"], ["O"]])
    assert found.files == {"predictions.txt": "U.N. B-ORG B-ORG\nofficial O B-PER\n\nEkeus B-PER O\n"}
    assert found.metrics == {"precision": 50.0, "recall": 50.0, "f1": 50.0}


def test_points_of_the_usual_lengths_are_made_as_before_windows_of_short_sequences_overlapped() -> None:
    kind = Questions("v1.1")
    assert [kind.encoding(length) for length in (384, 256, 225)] == [{}, {}, {}]
    assert [kind.encoding(length)["stride"] for length in (224, 192, 128)] == [127, 95, 31]
    assert Texts(("a", "b")).encoding(128) == {}
