from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import TypeVar

import pytest

from preprocessing.sources import Columns, Damaged, Document, Item, ReadOptions, Skipped
from preprocessing.sources.jsonl import read
from preprocessing.sources.lines import MAX_DEPTH

T = TypeVar("T")


def documents(data: bytes | str, **fields: str) -> list[Item]:
    raw = data.encode() if isinstance(data, str) else data
    return list(read(io.BytesIO(raw), "a/b.jsonl", ReadOptions(jsonl=Columns(**fields))))


def test_objects_are_documents_named_by_file_and_row() -> None:
    lines = [{"text": "One.\nTwo.", "title": "A", "id": 7}, {"text": "Drei ü."}, {"title": 5, "text": "Four."}]
    # Each with a byte order mark, as where several files were put together.
    data = "\r\n".join("\ufeff" + json.dumps(line, ensure_ascii=False) for line in lines)
    assert documents(data) == [
        Document("a/b.jsonl#0", "jsonl", "A", "One.\nTwo."),
        Document("a/b.jsonl#1", "jsonl", None, "Drei ü."),
        Document("a/b.jsonl#2", "jsonl", "5", "Four."),
    ]


def test_fields_have_other_names() -> None:
    (found,) = documents('{"body": "Text.", "name": "N"}', text="body", title="name")
    assert found == Document("a/b.jsonl#0", "jsonl", "N", "Text.")


def test_a_field_that_no_record_has_so_far_is_another_file_than_was_meant() -> None:
    *without, found, later = documents('[1]\n{"text": "A", "x": 1}\n{}\n{"body": "B"}\n{"text": "C"}', text="body")
    assert [type(item) for item in without] == [Damaged] * 3
    assert isinstance(without[1], Damaged)
    assert without[1].message == "a/b.jsonl#1: no field 'body', but 'text', 'x' (int); use --jsonl-text-field"
    assert found == Document("a/b.jsonl#3", "jsonl", None, "B")
    assert later == Skipped("a/b.jsonl#4", "jsonl", "empty")
    found_already = documents('{"text": ""}\nnot json\n{"body": "B"}')
    assert [type(item) for item in found_already] == [Skipped, Damaged, Skipped]


def test_a_text_that_is_no_string_is_not_taken_for_an_empty_one() -> None:
    found = documents('{"text": "A"}\n{"text": ["B"]}\n{"text": 3}')
    assert [item.reason for item in found if isinstance(item, Skipped)] == ["no_text", "no_text"]


def test_what_is_no_document() -> None:
    data = '{"text": "Text."}\n \n{"text": null}\n{"text": " "}\n{"title": "x"}\nnot json\n[1]\n{"text": "Last."}\n'
    found = documents(data + "[" * 100_000)
    assert [type(item) for item in found] == [Document, *[Skipped] * 4, Damaged, Damaged, Document, Damaged]
    assert [item.reason for item in found if isinstance(item, Skipped)] == ["empty"] * 4
    assert isinstance(found[5], Damaged)
    assert found[5].message.startswith("a/b.jsonl#5: not a JSON object (Expecting value")
    assert isinstance(found[6], Damaged)
    assert found[6].message == "a/b.jsonl#6: a JSON list where an object is expected"
    assert found[7].doc_id == "a/b.jsonl#7"


@pytest.mark.parametrize("array", [b'[{"text": "a"},\n{"text": "b"}]', b' [\n  {"text": "a"}\n]'])
def test_an_array_is_told_that_an_object_a_line_is_wanted(array: bytes) -> None:
    assert next(read(io.BytesIO(array), "a.json")) == Damaged(
        "a.json#0", "jsonl", "a.json#0: a JSON array; what is read is one object a line"
    )


def test_an_object_of_several_lines_is_told_as_one() -> None:
    (first, *_) = documents('{\n  "text": "a"\n}')
    told = "a/b.jsonl#0: a JSON object of several lines; what is read is one object a line"
    assert first == Damaged("a/b.jsonl#0", "jsonl", told)
    assert documents('{"text": "Text."}\n{')[1].message.startswith("a/b.jsonl#1: not a JSON object (")  # type: ignore[union-attr]


def test_what_fields_hold_that_can_not_be_the_text_is_told() -> None:
    (found,) = documents('{"data": [{}], "version": "1.1", "note": null}')
    assert isinstance(found, Damaged)
    assert found.message.endswith("#0: no field 'text', but 'data' (list), 'version', 'note'; use --jsonl-text-field")


@pytest.mark.parametrize("first", ['{"body": "One."}', "[", "no JSON"])
def test_who_wants_other_documents_learns_what_is_wrong_with_the_first(first: str) -> None:
    lines = [first, *['{"body": "Text."}'] * 3]
    found = list(read(io.BytesIO("\n".join(lines).encode()), "a", wanted=lambda doc_id: doc_id == "a#2"))
    (alone,) = documents(first)
    assert isinstance(alone, Damaged)
    assert found[0] == Damaged("a#0", "jsonl", alone.message.replace("a/b.jsonl#0", "a#0"))


