from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from preprocessing.inputs import Input, find_inputs, units_of
from preprocessing.reading import read_inputs
from preprocessing.sources import MAX_TITLE, Document, ReadOptions, Skipped, SourceError
from tests.preprocessing import memory_filesystem

DAMAGED = {
    "books": b"\0" * 100,
    "jsonl": b"[1]\n",
    "parquet": b"PAR1",
    "wikiextractor": b"A line.\n",
    "wikipedia": b"<html>",
}


@pytest.mark.parametrize("source", DAMAGED)
def test_what_is_damaged_is_named_by_its_path_and_counted_by_its_name(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "texts" / "AA" / "wiki_00"
    path.parent.mkdir(parents=True)
    path.write_bytes(DAMAGED[source])
    for pattern, name in (("texts/**/wiki_*", "AA/wiki_00"), ("texts/AA/wiki_00", "wiki_00")):
        (unit,) = units_of(find_inputs({source: [pattern]}, print))
        with pytest.raises(SourceError, match=rf"^{path}(:|#0:)") as caught:
            list(read_inputs(unit.inputs))
        assert str(caught.value).count("wiki_00") == 1
        (skipped,) = read_inputs(unit.inputs, ReadOptions(on_error="skip"))
        assert isinstance(skipped, Skipped)
        assert (skipped.doc_id.removesuffix("#0"), skipped.reason) == (name, "damaged")


def test_what_is_named_by_its_path_already_is_so_once_though_that_begins_as_the_name_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = "memory://bucket/m"
    monkeypatch.setitem(memory_filesystem.FILES, path, gzip.compress(b"A whale.")[:-4])
    file = Input("books", "m", len(memory_filesystem.FILES[path]), path)
    with pytest.raises(SourceError, match=f"^{path}: the compressed file is cut short"):
        list(read_inputs([file]))


def test_a_document_of_too_many_lines_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A word list of any length would take a hundred times its memory."""
    monkeypatch.setattr("preprocessing.reading.MAX_LINES", 3)
    lines = [json.dumps({"text": text}) for text in ("a\nb\r\nc", "a\nb\nc\nd", "a\rb\rc\rd")]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    (unit,) = units_of(find_inputs({"jsonl": [str(tmp_path / "a.jsonl")]}, print))
    found = list(read_inputs(unit.inputs))
    assert [getattr(item, "reason", "read") for item in found] == ["read", "too_large", "too_large"]


def test_a_title_is_cut_where_no_title_is_as_long(tmp_path: Path) -> None:
    """Documents are bounded by their text: titles of any length would take memory without end."""
    titles = ["A whale", "x" * MAX_TITLE, "y" * 10 * MAX_TITLE, None]
    lines = [json.dumps({"text": "It blows.", "title": title}) for title in titles]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    (unit,) = units_of(find_inputs({"jsonl": [str(tmp_path / "a.jsonl")]}, print))
    found = [item.title for item in read_inputs(unit.inputs) if isinstance(item, Document)]
    assert found == ["A whale", "x" * MAX_TITLE, "y" * MAX_TITLE, None]
