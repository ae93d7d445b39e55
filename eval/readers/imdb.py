"""IMDB film reviews (Maas et al., 2011): aclImdb/SPLIT/{neg,pos}/ID_RATING.txt, a review a file.

There is no dev split: what is published for it is measured on "test". Reviews keep their "<br />".
"""

from __future__ import annotations

import re
from pathlib import Path

from eval.readers.examples import DatasetError, TextExample
from eval.readers.files import find, read_text
from preprocessing.status import is_dir

LABELS = ("neg", "pos")
_NAME = re.compile(r"[0-9]+_[0-9]+\.txt")


def read(data: Path, split: str) -> list[TextExample]:
    """Reviews of a split, the negative ones first, each kind in the order of its ids.

    Args:
        data: aclImdb, or a folder that holds it, itself or in imdb/.
        split: "train" or "test".

    Raises:
        DatasetError: a folder is missing or holds no reviews, or a review is not UTF-8.
    """
    if not is_dir(data):
        raise DatasetError(f"{data}: no such folder; give the one that holds aclImdb/")
    folder = find(data, ("aclImdb", "imdb/aclImdb"), split, ("train", "test"))
    return [example for index, label in enumerate(LABELS) for example in _reviews(find(folder, (".",), label), index)]


def _reviews(folder: Path, label: int) -> list[TextExample]:
    paths = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    if not paths:
        raise DatasetError(f"{folder}: no reviews (ID_RATING.txt) in it; unpack the archive anew")
    paths.sort(key=lambda path: (int(path.stem.split("_")[0]), path.stem))
    return [TextExample(path.stem, read_text(path), None, label) for path in paths]
