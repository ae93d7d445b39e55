"""Waiting for what other processes and threads do."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_for(condition: Callable[[], object], seconds: float = 240) -> None:
    """Until something holds; the seconds only end a test that would wait for ever."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not after {seconds:g} seconds"
        time.sleep(0.02)
