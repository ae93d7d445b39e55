"""Waiting for other processes, and looking what they hold."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterable
from pathlib import Path


def wait_for(condition: Callable[[], object], seconds: float = 240) -> None:
    """Until something holds; the seconds only end a test that would wait for ever."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def assert_free(locks: Iterable[Path]) -> None:
    """That nobody holds any of some locks, of which there is one at least."""
    paths = list(locks)
    assert paths
    for path in paths:
        with path.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
