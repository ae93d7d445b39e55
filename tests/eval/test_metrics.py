"""Metrics against the official scripts' figures, torchmetrics, brute force, and conlleval's rules."""

import json
import math
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torchmetrics.functional.text import squad as torchmetrics_squad

from eval.errors import UsageError
from eval.metrics import (
    GLUE_METRICS,
    entity_f1,
    half_width,
    korquad,
    main,
    score_labels,
    squad_v1,
    squad_v2,
)
from eval.readers.glue import GLUE
from tests.eval.answers import made_up
from tests.failing import REASON, fail_at
from tests.streams import FULL, stdout_to

EXACT = {"rel": 1e-12, "abs": 1e-9}

# ---- SQuAD 1.1 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prediction", "golds", "exact", "f1"),
    [
        ("the Normans", ["Normans"], 100, 100),  # articles
        ("a an the", ["The"], 100, 0),  # nothing but articles: equal, but no word is shared
        ("theatre", ["the atre"], 0, 0),  # an article is a whole word
        ("pizza", ["pizz"], 0, 0),
        ("A. B.", ["b"], 100, 100),  # punctuation goes before articles do
        ("U.S.A.", ["USA"], 100, 100),
        ("don't", ["dont"], 100, 100),
        ("co-op", ["co op"], 0, 0),  # and leaves no space
        ("“Normans”", ["Normans"], 0, 0),  # that of ASCII only
        ("1066–1087", ["10661087"], 0, 0),
        ("BEYONCÉ", ["beyoncé"], 100, 100),
        ("Beyonce\u0301", ["Beyoncé"], 0, 0),  # Unicode is compared as it is
        ("STRASSE", ["straße"], 0, 0),
        ("the\u00a0end\u3000is  near", ["end is near"], 100, 100),  # any space
        ("in 1066", ["1066"], 0, 200 / 3),
        ("in 1066 in", ["in in 1066"], 0, 100),  # a bag of words
        ("to be or not to be", ["to be to"], 0, 200 / 3),
        ("Norman", ["Saxon", "the Norman", "Norman conquest"], 100, 100),  # the best answer counts
        ("the big Norman conquest", ["Norman", "Norman conquest"], 0, 80),
        ("", ["Normans"], 0, 0),
        ("", [""], 100, 0),
        ("...", [""], 100, 0),
        ("노르만족", ["노르만족"], 100, 100),
        ("then—the—now", ["then— —now"], 100, 100),  # an article leaves a space
    ],
)
def test_squad_v1(prediction, golds, exact, f1):
    assert squad_v1({"q": prediction}, {"q": golds}) == pytest.approx({"exact_match": exact, "f1": f1}, **EXACT)


def test_squad_v1_counts_a_question_without_a_prediction():
    expected = {"exact_match": 50, "f1": 50}
    assert squad_v1({"a": "x"}, {"a": ["x"], "b": ["y"]}) == pytest.approx(expected, **EXACT)


def test_squad_v1_over_questions():
    references = {"a": ["x"], "b": ["y z"], "c": ["w"], "d": ["v"]}
    predictions = {"b": "y", "a": "x", "d": "u", "another": "x"}  # c is missing
    assert squad_v1(predictions, references) == pytest.approx({"exact_match": 25, "f1": 100 * (1 + 2 / 3) / 4}, **EXACT)


# Of evaluate-v1.1.py, evaluate-v2.0.py (rajpurkar/SQuAD-explorer) and KorQuAD's evaluate-v1.0.py for the same answers.
OFFICIAL_V1 = {"exact_match": 33.6, "f1": 46.15823953823957}
OFFICIAL_KORQUAD = {"exact_match": 30.2, "f1": 52.37289945289265}
OFFICIAL_V2 = {
    "exact": 42.6,
    "f1": 51.109076479076485,
    "total": 500,
    "HasAns_exact": 15.849056603773585,
    "HasAns_f1": 31.903917885049957,
    "HasAns_total": 265,
    "NoAns_exact": 72.76595744680851,
    "NoAns_f1": 72.76595744680851,
    "NoAns_total": 235,
    "best_exact": 49.2,
    "best_exact_thresh": 0.2,
    "best_f1": 52.881544011544044,
    "best_f1_thresh": 0.3,
}


def test_squad_v1_as_the_official_script():
    answers = made_up(500, seed=1, unanswerable=0)
    assert squad_v1(answers.predictions, answers.references) == pytest.approx(OFFICIAL_V1, **EXACT)


