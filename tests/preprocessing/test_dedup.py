from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preprocessing import dedup
from preprocessing.dedup import REPEATS, Reason, Review, Run, by_row, reasons_of, repeats_of
from preprocessing.fingerprints import RepeatRule, fingerprint, signature, word_sequences
from preprocessing.layout import Layout
from preprocessing.shards import PairOptions, Rows, build_shard, lines_of, take_rows, without_lines
from preprocessing.sources import Document, SourceError
from preprocessing.token_buffer import EncodedDocument, TokenBuffer, UnitNote

LAYOUT = Layout(seed=1, train_shards=1, validation_shards=0, validation_fraction=0.0)
ONLY = "shard-00000-of-00001.arrow"
OPTIONS = PairOptions((16,), duplicates=1, short_sequence_probability=0.1, negatives="uniform")
RULE = RepeatRule(documents=True, lines=True, line_characters=3, near_duplicates=None)
LETTERS = "abcdefghij"


class Text(NamedTuple):
    """A document for these tests: every letter is a token and every line a sentence."""

    doc_id: str
    lines: tuple[str, ...]
    revision: int = 0
    source: str = "books"


def encoded(text: Text, rule: RepeatRule) -> EncodedDocument:
    tokens = np.array([LETTERS.index(letter) for line in text.lines for letter in line], np.uint16)
    lengths = [len(line) for line in text.lines]
    ends = np.cumsum([length for length in lengths if length], dtype=np.int32)
    print_ = fingerprint("\n".join(text.lines), [int(length > 0) for length in lengths], ends, rule)
    return EncodedDocument(Document(text.doc_id, text.source, None, "", text.revision), tokens, ends, print_)


class Corpus:
    """Documents after a first pass that came upon them in some order, in some units and batches."""

    def __init__(self, texts: Sequence[Text], rule: RepeatRule, order: int = 0, units: int = 1):
        chance = random.Random(order)
        shuffled = chance.sample(texts, len(texts))
        self.runs: list[Run] = []
        self.note, self.batches = UnitNote(), {}
        for unit in range(units):
            own = shuffled[unit::units]
            for batch, begin in enumerate(range(0, len(own), 3)):
                buffer = TokenBuffer(LAYOUT, 1000)
                for text in own[begin : begin + 3]:
                    buffer.add(encoded(text, rule))
                made = buffer.flush(unit, batch, self.note)
                self.batches[unit, batch] = made.tokens
                self.runs.append(Run(unit, batch, made.documents, made.lines))
        chance.shuffle(self.runs)

    def rows(self, found: Review, min_tokens: int) -> Rows:
        repeats = by_row(list(found.drop_lines(min_tokens)))
        spans = self.note.spans.get(ONLY, [])
        keys = np.concatenate([np.empty(0, np.uint64), *(span.keys() for span in spans)])
        tables = [self.batches[span.unit, span.batch].slice(span.begin, span.end - span.begin) for span in spans]
        return Rows(pa.Table.from_batches(tables), reasons_of(keys, found.lost_documents()), repeats_of(keys, repeats))


