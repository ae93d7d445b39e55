"""Settings: TOML files, section.key=value overrides, and dataclasses that say which keys there are.

A recipe (trainer.config) and a cluster's settings (cluster.settings) are read by this.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from datetime import date, time
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import pydantic

from preprocessing.status import exists

_OF_TYPES = {"tuple_type": "Input should be a list, in square brackets"}  # TOML has no tuples
_DEEPEST = 4  # files that extend one another
_RECIPES = Path(__file__).with_name("recipes")  # that come with the trainer
_Settings = TypeVar("_Settings")


class ConfigError(ValueError):
    """A setting that is unknown, of the wrong type or contradicts another. The message names it."""


def parse(raw: dict[str, Any], kind: type[_Settings], where: str, overrides: Sequence[str] = ()) -> _Settings:
    """Turn nested dictionaries into a dataclass of dataclasses.

    Args:
        raw: tables, as a file has them; overrides are written into them.
        kind: of the dataclass.
        where: begins the message of an error, unless it is an override's.
        overrides: of single keys, such as ``train.seed=2``; see apply_override.

    Raises:
        ConfigError: an unknown key, a wrong type or an impossible value.
    """
    for override in overrides:
        apply_override(raw, override)
    try:
        _reject(raw, kind, "")
        return pydantic.TypeAdapter(kind).validate_python(raw)
    except _BadKeyError as error:
        raise ConfigError(_located(str(error), error.key, where, overrides)) from error
    except pydantic.ValidationError as error:
        key = ".".join(map(str, error.errors()[0]["loc"]))
        raise ConfigError(_located(first_problem(error), key, where, overrides)) from error


def first_problem(error: pydantic.ValidationError) -> str:
    """Where in a table something is wrong, and what: the first problem of several."""
    first = error.errors()[0]
    problem = _OF_TYPES.get(first["type"], first["msg"].removeprefix("Value error, "))
    return ": ".join(filter(None, (".".join(map(str, first["loc"])), problem)))


def by_key(tables: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a file's tables by section.key or, of an array of tables such as phases, section.0.key.

    What is in no table is left out; a value that is a table or a list itself stays one.
    """
    named = (
        (f"{name}.{i}" if isinstance(found, list) else name, table)
        for name, found in tables.items()
        for i, table in enumerate(found if isinstance(found, list) else [found])
        if isinstance(table, dict)
    )
    return {f"{name}.{key}": value for name, table in named for key, value in table.items()}


class _BadKeyError(ValueError):
    """What is wrong with a key."""

    def __init__(self, key: str, message: str):
        super().__init__(message)
        self.key = key


def _located(message: str, key: str, where: str, overrides: Sequence[str]) -> str:
    """With where the key's value is from: an override, or the file and what overrides have changed within the key."""
    paths = {override: override.partition("=")[0] for override in overrides}
    if whole := [override for override, path in paths.items() if f"{key}.".startswith(f"{path}.")]:
        return f"{whole[-1]}: {message}"
    within = [override for override, path in paths.items() if not key or path.startswith(f"{key}.")]
    return f"{where}: {message} (with {' '.join(within)})" if within else f"{where}: {message}"


def read_toml(path: Path, what: str, depth: int = 0) -> dict[str, Any]:
    """A file's tables; where it ``extends`` another file beside it, that file's with these in their place.

    Args:
        path: a TOML file.
        what: it is, for messages.
        depth: how many files led here.

    Raises:
        ConfigError: no such file, or not TOML.
    """
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8-sig"))  # some editors begin with a mark
    except OSError as error:
        ours = _RECIPES / f"{path.name.removesuffix('.toml')}.toml"
        hint = f"; there is {ours}" if what == "recipe" and ours.is_file() else ""
        raise ConfigError(f"{path}: can't read the {what} ({error.strerror}){hint}") from error
    except (ValueError, RecursionError) as error:  # numbers too long, tables too deep are no TOMLDecodeError
        raise ConfigError(f"{path}: not a TOML file ({error})") from error
    parent = raw.pop("extends", None)
    if parent is None:
        return raw
    is_name = isinstance(parent, str) and Path(parent).name == parent and parent not in {"", ".."}
    if not is_name or "\0" in parent or depth == _DEEPEST:
        raise ConfigError(
            f"{path}: extends must name another {what} in the same folder, not in circles nor over more than "
            f"{_DEEPEST} files"
        )
    base = path.with_name(parent)
    try:
        is_there = exists(base)
    except OSError as error:
        raise ConfigError(f"{base}: can't read the {what} ({error.strerror})") from error
    if not is_there:
        known = f" from {_RECIPES}" if (_RECIPES / parent).is_file() else ""
        raise ConfigError(
            f'{path}: extends = "{parent}", which is not in {base.absolute().parent}; copy it there{known}'
        )
    return merge(read_toml(base, what, depth + 1), raw)


def merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Tables within tables are merged, everything else, lists too, is replaced."""
    in_both = [key for key, value in changes.items() if isinstance(value, dict) and isinstance(base.get(key), dict)]
    return {**base, **changes, **{key: merge(base[key], changes[key]) for key in in_both}}


def is_override(word: str) -> bool:
    """Whether a word of a command line is such as ``train.seed=2``."""
    return re.match(r"\w+(\.\w+)+=", word, re.ASCII) is not None


def apply_override(raw: dict[str, Any], override: str) -> None:
    """Set one dotted key, such as ``train.seed=2``; a number in the path is a place in a list.

    Raises:
        ConfigError: not of that form, or there is no such place.
    """
    path, separator, text = override.partition("=")
    if not separator or not path:
        raise ConfigError(f"{override!r} is not of the form section.key=value")
    *parents, last = path.split(".")
    node: Any = raw
    for part in parents:
        node = node.setdefault(part, {}) if isinstance(node, dict) else _item(node, part, path)
    if isinstance(node, list):
        _item(node, last, path)
        node[int(last)] = _parse(text)
    elif isinstance(node, dict):
        node[last] = _parse(text)
    else:
        raise ConfigError(f"{override!r}: {'.'.join(parents)} is a single value and has no keys of its own")


def _item(node: Any, part: str, path: str) -> Any:
    if not isinstance(node, list) or not part.isdecimal() or int(part) >= len(node):
        there = f"; those there end with number {len(node) - 1}" if isinstance(node, list) and node else ""
        raise ConfigError(f"{path}: there is no {part!r} at this place of the settings{there}")
    return node[int(part)]


def _parse(text: str) -> Any:
    """A value as TOML would read it; a string where it is none, a time, infinite, or a whole number in another form.

    Accounts are called 2024_01 and partitions inf, and whoever means a number writes 202401.
    """
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text
    is_of_another_form = type(value) is int and str(value) != text.strip()
    is_infinite = type(value) is float and not math.isfinite(value)
    return text if is_of_another_form or is_infinite or isinstance(value, date | time) else value


def _reject(raw: Any, kind: Any, prefix: str) -> None:
    """Raise for the first key that no section knows, with the nearest known one, or that has what is no such number."""
    if get_origin(kind) in (list, tuple) and isinstance(raw, list):
        for i, item in enumerate(raw):
            _reject(item, get_args(kind)[0], f"{prefix}{i}.")
    kind = _section(kind)
    key = prefix.removesuffix(".")
    if isinstance(raw, bool) and kind in (int, float):  # pydantic takes true for 1
        raise _BadKeyError(key, f"{key} is {str(raw).lower()}; give a number")
    if isinstance(raw, int) and kind in (int, float) and abs(raw) > 1 << 63:
        raise _BadKeyError(key, f"{key} is out of range; give a number of 64 bits")
    if not dataclasses.is_dataclass(kind) or not isinstance(raw, dict):
        return
    hints = get_type_hints(kind)
    for name, value in raw.items():
        if name not in hints:
            raise _BadKeyError(f"{prefix}{name}", f"unknown setting {prefix}{name}; {_advice(name, hints, prefix)}")
        _reject(value, hints[name], f"{prefix}{name}.")


def _advice(key: str, hints: dict[str, Any], prefix: str) -> str:
    """What may be meant by an unknown key: that key of a section within, or else one that is spelled alike."""
    within = {name: _section(kind) for name, kind in hints.items()}
    meant = [
        f"{name}.{key}"
        for name, kind in within.items()
        if dataclasses.is_dataclass(kind) and key in get_type_hints(kind)
    ]
    meant = meant or difflib.get_close_matches(key, hints, n=1)
    if meant:
        return f"did you mean {' or '.join(prefix + name for name in meant)}?"
    return f"known here: {', '.join(sorted(hints))}"


def _section(kind: Any) -> Any:
    """Of SECTION | None the section; any other kind as it is."""
    return get_args(kind)[0] if get_origin(kind) is UnionType else kind
