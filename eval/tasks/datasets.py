"""Data sets by name, from their original files or from the hub."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from eval.readers import conll, imdb, squad, swag, tables
from eval.readers.glue import GLUE
from eval.readers.hub import read_hub
from eval.readers.korean import KOREAN

Read = Callable[[Path, str], Sequence[Any]]

READERS: Mapping[str, Read] = {
    **{name: partial(tables.read, table) for name, table in {**GLUE, **KOREAN}.items()},
    "SQuAD v1.1": squad.read,
    "SQuAD v2.0": partial(squad.read, of=squad.FILES["v2.0"]),
    "KorQuAD": partial(squad.read, of=squad.FILES["korquad"]),
    "SWAG": swag.read,
    "CODAH": swag.read_codah,
    "CoNLL-2003": conll.read,
    "IMDB": imdb.read,
}


def read(name: str, split: str, data: Path | None) -> Sequence[Any]:
    """The examples of a data set.

    Args:
        name: a key of READERS.
        split: of it.
        data: folder of its files; None for the hub.

    Raises:
        DatasetError: it is missing, or not as it should be.
    """
    return read_hub(name, split) if data is None else READERS[name](data, split)