@pytest.fixture
def _double():
    """torchmetrics computes in torch's default precision."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def torchmetrics_scores(predictions, references):
    targets = [
        {"answers": {"text": golds, "answer_start": [0] * len(golds)}, "id": key} for key, golds in references.items()
    ]
    found = torchmetrics_squad([{"prediction_text": t, "id": key} for key, t in predictions.items()], targets)
    return {name: value.item() for name, value in found.items()}


@pytest.mark.usefixtures("_double")
def test_squad_v1_as_torchmetrics():
    for seed in range(5):
        answers = made_up(200, seed, unanswerable=0)
        # Where both are empty torchmetrics goes by version 2.
        wordy = {key: [f"{gold} x" for gold in golds] for key, golds in answers.references.items()}
        found = squad_v1(answers.predictions, wordy)
        assert found == pytest.approx(torchmetrics_scores(answers.predictions, wordy), **EXACT)
        assert 0 < found["exact_match"] + found["f1"] < 200


@pytest.mark.parametrize(
    ("references", "message"),
    [
        ({}, "no references: nothing to score"),
        ({"q1": []}, "question q1: no reference; each needs one, or squad_v2 scores it"),
    ],
)
def test_squad_v1_needs_references(references, message):
    for metric in (squad_v1, korquad):
        with pytest.raises(ValueError, match="no reference") as raised:
            metric({"q1": "x"}, references)
        assert str(raised.value) == message


# ---- KorQuAD --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prediction", "golds", "exact", "f1"),
    [
        ("1989년 2월 15일", ["1989년 2월 15일"], 100, 100),
        ("1989년", ["1989년 2월"], 0, 100 * 2 * 5 / (5 + 7)),  # characters, but for spaces
        ("《춘향전》", ["춘향전"], 100, 100),
        ("춘향전(春香傳)", ["춘향전 春香傳"], 100, 100),  # brackets part words
        ("‘춘향전’은", ["춘향전 은"], 100, 100),
        ("<춘향전>", ["〈춘향전〉"], 100, 100),
        ("""가'나"다<라>마""", ["가 나 다 라 마"], 100, 100),  # these are more than punctuation
        ("춘-향전", ["춘향전"], 100, 100),  # and other punctuation doesn't
        ("the end", ["end"], 0, 2 / 3 * 100),  # articles stay
        ("ABC", ["abc"], 100, 100),
        ("", ["춘향전"], 0, 0),
    ],
)
def test_korquad(prediction, golds, exact, f1):
    assert korquad({"q": prediction}, {"q": golds}) == pytest.approx({"exact_match": exact, "f1": f1}, **EXACT)


def test_korquad_as_the_official_script():
    answers = made_up(500, seed=1, unanswerable=0)
    assert korquad(answers.predictions, answers.references) == pytest.approx(OFFICIAL_KORQUAD, **EXACT)


# ---- SQuAD 2.0 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prediction", "golds", "exact", "f1"),
    [
        ("the Normans", ["Normans"], 100, 100),
        ("in 1066", ["1066", "the year 1066"], 0, 200 / 3),
        ("", [], 100, 100),  # rightly unanswered
        ("The", [], 100, 100),  # normalises to nothing
        ("Normans", [], 0, 0),
        ("", ["Normans"], 0, 0),
        ("", ["the"], 100, 100),  # an answer that normalises to nothing is none
        ("", ["the", "Normans"], 0, 0),  # but where there is another, that one counts
        ("...", ["...", "!"], 100, 100),
    ],
)
def test_squad_v2(prediction, golds, exact, f1):
    kind = "HasAns" if golds else "NoAns"
    expected = {"exact": exact, "f1": f1, "total": 1}
    found = squad_v2({"q": prediction}, {"q": golds})
    assert found == pytest.approx({**expected, **{f"{kind}_{name}": v for name, v in expected.items()}}, **EXACT)


def test_squad_v2_thresholds():
    references = {"a": ["x"], "b": ["y z"], "c": [], "d": []}
    predictions = {"a": "x", "b": "y", "c": "w", "d": ""}
    odds = {"a": -3.0, "b": 0.5, "c": 0.5, "d": 2.0}
    plain = {
        "exact": 50, "f1": 100 * (1 + 2 / 3 + 1) / 4, "total": 4,
        "HasAns_exact": 50, "HasAns_f1": 100 * (1 + 2 / 3) / 2, "HasAns_total": 2,
        "NoAns_exact": 50, "NoAns_f1": 50, "NoAns_total": 2,
    }  # fmt: skip
    assert squad_v2(predictions, references) == pytest.approx(plain, **EXACT)
    # Answering a and b, in the order of the odds, before c is reached: 1 + 1 + 2/3 + 1 of 4.
    best = {"best_exact": 75, "best_exact_thresh": -3, "best_f1": 100 * (3 + 2 / 3) / 4, "best_f1_thresh": 0.5}
    assert squad_v2(predictions, references, odds, 2.0) == pytest.approx({**plain, **best}, **EXACT)
    # Above 0 there is no answer: b loses its score, c is right.
    cut = {"exact": 75, "f1": 75, "HasAns_f1": 50, "NoAns_exact": 100, "NoAns_f1": 100}
    assert squad_v2(predictions, references, odds, 0.0) == pytest.approx({**plain, **best, **cut}, **EXACT)
    assert squad_v2(predictions, references, {**odds, "a": 1.0})["HasAns_f1"] == pytest.approx(plain["HasAns_f1"])
    # Of equal odds the first counts first, as in the official script: with c before b, answering b gains too little.
    other = dict(sorted(odds.items(), reverse=True))
    assert squad_v2(predictions, references, other)["best_f1"] == pytest.approx(75)


