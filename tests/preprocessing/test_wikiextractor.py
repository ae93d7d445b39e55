from __future__ import annotations

import io
from pathlib import Path

import pytest

from preprocessing.sources import Damaged, Document, Item, Skipped
from preprocessing.sources.wikiextractor import read


def documents(data: str | bytes) -> list[Item]:
    return list(read(io.BytesIO(data.encode() if isinstance(data, str) else data), "AA/wiki_00"))


def doc(title: str, text: str) -> str:
    return f'<doc id="1" url="https://en.wikipedia.org/wiki?curid=1" title="{title}">\n{text}\n</doc>\n'


def test_documents_without_their_title_line() -> None:
    found = documents(doc('A "B" &amp; C', 'A "B" & C\n\nIt is x &lt; y.\n\nMore.\n') + "\n" + doc("D", "D has it."))
    assert found == [
        Document("AA/wiki_00#0", "wikiextractor", 'A "B" & C', "It is x < y.\nMore."),
        Document("AA/wiki_00#1", "wikiextractor", "D", "D has it."),
    ]


@pytest.mark.parametrize("title", ["A", 'A "B"', '"A" is', 'A "b c', "5 > 4", ""])
@pytest.mark.parametrize("behind", ["", ' language="en" revision="12"', ' xml:lang="en"  ', ' n="a>b"'])
def test_a_title_ends_before_the_attributes_behind_it(title: str, behind: str) -> None:
    (found,) = documents(f'<doc id="1" title="{title}"{behind}>\n{title}\n\nText.\n</doc>\n')
    assert found == Document("AA/wiki_00#0", "wikiextractor", title, "Text.")


def test_an_entity_has_a_semicolon() -> None:
    (found,) = documents(doc("R&notebook", "See ?a=1&copy=2&lt=3, or &copy; &#169; &#xA9; AT&T."))
    assert found == Document("AA/wiki_00#0", "wikiextractor", "R&notebook", "See ?a=1&copy=2&lt=3, or © © © AT&T.")


def test_blanks_around_the_lines_of_a_document_are_no_text() -> None:
    spaced = doc("A", "one").replace("<doc", " <doc").replace(">\n", "> \n").replace("</doc>", " </doc> ")
    found = documents(spaced + doc("B", "two"))
    assert [item.text for item in found if isinstance(item, Document)] == ["one", "two"]


def test_a_document_ends_where_the_next_one_begins() -> None:
    found = documents(doc("A", "one").removesuffix("</doc>\n") + doc("B", "two"))
    assert [item.text for item in found if isinstance(item, Document)] == ["one", "two"]


def test_what_is_no_document() -> None:
    assert documents(b"") == [Skipped("AA/wiki_00", "wikiextractor", "empty")]
    assert documents(doc("Only a title", "Only a title")) == [Skipped("AA/wiki_00#0", "wikiextractor", "empty")]
    assert documents('<doc id="1" title="A">\n</doc>') == [Skipped("AA/wiki_00#0", "wikiextractor", "empty")]
    first, second, closing, third = documents("stray\n" + doc("A", "Text.") + '</doc>\n<doc title="B">\nno end')
    assert isinstance(first, Damaged)
    assert "'stray' is outside of <doc" in first.message
    assert isinstance(closing, Damaged)
    assert "'</doc>' is outside of <doc" in closing.message
    assert second == Document("AA/wiki_00#1", "wikiextractor", "A", "Text.")
    assert isinstance(third, Damaged)
    assert "without its end" in third.message


@pytest.mark.parametrize("piece", ['title="', 'title="a" b="c" ', '" a="b"', "<doc ", '"' + " " * 9, 'a="'])
def test_an_opening_made_to_hang_the_reader_takes_linear_time(piece: str) -> None:
    (found,) = documents('<doc title="' + piece * 200_000)
    assert isinstance(found, Damaged)
    assert len(found.message) < 200


def test_too_large_a_document_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("preprocessing.sources.wikiextractor.MAX_DOCUMENT", 100)
    monkeypatch.setattr("preprocessing.sources.lines.MAX_LINE", 1500)
    large = doc("A", "x" * 101) + doc("B", "x" * 1000 + "\n" + "x" * 1000) + doc("C", "Text.\n" + "x" * 1501)
    found = documents(large + doc("D", "x" * 100))
    assert [getattr(item, "reason", "read") for item in found] == [*["too_large"] * 3, "read"]


def test_only_what_is_wanted_is_read() -> None:
    data = io.BytesIO("".join(doc(title, "Text.") for title in "ABC").encode())
    assert [item.doc_id for item in read(data, "f", wanted=lambda doc_id: doc_id != "f#1")] == ["f#0", "f#2"]


def test_bytes_that_are_no_utf8_are_replaced_and_counted() -> None:
    (found,) = documents(doc("A", "caf@ it is.").encode().replace(b"@", b"\xe9"))
    assert found == Document("AA/wiki_00#0", "wikiextractor", "A", "caf\ufffd it is.", replaced=1)


@pytest.mark.parametrize(
    ("name", "count"), [("wiki_00", 2), ("wikiextractor/AB/wiki_09", 157), ("wikiextractor/states/wiki_02", 15)]
)
def test_real_files(real_data: Path, name: str, count: int) -> None:
    found = documents((real_data / "wikipedia" / name).read_bytes())
    assert len(found) == count
    articles = [item for item in found if isinstance(item, Document)]
    assert len(articles) > 0.9 * count
    for article in articles:
        assert article.title
        assert not article.text.startswith(article.title + "\n")
        assert "<doc" not in article.text
        assert "</doc>" not in article.text
