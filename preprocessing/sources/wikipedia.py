"""MediaWiki XML dumps (export schemas 0.10, 0.11 and their like), as pages-articles files hold them.

A page becomes a document if it is an article: namespace 0, not a redirect, wikitext, with text in it. Everything else
is counted by its reason. Disambiguation pages are skipped too: without their list nothing is left of them but "X may
refer to:", which is neither a passage nor a pair of sentences.

A document's id is DBNAME/PAGEID. A file without siteinfo (a cut or filtered dump) doesn't say which wiki it is from, so
a digest of its beginning stands for DBNAME: the same wherever the file lies and however it is compressed, and
different for any other file, so that pages of two wikis never pass for revisions of one.

A bzip2 dump of many streams is read in parts, each by whoever has time for it. A page belongs to the part in which the
stream begins that holds the beginning of its <page>: this holds for Wikimedia's multistream dumps, whose streams hold
whole pages, as for those of pbzip2, whose streams end anywhere. Nobody needs the dump's index for that. Of a plain dump
a page belongs to the part in which it begins.
"""

from __future__ import annotations

import codecs
import hashlib
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import BinaryIO, NamedTuple

from lxml import etree

from preprocessing.bzip2 import decompress, first_start, is_bzip2
from preprocessing.sources import (
    DEFAULTS,
    MAX_DOCUMENT,
    Document,
    Item,
    Part,
    ReadOptions,
    Skipped,
    SourceError,
    Wanted,
    every,
)
from preprocessing.sources.wikitext import HIDDEN_NAMESPACES, extract_passages

SOURCE = "wikipedia"
MAX_WIKITEXT = MAX_DOCUMENT
INDEX = re.compile(r"-multistream-index\d*\.txt")  # in the name of the list of pages that comes with a dump

# What may come between two ends of a page, revision or siteinfo: more is no dump, and would not fit into memory.
_MAX_BYTES = 1 << 28
_MAX_TAGS = 1 << 20  # and attributes

_CHUNK = 1 << 16
_LARGEST_BLOCK = 48 << 20  # bytes that may come out of one block of bzip2, by whose end it is known to be damaged
_MAX_NAME = 255  # letters of a wiki's: it stands in every document's id
_MAX_REVISION = 2**63 - 1  # as the shards' column holds
_MEDIA, _FILE, _CATEGORY = "-2", "6", "14"  # keys of the namespaces whose links show no text


class _Wiki(NamedTuple):
    name: str
    hidden_namespaces: frozenset[str]


def read(
    file: BinaryIO, name: str, _options: ReadOptions = DEFAULTS, wanted: Wanted = every, part: Part | None = None
) -> Iterator[Item]:
    """The pages of a dump in order. Memory is bounded by a page; of a page's revisions the last one counts.

    Args:
        file: The decompressed XML, UTF-8 or UTF-16; of a part, the dump as it lies, seekable.
        name: What error messages call it.
        wanted: Which pages, by their ids.
        part: Of a bzip2 dump or of a plain one: the pages of all parts are those of the dump. None: all of it.

    Raises:
        SourceError: It is no MediaWiki dump, is damaged or truncated, or has a document type declaration.
            Pages before the damage have been yielded by then. Of every part also a dump whose first page is too far.
    """
    yield from _read_whole(file, name, wanted) if part is None else _read_part(file, name, part, wanted)


def _read_whole(file: BinaryIO, name: str, wanted: Wanted) -> Iterator[Item]:
    head = _read_fully(file, _CHUNK)
    _check_beginning(head, name)
    # Not `read`: where a compressed file is damaged, it raises before it hands out what it has.
    read_some = getattr(file, "read1", file.read)
    chunks = chain([head], iter(lambda: read_some(_CHUNK), b""))
    yield from _pages(chunks, head, name, wanted)


def _read_part(file: BinaryIO, name: str, part: Part, wanted: Wanted) -> Iterator[Item]:
    where = f"{name}, bytes {part.begin:,} to {part.end:,}"
    if is_bzip2(file):
        start = first_start(file, part.begin, part.end)
        if start is None:
            return
        whole, pieces = decompress(file, 0, name), decompress(file, start, name)
    else:
        whole, pieces = _as_it_lies(file, 0, 0), _as_it_lies(file, part.begin, part.end)
    preamble, head, has_pages = _beginning(whole, name)
    if not has_pages:
        if part.begin == 0:  # nothing is in it, or it is cut short, which one part tells
            yield from _pages([preamble], head, name, wanted)
        return
    pages = _part_of_pages(pieces, part.end, _page_mark(head), where)
    first = next(pages, None)
    if first is not None:
        yield from _pages(chain([preamble, first], pages), head, where, wanted)


