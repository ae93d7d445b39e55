"""CoNLL-2003's columns: literals, and the real files against the shared task's own counts."""

import random
from collections import Counter
from dataclasses import replace

import pytest
from seqeval.metrics.sequence_labeling import get_entities
from seqeval.scheme import BILOU, IOB2, Entities

from eval.readers.conll import TagColumns, convert_tags, entity_types, read
from eval.readers.examples import DatasetError, TaggedSentence


def write(tmp_path, text):
    path = tmp_path / "eng.testa"
    path.write_text(text, encoding="utf-8")
    return path


TEXT = """-DOCSTART- -X- O O

EU NNP I-NP I-ORG
Inc\u00a0Ltd\tNNP\tI-NP  I-ORG

. . O O
-DOCSTART- -X- -X- O


He PRP I-NP O


-DOCSTART- -X- O O
"""


def test_documents_and_sentences(tmp_path):
    file = write(tmp_path, TEXT)
    expected = [
        TaggedSentence("0-0", ("EU", "Inc\u00a0Ltd"), ("I-ORG", "I-ORG"), 0),
        TaggedSentence("0-1", (".",), ("O",), 0),
        TaggedSentence("1-0", ("He",), ("O",), 1),
    ]
    assert read(tmp_path, "dev") == read(file, "dev") == expected


def test_a_first_document_may_go_unmarked(tmp_path):
    write(tmp_path, "He O\n\n-DOCSTART- O\n\nShe O\n")
    assert [(s.id, s.document) for s in read(tmp_path, "dev")] == [("0-0", 0), ("1-0", 1)]


def test_a_document_without_sentences_has_no_number(tmp_path):
    write(tmp_path, "\n-DOCSTART- O\n\n-DOCSTART- O\n\nShe O\n")
    assert [(s.id, s.document) for s in read(tmp_path, "dev")] == [("0-0", 0)]


def test_another_split_is_a_file(tmp_path):
    write(tmp_path, "She O\n").rename(tmp_path / "mine.txt")
    assert [s.words for s in read(tmp_path, "mine.txt")] == [("She",)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("He O\nShe\n", "line 2: 1 column; expected a word and, last, its tag"),
        ("He PRP I-NP\n", "line 1, column 3: 'I-NP' is not a tag; "
         "expected B-LOC, B-MISC, B-ORG, B-PER, I-LOC, I-MISC, I-ORG, I-PER, O"),
        ("-DOCSTART- -X- O O\n", "no sentences; give a file with a word and its tag on each line"),
        ("", "no sentences; give a file with a word and its tag on each line"),
    ],
)  # fmt: skip
def test_malformed_files(tmp_path, text, problem):
    file = write(tmp_path, text)
    with pytest.raises(DatasetError) as raised:
        read(tmp_path, "dev")
    assert str(raised.value) == f"{file}: {problem}"


def test_missing_files(tmp_path):
    with pytest.raises(DatasetError) as raised:
        read(tmp_path, "test")
    expected = f"{tmp_path}: no eng.testb in conll2003/, conll/, ./; put it there, or give the folder that holds it"
    assert str(raised.value) == expected


def test_where_no_document_is_marked_every_sentence_is_one(tmp_path):
    write(tmp_path, "He O\n\nShe O\nis O\n")
    assert [(s.id, s.document) for s in read(tmp_path, "dev")] == [("0-0", 0), ("1-0", 1)]


GENES = TagColumns(("genes", "."), {"dev": "dev.iob"}, tag=1, advice="; look")


def test_other_columns_and_types(tmp_path):
    (tmp_path / "dev.iob").write_text("p53 S-Gene-1 x\nis O x\nit B y\nis E y\n")
    [found] = read(tmp_path, "dev", GENES)
    assert (found.words, found.tags) == (("p53", "is", "it", "is"), ("S-Gene-1", "O", "B-ENTITY", "E-ENTITY"))
    assert entity_types([found]) == ("ENTITY", "Gene-1")