def test_squad_v2_of_some_of_the_questions():
    """Predictions and probabilities may be of more than the references have, as of a whole data set."""
    references, predictions = {"a": ["x"], "b": []}, {"a": "x", "b": "y", "c": "z"}
    odds = {"c": -9.0, "a": 0.1, "b": 0.8}
    fewer = [{key: given[key] for key in references} for given in (predictions, odds)]
    found = squad_v2(predictions, references, odds)
    assert found == squad_v2(fewer[0], references, fewer[1])
    assert (found["best_exact"], found["best_exact_thresh"]) == (100, 0.1)


def test_squad_v2_of_one_kind():
    assert squad_v2({"q": "x"}, {"q": ["x"]}).keys() == {
        "exact", "f1", "total", "HasAns_exact", "HasAns_f1", "HasAns_total",
    }  # fmt: skip
    # Nothing to gain by answering: the official threshold is then 0.
    found = squad_v2({"q": "x"}, {"q": []}, {"q": 0.9})
    assert {name: found[name] for name in ("best_exact", "best_exact_thresh")} == {
        "best_exact": 100,
        "best_exact_thresh": 0,
    }


def test_squad_v2_as_the_official_script():
    answers = made_up(500, seed=1, unanswerable=0.5)
    found = squad_v2(answers.predictions, answers.references, answers.no_answer, 0.5)
    assert found == pytest.approx(OFFICIAL_V2, **EXACT)


@pytest.mark.usefixtures("_double")
def test_squad_v2_as_torchmetrics():
    """Its rules are version 2's, if it is given the answers that count."""
    for seed in range(5):
        answers = made_up(200, seed, unanswerable=0.4)
        cleaned = {
            key: [gold for gold in golds if squad_v2({"q": ""}, {"q": [gold]})["exact"] == 0] or [""]
            for key, golds in answers.references.items()
        }
        expected = torchmetrics_scores(answers.predictions, cleaned)
        found = squad_v2(answers.predictions, answers.references)
        assert found["exact"] == pytest.approx(expected["exact_match"], **EXACT)
        assert found["f1"] == pytest.approx(expected["f1"], **EXACT)


def test_the_best_threshold_is_the_best_there_is():
    """Every threshold tried in turn; without ties, and with a word in every answer, both say the same."""
    draw = random.Random(5)
    for seed in range(4):
        answers = made_up(40, seed, unanswerable=0.3)
        odds = {key: draw.gauss(0.1 if golds else 0.6, 0.3) for key, golds in answers.references.items()}
        predictions = {key: f"{text} x" for key, text in answers.predictions.items()}
        references = {key: [f"{gold} x" for gold in golds] for key, golds in answers.references.items()}
        found = squad_v2(predictions, references, odds)
        for metric in ("exact", "f1"):
            tried = [squad_v2(predictions, references, odds, at)[metric] for at in [-math.inf, *odds.values()]]
            assert found[f"best_{metric}"] == pytest.approx(max(tried), **EXACT)
            at = found[f"best_{metric}_thresh"]
            assert squad_v2(predictions, references, odds, at)[metric] == pytest.approx(max(tried), **EXACT)


@pytest.mark.parametrize(
    ("predictions", "references", "odds", "message"),
    [
        ({}, {}, None, "no references: nothing to score"),
        ({"q1": ""}, {"q1": [], "q2": [], "q3": []}, None,
         "2 questions have no prediction, such as q2; give one for each"),
        ({"q1": "", "q2": ""}, {"q1": [], "q2": []}, {"q1": 0.0},
         "1 questions have no no-answer probability, such as q2; give one for each"),
        ({"q1": ""}, {"q1": []}, {}, "1 questions have no no-answer probability, such as q1; give one for each"),
    ],
)  # fmt: skip
def test_squad_v2_needs_all_predictions(predictions, references, odds, message):
    with pytest.raises(ValueError, match=r"no references|questions have no") as raised:
        squad_v2(predictions, references, odds)
    assert str(raised.value) == message


# ---- labels and figures ---------------------------------------------------------------------------------------------

LABELS, PREDICTIONS = [1, 1, 1, 0, 0, 1], [1, 0, 1, 0, 1, 1]  # 3 hits, 1 false alarm, 1 miss, 1 right 0


