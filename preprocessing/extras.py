"""What a command says where it was installed without the packages that it needs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Around the imports of a command: name the extra of this project that a missing package belongs to.

    Raises:
        SystemExit: with code 2, once that is told.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        print(f"error: {package} is not installed: pip install 'bert-pretraining[{extra}]'", file=sys.stderr)
        raise SystemExit(2) from None
