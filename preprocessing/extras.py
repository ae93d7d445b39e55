"""What a command says where it was installed without the packages that it needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from preprocessing.terminal import tell_error


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
        tell_error(f"{package} is not installed: pip install 'bert-pretraining[{extra}]'")
        raise SystemExit(2) from None