def _pages(chunks: Iterable[bytes], head: bytes, name: str, wanted: Wanted) -> Iterator[Item]:
    """The pages of a dump's XML; `head` is the beginning of the whole dump."""
    wiki = _Wiki(f"unnamed-{hashlib.sha256(head).hexdigest()[:16]}", HIDDEN_NAMESPACES)
    for element in _elements(chunks if _encoding(head) != "utf-8" else _repaired(_cut(chunks)), name):
        if etree.QName(element).localname == "siteinfo":
            wiki = _wiki(element, wiki)
        elif page := _page(element, wiki, name, wanted):
            yield page


# --- Parts of a dump ---


class _PageMark(NamedTuple):
    """How a page begins in a dump, in its encoding, and how the dump ends."""

    pattern: re.Pattern[bytes]
    size: int
    end_of_dump: bytes


def _page_mark(head: bytes) -> _PageMark:
    encoding = _encoding(head)
    root = _BEGINNING.match(_decoded(head))
    prefix = root["root"][1 : -len("mediawiki ")] if root and root["root"] else ""
    opening = f"<{prefix}page".encode(encoding)
    closings = b"|".join(re.escape(mark.encode(encoding)) for mark in "> \t\r\n")
    return _PageMark(
        re.compile(re.escape(opening) + b"(?:" + closings + b")"),
        len(opening) + 2,
        f"</{prefix}mediawiki>".encode(encoding),
    )


