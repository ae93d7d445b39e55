"""Paths in the words of a command."""

from __future__ import annotations

import argparse
import os
from pathlib import Path


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
