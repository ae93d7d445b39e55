"""A small made-up corpus with a vocabulary that covers it."""

from __future__ import annotations

import random
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import apache_beam as beam
import pytest
from apache_beam.transforms import userstate

from preprocessing.tokenization import SPECIAL_TOKENS
from tests.preprocessing.maker import Maker

LANGUAGE = "the a whale ship sea sailed under over old captain spoke of his first long voyage home and never slept"
WORDS = LANGUAGE.split()


def _text(seed: int, sentences: int) -> str:
    chance = random.Random(seed)
    made = [" ".join(chance.choices(WORDS, k=chance.randint(2, 14))).capitalize() + "." for _ in range(sentences)]
    return "\n\n".join(" ".join(made[begin : begin + 5]) for begin in range(0, len(made), 5)) + "\n"


def write_books(folder: Path, count: int) -> Path:
    """So many made-up books of different lengths in a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (folder / f"book-{number:02d}.txt").write_text(_text(number, 20 + 7 * number))
    return folder


@pytest.fixture(autouse=True, scope="package")
def specs_looked_up_once() -> Iterator[None]:
    """Beam asks for the state that a DoFn keeps, hundreds of times in a job, by the signatures of all its methods.

    That is a third of a job of few documents; here each class is asked once.
    """
    look_up, found = userstate.get_dofn_specs, dict[type[beam.DoFn], Any]()

    def look_up_once(dofn: beam.DoFn) -> Any:
        if type(dofn) not in found:
            found[type(dofn)] = look_up(dofn)
        return found[type(dofn)]

    with mock.patch.object(userstate, "get_dofn_specs", look_up_once):
        yield


@pytest.fixture(scope="session")
def vocabulary() -> list[str]:
    characters = string.ascii_lowercase + string.digits + string.punctuation
    return [*SPECIAL_TOKENS, *characters, *("##" + c for c in string.ascii_lowercase), *sorted(set(WORDS) - {"a"})]


@pytest.fixture(scope="session")
def vocabulary_file(vocabulary: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join(vocabulary) + "\n")
    return path


@pytest.fixture(scope="session")
def books(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of twelve made-up books."""
    return write_books(tmp_path_factory.mktemp("corpus") / "books", 12)


@pytest.fixture
def make(vocabulary_file: Path, capsys: pytest.CaptureFixture[str]) -> Maker:
    return Maker(vocabulary_file, capsys)


@pytest.fixture
def one_book_a_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("preprocessing.inputs.UNIT_BYTES", 1)
