"""What a manifest and the end of a job tell of what was counted."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from preprocessing.inputs import Input
from preprocessing.schema import Manifest, ShardEntry, Vocabulary
from preprocessing.summary import summary, tell_statistics

COUNTS = Counter({
    "kept/books": 10, "skipped/books/empty": 2, "dropped/books/collision": 1, "dropped/books/duplicate_document": 3,
    "documents/books": 6, "titles/books": 6, "sentences/books": 600, "one_sentence/books": 1, "words/books": 8000,
    "tokens/books": 10_000, "unknown/books": 20, "characters/books": 50_000, "replaced/books": 1,
    "windows_1252/books": 2, "tagged/books": 0,
    "repeated/books/lines": 4, "repeated/books/sentences": 5, "repeated/books/tokens": 1234,
    "kept/wikipedia": 5, "skipped/wikipedia/redirect": 7, "skipped/wikipedia/empty": 1,
    "documents/wikipedia": 5, "titles/wikipedia": 5, "sentences/wikipedia": 400, "words/wikipedia": 2000,
    "tokens/wikipedia": 2500, "unknown/wikipedia": 5, "characters/wikipedia": 10_000,
    "pairs/128/validation": 40, "pairs/128/train": 400, "next/128/train": 200, "next/128/validation": 10,
    "unreached/128/train": 100, "unreached/128/validation": 25,
    "pairs/64/train": 1000, "next/64/train": 450, "unreached/64/train": 250,
})  # fmt: skip
READ = {"jsonl": {"text": "text", "title": "title"}, "parquet": {"text": "text", "title": "title"}}
OPTIONS: dict[str, Any] = {
    "train_vocabulary": None, "pairs": {"next_sentence": True}, "validation_fraction": 0.15, "read": READ,
}  # fmt: skip
ENTRIES = [
    ShardEntry("shard", "train", rows=9, tokens=10_000, pairs={}, bytes=2_000_000, blake2b=""),
    ShardEntry("validation-shard", "validation", rows=2, tokens=2500, pairs={}, bytes=500_000, blake2b=""),
]


def test_statistics_are_those_of_every_source_and_their_sums() -> None:
    told = tell_statistics(COUNTS, [64, 128])
    assert told["documents"] == {"read": 25, "in_shards": 11, "collisions": 1, "skipped": 13}
    names = ("sentences", "words", "tokens", "unknown_tokens", "unknown_rate")
    assert [told[name] for name in names] == [1000, 10_000, 12_500, 25, 0.002]
    assert told["pairs"] == {
        "64": {"train": {"pairs": 1000, "is_next": 450, "is_next_rate": 0.45, "unreached_tokens": 250}},
        "128": {
            "train": {"pairs": 400, "is_next": 200, "is_next_rate": 0.5, "unreached_tokens": 100},
            "validation": {"pairs": 40, "is_next": 10, "is_next_rate": 0.25, "unreached_tokens": 25},
        },
    }
    assert list(told["pairs"]["128"]) == ["train", "validation"]
    assert list(told["sources"]) == ["books", "wikipedia"]
    books = told["sources"]["books"]
    assert books["skipped"] == {"duplicate_document": 3, "empty": 2}
    assert (books["collisions"], books["repeated"]) == (1, {"lines": 4, "sentences": 5, "tokens": 1234})
    assert (books["documents"], books["words"], books["unknown"], books["windows_1252"]) == (6, 8000, 20, 2)


def test_a_source_of_which_nothing_is_kept_is_told_too() -> None:
    told = tell_statistics(COUNTS + Counter({"skipped/jsonl/empty": 3}), [64])
    assert told["sources"]["jsonl"]["skipped"] == {"empty": 3}


def said(counts: Counter[str] = COUNTS, entries: list[ShardEntry] = ENTRIES, **options: object) -> list[str]:
    """The lines of a summary."""
    statistics = tell_statistics(counts, [64, 128])
    asked = OPTIONS | options
    manifest = Manifest(1, [64, 128], Vocabulary(900, "", True), entries, asked, statistics)
    inputs = [Input("books", "a", 1_500_000, "/a"), Input("wikipedia", "b", 500_000, "/b")]
    return summary(manifest, "/out", inputs, 12.34).split("\n")


def test_a_job_ends_with_what_it_read_dropped_and_made() -> None:
    assert said() == [
        "/out: done in 12.3 s",
        "  inputs     2 files, 2.0 MB",
        "  documents  11 (13 skipped, 1 older version of a document (same id) dropped)",
        "  text       1,000 sentences, 0.1 M characters",
        "  tokens     12,500, 1.25 a word, 0.200% unknown",
        "  pairs   64 1,000 train (45.0% next); 2.0% of tokens in no pair",
        "  pairs  128 400 train (50.0% next), 40 validation (25.0% next); 1.0% of tokens in no pair",
        "  skipped    3 duplicate_document, 3 empty, 7 redirect",
        "  replaced   1 place with bytes that are no UTF-8",
        "  encoding   2 files taken for Windows-1252, being no UTF-8; docs/preprocessing.md tells how to find those "
        "that are in another encoding",
        "  repeated   4 lines dropped, 1,234 tokens",
        "  shards     1 train, 1 validation, 2.5 MB, 200.00 bytes a token",
    ]


def test_what_there_is_nothing_of_has_no_line() -> None:
    kinds = ("skipped/", "dropped/", "repeated/", "replaced/", "windows_1252/")
    lines = said(Counter({name: count for name, count in COUNTS.items() if not name.startswith(kinds)}))
    assert [line[2:8] for line in lines[1:]] == ["inputs", "docume", "text  ", "tokens", "pairs ", "pairs ", "shards"]


def test_what_is_too_large_is_told_by_what_a_source_counts() -> None:
    limits = "  too large  1 of more than 33,554,432 characters or 1,048,576 lines"
    of_books = said(COUNTS + Counter({"skipped/books/too_large": 1}))
    assert any(line.startswith(f"{limits} are not in the shards") for line in of_books)
    of_json = said(COUNTS + Counter({"kept/jsonl": 4, "skipped/jsonl/too_large": 1}))
    values = ", or in JSON 1,048,576 strings, brackets and commas,"
    assert any(line.startswith(f"{limits}{values} are not in the shards") for line in of_json)


@pytest.mark.parametrize(("title", "told"), [("title", False), ("heading", True)])
def test_titles_are_only_missed_where_they_were_asked_for(title: str, told: bool) -> None:
    read = READ | {"jsonl": {"text": "text", "title": title}}
    lines = said(COUNTS + Counter({"kept/jsonl": 4}), read=read)
    line = "  no titles: the field 'heading' of --jsonl-title-field is in no document of --jsonl"
    assert (line in lines) == ("no titles" in "".join(lines)) == told


@pytest.mark.parametrize(("tagged", "told"), [(0, False), (1, True)])
def test_tags_of_html_are_told_where_more_than_one_document_in_a_hundred_has_some(tagged: int, told: bool) -> None:
    lines = said(Counter({**COUNTS, "tagged/books": tagged}))
    begin = "  markup     1 of 25 documents have tags of HTML, kept as text"
    assert any(line.startswith(begin) for line in lines) == told == ("markup" in "".join(lines))


@pytest.mark.parametrize(("asked", "told"), [(0.05, True), (0.1, False), (0.4, False), (0.5, True)])
def test_a_share_held_out_is_told_where_it_is_twice_or_half_of_what_was_asked_for(asked: float, told: bool) -> None:
    """A fifth of the tokens is."""
    lines = [line for line in said(validation_fraction=asked) if line.startswith("  held out")]
    assert [line[:67] for line in lines] == [
        "  held out   2 of 11 documents with 20.0% of the tokens, where --va"
    ] * told


def test_nothing_held_out_is_told_where_something_was_to_be() -> None:
    line = "  no validation split: it needs at least four documents"
    assert line in said(entries=ENTRIES[:1])
    assert line not in said(entries=ENTRIES[:1], validation_fraction=0)
    assert line not in said()


def test_single_segments_are_told_as_such() -> None:
    lines = said(pairs={"next_sentence": False})
    assert "  pairs   64 1,000 train, single segments; 2.0% of tokens in no pair" in lines


def test_a_trained_vocabulary_is_told_with_what_it_lacks() -> None:
    assert "  vocabulary 900 entries" in said(train_vocabulary={"size": 900})
    assert "  vocabulary 900 entries (1,000 wanted; the corpus has no more)" in said(train_vocabulary={"size": 1000})


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"unknown/books": 700}, "so many unknown tokens suggest the wrong vocabulary"),
        ({"words/books": 2000}, "so many tokens a word suggest a vocabulary of another language"),
        ({"unreached/64/train": 3200}, "many tokens in no pair: a sentence has 12 of them on average"),
        ({"next/64/train": 100, "next/128/train": 50}, "few true next sentences: a sentence has 12 tokens on average, "
         "and two seldom fit in a sequence of 64"),
        ({"next/64/train": 100, "next/128/train": 50, "one_sentence/wikipedia": 2}, "few true next sentences: 3 of 11 "
         "documents are of one sentence"),
    ],
)  # fmt: skip
def test_what_seems_wrong_is_told_and_nothing_else(changes: dict[str, int], told: str) -> None:
    usual, lines = said(), said(Counter({**COUNTS, **changes}))
    strange = [line for line in lines if line[2:].startswith(told)]
    assert len(strange) == 1
    assert len(lines) == len(usual) + 1


def test_what_was_looked_for_is_told_by_file() -> None:
    statistics = tell_statistics(COUNTS, [64, 128])
    statistics["contamination"] = {"dev.json": {"texts": 2000, "in_corpus": 30, "share": 0.015}}
    manifest = Manifest(1, [64, 128], Vocabulary(900, "", True), ENTRIES, OPTIONS, statistics)
    lines = summary(manifest, "/out", [], 1.0).split("\n")
    assert "  benchmark  dev.json: 30 of 2,000 texts are in the corpus" in lines
