"""Where the files of a data set lie, and their text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from eval.readers.examples import DatasetError
from eval.storage import reading
from preprocessing.status import entries, is_dir, is_file

SPLITS = ("train", "dev", "test")  # that data sets have, or some of them


def find(data: Path, folders: Sequence[str], name: str, whole: Iterable[str] = ()) -> Path:
    """Where a file or folder of a data set lies; upper and lower case don't matter.

    All of a data set is taken from the first folder that has any of it: what is trained on and what is judged by must
    not come from two copies.

    Args:
        data: the file itself, or what the user gave with --data.
        folders: where the data set may lie below ``data``, such as "MRPC" and "glue/MRPC", or "." for ``data``. It
            is also found where ``data`` is such a folder itself.
        name: of the file or folder.
        whole: names of all files and folders of the data set.

    Raises:
        DatasetError: nothing of that name there.
    """
    if is_file(data):
        return data
    if not is_dir(data):
        raise DatasetError(f"{data}: no such file or folder; give the folder that holds the data")
    for folder in _candidates(data, folders):
        if path := _below(folder, name):
            return path
        if other := next(filter(None, (_below(folder, other) for other in whole)), None):
            raise DatasetError(f"{folder}: no {name} beside {other.name}; put all of the data set into one folder")
    places = ", ".join(f"{folder}/" for folder in folders)
    raise DatasetError(f"{data}: no {name} in {places}; put it there, or give the folder that holds it")


def _candidates(data: Path, folders: Sequence[str]) -> list[Path]:
    itself = [data for folder in folders if Path(folder).name.casefold() == data.resolve().name.casefold()]
    below = [_below(data, folder) for folder in folders]
    return itself + [path for path in below if path]


def _below(folder: Path, path: str) -> Path | None:
    """The path below a folder, each part by its exact name if that is there, else by the same in another case."""
    for part in Path(path).parts:
        names = [path.name for path in entries(folder)]
        same = [name for name in names if name.casefold() == part.casefold()]
        if not same:
            return None
        folder /= part if part in same else same[0]
    return folder


def read_text(path: Path) -> str:
    """A file's text, without the byte order mark that some begin with.

    Raises:
        DatasetError: it can't be read, or is not UTF-8.
        UsageError: it is not for this user to read.
        UnavailableError: it can't be read now.
    """
    try:
        with reading(path):
            data = path.read_bytes()
    except OSError as error:
        raise DatasetError(f"{path}: can't read it ({error.strerror})") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _not_utf8(path, data.count(b"\n", 0, error.start) + 1, data[error.start]) from error


def _not_utf8(path: Path, line: int, byte: int) -> DatasetError:
    return DatasetError(f"{path}: line {line}: not UTF-8 (byte 0x{byte:02x}); convert the file with iconv")


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a file, one after the other: it may be larger than the memory.

    They end with LF or CR LF, and with nothing else: texts hold other separators, as within a cell.

    Raises:
        DatasetError, UsageError, UnavailableError: as read_text.
    """
    try:
        with reading(path), path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                try:
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise _not_utf8(path, number, line[error.start]) from error
                yield text.removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise DatasetError(f"{path}: can't read it ({error.strerror})") from error
