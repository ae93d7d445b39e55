from __future__ import annotations

import errno
import re
import tomllib
import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest

from preprocessing import files
from preprocessing.encoder import EncoderError
from preprocessing.inputs import Input
from preprocessing.job import describe, reporting, versions
from preprocessing.layout import Layout, ShardingError
from preprocessing.output import DISK_FULL, UNAVAILABLE
from preprocessing.schema import Vocabulary
from preprocessing.sources import SourceError, StorageError
from preprocessing.work_files import WorkFile
from tests.conftest import ROOT
from tests.failing import fail_on
from tests.preprocessing.maker import job_at

BOOK = Input("books", "a.txt", 10, "/here/a.txt")


def test_two_jobs_are_one_where_all_that_decides_the_shards_is_the_same(tmp_path: Path) -> None:
    job = job_at(tmp_path)
    described = describe(job, [BOOK])
    moved = replace(job, output="gs://elsewhere", encoder="words", patience=5.0)
    assert describe(moved, [BOOK._replace(path="/there/a.txt")]) == described
    others = [
        replace(job, options=job_at(tmp_path, "--min-tokens", "2").options),
        replace(job, vocabulary=Vocabulary(100, "another", True)),
        replace(job, layout=Layout(1, 3, 1, 0.1)),
        replace(job, layout=Layout(1, 2, 2, 0.1)),
        replace(job, units=4),
        replace(job, units_blake2b="cut in other places"),
        replace(job, benchmark="identity"),
    ]
    assert all(describe(other, [BOOK]) != described for other in others)
    for changes in ({"source": "jsonl"}, {"name": "b.txt"}, {"bytes": 11}):
        assert describe(job, [BOOK._replace(**changes)]) != described


def test_a_job_names_the_version_of_every_library_of_preprocessing_but_the_one_that_draws() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {re.match(r"[\w-]+", needed)[0] for needed in project["optional-dependencies"]["preprocess"]}  # type: ignore[index]
    assert named - {"matplotlib"} <= versions().keys()
    assert versions()["unicode"] == unicodedata.unidata_version


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (EncoderError, WorkFile.ERROR),
        (SourceError, WorkFile.ERROR),
        (ShardingError, WorkFile.ERROR),
        (StorageError, WorkFile.STORAGE_ERROR),
    ],
)
def test_an_error_of_the_users_is_left_for_the_launcher_and_goes_on(
    tmp_path: Path, error: type[Exception], kind: str
) -> None:
    job = job_at(tmp_path)
    for place in ("unit-00002", "unit-00001"):
        with pytest.raises(error), reporting(job, place):
            raise error(f"what is wrong in {place}")
    assert job.left_error(kind) == "what is wrong in unit-00001"
    assert (job.left_error(WorkFile.STORAGE_ERROR) is None) == (kind == WorkFile.ERROR)


def test_an_input_whose_storage_fails_is_left_as_what_may_pass(tmp_path: Path) -> None:
    job = job_at(tmp_path)
    with pytest.raises(StorageError), reporting(job, "unit-00000"):
        raise StorageError("a.txt: can't be read") from OSError(errno.ESTALE, "stale")
    assert job.left_error(WorkFile.PASSING_ERROR) == "a.txt: can't be read"
    assert job.left_error(WorkFile.STORAGE_ERROR) is None


def test_an_error_may_name_a_path_that_is_no_utf8(tmp_path: Path) -> None:
    job = job_at(tmp_path)
    with pytest.raises(SourceError), reporting(job, "unit-00000"):
        raise SourceError("/caf\udce9/a.txt: damaged")
    assert job.left_error(WorkFile.ERROR) == r"/caf\udce9/a.txt: damaged"


def test_storage_that_fails_is_left_for_the_launcher_and_a_full_disk_as_another_kind(tmp_path: Path) -> None:
    job = job_at(tmp_path)
    with pytest.raises(OSError, match="a library's"), reporting(job, "unit-00000"):
        raise OSError("a library's own, without a number")
    assert job.left_error(WorkFile.ERROR) is None
    with pytest.raises(OSError, match="stale"), reporting(job, "unit-00000"):
        raise OSError(errno.ESTALE, "stale")
    assert job.left_error(WorkFile.PASSING_ERROR) == UNAVAILABLE.format(job.output, "Stale file handle")
    assert job.left_error(WorkFile.STORAGE_ERROR) is None
    with pytest.raises(OSError, match="no space"), reporting(job, "unit-00000"):
        raise OSError(errno.ENOSPC, "no space")
    assert job.left_error(WorkFile.STORAGE_ERROR) == DISK_FULL.format(job.output)


def test_a_disk_that_is_too_full_to_say_so_is_told_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_on(monkeypatch, files, "write_text")
    with pytest.raises(OSError, match="no space"), reporting(job_at(tmp_path), "unit-00000"):
        raise OSError(errno.ENOSPC, "no space")
