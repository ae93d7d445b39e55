"""Paths of jobs."""

from __future__ import annotations

import hashlib
from pathlib import Path


def fingerprint(path: Path) -> str:
    """Eight hexadecimal digits that tell a path from others of the same last name, but not from links to it."""
    return hashlib.blake2b(bytes(path.resolve()), digest_size=4).hexdigest()
