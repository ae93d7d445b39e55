from __future__ import annotations

import bz2
import io
import itertools
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import pytest

from preprocessing.sources import Document, Skipped, SourceError
from preprocessing.sources import wikipedia as reader
from preprocessing.sources.wikipedia import read
from tests.conftest import LAB, TEXTS

DUMPS = LAB / "data" / "wikipedia"
FOLDERS = [DUMPS, TEXTS]  # three of the dumps are in both
ENGLISH = "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"

SITEINFO = """<siteinfo><sitename>T</sitename><dbname>testwiki</dbname><namespaces>
<namespace key="-2">Miðill</namespace><namespace key="0"/><namespace key="6">Ficheru</namespace>
<namespace key="14">Flokkur</namespace>
</namespaces></siteinfo>"""


def page(text: str = "A dog.", *, number: int = 7, ns: int = 0, extra: str = "", revision: str = "") -> str:
    return (
        f"<page><title>Dog</title><ns>{ns}</ns><id>{number}</id>{extra}"
        f"<revision><id>70</id>{revision}<text>{text}</text></revision></page>"
    )


def dump(*parts: str, schema: str = "0.11", encoding: str = "utf-8", prolog: str = "") -> bytes:
    namespace = f"http://www.mediawiki.org/xml/export-{schema}/"
    return f'{prolog}<mediawiki xmlns="{namespace}" xml:lang="en">{"".join(parts)}</mediawiki>'.encode(encoding)


def pages(xml: bytes) -> list[Document | Skipped]:
    return list(read(io.BytesIO(xml), "a.xml"))


# --- What a page becomes ---


def test_article() -> None:
    hidden = "[[Ficheru:D|A dog]][[Miðill:D]][[Flokkur:D]][[Category:D]]"
    text = f"{hidden}A '''dog''' &lt;ref&gt;x&lt;/ref&gt; barks.\n\n* no\n\nR&amp;amp;D."
    assert pages(dump(SITEINFO, page(text))) == [
        Document("testwiki/7", "wikipedia", "Dog", "A dog barks.\nR&D.", revision=70)
    ]


