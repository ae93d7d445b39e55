from __future__ import annotations

import gzip
import io
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from preprocessing.sources import Damaged, Document, Item, ReadOptions, Skipped, SourceError
from preprocessing.sources.books import read, strip_gutenberg

HEADER = "The Project Gutenberg eBook of X\r\n\r\nTitle: The Long\r\n  Title\r\n\r\nAuthor: A. B.\r\n\r\n"
START = "*** START OF THIS PROJECT GUTENBERG EBOOK THE LONG\r\nTITLE ***\r\n\r\nProduced by C. D.\r\nand others\r\n\r\n"
END = "   *** END OF THIS PROJECT GUTENBERG EBOOK X ***\r\n\r\nlicence text\r\n"


def book(data: bytes, name: str = "shelf/some-book.txt") -> Document:
    (document,) = read(io.BytesIO(data), name)
    assert isinstance(document, Document)
    return document


@pytest.mark.parametrize("credit", ["Produced by", "E-text prepared by", "Transcribed from"])
def test_a_gutenberg_book_without_header_credits_and_footer(credit: str) -> None:
    body = "CHAPTER I.\r\n\r\nA line that\r\nwraps.\r\n\r\n\r\nAnother *** START of nothing.\r\n"
    document = book(("\ufeff" + HEADER + START.replace("Produced by", credit) + body + END).encode())
    assert document == Document(
        doc_id="shelf/some-book.txt",
        source="books",
        title="The Long Title",
        text="CHAPTER I.\nA line that wraps.\nAnother *** START of nothing.",
    )


@pytest.mark.parametrize(
    "mark", ["*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*", "*END THE SMALL PRINT! FOR EBOOKS*"]
)
def test_the_small_print_of_old_etexts_goes_before_the_book_and_behind_it(mark: str) -> None:
    small_print = f"***START**THE SMALL PRINT!**START***\nWhy is this here?\n{mark}Ver.04.29.93*END*\n\n"
    text, footer = "CHAPTER I.\n\nIt begins.\n\n", "End of The Project Gutenberg Etext of Some Book\n\n"
    for etext in (f"The Etext of Some Book\n\n{small_print}{text}{footer}", f"{text}{footer}{small_print}"):
        assert book(etext.encode()).text == "CHAPTER I.\nIt begins."


@pytest.mark.parametrize(
    "mark",
    [
        *("X", "X ***", "X\nAND Y\n  AND Z ***", "", "***"),
        *("X **", "X\n\nBut ***stars***, he said"),  # none that ends the mark
    ],
)
@pytest.mark.parametrize(
    "kind", ["PROJECT GUTENBERG EBOOK", "COPYRIGHTED PROJECT GUTENBERG EBOOK", "PROJECT GUTENBERG ETEXT"]
)
def test_gutenbergs_first_line_may_lack_its_last_asterisks(mark: str, kind: str) -> None:
    stays = mark.partition("\n\n")[2]
    text = f"Header.\n\n*** START OF THE {kind} {mark}\n\nA book.\n\n*** END OF THE {kind} X\n\nLicence.\n"
    assert book(text.encode()).text.split("\n") == [*filter(None, [stays]), "A book."]
    footer = f"A book.\n\nEnd of Project Gutenberg's X\n\n*** END OF THE {kind} X ***\n\nLicence.\n"
    assert book(footer.encode()).text == "A book."


@pytest.mark.parametrize("written", [str.upper, str.lower, str.title])
def test_gutenbergs_lines_may_be_in_any_letters(written: Callable[[str], str]) -> None:
    start, end = (written(f"*** {which} of this Project Gutenberg eBook X ***") for which in ("start", "end"))
    assert book(f"Header.\n{start}\nA book.\n{end}\nLicence.".encode()).text == "A book."
    words = written("End of Project Gutenberg")
    assert book(f"Header.\n{start}\nGutenberg printed.\n{words}.".encode()).text == "Gutenberg printed."
    assert book(f"Gutenberg printed.\n{words}.\n\n{end}\nLicence.".encode()).text == "Gutenberg printed."
    small_print = written("*End*The Small Print! For Public Domain Etexts*")
    assert book(f"Header.\n{small_print}\nA book.\n".encode()).text == "A book."


