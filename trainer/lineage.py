"""Which code, with which libraries, on which machine."""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parent.parent
# In a snapshot of the code (cluster.snapshot) these files stand for the checkout that it was taken from.
COMMIT, DIFF = "code.commit", "code.diff"
_LIBRARIES = ("torch", "deepspeed", "pyarrow", "tokenizers", "numpy", "mlflow")


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


def uncommitted_changes() -> str:
    """What differs from the commit, as a patch; empty where the project is not a git checkout."""
    return _noted(DIFF) or _git("diff", "HEAD") or ""


def installed_version(package: str) -> str | None:
    """Of a library; None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _noted(name: str) -> str | None:
    """What a snapshot of the code says; None for a checkout."""
    file = _ROOT / name
    return file.read_text(encoding="utf-8") if file.is_file() else None


def _git(*arguments: str) -> str | None:
    """The output of a git command in the project's checkout; None where there is no checkout or no git."""
    if not (_ROOT / ".git").exists():
        return None
    try:
        command = ["git", "-C", str(_ROOT), *arguments]
        return subprocess.run(command, check=True, capture_output=True, encoding="utf-8", errors="replace").stdout  # noqa: S603
    except (OSError, subprocess.CalledProcessError):
        return None
