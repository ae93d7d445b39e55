from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preprocessing.sources.wikitext import extract_passages
from preprocessing.sources.wikitext_templates import _LITERALS, _RULES, _RULES_OF_NAMES, template_text

# What each construct becomes. A case is (wikitext, paragraphs).
CASES = {
    # paragraphs
    "lines are one paragraph": ("one\ntwo", ["one two"]),
    "an empty line ends it": ("one\n\ntwo", ["one", "two"]),
    "spaces are single": ("one  \t two ", ["one two"]),
    "carriage returns": ("one\r\ntwo\r\n\r\nthree", ["one two", "three"]),
    "nothing but punctuation": (". – !", []),
    "empty": ("", []),
    "control characters": ("a\x00b \x0b\x0b c", ["ab c"]),
    # bold and italics
    "italics": ("an ''Iliad'' of", ["an Iliad of"]),
    "bold": ("the '''Iliad''' is", ["the Iliad is"]),
    "bold italics": ("the '''''Iliad''''' is", ["the Iliad is"]),
    "an apostrophe before bold": ("dell''''Iliade'''", ["dell'Iliade"]),
    "an apostrophe before italics": ("l'''Iliade'' et '''l'autre'''", ["l'Iliade et l'autre"]),
    "apostrophes after the only word of a letter": ("'''dog'''s bone l'''os ''x", ["dogs bone l'os x"]),
    "apostrophes after the first one": ("d'''a l'''os '''et ''x", ["d'a los et x"]),
    "unbalanced": ("an ''open end", ["an open end"]),
    "unbalanced bold": ("an'''open end", ["anopen end"]),
    "unbalanced bold and italics": ("an '''open ''end", ["an open end"]),
    "bold italics of which one is closed": ("l'''''Iliade''", ["lIliade"]),
    "a line in bold is a heading": ("'''Life'''\nHe lived.\n'''Death''':\nHe died.", ["He lived.", "He died."]),
    # links
    "link": ("a [[dog]] barks", ["a dog barks"]),
    "trail": ("[[dog]]s bark", ["dogs bark"]),
    "piped": ("a [[Canis familiaris|dog]] barks", ["a dog barks"]),
    "marks in the label": ("a [[Canis|''good'' <b>dog</b>]] barks", ["a good dog barks"]),
    "template in the target": ("a [[Canis {{x}}|dog]] barks", ["a dog barks"]),
    "pipe trick": ("[[Mercury (planet)|]], [[Paris, Texas|]] and [[Help:Dogs|]]", ["Mercury, Paris and Dogs"]),
    "section": ("see [[Dog#Breeds]]", ["see Dog"]),
    "own section": ("see [[#Breeds]]", ["see Breeds"]),
    "underscores": ("a [[German_shepherd]]", ["a German shepherd"]),
    "title with a colon": ("in [[Star Trek: Nemesis]]", ["in Star Trek: Nemesis"]),
    "interwiki": ("a [[wikt:dog]], [[Wikt :cow]], [[voy:rat]] or [[wikt:cat|cat]]", ["a dog, cow, rat or cat"]),
    "interlanguage": ("a dog\n[[de:Hund]]\n[[zh-min-nan:Káu]]\n[[simple:Dog]]", ["a dog"]),
    "link to a category": ("see [[:Category:Dogs]], [[:File:Dog.jpg]]", ["see Category:Dogs, File:Dog.jpg"]),
    "link to a category without a name": ("see [[Category:]]", ["see Category:"]),
    "category": ("a dog [[Category:Dogs|dog]] [[ Kategorie :Hunde]]", ["a dog"]),
    "file": ("[[File:Dog.jpg|thumb|A dog]]a dog", ["a dog"]),
    "links in a caption": ("[[Image:D.jpg|thumb|A [[dog]] of [[Rome|the [[city]]]], [http://x y]]] a dog", ["a dog"]),
    "file of unknown namespace": ("[[Ficheru:Dog.jpg|thumb|A dog]] a dog [[Ficheru:D.SVG ]]", ["a dog"]),
    "marks in its caption": ("[[Ficheru:Dog.jpg|thumb|A {{nowrap|dog}} [[x]]]] a dog", ["a dog"]),
    "unclosed": ("a [[dog barks", ["a dog barks"]),
    "unopened": ("a dog]] barks", ["a dog barks"]),
    "brackets": ("he said [sic] and [[a [b] c]]", ["he said [sic] and a [b] c"]),
    "external": ("see [http://x.org/a the site] or [//x.org it]", ["see the site or it"]),
    "external without a label": ("see [http://x.org/a].", ["see."]),
    "external in double brackets": ("see [[http://x.org the site]]", ["see the site"]),
    "external ends at the first bracket": ("see [http://x.org it [sic] or {{x|[y]}} [no]", ["see it [sic or [no]"]),
    "link in external": ("see [http://x.org the [[dog]]]", ["see the dog"]),
    "link with marks in external": ("see [http://x the [[dog|dog{{nowrap|s}}]] here] now", ["see the dogs here now"]),
    "trail of external": ("see [http://x.org dog]s", ["see dogs"]),
    # templates
    "template": ("a dog {{citation needed|date=May}} barks", ["a dog barks"]),
    "nested": ("{{Infobox|a={{b|c={{d}}}}|e=f}}a dog", ["a dog"]),
    "over lines": ("{{Infobox\n| a = b\n| c = [[d]]\n}}\nA dog", ["A dog"]),
    "parameter with the name of a template": ("a {{{nowrap|x}}} dog", ["a dog"]),
    "braces that close in parts": ("a {{{{nowrap|x}}|y}} dog {{{{{x}}}} y}} barks", ["a dog barks"]),
    "a brace too many": ("a {{{nowrap|x}} y}} dog", ["a x y dog"]),
    "parameter": ("a {{{1|x}}} dog {{#if:{{{2|}}}|y}} barks", ["a dog barks"]),
    "template unclosed": ("{{Infobox\n| a = b\n\nA dog", ["Infobox", "A dog"]),
    "template unclosed in a link": ("a [[dog {{x]] barks]] at cats", ["a dog x barks at cats"]),
    "template unopened": ("a dog}} barks", ["a dog barks"]),
    "unclosed link in a template": ("{{x|[[y}} a dog]] barks", ["a dog barks"]),
    "table in a template": ("{{x|\n{|\n| y\n|}\n}}\na dog", ["a dog"]),
    "lang": ("the ''{{lang|fr|[[mot|mots]]}}'' are", ["the mots are"]),
    "lang with numbers": ("the {{lang|1=fr|2=mot}} is", ["the mot is"]),
    "transl with a standard": ("the {{transl|ar|ISO|kitāb}} is", ["the kitāb is"]),
    "langx without a text": ("the {{langx|fr}} is", ["the is"]),
    "lang-xx": ("Brussels ({{lang-fr|Bruxelles}})", ["Brussels (Bruxelles)"]),
    "nowrap with a link": ("{{nowrap|[[Canis|dogs]] bark}}", ["dogs bark"]),
    "nowrap with an element": ("is {{nowrap|H<sub>2</sub>O}}", ["is H2O"]),
    "nowrap without a text": ("a {{nowrap}} dog {{nowrap| = x}} barks", ["a dog barks"]),
    "nowrap of an equation": ("so {{nowrap|f(x) = 2}} holds", ["so f(x) = 2 holds"]),
    "nowrap in a template": ("{{nowrap|10 {{convert|5|km|mi|abbr=on}}}}", ["10 5 km"]),
    "convert": ("is {{convert|20|m|ft|0}} high", ["is 20 m high"]),
    "convert with a precision": ("is {{ Convert |20|m|0}} high", ["is 20 m high"]),
    "convert many": ("are {{convert|2|and|3|and|4|to|5|m}} high", ["are 2 and 3 and 4 to 5 m high"]),
    "convert a range": ("is {{convert|10|to|20|km2}} wide", ["is 10 to 20 km² wide"]),
    "convert half a range": ("is {{convert|10|to}} 20 km wide", ["is 10 to 20 km wide"]),
    "convert feet and inches": ("is {{convert|6|ft|2|in|cm}} tall", ["is 6 ft 2 in tall"]),
    "mixed fractions": ("{{frac|3|1|2}} inches, {{sfrac|2}} of it", ["3 1/2 inches, 1/2 of it"]),
    "fractions of a number before them": (
        "1{{frac|1|2}} of {{convert|6|ft|2{{sfrac|3|4}}|in}}, not ({{frac|1|2}}) nor {{nowrap|&minus;{{frac|5}}}}",
        ["1 1/2 of 6 ft 2 3/4 in, not (1/2) nor −1/5"],
    ),
    "fractions": ("{{frac| 1 | 2 }} or {{frac|1= 3 |2= 4}}", ["1/2 or 3/4"]),
    "numbers": ("({{formatnum: 1000}}) dogs of {{circa|1900}}", ["(1000) dogs of c. 1900"]),
    "script": ("a {{script/Hebrew|כלב}} {{!}} dog", ["a כלב | dog"]),
    "underscores in a template's name": ("{{As_of|2010}}, dogs bark", ["As of 2010, dogs bark"]),
    "as of": ("{{As of|2010}}, dogs bark", ["As of 2010, dogs bark"]),
    "as of a month": ("{{As of|2010|05}} and {{as of|2011|June|lc=on}}", ["As of May 2010 and as of June 2011"]),
    "as of a day": ("{{As of|2010|5|3}}, {{as of|2011|6|7|df=US|lc=y}}", ["As of 3 May 2010, as of June 7, 2011"]),
    "as of in other words": (
        "{{As of|2010|alt=In 2010}} {{as of|2011|since=y|lc=y}} ({{as of|2012|12|bare=y}}) {{as of|2013|pre=early}}",
        ["In 2010 since 2011 (December 2012) As of early 2013"],
    ),
    "as of nothing": ("Dogs {{as of}}bark", ["Dogs bark"]),
    "as of within a sentence": ("had 5 dogs {{as of|2010|lc=y}}", ["had 5 dogs as of 2010"]),
    "convert a range with a dash in tables": ("is {{convert|60|and(-)|80|kg}} heavy", ["is 60 and 80 kg heavy"]),
    "powers of ten": (
        "5.98{{e|24}}&nbsp;kg, {{val|1.6726|0.0002|e=-27|u=kg}}, {{val|20|ul=km|upl=s}}",
        ["5.98×10^24 kg, 1.6726±0.0002×10^-27 kg, 20 km/s"],
    ),
    "uncertain numbers": ("{{val|7}}, {{val|7|2}}, {{val|7|(1)}}, {{val|7|1|2}}", ["7, 7±2, 7(1), 7+1−2"]),
    "stars": (
        "{{dp|Pluto}} has no {{solar mass|2}}, a star 1.5 {{Solar mass|link=y}} and 3 {{solar radius}}",
        ["Pluto has no 2 M☉, a star 1.5 M☉ and 3 R☉"],
    ),
    "years": (
        "A ({{circa}} 1900; {{circa|1900|1910}}; {{fl.|1900}}), B ({{OldStyleDate|2 February|1905|20 January}})",
        ["A (c. 1900; c. 1900–1910; fl. 1900), B (2 February 1905)"],
    ),
    "music": (
        "a B{{flat}} in E{{music|flat}} major, {{music|time|3|4}}, {{music|clef}} of",
        ["a B♭ in E♭ major, 3/4, of"],
    ),
    "letters": ("Hawai{{okina}}i, {{CO2}}, 2{{pi}}, \"the 'dogs{{' \"}}", ["Hawaiʻi, CO2, 2π, \"the 'dogs'\""]),
    "money": (
        "{{INR|500}} crore, {{INRConvert|50|c}}, {{INRConvert|5|–|6|l|2}}, {{INRConvert|7||0}}, {{£|5}}",
        ["₹500 crore, ₹50 crore, ₹5–6 lakh, ₹7, £5"],
    ),
    "red links": (
        "{{Interlanguage link|Ann Foo|de}} and {{ill|Bo Foo (painter)|fr|lt=Bo}}, the {{visible anchor|first}}",
        ["Ann Foo and Bo, the first"],
    ),
    "red links without a text": ("a dog ({{ill|lt=}}) barks", ["a dog barks"]),
    "ships": (
        "{{ship||Maine|1889}}, the {{sclass|Nimitz|aircraft carrier|2}} and {{RMS|Titanic}}",
        ["Maine, the Nimitz-class aircraft carrier and RMS Titanic"],
    ),
    "verses": (
        "{{bibleverse||Mark|3:25|KJV}}, {{bibleverse|1|Samuel|2:3}}, {{bibleref|Mark|3:25|9}}",
        ["Mark 3:25, 1 Samuel 2:3, Mark 3:25"],
    ),
    "authors": (
        "{{harvtxt|Foo|2000}}, {{harvtxt|Foo|Bar|2001|p=3}} and {{harvtxt|A|B|C|2002}} show",
        ["Foo (2000), Foo and Bar (2001) and A, B and C (2002) show"],
    ),
    "gauges": (
        "on {{track gauge|1435mm}} and {{RailGauge|4ft8.5in}}, not {{RailGauge|uk}}, rails",
        ["on 1435 mm and 4 ft 8.5 in, not, rails"],
    ),
    "dashes and spaces": ("a{{snd}}b{{nbsp}}c{{mdash}}d", ["a – b c—d"]),
    "quote": ("{{quote|text=A dog.|author=B}}", ["A dog."]),
    "as deep as MediaWiki goes": ("{{nowrap|" * 40 + "x" + "}}" * 40 + " dog", ["x dog"]),
    "deeper than MediaWiki goes": ("{{nowrap|" * 50 + "x" + "}}" * 50 + " dog", ["dog"]),
    # what a dropped mark leaves behind
    "empty parentheses": ("A dog ({{IPA|dɒɡ}}) barks", ["A dog barks"]),
    "empty parentheses in a word": ("A dog({{x}})barks", ["A dog barks"]),
    "empty parentheses in others": ("A dog (({{x}})) barks", ["A dog barks"]),
    "parentheses that were empty": ("call main() {{x}} now", ["call main() now"]),
    "first in parentheses": ("A dog ({{IPA|dɒɡ}}; born 1950) barks", ["A dog (born 1950) barks"]),
    "last in parentheses": ("A dog (born 1950, {{IPA|x}}) barks", ["A dog (born 1950) barks"]),
    "between commas": ("A dog, {{x}}, barks", ["A dog, barks"]),
    "before a comma": ("A dog {{x}}, that barks", ["A dog, that barks"]),
    "before a full stop": ("A dog barks {{x}}. It", ["A dog barks. It"]),
    "after a mark with a space": ("Un chien ;<ref>x</ref> il", ["Un chien ; il"]),
    "after a full stop": ("A dog barks.<ref>x</ref><ref>y</ref> It", ["A dog barks. It"]),
    "no space after a full stop": ("A dog barks.<ref>x</ref>It", ["A dog barks. It"]),
    "at the beginning": ("{{x}}, a dog", ["a dog"]),
    "between apostrophes": ("A dog '<ref/>' barks", ["A dog barks"]),
    "Chinese marks": ("狗（{{x}}；犬）叫<ref>y</ref>，狗（{{x}}）叫<ref>y</ref>了", ["狗（犬）叫，狗叫了"]),
    # references and other extension tags
    "ref": ("a dog<ref>Smith [[x]]</ref> barks", ["a dog barks"]),
    "ref with a name": ('a dog<ref name="a b"/> barks<ref name=c />', ["a dog barks"]),
    "ref in capitals": ("a dog<REF name=x>Smith</REF > barks", ["a dog barks"]),
    "ref with broken marks": ("a dog<ref>[[x {{y</ref> barks", ["a dog barks"]),
    "ref unclosed": ("a dog<ref>Smith barks", ["a dog Smith barks"]),
    "ref that never ends": ("a dog <ref , barks", ["a dog, barks"]),
    "ref unopened": ("a dog</ref> barks (</ref>)", ["a dog barks"]),
    "references": ("a dog\n<references>\n<ref name=x>y</ref>\n</references>", ["a dog"]),
    "comment": ("a<!-- cat --> dog", ["a dog"]),
    "comment in a template": ("a {{x|<!-- }} -->y}}dog", ["a dog"]),
    "comment on its own line": ("a\n<!-- cat -->\ndog", ["a dog"]),
    "comment that begins with its end": ("a <!--> x --> dog", ["a dog"]),
    "comment unclosed": ("a dog <!-- barks", ["a dog"]),
    "what is not of the page": ("<indicator name=x>y</indicator>a<templatestyles src=x/> dog", ["a dog"]),
    "what is of pages that include it": ("a dog<includeonly>x</includeonly> barks", ["a dog barks"]),
    "math": ("with <math>\\frac{{a}}{b}</math> dogs", ["with dogs"]),
    "map": ('a <maplink zoom=3 text="x">{"type": "Point"}</maplink> dog', ["a dog"]),
    "gallery": ("a dog\n<gallery>\nFile:a.jpg|A dog\n</gallery>", ["a dog"]),
    "listings": ("x\n<syntaxhighlight lang=c>\nint [[x]];\n</syntaxhighlight>\n<pre>y</pre>\n<score>z</score>", ["x"]),
    "timeline": ("a dog\n<timeline>\nfrom:1 till:2\n</timeline>", ["a dog"]),
    "code in a sentence": ("call <code>f([[x]])</code> now", ["call f(x) now"]),
    "code over lines": ("call\n<code>\nf()\n</code>", ["call"]),
    "nowiki": ("write <nowiki>[[dog]] and {{x}}</nowiki> so", ["write [[dog]] and {{x}} so"]),
    "nowiki at the beginning": ("<nowiki>*</nowiki> dog", ["* dog"]),
    "nowiki before a blank": ("<nowiki/> a dog", ["a dog"]),
    "nowiki within a word": ("Foo [[bar]]<nowiki/>s are here.", ["Foo bars are here."]),
    "nowiki between quotes": ("the dog'<nowiki/>''s'' own", ["the dog's own"]),
    # HTML
    "inline": ("H<sub>2</sub>O is <small>a</small> <span style='x'>wet</span> thing", ["H2O is a wet thing"]),
    "br": ("one<br>two<br />three", ["one two three"]),
    "elements in capitals": ("one<BR>two <SMALL>x</SMALL>", ["one two x"]),
    "element with quotes in it": ("a dog <'''b> barks", ["a dog barks"]),
    "list after br twice": ("one<br><br>* two", ["one"]),
    "br twice": ("one<br><br/>two", ["one", "two"]),
    "paragraphs": ("one<p>two</p>three", ["one", "two", "three"]),
    "div": ('<div class="x">\na dog\n</div>', ["a dog"]),
    "blockquote": ("said:<blockquote>A dog.</blockquote>", ["said:", "A dog."]),
    "table element": ("a<table><tr><td>x<table><tr><td>y</table></table> dog", ["a", "dog"]),
    "heading element": ("<h2>Life</h2>He lived.", ["He lived."]),
    "list element": ("a dog\n<ul><li>x\n<li>y</ul>", ["a dog"]),
    "no tag": ("if a < b and c > d, #include <stdio.h>", ["if a < b and c > d, #include <stdio.h>"]),
    "character references": ("R&amp;D&nbsp;caf&eacute; &#x41;&#66; AT&T &copy", ["R&D café AB AT&T &copy"]),
    "decoded once, at the end": ("write &lt;ref&gt;x&lt;/ref&gt; &amp;lt; &#91;&#91;", ["write <ref>x</ref> &lt; [["]),
    # blocks
    "heading": ("== Life ==\nHe lived.\n===Death===<!-- x -->\nHe died.", ["He lived.", "He died."]),
    "lists": ("a dog\n* x\n** y\n# z\n; term : definition\n*: w\nbarks", ["a dog", "barks"]),
    "list with a template over lines": ("* x {{y|\nz\n}} w\na dog", ["a dog"]),
    "rule": ("one\n----\ntwo", ["one", "two"]),
    "short indented lines": (": a = b\n formula\ndog", ["dog"]),
    "hatnote": (":''For the animal that barks, bites and runs after cats all day, see [[Dog (disambiguation)]].''", []),
    "indented list": (":* x\n:::# y\n:* " + "A dog, he said, barks. " * 5, []),
    "indented passage": (":" + "“A dog, he said, barks. " * 5 + "”<ref/>", [("“A dog, he said, barks. " * 5 + "”")]),
    "indented line too short for a passage": (":" + "x" * 78 + ".\n\n:" + "x" * 79 + ".", ["x" * 79 + "."]),
    "indented line that ends no sentence": (":" + "x = y + " * 20, []),
    "table": ("a dog\n{| class=x\n|-\n! a !! b\n|-\n| c || d\n|}\nbarks", ["a dog", "barks"]),
    "nested table": ("{|\n| a\n{|\n| b\n|}\n| c\n|}\na dog", ["a dog"]),
    "indented table": ("a dog\n:{|\n| a\n|}", ["a dog"]),
    "table unclosed": ("{|\n| a\n|-\nA dog", ["A dog"]),
    "table unopened": ("a dog\n|}\nbarks\n! x\nbites", ["a dog", "barks", "bites"]),
    "magic words": (
        "__NOTOC__\n__БЕЗСЪДЪРЖАНИЕ__a __KEIN_INHALTSVERZEICHNIS__dog's __init__",
        ["a dog's __init__"],
    ),
    "language variants": ("-{zh-hans:狗; zh-hant:犬}-叫 -{A|x}- -{T|y}- -{H|z}- -{12:30}-", ["狗叫 x 12:30"]),
    "a language variant for some languages alone": ("-{zh-hans;zh-hant|狗}-叫", ["狗叫"]),
    "a colon in a language variant": ("-{zh-hans:狗 (dog: x)}-", ["狗 (dog: x)"]),
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_construct(case: str) -> None:
    wikitext, expected = CASES[case]
    assert extract_passages(wikitext) == expected


def test_namespaces_of_a_wiki() -> None:
    text = "[[Ficheru:Can]] [[Star Trek: X]]"
    assert extract_passages(text) == ["Ficheru:Can Star Trek: X"]
    assert extract_passages(text, frozenset(["ficheru"])) == ["Star Trek: X"]


# --- Properties ---

_MARKS = """
    {{ }} { } {{{ }}} [[ ]] [ ] {| |} | || |- '' ''' ' - -{ }- = == * : ; ! & &lt; < > </ /> <!-- --> __ __TOC__
    <ref> </ref> <ref/> <nowiki> </nowiki> <code> </code> <br> <table> </table> <li> </ul> http:// File: a:
    lang|fr| nowrap| x é ( ) , .
"""
MARKS = [*_MARKS.split(), "\n", "\n\n", " ", "[http://x y", "\x00", "\x0b"]
RESIDUE = re.compile(
    r"\{\{|\}\}|\[\[|\]\]|\{\||\|\}|''|</?(?:ref|br|table|li|ul|code)/?>|[\x00\x0b\n\r]|  |^\s|\s$|__TOC__"
)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(MARKS), max_size=60).map("".join))
def test_no_marks_are_left_of_anything(wikitext: str) -> None:
    wikitext = wikitext.replace("&", "").replace("<nowiki>", "")  # by which authors ask for marks to be shown
    for passage in extract_passages(wikitext):
        assert not RESIDUE.search(passage)
        assert any(map(str.isalnum, passage))


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(), st.lists(st.sampled_from(MARKS)).map("".join)))
def test_never_raises(wikitext: str) -> None:
    extract_passages(wikitext)


