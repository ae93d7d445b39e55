"""What other programs say of a machine."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence


def ask(command: Sequence[str], patience: float = 30.0) -> str:
    """What a program prints, in so many seconds.

    Raises:
        OSError: it can't be started.
        SubprocessError: it fails, or takes too long.
    """
    return subprocess.run(  # noqa: S603
        command, capture_output=True, encoding="utf-8", errors="replace", timeout=patience, check=True
    ).stdout
