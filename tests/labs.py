"""Laboratories beside the checkout, such as a real SLURM; a machine has one of each, and tests run side by side."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def to_itself(lab: str) -> Iterator[None]:
    """Wait until no other process has the laboratory, and keep it from them."""
    with (Path(tempfile.gettempdir()) / f"{lab}-lab.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