def test_what_a_line_in_the_middle_lacks_is_not_taken_for_what_the_file_lacks() -> None:
    lines = '{"text": "One."}\n{"title": "empty"}\n{"text": "Three."}'
    found = list(read(io.BytesIO(lines.encode()), "a", wanted=lambda doc_id: doc_id != "a#0"))
    assert found == [Skipped("a#1", "jsonl", "empty"), Document("a#2", "jsonl", None, "Three.")]


def test_an_empty_file_is_counted() -> None:
    assert documents(b"") == [Skipped("a/b.jsonl", "jsonl", "empty")]


def test_bytes_that_are_no_utf8_are_replaced_and_counted() -> None:
    (found,) = documents(b'{"text": "caf\xe9 \xff \xef\xbf\xbd"}')
    assert found == Document("a/b.jsonl#0", "jsonl", None, "caf\ufffd \ufffd \ufffd", replaced=2)


def test_half_a_surrogate_pair_is_dropped_from_a_title() -> None:
    (found,) = documents('{"text": "Text.", "title": "A\\ud83d B"}')
    assert isinstance(found, Document)
    assert found.title == "A B"


def test_too_long_a_line_is_counted_and_the_next_one_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("preprocessing.sources.lines.MAX_LINE", 100)
    monkeypatch.setattr("preprocessing.sources.jsonl.MAX_DOCUMENT", 40)
    lines = [json.dumps({"text": "x" * length}) for length in (1000, 87, 41, 40, 87)]  # 88: longer than a line may be
    for end in ("\n", ""):
        kinds = [getattr(item, "reason", "read") for item in documents("\n".join(lines) + end)]
        assert kinds == ["too_large", "too_large", "too_large", "read", "too_large"]


@pytest.mark.parametrize(
    "values",
    ["[" + "{}," * 100 + "0]", "{" + '"k": 0,' * 100 + '"k": 0}', "[" + '"s",' * 100 + "0]", "[" * 100 + "]" * 100],
    ids=["objects", "keys", "strings", "lists"],
)
def test_a_line_of_more_values_than_fit_into_memory_is_not_parsed(monkeypatch: pytest.MonkeyPatch, values: str) -> None:
    line = '{"text": "Text.", "x": ' + values + "}"
    monkeypatch.setattr("preprocessing.sources.lines.MAX_VALUES", 90)
    assert documents(line) == [Skipped("a/b.jsonl#0", "jsonl", "too_large")]
    monkeypatch.setattr("preprocessing.sources.lines.MAX_VALUES", 400)
    assert documents(line) != [Skipped("a/b.jsonl#0", "jsonl", "too_large")]


def test_brackets_beside_each_other_are_not_nested() -> None:
    deepest = "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)
    assert documents(f'{{"text": "Text.", "x": {deepest}, "y": [[], {{}}]}}') == [
        Document("a/b.jsonl#0", "jsonl", None, "Text.")
    ]


def _far_down(frames: int, call: Callable[[], T]) -> T:
    """What a call gives to one who has called others already, as engines do more of with some options."""
    return call() if not frames else _far_down(frames - 1, call)


@pytest.mark.parametrize("frames", [0, 600])
def test_how_deep_a_record_may_be_nested_does_not_depend_on_who_reads_it(frames: int) -> None:
    def record(depth: int) -> str:
        return '{"text": "Text.", "closed": [[], []], "x": ' + "[" * (depth - 1) + "]" * (depth - 1) + "}"

    lines = "\n".join(map(record, (MAX_DEPTH, MAX_DEPTH + 1, 900)))
    read_one, *deeper = _far_down(frames, lambda: documents(lines))
    assert read_one == Document("a/b.jsonl#0", "jsonl", None, "Text.")
    told = "a/b.jsonl#{0}: not a JSON object (nested more than {1} deep)"
    assert deeper == [Damaged(f"a/b.jsonl#{row}", "jsonl", told.format(row, MAX_DEPTH)) for row in (1, 2)]


def test_brackets_within_a_text_or_side_by_side_nest_nothing() -> None:
    record = {"text": '[[{"' * 1000, "x": [[{}]] * 1000}
    (found,) = documents(json.dumps(record))
    assert found == Document("a/b.jsonl#0", "jsonl", None, record["text"])  # type: ignore[arg-type]


def test_what_looks_like_values_within_a_text_is_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("preprocessing.sources.lines.MAX_VALUES", 90)
    text = '{"a": [1, 2]}, \\"\\' * 100
    (found,) = documents(json.dumps({"text": text}))
    assert found == Document("a/b.jsonl#0", "jsonl", None, text)


def test_a_string_that_never_ends_is_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("preprocessing.sources.lines.MAX_VALUES", 90)
    (found,) = documents('{"text": "' + '\\",' * 2_000_000)
    assert isinstance(found, Damaged)


def test_only_what_is_wanted_is_parsed() -> None:
    data = b'{"text": "a"}\nnot json\n{"text": "c"}'
    found = read(io.BytesIO(data), "f", ReadOptions(), lambda doc_id: doc_id != "f#1")
    assert [item.doc_id for item in found] == ["f#0", "f#2"]