def test_what_others_write_of_gutenberg_is_no_footer() -> None:
    written = "Of books.\n\nEnd of Project Gutenberg, said the paper, and was wrong.\n\nIt goes on.\n"
    read_as = "Of books.\nEnd of Project Gutenberg, said the paper, and was wrong.\nIt goes on."
    assert book(written.encode()).text == read_as


@pytest.mark.parametrize(
    ("paragraph", "stays"),
    [
        ("Produced by the sun and the sea, salt\nwas their trade.", True),
        ("Transcribed from memory, the letter\nsaid little.", True),
        ("Produced by A. B. and the Online\nDistributed Proofreading Team.", False),
        ("Produced by the Online Distributed\nProofreading Team at http://www.pgdp.net", False),
        ("Produced by Élise B.  HTML version by C. D.", False),
        ("Transcribed from the 1897 C & D\nedition by E. F., email ef@pglaf.org", False),
    ],
)
def test_who_made_a_gutenberg_book_is_told_from_how_it_begins(paragraph: str, stays: bool) -> None:
    begins = [paragraph.replace("\n", " ")] if stays else []
    text = f"Header.\n*** START OF THE PROJECT GUTENBERG EBOOK X ***\n\n{paragraph}\n\nThe end.\n"
    assert book(text.encode()).text.split("\n") == [*begins, "The end."]


def test_several_gutenberg_books_in_a_file_are_all_read() -> None:
    books = [HEADER + START + f"Book {number} begins.\r\n\r\nIt ends.\r\n" + END for number in range(3)]
    document = book("\r\n".join(books).encode())
    assert document.title == "The Long Title"
    assert document.text.split("\n") == [line for n in range(3) for line in (f"Book {n} begins.", "It ends.")]


def test_gutenbergs_underscores_go_where_they_mark_italics_in_a_paragraph() -> None:
    written = "_A whale,_ he said, _dread___ful and\n_all in\nwhite_, on the 29_th_. _Open\n\nno more_ 1 _ 2 ____ 3.\n"
    read_as = "A whale, he said, dreadful and all in white, on the 29th. _Open\nno more_ 1 _ 2 ____ 3."
    assert book((START + written + END).encode()).text == read_as
    assert book((written + END).encode()).text == read_as
    assert book((START + written).encode()).text == read_as
    assert book(b"Call _it_ here.").text == "Call _it_ here."


def test_gutenbergs_captions_and_lines_of_asterisks_are_no_text() -> None:
    written = (
        "[Illustration]\n\n[Picture: A whale] It blows.\n\n* * *\n  *  *\n\n[Illustration: _Ahab_,\n\non deck]\n\n"
        "A whale* is [sic] no fish.\n\n* It is not.\n\n[Illustration without an end\n"
    )
    read_as = "It blows.\nA whale* is [sic] no fish.\n* It is not.\n[Illustration without an end"
    assert book((START + written + END).encode()).text == read_as
    assert book((START + written.replace("\n", "\r\n") + END).encode()).text == read_as
    assert book(b"[Illustration: a whale]\n\n* * *\n\nText.").text == "[Illustration: a whale]\n* * *\nText."


def test_asterisks_that_mark_a_word_stay_wherever_in_its_line_it_is() -> None:
    written = "The whale*\nblew, and * sank. **\n\n* That of the Pacific.\n"
    assert book((START + written + END).encode()).text == "The whale* blew, and * sank. **\n* That of the Pacific."


@pytest.mark.parametrize("white", [" ", "\n"])
def test_an_underscore_that_nothing_closes_takes_no_memory(white: str) -> None:
    text = START + "_" + f"whale{white}" * 200_000 + END
    tracemalloc.start()
    body, _ = strip_gutenberg(text)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert body.count("whale") == 200_000
    assert most < 6 * len(text)


