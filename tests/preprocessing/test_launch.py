from __future__ import annotations

import bz2
import contextlib
import errno
import gzip
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from preprocessing import files, launch
from preprocessing.inputs import Unit
from preprocessing.job import Job
from preprocessing.launch import begin, execute, locate, prepare, provide_vocabulary
from preprocessing.make_shards import main
from preprocessing.options import Arguments, parse
from preprocessing.output import DISK_FULL, JobError, JobFailedError, State
from preprocessing.schema import Vocabulary
from preprocessing.tokenization import VocabularyError
from tests.failing import fail_on
from tests.preprocessing.maker import Maker
from tests.preprocessing.test_wikipedia import dump, page

ALONE = "one worker reads all of it, some 0.0 GB of text; all read it together"


@pytest.fixture
def arguments(books: Path, vocabulary_file: Path, tmp_path: Path) -> list[str]:
    return ["--books", str(books / "*.txt"), "--vocab", str(vocabulary_file), "--output", str(tmp_path / "out")]


def test_a_job_is_laid_out_as_it_was_asked_for(arguments: list[str], vocabulary: list[str], tmp_path: Path) -> None:
    asked = ["--encoder", "words", "--document-timeout", "5"]
    job, _, _, tokens = prepare(parse([*arguments, *asked]), str(tmp_path / "out"))
    assert (job.encoder, job.patience, job.vocabulary.size) == ("words", 5, len(vocabulary))
    assert tokens == vocabulary
    job, _, _, tokens = prepare(parse([*arguments[:2], "--train-vocab", "70", *arguments[4:]]), str(tmp_path / "out"))
    assert (job.vocabulary, tokens) == (Vocabulary(70, "", True), None)


def begun(arguments: list[str]) -> State:
    parsed = parse(arguments)
    job, inputs, _, tokens = prepare(parsed, parsed.output)
    return begin(job, inputs, tokens, parsed)


def test_what_an_interrupted_job_said_and_had_not_finished_is_forgotten(arguments: list[str], tmp_path: Path) -> None:
    """What it said would be told once more when the job fails for another reason."""
    assert begun(arguments) == "new"
    work = tmp_path / "out" / ".work"
    said = ("error-unit-00000", "error-storage-drops", "error-stuck-17", "tmp-0123", "reading-00001.json")
    for name in (*said, "tokens-00000.json"):
        (work / name).write_text("of the interrupted job")
    (work / "vocab.txt").unlink()  # which it had not come to
    assert begun(arguments) == "interrupted"
    assert sorted(path.name for path in work.iterdir()) == ["tokens-00000.json", "vocab.txt"]


def test_what_nobody_knows_the_job_of_is_not_taken_for_a_new_one_s(arguments: list[str], tmp_path: Path) -> None:
    work = tmp_path / "out" / ".work"
    work.mkdir(parents=True)
    (work / "tokens-00000.json").write_text("of a job without its job.json")
    assert begun(arguments) == "new"
    assert [path.name for path in work.iterdir()] == ["vocab.txt"]


def test_what_a_job_that_was_killed_at_its_very_end_has_left_is_removed(
    make: Maker, arguments: list[str], tmp_path: Path
) -> None:
    make(tmp_path / "out", "--books", arguments[1])
    work = tmp_path / "out" / ".work"
    work.mkdir()
    (work / "tokens-00000.arrow").write_text("")
    make(tmp_path / "out", "--books", arguments[1])
    assert not work.exists()


@pytest.mark.parametrize(
    ("source", "name", "data", "told"),
    [
        ("jsonl", "a.jsonl.gz", gzip.compress(b'{"text": "the whale"}\n' * 99), f"{ALONE} once it is decompressed"),
        (
            "wikipedia",
            "a.xml.bz2",
            bz2.compress(dump(page("The whale."))),
            f"{ALONE} from the multistream dump, or once it is decompressed",
        ),
        (
            "jsonl",
            "a.jsonl",
            b'{"text": "the whale"}\n' * 99,
            "counting its documents, which are named by their number: 0.0 GB",
        ),
        ("books", "a.txt", b"the whale\n" * 99, None),
    ],
    ids=["gzip", "bzip2", "plain", "book"],  # not the bytes, in which gzip writes the time
)
def test_what_takes_long_of_a_large_file_is_told(
    vocabulary_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    source: str, name: str, data: bytes, told: str | None,
) -> None:  # fmt: skip
    monkeypatch.setattr("preprocessing.inputs.PART_BYTES", 50)
    monkeypatch.setattr("preprocessing.inputs.LARGE_BYTES", 50)
    (tmp_path / name).write_bytes(data)
    asked = parse([f"--{source}", str(tmp_path / name), "--vocab", str(vocabulary_file), "--output", "out"])
    job, _, units, _ = prepare(asked, str(tmp_path / "out"))
    assert len(locate(job, units)) == job.units
    assert capsys.readouterr().err == (f"make_shards: {tmp_path / name}: {told}\n" if told else "")


