"""Imports without the libraries that an imported library wants for parts of it that nobody uses here."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without(library: str) -> Iterator[None]:
    """Have imports of a library fail meanwhile, as if it were not installed; one that is imported already stays."""
    if library in sys.modules:
        yield
        return
    sys.modules[library] = None  # type: ignore[assignment]  # as Python documents
    try:
        yield
    finally:
        del sys.modules[library]
