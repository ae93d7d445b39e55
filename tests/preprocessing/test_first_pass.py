from __future__ import annotations

import json
from pathlib import Path

import pytest

from preprocessing import first_pass
from preprocessing.first_pass import tokenize_unit
from preprocessing.inputs import Input, Unit
from preprocessing.job import Job
from preprocessing.layout import Layout
from preprocessing.options import parse
from preprocessing.schema import Vocabulary
from preprocessing.tokenization import vocabulary_text
from tests.preprocessing.watchdog import noting


def test_documents_are_watched_while_they_are_read_and_while_they_are_encoded_and_at_no_other_time(
    vocabulary: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written in between may wait for storage as long as it takes."""
    path, happened = tmp_path / "two.jsonl", []
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in ("the whale", "the ship")))
    options = parse(["--jsonl", str(path), "--vocab", "v", "--output", "o"]).options
    job = Job(str(tmp_path / "out"), options, Vocabulary(len(vocabulary), "", True), Layout(1, 1, 0, 0.0), units=1)
    Path(job.work).mkdir(parents=True)
    Path(job.vocabulary_file).write_text(vocabulary_text(vocabulary))

    clean, write = first_pass.clean, first_pass._write
    monkeypatch.setattr(first_pass, "watching", noting(happened))
    monkeypatch.setattr(first_pass, "clean", lambda text: (happened.append("encode"), clean(text))[1])
    monkeypatch.setattr(first_pass, "_write", lambda *batch: (happened.append("write"), write(*batch)))
    tokenize_unit(job, Unit(0, (Input("jsonl", path.name, path.stat().st_size, str(path)),)))
    reading = ["two.jsonl#0", "rest", "two.jsonl#1", "rest"]
    block = ["two.jsonl#0 (or one of those after it up to two.jsonl#1)", "encode", "encode", "rest"]
    assert happened == [*reading, *block, "write"]
