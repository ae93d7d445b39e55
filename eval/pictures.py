"""Pictures as files."""

from __future__ import annotations

import io
import re
import sys
import warnings
from pathlib import Path

from matplotlib.figure import Figure

from preprocessing.terminal import in_line
from trainer.files import write_atomically

_DPI = 150


def save_picture(figure: Figure, path: Path) -> None:
    """Write a PNG so that a reader sees the old one or the whole new one; say where no font has a character of it."""
    content = io.BytesIO()
    with warnings.catch_warnings(record=True) as told:
        warnings.filterwarnings("always", r"Glyph \d+ .* missing from font")
        figure.savefig(content, format="png", dpi=_DPI)
    write_atomically(path, content.getvalue())
    if characters := {int(found[1]) for each in told if (found := re.match(r"Glyph (\d+)", str(each.message)))}:
        print(
            f"note: {in_line(str(path))}: no font here has {len(characters)} of its characters, such as "
            f"{chr(min(characters))!r}; install the script's, such as Noto Sans CJK",
            file=sys.stderr,
        )
