"""A dump of several bzip2 streams, or a plain one, in parts: all parts are the dump, wherever they are cut."""

from __future__ import annotations

import bz2
import io
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from preprocessing import files
from preprocessing.sources import Document, Item, Part, Skipped, SourceError, wikipedia
from preprocessing.sources.wikipedia import read
from tests.preprocessing.test_wikipedia import BOMB, SITEINFO, dump, page

PAGES = [page(f"Page {number} is here.{' It is long.' * (number % 7 * 300)}", number=number) for number in range(60)]


def multistream(header: str, pages: Sequence[str], encoding: str = "utf-8") -> bytes:
    """As Wikimedia writes them: the header, ten pages a stream, the end."""
    texts = ["".join(pages[at : at + 10]) for at in range(0, len(pages), 10)]
    streams = [f'<mediawiki xml:lang="en">{header}', *texts, "</mediawiki>"]
    marked = ["\ufeff" if encoding.startswith("utf-16") else "", *([""] * len(streams))]
    return b"".join(bz2.compress((mark + text).encode(encoding)) for mark, text in zip(marked, streams, strict=False))


def recompressed(data: bytes, size: int) -> bytes:
    """As pbzip2 writes them: streams end anywhere, within a page and within a letter."""
    return b"".join(bz2.compress(data[at : at + size]) for at in range(0, len(data), size))


def parts(data: bytes, size: int) -> list[list[Item]]:
    cuts = [Part(begin, min(begin + size, len(data))) for begin in range(0, len(data), size)]
    return [list(read(io.BytesIO(data), "a.bz2", part=part)) for part in cuts]


def together(data: bytes, size: int) -> list[Item]:
    return [item for part in parts(data, size) for item in part]


def whole(data: bytes) -> list[Item]:
    return list(read(io.BytesIO(bz2.decompress(data)), "a.bz2"))


SIZES = [1, 37, 500, 1000, 3000, 1 << 20]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("header", [SITEINFO, ""], ids=["named", "unnamed"])
def test_the_parts_are_the_dump(header: str, size: int) -> None:
    data = multistream(header, PAGES)
    expected = whole(data)
    assert len(expected) == 60
    found = parts(data, size)
    assert [item for part in found for item in part] == expected
    assert size >= len(data) or sum(map(bool, found)) > 1


@pytest.mark.parametrize("size", [400, 2000])
@pytest.mark.parametrize("stream", [613, 5000, 100_000])
def test_streams_that_end_within_a_page(stream: int, size: int) -> None:
    xml = dump(SITEINFO, *PAGES[:40], page("Ένα 狗." * 500, number=99))
    assert together(recompressed(xml, stream), size) == whole(bz2.compress(xml))


