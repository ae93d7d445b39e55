"""Wikitext to text passages: what a reader of the article reads as prose, and nothing else.

The paper pretrains on "only the text passages" of Wikipedia, without lists, tables and headings. Three passes, each
linear in the size of the page however its marks are nested or broken, in the order in which MediaWiki works too:

1. ``_without_verbatim``: comments and extension tags (<ref>, <math>, <gallery>, ...) reach from their opening mark to
   the next closing one, whatever lies between. They go, and <nowiki> turns into character references.
2. ``_resolve``: one regular expression finds every other mark; a stack pairs braces, brackets, tables and elements.
   What is unpaired loses its mark and keeps its text.
3. ``_passages``: lines. Lists, headings and rests of tables go; neighbouring lines are one paragraph. The gaps that
   were left behind are closed, character references are decoded once, at the very end.

Inside, two control characters, which XML can't contain, stand for things: a gap (where something was dropped, so that
only the punctuation around gaps is mended and ``main()`` keeps its parentheses) and a line break.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Callable
from itertools import groupby
from typing import NamedTuple

from preprocessing.sources.wikitext_templates import has_text, template_text

GAP = "\x00"
BREAK = "\x0b"  # a single one is a space, two are the end of a paragraph

# Localised names come from the dump's siteinfo (wikipedia.py); these serve where there is none, and old English ones.
_HIDDEN_NAMESPACES = """
    file image media category datei bild kategorie fichier catégorie archivo imagen categoría immagine categoria
    ficheiro bestand categorie kategori fil plik kategoria lêer файл картинка категория категорія ملف تصنيف
    ファイル 画像 파일 분류 文件 分类
"""
HIDDEN_NAMESPACES = frozenset(_HIDDEN_NAMESPACES.split())

# --- Pass 1: comments and extension tags ---

_DROPPED_TAGS = (
    "ref|math|ce|chem|gallery|imagemap|timeline|score|graph|hiero|mapframe|maplink|syntaxhighlight|source|pre|references|"
    "templatedata|templatestyles|inputbox|categorytree|indicator|includeonly|phonos"
)
_VERBATIM = re.compile(rf"<(?:!--|({_DROPPED_TAGS}|nowiki|code)(?=[\s/>]))", re.IGNORECASE)
_NOWIKI = str.maketrans({mark: f"&#{ord(mark)};" for mark in "[]{}<>|'*#:;=_-"})


class _Closings:
    """Finds what closes a tag or a comment; remembers it, so that many unclosed tags don't search the page each."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.next: dict[str, tuple[int, int] | None] = {}  # of every pattern: the span found last, None: no more of it

    def find(self, pattern: str, position: int) -> tuple[int, int] | None:
        """The span of the next match at or after `position`, which never decreases."""
        span = self.next.get(pattern, (-1, -1))
        if span is not None and span[0] < position:
            match = re.compile(pattern, re.IGNORECASE).search(self.text, position)
            span = self.next[pattern] = match and match.span()
        return span


def _without_verbatim(text: str) -> str:
    closings = _Closings(text)
    out = []
    position = 0
    while match := _VERBATIM.search(text, position):
        out.append(text[position : match.start()])
        position, replacement = _verbatim(text, match, closings)
        out.append(replacement)
    out.append(text[position:])
    return "".join(out)


def _verbatim(text: str, match: re.Match[str], closings: _Closings) -> tuple[int, str]:
    """Where the comment or tag that opens at `match` ends, and what stands in its place."""
    if match[1] is None:
        return _comment_end(text, match.start(), closings), ""
    tag = match[1].lower()
    opening = closings.find(">", match.end())
    if opening is None:
        return match.end(), GAP
    inside = opening[1]
    if text[inside - 2] == "/":  # an empty nowiki keeps marks apart, and is nothing where a word goes on
        return inside, "" if tag == "nowiki" and text[inside : inside + 1].isalnum() else GAP
    closing = closings.find(rf"</{tag}\s*>", inside)
    if closing is None:
        return inside, GAP
    if tag == "nowiki":
        return closing[1], text[inside : closing[0]].translate(_NOWIKI)
    line_end = closings.find(r"\n", inside)
    if tag == "code" and (line_end is None or line_end > closing):  # a word of the sentence, with wikitext in it
        return inside, ""
    return closing[1], GAP


