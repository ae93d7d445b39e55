"""Storage that fails, at one file."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

REASON = os.strerror(errno.EIO)


def fail_at(patch: pytest.MonkeyPatch, file: Path, opened: int | None = None, *, named: bool = True) -> None:
    """Have a file that Path opens fail as a broken disk does.

    Args:
        patch: undoes it.
        file: by the path that it is opened by.
        opened: the first, second, ... time alone; None for every time.
        named: whether the error names the file, as that of an open does; that of a read or a lock doesn't.
    """
    really_open, times = Path.open, [0]

    def fail(path: Path, *args: Any, **kwargs: Any) -> Any:
        if path == file:
            times[0] += 1
            if opened in (None, times[0]):
                raise OSError(errno.EIO, REASON, *([str(file)] if named else ()))
        return really_open(path, *args, **kwargs)

    patch.setattr(Path, "open", fail)


def failures_in_turn(patch: pytest.MonkeyPatch, folder: Path, work: Callable[[], object]) -> Iterator[Path]:
    """Have each opening of a file in a folder fail that a piece of work needs, one at a time, as a network's disk does.

    Args:
        patch: undoes it.
        folder: whose files Path opens.
        work: done once to see what it opens; by the caller for each file that this yields, whose opening fails then.
    """
    really_open, opened, failing = Path.open, list[Path](), -1

    def open_or_fail(path: Path, *args: Any, **kwargs: Any) -> Any:
        if path.is_relative_to(folder):
            opened.append(path)
            if len(opened) - 1 == failing:
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return really_open(path, *args, **kwargs)

    patch.setattr(Path, "open", open_or_fail)
    work()
    assert opened
    for failing, file in enumerate(list(opened)):  # noqa: B007  open_or_fail reads it
        opened.clear()
        yield file
