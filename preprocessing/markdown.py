"""Text and tables in Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from preprocessing.terminal import in_line

# What would be an escape, code, emphasis, a link or picture, HTML or an address, or an entity.
_MARKS = re.compile(
    r"""\\(?=[!-/:-@\[-`{-~])|`|\*(?=\S)|(?<=\S)\*|(?<![^\W_])_(?=\S)|(?<=\S)_(?![^\W_])|(?<=\])\("""
    r"""|<(?=[A-Za-z/!?])|&(?=\#?\w+;)"""
)


def plain(text: str) -> str:
    """Markdown that shows a text as it is, in a line: a backslash goes before what would be read as a mark."""
    return _MARKS.sub(r"\\\g<0>", in_line(text))


def markdown_table(rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """A table in Markdown that is aligned as plain text too.

    Args:
        rows: the header first, all of one length; texts, which show as they are.
        numbers: columns that are aligned to the right.
    """
    cells = [[plain(cell).replace("|", "\\|") for cell in row] for row in rows]
    widths = [max(3, *(len(row[i]) for row in cells)) for i in range(len(cells[0]))]
    rule = ["-" * (width - 1) + ":" if i in numbers else "-" * width for i, width in enumerate(widths)]
    return "".join(_line(row, widths, numbers) for row in (cells[0], rule, *cells[1:]))


def _line(row: Sequence[str], widths: Sequence[int], numbers: Sequence[int]) -> str:
    columns = enumerate(zip(row, widths, strict=True))
    padded = (cell.rjust(width) if i in numbers else cell.ljust(width) for i, (cell, width) in columns)
    return f"| {' | '.join(padded)} |\n"