def _comment_end(text: str, start: int, closings: _Closings) -> int:
    closing = closings.find("-->", start + 4)
    if closing is None:  # as MediaWiki has it
        return len(text)
    end = closing[1]
    alone_on_its_line = text[start - 1 : start] == "\n" and text[end : end + 1] == "\n"
    return end + alone_on_its_line


# --- Pass 2: marks that pair ---

_BLOCK_TAGS = "p div blockquote center hr poem section"
_INLINE_TAGS = """
    abbr b bdi bdo big cite code data del dfn em font i ins kbd mark nobr noinclude nowiki onlyinclude q rb rp rt rtc
    ruby s samp small span strike strong sub sup time tt u var wbr
"""
_TAG_TEXT = {
    **dict.fromkeys(_BLOCK_TAGS.split(), BREAK * 2),
    **dict.fromkeys(_INLINE_TAGS.split(), ""),
    **dict.fromkeys(_DROPPED_TAGS.split("|"), GAP),  # closing tags that close nothing
    "br": BREAK,
}
_DROPPED_ELEMENT_TAGS = "table ul ol dl li dt dd tr td th caption h1 h2 h3 h4 h5 h6"
_DROPPED_ELEMENTS = frozenset(_DROPPED_ELEMENT_TAGS.split())
_TAG_NAMES = "|".join(sorted({*_TAG_TEXT, *_DROPPED_ELEMENTS}, key=len, reverse=True))
_TAG = rf"</?(?i:{_TAG_NAMES})(?=[\s/>])[^<>]*+>"

# Every alternative begins with a literal outside of any group: so the search skips to such a character at C speed.
_MARK = re.compile(
    rf"""
      \[(?: (?P<link>\[([^\[\]{{}}|<\n]*+)(?:\|([^\[\]{{}}<\n]*+))?\]\])     # the usual link, whole
          | (?P<open_link>\[[^\[\]{{}}|<\n]*+\|?)
          | (?P<url>(?:https?:|ftps?:|mailto:|news:|irc:|(?=//))[^\s\[\]<>{{}}]*+[ ]*+) )
    | \](?P<close_brackets>\]*+)
    | \{{(?: (?P<template>\{{[^{{}}]*+\}}\}})                                   # the usual template, whole
           | (?P<open_braces>\{{++)
           | (?P<open_table>\|) )
    | \}}(?P<close_braces>\}}++)
    | <(?P<tag>{_TAG[1:]})
    | \n(?P<close_table>[ \t]*+\|\}}(?!\}}))
    """,
    re.VERBOSE,
)
_MAX_TEMPLATE_DEPTH = 40  # as MediaWiki's: what is nested deeper has no text
_FRACTION = re.compile(r"\d+/\d+")
_MAX_TARGET_PIECES = 8  # of a link's target with marks in it: bounds what is looked at again


class _Open(NamedTuple):
    """An opening mark that waits for its closing one."""

    kind: str
    begin: int  # where its content begins in the output
    size: int = 0  # braces: how many; link: 1 when the pipe after its target was seen


