"""Pictures as files."""

from __future__ import annotations

import io
from pathlib import Path

from matplotlib.figure import Figure

from trainer.files import write_atomically

_DPI = 150


def save_picture(figure: Figure, path: Path) -> None:
    """Write a PNG so that a reader sees the old one or the whole new one."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=_DPI)
    write_atomically(path, content.getvalue())
