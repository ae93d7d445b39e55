"""Wikitext to text: our extractor beside mwparserfromhell's strip_code, on the same pages in the same run.

    pip install mwparserfromhell
    python benchmarks/wikitext.py enwiki-*.xml.bz2 pages.tar.gz [--repeat 3] [--list residue|lost]

An input is a bz2 dump (articles are taken, redirects are not) or a tar of raw pages (*.txt). Measured are megabytes of
wikitext a second of processor time, and what markup the outputs still hold, by kind: how often, and in how many pages.
"""

from __future__ import annotations

import argparse
import bz2
import re
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from lxml import etree

from preprocessing.markdown import markdown_table
from preprocessing.sources.wikitext import extract_passages

RESIDUE = {
    "braces": r"\{\{|\}\}",
    "link brackets": r"\[\[|\]\]",
    "table marks": r"\{\||\|\}|^\||^!|\|\||\|-",
    "quotes": r"''+",
    "tags": r"</?(?:ref|br|div|span|sup|sub|small|table|tr|td|th|gallery|math|nowiki|blockquote|code)\b",
    "comments": r"<!--|-->",
    "character references": r"&(?:[a-z]+|#\d+);",
    "headings, list marks": r"^(?:==|[*#:;])",
    "file options, categories": r"\b(?:thumb|left|right|\d+px)\||\b(?:File|Image|Category):",
    "magic words": r"__[A-Z]{3,}__",
    "holes: () (, ,,": r"\( ?[,;)]| [,;] ?[,;]",
}
PATTERNS = {kind: re.compile(pattern, re.MULTILINE) for kind, pattern in RESIDUE.items()}
PROSE = 100  # characters: a line of the peer that is longer, and a sentence, should be in ours


class Page(NamedTuple):
    """A page of an input."""

    title: str
    wikitext: str


class Measured(NamedTuple):
    """What one of the two made of all pages."""

    seconds: float
    texts: list[str]


def pages_of(path: Path) -> Iterator[Page]:
    """The articles of a bz2 dump, or the raw pages of a tar."""
    if ".tar" in path.suffixes:
        with tarfile.open(path) as archive:
            for member in archive:
                file = archive.extractfile(member)
                if file is not None and member.name.endswith(".txt"):
                    yield Page(Path(member.name).name, file.read().decode())
        return
    with bz2.open(path) as file:
        for _, page in etree.iterparse(file, tag="{*}page", huge_tree=True):
            if page.find("{*}redirect") is None and page.findtext("{*}ns") == "0":
                yield Page(page.findtext("{*}title"), page.findtext("{*}revision/{*}text") or "")


def measured(extract: Callable[[str], str], pages: list[Page], repeat: int) -> Measured:
    """The best of several runs over all pages, in processor seconds."""
    best = float("inf")
    for _ in range(repeat):
        begin = time.process_time()
        texts = [extract(page.wikitext) for page in pages]
        best = min(best, time.process_time() - begin)
    return Measured(best, texts)


def ours(wikitext: str) -> str:
    """One paragraph a line."""
    return "\n".join(extract_passages(wikitext))


def peer() -> Callable[[str], str]:
    """The strip_code of mwparserfromhell with its defaults."""
    try:
        import mwparserfromhell
    except ImportError:
        raise SystemExit("This compares with mwparserfromhell: pip install mwparserfromhell") from None
    return lambda wikitext: str(mwparserfromhell.parse(wikitext).strip_code())


def residue(texts: list[str]) -> dict[str, tuple[int, int]]:
    """Of every kind of markup: how often it is left, and in how many texts."""
    counts = {kind: [len(pattern.findall(text)) for text in texts] for kind, pattern in PATTERNS.items()}
    return {kind: (sum(each), sum(map(bool, each))) for kind, each in counts.items()}


def print_table(pages: list[Page], mine: Measured, theirs: Measured) -> None:
    """The comparison as a table in Markdown."""
    megabytes = sum(len(page.wikitext.encode()) for page in pages) / 1e6
    print(f"{len(pages)} pages, {megabytes:.2f} MB of wikitext\n")
    sizes = [sum(len(text.encode()) for text in each.texts) / 1e6 for each in (mine, theirs)]
    left = residue(mine.texts), residue(theirs.texts)
    table = [
        ["", "ours", "mwparserfromhell"],
        ["MB of wikitext a second", *(f"{megabytes / each.seconds:.1f}" for each in (mine, theirs))],
        ["times as fast", f"{theirs.seconds / mine.seconds:.1f}", "1"],
        ["MB of text", *(f"{size:.2f}" for size in sizes)],
        *([f"left: {kind}", *(f"{each[kind][0]} ({each[kind][1]} pages)" for each in left)] for kind in RESIDUE),
    ]
    print(markdown_table(table, (1, 2)))


def list_residue(pages: list[Page], texts: list[str]) -> None:
    """Every mark that is left in our text, with what surrounds it."""
    for page, text in zip(pages, texts, strict=True):
        for kind, pattern in PATTERNS.items():
            for match in pattern.finditer(text):
                around = text[max(0, match.start() - 40) : match.end() + 40].replace("\n", " ")
                print(f"{page.title}\t{kind}\t{around}")


def list_lost(pages: list[Page], mine: Measured, theirs: Measured) -> None:
    """Sentences of the peer that ours does not have: lists, captions and notes, unless something is wrong."""
    kinds: Counter[str] = Counter()
    for page, text, other in zip(pages, mine.texts, theirs.texts, strict=True):
        kept = re.sub(r"\W+", "", text)
        source = {re.sub(r"\W+", "", line)[:12]: line for line in page.wikitext.split("\n")}
        for line in other.split("\n"):
            bare = re.sub(r"\W+", "", line)
            parts = (bare[at : at + 15] for at in (0, 10, len(bare) // 3, len(bare) // 2, len(bare) - 16))
            if len(line) < PROSE or any(part in kept for part in parts):
                continue
            begins = source.get(bare[:12], "")[:1]
            kinds[begins if begins in "*#:;|!" else "other"] += 1
            print(f"{page.title}\t{begins}\t{line[:120]}")
    print(dict(kinds))


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", nargs="+", type=Path)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--list", choices=["residue", "lost"])
    options = parser.parse_args()
    pages = [page for path in options.inputs for page in pages_of(path)]
    mine = measured(ours, pages, options.repeat)
    theirs = measured(peer(), pages, options.repeat)
    print_table(pages, mine, theirs)
    if options.list == "residue":
        list_residue(pages, mine.texts)
    elif options.list == "lost":
        list_lost(pages, mine, theirs)


if __name__ == "__main__":
    main()
