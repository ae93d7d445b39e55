"""Storage that fails, at one file."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

REASON = os.strerror(errno.EIO)
LISTING = "scandir" if sys.version_info >= (3, 13) else "listdir"  # what Path.iterdir calls


def fail_on(
    patch: pytest.MonkeyPatch, owner: Any, call: str, place: Path | None = None, number: int = errno.EIO
) -> None:
    """Have a call fail as on a broken disk, a module's or a class's: on one path, or whatever it is on."""
    really_call = getattr(owner, call)

    def fail(*arguments: Any, **options: Any) -> Any:
        on = [str(argument) for argument in arguments[:1] if isinstance(argument, str | Path)]
        if place is None or on == [str(place)]:
            raise OSError(number, os.strerror(number), *on)
        return really_call(*arguments, **options)

    patch.setattr(owner, call, fail)


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
    """Have each opening of a file in a folder, and each look at one, fail that a piece of work needs, one at a time.

    As a network's disk does, for a moment; and Path asks as from Python 3.14 on, so that it says no where that fails.
    So does what os.access asks, which says no then, and what lists a folder.

    Args:
        patch: undoes it.
        folder: whose files Path opens.
        work: done once to see what it asks for; by the caller for each path that this yields, which fails then.
    """
    met, failing = list[Path](), -1

    def failing_at_times(ask: Callable[..., Any]) -> Callable[..., Any]:
        def ask_or_fail(path: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(path, str | Path) and Path(path).is_relative_to(folder):
                met.append(Path(path))
                if len(met) - 1 == failing:
                    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
            return ask(path, *args, **kwargs)

        return ask_or_fail

    def no_where_it_fails(ask: Callable[..., bool]) -> Callable[..., bool]:
        def ask_or_deny(*args: Any, **kwargs: Any) -> bool:
            try:
                return ask(*args, **kwargs)
            except OSError:
                return False

        return ask_or_deny

    patch.setattr(Path, "open", failing_at_times(Path.open))
    for name in ("stat", "listdir", "scandir"):
        patch.setattr(os, name, failing_at_times(getattr(os, name)))
    patch.setattr(os, "access", no_where_it_fails(failing_at_times(os.access)))
    for name, ask in (("exists", os.path.exists), ("is_file", os.path.isfile), ("is_dir", os.path.isdir)):
        patch.setattr(Path, name, lambda path, ask=ask: ask(path))
    work()
    assert met
    for failing, path in enumerate(list(met)):  # noqa: B007  ask_or_fail reads it
        met.clear()
        yield path
