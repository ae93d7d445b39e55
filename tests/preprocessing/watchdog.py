"""A watchdog that notes what it is told, for tests of what is watched."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager


class _Dog:
    def __init__(self, happened: list[str]):
        self._happened = happened

    def watch(self, what: str) -> bool:
        self._happened.append(what)
        return True

    def rest(self) -> None:
        self._happened.append("rest")


def noting(happened: list[str]) -> Callable[[str, float], AbstractContextManager[_Dog]]:
    """What stands in for `watching`: all that is watched, and each "rest", is added to a list."""
    return lambda _folder, _patience: contextlib.nullcontext(_Dog(happened))
