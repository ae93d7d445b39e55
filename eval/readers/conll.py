"""Words in columns with the tags of entities, as in CoNLL-2003 (Tjong Kim Sang and De Meulder, 2003): a word a line.

An empty line ends a sentence, -DOCSTART- begins a document. The original files are in IOB1: a tag is I-TYPE within an
entity, and B-TYPE only where an entity begins right after another of its type. IOB2 begins every entity with B-TYPE.
BIOES ends those of several words with E-TYPE and has S-TYPE for those of one; BILOU calls these L and U.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from eval.readers.examples import DatasetError, TaggedSentence
from eval.readers.files import find, read_lines

ENTITY_TYPES = ("PER", "ORG", "LOC", "MISC")
NAMELESS = "ENTITY"  # the type of those whose tags are B and I and no more
_COLUMN = re.compile("[^ \t]+")  # a word may hold any other space
_OUTSIDE = "O"
_BEGINS, _ENDS = "BSU", "ESLU"  # prefixes of tags
_PREFIXES = {*"I", *_BEGINS, *_ENDS}
_DOCUMENT = "-DOCSTART-"

_Lines = Sequence[tuple[int, list[str]]]  # numbers and columns; an empty line has none
_Sentence = tuple[tuple[str, ...], tuple[str, ...]]  # words and tags


@dataclass(frozen=True, slots=True)
class TagColumns:
    """How the files of a data set hold words and tags. The word is in the first column.

    Attributes:
        folders: where they may lie, see eval.readers.files.find.
        files: split -> its file; that of a split which is not here has the split's name.
        types: of entities; empty for any.
        tag: place of the tag's column, from 0; -1 for the last.
        advice: what to do about a tag of another type.
    """

    folders: tuple[str, ...]
    files: Mapping[str, str]
    types: tuple[str, ...] = ()
    tag: int = -1
    advice: str = ""


CONLL_2003 = TagColumns(
    folders=("conll2003", "conll", "."),
    files={"train": "eng.train", "dev": "eng.testa", "test": "eng.testb"},
    types=ENTITY_TYPES,
)


def read(data: Path, split: str, columns: TagColumns = CONLL_2003) -> list[TaggedSentence]:
    """Sentences in the order of the file, with the tags that it has.

    Where no document is marked nothing says which sentences belong together, and each is a document of its own.

    Args:
        data: a file, or a folder that holds it.
        split: "train", "dev", "test", or the name of another file.
        columns: of the data set.

    Raises:
        DatasetError: the file is missing, a line malformed, a tag impossible, or there are no sentences.
    """
    path = find(data, columns.folders, columns.files.get(split, split), columns.files.values())
    sentences = [
        TaggedSentence(f"{number}-{position}", words, tags, number)
        for number, document in enumerate(filter(None, _documents(path, columns)))
        for position, (words, tags) in enumerate(document)
    ]
    if not sentences:
        raise DatasetError(f"{path}: no sentences; give a file with a word and its tag on each line")
    return sentences


def _documents(path: Path, columns: TagColumns) -> list[list[_Sentence]]:
    lines = [(number, _COLUMN.findall(line)) for number, line in enumerate(read_lines(path), start=1)]
    groups = itertools.groupby(lines, key=lambda line: line[1][:1] == [_DOCUMENT])
    parts = [(is_mark, [] if is_mark else _sentences(path, list(group), columns)) for is_mark, group in groups]
    if any(is_mark for is_mark, _ in parts):
        return [sentences for _, sentences in parts]
    return [[sentence] for _, sentences in parts for sentence in sentences]


def _sentences(path: Path, lines: _Lines, columns: TagColumns) -> list[_Sentence]:
    sentences = []
    for has_words, group in itertools.groupby(lines, key=lambda line: bool(line[1])):
        if has_words:
            pairs = [_word_and_tag(path, number, cells, columns) for number, cells in group]
            sentences.append((tuple(word for word, _ in pairs), tuple(tag for _, tag in pairs)))
    return sentences


def _word_and_tag(path: Path, number: int, cells: list[str], columns: TagColumns) -> tuple[str, str]:
    if len(cells) < max(2, columns.tag + 1):
        count = f"{len(cells)} column{'s' if len(cells) > 1 else ''}"
        place = "last" if columns.tag < 0 else f"in column {columns.tag + 1}"
        raise DatasetError(f"{path}: line {number}: {count}; expected a word and, {place}, its tag")
    tag = cells[columns.tag]
    named = f"{tag}-{NAMELESS}" if tag in _PREFIXES else tag
    if not is_tag(named, columns.types):
        place = f"{path}: line {number}, column {range(len(cells))[columns.tag] + 1}"
        raise DatasetError(f"{place}: {tag!r} is not a tag; expected {_expected(columns.types)}{columns.advice}")
    return cells[0], named


def is_word(text: str) -> bool:
    """Whether a text could be a word in a column of a file."""
    return bool(_COLUMN.fullmatch(text)) and "\n" not in text


def is_tag(text: str, types: Sequence[str]) -> bool:
    """Whether a text is the tag of no entity, or of one of some types, or of any where there are none."""
    prefix, _, of = text.partition("-")
    return text == _OUTSIDE or (prefix in _PREFIXES and bool(of) and (not types or of in types))


def _expected(types: Sequence[str]) -> str:
    if not types:
        return f"{_OUTSIDE}, or B- or I- and the type of an entity"
    return ", ".join(sorted([_OUTSIDE, *(f"{prefix}-{of}" for prefix in "BI" for of in types)]))


def entity_types(sentences: Sequence[TaggedSentence]) -> tuple[str, ...]:
    """The types of all entities, by name."""
    return tuple(sorted({tag[2:] for sentence in sentences for tag in sentence.tags if tag != _OUTSIDE}))


def convert_tags(tags: Sequence[str]) -> tuple[str, ...]:
    """Tags of a sentence in IOB2, from IOB1, BIOES or BILOU; those that are IOB2 stay as they are."""
    return tuple(
        tag if tag == _OUTSIDE else f"{'B' if _begins(tag, before) else 'I'}-{tag[2:]}"
        for before, tag in itertools.pairwise((_OUTSIDE, *tags))
    )


def _begins(tag: str, before: str) -> bool:
    """Whether an entity's tag begins another entity than that of the word before, if that is in one."""
    return tag[0] in _BEGINS or before[0] in _ENDS or before[2:] != tag[2:]