def test_metrics_of_labels():
    found = score_labels(["accuracy", "f1", "macro_f1", "matthews"], LABELS, PREDICTIONS)
    assert found == pytest.approx(
        {
            "accuracy": 400 / 6,
            "f1": 75,  # 2 * 3 / (2 * 3 + 1 + 1)
            "macro_f1": (75 + 50) / 2,
            "matthews": 100 * (3 * 1 - 1 * 1) / math.sqrt(4 * 4 * 2 * 2),
        }
    )


def test_metrics_of_figures():
    found = score_labels(["pearson", "spearman"], [0.0, 1, 2, 5], [1.0, 2, 9, 8])
    # Ranks 1 2 4 3: 1 - 6 * 2 / (4 * 15).
    assert found == pytest.approx({"pearson": 100 * 20 / math.sqrt(14 * 50), "spearman": 80})
    assert score_labels(["spearman"], [0, 1, 2], [2, 1, 0]) == pytest.approx({"spearman": -100})
    assert score_labels(["spearman"], [0, 1, 1], [0, 2, 3]) == pytest.approx({"spearman": 100 * math.sqrt(3) / 2})


@pytest.mark.filterwarnings("error")
def test_predictions_that_are_all_the_same():
    """What a model that has learnt nothing gives: a figure that JSON can hold, and no warnings."""
    found = score_labels(["f1", "macro_f1", "matthews", "pearson", "spearman"], [0, 1, 0, 1], [0, 0, 0, 0])
    assert found == pytest.approx({"f1": 0, "macro_f1": 100 / 3, "matthews": 0, "pearson": 0, "spearman": 0})


def test_labels_in_arrays():
    """As transformers' Trainer hands them to compute_metrics, which `evaluate` takes too."""
    metrics = ["accuracy", "f1", "matthews", "pearson"]
    of_lists = score_labels(metrics, LABELS, PREDICTIONS)
    assert score_labels(metrics, np.array(LABELS), np.array(PREDICTIONS)) == of_lists
    assert score_labels(metrics, torch.tensor(LABELS), PREDICTIONS) == of_lists
    with pytest.raises(UsageError, match="0 labels and 0 predictions"):
        score_labels(metrics, np.array([]), np.array([]))


@pytest.mark.parametrize("metric", ["accuracy", "pearson", "spearman"])
def test_a_label_that_is_no_number(metric):
    """As pandas has it for a cell that is empty: no figure comes of it, and scikit-learn's own error says less."""
    with pytest.raises(UsageError, match="a label is no number"):
        score_labels([metric], [0, math.nan, 1], [0, 1, 1])


@pytest.mark.filterwarnings("error")
def test_labels_that_are_all_the_same():
    assert score_labels(["pearson", "spearman"], [2.0, 2.0, 2.0], [1.0, 2.0, 3.0]) == {"pearson": 0, "spearman": 0}
    assert score_labels(["f1"], [0, 0], [0, 0]) == {"f1": 0}  # there is no 1 to find


def glue(task, labels, predictions):
    return score_labels(GLUE_METRICS[task], labels, predictions)


def test_glue():
    assert set(GLUE_METRICS) == set(GLUE)
    assert glue("MRPC", LABELS, PREDICTIONS) == pytest.approx({"accuracy": 400 / 6, "f1": 75})
    assert glue("CoLA", LABELS, PREDICTIONS).keys() == {"matthews"}
    assert glue("STS-B", [0.0, 1, 2], [0.0, 2, 4]) == pytest.approx({"pearson": 100, "spearman": 100})
    assert glue("MNLI-mm", [2, 1, 0], [2, 2, 0]) == pytest.approx({"accuracy": 200 / 3})
    assert glue("QQP", LABELS, PREDICTIONS) == pytest.approx({"accuracy": 400 / 6, "f1": 75})
    assert glue("AX", [2, 1, 0], [2, 2, 0]).keys() == {"matthews"}
    by_accuracy = {task for task, metrics in GLUE_METRICS.items() if metrics == ("accuracy",)}
    assert by_accuracy == {"SST-2", "MNLI", "MNLI-mm", "QNLI", "RTE", "WNLI"}


TOO_LARGE = "a label or prediction is beyond 1e+150, too large to be correlated; bring all to another scale"


@pytest.mark.parametrize(
    ("labels", "predictions", "message"),
    [
        ([], [], "0 labels and 0 predictions: give as many, and one at least"),
        ([1, 0], [1], "2 labels and 1 predictions: give as many, and one at least"),
        ([1.0, 0.5], [1.0, math.nan], "a prediction is not a finite number; train again with a lower learning rate"),
        ([1.0, 0.5], [-math.inf, 1.0], "a prediction is not a finite number; train again with a lower learning rate"),
        ([1.0, 0.5], [-1e308, 1e308], TOO_LARGE),
        ([1.0, 0.5], [-1e200, 1.0], TOO_LARGE),
        ([1e200, 0.5], [1.0, 2.0], TOO_LARGE),
    ],
)
def test_predictions_that_do_not_fit(labels, predictions, message):
    with pytest.raises(ValueError, match="prediction") as raised:
        score_labels(["pearson"], labels, predictions)
    assert str(raised.value) == message