@pytest.mark.parametrize(
    ("xml", "reason"),
    [
        (page(ns=1), "namespace"),
        (page(extra='<redirect title="Cat"/>'), "redirect"),
        (page(extra='<redirect title="Cat"/>', ns=1), "redirect"),
        (page(revision="<model>json</model>"), "model"),
        (page("{{Disambiguation|geo}}\nDog may refer to:\n* x"), "disambiguation"),
        (page("{{Begriffsklärung}}"), "disambiguation"),
        (page("Dog may refer to:\n{{Place name disambiguation|x}}"), "disambiguation"),
        (page("{{dp}}"), "disambiguation"),
        (page("{{Rozcestník}}"), "disambiguation"),
        (page("* [[x]]\n{{y}}"), "empty"),
        (page(""), "empty"),
        (page("x" * 1001), "too_large"),
    ],
)
def test_skipped(xml: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_WIKITEXT", 1000)
    assert pages(dump(SITEINFO, xml)) == [Skipped("testwiki/7", "wikipedia", reason)]


@pytest.mark.parametrize("text", ["A dog.{{disambiguation needed}}", "Dogs on {{dp|Pluto}}.", "x" * 1000])
def test_not_skipped(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_WIKITEXT", 1000)
    assert isinstance(pages(dump(page(text)))[0], Document)


def test_a_namespace_may_be_without_a_name() -> None:
    assert isinstance(pages(dump(SITEINFO.replace("Ficheru", ""), page()))[0], Document)


def test_files_and_categories_are_known_without_siteinfo_too() -> None:
    (found,) = pages(dump(page("[[Category:Dogs]]A dog.")))
    assert isinstance(found, Document)
    assert found.text == "A dog."


def test_the_last_of_several_revisions_counts() -> None:
    earlier = "<revision><id>69</id><text>A cat.</text></revision>"
    found = pages(dump(SITEINFO, page(extra=earlier)))
    assert found == [Document("testwiki/7", "wikipedia", "Dog", "A dog.", 70)]


@pytest.mark.parametrize(
    ("written", "read"), [("<id>70</id>", 70), ("<id> 70\n</id>", 70), (f"<id>{2**63 - 1}</id>", 2**63 - 1), ("", 0)]
)
def test_the_number_of_a_revision(written: str, read: int) -> None:
    (found,) = pages(dump(SITEINFO, page().replace("<id>70</id>", written)))
    assert isinstance(found, Document)
    assert found.revision == read


@pytest.mark.parametrize(("title", "read"), [(b"Dog", "Dog"), (b"D\xe9g", "D\ufffdg"), (b"", None)])
def test_a_title_may_be_damaged_or_empty(title: bytes, read: str | None) -> None:
    (found,) = pages(dump(SITEINFO, page()).replace(b"<title>Dog<", b"<title>" + title + b"<"))
    assert isinstance(found, Document)
    assert found.title == read


def test_only_wanted_pages_are_read() -> None:
    asked: list[str] = []
    xml = dump(SITEINFO, page(number=7), page(number=8), page(ns=1, number=9))
    found = list(read(io.BytesIO(xml), "a.xml", wanted=lambda doc_id: asked.append(doc_id) or doc_id.endswith("/8")))
    assert [item.doc_id for item in found] == ["testwiki/8", "testwiki/9"], "the latter of which is skipped"
    assert asked == ["testwiki/7", "testwiki/8"]


def test_a_page_without_a_namespace_is_an_article() -> None:
    assert isinstance(pages(dump(SITEINFO, page().replace("<ns>0</ns>", "")))[0], Document)


def test_siteinfo_without_a_name_leaves_the_wiki_unnamed() -> None:
    (found,) = pages(dump(SITEINFO.replace("testwiki", ""), page()))
    assert found.doc_id.startswith("unnamed-")


def test_page_without_siteinfo_has_a_stable_id_of_its_own() -> None:
    first, again, other = (pages(xml)[0].doc_id for xml in (dump(page()), dump(page()), dump(page("A cat."))))
    assert first == again
    assert first.startswith("unnamed-")
    assert first.endswith("/7")
    assert first != other


@pytest.mark.parametrize("name", ["", " ", "test\nwiki", "w" * 256], ids=["none", "blank", "two lines", "long"])
def test_a_name_that_no_wiki_has_does_not_get_into_the_ids(name: str) -> None:
    (found,) = pages(dump(SITEINFO.replace("testwiki", name), page()))
    assert re.fullmatch(r"unnamed-[0-9a-f]{16}/7", found.doc_id)
    (found,) = pages(dump(SITEINFO.replace("testwiki", "\n  testwiki\n"), page()))
    assert found.doc_id == "testwiki/7"


class Trickle(io.BytesIO):
    """A stream that hands out little at a time."""

    def read(self, size: int | None = -1) -> bytes:
        return super().read(min(size or 0, 100))


def test_short_reads_change_nothing() -> None:
    xml = dump(*(page(number=number) for number in range(1000)))
    assert list(read(Trickle(xml), "a.xml")) == pages(xml)


@pytest.mark.parametrize("schema", ["0.3", "0.10", "0.11", "1.0"])
def test_any_schema_version(schema: str) -> None:
    assert len(pages(dump(SITEINFO, page(), schema=schema))) == 1


@pytest.mark.parametrize(
    ("encoding", "prolog"),
    [
        ("utf-8", ""),
        ("utf-8-sig", ""),
        ("utf-8", '<?xml version="1.0" encoding="utf-8"?>\n<?xml-stylesheet href="x"?>\n<!-- a dump -->\n'),
        ("utf-16", ""),
        ("utf-16", '<?xml version="1.0" encoding="UTF-16"?>'),
        ("utf-16-le", '\ufeff<?xml version="1.0"?>'),
        ("utf-16-be", "\ufeff"),
        ("utf-16-le", '<?xml version="1.0" encoding="UTF-16LE"?>'),
        ("utf-16-be", '<?xml version="1.0" encoding="UTF-16BE"?>'),
    ],
)
def test_encodings(encoding: str, prolog: str) -> None:
    found = pages(dump(SITEINFO, page("Ένα 狗."), encoding=encoding, prolog=prolog))
    assert found == [Document("testwiki/7", "wikipedia", "Dog", "Ένα 狗.", 70)]


def test_large_page() -> None:
    paragraph = "A [[dog]] barks. " * 100 + "\n\n"
    text = paragraph * (20_000_000 // len(paragraph))
    [found] = pages(dump(page(text)))
    assert isinstance(found, Document)
    assert found.text.count("\n") == text.count("\n\n") - 1


MEMORY = """
from preprocessing.sources.wikipedia import read
from tests.conftest import LAB, TEXTS

class Endless:
    left = 300
    page = (b"<page><title>x</title><ns>1</ns><id>1</id>"
            + (b"<revision><id>1</id><text>" + b"x" * 250_000 + b"</text></revision>") * 4 + b"</page>")
    def read(self, size):
        self.left -= 1
        if self.left == 299:
            return b"<mediawiki>".ljust(size)
        return self.page if self.left > 0 else b"</mediawiki>" if self.left == 0 else b""

def peak():  # not ru_maxrss, which a child inherits
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

before = peak()
assert sum(1 for _ in read(Endless(), "x")) == 298
print((peak() - before) // 1024)
"""


def test_memory_is_bounded_by_a_page() -> None:
    """Of a 300 MB dump with pages of 1 MB, no more than a few are held."""
    run = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 40


# --- What is refused ---

BOMB = '<!DOCTYPE mediawiki [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>'
FILE = '<!DOCTYPE mediawiki [<!ENTITY a SYSTEM "file:///etc/hostname">]>'


@pytest.mark.parametrize(
    ("xml", "message"),
    [
        (dump(page("&b;"), prolog=BOMB), "document type"),
        (dump(page("&a;"), prolog=FILE), "document type"),
        (dump(page(), prolog='<!DOCTYPE mediawiki SYSTEM "http://127.0.0.1:1/x.dtd">'), "document type"),
        (dump(page(), prolog='<?xml version="1.0"?><!-- x --> <!DOCTYPE mediawiki>'), "document type"),
        (dump(page("&b;"), prolog=BOMB, encoding="utf-16"), "document type"),
        (dump(page(), prolog=f"<!--{'x' * 100_000}-->{BOMB}"), "no <mediawiki> element"),
        (dump(page(), prolog='<?xml version="1.0" encoding="utf-7"?>'), "utf-7"),
        (dump(page("&a;")), "line 1"),
        (dump(page())[:-20], "line 1"),
        (dump(page("a</b>")), "line 1"),
        (dump(page("\x01")), "line 1"),
        (dump(page()) + b"<x/>", "line 1"),
        (dump(page()) + "狗".encode()[:1], "line 1"),
        (dump("<a>" * 5000 + "</a>" * 5000), "line 1"),
        (dump("<a/>" * 2_000_000), "no page ends"),
        (dump("<page><title>x</title></page>"), "without an id"),
        (dump(page().replace("<id>7<", "<id>7x<")), "without an id"),
        (dump(page().replace("<id>70<", "<id>12x<")), "the page 7 has a revision '12x'"),
        (dump(page().replace("<id>70<", f"<id>{2**63}<")), "the page 7 has a revision '9223372036854775808'"),
        (dump(page().replace("<id>70<", f"<id>{'9' * 5000}<")), "the page 7 has a revision '999"),
        (b"", "no <mediawiki> element"),
        (b"BZh91AY&SY", "no <mediawiki> element"),
        (b"<html><body>503 Service Unavailable</body></html>", "no <mediawiki> element"),
        ("<html/>".encode("utf-32"), "no <mediawiki> element"),
    ],
    ids=lambda value: value if isinstance(value, str) else "xml",  # some are megabytes
)
def test_refused(xml: bytes, message: str) -> None:
    with pytest.raises(SourceError, match=rf"^a\.xml: .*{message}"):
        pages(xml)


@pytest.mark.parametrize(("written", "encoding"), [('=""', "utf-8"), (" =\n''", "utf-16")])
def test_a_tag_that_does_not_end_is_refused(written: str, encoding: str) -> None:
    attributes = " ".join(f"a{i}{written}" for i in range(1 << 21))
    with pytest.raises(SourceError, match=r"^a\.xml: .*no page ends"):
        pages(dump(f"<page {attributes}>").decode().encode(encoding))


@pytest.mark.parametrize("before", range(0, 70_000, 10_000))
def test_undefined_entities_are_refused_wherever_a_chunk_ends(before: int) -> None:
    hidden = dump(page(number=8), prolog=BOMB).decode()
    xml = dump(page("x" * before + "&a;" + " " * (65_536 - before)), "<page>").removesuffix(b"</mediawiki>")
    with pytest.raises(SourceError, match="Entity 'a' not defined"):
        pages(xml + hidden.encode())


def test_pages_before_the_damage_are_read() -> None:
    found = read(io.BytesIO(dump(page(), *[page(number=8)] * 2000)[:-30]), "a.xml")
    assert next(found).doc_id.endswith("/7")
    with pytest.raises(SourceError, match="line 1, column"):
        list(found)


def test_unending_page_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_MAX_BYTES", 1 << 20)
    with pytest.raises(SourceError, match="no page ends within 1"):
        pages(dump(page("x" * (2 << 20))))


def test_what_is_asked_of_a_page_is_not_asked_of_a_dump(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_MAX_BYTES", 1 << 20)
    monkeypatch.setattr(reader, "_MAX_TAGS", 1 << 12)
    assert len(pages(dump(*[page("x" * 1000)] * 2000))) == 2000


# --- Real dumps ---


def real(name: str) -> Iterator[Document | Skipped]:
    path = next((folder / name for folder in FOLDERS if (folder / name).exists()), None)
    if path is None:
        pytest.skip(f"needs the real dump {name} in {DUMPS}")
    with bz2.open(path) as file:
        yield from read(file, name)


@pytest.mark.parametrize(
    ("name", "expected", "first"),
    [
        (ENGLISH, {"article": 97, "redirect": 100, "disambiguation": 8, "empty": 1}, "enwiki/12"),
        ("enwiki-table-markup.xml.bz2", {"article": 5}, "unnamed-667448e3a0e1a48e/217916"),
        ("bgwiki-latest-pages-articles-shortened.xml.bz2", {"article": 1, "namespace": 2}, "bgwiki/558"),
        ("tiny_dump.xml.bz2", {"article": 6, "redirect": 64}, "unnamed-242132368f96a955/12"),
        ("enwiki-first75-pages-articles-multistream.xml.bz2", {"article": 12, "redirect": 63}, "enwiki/12"),
    ],
)
def test_real_dump(name: str, expected: dict[str, int], first: str) -> None:
    found = list(real(name))
    articles = [each for each in found if isinstance(each, Document)]
    reasons = Counter(each.reason for each in found if isinstance(each, Skipped))
    assert reasons + Counter(article=len(articles)) == expected
    assert articles[0].doc_id == first
    assert len({each.doc_id for each in found}) == len(found)
    assert all(each.revision > 0 and each.title and each.text for each in articles)


def test_multistream_dump_equals_the_single_stream() -> None:
    single = list(itertools.islice(real(ENGLISH), 75))
    assert list(real("enwiki-first75-pages-articles-multistream.xml.bz2")) == single


def test_real_article_reads_well() -> None:
    anarchism = next(each for each in real(ENGLISH) if isinstance(each, Document))
    assert anarchism.title == "Anarchism"
    assert anarchism.text.startswith("Anarchism is a political philosophy that advocates self-governed societies")
    assert not any(mark in anarchism.text for mark in ["[[", "]]", "{{", "}}", "''", "<ref", "&nbsp;", "|", " ,", "()"])


def test_utf16_dump_keeps_its_letters() -> None:
    [article] = [each for each in real("bgwiki-latest-pages-articles-shortened.xml.bz2") if isinstance(each, Document)]
    assert article.title == "Григориански календар"
    assert article.text.startswith("Григорианският календар")