class _Resolver:
    """The output so far and the marks that are open."""

    def __init__(self, hidden: frozenset[str]) -> None:
        self.hidden = hidden
        self.out: list[str] = []
        self.stack: list[_Open] = []
        self.open: Counter[str] = Counter()

    def push(self, kind: str, size: int = 0) -> None:
        self.stack.append(_Open(kind, len(self.out), size))
        self.open[kind] += 1

    def pop_to(self, kind: str) -> _Open | None:
        """The innermost open mark of a kind; marks inside it that nothing closed are forgotten."""
        if not self.open[kind]:
            return None
        while True:
            top = self.stack.pop()
            self.open[top.kind] -= 1
            if top.kind == kind:
                return top

    def replace(self, index: int, text: str) -> None:
        del self.out[index:]
        self.out.append(text)

    def link(self, match: re.Match[str]) -> None:
        self.out.append(_link_text(match[2], match[3], self.hidden))

    def open_link(self, match: re.Match[str]) -> None:
        target = match[0][2:]
        self.push("link", target.endswith("|"))
        self.out.append(target.removesuffix("|"))

    def close_brackets(self, match: re.Match[str]) -> None:
        left = len(match[0])
        while left:
            if self.stack and self.stack[-1].kind == "url":
                self.close_url()
                left -= 1
            elif left > 1:
                self.close_link()
                left -= 2
            else:
                self.out.append("]")
                left -= 1

    def close_url(self) -> None:
        opened = self.pop_to("url")
        if opened and opened.begin == len(self.out):  # an address without a label
            self.out.append(GAP)

    def close_link(self) -> None:
        opened = self.pop_to("link")
        if opened is None:
            return
        begin = opened.begin
        target = self.out[begin]
        if opened.size:
            self.out[begin] = ""
        else:
            target = self.take_target(begin)
        if _is_hidden(target, self.hidden):
            self.replace(begin, GAP)

    def take_target(self, begin: int) -> str:
        """Of a link whose target holds other marks: removes it, up to the pipe; without one it is what shows."""
        target = ""
        for at in range(begin, min(begin + _MAX_TARGET_PIECES, len(self.out))):
            piece, pipe, label = self.out[at].partition("|")
            target += piece
            if pipe:
                self.out[begin : at + 1] = [""] * (at - begin) + [label]
                break
        return target

    def url(self, _match: re.Match[str]) -> None:
        self.push("url")

    def template(self, match: re.Match[str]) -> None:
        content = match[0][2:-2]
        if not has_text(content):
            self.out.append(GAP)
            return
        if "[" in content or "<" in content:
            content = _resolve(content, self.hidden)  # there are no braces in it: one level, never more
        self.show(template_text(content))

    def open_braces(self, match: re.Match[str]) -> None:
        self.push("braces", len(match[0]))

    def close_braces(self, match: re.Match[str]) -> None:
        left = len(match[0])
        while left > 1 and (opened := self.pop_to("braces")):
            paired = min(left, opened.size, 3)
            self.close_template(opened.begin, paired)
            left -= paired
            if opened.size - paired > 1:
                self.stack.append(opened._replace(size=opened.size - paired))
                self.open["braces"] += 1

    def close_template(self, index: int, braces: int) -> None:
        text = None
        shallow = len(self.stack) < _MAX_TEMPLATE_DEPTH  # bounds how often a text is joined
        if braces == 2 and shallow and index < len(self.out) and has_text(self.out[index]):
            text = template_text("".join(self.out[index:]))
        del self.out[index:]
        self.show(text)

    def show(self, text: str | None) -> None:
        """A template's text, or its gap; a fraction right after a digit is that number's, as in 1{{frac|1|2}}."""
        mixed = text and _FRACTION.fullmatch(text) and self.out and self.out[-1][-1:].isdigit()
        self.out.append(GAP if text is None else f" {text}" if mixed else text)

    def open_table(self, _match: re.Match[str]) -> None:
        self.push("table")

    def close_table(self, _match: re.Match[str]) -> None:
        opened = self.pop_to("table")
        if opened is not None:
            del self.out[opened.begin :]
        self.out.append("\n")

    def tag(self, match: re.Match[str]) -> None:
        mark = match[0]
        closing = mark[1] == "/"
        name = mark[1 + closing : -1].split(None, 1)[0].rstrip("/").lower()
        if name not in _DROPPED_ELEMENTS:
            self.out.append(_TAG_TEXT[name])
        elif not closing:
            self.push(name)
        elif opened := self.pop_to(name):
            self.replace(opened.begin, BREAK * 2)


_HANDLERS: dict[str, Callable[[_Resolver, re.Match[str]], None]] = {
    kind: getattr(_Resolver, kind) for kind in _MARK.groupindex
}


def _resolve(text: str, hidden: frozenset[str]) -> str:
    resolver = _Resolver(hidden)
    out = resolver.out
    position = 0
    for match in _MARK.finditer(text):
        start, end = match.span()
        if position < start:
            out.append(text[position:start])
        position = end
        _HANDLERS[match.lastgroup](resolver, match)  # type: ignore[index]  # every alternative is a named group
    out.append(text[position:])
    return "".join(out)


# --- Links ---

_MEDIA = re.compile(r"\.(?:jpe?g|png|svg|gif|tiff?|webp|xcf|djvu|pdf|og[gva]|webm|wav|midi?|mp[34])\s*$", re.IGNORECASE)
_LANGUAGE = re.compile(r"[a-z]{2,3}(?:-[a-z]+)*|simple")
_INTERWIKI_PREFIXES = """
    b c commons d doi gutenberg hdl irc m meta mw n q rfc s species v voy w wikibooks wikinews wikipedia wikiquote
    wikisource wikispecies wikiversity wikivoyage wikt wiktionary wmf wp
"""
_INTERWIKI = frozenset(_INTERWIKI_PREFIXES.split())