def what_stays(rows: Rows) -> dict[str, list[str]]:
    """The lines that are left of each document."""
    kept = np.flatnonzero(rows.reasons == 0)
    if not len(kept):
        return {}
    table, _ = without_lines(take_rows(rows.table, kept), lines_of(kept, rows))
    found = {}
    for row in table.to_pylist():
        letters = "".join(LETTERS[token] for token in row["tokens"])
        ends = row["sentence_ends"]
        found[row["doc_id"]] = [letters[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    return found


def reference(texts: Sequence[Text], rule: RepeatRule, min_tokens: int) -> dict[str, list[str]]:
    """The same rule over everything in memory."""
    newest: dict[str, Text] = {}
    for text in sorted(texts, key=lambda text: text.revision):
        newest[text.doc_id] = text
    met_texts, met_lines, found = set(), set(), {}
    for doc_id, text in sorted(newest.items()):
        if rule.documents and text.lines in met_texts:
            continue
        met_texts.add(text.lines)
        stays = []
        for line in text.lines:
            if rule.lines and len(line) >= rule.line_characters and line in met_lines:
                continue
            met_lines.add(line)
            stays += [line] if line else []
        if sum(map(len, stays)) >= min_tokens:
            found[doc_id] = stays
    return found


lines = st.lists(st.text("abc", max_size=4), min_size=1, max_size=5)
corpora = st.lists(
    st.builds(
        lambda number, own: (f"d{number}", ("jij", *own) if number % 3 else (*own, "j")), st.integers(0, 20), lines
    ),
    max_size=14,
)


@settings(deadline=None, max_examples=200)
@given(corpora, st.integers(0, 9), st.integers(1, 3), st.integers(1, 4), st.booleans(), st.booleans())
def test_what_stays_is_what_a_naive_search_leaves_in_any_order(
    raw: list[tuple[str, tuple[str, ...]]], order: int, units: int, min_tokens: int, documents: bool, of_lines: bool
) -> None:
    rule = RepeatRule(documents, of_lines, line_characters=3, near_duplicates=None)
    texts = [Text(doc_id, own, revision) for revision, (doc_id, own) in enumerate(raw)]
    texts = [text for text in texts if sum(map(len, text.lines)) >= min_tokens]  # as the first pass sees to
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dedup, "RANGE_RECORDS", 4)
        corpus = Corpus(texts, rule, order, units)
        found = Review(corpus.runs, rule)
        if texts:
            assert what_stays(corpus.rows(found, min_tokens)) == reference(texts, rule, min_tokens)
        alive = sorted((LAYOUT.place(doc_id).split_hash, doc_id) for doc_id in reference(texts, rule, min_tokens))
        list(found.drop_lines(min_tokens))
        edges = found.edges()
        assert [(edge.split_hash, edge.doc_id) for edge in edges] == alive[:4] + alive[4:][-2:]
        for edge in edges:
            rows = corpus.batches[edge.span.unit, edge.span.batch]
            assert rows["doc_id"][edge.span.begin].as_py() == edge.doc_id
            assert len(rows["tokens"][edge.span.begin]) == edge.span.tokens


def test_every_reason_is_counted_by_source() -> None:
    texts = [
        Text("a", ("abc", "def", "abc")),
        Text("b", ("abc", "def", "abc")),
        Text("c", ("hij", "a")),
        Text("c", ("def", "hij"), revision=2),
        Text("d", ("def", "hij", "jjj")),
        Text("e", ("def",)),
        Text("f", ("ab", "ab")),
    ]
    corpus = Corpus(texts, RULE)
    found = Review(corpus.runs, RULE)
    rows = corpus.rows(found, 1)
    batch, counts = build_shard(ONLY, rows, LAYOUT, 0, OPTIONS, np.ones(1000, bool), 1)
    assert batch["doc_id"].to_pylist() == ["a", "c", "d", "f"]
    assert batch["sentence_ends"].to_pylist() == [[3, 6], [3], [3], [2, 4]]
    told = counts + found.counts()
    assert {name: count for name, count in told.items() if name.startswith(("dropped/", "repeated/"))} == {
        "dropped/books/collision": 1,
        "dropped/books/duplicate_document": 1,
        "dropped/books/repeated_lines": 1,
        "repeated/books/lines": 4,
        "repeated/books/sentences": 4,
        "repeated/books/tokens": 12,
    }


def ranges_of_repeats(generator: np.random.Generator, ranges: int, lines: int) -> list[pa.RecordBatch]:
    """REPEATS as drop_lines tells them: in some ranges up to so many lines, of rows anywhere, each with two or more."""
    made = []
    for _ in range(ranges):
        rows = np.sort(generator.integers(0, 40, generator.integers(1, lines + 1)).repeat(2)).astype(np.uint64)
        begins = generator.integers(0, 99, len(rows)).astype(np.uint32)
        made.append(pa.RecordBatch.from_arrays([*map(pa.array, (rows, begins, begins + 1))], schema=REPEATS))
    return made


@pytest.mark.parametrize("seed", range(20))
def test_one_search_in_merged_repeats_finds_what_a_search_in_every_range_does(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dedup, "RANGE_RECORDS", 1 + 7 * seed)
    monkeypatch.setattr(dedup, "SAMPLED", 1 + seed % 5)
    generator = np.random.default_rng(seed)
    ranges = ranges_of_repeats(generator, ranges=seed, lines=12)
    merged = list(by_row(ranges))
    told = [batch["row"].to_numpy() for batch in merged]
    assert all(before[-1] < after[0] for before, after in pairwise(told))
    assert all((np.diff(rows.astype(np.int64)) >= 0).all() for rows in told)
    rows = np.flatnonzero(generator.random(45) < 0.5).astype(np.uint64)
    naive = [
        (position, line["begin"], line["end"])
        for position, row in enumerate(rows.tolist())
        for batch in ranges
        for line in batch.to_pylist()
        if line["row"] == row
    ]
    assert sorted(map(tuple, repeats_of(rows, merged).tolist())) == sorted(naive)
    assert sorted(map(tuple, repeats_of(rows, ranges).tolist())) == sorted(naive), "as an older version left them"


def test_merged_repeats_lie_in_batches_of_about_one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dedup, "RANGE_RECORDS", 100)
    monkeypatch.setattr(dedup, "SAMPLED", 4)
    rows = np.sort(np.random.default_rng(1).integers(0, 2**40, (10, 1000), np.uint64) << np.uint64(7), axis=1)
    ends = pa.array(np.ones(1000, np.uint32))
    merged = list(by_row([pa.RecordBatch.from_arrays([pa.array(own), ends, ends], schema=REPEATS) for own in rows]))
    assert sum(batch.num_rows for batch in merged) == 10_000
    assert 95 <= len(merged) <= 101
    assert max(batch.num_rows for batch in merged) < 200


