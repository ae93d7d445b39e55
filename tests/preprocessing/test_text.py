from __future__ import annotations

import random
import unicodedata
from pathlib import Path

import pytest
from sentencex import segment

from preprocessing.text import LONG, MARKS, MOST, WIDEST, WINDOW, clean, holds_tags, split_lines


def split_sentences(text: str, language: str) -> list[str]:
    return [sentence for line in split_lines(text, language) for sentence in line]


@pytest.mark.parametrize(
    ("raw", "cleaned"),
    [
        ("  two\t words  \r\n\r\n\n next\u00a0line \r last", "two words\nnext line\nlast"),
        ("a blank behind \nno other", "a blank behind\nno other"),
        (" a blank before\nno other", "a blank before\nno other"),
        ("two  between", "two between"),
        ("Cafe\u0301", "Café"),
        ("\ufeffa\x00b\x07c\u00add\x7f\x9f", "abcd"),
        ("form\x0cfeed and\x85next", "form feed and next"),
        ("half a pair \ud800 here", "half a pair here"),
        ("zero\u200djoin", "zero\u200djoin"),
        ("e\u00ad\u0301 e\x07\u0301", "é é"),
        (" \n\t\n", ""),
    ],
)
def test_clean(raw: str, cleaned: str) -> None:
    assert clean(raw) == cleaned
    assert clean(cleaned) == cleaned


def test_sentences_end_with_paragraphs_and_not_with_abbreviations() -> None:
    text = "Mr. Smith went home. Was it late?\nA heading without an end\nThe next one."
    assert split_sentences(text, "en") == [
        "Mr. Smith went home.",
        "Was it late?",
        "A heading without an end",
        "The next one.",
    ]
    assert split_sentences("안녕하세요. 반갑습니다.", "ko") == ["안녕하세요.", "반갑습니다."]
    assert split_sentences("", "en") == []