def _is_hidden(target: str, hidden: frozenset[str]) -> bool:
    """Files, categories and interlanguage links show nothing in the text, or a caption."""
    prefix, _, name = target.partition(":")
    prefix = prefix.strip()
    if not prefix or not name:  # [[:File:x]] is a link to the file's page
        return False
    if prefix.lower() in hidden or _MEDIA.search(name):
        return True
    return _LANGUAGE.fullmatch(prefix) is not None and prefix not in _INTERWIKI


def _link_text(target: str, label: str | None, hidden: frozenset[str]) -> str:
    if ":" in target:
        if _is_hidden(target, hidden):
            return GAP
        target = _without_prefix(target)
    if label:
        return label
    if label is not None:  # the pipe trick: [[Foo (bar)|]], [[Foo, bar|]]
        return target.rpartition(":")[2].partition(" (")[0].partition(",")[0]
    title, _, section = target.partition("#")
    return (title or section).replace("_", " ")


def _without_prefix(target: str) -> str:
    """Drops a leading colon, an interwiki prefix, and the address of an external link in double brackets."""
    if re.match(r"\s*(?:https?|ftp)://", target):
        return target.partition(" ")[2]
    target = target.lstrip(": ")
    prefix, _, rest = target.partition(":")
    return rest if prefix.strip().lower() in _INTERWIKI else target


# --- Pass 3: lines to passages ---

_NOT_PROSE = re.compile(r"[\s\x00]*(?:[*#;|!=]|----|:[:\s\x00]*[*#;])")
_HEADING_IN_BOLD = re.compile(r"[\s\x00]*'''[^']*'''[\s\x00:]*$")
_INDENTED = re.compile(r"[ \t:]+")
_QUOTED = re.compile(r"'{2,}")
_LEFT_OVER = re.compile(r"\{\{+|\}\}+|\[\[+|\]\]+|\{\||\|\}|''+|__[^\W\d_a-z]{3,}(?:_[^\W\d_a-z]+)*__|-\{|\}-")
_LEFT_OVER_TAG = re.compile(_TAG)
_VARIANTS = re.compile(r"-\{([^{}]*+)\}-")
_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,31});")
_VARIANT_CODE = re.compile(r"\s*[a-z-]+\s*:")
_MARKS = r"\s,;:，；：、"  # what may be left over around a gap
_NO_SPACES = r"\u0e00-\u0eff\u2e80-\U0003ffff"  # scripts that write words, or their endings, without spaces between
_EMPTY_PARENTHESES = re.compile(rf"[(（][{_MARKS}/–—-]*+\x00[{_MARKS}/–—\x00-]*+[)）]")
_GAP_IN_WORDS = re.compile(rf"\x00(?<=[\w.,;:!?)”»]\x00)\x00*+(?=[^\W{_NO_SPACES}])")  # word.<ref/>Word
_GAP_AFTER_WORD = re.compile(rf"\x00(?<![\s(（\x00]\x00)\x00*+(?!\s*+[{_MARKS[2:]}.)）])")  # references: it just goes
_GAP = re.compile(rf"([(（]?)(?<![{_MARKS}])([{_MARKS}]*+\x00[{_MARKS}\x00]*+)([)）]?)")
_PARAGRAPH_END = re.compile(rf"{BREAK}\s*{BREAK}")
_SENTENCE_ENDS = (".", "!", "?", '"', "”", "»", "。", "！", "？", "।")
_INDENTED_PASSAGE = 80  # characters: shorter indented lines are formulas, verses, code and steps


def _passages(text: str) -> list[str]:
    runs = groupby(map(_prose, text.split("\n")), key=bool)
    return [passage for is_prose, lines in runs if is_prose for passage in _paragraphs(" ".join(lines))]


def _prose(line: str) -> str:
    """A line of a paragraph without its quotes for bold and italics; nothing for a line that is something else."""
    if not line.strip("\x00 \t\r") or _NOT_PROSE.match(line):
        return ""
    if "'''" in line and _HEADING_IN_BOLD.match(line):
        return ""
    indent = _INDENTED.match(line)
    if indent:
        line = line[indent.end() :]
        if not _is_indented_passage(line):
            return ""
    if "''" in line:
        line = _without_quotes(line)
    return line


