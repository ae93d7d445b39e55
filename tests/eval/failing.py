"""Storage that fails, at one file."""

from __future__ import annotations

import errno
import os
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
