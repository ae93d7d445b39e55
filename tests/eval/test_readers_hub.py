"""The hub's layout of the data sets: small copies of it on disk, read by `datasets` itself, in place of the network."""

import logging
import sys

import datasets
import pytest
from datasets import ClassLabel, Dataset, Features, List, Value

from eval.readers.examples import (
    Answer,
    ChoiceExample,
    DatasetError,
    QuestionExample,
    TaggedSentence,
    TextExample,
)
from eval.readers.glue import GLUE
from eval.readers.hub import HUB, read_hub

TEXT, INDEX = Value("string"), Value("int32")
NLI = ClassLabel(names=["entailment", "neutral", "contradiction"])
SPAN = {"text": List(TEXT), "answer_start": List(INDEX)}
NER = ClassLabel(names=["O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC"])


def copy(**columns):
    """One row of a data set: name of a column -> (its feature, its value)."""
    return Dataset.from_dict(
        {name: [value] for name, (_, value) in columns.items()},
        features=Features({name: feature for name, (feature, _) in columns.items()}),
    )


PAIR = {"sentence1": (TEXT, "a"), "sentence2": (TEXT, "b")}
PREMISE = {"premise": (TEXT, "a"), "hypothesis": (TEXT, "b")}
ENTAILMENT = ClassLabel(names=["entailment", "not_entailment"])
QUESTION = {
    "id": (TEXT, "q1"), "title": (TEXT, "t"), "context": (TEXT, "In Seoul."), "question": (TEXT, "Where?"),
}  # fmt: skip


def twice(rows):
    return datasets.concatenate_datasets([rows, rows])


def classes(*names):
    return ClassLabel(names=list(names))


