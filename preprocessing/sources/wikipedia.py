"""MediaWiki XML dumps (export schemas 0.10, 0.11 and their like), as pages-articles files hold them.

A page becomes a document if it is an article: namespace 0, not a redirect, wikitext, with text in it. Everything else
is counted by its reason. Disambiguation pages are skipped too: without their list nothing is left of them but "X may
refer to:", which is neither a passage nor a pair of sentences.

A document's id is DBNAME/PAGEID. A file without siteinfo (a cut or filtered dump) doesn't say which wiki it is from, so
a digest of its beginning stands for DBNAME: the same wherever the file lies and however it is compressed, and
different for any other file, so that pages of two wikis never pass for revisions of one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from lxml import etree

from preprocessing.sources import Document, Skipped, SourceError
from preprocessing.sources.wikitext import HIDDEN_NAMESPACES, extract_passages

SOURCE = "wikipedia"
MAX_WIKITEXT = 1 << 25  # characters; MediaWiki itself stores no more than 2 MiB a page unless it is told to

# What may come between two ends of a page, revision or siteinfo: more is no dump, and would not fit into memory.
_MAX_BYTES = 1 << 28
_MAX_TAGS = 1 << 20

_CHUNK = 1 << 16
_MEDIA, _FILE, _CATEGORY = "-2", "6", "14"  # keys of the namespaces whose links show no text


class _Wiki(NamedTuple):
    name: str
    hidden_namespaces: frozenset[str]


def read(file: BinaryIO, name: str) -> Iterator[Document | Skipped]:
    """The pages of a dump in order. Memory is bounded by a page; of a page's revisions the last one counts.

    Args:
        file: The decompressed XML, UTF-8 or UTF-16.
        name: What error messages call it.

    Raises:
        SourceError: It is no MediaWiki dump, is damaged or truncated, or has a document type declaration.
            Pages before the damage have been yielded by then.
    """
    head = _read_fully(file, _CHUNK)
    _check_beginning(head, name)
    wiki = _Wiki(f"unnamed-{hashlib.sha256(head).hexdigest()[:16]}", HIDDEN_NAMESPACES)
    for element in _elements(file, head, name):
        if etree.QName(element).localname == "siteinfo":
            wiki = _wiki(element, wiki)
        else:
            yield _page(element, wiki, name)


# --- XML ---

_BYTE_ORDER_MARKS = {b"\xef\xbb\xbf": "utf-8", b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
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
    while size and (chunk := file.read(size)):
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)


def _decoded(head: bytes) -> str:
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if head.startswith(mark):
            return head[len(mark) :].decode(encoding, "replace")
    wide = {b"<\0": "utf-16-le", b"\0<": "utf-16-be"}
    return head.decode(wide.get(head[:2], "utf-8"), "replace")


def _elements(file: BinaryIO, head: bytes, name: str) -> Iterator[etree._Element]:
    """Siteinfo and pages as they end; each is emptied when the next one is asked for."""
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
    chunk = head
    try:
        while chunk:
            parser.feed(chunk)
            unfinished += len(chunk)
            tags += chunk.count(b"<")
            for _, element in parser.read_events():
                unfinished = tags = 0
                yield from _kept(element)
            if unfinished > _MAX_BYTES or tags > _MAX_TAGS:
                raise SourceError(f"{name}: no page ends within {unfinished} bytes and {tags} tags: not a usable dump")
            chunk = file.read(_CHUNK)
        parser.close()
    except etree.XMLSyntaxError as error:
        line, column = error.position
        raise SourceError(
            f"{name}: damaged XML at line {line}, column {column}: {error.msg}. Truncated? Download it again."
        ) from error


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

_DISAMBIGUATION = re.compile(
    r"__DISAMBIG__|\{\{\s*(?:disambig(?:uation)?(?: page)?|dab|disamb|hndis|human name disambiguation|geodis|"
    r"(?:place|airport|school|hospital|mathematical|species|letter.number combination) disambiguation|"
    r"begriffsklärung|homonymie|desambiguaci[oó]n|desambiguação|desambig|disambigua|dp|doorverwijspagina|förgrening|"
    r"ujednoznacznienie|неоднозначность|многозначность|пояснение|багатозначність|aimai|曖昧さ回避|消歧义|消歧義|동음이의)"
    r"\s*[|}]",
    re.IGNORECASE,
)


def _wiki(siteinfo: etree._Element, unnamed: _Wiki) -> _Wiki:
    namespaces = siteinfo.iterfind("{*}namespaces/{*}namespace")
    local = {each.text.lower() for each in namespaces if each.get("key") in (_MEDIA, _FILE, _CATEGORY) and each.text}
    return _Wiki(siteinfo.findtext("{*}dbname") or unnamed.name, HIDDEN_NAMESPACES | local)


def _page(page: etree._Element, wiki: _Wiki, name: str) -> Document | Skipped:
    number = page.findtext("{*}id") or ""
    if not number.isdecimal():
        raise SourceError(f"{name}: a page without an id ({page.findtext('{*}title')!r}): not a MediaWiki XML dump")
    doc_id = f"{wiki.name}/{number}"
    wikitext = page.findtext("{*}revision/{*}text") or ""
    reason = _not_an_article(page, wikitext)
    if reason:
        return Skipped(doc_id, SOURCE, reason)
    text = "\n".join(extract_passages(wikitext, wiki.hidden_namespaces))
    if not text:
        return Skipped(doc_id, SOURCE, "empty")
    revision = int(page.findtext("{*}revision/{*}id") or 0)
    return Document(doc_id, SOURCE, page.findtext("{*}title"), text, revision)


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