def test_what_lies_far_before_a_gutenberg_book_in_the_same_file_is_no_header() -> None:
    own = "A story of one's own.\n\n" * 4000
    for mark in (START, "*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*\n\n"):
        document = book(own.encode() + (mark + "A book.\r\n" + END).encode())
        assert document.text.count("A story of one's own.") == 4000
        assert document.text.endswith("A book.")


def test_a_plain_text_is_titled_by_its_file() -> None:
    document = book(b"One line.\nSame paragraph.\n\n  Title: not a header\n")
    assert document.title == "some-book"
    assert document.text == "One line. Same paragraph.\nTitle: not a header"


def test_a_title_is_looked_for_in_the_header_alone() -> None:
    document = book((START + "Title: not a header\n").encode())
    assert (document.title, document.text) == ("some-book", "Title: not a header")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_may_end_as_on_any_system(end: str) -> None:
    assert book(end.join(["One line.", "Same paragraph.", "", "Another."]).encode()).text.count("\n") == 1


def test_lines_are_paragraphs_in_a_text_that_is_not_wrapped() -> None:
    lines = ["One paragraph a line, as long as it happens to be. " * 4, "Short.", "Another one, as long again. " * 8]
    assert book("\n".join(lines).encode()).text.split("\n") == [line.strip() for line in lines]


@pytest.mark.parametrize(("long", "paragraphs"), [(2, 2), (3, 40)])
def test_a_text_is_wrapped_if_at_most_every_twentieth_line_is_longer_than_a_hundred_columns(
    long: int, paragraphs: int
) -> None:
    lines = ["x" * 101] * long + ["x" * 100] * (40 - long)
    blank = [""] * 40  # do not count
    assert len(book("\n".join([*lines[:20], *blank, *lines[20:]]).encode()).text.split("\n")) == paragraphs


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "utf-16-le", "utf-16-be"])
def test_encodings(encoding: str) -> None:
    mark = "\ufeff" if encoding.startswith("utf-16") else ""
    document = book((mark + "Ein Café für Zoë.").encode(encoding))
    assert (document.text, document.replaced) == ("Ein Café für Zoë.", 0)


@pytest.mark.parametrize(
    "data",
    [gzip.compress(b"A book. " * 500)[1:], np.random.default_rng(1).bytes(5000), "Zoë. ".encode("utf-16-le") * 50],
    ids=["cut off in front", "random", "utf-16 without a mark"],
)
def test_what_is_no_text_is_damaged(data: bytes) -> None:
    (item,) = read(io.BytesIO(data), "a.txt")
    assert item == Damaged(
        "a.txt", "books", "a.txt: not text in UTF-8, Windows-1252, or UTF-16 that begins with its mark"
    )


def test_a_stray_control_character_makes_no_archive() -> None:
    assert book(b"A book of one page.\x0c" * 100 + b"\0\x1a").text.startswith("A book of one page.")
    assert book(b"A short poem.\0").text.startswith("A short poem.")
    (item,) = read(io.BytesIO(b"A short poem.\0\0"), "a.txt")
    assert isinstance(item, Damaged)


def test_of_what_a_file_begins_with_one_percent_may_be_control_characters() -> None:
    assert isinstance(book(b"x" * 990 + b"\0" * 10), Document)
    (item,) = read(io.BytesIO(b"x" * 989 + b"\0" * 11), "a.txt")
    assert isinstance(item, Damaged)
    assert isinstance(book(b"x" * (1 << 16) + b"\0" * 1000), Document)  # no more than 64 KB are looked at


def test_windows_quotation_marks_and_bytes_of_no_encoding() -> None:
    assert book(b"\x93Yes,\x94 he said.").text == "“Yes,” he said."
    document = book(b"\x81 and \x93 never fail")
    assert (document.text, document.replaced) == ("\x81 and \x93 never fail", 0)