def test_an_engine_that_ends_without_a_manifest_is_told(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "run_pipeline", lambda *_: None)
    job, _, units, _ = prepare(parse(arguments), parse(arguments).output)
    with pytest.raises(JobError, match=r"out: the engine ended without an error and without a manifest\.json"):
        execute(job, locate(job, units), [])


@pytest.mark.parametrize(
    ("look", "name"), [("names_below", "out"), ("names_below", ".work"), ("read_text", "job.json")]
)
def test_storage_that_fails_when_an_output_is_looked_at_is_nobodys_mistake(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    look: str, name: str,
) -> None:  # fmt: skip
    assert begun(arguments) == "new"
    original = getattr(files, look)

    def fail(path: str) -> Any:
        if path.endswith(f"/{name}"):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        return original(path)

    with monkeypatch.context() as patch:
        patch.setattr(files, look, fail)
        with pytest.raises(SystemExit, match="1"):
            main(arguments)
    assert capsys.readouterr().err == (
        f"make_shards: error: {tmp_path}/out: can't be written or read (Stale file handle); "
        "once it can, the same command goes on\n"
    )
    assert begun(arguments) == "interrupted"


def test_a_disk_that_is_full_when_a_benchmark_is_placed_is_told(
    make: Maker, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_on(monkeypatch, launch, "place_benchmark", number=errno.ENOSPC)
    (tmp_path / "test.txt").write_text("So many words as are looked for in the books, or more.")
    said = make.error(tmp_path / "out", *arguments[:2], "--contamination", tmp_path)
    assert said == f"make_shards: error: {DISK_FULL.format(tmp_path / 'out')}"


def sample(_job: Job, _units: Sequence[Unit], _budget: int, _beam: Sequence[str]) -> list[str]:
    return ["the whale and the ship"] * 3


def job_that_trains(arguments: list[str], size: str = "50") -> tuple[Job, list[Unit]]:
    parsed: Arguments = parse([*arguments[:2], "--train-vocab", size, *arguments[4:]])
    job, _, units, _ = prepare(parsed, parsed.output)
    return job, locate(job, units)


@pytest.mark.parametrize(
    ("number", "kind", "told"),
    [
        (errno.ENOSPC, JobError, "out: disk full or quota reached"),
        (errno.EIO, JobFailedError, r"out: can't be written or read \(Input/output error\)"),
    ],
)
def test_a_disk_that_is_full_or_fails_when_the_vocabulary_is_trained_is_told(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception], told: str
) -> None:
    monkeypatch.setattr(launch, "draw_sample", sample)
    fail_on(monkeypatch, launch, "_write_vocabulary", number=number)
    job, units = job_that_trains(arguments)
    with pytest.raises(kind, match=told):
        provide_vocabulary(job, units, [])


def test_a_vocabulary_that_was_trained_and_can_not_be_read_now_is_not_trained_anew(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_on(monkeypatch, files, "read_text", number=errno.ESTALE)
    job, units = job_that_trains(arguments)
    with pytest.raises(JobFailedError, match=r"out: can't be written or read \(Stale file handle\); once it can"):
        provide_vocabulary(job, units, [])


@pytest.mark.parametrize(("size", "kind"), [("50", None), ("5", VocabularyError)], ids=["trained", "too small"])
def test_what_can_not_be_removed_once_a_vocabulary_is_trained_or_can_not_be_is_no_error_of_its_own(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str, kind: type[Exception] | None
) -> None:
    arguments = [*arguments[:2], "--train-vocab", size, *arguments[4:]]
    assert begun(arguments) == "new"
    left = tmp_path / "out" / ".work" / "sample-00000.arrow"
    left.touch()
    monkeypatch.setattr(launch, "draw_sample", sample)
    fail_on(monkeypatch, files, "_remove")
    job, units = job_that_trains(arguments, size)
    with pytest.raises(kind) if kind else contextlib.nullcontext():
        assert provide_vocabulary(job, units, []).vocabulary.blake2b
    assert left.exists()
