"""CoNLL-2003's columns: literals, and the real files against the shared task's own counts."""

from collections import Counter

import pytest

from eval.readers.conll import convert_tags, read
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


@pytest.mark.parametrize(
    ("iob1", "iob2"),
    [
        ("", ""),
        ("O I-PER I-PER O", "O B-PER I-PER O"),
        ("I-PER B-PER I-PER", "B-PER B-PER I-PER"),
        ("I-PER I-ORG I-ORG", "B-PER B-ORG I-ORG"),
        ("O B-PER I-ORG", "O B-PER B-ORG"),
        ("B-PER I-PER B-PER O B-LOC", "B-PER I-PER B-PER O B-LOC"),
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