def test_a_damaged_letter_does_not_make_a_file_latin() -> None:
    document = book("Ein Café für Zoë, ".encode() + b"caf\xe9.")
    assert document.text == "Ein Café für Zoë, caf\ufffd."
    assert document.replaced == 1
    assert book(b"caf\xe9 it is").text == "café it is"


def test_a_file_is_utf8_if_more_of_its_letters_are_than_bytes_are_damaged() -> None:
    assert book("Fête à Nîmes: ".encode() + b"\xe9 \xe9").text == "Fête à Nîmes: \ufffd \ufffd"
    assert book("Fête à Nmes: ".encode() + b"\xe9 \xe9").text == "FÃªte Ã\xa0 Nmes: é é"


KOREAN = "안응칠은 황해도 해주에서 태어났다. 그는 어려서부터 말타기와 활쏘기를 즐겼다. "
JAPANESE = "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。"
CHINESE = "却说那唐僧师徒四人，晓行夜宿，不觉又到了一座高山之前。"
RUSSIAN = "Все счастливые семьи похожи друг на друга, каждая несчастливая семья несчастлива по-своему. "


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        *[("euc-kr", KOREAN), ("euc-jp", JAPANESE), ("shift-jis", JAPANESE), ("gb18030", CHINESE)],
        *[(encoding, RUSSIAN) for encoding in ("koi8-r", "cp1251", "iso-8859-5", "cp866")],
    ],
)
def test_what_is_in_another_encoding_is_damaged_and_not_letters_with_accents(encoding: str, text: str) -> None:
    (item,) = read(io.BytesIO(text.encode(encoding) * 3), "a.txt")
    told = "a.txt: neither UTF-8 nor Windows-1252 but another encoding; iconv -f ENCODING -t UTF-8 converts it"
    assert item == Damaged("a.txt", "books", told)


@pytest.mark.parametrize(
    "text",
    [
        "Ça, là ? « Où ? À Évian ? »",
        "Kæmi ný öxi hér, ykist þjófum nú bæði víl og ádrepa. " * 10,
        "Falsches Üben von Xylophonmusik quält jeden größeren Zwerg. “Ja…” — " * 10,
        "Když se Řehoř Samsa jednou ráno probudil z nepokojných snů. " * 10,  # guessed wrong, which is why it is told
    ],
)
def test_windows_1252_is_a_guess_that_is_told(text: str) -> None:
    encoding = "cp1250" if "Řehoř" in text else "cp1252"
    document = book(text.encode(encoding))
    assert document.windows_1252
    assert document.text == text.encode(encoding).decode("cp1252").strip()
    assert not book(text.encode()).windows_1252


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_half_a_surrogate_pair_in_utf16_is_replaced_and_counted(encoding: str) -> None:
    document = book("\ufeffHalf \ud83d of one, \ufffd and 😀.".encode(encoding, "surrogatepass"))
    assert (document.text, document.replaced) == ("Half \ufffd of one, \ufffd and 😀.", 1)


def google(data: bytes) -> list[Item]:
    return list(read(io.BytesIO(data), "b.txt", ReadOptions(books_format="google")))


def test_googles_format() -> None:
    assert google(b"\xef\xbb\xbfOne.\r\nTwo.\r\n\r\n \n\nThree caf\xe9.\n") == [
        Document("b.txt#0", "books", None, "One.\nTwo.", split=True),
        Document("b.txt#1", "books", None, "Three caf\ufffd.", replaced=1, split=True),
    ]
    assert google(b"\n\n") == google(b"") == [Skipped("b.txt", "books", "empty")]


@pytest.mark.parametrize("white", ["\u00a0", " \u3000\t", "\x1c", "\u2028", "\x85", "\u1680\u205f\r"])
def test_a_blank_line_of_googles_format_may_be_of_any_white_space(white: str) -> None:
    """Its program reads with str.strip."""
    assert google(f"{white}\n{white}One.\n{white}\nTwo.{white}\n{white}".encode()) == [
        Document("b.txt#0", "books", None, f"{white}One.".replace("\r", " "), split=True),
        Document("b.txt#1", "books", None, f"Two.{white}".rstrip("\r"), split=True),
    ]


