"""Plain files with many documents, read in parts: all parts together are the file, wherever they are cut."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, strategies

from preprocessing import files
from preprocessing.inputs import Unit, find_inputs, located, units_of
from preprocessing.make_shards import main
from preprocessing.reading import read_inputs
from preprocessing.sources import (
    DEFAULTS,
    Damaged,
    Document,
    Item,
    Part,
    ReadOptions,
    Skipped,
    SourceError,
    StorageError,
)
from preprocessing.sources.registry import SOURCES
from tests.preprocessing.conftest import WORDS
from tests.preprocessing.maker import Maker, contents
from tests.preprocessing.test_inputs import text, write_jsonl, write_wikiextractor
from tests.preprocessing.test_wikipedia import SITEINFO, dump, page

GOOGLE = ReadOptions(books_format="google")
OPTIONS = {"jsonl": DEFAULTS, "books": GOOGLE, "wikiextractor": DEFAULTS}
BOM = b"\xef\xbb\xbf"
PIECES = {
    "jsonl": [
        b'{"text": "One."}', b'{"text": "Two."}\n', b'{"title": "none"}\n', b"no JSON", b"\n", b"\r\n", b" ", BOM,
    ],
    "books": [b"A sentence.", b"A sentence.\n", b"\n", b"\r\n", b" ", b"\t\n", BOM, b"\xff"],
    "wikiextractor": [
        b'<doc id="1" title="A">\n', b'<doc id="2" title="B"B">', b"</doc>\n", b"</doc>", b"B\n", b"text", b"\n", BOM,
    ],
}  # fmt: skip


def parts_of(source: str, data: bytes, size: int) -> list[Part]:
    """As preprocessing.inputs.located cuts a file."""
    starts = SOURCES[source].starts
    assert starts is not None
    begins = list(starts(io.BytesIO(data), range(0, len(data), size)))
    ends = [*(start.offset for start in begins[1:]), len(data)]
    return [Part(start.offset, end, start.row) for start, end in zip(begins, ends, strict=True)]


def in_parts(source: str, data: bytes, size: int) -> list[list[Item]]:
    return [_read(source, data, part) for part in parts_of(source, data, size)]


def whole(source: str, data: bytes) -> list[Item]:
    return _read(source, data, None)


def _read(source: str, data: bytes, part: Part | None) -> list[Item]:
    return list(SOURCES[source].read(io.BytesIO(data), "a", OPTIONS[source], lambda _: True, part))


def made_of(source: str) -> strategies.SearchStrategy[bytes]:
    """Files of everything that a reader tells apart, in any order, with a first document that is as it should be."""
    first = {
        "jsonl": b'{"text": "First."}\n',
        "books": b"First.\n\n",
        "wikiextractor": b'<doc id="0" title="F">\nF.\n</doc>\n',
    }[source]
    pieces = strategies.lists(strategies.sampled_from(PIECES[source]), min_size=1, max_size=30)
    return pieces.map(lambda chosen: first + b"".join(chosen))


@pytest.mark.parametrize("source", OPTIONS)
@given(drawn=strategies.data(), size=strategies.integers(1, 60))
def test_the_parts_are_the_file(source: str, drawn: strategies.DataObject, size: int) -> None:
    data = drawn.draw(made_of(source))
    found = in_parts(source, data, size)
    assert len(found) == -(-len(data) // size)
    assert [item for part in found for item in part] == whole(source, data)


@given(drawn=strategies.data(), size=strategies.integers(1, 60))
@example(drawn=None, size=7)
def test_a_file_of_many_documents_is_cut(drawn: strategies.DataObject | None, size: int) -> None:
    """Not read by one part alone, which would be the same documents."""
    number = 40 if drawn is None else drawn.draw(strategies.integers(20, 50))
    for source, document in (
        ("jsonl", b'{"text": "Some."}\n'),
        ("books", b"A sentence.\nAnother.\n\n"),
        ("wikiextractor", b'<doc id="1" title="A">\nA\n\nText.\n</doc>\n'),
    ):
        found = in_parts(source, document * number, size * len(document))
        assert [len(part) for part in found] == [size] * (number // size) + [number % size] * bool(number % size)


@pytest.mark.parametrize("source", OPTIONS)
def test_a_document_that_is_longer_than_parts_leaves_them_empty(source: str) -> None:
    long = {
        "jsonl": json.dumps({"text": "x" * 1000}).encode() + b"\n",
        "books": b"A sentence.\n" * 100 + b"\n",
        "wikiextractor": b'<doc id="1" title="A">\n' + b"x\n" * 500 + b"</doc>\n",
    }[source]
    found = in_parts(source, long * 3, 100)
    assert [len(part) for part in found if part] == [1, 1, 1]
    assert [item.doc_id for part in found for item in part] == ["a#0", "a#1", "a#2"]


def test_a_line_that_is_too_long_to_be_held_is_passed_over_in_parts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("preprocessing.sources.lines.MAX_LINE", 50)
    data = b'{"text": "short"}\n' + json.dumps({"text": "x" * 120}).encode() + b'\n{"text": "last"}'
    for size in range(1, 200):
        found = [item for part in in_parts("jsonl", data, size) for item in part]
        assert found == whole("jsonl", data)
        assert [type(item).__name__ for item in found] == ["Document", "Skipped", "Document"]


def test_every_part_refuses_a_file_of_another_format() -> None:
    """Where damage is skipped, the other parts would become text."""
    for data, told in (
        (b"\n\n" + b'{"text": "Some words."}\n' * 20, "a: not plain text but a file for --jsonl"),
        ("A sentence.\nAnother.\n\n".encode("utf-16") * 20, "a: UTF-16, and google's format is UTF-8"),
    ):
        for part in parts_of("books", data, 100):
            with pytest.raises(SourceError, match=told):
                _read("books", data, part)


def test_a_file_that_begins_with_blank_lines_is_not_read_by_every_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("preprocessing.sources.books._BLANK", 100)

    class Counting(io.BytesIO):
        lines = 0

        def readline(self, size: int | None = -1, /) -> bytes:
            self.lines += 1
            return super().readline(size)

    file = Counting(b"\n" * 10_000 + b"Text.\n" * 10)
    found = list(SOURCES["books"].read(file, "a", GOOGLE, lambda _: True, Part(10_000, 10_060)))
    assert [type(item) for item in found] == [Document]
    assert file.lines < 120


def test_of_lines_that_are_none_of_json_the_first_part_tells_what_they_are() -> None:
    array = b"[\n" + b'{"text": "Some words."},\n' * 20
    (first, *_), *others = in_parts("jsonl", array, 100)
    assert "a JSON array" in getattr(first, "message", "")
    assert all(isinstance(item, Damaged) for part in others for item in part)


def small(monkeypatch: pytest.MonkeyPatch, part_bytes: int) -> None:
    monkeypatch.setattr("preprocessing.inputs.PART_BYTES", part_bytes)
    monkeypatch.setattr("preprocessing.inputs.UNIT_BYTES", 1)


def write_google(path: Path, texts: list[str]) -> None:
    path.write_text("\n\n".join(each.replace(". ", ".\n") for each in texts))


def write_dump(path: Path, texts: list[str]) -> None:
    path.write_bytes(dump(SITEINFO, *(page(each, number=number) for number, each in enumerate(texts, start=1))))


@pytest.mark.parametrize(
    ("source", "write", "more"),
    [
        ("jsonl", write_jsonl, []),
        ("wikiextractor", write_wikiextractor, []),
        ("books", write_google, ["--books-format", "google"]),
        ("wikipedia", write_dump, []),
    ],
)
def test_a_large_plain_file_in_parts_gives_the_same_shards(
    make: Maker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    write: Callable[[Path, list[str]], None],
    more: list[str],
) -> None:
    """With a vocabulary that is trained on them too."""
    write(tmp_path / "a.txt", [text(number) for number in range(60)])
    asked = [f"--{source}", str(tmp_path / "a.txt"), "--num-shards", "2", *more]
    trained = [*asked, "--train-vocab", "100", "--vocab-sample-bytes", "20000", "--output"]
    make(tmp_path / "whole", *asked)
    main([*trained, str(tmp_path / "whole-trained")])
    small(monkeypatch, 3000)
    units = units_of(find_inputs({source: [str(tmp_path / "a.txt")]}, print), OPTIONS.get(source, DEFAULTS))
    assert len(units) > 5
    make(tmp_path / "parts", *asked)
    main([*trained, str(tmp_path / "parts-trained")])
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")
    assert contents(tmp_path / "parts-trained") == contents(tmp_path / "whole-trained")


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz", ".zst"])
def test_compressed_lines_are_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    small(monkeypatch, 100)
    write_jsonl(tmp_path / f"a.jsonl{ending}", [text(number) for number in range(20)])
    (unit,) = units_of(find_inputs({"jsonl": [str(tmp_path / "*")]}, print))
    assert [file.part for file in unit.inputs] == [None]


def test_books_of_a_document_each_are_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch, 100)
    (tmp_path / "a.txt").write_text(text(1))
    (unit,) = units_of(find_inputs({"books": [str(tmp_path / "*")]}, print))
    assert [file.part for file in unit.inputs] == [None]


def test_files_are_located_each_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where their parts are not neighbours, and beside files that are read whole."""
    small(monkeypatch, 300)
    for name in ("a", "c"):
        write_jsonl(tmp_path / f"{name}.jsonl", [f"{' '.join(WORDS)} {number}" for number in range(30)])
    write_jsonl(tmp_path / "b.jsonl", ["Alone."])
    units = units_of(find_inputs({"jsonl": [str(tmp_path / "*.jsonl")]}, print))
    told: list[str] = []
    moved = located(units, told.append)
    assert told == []
    assert [unit.number for unit in moved] == [unit.number for unit in units]
    documents = [list(read_inputs(unit.inputs)) for unit in moved]
    ids = [document.doc_id for unit in documents for document in unit if isinstance(document, Document)]
    assert ids == [f"{name}.jsonl#{row}" for name, rows in (("a", 30), ("b", 1), ("c", 30)) for row in range(rows)]
    assert sum(map(bool, documents)) > 10
    size = sum((tmp_path / f"{name}.jsonl").stat().st_size for name in "ac")
    monkeypatch.setattr("preprocessing.inputs.LARGE_BYTES", size)
    assert located(units, told.append) == moved
    assert told == []
    monkeypatch.setattr("preprocessing.inputs.LARGE_BYTES", size - 1)
    assert located(units, told.append) == moved
    (line,) = told
    assert line.startswith(f"2 files, such as {tmp_path / 'a.jsonl'}: counting their documents, which are named by")


