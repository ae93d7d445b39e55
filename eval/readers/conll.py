"""CoNLL-2003 named entities (Tjong Kim Sang and De Meulder, 2003): a word a line, its tag in the last column.

An empty line ends a sentence, -DOCSTART- begins a document. The original files are in IOB1: a tag is I-TYPE within an
entity, and B-TYPE only where an entity begins right after another of its type. IOB2 begins every entity with B-TYPE.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from eval.readers.examples import DatasetError, TaggedSentence
from eval.readers.files import find, read_lines

ENTITY_TYPES = ("PER", "ORG", "LOC", "MISC")
_COLUMN = re.compile("[^ \t]+")  # a word may hold any other space
_OUTSIDE = "O"
_TAGS = {_OUTSIDE, *(f"{prefix}-{kind}" for prefix in "BI" for kind in ENTITY_TYPES)}
_DOCUMENT = "-DOCSTART-"
_FILES = {"train": "eng.train", "dev": "eng.testa", "test": "eng.testb"}


def read(data: Path, split: str) -> list[TaggedSentence]:
    """Sentences in the order of the file, with the tags that it has, IOB1 or IOB2.

    Args:
        data: a file, or a folder that holds it, itself or in conll2003/ or conll/.
        split: "train", "dev", "test", or the name of another file.

    Raises:
        DatasetError: the file is missing, a line malformed, a tag impossible, or there are no sentences.
    """
    path = find(data, ("conll2003", "conll", "."), _FILES.get(split, split), _FILES.values())
    documents = [_sentences(path, document) for document in _documents(path)]
    sentences = [
        TaggedSentence(f"{number}-{position}", words, tags, number)
        for number, document in enumerate(filter(None, documents))
        for position, (words, tags) in enumerate(document)
    ]
    if not sentences:
        raise DatasetError(f"{path}: no sentences; give a file with a word and its tag on each line")
    return sentences


def _documents(path: Path) -> Iterator[list[tuple[int, list[str]]]]:
    """Lines as (number, columns), a document at a time; an empty line has no columns."""
    lines = [(number, _COLUMN.findall(line)) for number, line in enumerate(read_lines(path), start=1)]
    for is_mark, group in itertools.groupby(lines, key=lambda line: line[1][:1] == [_DOCUMENT]):
        if not is_mark:
            yield list(group)


def _sentences(path: Path, lines: Sequence[tuple[int, list[str]]]) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """(words, tags) of each sentence of a document."""
    sentences = []
    for has_words, group in itertools.groupby(lines, key=lambda line: bool(line[1])):
        if has_words:
            pairs = [_word_and_tag(path, number, columns) for number, columns in group]
            sentences.append((tuple(word for word, _ in pairs), tuple(tag for _, tag in pairs)))
    return sentences


def _word_and_tag(path: Path, number: int, columns: list[str]) -> tuple[str, str]:
    if len(columns) < 2:
        raise DatasetError(f"{path}: line {number}: {len(columns)} column; expected a word and, last, its tag")
    if columns[-1] not in _TAGS:
        raise DatasetError(
            f"{path}: line {number}, column {len(columns)}: {columns[-1]!r} is not a tag; "
            f"expected {', '.join(sorted(_TAGS))}"
        )
    return columns[0], columns[-1]


def convert_tags(tags: Sequence[str]) -> tuple[str, ...]:
    """Tags of a sentence in IOB2, from IOB1; those that are IOB2 stay as they are."""
    return tuple(
        f"B-{tag[2:]}" if tag != _OUTSIDE and before[2:] != tag[2:] else tag  # of another type: an entity begins
        for before, tag in itertools.pairwise((_OUTSIDE, *tags))
    )
