"""Templates whose text belongs to the sentence around them: a short table, everything else is dropped.

A template is a program of the wiki that we don't have. Most of them are references, boxes and notes. These few are
words of a sentence, and dropping them breaks it: "a height of {{convert|20|m|ft}}". The names are English
Wikipedia's, many of them shared by the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable

Rule = Callable[[list[str]], str | None]  # from the positional arguments, of which there is at least one
RuleOfNames = Callable[[list[str], dict[str, str]], str]  # from these, perhaps none, and from the named ones

_ARGUMENT_NAME = re.compile(r"[\w -]+")
_NUMBER = re.compile(r"[\d., /+−-]+")
_RANGE = re.compile(r"(-|–|to|to about|and|or|by|x|×|\*|\+/-|±|&)(?:\(.\))?")  # and(-): "and" here, a dash in a table
_UNITS = {"C": "°C", "F": "°F", "km2": "km²", "m2": "m²", "ft2": "sq ft", "sqft": "sq ft", "sqmi": "sq mi", "m3": "m³"}
_NUMBER_WITH_UNIT = re.compile(r"(?<=\d)(?=[a-z])|(?<=[a-z])(?=\d)")
_ACCIDENTALS = {"flat": "♭", "b": "♭", "sharp": "♯", "#": "♯", "natural": "♮"}
_MONTHS = "January February March April May June July August September October November December"
_NAMES_OF_MONTHS = {str(number): name for number, name in enumerate(_MONTHS.split(), 1)}
_MAGNITUDES = {"c": " crore", "l": " lakh", "k": " thousand", "m": " million", "b": " billion", "t": " trillion"}


def _first(values: list[str]) -> str:
    return values[0]


def _second(values: list[str]) -> str:
    return "".join(values[1:2])


def _last(values: list[str]) -> str:
    return values[-1]


def _first_two(values: list[str]) -> str:
    """{{ship|USS|Maine|1889}}: USS Maine; {{ship||Maine}}: Maine, and no blank, which would indent a line."""
    return " ".join(filter(None, values[:2]))


def _after(prefix: str) -> Rule:
    return lambda values: prefix + values[0]


def _years(prefix: str) -> RuleOfNames:
    """{{circa|1950|1960}}: c. 1950–1960; {{circa}}, before a year that follows: c."""
    return lambda values, _names: prefix + "–".join(values)


def _solar(unit: str) -> RuleOfNames:
    """{{solar mass|1.5}}: 1.5 M☉; {{solar mass}}, after a number: M☉."""
    return lambda values, _names: " ".join([*values[:1], unit])


def _quantity(values: list[str]) -> str:
    """{{convert|20|m|ft}}: as the author wrote it, 20 m, without what it converts to; 10 to 20 km; 6 ft 2 in."""
    said, at = values[:1], 1  # a place, and not what is left, which a template of many ranges would copy for each
    while at + 1 < len(values) and (range_ := _RANGE.fullmatch(values[at])):
        said += [range_[1], values[at + 1]]
        at += 2
    said += [_UNITS.get(unit, unit) for unit in values[at : at + 1]]
    second = values[at + 1 : at + 3]
    if len(second) == 2 and _NUMBER.fullmatch(second[0]):
        said += second
    return " ".join(said)


def _fraction(values: list[str]) -> str:
    """{{frac|1|2}}: 1/2, as is {{frac|2}}; {{frac|3|1|2}}: 3 1/2."""
    return " ".join([*values[:-2], "/".join(["1", *values][-2:])])


def _class(values: list[str]) -> str:
    """{{sclass|Nimitz|aircraft carrier}}: Nimitz-class aircraft carrier."""
    return f"{values[0]}-class {_second(values)}"


def _music(values: list[str]) -> str | None:
    """{{music|flat}}: ♭; {{music|time|3|4}}: 3/4."""
    return "/".join(values[1:]) if values[0] == "time" else _ACCIDENTALS.get(values[0])


def _verse(values: list[str]) -> str:
    """{{bibleverse|1|Samuel|2:3}}: 1 Samuel 2:3; {{bibleverse||Mark|3:25}} and {{bibleverse|Mark|3:25}}: Mark 3:25."""
    numbered = not values[0] or values[0].isdigit()
    return " ".join(filter(None, values[: 2 + numbered]))


def _authors(values: list[str]) -> str:
    """{{harvtxt|Smith|Jones|2000}}: Smith and Jones (2000)."""
    *names, year = values
    authors = " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
    return f"{authors} ({year})"


def _gauge(values: list[str]) -> str | None:
    """{{track gauge|1435mm}}: 1435 mm; a name of a gauge says nothing to a reader."""
    return _NUMBER_WITH_UNIT.sub(" ", values[0]) if values[0][:1].isdigit() else None


def _rupees(values: list[str]) -> str:
    """{{INRConvert|50|c}}: ₹50 crore; {{INRConvert|50|–|60|c|1}}, rounded when converted: ₹50–60 crore."""
    named = next((place for place, value in enumerate(values) if value in _MAGNITUDES), 1)
    return f"₹{''.join(values[:named])}{_MAGNITUDES.get(''.join(values[named : named + 1]), '')}"


def _value(values: list[str], names: dict[str, str]) -> str:
    """{{val|5.97|0.01|e=24|u=kg}}: 5.97±0.01×10^24 kg; {{val|6|(1)}}: 6(1); {{val|6|0.1|0.2}}: 6+0.1−0.2."""
    number, *errors = values or [""]
    signs = ["+", "−"] if errors[1:] else [""] if errors and errors[0].startswith("(") else ["±"]
    number += "".join(sign + error for sign, error in zip(signs, errors, strict=False))
    power = f"×10^{names['e']}" if names.get("e") else ""
    unit, per = (names.get(name) or names.get(f"{name}l", "") for name in ("u", "up"))
    return number + power + (f" {unit}" if unit else "") + (f"/{per}" if per else "")


def _since(values: list[str], names: dict[str, str]) -> str:
    """{{as of|2011|5|lc=y}}: as of May 2011; since=y: since; bare=y: the date; pre=early: early 2011; alt=: that."""
    if names.get("alt"):
        return names["alt"]
    if not values:
        return ""
    begin = "" if names.get("bare") else "since" if names.get("since") else "as of"
    year, month, day = [*values[:3], "", ""][:3]
    month = _NAMES_OF_MONTHS.get(month.lstrip("0"), month)
    date = f"{month} {day}, {year}" if day and names.get("df", "").lower() == "us" else f"{day} {month} {year}"
    said = " ".join(" ".join([begin, names.get("pre", ""), date]).split())
    return said if names.get("lc") else said[:1].upper() + said[1:]


def _red_link(values: list[str], names: dict[str, str]) -> str:
    """{{ill|Albert Foo (painter)|de|lt=Albert Foo}}: Albert Foo."""
    return names.get("lt") or "".join(values[:1])


_WRAPPERS = """
    abbr angbr big blockquote center code cquote dp em flag flagcountry gloss iast kbd large larger linktext math mono
    mvar nastaliq nihongo nobold nobr nobreak noitalic nowrap nq poemquote quotation quote rws samp sc sic small
    smallcaps smaller station stn stnlnk strong sub sup tooltip tt vanchor var