def test_a_line_in_which_nothing_ends_is_cut() -> None:
    for text in ("word " * 200_000, "“word " * 200_000, "字" * 200_000):
        sentences = split_sentences(clean(text), "en")
        assert len(sentences) > 1
        assert max(map(len, sentences)) <= WIDEST
        assert "".join(sentences).replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize(
    "pieces",
    [
        ["好的。", "他说：「我来了。你呢？」然后走了。", "“真的！”她说。", "第3.5章…完。", "（是。不是。）对！"],
        ["हाँ।", "“नहीं।” वह गया।"],
        ["He said: “Yes. No!” And left. ", "Xy!Ab. ", "(Mr. Smith?) "],
    ],
)
def test_a_long_line_is_split_in_windows_as_it_is_as_a_whole(
    pieces: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = clean("".join(random.Random(1).choices(pieces, k=2000)))
    monkeypatch.setattr("preprocessing.text.LONG", len(line))
    monkeypatch.setattr("preprocessing.text.MARKS", len(line))
    whole = split_sentences(line, "en")
    monkeypatch.setattr("preprocessing.text.LONG", 0)
    for window, marks in ((500, 200), (1000, 2000), (4096, 500), (4096, 4096)):
        monkeypatch.setattr("preprocessing.text.MARKS", marks)
        monkeypatch.setattr("preprocessing.text.WINDOW", window)
        monkeypatch.setattr("preprocessing.text.WIDEST", 4 * window)
        assert split_sentences(line, "en") == whole


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is handed to `segment`, piece by piece."""
    pieces: list[str] = []

    def counted(language: str, line: str) -> list[str]:
        pieces.append(line)
        return list(segment(language, line))

    monkeypatch.setattr("preprocessing.text.segment", counted)
    return pieces


def test_a_long_line_with_quotations_that_never_close_is_work_in_proportion_to_it(looked_at: list[str]) -> None:
    line = clean('It was “so. He said "this is it, the 5" gun. He went home then, ‘tis true. ' * 2700)
    assert len(line) > 200_000
    sentences = split_sentences(line, "en")
    assert max(map(len, sentences)) < 2 * WINDOW
    assert max(map(len, looked_at)) < 2 * WINDOW
    assert sum(map(len, looked_at)) < 3 * len(line)


@pytest.mark.parametrize("marks", ["「」„", "‹『‚‘", "“ ", "’„。»‘'"])
def test_a_line_of_marks_is_work_in_proportion_to_it_too(looked_at: list[str], marks: str) -> None:
    """The time of a line is its length times the marks that nothing closes: 270 of these would take ten minutes."""
    line = (marks * LONG)[:LONG].strip()
    sentences = split_sentences(line, "en")
    assert max(map(len, looked_at)) <= MARKS * (1 + marks.count(" "))
    assert sum(map(len, looked_at)) < 3 * len(line)
    assert "".join(sentences).replace(" ", "") == line.replace(" ", "")


@pytest.mark.parametrize("language", ["da", "it", "hy"])
def test_a_line_that_begins_with_a_short_sentence_again_and_again_is_work_in_proportion_to_it(
    looked_at: list[str], language: str
) -> None:
    """Of "A.A.A." some languages' rules part the first mark alone: a window would get on by two characters."""
    line = "A." * (3 * MARKS)
    sentences = split_sentences(line, language)
    assert "".join(sentences) == line
    assert sum(map(len, looked_at)) < 8 * len(line)


def test_letters_with_marks_without_end_are_work_in_proportion_to_them() -> None:
    """To put n marks on one letter in order takes time as their number squared."""
    many = 500_000
    for text in ("a" + "\u0301\u0323" * many, "a" + "\u0323\u00ad\u0301" * many, "x" * many + "\u0323\u0301" * many):
        cleaned = clean(text)
        assert clean(cleaned) == cleaned
        assert unicodedata.is_normalized("NFC", cleaned)
        pieces = cleaned.split("\u034f")
        assert len(pieces) > many // MOST
        assert max(map(len, pieces)) <= many + MOST


@pytest.mark.parametrize("marks", ["\u0301\u0323" * (MOST // 2), "\u0323" * MOST, "\U0001d165" * MOST])
@pytest.mark.parametrize("before", ["", "x" * 7, "한글 " * 5, "x" * 29])
def test_so_many_marks_on_a_letter_stay_as_they_are_and_one_more_gets_a_joiner(marks: str, before: str) -> None:
    """Unicode's Standard Annex 15, Stream-Safe Text Format."""
    assert clean(f"{before}a{marks} b") == unicodedata.normalize("NFC", f"{before}a{marks} b")
    joined = f"{before}a{marks}\u034f{marks[-1]} b"
    assert clean(f"{before}a{marks}{marks[-1]} b") == unicodedata.normalize("NFC", joined)


def test_a_paragraph_is_looked_at_as_a_whole(looked_at: list[str]) -> None:
    paragraph = clean("He said “this is it. He went home then. " * 500)[:LONG]
    sentences = split_sentences(f"{paragraph}\n{paragraph}", "en")
    assert looked_at == [paragraph, paragraph]
    assert sentences == 2 * [sentence.strip() for sentence in segment("en", paragraph)]


def test_a_book_in_one_line_has_sentences_that_pairs_can_reach(real_data: Path) -> None:
    # Its quotation marks are not all in pairs.
    book = (real_data / "books" / "pg219-heart-of-darkness.txt").read_text(encoding="utf-8-sig")
    line = clean(book).replace("\n", " ")
    assert max(map(len, segment("en", line))) > 50_000
    sentences = split_sentences(line, "en")
    assert max(map(len, sentences)) <= 2 * WINDOW
    assert "".join(sentences).replace(" ", "") == line.replace(" ", "")


def test_nothing_of_a_book_is_lost(real_data: Path) -> None:
    text = clean((real_data / "books" / "pg11-alices-adventures-in-wonderland.txt").read_text(encoding="utf-8-sig"))
    sentences = split_sentences(text, "en")
    assert "".join(sentences).replace(" ", "") == text.replace(" ", "").replace("\n", "")
    assert len(sentences) > 1000


@pytest.mark.parametrize(
    "text", ["A film.<br /><br />It ends.", "<P>A film.", 'See <a href="b">this</a>.', "It ends.</div>"]
)
def test_tags_of_html_are_found(text: str) -> None:
    assert holds_tags(text)


@pytest.mark.parametrize(
    "text", ["A film.", "1 < 2 > 1", "a <b", "<brief>", "he <sighs> left", "<mailto:a@b.c>", "<3 <p"]
)
def test_other_angle_brackets_are_no_tags(text: str) -> None:
    assert not holds_tags(text)
