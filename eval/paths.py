"""Paths in the words of a command."""

from __future__ import annotations

import argparse
from pathlib import Path


def parse_path(text: str) -> Path:
    """A path, with the home directory for ``~``, which no shell puts into ``--output=~/results``.

    Raises:
        argparse.ArgumentTypeError: it begins with ``~`` and the name of nobody.
    """
    try:
        return Path(text).expanduser() if text.startswith("~") else Path(text)  # ./~ is a name
    except RuntimeError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: there is no such home directory; write ./ before it") from error