@pytest.mark.parametrize("source", OPTIONS)
def test_a_file_that_shrinks_while_it_is_counted_is_told(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(monkeypatch, 300)
    write = {"jsonl": write_jsonl, "books": write_google, "wikiextractor": write_wikiextractor}[source]
    path = tmp_path / "a.txt"
    write(path, [text(number) for number in range(5)])
    units = units_of(find_inputs({source: [str(path)]}, print), OPTIONS[source])
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(StorageError, match=r"a\.txt: has changed since the job began, from [\d,]+ bytes to 1,000;"):
        located(units, print)


@pytest.mark.parametrize("source", ["books", "wikiextractor"])
def test_of_a_file_without_documents_the_first_part_tells_that_it_is_empty(source: str) -> None:
    found = in_parts(source, b"\n" * 1000, 100)
    assert [item for part in found for item in part] == whole(source, b"\n" * 1000) == [Skipped("a", source, "empty")]


def test_what_needs_no_rows_is_not_read_to_be_located(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch, 300)
    write_dump(tmp_path / "a.xml", [text(number) for number in range(5)])
    units = units_of(find_inputs({"wikipedia": [str(tmp_path / "a.xml")]}, print))

    def fail(path: str) -> None:
        raise AssertionError(path)

    monkeypatch.setattr(files, "open_raw", fail)
    assert located(units, print) == units
    assert all(isinstance(unit, Unit) for unit in units)
