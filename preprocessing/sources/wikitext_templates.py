"""Templates whose text belongs to the sentence around them: a short table, everything else is dropped.

A template is a program of the wiki that we don't have. Most of them are references, boxes and notes. These few are
words of a sentence, and dropping them breaks it: "a height of {{convert|20|m|ft}}". The names are English
Wikipedia's, many of them shared by the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable

Rule = Callable[[list[str]], str]  # from the positional arguments, of which there is at least one

_ARGUMENT_NAME = re.compile(r"[\w -]+")
_NUMBER = re.compile(r"[\d., /+−-]+")
_RANGE_WORDS = frozenset(["-", "–", "to", "to about", "and", "or", "by", "x", "×", "+/-", "±", "&"])
_UNITS = {"C": "°C", "F": "°F", "km2": "km²", "m2": "m²", "ft2": "sq ft", "sqft": "sq ft", "sqmi": "sq mi", "m3": "m³"}


def _first(values: list[str]) -> str:
    return values[0]


def _second(values: list[str]) -> str:
    return "".join(values[1:2])


def _last(values: list[str]) -> str:
    return values[-1]


def _first_two(values: list[str]) -> str:
    return " ".join(values[:2])


def _after(prefix: str) -> Rule:
    return lambda values: prefix + values[0]


def _quantity(values: list[str]) -> str:
    """{{convert|20|m|ft}}: as the author wrote it, 20 m, without what it converts to; 10 to 20 km; 6 ft 2 in."""
    said, rest = values[:1], values[1:]
    while len(rest) > 1 and rest[0] in _RANGE_WORDS:
        said += rest[:2]
        rest = rest[2:]
    said += [_UNITS.get(unit, unit) for unit in rest[:1]]
    if len(rest) > 2 and _NUMBER.fullmatch(rest[1]):
        said += rest[1:3]
    return " ".join(said)


def _fraction(values: list[str]) -> str:
    """{{frac|1|2}}: 1/2, as is {{frac|2}}; {{frac|3|1|2}}: 3 1/2."""
    return " ".join([*values[:-2], "/".join(["1", *values][-2:])])


_WRAPPERS = """
    abbr angbr big blockquote center code cquote em flag flagcountry ill large larger linktext math mono mvar nastaliq
    nihongo nobold nobr nobreak noitalic nowrap nq quotation quote sc sic small smallcaps smaller strong sub sup tooltip
    tt val vanchor var
"""
_RULES: dict[str, Rule] = {
    **dict.fromkeys(_WRAPPERS.split(), _first),
    **dict.fromkeys(["lang", "transl", "transliteration", "resize", "color", "rtl-lang"], _last),
    **dict.fromkeys(["langx", "native name"], _second),
    **dict.fromkeys(["convert", "cvt"], _quantity),
    **dict.fromkeys(["frac", "fraction", "sfrac"], _fraction),
    **dict.fromkeys(["chem", "chem2"], "".join),
    **dict.fromkeys(["circa", "c.", "ca."], _after("c. ")),
    "us$": _after("US$"),
    "as of": _after("As of "),
    "uss": _after("USS "),
    "hms": _after("HMS "),
    "ship": _first_two,
}
_PREFIX_RULES: dict[str, Rule] = {"lang-": _first, "script/": _first}  # {{lang-fr|...}}
_LITERALS = {
    **dict.fromkeys(["spaces", "nbsp", "space"], " "),
    **dict.fromkeys(["snd", "snds", "spaced ndash", "spnd", "ndash", "–"], " – "),
    **dict.fromkeys(["mdash", "mdashb", "emdash", "—"], "—"),
    **dict.fromkeys(["shy", "wbr", "zwj", "zwnj", "-"], ""),
    "'": "'",
    "'s": "'s",
    "=": "=",
    "!": "|",
}


def _rule(name: str) -> Rule | None:
    return _RULES.get(name) or next((rule for prefix, rule in _PREFIX_RULES.items() if name.startswith(prefix)), None)


def _name(content: str) -> str:
    return content.partition("|")[0].strip().lower().replace("_", " ")


def has_text(content: str) -> bool:
    """Whether a template, given what lies between its braces or the beginning of it, is one of the table."""
    name = _name(content)
    return name in _LITERALS or name.startswith("formatnum:") or _rule(name) is not None


def template_text(content: str) -> str | None:
    """The text of a template, given what lies between its braces with all inner marks resolved; None if it has none.

    Named arguments are options and are ignored, except text= (of quotations) and numbers: {{lang|2=mot|1=fr}}.
    """
    name = _name(content)
    if name in _LITERALS:
        return _LITERALS[name]
    if name.startswith("formatnum:"):
        return content.partition(":")[2]
    rule = _rule(name)
    values = _positional(content.split("|")[1:])
    return rule(values) if rule and values else None


def _positional(arguments: list[str]) -> list[str]:
    values = []
    for argument in arguments:
        before, equals, value = argument.partition("=")
        name = before.strip() or " " * (" " in before)  # a name of blanks is one too
        if not (equals and _ARGUMENT_NAME.fullmatch(name)):
            values.append(argument.strip())
        elif name == "text" or name.isdigit():
            values.append(value.strip())
    return values