@pytest.mark.parametrize("line", [b"\xe3\x80", b"\xc2", b"\xa0", "\u3002".encode()], ids=bytes.hex)
def test_a_line_of_bytes_that_white_space_has_too_is_text(line: bytes) -> None:
    (found,) = google(b"One.\n" + line + b"\nTwo.")
    assert isinstance(found, Document)


def test_a_carriage_return_ends_no_line_in_googles_format() -> None:
    (found,) = google(b"One\rgoes on.\r\nTwo.\r\r\n")
    assert found == Document("b.txt#0", "books", None, "One goes on.\nTwo.", split=True)


def test_only_what_is_wanted_is_read() -> None:
    found = read(io.BytesIO(b"A\n\nB\n\nC\n"), "b.txt", ReadOptions("google"), lambda doc_id: doc_id != "b.txt#1")
    assert [item.doc_id for item in found] == ["b.txt#0", "b.txt#2"]
    assert list(read(io.BytesIO(b"A"), "a.txt", wanted=lambda doc_id: doc_id != "a.txt")) == []


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-16-le"])
@pytest.mark.parametrize("text", ["Zoë slept.\n\nShe woke.\n", "\n\nZoë slept.\n"])
def test_utf16_in_googles_format_is_refused_as_it_has_no_blank_lines_there(encoding: str, text: str) -> None:
    with pytest.raises(SourceError, match=r"^b\.txt: UTF-16, and google's format is UTF-8; convert it: iconv"):
        google(text.encode(encoding))


def test_utf32_is_no_text_though_its_mark_begins_as_that_of_utf16() -> None:
    for encoding in ("utf-32", "utf-32-le", "utf-32-be"):
        mark = "" if encoding == "utf-32" else "\ufeff"
        (found,) = read(io.BytesIO((mark + HEADER + START + "Zoë slept. \U0001f600\n" + END).encode(encoding)), "x.txt")
        assert isinstance(found, Damaged)
        assert found.message == "x.txt: not text in UTF-8, Windows-1252, or UTF-16 that begins with its mark"


def test_too_large_documents_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("preprocessing.sources.books.MAX_DOCUMENT", 100)
    monkeypatch.setattr("preprocessing.sources.lines.MAX_LINE", 500)
    texts = ["x\n" * 60, "y" * 120, "w" * 501 + "\nshort", "v\n" * 300, "z" * 99, "\U00010000" * 100]
    found = google("\n\n".join(texts).encode())
    assert found == [
        *(Skipped(f"b.txt#{row}", "books", "too_large") for row in range(4)),
        Document("b.txt#4", "books", None, "z" * 99, split=True),
        Document("b.txt#5", "books", None, "\U00010000" * 100, split=True),
    ]
    for text in ("x" * 101, "\ufeff" + "\U00010000" * 200):  # of the second no more than 100 would be read
        assert list(read(io.BytesIO(text.encode()), "x.txt")) == [Skipped("x.txt", "books", "too_large")]
    for letter in ("x", "\U00010000"):
        assert len(book((letter * 100).encode()).text) == 100


@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf\r\n \r\n", (HEADER + START + END).encode()])
def test_an_empty_book_is_counted(data: bytes) -> None:
    assert list(read(io.BytesIO(data), "x.txt")) == [Skipped("x.txt", "books", "empty")]


def test_real_books_lose_their_licence_and_nothing_else(real_data: Path) -> None:
    files = sorted((real_data / "books").glob("*.txt"))
    for path in files:
        raw = path.read_bytes()
        document = book(raw, path.name)
        assert document.title
        assert "START OF" not in document.text[:2000]
        assert "Project Gutenberg License" not in document.text
        text = re.sub(r"\[(Illustration|Picture)[^]]*]|^[* ]+(?=\r?$)", "", raw.decode("utf-8-sig"), flags=re.M)
        lost = len(text.split()) - len(document.text.split())
        assert 2800 < lost < 3600, path  # words of header and licence
        assert document.text.count("_") < 0.0005 * len(document.text)  # some that have no partner
    alice = book((real_data / "books" / "pg11-alices-adventures-in-wonderland.txt").read_bytes(), "alice.txt")
    assert alice.title == "Alice’s Adventures in Wonderland"
    assert "Alice was beginning to get very tired of sitting by her sister on the bank, and of having" in alice.text
    assert alice.text.endswith("THE END")