def test_a_line_is_not_dropped_for_a_copy_that_is_dropped_itself() -> None:
    # The older revision of a, and b, which is a duplicate, have lines that c is the only one to keep.
    texts = [Text("a", ("abc",)), Text("a", ("def",), revision=1), Text("b", ("def",)), Text("c", ("abc", "ijj"))]
    corpus = Corpus(texts, RULE)
    found = Review(corpus.runs, RULE)
    assert what_stays(corpus.rows(found, 1)) == {"a": ["def"], "c": ["abc", "ijj"]}


def test_a_document_is_not_dropped_for_a_copy_that_is_dropped_itself() -> None:
    """Nobody else has the text that a had before."""
    texts = [Text("a", ("abc",)), Text("a", ("def",), revision=1), Text("b", ("abc",))]
    corpus = Corpus(texts, RULE)
    found = Review(corpus.runs, RULE)
    assert what_stays(corpus.rows(found, 1)) == {"a": ["def"], "b": ["abc"]}
    assert found.counts() == {"dropped/books/collision": 1}


def test_of_two_texts_of_one_revision_the_same_one_stays_in_any_order() -> None:
    """Two dumps may have a page of one revision with other templates filled in."""
    texts = [Text("a", ("abc", "def")), Text("a", ("hij",)), Text("a", ("jih", "a")), Text("b", ("jjj",))]
    corpora = [Corpus(texts, RULE, order, units) for order in range(8) for units in (1, 2, 4)]
    first, *others = (what_stays(corpus.rows(Review(corpus.runs, RULE), 1)) for corpus in corpora)
    assert sorted(first) == ["a", "b"]
    assert all(other == first for other in others)


@pytest.mark.parametrize("order", range(4))
def test_documents_of_two_sources_are_no_versions_of_each_other(order: int) -> None:
    pages = [Text("enwiki/1", ("aj",), revision, "wikipedia") for revision in (3, 4)]
    others = [Text("enwiki/2", ("bj",)), Text("enwiki/3", ("cj",), source="jsonl")]
    found = Review(Corpus([*pages, *others], RULE, order, units=2).runs, RULE)
    assert found.counts() == {"dropped/wikipedia/collision": 1}
    book = Text("enwiki/1", ("dj",))
    told = "'enwiki/1' is the id of a document of --books and of one of --wikipedia, which must differ; rename a file"
    with pytest.raises(SourceError, match=told):
        Review(Corpus([*pages, *others, book], RULE, order, units=2).runs, RULE)