def test_half_widths():
    z, n, p = 1.959963984540054, 408, 0.8676
    hits = round(p * n)
    expected = 100 * z / (1 + z * z / n) * math.sqrt(hits / n * (1 - hits / n) / n + z * z / (4 * n * n))
    assert half_width(100 * hits / n, n) == pytest.approx(expected, rel=1e-6)
    assert half_width(100.0, 50) == pytest.approx(half_width(0.0, 50)) == pytest.approx(3.56738)
    assert half_width(29, 100) == pytest.approx(half_width(71, 100))  # of which the first is a hair less than 29 hits


# ---- entities -------------------------------------------------------------------------------------------------------


def conlleval_chunks(tags):
    """Entities by the rules of the shared task's script: (first word, end, type)."""
    chunks, begin = set(), None
    for i, (before, tag) in enumerate(zip(["O", *tags], [*tags, "O"], strict=True)):
        ends = before != "O" and (tag == "O" or tag[0] == "B" or before[2:] != tag[2:])
        begins = tag != "O" and (before == "O" or tag[0] == "B" or before[2:] != tag[2:])
        if ends:
            chunks.add((begin, i, before[2:]))
        if begins:
            begin = i
    return chunks


def sentences(draw, count, alphabet):
    return [[draw.choice(alphabet) for _ in range(draw.randrange(1, 8))] for _ in range(count)]


def nearly(draw, tags, alphabet):
    return [[tag if draw.random() < 0.8 else draw.choice(alphabet) for tag in sentence] for sentence in tags]


def in_scheme(tags, scheme):
    """The same entities, as a scheme wants them written."""
    written = []
    for i, tag in enumerate(tags):
        before = tags[i - 1] if i else "O"
        inside = tag[0] == "I" and before[2:] == tag[2:]
        same_before = before[2:] == tag[2:] and before != "O"
        begin = "B" if scheme == "IOB2" or same_before else "I"
        written.append(tag if tag == "O" or inside else begin + tag[1:])
    return written


@pytest.mark.parametrize("scheme", ["conlleval", "IOB1", "IOB2"])
def test_entities_by_conlleval(scheme):
    """Where tags keep to the scheme, strict or not is all the same."""
    alphabet = ["O", "O", "I-PER", "B-PER", "I-LOC", "B-LOC"]
    for seed in range(5):
        draw = random.Random(seed)
        tags = sentences(draw, 60, alphabet)
        predictions = nearly(draw, tags, alphabet)
        if scheme != "conlleval":
            tags, predictions = ([in_scheme(t, scheme) for t in each] for each in (tags, predictions))
        gold = {(i, *chunk) for i, sentence in enumerate(tags) for chunk in conlleval_chunks(sentence)}
        found = {(i, *chunk) for i, sentence in enumerate(predictions) for chunk in conlleval_chunks(sentence)}
        precision, recall = len(gold & found) / len(found), len(gold & found) / len(gold)
        assert 0.3 < precision < 0.95
        assert entity_f1(tags, predictions, scheme) == pytest.approx(
            {
                "precision": 100 * precision,
                "recall": 100 * recall,
                "f1": 200 * precision * recall / (precision + recall),
            },
            **EXACT,
        )


@pytest.mark.parametrize(
    ("scheme", "tags", "predictions", "f1"),
    [
        ("IOB2", "B-PER I-PER O", "B-PER I-PER O", 100),
        ("IOB2", "B-PER I-PER O", "I-PER I-PER O", 0),  # not begun as the scheme wants
        ("conlleval", "B-PER I-PER O", "I-PER I-PER O", 100),
        ("IOB1", "I-PER B-PER O", "I-PER B-PER O", 100),
        ("IOB1", "I-PER B-PER O", "I-PER I-PER O", 0),
        ("IOB1", "I-PER O", "B-PER O", 0),  # B- only after the same type
        ("conlleval", "I-PER O", "B-PER O", 100),
        ("conlleval", "I-PER I-LOC", "I-LOC I-LOC", 0),
    ],
)
def test_schemes(scheme, tags, predictions, f1):
    assert entity_f1([tags.split()], [predictions.split()], scheme)["f1"] == f1
    if scheme == "conlleval":
        assert entity_f1([tags.split()], [predictions.split()])["f1"] == f1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scheme", ["conlleval", "IOB1", "IOB2"])
def test_no_entities(scheme):
    nothing = {"precision": 0, "recall": 0, "f1": 0}
    assert entity_f1([["B-PER", "O"]], [["O", "O"]], scheme) == nothing
    assert entity_f1([["O", "O"]], [["O", "O"]], scheme) == nothing