def test_no_template_of_the_table_raises_whatever_its_arguments() -> None:
    for name, number in itertools.product([*_LITERALS, *_RULES, *_RULES_OF_NAMES], range(4)):
        for arguments in itertools.product(["", "to", "1", "time"], repeat=number):
            template_text("|".join([name, *arguments]))


TEMPLATES = st.recursive(
    st.sampled_from(["x", "a=b", "[[c|d]]", "<ref>e</ref>", "\n| f = g"]),
    lambda inner: st.lists(inner, min_size=1, max_size=4).map(lambda parts: "{{t|" + "|".join(parts) + "}}"),
    max_leaves=30,
).map(lambda content: "{{t|" + content + "}}")


@settings(deadline=None)
@given(TEMPLATES)
def test_balanced_templates_vanish(template: str) -> None:
    assert extract_passages(f"A dog{template} barks.\n\n{template}\nIt bites.") == ["A dog barks.", "It bites."]


@given(st.lists(st.from_regex(r"[A-Za-zäßж狗][A-Za-zäßж狗0-9 .,()?!%/-]{0,40}", fullmatch=True), max_size=5))
def test_plain_text_stays(lines: list[str]) -> None:
    paragraphs = [" ".join(line.split()) for line in lines]
    assert extract_passages("\n\n".join(paragraphs)) == paragraphs


