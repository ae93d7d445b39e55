"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def markdown_table(rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """A table in Markdown that is aligned as plain text too.

    Args:
        rows: the header first, all of one length.
        numbers: columns that are aligned to the right.
    """
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    widths = [max(3, *(len(row[i]) for row in cells)) for i in range(len(cells[0]))]
    rule = ["-" * (width - 1) + ":" if i in numbers else "-" * width for i, width in enumerate(widths)]
    return "".join(_line(row, widths, numbers) for row in (cells[0], rule, *cells[1:]))


def _line(row: Sequence[str], widths: Sequence[int], numbers: Sequence[int]) -> str:
    columns = enumerate(zip(row, widths, strict=True))
    padded = (cell.rjust(width) if i in numbers else cell.ljust(width) for i, (cell, width) in columns)
    return f"| {' | '.join(padded)} |\n"