"""
_LONG_WRAPPERS = ["block indent", "nihongo foot", "not a typo", "proper name", "visible anchor"]
_SHIPS = "hmas hmcs hms hmnzs ins mv rms sms ss uscgc usns uss"
_CURRENCIES = {
    **dict.fromkeys(["us$", "usd"], "US$"),
    **dict.fromkeys(["£", "gbp"], "£"),
    **dict.fromkeys(["€", "eur"], "€"),
    **dict.fromkeys(["¥", "jpy"], "¥"),
    **dict.fromkeys(["₹", "inr", "indian rupee"], "₹"),
    **dict.fromkeys(["a$", "aud"], "A$"),
    **dict.fromkeys(["ca$", "cad"], "CA$"),
    **dict.fromkeys(["nz$", "nzd"], "NZ$"),
}
_RULES: dict[str, Rule] = {
    **dict.fromkeys([*_WRAPPERS.split(), *_LONG_WRAPPERS], _first),
    **dict.fromkeys(
        ["lang", "langr", "wikt-lang", "transl", "translit", "transliteration", "resize", "color", "rtl-lang"], _last
    ),
    **dict.fromkeys(["langx", "native name"], _second),
    **dict.fromkeys(["convert", "cvt"], _quantity),
    **dict.fromkeys(["frac", "frac2", "fraction", "sfrac"], _fraction),
    **dict.fromkeys(["chem", "chem2", "mp", "mpl"], "".join),
    **dict.fromkeys(["key press", "keypress", "key"], "+".join),
    **dict.fromkeys(["sclass", "sclass2"], _class),
    **dict.fromkeys(["bibleverse", "bibleref", "bibleref2"], _verse),
    **dict.fromkeys(["ship", "oldstyledate", "oldstyledatedy"], _first_two),
    **dict.fromkeys(["track gauge", "railgauge"], _gauge),
    **dict.fromkeys(["radic", "sqrt"], _after("√")),
    **{name: _after(f"{name.upper()} ") for name in _SHIPS.split()},
    **{name: _after(sign) for name, sign in _CURRENCIES.items()},
    "inrconvert": _rupees,
    **dict.fromkeys(["harvtxt", "harvard citation text"], _authors),
    **dict.fromkeys(["lit", "literal translation"], _after("lit. ")),
    "music": _music,
    "e": _after("×10^"),
    "us patent": _after("U.S. Patent "),
}
_RULES_OF_NAMES: dict[str, RuleOfNames] = {
    **dict.fromkeys(["circa", "c.", "ca."], _years("c. ")),
    **dict.fromkeys(["floruit", "fl."], _years("fl. ")),
    **dict.fromkeys(["ill", "illm", "interlanguage link", "interlanguage link multi"], _red_link),
    **dict.fromkeys(["val", "value"], _value),
    "as of": _since,
    "solar luminosity": _solar("L☉"),
    "solar mass": _solar("M☉"),
    "solar radius": _solar("R☉"),
}
_PREFIX_RULES: dict[str, Rule] = {"lang-": _first, "script/": _first}  # {{lang-fr|...}}
_LITERALS = {
    **dict.fromkeys(["spaces", "nbsp", "space", "thinsp", "thin space", "hair space", "hairsp"], " "),
    **dict.fromkeys(["snd", "snds", "spaced ndash", "spaced en dash", "spnd", "ndash", "–"], " – "),
    **dict.fromkeys(["mdash", "mdashb", "emdash", "em dash", "—"], "—"),
    **dict.fromkeys(["en dash", "endash", "nbnd", "nbndash"], "–"),
    **dict.fromkeys(["shy", "wbr", "zwj", "zwnj", "-"], ""),
    **dict.fromkeys(["'", "-'"], "'"),
    **dict.fromkeys(["' \"", "'\""], "'\""),
    **dict.fromkeys(["\" '", "\"'"], "\"'"),
    '-"': '"',
    "'s": "'s",
    "=": "=",
    "!": "|",
    "flat": "♭",
    "sharp": "♯",
    "natural": "♮",
    "half": "1/2",
    "okina": "ʻ",
    "pi": "π",
    "co2": "CO2",
}


def _rule(name: str) -> Rule | None:
    return _RULES.get(name) or next((rule for prefix, rule in _PREFIX_RULES.items() if name.startswith(prefix)), None)


def _name(content: str) -> str:
    return content.partition("|")[0].strip().lower().replace("_", " ")


def has_text(content: str) -> bool:
    """Whether a template, given what lies between its braces or the beginning of it, is one of the table."""
    name = _name(content)
    known = name in _LITERALS or name in _RULES_OF_NAMES
    return known or name.startswith("formatnum:") or _rule(name) is not None


def template_text(content: str) -> str | None:
    """The text of a template, given what lies between its braces with all inner marks resolved; None if it has none.

    Named arguments are options and are ignored, except text= (of quotations), numbers, as in {{lang|2=mot|1=fr}}, and
    those that a few rules ask for.
    """
    name = _name(content)
    if name in _LITERALS:
        return _LITERALS[name]
    if name.startswith("formatnum:"):
        return content.partition(":")[2].strip()
    values, names = _arguments(content)
    if name in _RULES_OF_NAMES:
        return _RULES_OF_NAMES[name](values, names) or None
    rule = _rule(name)
    return rule(values) if rule and values else None


def _arguments(content: str) -> tuple[list[str], dict[str, str]]:
    """The positional arguments of a template and the other ones."""
    values, names = [], {}
    for argument in content.split("|")[1:]:
        before, equals, value = argument.partition("=")
        name = before.strip() or " " * (" " in before)  # a name of blanks is one too
        if not (equals and _ARGUMENT_NAME.fullmatch(name)):
            values.append(argument.strip())
        elif name == "text" or name.isdigit():
            values.append(value.strip())
        else:
            names[name] = value.strip()
    return values, names