@pytest.mark.parametrize(
    ("beginning", "told"),
    [
        (b'<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/">\n<page>', "a.txt: .* a file for --wikipedia"),
        (b'\xef\xbb\xbf \n<doc id="12" url="u" title="T">\nT\n', "a.txt: .* a file for --wikiextractor"),
        (b' {"text": "A whale."}\n{"text"', "a.txt: .* a file for --jsonl"),
        (b'{"text": "A whale."}\n', "a.txt: .* a file for --jsonl"),
        (b'\n{"body": "A whale."}\n \n{"body"', "a.txt: .* a file for --jsonl"),
        (b'{"data": [{"title": "A"}], "version": "1.1"}\n', r"^a\.txt: one JSON document, and no list of texts; put"),
        (b'\n[{"text": "A whale."}, {"text": "A ship."}]\n\n', "a.txt: one JSON document"),
    ],
)
@pytest.mark.parametrize("books_format", ["file", "google"])
def test_files_of_other_sources_are_no_books(
    beginning: bytes, told: str, books_format: Literal["file", "google"]
) -> None:
    with pytest.raises(SourceError, match=told):
        list(read(io.BytesIO(beginning), "a.txt", ReadOptions(books_format)))


@pytest.mark.parametrize("beginning", ["{", "[{", "[\n  {\n"])
def test_a_json_document_of_several_lines_is_no_book(beginning: str) -> None:
    data = beginning + '\n    "te\\"xt": "A whale.",\n    "n": [1]\n}' + "]" * ("[" in beginning) + "\n"
    with pytest.raises(SourceError, match=r"^a\.txt: one JSON document"):
        book(data.encode(), "a.txt")


@pytest.mark.parametrize("beginning", [b'[{"a": 1}', b'{"a": [1'])
def test_more_json_than_may_be_parsed_is_no_book(beginning: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take gigabytes to tell that it is damaged at its end."""
    monkeypatch.setattr("preprocessing.sources.lines.MAX_VALUES", 1000)
    monkeypatch.setattr("json.loads", None)
    with pytest.raises(SourceError, match=r"^a\.txt: one JSON document"):
        book(beginning + b', {"a": 2}' * 1000, "a.txt")


def test_a_line_of_asterisks_is_one_whatever_its_length() -> None:
    """And time is in proportion to it."""
    lines = ["* " * 200_000, " " * 999 + "*", "*" * 200_000 + "x", "*x" * 200_000, "\t*\t*\t"]
    text = (START + "\n\n".join([*lines, "Text.", END])).replace("\r\n", "\n")
    assert book(text.encode()).text.split("\n") == [lines[2], lines[3], "Text."]


@pytest.mark.parametrize(
    "text",
    [
        *("{} is empty.", "{}", "{", "{1} A note.", "<doc", "See <mediawiki>.", '"{"a": 1}'),
        *("[1]", '["Aye," he said.]', '{"Aye": so he said.', '[{"a": 1}] is how it begins [and ends]'),
        pytest.param('{"a":' * 100_000, id="deeper than Python reads"),
    ],
)
def test_a_book_may_begin_with_a_bracket(text: str) -> None:
    assert book(text.encode()).text == text


@pytest.mark.parametrize("books_format", ["file", "google"])
def test_a_book_may_have_lines_of_other_sources_further_on(books_format: Literal["file", "google"]) -> None:
    data = b'A book of marks.\n<mediawiki\n<doc id="1"\n{"a": 1}\n'
    (found,) = read(io.BytesIO(data), "a.txt", ReadOptions(books_format))
    assert isinstance(found, Document)