def _as_it_lies(file: BinaryIO, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Pieces of a plain dump from an offset to its end, each with its own offset, as `_part_of_pages` takes streams.

    Of what it yields one piece begins where the part ends: there another one's pages begin.
    """
    file.seek(begin)
    at = begin
    while piece := file.read(min(_CHUNK, end - at) if at < end else _CHUNK):
        yield at, piece
        at += len(piece)


class _Beginning(NamedTuple):
    """What is before a dump's first page, with the wiki's description; all of a dump without pages."""

    preamble: bytes
    head: bytes  # so much of it that it tells wikis apart
    has_pages: bool


def _beginning(pieces: Iterable[tuple[int, bytes]], name: str) -> _Beginning:
    """The beginning of a dump.

    Raises:
        SourceError: it is no dump, or has no page within as many bytes as may be held.
    """
    text = bytearray()
    mark: _PageMark | None = None
    damage: SourceError | None = None
    searched = 0
    try:
        for _, piece in pieces:
            text += piece
            if len(text) < _CHUNK:
                continue
            if mark is None:
                _check_beginning(bytes(text[:_CHUNK]), name)
                mark = _page_mark(bytes(text[:_CHUNK]))
            if mark.pattern.search(text, searched):
                break
            searched = max(0, len(text) - mark.size)  # its last bytes may be the first ones of a mark
            _check_near(len(text), name)
    except SourceError as error:
        damage = error
    head = bytes(text[:_CHUNK])
    found = _page_mark(head).pattern.search(text)
    if damage and not found:  # behind the first page it is that of the part in which it is, and no other's
        raise damage
    _check_beginning(head, name)
    return _Beginning(bytes(text[: found.start()] if found else text), head, has_pages=found is not None)


def _check_near(size: int, where: str) -> None:
    """Refuse a dump, or a part of one, in which no page begins in more bytes than may be between two."""
    if size > _MAX_BYTES:
        raise SourceError(f"{where}: no page begins within {size:,} bytes: not a usable dump")


def _part_of_pages(pieces: Iterable[tuple[int, bytes]], end: int, mark: _PageMark, where: str) -> Iterator[bytes]:
    """The XML of the pages that begin in streams that begin before an offset, and then the dump's end.

    Args:
        pieces: where a piece's stream begins, and the piece. Of a plain dump each is a stream by itself.
        end: the offset.
        mark: how a page begins.
        where: what error messages call the part.

    Raises:
        SourceError: no page begins within as many bytes as one may have; or a stream is damaged.
    """
    passed = 0
    held = b""  # its last bytes may be the first ones of a mark
    beyond: int | None = None  # where in it the first stream begins that is not ours
    begun = False
    try:
        for stream, piece in pieces:
            if beyond is None and stream >= end:
                beyond = len(held)
            held += piece
            if not begun and (first := mark.pattern.search(held)):
                if beyond is not None and first.start() >= beyond:
                    return
                begun = True
                beyond = beyond and beyond - first.start()
                held = held[first.start() :]
            if begun and beyond is not None and (last := mark.pattern.search(held, beyond)):
                yield held[: last.start()] + mark.end_of_dump
                return
            done = max(0, len(held) - mark.size)
            if begun and done:
                yield held[:done]
            else:
                passed += done
            held = held[done:]
            _check_near(passed, where)
            if beyond is not None:
                beyond = max(0, beyond - done)
                if not begun and not beyond:
                    return
    except SourceError:
        if begun:
            yield held
        raise
    if begun:
        yield held


# --- XML ---

_BYTE_ORDER_MARKS = {b"\xef\xbb\xbf": "utf-8", b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
_WIDE = {b"<\0": "utf-16-le", b"\0<": "utf-16-be"}  # without a mark
_INVALID = "\ufdd0"  # stands for bytes that are no UTF-8: XML allows it, and no text has it
_SURROGATES = re.compile("[\udc80-\udcff]+")
_ENCODINGS = {"utf-8", "utf8", "utf-16", "utf-16le", "utf-16be", "us-ascii", "ascii"}
_BEGINNING = re.compile(
    r"\s*+(?:<\?xml\b(?P<declaration>[^<>]*+)>)?(?>\s++|<!--.*?-->|<\?.*?\?>)*+(?P<root><(?:\w+:)?mediawiki[\s>])?",
    re.DOTALL,
)
_ENCODING = re.compile(r"encoding\s*=\s*[\"']([^\"']*)")


def _check_beginning(head: bytes, name: str) -> None:
    """Refuses what is no dump before the parser sees it, above all document types, which dumps never have."""
    match = _BEGINNING.match(_decoded(head))
    assert match is not None  # every part of it is optional
    if not match["root"]:
        declares = match.string.startswith("<!DOCTYPE", match.end())
        found = "a document type declaration, which is refused" if declares else "no <mediawiki> element"
        raise SourceError(f"{name}: not a MediaWiki XML dump: it begins with {found}")
    encoding = _ENCODING.search(match["declaration"] or "")
    if encoding and encoding[1].lower() not in _ENCODINGS:
        raise SourceError(f"{name}: encoding {encoding[1]!r} is not supported, convert the dump to UTF-8")


def _read_fully(file: BinaryIO, size: int) -> bytes:
    """The first bytes of a stream that may hand out less than it is asked for: the digest must not depend on that."""
    chunks = []
    while size > 0 and (chunk := file.read(size)):
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)


def _decoded(head: bytes) -> str:
    return head.decode(_encoding(head), "replace").removeprefix("\ufeff")


def _encoding(head: bytes) -> str:
    marked = next((encoding for mark, encoding in _BYTE_ORDER_MARKS.items() if head.startswith(mark)), None)
    return marked or _WIDE.get(head[:2], "utf-8")


def _repaired(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """UTF-8 with _INVALID in place of whatever is none, so that a damaged letter does not cost the dump."""
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    for chunk in chain(chunks, [b""]):
        text = decoder.decode(chunk, final=not chunk)
        try:
            yield text.encode()
        except UnicodeEncodeError:
            yield _SURROGATES.sub(_INVALID, text).encode()


_ATTRIBUTE = re.compile(rb"=[\s\0]*[\"']")  # of some the text has a few more


def _elements(chunks: Iterable[bytes], name: str) -> Iterator[etree._Element]:
    """Siteinfo and pages as they end; each is emptied when the next one is asked for."""
    chunks = _cut(chunks)
    parser = etree.XMLPullParser(
        events=("end",),
        tag=("{*}siteinfo", "{*}revision", "{*}page"),
        # There are none, as there is no document type. Not False: lxml 6.1.3 then passes over an undefined entity and
        # all that follows it in the chunk, and takes the next chunk for a new document.
        resolve_entities="internal",
        no_network=True,
        load_dtd=False,
        huge_tree=True,  # text of over 10 MB; our own limits are below
    )
    unfinished = tags = 0
    try:
        for chunk in chunks:
            parser.feed(chunk)
            unfinished += len(chunk)
            tags += chunk.count(b"<") + len(_ATTRIBUTE.findall(chunk))
            for _, element in parser.read_events():
                unfinished = tags = 0
                yield from _kept(element)
            if unfinished > _MAX_BYTES or tags > _MAX_TAGS:
                raise SourceError(
                    f"{name}: no page ends within {unfinished} bytes, {tags} tags and attributes: not a usable dump"
                )
        parser.close()
    except etree.XMLSyntaxError as error:
        _check_further(chunks)
        line, column = error.position
        raise SourceError(
            f"{name}: damaged XML at line {line}, column {column}: {error.msg}. Truncated? Download it again."
        ) from error


def _cut(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes, no more at a time than may be parsed before they are counted."""
    for chunk in chunks:
        yield from (chunk[begin : begin + _CHUNK] for begin in range(0, len(chunk), _CHUNK))


def _check_further(chunks: Iterable[bytes]) -> None:
    """Read on to where a damaged block of a compressed file ends: its own error tells more than that of the XML in it.

    Raises:
        SourceError: there is one.
    """
    left = _LARGEST_BLOCK
    for chunk in chunks:
        left -= len(chunk)
        if left < 0:
            break


def _kept(element: etree._Element) -> Iterator[etree._Element]:
    """Frees what is over: of a page earlier revisions, of the dump earlier pages."""
    if etree.QName(element).localname != "revision":
        yield element
        element.clear()
        before = element.itersiblings(preceding=True)
    else:
        before = element.itersiblings("{*}revision", preceding=True)
    for sibling in list(before):
        sibling.getparent().remove(sibling)


# --- Pages ---

# Templates of disambiguation pages, which may have arguments.
_ENGLISH_KINDS = (
    "airport|biology|call sign|caselaw|chinese title|genus|hospital|human name|letter.number combination|mathematical|"
    "military unit|music|number|opus number|phonetics|place|place name|road|school|species|species latin name|"
    "species latin name abbreviation|station|synagogue|taxonomic authority|taxonomy"
)
_WITH_ARGUMENTS = (
    rf"disambig(?:uation)?(?: page| cleanup)?|dab|disamb|hndis|geodis|(?:{_ENGLISH_KINDS}) disambiguation(?: cleanup)?|"
    "begriffsklärung|homonymie|desambiguaci[oó]n|desambiguação|desambig|disambigua|doorverwijspagina|förgrening|"
    "ujednoznacznienie|неоднозначность|многозначность|багатозначність|aimai|曖昧さ回避|消歧义|消歧義|동음이의"
)
# Those that other wikis use for other things, or with arguments above articles: {{dp|Pluto}} is a link to a planet.
_ALONE = (
    "dp|пояснение|anlam ayrımı|apartigilo|argipen|desambiguació|dezambiguizare|disambiguasi|egyért|flertydig|"
    "fleirtyding|homónimos|nuorodinis|nyahkekaburan|peker|razdvojba|razločitev|rozcestník|rozlišovacia stránka|"
    "täpsustuslehekülg|täsmennyssivu|trang định hướng|αποσαφήνιση|вишезначна одредница|פירושונים|ابهام‌?زدایی|توضيح"
)
_DISAMBIGUATION = re.compile(
    rf"__DISAMBIG__|\{{\{{\s*(?:(?:{_WITH_ARGUMENTS})\s*[|}}]|(?:{_ALONE})\s*\}}\}})", re.IGNORECASE
)


def _wiki(siteinfo: etree._Element, unnamed: _Wiki) -> _Wiki:
    namespaces = siteinfo.iterfind("{*}namespaces/{*}namespace")
    local = {each.text.lower() for each in namespaces if each.get("key") in (_MEDIA, _FILE, _CATEGORY) and each.text}
    name = (siteinfo.findtext("{*}dbname") or "").strip()
    named = name.isprintable() and 0 < len(name) <= _MAX_NAME
    return _Wiki(name if named else unnamed.name, HIDDEN_NAMESPACES | local)


def _page(page: etree._Element, wiki: _Wiki, name: str, wanted: Wanted) -> Document | Skipped | None:
    number = page.findtext("{*}id") or ""
    if not number.isdecimal():
        raise SourceError(f"{name}: a page without an id ({page.findtext('{*}title')!r}): not a MediaWiki XML dump")
    doc_id = f"{wiki.name}/{number}"
    wikitext = page.findtext("{*}revision/{*}text") or ""
    reason = _not_an_article(page, wikitext)
    if reason:
        return Skipped(doc_id, SOURCE, reason)
    if not wanted(doc_id):
        return None
    replaced = wikitext.count(_INVALID)
    text = "\n".join(extract_passages(wikitext.replace(_INVALID, "\ufffd"), wiki.hidden_namespaces))
    if not text:
        return Skipped(doc_id, SOURCE, "empty")
    revision = (page.findtext("{*}revision/{*}id") or "0").strip()
    if not revision.isdecimal() or len(revision) > len(str(_MAX_REVISION)) or int(revision) > _MAX_REVISION:
        raise SourceError(f"{name}: the page {number} has a revision {revision[:80]!r}: not a MediaWiki XML dump")
    title = (page.findtext("{*}title") or "").replace(_INVALID, "\ufffd")
    return Document(doc_id, SOURCE, title or None, text, int(revision), replaced)


def _not_an_article(page: etree._Element, wikitext: str) -> str | None:
    """The reason for which a page is passed over; None for an article."""
    if page.find("{*}redirect") is not None:
        return "redirect"
    if (page.findtext("{*}ns") or "0") != "0":
        return "namespace"
    if (page.findtext("{*}revision/{*}model") or "wikitext") != "wikitext":
        return "model"
    if len(wikitext) > MAX_WIKITEXT:
        return "too_large"
    return "disambiguation" if _DISAMBIGUATION.search(wikitext) else None
