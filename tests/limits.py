"""Limits of this process, for a while: what a crowded machine does, without one."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager


@contextmanager
def limit(kind: int, soft: int) -> Iterator[None]:
    """Let this process have no more than ``soft`` of what one of resource.RLIMIT_* counts."""
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """A limit on the size of files fails in the middle of a line, as a full disk does."""
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with limit(resource.RLIMIT_FSIZE, size):
            yield
    finally:
        signal.signal(signal.SIGXFSZ, before)


def too_many_open_files() -> AbstractContextManager[None]:
    """No file can be opened, whatever is open already."""
    return limit(resource.RLIMIT_NOFILE, 3)