def test_the_sources_of_all_documents_may_have_more_bytes_than_arrow_can_index() -> None:
    """As those of 239 million articles do."""
    long = pa.array(["x" * (60 << 20)])
    runs = []
    for unit in range(40):
        (run,) = Corpus([Text(f"d{max(unit, 1)}", ("abc",), revision=unit)], RULE).runs
        runs.append(Run(unit, 0, run.documents.set_column(1, "source", long), run.lines))
    assert Review(runs, RULE).lost.tolist() == [Reason.COLLISION, 0, *[Reason.DUPLICATE_DOCUMENT] * 38]
    runs[1] = runs[1]._replace(documents=runs[1].documents.set_column(1, "source", pa.array(["books"])))
    with pytest.raises(SourceError, match="'d1' is the id of a document of --books and of one of --xxx"):
        Review(runs, RULE)


def test_an_empty_corpus_has_nothing_to_drop() -> None:
    found = Review([], RepeatRule(True, True, 1, near_duplicates=0.8))
    assert list(found.drop_lines(1)) == []
    assert found.edges() == []
    assert len(found.lost_documents()) == 0


def test_sequences_of_words_ignore_case_and_punctuation() -> None:
    assert word_sequences("One two, three!", 2).tolist() == word_sequences("ONE two -- three", 2).tolist()
    assert word_sequences("Die STRASSE", 2).tolist() == word_sequences("die Straße", 2).tolist()
    assert len(word_sequences("one two three", 2)) == 2
    assert len(word_sequences("one", 5)) == 1
    assert len(word_sequences("...", 5)) == 0
    assert word_sequences("one two", 2)[0] != word_sequences("two one", 2)[0]


def test_words_may_be_forgotten_while_another_thread_looks_them_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of an engine's worker do, once it has met a million of them."""
    monkeypatch.setattr("preprocessing.fingerprints._REMEMBERED_WORDS", 100)
    texts = [" ".join(f"word{(number * 7 + place) % 900}" for place in range(400)) for number in range(300)]
    alone = [word_sequences(text, 5).tolist() for text in texts]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            together = list(threads.map(lambda text: word_sequences(text, 5).tolist(), texts))
    finally:
        sys.setswitchinterval(interval)
    assert together == alone


def test_signatures_estimate_what_texts_share() -> None:
    words = [f"w{number}" for number in range(2000)]
    for share in (0.5, 0.8, 0.95):
        kept = int(2000 * 2 * share / (1 + share))
        other = words[:kept] + [f"v{number}" for number in range(2000 - kept)]
        one, two = (set(word_sequences(" ".join(each), 5).tolist()) for each in (words, other))
        true_share = len(one & two) / len(one | two)
        assert abs((signature(" ".join(words)) == signature(" ".join(other))).mean() - true_share) < 0.13
    assert (signature("...") != signature("!!!")).mean() > 0.9


def test_the_signature_of_a_long_text_is_of_all_of_it() -> None:
    """Each number is the least of those of its parts."""
    words = [f"w{number}" for number in range(12_000)]
    parts = [signature(" ".join(words[begin : begin + 3004])) for begin in range(0, 12_000, 3000)]
    assert signature(" ".join(words)).tolist() == np.min(parts, axis=0).tolist()


def perturbed(words: Sequence[str], share: float, seed: int) -> str:
    """A text some of whose words are others."""
    chance = random.Random(seed)
    return " ".join(word if chance.random() > share else "other" for word in words)