@pytest.mark.parametrize("tag", ["X", "b-Gene", "B-", "-Gene", "BGene", "M-Gene", "o"])
def test_what_is_no_tag_of_any_type(tmp_path, tag):
    (tmp_path / "dev.iob").write_text(f"p53 {tag} x\n")
    with pytest.raises(DatasetError) as raised:
        read(tmp_path, "dev", GENES)
    expected = f"line 1, column 2: {tag!r} is not a tag; expected O, or B- or I- and the type of an entity; look"
    assert str(raised.value) == f"{tmp_path / 'dev.iob'}: {expected}"


def test_the_column_of_the_tag_is_missing(tmp_path):
    (tmp_path / "dev.iob").write_text("p53 O x\nis\n")
    with pytest.raises(DatasetError, match=r"line 2: 1 column; expected a word and, in column 2, its tag$"):
        read(tmp_path, "dev", GENES)
    (tmp_path / "dev.iob").write_text("p53 x O\nis x\n")
    with pytest.raises(DatasetError, match=r"line 2: 2 columns; expected a word and, in column 3, its tag$"):
        read(tmp_path, "dev", replace(GENES, tag=2))


def test_any_bioes_has_the_entities_that_seqeval_finds():
    draw = random.Random(1)
    alphabet = ["O", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in ("A", "B"))]
    for _ in range(300):
        tags = [draw.choice(alphabet) for _ in range(draw.randrange(1, 8))]
        assert get_entities(list(convert_tags(tags))) == get_entities(tags)


def test_bilou_has_the_entities_that_seqeval_finds():
    tags = ["U-A", "U-A", "B-A", "L-A", "B-B", "I-B", "L-B", "U-B", "O", "B-A", "I-A", "I-A", "L-A"]
    found, expected = Entities([list(convert_tags(tags))], IOB2), Entities([tags], BILOU)
    assert found.entities == expected.entities
    assert len(found.entities[0]) == 6


@pytest.mark.parametrize(
    ("iob1", "iob2"),
    [
        ("", ""),
        ("O I-PER I-PER O", "O B-PER I-PER O"),
        ("I-PER B-PER I-PER", "B-PER B-PER I-PER"),
        ("I-PER I-ORG I-ORG", "B-PER B-ORG I-ORG"),
        ("O B-PER I-ORG", "O B-PER B-ORG"),
        ("B-PER I-PER B-PER O B-LOC", "B-PER I-PER B-PER O B-LOC"),
        ("B-PER U-PER I-PER", "B-PER B-PER B-PER"),  # U is a whole entity, whatever is around it
    ],
)
def test_tags_are_converted(iob1, iob2):
    assert convert_tags(iob1.split()) == tuple(iob2.split())
    assert convert_tags(iob2.split()) == tuple(iob2.split())


# Tjong Kim Sang and De Meulder (2003), tables 1 and 2.
@pytest.mark.parametrize(
    ("split", "documents", "sentences", "words", "entities"),
    [
        ("train", 946, 14041, 203621, {"LOC": 7140, "MISC": 3438, "ORG": 6321, "PER": 6600}),
        ("dev", 216, 3250, 51362, {"LOC": 1837, "MISC": 922, "ORG": 1341, "PER": 1842}),
    ],
)
def test_real_files(real_data, split, documents, sentences, words, entities):
    found = read(real_data, split)
    assert len({sentence.document for sentence in found}) == documents
    assert (len(found), sum(len(sentence.words) for sentence in found)) == (sentences, words)
    converted = Counter(tag for sentence in found for tag in convert_tags(sentence.tags))
    assert {tag[2:]: count for tag, count in converted.items() if tag.startswith("B-")} == entities
    places = [tuple(int(number) for number in sentence.id.split("-")) for sentence in found]
    assert places == sorted(set(places))
    assert [document for document, _ in places] == [sentence.document for sentence in found]