def _is_indented_passage(line: str) -> bool:
    """A quotation or a paragraph set in; not a formula, nor a note in italics that points elsewhere."""
    bare = line.rstrip("\x00 '")
    return len(bare) >= _INDENTED_PASSAGE and bare.endswith(_SENTENCE_ENDS) and not line.startswith("''")


def _without_quotes(line: str) -> str:
    """Removes the marks of bold and italics, keeps apostrophes.

    Of four quotes, or more than five, the first is an apostrophe. So is the first of three after a word of one letter,
    else after any word, where bold and italics are both odd in number: ``l'''Iliade''`` is l'Iliade in MediaWiki too.
    """
    if "'''" not in line:
        return line.replace("''", "")
    runs = list(_QUOTED.finditer(line))
    apostrophes = {run.start(): 1 for run in runs if len(run[0]) not in (2, 3, 5)}
    bold = [run.start() for run in runs if len(run[0]) != 2]
    italics = [run.start() for run in runs if len(run[0]) == 2 or len(run[0]) >= 5]
    if len(bold) % 2 and len(italics) % 2:
        bold = [at for at in bold if at not in apostrophes and line[at - 1 : at].isalnum()]
        short = [at for at in bold if not line[at - 2 : at - 1].isalnum()]
        apostrophes.update(dict.fromkeys((short or bold)[:1], 1))
    return _QUOTED.sub(lambda run: "'" * apostrophes.get(run.start(), 0), line)


def _paragraphs(text: str) -> list[str]:
    parts = [text]
    if BREAK in text:
        parts = [part for part in _PARAGRAPH_END.split(text) if not _NOT_PROSE.match(part)]
    return [clean for part in parts if (clean := _clean(part))]


def _clean(text: str) -> str:
    """A paragraph with its gaps closed, without rests of markup, decoded, in single spaces; empty without a word."""
    if "-{" in text:
        text = _VARIANTS.sub(_variant, text)
    if GAP in text:
        text = _without_gaps(text)
    text = _LEFT_OVER.sub(" ", text)
    if "<" in text:
        text = _LEFT_OVER_TAG.sub(" ", text)
    text = " ".join(unescaped(text).split())
    return text if any(map(str.isalnum, text)) else ""


def unescaped(text: str) -> str:
    """Text with its entities decoded; what has no semicolon is none, as in the address `?a=1&copy=2`."""
    return _ENTITY.sub(lambda entity: html.unescape(entity[0]), text) if "&" in text else text


def _without_gaps(text: str) -> str:
    text = _EMPTY_PARENTHESES.sub(GAP, text)
    text = _GAP_IN_WORDS.sub(" ", text)
    text = _GAP_AFTER_WORD.sub("", text)
    return _GAP.sub(_mended, text) if GAP in text else text


def _mended(match: re.Match[str]) -> str:
    """What stays of a run of gaps, spaces, commas, semicolons and colons: one mark, and a space where one was."""
    before, run, after = match.groups()
    if before and after:
        return ""
    if before or after or not match.start():
        return before + after
    mark = run.replace(GAP, "").strip()[:1]
    followed_by_stop = match.string[match.end() : match.end() + 1] in ".!?。！？"
    spaced = any(map(str.isspace, run)) and not followed_by_stop
    return mark + " " * spaced


def _variant(match: re.Match[str]) -> str:
    """The text of a language variant -{...}-: the first one of zh-hans:x;zh-hant:y."""
    flags, pipe, rules = match[1].rpartition("|")
    if pipe and not flags.strip().isupper():  # -{zh-hans;zh-hant|text}-
        return rules
    if {"H", "T"} & set(flags):  # a rule for the whole page or its title: nothing to see here
        return GAP
    return _VARIANT_CODE.sub("", rules.partition(";")[0], count=1)


def extract_passages(wikitext: str, hidden_namespaces: frozenset[str] = HIDDEN_NAMESPACES) -> list[str]:
    """The text passages of a page, one paragraph an item, without any markup.

    Never raises; time and memory are linear in the size of the page.

    Args:
        wikitext: The page's source.
        hidden_namespaces: Names of the file and category namespaces in lower case; links into them show no text.

    Returns:
        Paragraphs in order; no item holds a line break, a double space, or nothing but punctuation.
    """
    text = wikitext.replace(GAP, "").replace(BREAK, " ")
    return _passages(_resolve(_without_verbatim(text), hidden_namespaces))
