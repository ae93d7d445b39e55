"""What a command shows at its end, when all it has made is safe."""

from __future__ import annotations

import io
import os
import sys


def show(text: str) -> None:
    """Print as much as can be shown: whoever reads may lack a letter, or be gone as `head` is."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        print(text, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python fails once more at its end