# --- Pages made to hang a parser: sizes at which anything quadratic takes minutes ---

N = 100_000
HOSTILE = {
    "braces": "{{" * N,
    "braces closed": "}}" * N,
    "templates unclosed": "{{a|" * N,
    "templates nested": "{{a|" * N + "}}" * N,
    "kept templates nested": "{{nowrap|" * N + "x" + "}}" * N,
    "parameters nested": "{{{a|" * N + "}}}" * N,
    "brackets": "[[" * N,
    "brackets closed": "]]" * N,
    "links unclosed": "[[a|" * N,
    "links nested": "[[a|x" * N + "]]" * N,
    "links with marks nested": "[[{{a}}" * N + "]]" * N,
    "files nested": "[[File:a|" * N + "]]" * N,
    "external links": "[http://x " * N + "]" * N,
    "tables": "{|\n" * N + "\n|}" * N,
    "crossed": "{{a|[[b|{|\n" * (N // 4) + "}}]]\n|}" * (N // 4),
    "refs unclosed": "<ref>" * N,
    "refs without an end": "<ref " * N,
    "refs of many kinds": "<ref><math><gallery><code>" * (N // 4),
    "codes": "<code>" * N + "</code>\n",
    "comments": "<!--" * N,
    "elements": "<ul><table>" * N + "</ul>" * N,
    "tags without an end": "<div " * N,
    "quotes": "'''a''" * N,
    "spaces": "[[" + " " * N + "|]] (" + " " * N + "<ref/>" + ", " * N + " :" * N,
    "gaps": "(<ref/>, " * N + " <ref/>" * N,
    "breaks": "a<br>" * N + "<br> " * N,
    "variants": "-{" * N + "-{a}-" * N,
    "ampersands": "&" * N + "&#" * N + "&amp;" * N,
    "underscores": "_" * N + "__A" * N,
    "lines": "a\n" * N + ":" * N,
    "blanks in a template": "{{nowrap|" + " " * N + "\n}} {{nowrap|a" + " " * N + "b\t" * N + "}}",
    "a quantity of many ranges": "{{convert|1" + "|to|1" * N + "|m}}",
    "media": "[[a:" + ".jpg " * N + "x]]",
}


@pytest.mark.parametrize("page", HOSTILE, ids=str)
def test_linear_in_time(page: str) -> None:
    passages = extract_passages(HOSTILE[page] + "\n\nA dog barks.\n")
    assert sum(map(len, passages)) <= len(HOSTILE[page]) + 100


def test_long_page() -> None:
    paragraph = "A '''dog''' is an [[animal]]<ref>{{cite|x}}</ref> that {{nowrap|can [[bark]]}} at {{convert|5|m}}.\n\n"
    count = 10_000_000 // len(paragraph)
    assert extract_passages(paragraph * count) == ["A dog is an animal that can bark at 5 m."] * count