@pytest.mark.parametrize("scheme", ["conlleval", "IOB1", "IOB2"])
def test_entities_need_sentences(scheme):
    with pytest.raises(UsageError, match="no sentences"):
        entity_f1([], [], scheme)


@pytest.mark.parametrize("predictions", [[], [["O"]], [["O", "O"], ["O"]]])
def test_entities_need_a_tag_for_each_word(predictions):
    with pytest.raises(ValueError, match="differ") as raised:
        entity_f1([["O", "O"]], predictions)
    assert str(raised.value) == (
        "tags and predictions differ in the number or length of sentences; give a tag for each word"
    )


# ---- files ----------------------------------------------------------------------------------------------------------


def squad_file(path, **answers):
    qas = [
        {
            "id": key,
            "question": "?",
            "answers": [{"text": t, "answer_start": "x y".index(t)} for t in golds],
            "is_impossible": not golds,
        }
        for key, golds in answers.items()
    ]
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": "x y", "qas": qas}]}]}), encoding="utf-8")
    return str(path)


def json_file(path, content):
    path.write_text(json.dumps(content), encoding="utf-8")
    return str(path)


def text_file(path, text):
    path.write_text(text, encoding="utf-8")
    return str(path)


def scores(capsys, *arguments):
    assert main(arguments) == 0
    return json.loads(capsys.readouterr().out)


def refusal(capsys, *arguments):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    return captured.err.removeprefix("error: ").rstrip("\n")


def test_scoring_answers(tmp_path, capsys):
    data = squad_file(tmp_path / "dev.json", a=["x"], b=["x y", "y"])
    predictions = json_file(tmp_path / "predictions.json", {"a": "The x.", "b": "x"})
    for metric in ("squad_v1", "korquad"):
        assert scores(capsys, metric, data, predictions)["f1"] == pytest.approx(
            100 * (1 + 2 / 3) / 2 if metric == "squad_v1" else 100 * (2 / 5 + 2 / 3) / 2
        )


def test_scoring_answers_that_may_be_none(tmp_path, capsys):
    data = squad_file(tmp_path / "dev.json", a=["x"], b=[])
    predictions = json_file(tmp_path / "predictions.json", {"a": "x", "b": "y"})
    odds = json_file(tmp_path / "odds.json", {"a": -1.5, "b": 3})
    assert scores(capsys, "squad_v2", data, predictions)["exact"] == 50
    found = scores(capsys, "squad_v2", data, predictions, "--na-prob-file", odds, "--na-prob-thresh", "-1")
    assert (found["exact"], found["best_exact"], found["best_exact_thresh"]) == (100, 100, -1.5)


def test_no_answer_is_believed_above_a_probability_of_1_unless_another_is_given(tmp_path, capsys):
    """As in the official script: by themselves, probabilities change the best scores only."""
    data, right = squad_file(tmp_path / "dev.json", a=["x"]), json_file(tmp_path / "right.json", {"a": "x"})
    odds = json_file(tmp_path / "odds.json", {"a": 0.9})
    assert scores(capsys, "squad_v2", data, right, "--na-prob-thresh", "0.8")["exact"] == 100  # all have an answer
    assert scores(capsys, "squad_v2", data, right, "--na-prob-file", odds)["exact"] == 100
    assert scores(capsys, "squad_v2", data, right, "--na-prob-file", odds, "--na-prob-thresh", "0.8")["exact"] == 0


def test_scoring_labels(tmp_path, capsys):
    data = text_file(
        tmp_path / "dev.tsv",
        "index\tsentence1\tsentence2\tlabel\n3\ta\tb\tentailment\n5\ta\tb\tnot_entailment\n",
    )
    predictions = text_file(tmp_path / "RTE.tsv", "index\tprediction\n5\tentailment\n3\tentailment\n")
    assert scores(capsys, "glue", "RTE", data, predictions) == {"accuracy": 50}
    rows = "id\tprediction\tentailment\n5\tentailment\t0.9\n3\tentailment\t0.8\n"
    for mark in ("", "\ufeff"):  # as some programs save it
        ours = text_file(tmp_path / "dev_predictions.tsv", mark + rows)
        assert scores(capsys, "glue", "RTE", data, ours) == {"accuracy": 50}


def test_scoring_figures(tmp_path, capsys):
    """A model's figures may leave the scale of the labels, as eval.run writes them."""
    rows = "0\ta\tb\t5.0\n1\tc\td\t1.0\n2\te\tf\t3.0\n"
    data = text_file(tmp_path / "dev.tsv", f"index\tsentence1\tsentence2\tscore\n{rows}")
    ours = text_file(tmp_path / "dev_predictions.tsv", "id\tprediction\n0\t5.12\n1\t-0.9\n2\t2.0\n")
    assert scores(capsys, "glue", "STS-B", data, ours)["spearman"] == 100
    for word in ("nan", "inf", "x"):
        bad = text_file(tmp_path / "bad.tsv", f"id\tprediction\n0\t{word}\n1\t0.9\n2\t2.0\n")
        where = f"{bad}: line 2, column 'prediction'"
        assert refusal(capsys, "glue", "STS-B", data, bad) == (f"{where}: {word!r} is not a figure")