def signed(texts: Sequence[tuple[str, str]], threshold: float, units: int = 1) -> Review:
    """A review of (id, text); of one id each text is a newer revision."""
    rule = RepeatRule(False, False, 1, near_duplicates=threshold)
    runs = []
    for unit in range(units):
        buffer = TokenBuffer(LAYOUT, 1000)
        for revision, (name, text) in list(enumerate(texts))[unit::units]:
            ends, tokens = np.array([2], np.int32), np.zeros(2, np.uint16)
            print_ = fingerprint(text, [1], ends, rule)
            buffer.add(EncodedDocument(Document(name, "books", None, "", revision), tokens, ends, print_))
        made = buffer.flush(unit, 0, UnitNote())
        runs.append(Run(unit, 0, made.documents, made.lines))
    return Review(runs, rule)


def near(texts: dict[str, str], threshold: float, units: int, order: int) -> set[str]:
    """The documents that are dropped as near duplicates."""
    names = random.Random(order).sample(sorted(texts), len(texts))
    lost = signed([(name, texts[name]) for name in names], threshold, units).lost.tolist()
    ids = [name for unit in range(units) for name in names[unit::units]]
    assert set(lost) <= {0, Reason.NEAR_DUPLICATE}
    return {name for name, reason in zip(ids, lost, strict=True) if reason}


def test_near_duplicates_are_found_and_the_smallest_id_stays_in_any_order() -> None:
    chance = random.Random(0)
    texts = {}
    for number in range(30):
        words = [f"w{chance.randrange(5000)}" for _ in range(300)]
        texts[f"{number:02d}"] = " ".join(words)
        texts[f"{number:02d}-near"] = perturbed(words, 0.005, number)
        texts[f"{number:02d}-far"] = perturbed(words, 0.2, number)
    dropped = near(texts, 0.8, units=1, order=0)
    assert dropped == {name for name in texts if name.endswith("-near")}
    assert near(texts, 0.8, units=3, order=1) == near(texts, 0.8, units=7, order=2) == dropped


def test_documents_that_share_just_as_much_as_the_threshold_are_near_duplicates() -> None:
    words = [f"w{number}" for number in range(300)]
    one, other = " ".join(words), perturbed(words, 0.005, 0)
    share = float((signature(one) == signature(other)).mean())
    assert 0.8 < share < 1
    assert near({"a": one, "b": other}, share, units=1, order=0) == {"b"}


def test_of_near_duplicates_in_a_chain_the_smallest_id_stays() -> None:
    """The first and the second are far from each other, and both near the third."""
    words = [f"w{number}" for number in range(1000)]
    others = [f"v{number}" for number in range(80)]
    texts = {"0": others + words[80:], "1": words[:-80] + others, "2": words}
    joined = {name: " ".join(text) for name, text in texts.items()}
    assert near({name: joined[name] for name in "01"}, 0.8, units=1, order=0) == set()
    assert near(joined, 0.8, units=1, order=0) == {"1", "2"}


def test_no_document_is_dropped_for_a_near_one_that_is_dropped_itself() -> None:
    """b is near what a was before, and not near what a is now."""
    before, now = ([f"{letter}{number}" for number in range(300)] for letter in "vw")
    found = signed([("a", " ".join(before)), ("a", " ".join(now)), ("b", perturbed(before, 0.005, 0))], 0.8)
    assert found.lost.tolist() == [Reason.COLLISION, 0, 0]


def test_any_number_of_pairs_may_be_compared() -> None:
    found = signed([("a", "one two three four five six"), ("b", "seven eight nine ten eleven twelve")], 0.8)
    same, different = [0, 0], [0, 1]
    shared = found._shared(np.array([same, different] * 20_000))
    assert (shared[0::2] == 1).all()
    assert (shared[1::2] < 0.1).all()


def test_signatures_are_those_of_the_documents_that_are_asked_for_in_whatever_runs_they_lie() -> None:
    found = signed([(f"d{number}", f"w{number} x y z v{number} u") for number in range(40)], 0.8, units=7)
    every = np.concatenate([found._signatures(run) for run in found._runs])
    assert len(np.unique(every, axis=0)) == 40
    documents = np.random.default_rng(1).integers(0, 40, 200)
    assert (found._gather(documents) == every[documents]).all()
    assert found._gather(documents[:0]).shape == (0, every.shape[1])
