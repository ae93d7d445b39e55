from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from preprocessing import files, first_pass
from preprocessing.first_pass import tokenize_unit
from preprocessing.inputs import Input, Unit
from preprocessing.job import Job
from preprocessing.layout import Layout
from preprocessing.options import parse
from preprocessing.schema import Vocabulary
from preprocessing.tokenization import vocabulary_text
from preprocessing.work_files import WorkFile
from tests.preprocessing.watchdog import noting

Begun = Callable[..., tuple[Job, Unit]]


@pytest.fixture
def begun(vocabulary: list[str], tmp_path: Path) -> Begun:
    """A job over one file of JSON lines, with its vocabulary in place, and its only unit."""

    def begin(texts: Sequence[str], *asked: str) -> tuple[Job, Unit]:
        path = tmp_path / "a.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        options = parse(["--jsonl", str(path), "--vocab", "v", "--output", "o", *asked]).options
        known = Vocabulary(len(vocabulary), "", options.lowercase)
        job = Job(str(tmp_path / "out"), options, known, Layout(1, 1, 0, 0.0), units=1)
        Path(job.work).mkdir(parents=True)
        Path(job.path(WorkFile.VOCABULARY)).write_text(vocabulary_text(vocabulary))
        return job, Unit(0, (Input("jsonl", path.name, path.stat().st_size, str(path)),))

    return begin


def test_documents_are_watched_while_they_are_read_split_and_encoded_and_at_no_other_time(
    begun: Begun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written in between may wait for storage as long as it takes."""
    happened: list[str] = []
    clean, write = first_pass.clean, first_pass._write
    monkeypatch.setattr(first_pass, "watching", noting(happened))
    monkeypatch.setattr(first_pass, "clean", lambda text: (happened.append("clean"), clean(text))[1])
    monkeypatch.setattr(first_pass, "_write", lambda *batch: (happened.append("write"), write(*batch)))
    tokenize_unit(*begun(["the whale", "the ship"]))
    documents = [step for row in (0, 1) for step in (f"a.jsonl#{row}", "rest", f"a.jsonl#{row}", "clean", "rest")]
    block = ["a.jsonl#0 (or one of those after it up to a.jsonl#1)", "rest"]
    assert happened == [*documents, *block, "write"]


def test_documents_are_encoded_in_blocks_of_about_as_much_text(begun: Begun, monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []
    monkeypatch.setattr(first_pass, "watching", noting(happened))
    monkeypatch.setattr(first_pass, "ENCODED_AT_ONCE", 10)
    tokenize_unit(*begun(["the whale"] * 5))
    blocks = [(0, 1), (2, 3), (4, 4)]
    told = [f"a.jsonl#{first} (or one of those after it up to a.jsonl#{last})" for first, last in blocks]
    assert [what for what in happened if "or one of" in what] == told


def test_blocks_of_documents_without_text_are_bounded_too(begun: Begun, monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []
    monkeypatch.setattr(first_pass, "watching", noting(happened))
    monkeypatch.setattr(first_pass, "BATCH_DOCUMENTS", 2)
    tokenize_unit(*begun(["\u00ad"] * 5))
    assert len([what for what in happened if "or one of" in what]) == 3


@pytest.mark.parametrize(("limit", "most"), [("BATCH_DOCUMENTS", 2), ("BATCH_TOKENS", 4)])
def test_what_is_held_at_once_is_bounded_in_documents_and_in_tokens(
    begun: Begun, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    monkeypatch.setattr(first_pass, limit, most)
    job, unit = begun(["the whale"] * 5)
    note = tokenize_unit(job, unit)
    with files.open_arrow(job.unit_files(0).tokens) as file:
        assert [file.get_batch(number).num_rows for number in range(file.num_record_batches)] == [2, 2, 1]
    ((_, spans),) = note.spans.items()
    assert [(span.batch, span.end - span.begin) for span in spans] == [(0, 2), (1, 2), (2, 1)]
    reading = Path(job.path(WorkFile.READING_NOTE, unit=0))
    so_far = json.loads(reading.read_text())  # for the line of progress, when there were four
    assert so_far["kept/jsonl"] == 4


def test_every_document_is_counted_as_kept_or_by_the_reason_why_it_is_not(begun: Begun) -> None:
    texts = ["the whale", "ship", "\u00ad", "", "the old ship"]  # a soft hyphen is text to a reader, and no token
    note = tokenize_unit(*begun(texts, "--min-tokens", "2"))
    assert {name: count for name, count in note.totals.counts.items() if count} == {
        "kept/jsonl": 2,
        "skipped/jsonl/too_short": 1,
        "skipped/jsonl/empty": 2,
        "characters/jsonl": len("".join(texts)),
    }


def test_sentences_without_tokens_are_none_of_a_long_line(begun: Begun) -> None:
    line = "The old captain spoke of his first long voyage home. " * 2
    job, unit = begun([f"\u200b\n{line}\n\u200b", f"{line}\n\u200b"])  # what has no width has no token
    tokenize_unit(job, unit)
    with files.open_arrow(job.unit_files(0).lines) as file:
        found = file.get_batch(0).to_pylist()
    assert [(each["begin"], each["end"], each["tokens"]) for each in found] == [(0, 2, 22)] * 2


def test_a_document_s_tokens_and_where_its_sentences_end_are_its_own(begun: Begun, vocabulary: list[str]) -> None:
    """Of documents that are encoded together, with sentences of one token and of none among them."""
    job, unit = begun(["Whale\n\u200b\nthe old ship", "sea\nship\n\u200b", "\u200b\nhome"], "--min-tokens", "1")
    tokenize_unit(job, unit)
    with files.open_arrow(job.unit_files(0).tokens) as file:
        rows = file.get_batch(0).sort_by("doc_id").to_pylist()
    found = [([vocabulary[token] for token in row["tokens"]], row["sentence_ends"]) for row in rows]
    assert found == [(["whale", "the", "old", "ship"], [1, 4]), (["sea", "ship"], [1, 2]), (["home"], [1])]


def test_letters_keep_their_case_where_that_is_asked(begun: Begun, vocabulary: list[str]) -> None:
    job, unit = begun(["the Ship"], "--cased")
    tokenize_unit(job, unit)
    with files.open_arrow(job.unit_files(0).tokens) as file:
        tokens = file.get_batch(0).column("tokens")[0].as_py()
    assert [vocabulary[token] for token in tokens] == ["the", "[UNK]"]