def test_scoring_entities(tmp_path, capsys):
    data = text_file(
        tmp_path / "eng.testa", "-DOCSTART- -X- O O\n\nEU NNP I-NP I-ORG\nrejects VBZ I-VP O\n\nHe PRP I-NP O\n"
    )
    predictions = text_file(tmp_path / "predictions.txt", "EU B-ORG\nrejects O\n\nHe O\n")
    assert scores(capsys, "conll", data, predictions)["f1"] == 100
    assert scores(capsys, "conll", data, predictions, "--scheme", "IOB1")["f1"] == 0


def test_precision_is_of_what_was_predicted_and_recall_of_what_is_there(tmp_path, capsys):
    data, half = (
        text_file(tmp_path / "data", "EU B-ORG\nBan B-PER\n"),
        text_file(tmp_path / "half", "EU B-ORG\nBan O\n"),
    )
    assert scores(capsys, "conll", data, half) == pytest.approx({"precision": 100, "recall": 50, "f1": 200 / 3})


def test_scoring_entities_of_any_type_in_any_scheme(tmp_path, capsys):
    data = text_file(tmp_path / "dev.txt", "p53 S-Gene\nis O\n\nit B-Cell\nis E-Cell\n")
    predictions = text_file(tmp_path / "predictions.txt", "p53 O B-Gene\nis O O\n\nit B-Cell B-Cell\nis I-Cell O\n")
    assert scores(capsys, "conll", data, predictions)["f1"] == 50
    bilou, iob2 = (text_file(tmp_path / f"{tags}.txt", f"p53 {tags}-Gene\nMYC {tags}-Gene\n") for tags in "UB")
    assert scores(capsys, "conll", bilou, iob2)["f1"] == 100
    message = "--scheme IOB2 has no tag S-Gene; leave the option out"
    assert refusal(capsys, "conll", data, predictions, "--scheme", "IOB2") == message


def test_mistakes_in_files(tmp_path, capsys):
    data = squad_file(tmp_path / "dev.json", a=["x"])
    right = json_file(tmp_path / "right.json", {"a": "x"})
    wrong = json_file(tmp_path / "wrong.json", {"a": ["x"]})
    listed = json_file(tmp_path / "list.json", ["x"])
    infinite = json_file(tmp_path / "nan.json", {"a": math.nan})
    table = text_file(tmp_path / "dev.tsv", "index\tsentence1\tsentence2\tlabel\n3\ta\tb\tentailment\n")
    other = text_file(tmp_path / "other.tsv", "index\tprediction\n4\tentailment\n")
    unlabelled = text_file(tmp_path / "test.tsv", "index\tsentence1\tsentence2\n3\ta\tb\n")
    bad = text_file(tmp_path / "bad.tsv", "index\tprediction\n3\t0\n")
    tags = text_file(tmp_path / "tags", "He O\n\nShe O\n")
    short = text_file(tmp_path / "short", "He O\n")
    for arguments, message in (
        (("squad_v1", data, f"{tmp_path}/no.json"), f"{tmp_path}/no.json: can't read it (No such file or directory)"),
        (("squad_v1", f"{tmp_path}/no.json", right), f"{tmp_path}/no.json: no such file"),
        (("squad_v1", data, wrong), f"{wrong}: a: Input should be a valid string; "
                                    "give a JSON object of questions' ids and predictions"),
        (("squad_v1", data, listed), f"{listed}: Input should be an object; "
                                     "give a JSON object of questions' ids and predictions"),
        (("squad_v2", data, right, "--na-prob-file", right), f"{right}: a: Input should be a valid number, "
         "unable to parse string as a number; give a JSON object of questions' ids and predictions"),
        (("squad_v2", data, right, "--na-prob-file", infinite), f"{infinite}: a: Input should be a finite "
         "number; give a JSON object of questions' ids and predictions"),
        (("glue", "RTE", str(tmp_path), other), f"{tmp_path}: no such file"),
        (("glue", "RTE", other, table), f"{other}: line 1: no column 'sentence1' among 'index, prediction'; "
         "is it a file of this task?"),
        (("glue", "RTE", unlabelled, other), f"{unlabelled}: line 1: no column 'label' among 'index, sentence1, "
         "sentence2'; is it a file of this task?"),
        (("glue", "RTE", table, unlabelled), f"{unlabelled}: line 1: no column 'prediction' among 'index, sentence1, "
         "sentence2'; is it a file of this task?"),
        (("glue", "RTE", table, other),
         f"{other}: 1 examples have no prediction, such as index 3; give one for each"),
        (("glue", "RTE", table, bad),
         f"{bad}: line 2, column 'prediction': '0' is not a label; expected entailment or not_entailment"),
        (("conll", tags, short), f"{short}: not the words of {tags} at sentence 1-0; give the same"),
        (("conll", short, tags), f"{tags}: not the words of {short} at the end; give the same"),
    ):  # fmt: skip
        assert refusal(capsys, *arguments) == message


