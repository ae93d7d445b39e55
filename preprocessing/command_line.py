"""The parser of all commands, which tells a mistake in a line and an unknown option first, and types of options."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn

from preprocessing.terminal import tell_error

_MOST_DIGITS = 100  # of a whole number; Python reads no more than 4,300
TYPO = 0.8  # how alike, by difflib, an unknown option is to the one that was meant; of Beam's to ours none reaches 0.71


class OneLineParser(argparse.ArgumentParser):
    """A parser that takes no beginnings of options for them, and whose errors are one line.

    argparse tells of an option that it needs before one that it does not know, which may be the same one misspelt.
    Where the rest of the line is another program's, its words are not looked at.
    """

    def __init__(self, prog: str | None = None, **settings: Any) -> None:
        super().__init__(prog, allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        """Tell what is wrong and exit with code 2."""
        tell_error(f"{message}; see --help", self.prog)
        raise SystemExit(2)

    def parse_args(  # type: ignore[override]  # whose overloads are for other namespaces than argparse's
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """As argparse does, once all options are known."""
        self._refuse_unknown(args)
        return super().parse_args(args, namespace)

    def parse_intermixed_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """As argparse does, once all options are known."""
        self._refuse_unknown(args)
        return super().parse_intermixed_args(args, namespace)

    def refuse_names_of_others(self, words: Sequence[str], here: Mapping[str, str]) -> None:
        """End at an option that is called as another program calls it.

        Args:
            words: of the command line.
            here: by their names, what it is in this program. Dashes within a name are taken for underscores.
        """
        for option in map(_option, takewhile("--".__ne__, words)):
            meant = here.get(option[:2] + option[2:].replace("-", "_"))
            if meant and option not in self._options():
                self.error(f"unknown option {option}: here it is {meant}")

    def refuse_misspelt(self, words: Sequence[str]) -> None:
        """End where an option is not known that is much like one that is."""
        for option in map(_option, self.unknown(words)):
            if meant := get_close_matches(option, self._options(), n=1, cutoff=TYPO):
                self.error(f"unknown option {option!r}: did you mean {meant[0]!r}?")

    def unknown(self, words: Sequence[str]) -> Iterator[str]:
        """The words that are options and not known; what has a blank in its name is a value, as argparse has it."""
        known = self._options()
        for word in takewhile("--".__ne__, words):
            if word.startswith("--") and " " not in _option(word) and _option(word) not in known:
                yield word

    def _refuse_unknown(self, words: Sequence[str] | None) -> None:
        if any(action.nargs == argparse.REMAINDER for action in self._arguments()):
            return
        words = sys.argv[1:] if words is None else words
        self.refuse_misspelt(words)
        for option in map(_option, self.unknown(words)):
            self.error(f"unknown option {option!r}")

    def _options(self) -> set[str]:
        return {option for action in self._arguments() for option in action.option_strings}

    def _arguments(self) -> Iterator[argparse.Action]:
        """Its own and those of its commands."""
        for action in self._actions:
            yield action
            if isinstance(action, argparse._SubParsersAction):
                for command in action.choices.values():
                    yield from command._arguments()


def whole_number(least: int, most: int = 2**63) -> Callable[[str], int]:
    """An argparse type: a whole number between two, both included."""

    def parse(text: str) -> int:
        is_long = len(text) > _MOST_DIGITS
        if not text.isdecimal() or (not is_long and int(text) < least):
            told = f"{text[:_MOST_DIGITS]!r}..." if is_long else repr(text)
            raise argparse.ArgumentTypeError(f"{told} is not a whole number of {least} or more")
        if is_long or int(text) > most:
            told = f"a number of {len(text):,} digits" if is_long else text
            raise argparse.ArgumentTypeError(f"{told} is more than {most}, the most that is taken here")
        return int(text)

    return parse


def number(meant: str, fits: Callable[[float], bool]) -> Callable[[str], float]:
    """An argparse type: a number that fits; what is none is NaN, which is in no range."""

    def parse(text: str) -> float:
        try:
            found = float(text)
        except ValueError:
            found = math.nan
        if not fits(found):
            raise argparse.ArgumentTypeError(f"{text!r} is not {meant}")
        return found

    return parse


def parse_place(text: str) -> str:
    """As parse_path, but an address is left as it is.

    Raises:
        argparse.ArgumentTypeError: as there.
    """
    return text if "://" in text else str(parse_path(text))


def parse_path(text: str) -> Path:
    """A path, with the home directory for ``~``, which no shell puts into ``--output=~/results``.

    Raises:
        argparse.ArgumentTypeError: it is empty, holds a NUL, begins with ``~`` and the name of nobody, or leads to a
            name that is not UTF-8, which no results could tell.
    """
    if not text:  # which pathlib takes for the current folder, and a shell makes of a variable that is not set
        raise argparse.ArgumentTypeError("the path is empty; write . for the current folder")
    if "\0" in text:  # as a setting may
        raise argparse.ArgumentTypeError(f"{text!r}: it holds a NUL character, which no path can")
    try:
        path = Path(text).expanduser() if text.startswith("~") else Path(text)  # ./~ is a name
    except RuntimeError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: there is no such home directory; write ./ before it") from error
    try:
        os.path.realpath(path).encode()
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r}: it, or a folder around it, has a name that is not UTF-8; rename that"
        ) from error
    return path


def _option(word: str) -> str:
    return word.partition("=")[0]
