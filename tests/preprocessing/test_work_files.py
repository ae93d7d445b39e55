from __future__ import annotations

import pytest

from preprocessing.work_files import WorkFile, is_work_file

WHICH = {"unit": 3, "shard": "validation-shard-00000-of-00001.arrow", "place": "unit-00003", "attempt": "0a1b"}


@pytest.mark.parametrize("kind", WorkFile)
def test_every_name_is_known_and_none_that_only_looks_like_it(kind: WorkFile) -> None:
    name = kind.format(**WHICH)
    assert kind.fits(name)
    assert is_work_file(f".work/{name}")
    for other in (name, f"work/{name}", f".work/{name}~", f".work/my {name}", f".work/notes/{name}"):
        assert not is_work_file(other)


def test_a_dot_is_a_dot() -> None:
    assert not any(map(is_work_file, (".work/lost-arrow", ".work/tokens-00003_json", ".work/vocab txt")))


def test_names_are_those_that_earlier_versions_gave() -> None:
    """A job that one of them began is gone on with, or cleared away."""
    names = (WorkFile.TOKENS, WorkFile.UNIT_NOTE, WorkFile.SHARD_NOTE, WorkFile.STUCK_ERROR, WorkFile.UNFINISHED)
    assert [name.format(**WHICH) for name in names] == [
        "tokens-00003.arrow",
        "tokens-00003.json",
        "validation-shard-00000-of-00001.arrow.json",
        "error-stuck-unit-00003",
        "tmp-0a1b",
    ]


def test_a_place_may_be_a_shard() -> None:
    """So that what a job leaves that failed in its second pass is known for its own."""
    assert is_work_file(f".work/{WorkFile.ERROR.format(place=WHICH['shard'])}")


def test_an_error_is_of_the_wider_kind_too() -> None:
    assert WorkFile.ERROR.fits("error-storage-drops")
    assert not WorkFile.STORAGE_ERROR.fits("error-drops")