ROWS = [
    ("CoLA", "dev", [("nyu-mll/glue", "cola", "validation")],
     copy(sentence=(TEXT, "a"), label=(classes("unacceptable", "acceptable"), 1), idx=(INDEX, 3)),
     TextExample("3", "a", None, 1)),
    ("SST-2", "test", [("nyu-mll/glue", "sst2", "test")],
     copy(sentence=(TEXT, "a"), label=(classes("negative", "positive"), -1), idx=(INDEX, 3)),
     TextExample("3", "a", None, None)),
    ("MRPC", "train", [("nyu-mll/glue", "mrpc", "train")],
     copy(**PAIR, label=(classes("not_equivalent", "equivalent"), 1), idx=(INDEX, 0)), TextExample("0", "a", "b", 1)),
    ("STS-B", "dev", [("nyu-mll/glue", "stsb", "validation")],
     copy(**PAIR, label=(Value("float32"), 4.75), idx=(INDEX, 0)), TextExample("0", "a", "b", 4.75)),
    ("STS-B", "train", [("nyu-mll/glue", "stsb", "train")],
     copy(**PAIR, label=(Value("float32"), 5.0), idx=(INDEX, 0)), TextExample("0", "a", "b", 5.0)),
    ("STS-B", "test", [("nyu-mll/glue", "stsb", "test")],
     copy(**PAIR, label=(Value("float32"), -1.0), idx=(INDEX, 0)), TextExample("0", "a", "b", None)),
    ("QQP", "dev", [("nyu-mll/glue", "qqp", "validation")],
     copy(question1=(TEXT, "a"), question2=(TEXT, "b"), label=(classes("not_duplicate", "duplicate"), 0),
          idx=(INDEX, 0)), TextExample("0", "a", "b", 0)),
    ("MNLI", "dev", [("nyu-mll/glue", "mnli", "validation_matched")], copy(**PREMISE, label=(NLI, 2), idx=(INDEX, 0)),
     TextExample("0", "a", "b", 2)),
    ("MNLI-mm", "dev", [("nyu-mll/glue", "mnli", "validation_mismatched")],
     copy(**PREMISE, label=(NLI, 2), idx=(INDEX, 0)), TextExample("0", "a", "b", 2)),
    ("MNLI-mm", "test", [("nyu-mll/glue", "mnli", "test_mismatched")],
     copy(**PREMISE, label=(NLI, -1), idx=(INDEX, 0)), TextExample("0", "a", "b", None)),
    # The same words in another order are still the same labels.
    ("MNLI", "train", [("nyu-mll/glue", "mnli", "train")],
     copy(**PREMISE, label=(classes("contradiction", "entailment", "neutral"), 0), idx=(INDEX, 0)),
     TextExample("0", "a", "b", 2)),
    ("QNLI", "dev", [("nyu-mll/glue", "qnli", "validation")],
     copy(question=(TEXT, "a"), sentence=(TEXT, "b"), label=(ENTAILMENT, 1), idx=(INDEX, 0)),
     TextExample("0", "a", "b", 1)),
    ("RTE", "dev", [("nyu-mll/glue", "rte", "validation")], copy(**PAIR, label=(ENTAILMENT, 0), idx=(INDEX, 0)),
     TextExample("0", "a", "b", 0)),
    ("WNLI", "dev", [("nyu-mll/glue", "wnli", "validation")],
     copy(**PAIR, label=(classes("not_entailment", "entailment"), 1), idx=(INDEX, 0)), TextExample("0", "a", "b", 1)),
    ("AX", "test", [("nyu-mll/glue", "ax", "test")], copy(**PREMISE, label=(NLI, -1), idx=(INDEX, 0)),
     TextExample("0", "a", "b", None)),
    ("SQuAD v1.1", "dev", [("rajpurkar/squad", None, "validation")],
     copy(**QUESTION, answers=(SPAN, {"text": ["Seoul", "In Seoul"], "answer_start": [3, 0]})),
     QuestionExample("q1", "Where?", "In Seoul.", (Answer("Seoul", 3), Answer("In Seoul", 0)))),
    ("SQuAD v2.0", "train", [("rajpurkar/squad_v2", None, "train")],
     copy(**QUESTION, answers=(SPAN, {"text": [], "answer_start": []})),
     QuestionExample("q1", "Where?", "In Seoul.", ())),
    ("KorQuAD", "dev", [("KorQuAD/squad_kor_v1", None, "validation")],
     copy(**QUESTION, answers=(SPAN, {"text": ["Seoul"], "answer_start": [3]})),
     QuestionExample("q1", "Where?", "In Seoul.", (Answer("Seoul", 3),))),
    ("SWAG", "dev", [("allenai/swag", "regular", "validation")],
     copy(**{"sent1": (TEXT, "a"), "sent2": (TEXT, "b"), "gold-source": (TEXT, "gold"), "ending0": (TEXT, "c"),
             "ending1": (TEXT, "d"), "ending2": (TEXT, "e"), "ending3": (TEXT, "f"),
             "label": (classes("0", "1", "2", "3"), 2)}),
     ChoiceExample("0", "a", "b", ("c", "d", "e", "f"), 2)),
    ("SWAG", "test", [("allenai/swag", "regular", "test")],
     copy(sent1=(TEXT, "a"), sent2=(TEXT, "b"), ending0=(TEXT, "c"), ending1=(TEXT, "d"), ending2=(TEXT, "e"),
          ending3=(TEXT, "f"), label=(classes("0", "1", "2", "3"), -1)),
     ChoiceExample("0", "a", "b", ("c", "d", "e", "f"), None)),
    ("CoNLL-2003", "dev", [("lhoestq/conll2003", None, "validation")],
     copy(id=(TEXT, "0"), tokens=(List(TEXT), ["He", "is", "Ban", "Ki"]), ner_tags=(List(NER), [0, 0, 1, 2])),
     TaggedSentence("0-0", ("He", "is", "Ban", "Ki"), ("O", "O", "B-PER", "I-PER"), 0)),
    ("IMDB", "test", [("stanfordnlp/imdb", None, "test")], copy(text=(TEXT, "a"), label=(classes("neg", "pos"), 1)),
     TextExample("0", "a", None, 1)),
    ("NSMC", "test", [("e9t/nsmc", None, "test")],
     copy(id=(TEXT, "627"), document=(TEXT, "굳"), label=(classes("negative", "positive"), 1)),
     TextExample("627", "굳", None, 1)),
    ("KorNLI", "dev", [("kakaobrain/kor_nli", "xnli", "validation")], copy(**PREMISE, label=(NLI, 1)),
     TextExample("0", "a", "b", 1)),
    ("KorNLI", "test", [("kakaobrain/kor_nli", "xnli", "test")], copy(**PREMISE, label=(NLI, 0)),
     TextExample("0", "a", "b", 0)),
    ("KorSTS", "test", [("dkoterwa/kor-sts", None, "test")],
     copy(id=(INDEX, 7), **PAIR, score=(Value("float64"), 0.0)), TextExample("0", "a", "b", 0.0)),
    ("KorSTS", "dev", [("dkoterwa/kor-sts", None, "valid")],
     copy(id=(INDEX, 7), **PAIR, score=(Value("float64"), 3.8)), TextExample("0", "a", "b", 3.8)),
]  # fmt: skip


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A folder in place of the hub; gives what was asked of it."""
    asked = []

    def load_dataset(path, config=None, split=None, revision=None):
        asked.append((path, config, split, revision))
        return datasets.load_from_disk(tmp_path / path / str(config) / split)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return tmp_path, asked


def put(hub, place, rows):
    path, config, split = place
    rows.save_to_disk(hub[0] / path / str(config) / split)


@pytest.mark.parametrize(("name", "split", "places", "rows", "example"), ROWS)
def test_every_data_set(hub, name, split, places, rows, example):
    for place in places:
        put(hub, place, rows)
    assert read_hub(name, split) == [example]
    assert [question[:3] for question in hub[1]] == places


def test_every_data_set_is_tested():
    assert {name for name, *_ in ROWS} == set(HUB)
    assert set(GLUE) < set(HUB)


def test_several_parts(hub):
    for label, config in enumerate(("multi_nli", "snli")):
        put(hub, ("kakaobrain/kor_nli", config, "train"), copy(**PREMISE, label=(NLI, label)))
    assert read_hub("KorNLI", "train") == [TextExample("0", "a", "b", 0), TextExample("1", "a", "b", 1)]


def test_each_sentence_is_a_document_of_its_own(hub):
    put(hub, ("lhoestq/conll2003", None, "train"), twice(copy(tokens=(List(TEXT), ["He"]), ner_tags=(List(NER), [0]))))
    assert [(sentence.id, sentence.document) for sentence in read_hub("CoNLL-2003", "train")] == [
        ("0-0", 0),
        ("1-0", 1),
    ]


def test_data_sets_that_were_scripts_come_from_the_hubs_parquet_copy(hub):
    put(hub, ("e9t/nsmc", None, "train"), next(rows for name, _, _, rows, _ in ROWS if name == "NSMC"))
    read_hub("NSMC", "train")
    assert hub[1] == [("e9t/nsmc", None, "train", "refs/convert/parquet")]


def message(name, split):
    with pytest.raises(DatasetError) as raised:
        read_hub(name, split)
    return str(raised.value)


def test_mistakes(hub):
    place = ("nyu-mll/glue", "rte", "validation")
    assert message("rte", "dev") == f"unknown data set 'rte'; known on the hub: {', '.join(HUB)}"
    assert message("IMDB", "dev") == "stanfordnlp/imdb: no split 'dev'; known here: train, test"
    for label in (-2, 2):
        put(hub, place, copy(**PAIR, label=(Value("int64"), label), idx=(INDEX, 0)))
        assert message("RTE", "dev") == (
            f"nyu-mll/glue: row 0: label {label} is not from 0 to 1; it has changed: use the files with --data"
        )
    for figure in (-0.5, 5.5):
        put(hub, ("nyu-mll/glue", "stsb", "validation"), copy(**PAIR, label=(Value("float32"), figure), idx=(INDEX, 0)))
        assert message("STS-B", "dev") == (
            f"nyu-mll/glue: row 0: label {figure} is not from 0 to 5; it has changed: use the files with --data"
        )
    put(hub, ("nyu-mll/glue", "wnli", "validation"), copy(text=(TEXT, "a"), label=(Value("int64"), 0)))
    assert message("WNLI", "dev") == ("nyu-mll/glue: no column 'sentence1'; it has changed: use the files with --data")
    put(hub, ("lhoestq/conll2003", None, "test"), copy(tokens=(List(TEXT), ["He"]), ner_tags=(List(INDEX), [0])))
    assert message("CoNLL-2003", "test") == (
        "lhoestq/conll2003: its tags have no names; it has changed: use the files with --data"
    )


SEOUL = (SPAN, {"text": ["Seoul"], "answer_start": [3]})
NOT_IN_PLACE = (SPAN, {"text": ["Seoul"], "answer_start": [0]})
NONE = (SPAN, {"text": [], "answer_start": []})
ENDINGS = {f"ending{i}": (TEXT, "c") for i in range(4)}
SWAG = {"sent1": (TEXT, "a"), "sent2": (TEXT, "b"), **ENDINGS, "label": (classes("0", "1", "2", "3"), 2)}


@pytest.mark.parametrize(
    ("name", "split", "rows", "problem"),
    [
        ("RTE", "dev", copy(**PAIR | {"sentence2": (TEXT, None)}, label=(ENTAILMENT, 0)),
         "row 0, column 'sentence2': None is no text"),
        ("RTE", "train", copy(**PAIR, label=(ENTAILMENT, -1)), "row 0: no label"),
        ("RTE", "dev", copy(**PAIR, label=(ENTAILMENT, None)), "row 0: no label"),
        ("RTE", "dev", copy(**PAIR, label=(TEXT, "entailment")), "row 0: label entailment is not from 0 to 1"),
        ("STS-B", "dev", copy(**PAIR, label=(Value("float32"), -1.0)), "row 0: no label"),
        ("STS-B", "dev", copy(**PAIR, label=(TEXT, "3")), "row 0: label 3 is not from 0 to 5"),
        ("IMDB", "test", copy(text=(TEXT, "a"), label=(classes("neg", "pos"), -1)), "row 0: no label"),
        ("NSMC", "test", copy(id=(TEXT, "1"), document=(TEXT, "a"), label=(INDEX, -1)), "row 0: no label"),
        ("NSMC", "test", copy(id=(TEXT, "1\t"), document=(TEXT, "a"), label=(INDEX, 1)), "row 0: '1\\t' is no id"),
        ("NSMC", "test", copy(id=(TEXT, None), document=(TEXT, "a"), label=(INDEX, 1)), "row 0: None is no id"),
        ("SWAG", "dev", copy(**SWAG | {"ending3": (TEXT, None)}), "row 0, column 'ending3': None is no text"),
        ("SWAG", "dev", copy(**SWAG | {"label": (INDEX, -1)}), "row 0: no label"),
        ("SWAG", "dev", copy(**SWAG | {"label": (INDEX, 4)}), "row 0: label 4 is not from 0 to 3"),
        ("SQuAD v1.1", "dev", copy(**QUESTION, answers=NOT_IN_PLACE),
         "question q1: the context has no 'Seoul' at character 0"),
        ("SQuAD v1.1", "train", copy(**QUESTION, answers=NOT_IN_PLACE),
         "question q1: the context has no 'Seoul' at character 0"),
        ("SQuAD v1.1", "train", copy(**QUESTION, answers=NONE), "question q1: no answers"),
        ("KorQuAD", "dev", copy(**QUESTION, answers=NONE), "question q1: no answers"),
        ("SQuAD v2.0", "dev", twice(copy(**QUESTION, answers=SEOUL)), "question q1: there 2 times"),
        ("SQuAD v2.0", "dev", copy(**QUESTION | {"id": (TEXT, None)}, answers=NONE),
         "row 0, column 'id': None is no text"),
        ("SQuAD v2.0", "dev", copy(**QUESTION, answers=(SPAN, None)), "row 0: None are no answers with their places"),
        ("SQuAD v2.0", "dev", copy(**QUESTION, answers=(SPAN, {"text": ["Seoul"], "answer_start": []})),
         "row 0: {'text': ['Seoul'], 'answer_start': []} are no answers with their places"),
        ("CoNLL-2003", "dev", copy(tokens=(List(TEXT), ["He is"]), ner_tags=(List(NER), [0])),
         "row 0: 'He is' is no word"),
        ("CoNLL-2003", "dev", copy(tokens=(List(TEXT), ["He\n"]), ner_tags=(List(NER), [0])),
         "row 0: 'He\\n' is no word"),
        ("CoNLL-2003", "dev", copy(tokens=(List(TEXT), None), ner_tags=(List(NER), [0])), "row 0: 0 words and 1 tags"),
        ("CoNLL-2003", "dev", copy(tokens=(List(TEXT), ["He"]), ner_tags=(List(NER), None)),
         "row 0: 1 words and 0 tags"),
        ("CoNLL-2003", "dev", copy(tokens=(List(TEXT), []), ner_tags=(List(NER), [])), "row 0: 0 words and 0 tags"),
        ("CoNLL-2003", "dev", copy(tokens=(List(TEXT), ["He"]), ner_tags=(List(NER), [0, 0])),
         "row 0: 1 words and 2 tags"),
        ("CoNLL-2003", "dev", copy(tokens=(List(TEXT), ["He"]), ner_tags=(List(NER), [None])),
         "row 0: label None is not from 0 to 8"),
        ("CoNLL-2003", "dev", copy(tokens=(List(TEXT), ["He"]), ner_tags=(List(classes("O", "B-GPE")), [0])),
         "'B-GPE' is not a tag"),
    ],
)  # fmt: skip
def test_rows_are_as_the_readers_of_files_want_theirs(monkeypatch, name, split, rows, problem):
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: rows)
    assert message(name, split) == f"{HUB[name].path}: {problem}; it has changed: use the files with --data"


def test_misplaced_answers_are_no_training_questions(monkeypatch, caplog):
    rows = [
        copy(**QUESTION | {"id": (TEXT, key)}, answers=answers) for key, answers in (("a", NOT_IN_PLACE), ("b", SEOUL))
    ]
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: datasets.concatenate_datasets(rows))
    assert [example.id for example in read_hub("SQuAD v1.1", "train")] == ["b"]
    assert caplog.messages == [
        "rajpurkar/squad: left out 1 questions whose answer isn't at its answer_start, such as a"
    ]
    problem = "question a: the context has no 'Seoul' at character 0"
    assert message("SQuAD v1.1", "dev") == f"rajpurkar/squad: {problem}; it has changed: use the files with --data"


def test_an_empty_split(monkeypatch):
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: Dataset.from_dict({"sentence1": []}))
    assert message("MRPC", "dev") == "nyu-mll/glue: the split 'dev' is empty"


@pytest.mark.parametrize("error", [ConnectionError, RuntimeError, ValueError])
def test_a_hub_that_does_not_answer(monkeypatch, error):
    for text, told in (("Couldn't reach the Hub\nwith details", "Couldn't reach the Hub"), ("", error.__name__)):

        def refuse(*_, text=text, **__):
            raise error(text)

        monkeypatch.setattr(datasets, "load_dataset", refuse)
        assert message("RTE", "dev") == (f"nyu-mll/glue: can't be had from the hub ({told}); use the files with --data")


def test_files_that_the_library_can_not_put_together(tmp_path, monkeypatch):
    """It has errors of its own for that, as it has for sizes that differ and downloads that break off."""
    for part, row in enumerate(['{"sentence1": "a"}', '{"sentence1":']):
        (tmp_path / "repository").mkdir(exist_ok=True)
        (tmp_path / "repository" / f"train-{part}.jsonl").write_text(row)
    path, load = str(tmp_path / "repository"), datasets.load_dataset
    cache = str(tmp_path / "cache")
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, split, **__: load(path, split=split, cache_dir=cache))
    assert message("RTE", "train").startswith(
        "nyu-mll/glue: can't be had from the hub (An error occurred while generating the dataset: JSON parse error: "
    )


@pytest.mark.parametrize("library", ["datasets", "huggingface_hub"])
def test_what_a_library_tells_by_its_own_handler_is_told_once(hub, monkeypatch, library):
    """And not by the program's handler, which hears what is propagated."""
    logger = logging.getLogger(library)
    monkeypatch.setattr(logger, "propagate", True)
    message("RTE", "dev")
    assert logger.handlers
    assert not logger.propagate


def test_without_datasets(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert message("RTE", "dev") == "the hub is read through datasets: pip install 'bert-pretraining[hub]'"
