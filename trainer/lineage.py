"""Which code, with which libraries, on which machine."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from preprocessing.status import is_file

_ROOT = Path(__file__).resolve().parent.parent
# In a snapshot of the code (cluster.snapshot) these files stand for the checkout that it was taken from.
COMMIT, DIFF = "code.commit", "code.diff"
_NEW_MODULES = ("preprocessing/*.py", "trainer/*.py", "eval/*.py", "cluster/*.py")  # git's *: at any depth
_ROOM = 1 << 20  # characters of the patch for such modules; those that have no room in it are named
_COMPUTING = ("torch", "deepspeed", "pyarrow", "tokenizers", "numpy")
_LIBRARIES = (*_COMPUTING, "mlflow")
_TRAINING = ("preprocessing", "trainer")  # packages of ours that ranks run


def code_version() -> dict[str, Any]:
    """Version of this project, its git commit and whether the tree differs from it, and the libraries' versions.

    None is for what is not installed or not known: the project runs from a checkout, and without MLflow.
    """
    commit = _noted(COMMIT) or _git("rev-parse", "HEAD")
    return {
        "version": installed_version("bert-pretraining"),
        "commit": commit.strip() if commit else None,
        "modified": bool(uncommitted_changes()),
        "python": platform.python_version(),
        "libraries": {name: installed_version(name) for name in _LIBRARIES},
        "machine": {"system": platform.platform(), "processor": platform.machine(), "host": platform.node()},
    }


def environment() -> dict[str, str | None]:
    """What all ranks must have alike: a checksum of the code, and the versions of the libraries that compute."""
    digest = hashlib.blake2b(digest_size=16)
    for file in sorted(file for package in _TRAINING for file in (_ROOT / package).rglob("*.py")):
        if is_file(file):  # and no editor's lock, which is a link to nothing
            digest.update(f"{file.relative_to(_ROOT)}\0".encode())
            digest.update(hashlib.blake2b(file.read_bytes()).digest())
    return {"code": digest.hexdigest(), **{name: installed_version(name) for name in _COMPUTING}}


def unlike(environment: Mapping[str, str | None], of_the_first: Mapping[str, str | None]) -> list[str]:
    """What of a rank's environment is not as the first one's, in words."""
    code = ["other code"] * (environment["code"] != of_the_first["code"])
    return code + other_versions(environment, of_the_first)


def other_versions(versions: Mapping[str, str | None], others: Mapping[str, str | None]) -> list[str]:
    """Of the libraries that compute those that differ, such as ``torch 2.11.0, not 2.15.0``; not what is unknown."""
    return [
        f"{name} {versions[name] or 'missing'}, not {others[name] or 'missing'}"
        for name in _COMPUTING
        if name in versions and name in others and versions[name] != others[name]
    ]


def uncommitted_changes() -> str:
    """What differs from the commit, modules that git doesn't know yet too, as a patch; empty without a git checkout."""
    return _noted(DIFF) or (_git("diff", "HEAD") or "") + _new_modules()


def _new_modules() -> str:
    """A patch that adds the modules that are neither in the commit nor ignored."""
    names = (_git("ls-files", "-z", "--others", "--exclude-standard", "--", *_NEW_MODULES) or "").split("\0")[:-1]
    patches, room = [], _ROOM
    for name in names:
        patch = _git("diff", "--no-index", "--", os.devnull, name, differ=True) or ""
        if len(patch) > room:
            patch = f"new, but too large for this patch: {name}\n"  # git apply skips such a line
        room -= len(patch)
        patches.append(patch)
    return "".join(patches)


def installed_version(package: str) -> str | None:
    """Of a library; None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _noted(name: str) -> str | None:
    """What a snapshot of the code says; None for a checkout."""
    file = _ROOT / name
    return file.read_text(encoding="utf-8") if is_file(file) else None


def _git(*arguments: str, differ: bool = False) -> str | None:
    """The output of a git command in the project's checkout; None where there is no checkout or no git.

    ``differ``: whether the command ends with 1 for files that differ.
    """
    if not (_ROOT / ".git").exists():
        return None
    try:
        command = ["git", "-C", str(_ROOT), *arguments]
        done = subprocess.run(command, check=False, capture_output=True, encoding="utf-8", errors="replace")  # noqa: S603
    except OSError:
        return None
    return done.stdout if done.returncode == int(differ) else None
