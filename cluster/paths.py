"""Paths as users name them: whole, with links left as they are. What a link leads to, another machine may not have."""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from trainer.settings import ConfigError


def current_folder() -> Path:
    """The current folder, by the shell's own name for it where that is right."""
    physical, named = Path.cwd(), Path(os.environ.get("PWD", ""))
    try:
        right = named.is_absolute() and ".." not in named.parts and named.samefile(physical)
    except OSError:  # nothing is there, or nothing that can be looked at
        right = False
    return named if right else physical


def whole(path: Path | str) -> Path:
    """A path as it is found from other folders too; a leading ~ is the home folder, as in a shell.

    What stands before a "..", which leads up from where a link leads to, is resolved.

    Raises:
        ConfigError: nothing, what else a shell would have replaced (a variable, or the home folder of nobody), or links
            that lead in a circle.
    """
    if not str(path):
        raise ConfigError("the path is empty; write . for the current folder")
    home = os.path.expanduser(path)  # noqa: PTH111  of nobody, pathlib's raises
    if home.startswith("~") or re.search(r"\$\{?[A-Za-z_]", home):
        raise ConfigError(f"{path}: no shell reads this, so it is not replaced; write the path out")
    parts = (current_folder() / home).parts
    end = len(parts) - parts[::-1].index("..") if ".." in parts else 0
    given = Path(*parts)
    found = Path(os.path.realpath(Path(*parts[:end])), *parts[end:]) if end else given
    if any(map(_leads_in_a_circle, {given, found})):  # there may be nothing before a ".."
        raise ConfigError(f"{path}: its links lead in a circle; take another path")
    return found


def _leads_in_a_circle(path: Path) -> bool:
    try:
        path.stat()
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def is_seen(path: Path, folders: Sequence[Path]) -> bool:
    """Whether who sees nothing but some folders sees what is at a path: itself, and where its links lead to."""
    around = [folder for folder in folders if path.is_relative_to(folder)]
    target = path.resolve()
    return bool(around) and any(target.is_relative_to(folder) for folder in (*folders, *map(Path.resolve, around)))


def fingerprint(path: Path) -> str:
    """Eight hexadecimal digits that tell a path from others of the same last name, but not from links to it."""
    return hashlib.blake2b(bytes(path.resolve()), digest_size=4).hexdigest()