def test_streams_that_end_within_every_letter_of_a_mark() -> None:
    xml = dump(SITEINFO, *PAGES[1:5])
    at = xml.index(b"<page>", xml.index(b"<page>") + 1)
    for cut in range(at - 1, at + 8):
        data = bz2.compress(xml[:cut]) + bz2.compress(xml[cut:])
        assert together(data, len(data) // 2 + 1) == whole(data)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_mark_over_two_streams_of_a_part_that_begins_within_a_page(encoding: str) -> None:
    xml = dump(SITEINFO, *PAGES[1:5], encoding=encoding)
    mark = "<page>".encode(encoding).removeprefix("".encode(encoding))
    at = xml.index(mark, xml.index(mark) + 1)
    for cut in range(at - 1, at + len(mark) + 2):
        first, second, third = (bz2.compress(piece) for piece in (xml[: at - 50], xml[at - 50 : cut], xml[cut:]))
        data = first + second + third
        cuts = [Part(0, len(first)), Part(len(first), len(data))]
        found = [list(read(io.BytesIO(data), "a.bz2", part=part)) for part in cuts]
        assert list(map(len, found)) == [1, 3]
        assert [item for part in found for item in part] == whole(data)


@pytest.mark.parametrize("blank", [" ", "\t", "\n", "\r\n"])
def test_blanks_within_the_mark_of_a_page(blank: str) -> None:
    xml = dump(SITEINFO, *PAGES[:30]).replace(b"<page>", f"<page{blank}>".encode())
    assert together(recompressed(xml, 3000), 500) == whole(bz2.compress(xml))


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf16(encoding: str) -> None:
    data = multistream(SITEINFO, PAGES[:30], encoding)
    assert together(data, 700) == whole(data)
    assert len(whole(data)) == 30


def test_a_prefixed_dump() -> None:
    prefixed = dump(SITEINFO, *PAGES[:30]).decode().replace("xmlns=", "xmlns:mw=")
    xml = prefixed.replace("</", "</mw:").replace("<", "<mw:").replace("<mw:/mw:", "</mw:").encode()
    assert len(whole(bz2.compress(xml))) == 30
    assert together(recompressed(xml, 1000), 500) == whole(bz2.compress(xml))


def test_a_long_header_reaches_every_part() -> None:
    namespaces = "".join(f'<namespace key="{key}">Name {key}</namespace>' for key in range(200, 4000))
    header = SITEINFO.replace("</namespaces>", f"{namespaces}</namespaces>")
    assert len(header) > 2 * wikipedia._CHUNK
    data = multistream(header, PAGES)
    assert together(data, 1000) == whole(data)
    assert {item.doc_id.split("/")[0] for item in together(data, 1000)} == {"testwiki"}


def test_a_header_that_ends_near_the_end_of_a_piece_reaches_every_part_whole() -> None:
    for shift in range(-8, 2):
        xml = dump(SITEINFO.replace("<dbname>", f"<base>{'x' * wikipedia._CHUNK}</base><dbname>"), *PAGES[:30])
        surplus = xml.index(b"<page>") - wikipedia._CHUNK - shift
        xml = xml.replace(b"x" * wikipedia._CHUNK, b"x" * (wikipedia._CHUNK - surplus))
        assert xml.index(b"<page>") == wikipedia._CHUNK + shift
        data = bz2.compress(xml[:70_000]) + recompressed(xml[70_000:], 3000)
        assert together(data, 700) == whole(bz2.compress(xml))


def test_what_is_wanted_is_all_that_is_extracted() -> None:
    data = multistream(SITEINFO, [*PAGES[:20], page(number=77, ns=1)])
    asked: list[str] = []

    def wanted(doc_id: str) -> bool:
        asked.append(doc_id)
        return doc_id.endswith("7")

    found = list(read(io.BytesIO(data), "a", wanted=wanted, part=Part(0, len(data))))  # type: ignore[call-arg]
    assert [item.doc_id for item in found] == ["testwiki/7", "testwiki/17", "testwiki/77"]
    assert len(asked) == 20  # a page that is skipped anyway costs nothing


def damage(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


@pytest.mark.parametrize("spoil", [lambda data: damage(data, len(data) * 2 // 3), lambda data: data[:-30]])
def test_damage_is_found_by_some_part_whatever_their_size(spoil: Callable[[bytes], bytes]) -> None:
    data = spoil(multistream(SITEINFO, PAGES))
    for size in (100, 700, 1000, 1 << 20):
        with pytest.raises(SourceError, match=r"^a\.bz2: (damaged before|cut short at) byte .* begins at byte"):
            together(data, size)


def test_a_dump_that_ends_within_a_page_is_damaged_whatever_the_size_of_parts() -> None:
    xml = dump(SITEINFO, *PAGES[:30])
    data = recompressed(xml[: xml.rindex(b"</revision>")], 3000)
    for size in (200, 1000, 1 << 20):
        with pytest.raises(SourceError, match=r"^a\.bz2, bytes .*: damaged XML"):
            together(data, size)


@pytest.mark.parametrize("pages", [PAGES, PAGES[:3]], ids=["more than is looked at first", "less"])
def test_document_types_are_refused_in_every_part(pages: list[str]) -> None:
    data = recompressed(dump(*pages, prolog=BOMB), 3000)
    for begin in range(0, data.rindex(b"BZh"), 1000):
        with pytest.raises(SourceError, match="document type"):
            list(read(io.BytesIO(data), "a.bz2", part=Part(begin, len(data))))


def test_bytes_that_are_no_utf8_are_replaced_and_counted_once() -> None:
    raw = dump(SITEINFO, page("Caf\u00e9 is @ here @@ and there.", number=1), *PAGES[2:30]).replace(b"@", b"\xe9")
    for data in (bz2.compress(raw), recompressed(raw, 211)):
        for size in (300, 1 << 20):
            first, *others = together(data, size)
            assert isinstance(first, Document)
            assert first.text == "Café is \ufffd here \ufffd and there."
            assert first.replaced == 2
            assert all(isinstance(item, Document) and not item.replaced for item in others)


def test_a_letter_across_two_chunks_is_whole() -> None:
    head = dump(SITEINFO, "<page>")[: -len("</mediawiki>")]
    for shift in range(4):
        text = "x" * (wikipedia._CHUNK - len(head) - 60 + shift) + "狗" * 100
        (found,) = read(io.BytesIO(dump(SITEINFO, page(text))), "a.xml")
        assert isinstance(found, Document)
        assert (found.text, found.replaced) == (text, 0)


@pytest.mark.parametrize("size", [97, 1000, 30_000, 1 << 20])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-16-be"])
def test_a_plain_dump(encoding: str, size: int) -> None:
    data = bz2.decompress(multistream(SITEINFO, PAGES, encoding))
    found = parts(data, size)
    assert [item for part in found for item in part] == whole(bz2.compress(data))
    assert size >= 30_000 or sum(map(bool, found)) > 20


def test_a_plain_dump_that_is_cut_within_every_letter_of_a_mark() -> None:
    data = dump(SITEINFO, *PAGES[1:5])
    at = data.index(b"<page>", data.index(b"<page>") + 1)
    for cut in range(at - 1, at + 8):
        cuts = [Part(0, cut), Part(cut, len(data))]
        found = [list(read(io.BytesIO(data), "a.xml", part=part)) for part in cuts]
        assert list(map(len, found)) == ([1, 3] if cut <= at else [2, 2])
        assert [item for part in found for item in part] == whole(bz2.compress(data))


def test_a_plain_dump_that_ends_within_a_page_is_damaged_whatever_the_size_of_parts() -> None:
    data = dump(SITEINFO, *PAGES[:30])
    for size in (200, 1000, 1 << 20):
        with pytest.raises(SourceError, match=r"^a\.bz2, bytes .*: damaged XML"):
            together(data[: data.rindex(b"</revision>")], size)


@pytest.mark.parametrize("pack", [bytes, lambda data: recompressed(data, 500)], ids=["plain", "streams"])
@pytest.mark.parametrize("size", [200, 1000, 1 << 20])
def test_a_dump_without_pages_is_told_by_one_part_if_it_is_damaged(pack: Callable[[bytes], bytes], size: int) -> None:
    data = dump(SITEINFO, "<!-- " + "x" * 2000 + " -->")
    assert together(pack(data), size) == []
    spoilt, told = pack(data.removesuffix(b"</mediawiki>")), []
    for begin in range(0, len(spoilt), size):
        try:
            assert list(read(io.BytesIO(spoilt), "a.bz2", part=Part(begin, begin + size))) == []
        except SourceError as error:
            told.append(str(error))
    assert [message.startswith("a.bz2: damaged XML") for message in told] == [True]


def test_damage_near_the_beginning_costs_what_is_damaged_and_nothing_else() -> None:
    """It is told by the part that it is in, and by the one before, whose last page might go on in it."""
    data = multistream(SITEINFO, PAGES)
    streams = [match.start() for match in re.finditer(b"BZh91AY&SY", data)]
    spoilt = bytearray(data)
    spoilt[streams[2] + 60] ^= 255  # behind that of the first pages
    found, damaged = [], []
    for number, (begin, end) in enumerate(pairwise([*streams, len(data)])):
        try:
            for item in read(io.BytesIO(spoilt), "a.bz2", part=Part(begin, end)):
                found.append(item)
        except SourceError:
            damaged.append(number)
    assert damaged == [1, 2]
    assert {item.doc_id for item in whole(data)} - {item.doc_id for item in found} == {
        f"testwiki/{number}" for number in range(10, 20)
    }


def test_a_part_without_a_page_is_passed_over_no_longer_than_a_page_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wikipedia, "_MAX_BYTES", 1 << 20)
    begin = bz2.compress(dump(SITEINFO, PAGES[1]).removesuffix(b"</mediawiki>"))
    data = begin + bz2.compress(b"x" * (1 << 24)) + bz2.compress(b"</mediawiki>")
    with pytest.raises(SourceError, match=r"^a\.bz2, bytes .*: no page begins within 1,\d{3},\d{3} bytes"):
        list(read(io.BytesIO(data), "a.bz2", part=Part(len(begin), len(data))))


@pytest.mark.parametrize("pack", [bytes, lambda data: recompressed(data, 500_000)], ids=["plain", "streams"])
def test_a_dump_whose_first_page_is_too_far_is_refused_as_by_who_reads_all(
    pack: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wikipedia, "_MAX_BYTES", 1 << 20)
    data = dump(SITEINFO, "<siteinfo>" + "x" * (2 << 20) + "</siteinfo>", *PAGES)
    with pytest.raises(SourceError, match="not a usable dump"):
        whole(bz2.compress(data))
    packed = pack(data)
    for part in (Part(0, 100), Part(1, len(packed))):
        with pytest.raises(SourceError, match=r"^a\.bz2: no page begins within 1,\d{3},\d{3} bytes: not a usable dump"):
            list(read(io.BytesIO(packed), "a.bz2", part=part))


@pytest.mark.parametrize("size", [1000, 300_000, 1 << 23])
def test_a_real_plain_dump(real_data: Path, size: int) -> None:
    packed = (real_data / "wikipedia" / "enwiki-first75-pages-articles-multistream.xml.bz2").read_bytes()
    data = bz2.decompress(packed)[:3_000_000] + b"</mediawiki>"
    data = data[: data.rindex(b"</page>")] + b"</page></mediawiki>"
    assert together(data, size) == whole(bz2.compress(data))


@pytest.mark.parametrize("size", [1000, 30_000, 100_000, 1 << 20])
def test_a_real_dump(real_data: Path, size: int) -> None:
    data = (real_data / "wikipedia" / "enwiki-first75-pages-articles-multistream.xml.bz2").read_bytes()
    assert together(data, size) == whole(data)
    assert sum(isinstance(item, Skipped) for item in whole(data)) == 63


def test_a_real_single_stream_dump_belongs_to_the_first_part(real_data: Path) -> None:
    data = (real_data / "wikipedia" / "tiny_dump.xml.bz2").read_bytes()
    first, *others = parts(data, 50_000)
    assert first == whole(data)
    assert not any(others)


def test_a_damaged_block_is_told_as_such_although_its_xml_fails_first(real_data: Path, tmp_path: Path) -> None:
    [dump] = (real_data / "wikipedia").glob("enwiki-latest-*.bz2")
    data = bytearray(dump.read_bytes())
    data[800_000] ^= 0xFF
    damaged = tmp_path / "damaged.bz2"
    damaged.write_bytes(data)
    told = "the bzip2 stream that begins at byte 0"
    with pytest.raises(SourceError, match=told), files.open_input(str(damaged)) as stream:
        list(read(stream, "damaged.bz2"))
    with pytest.raises(SourceError, match=told), damaged.open("rb") as raw:
        list(read(raw, "damaged.bz2", part=Part(0, len(data))))