def test_a_path_that_the_file_system_refuses(tmp_path, capsys):
    for path in ("x" * 300, f"{tmp_path}/{'x' * 300}/dev.json"):
        assert "x" * 300 in refusal(capsys, "squad_v1", path, json_file(tmp_path / "right.json", {"a": "x"}))


def test_a_file_that_can_not_be_read_for_a_moment_is_no_mistake(tmp_path, monkeypatch, capsys):
    data, predictions = squad_file(tmp_path / "dev.json", a=["x"]), json_file(tmp_path / "right.json", {"a": "x"})
    fail_at(monkeypatch, Path(data), named=False)
    assert main(["squad_v1", data, predictions]) == 1
    assert capsys.readouterr().err == f"error: {data}: can't be read now ({REASON}); give the same command again\n"


def test_files_that_fit_in_part(tmp_path, capsys):
    table = text_file(
        tmp_path / "dev.tsv",
        "index\tsentence1\tsentence2\tlabel\n3\ta\tb\tentailment\n5\ta\tb\tentailment\n7\ta\tb\tentailment\n",
    )
    half = text_file(tmp_path / "RTE.tsv", "index\tprediction\n3\tentailment\n")
    message = f"{half}: 2 examples have no prediction, such as index 5; give one for each"
    assert refusal(capsys, "glue", "RTE", table, half) == message
    tested = text_file(tmp_path / "test.tsv", "index\tprediction\n" + "".join(f"{i}\tentailment\n" for i in range(8)))
    message = f"{tested}: 5 predictions are of no example of {table}, such as index 0; give those of this data set"
    assert refusal(capsys, "glue", "RTE", table, tested) == message
    tags, others = text_file(tmp_path / "tags", "He O\n\nShe O\n"), text_file(tmp_path / "others", "He O\n\nIt O\n")
    message = f"{others}: not the words of {tags} at sentence 1-0; give the same"
    assert refusal(capsys, "conll", tags, others) == message


@pytest.mark.parametrize("threshold", ["nan", "inf", "x"])
def test_a_threshold_that_is_no_figure(tmp_path, capsys, threshold):
    data, right = squad_file(tmp_path / "dev.json", a=["x"]), json_file(tmp_path / "right.json", {"a": "x"})
    with pytest.raises(SystemExit, match="2"):
        main(["squad_v2", data, right, "--na-prob-thresh", threshold])
    assert f"argument --na-prob-thresh: '{threshold}' is not a finite figure" in capsys.readouterr().err


@pytest.mark.parametrize("metric", ["squad_v1", "korquad"])
def test_questions_without_a_prediction_are_told(tmp_path, capsys, metric):
    data = squad_file(tmp_path / "dev.json", a=["x"], b=["x"], c=["x"])
    some = json_file(tmp_path / "some.json", {"b": "x"})
    assert main([metric, data, some]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["exact_match"] == pytest.approx(100 / 3)
    told = f"{some}: 2 of 3 questions have no prediction, such as a; they count 0"
    assert captured.err == f"warning: {told}\n"


def test_two_predictions_of_one_example(tmp_path, capsys):
    data = text_file(tmp_path / "dev.tsv", "index\tsentence1\tsentence2\tlabel\n3\ta\tb\tentailment\n")
    twice = text_file(tmp_path / "RTE.tsv", "index\tprediction\n3\tentailment\n3\tnot_entailment\n")
    assert refusal(capsys, "glue", "RTE", data, twice) == f"{twice}: index 3 has 2 predictions; give one"


def test_scores_that_find_no_room_are_a_failure(tmp_path):
    data = squad_file(tmp_path / "dev.json", a=["x"])
    with stdout_to(FULL):
        assert main(["squad_v1", data, json_file(tmp_path / "right.json", {"a": "x"})]) == 2


def test_the_command(tmp_path):
    data = squad_file(tmp_path / "dev.json", a=["x"])
    predictions = json_file(tmp_path / "predictions.json", {"a": "the x"})
    command = [sys.executable, "-m", "eval.metrics", "squad_v1", data, predictions]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"exact_match": 100, "f1": 100}
    for words in (["squad_v1", data], ["squad_v1", "", predictions], ["glue", "AX", data, predictions], []):
        with pytest.raises(SystemExit, match="2"):
            main(words)
    for task in set(GLUE) - {"AX"}:  # which has no labels that are given out
        assert main(["glue", task, str(tmp_path / "none"), predictions]) == 2
