"""Files wherever they lie: the one place that knows Beam's file systems.

A path is local, or a URL of any file system that Beam knows (gs://, s3://; hdfs:// for inputs only). Whatever this
project writes appears whole: it is written under a name of its own and renamed.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import shutil
import stat
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa
from apache_beam.io.filesystem import BeamIOError, CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions

from preprocessing import status
from preprocessing.decompression import decompressed
from preprocessing.schema import checksum_of, new_checksum
from preprocessing.sources import unread
from preprocessing.storage_errors import is_no_file
from preprocessing.work_files import WorkFile

# Scheme of a URL -> the extra of Beam with what its file system needs, and how Beam complains where that is missing.
_EXTRAS = {
    "gs": ("gcp", "Unable to get filesystem"),
    "s3": ("aws", "Missing boto3"),
    "hdfs": ("hadoop", "Failed to import hdfs"),
    "azfs": ("azure", "BlobServiceClient"),
}


def set_options(beam: Sequence[str] = ()) -> None:
    """Have Beam's file systems know their options, such as --s3_region_name: a pipeline tells them once it is made."""
    FileSystems.set_options(PipelineOptions(list(beam)))


def is_remote(path: str) -> bool:
    """Whether a path is a URL."""
    return "://" in path


def absolute(path: str) -> str:
    """The path as a worker with another working directory finds it."""
    return path if is_remote(path) else str(Path.cwd() / path)


def is_same(path: str, other: str) -> bool:
    """Whether two paths lead to one file."""
    return resolved(path) == resolved(other)


def resolved(path: str) -> str:
    """The path without links and detours, for comparison; as it is where a link leads to itself."""
    return path if is_remote(path) else os.path.realpath(path)


def join(folder: str, *names: str) -> str:
    """A path inside a folder."""
    return cast(str, FileSystems.join(folder, *names))


def why_not_found(path: str, error: Exception) -> str:
    """Why a path can't be looked at; Beam's own words name the wrong extra, or none."""
    scheme = path.partition("://")[0]
    extra, complaint = _EXTRAS.get(scheme, ("", ""))
    if extra and complaint in str(error):
        return f"{scheme}:// needs an extra of Beam: pip install 'apache-beam[{extra}]'"
    if is_remote(path) and not extra and "Unable to get filesystem" in str(error):
        return f"Beam knows no {scheme}://, but {', '.join(f'{known}://' for known in _EXTRAS)}"
    return str(error)


def match(pattern: str) -> dict[str, int]:
    """The files that a pattern matches in a file system of Beam's: path -> size in bytes."""
    return {file.path: int(file.size_in_bytes) for file in FileSystems.match([pattern])[0].metadata_list}


@contextmanager
def open_raw(path: str) -> Iterator[BinaryIO]:
    """Open an input file for reading as it lies.

    Raises:
        StorageError: the file can't be opened, or, while it is read, not read on.
    """
    try:
        with _open(path) as raw:
            yield raw
    except OSError as error:
        raise unread(path, error) from error


def _open(path: str) -> BinaryIO:
    """A file as it lies: Beam would decompress what has the ending of a compressed one."""
    return cast(BinaryIO, FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED))


def size(path: str) -> int:
    """Bytes of an input file, as it is now.

    Raises:
        StorageError: that can't be told, as where it is gone.
    """
    try:
        if not is_remote(path):
            return Path(path).stat().st_size
        sizes = [*match(path).values()]
        if len(sizes) != 1:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return sizes[0]
    except OSError as error:
        raise unread(path, error) from error


def exists(path: str) -> bool:
    """Whether there is a file or a folder of that name.

    Raises:
        OSError: storage that can't be reached.
    """
    if is_remote(path):
        return bool(FileSystems.exists(path))
    return status.exists(path)  # Beam's own takes every error for an answer


def begins_with(path: str, magic: bytes) -> bool:
    """Whether an input file's first bytes are these."""
    with open_raw(path) as raw:
        return raw.read(len(magic)) == magic


@contextmanager
def open_input(path: str) -> Iterator[BinaryIO]:
    """Open an input file for reading, decompressed.

    Raises:
        SourceError: as decompressed.
        StorageError: as open_raw.
    """
    with open_raw(path) as raw:
        yield decompressed(raw, path)


class HashingWriter(io.RawIOBase):
    """Passes bytes on to a file while it counts and hashes them, so that nothing is read again for its checksum."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self._hash = new_checksum()
        self.bytes = 0

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, data: Any) -> int:
        """Write a block."""
        view = memoryview(data).cast("B")
        self._file.write(view)
        self._hash.update(view)
        self.bytes += len(view)
        return len(view)

    @property
    def blake2b(self) -> str:
        """As preprocessing.schema.checksum of the file."""
        return self._hash.hexdigest()


@contextmanager
def publish(path: str, scratch: str) -> Iterator[HashingWriter]:
    """Write a file that appears under its name whole or not at all.

    Two attempts at one file may run side by side: each writes under a name of its own, and the last rename stays.

    Args:
        path: the final name.
        scratch: a folder of the same file system for the unfinished file.
    """
    unfinished = join(scratch, WorkFile.UNFINISHED.format(attempt=uuid.uuid4().hex))
    try:
        with _create(unfinished) as file:
            writer = HashingWriter(file)
            yield writer
        if not is_remote(unfinished):
            _sync(unfinished)  # else a power failure may leave the name, and nothing in it
        _rename(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            _remove(unfinished)
        raise


def _create(path: str) -> BinaryIO:
    """Open a file for writing, in a folder that is made where there is none.

    Beam's own looks for the folder first, takes storage that fails for an answer, and finds what it would make there.
    """
    if is_remote(path):
        return cast(BinaryIO, FileSystems.create(path, compression_type=CompressionTypes.UNCOMPRESSED))
    try:
        return Path(path).open("wb")
    except FileNotFoundError:
        status.make_folder(Path(path).parent, parents=True)
        return Path(path).open("wb")


def _sync(path: str) -> None:
    """Have the operating system put a local file on disk."""
    with Path(path).open("rb") as file:
        os.fsync(file.fileno())


def _rename(unfinished: str, path: str) -> None:
    if not is_remote(path):
        try:
            Path(unfinished).replace(path)
        except FileNotFoundError:
            status.make_folder(Path(path).parent, parents=True)
            Path(unfinished).replace(path)
        return
    try:
        FileSystems.rename([unfinished], [path])
    except BeamIOError:
        # Some file systems refuse to replace a file; another attempt was first then, with the same bytes.
        if not FileSystems.exists(path):
            raise
        _remove(unfinished)


def write_text(path: str, text: str, scratch: str) -> None:
    """Publish a small text file in UTF-8."""
    with publish(path, scratch) as file:
        file.write(text.encode())


def read_text(path: str) -> str | None:
    """A small text file in UTF-8, None when there is no such file.

    Raises:
        OSError: storage that can't be reached.
    """
    if not exists(path):
        return None
    with _open(path) as file:
        return file.read().decode()


def read_json(path: str) -> Any:
    """What a small JSON file holds, None when there is no such file or it is not whole.

    Raises:
        OSError: storage that can't be reached.
    """
    try:
        return json.loads(read_text(path) or "null")
    except (ValueError, RecursionError):
        return None


def write_note(path: str, noted: Any, scratch: str) -> None:
    """Publish a small JSON file with its checksum."""
    text = json.dumps(noted)
    write_text(path, f'{{"noted": {text}, "blake2b": "{checksum_of(text.encode())}"}}', scratch)


def read_note(path: str) -> Any:
    """What write_note was given, None when there is no such file or it is not as that wrote it; raises as read_json."""
    told = read_json(path)
    if isinstance(told, dict) and told.get("blake2b") == checksum_of(json.dumps(told.get("noted")).encode()):
        return told.get("noted")
    return None


def names_below(folder: str) -> dict[str, int]:
    """Every file below a folder: path relative to it, with / -> size in bytes. Empty when there is no such folder.

    A file that another process renames or removes meanwhile may be missing.

    Raises:
        OSError: storage that can't be reached.
    """
    if not is_remote(folder):
        paths = (Path(within, name) for within, _, names in os.walk(folder, onerror=_raise) for name in names)
        looks = ((path, status.status(path)) for path in paths)  # one at each
        return {
            path.relative_to(folder).as_posix(): found.st_size
            for path, found in looks
            if found and stat.S_ISREG(found.st_mode)
        }
    root = folder.rstrip("/") + "/"
    try:
        return {path.removeprefix(root): size for path, size in match(root + "**").items()}
    except (BeamIOError, ValueError) as error:  # Beam's own, and of an address that no file system of its knows
        raise OSError(why_not_found(folder, error)) from error


def _raise(error: OSError) -> None:
    """What keeps one from looking into a folder; that there is none does not."""
    if not is_no_file(error):
        raise error


def remove(folder: str, names: Iterable[str]) -> None:
    """Remove files of a folder in order, and the folders this leaves empty; what is not there already is no error.

    Raises:
        OSError: one can't be removed; it stays, with those after it.
    """
    names = list(dict.fromkeys(names))
    for name in names:
        try:
            _remove(join(folder, name))
        except OSError:
            if exists(join(folder, name)):
                raise
    for emptied in {Path(name).parent for name in names} - {Path()}:
        with contextlib.suppress(OSError):
            (Path(folder) / emptied).rmdir()


def _remove(path: str) -> None:
    if is_remote(path):
        FileSystems.delete([path])
    else:  # Beam would take a name with brackets or stars for a pattern: nothing would go, or another's files
        Path(path).unlink()


def local_copy(path: str, folder: str) -> str:
    """A file as one that can be mapped: itself, or where it is remote a copy in a local folder."""
    if not is_remote(path):
        return path
    copy = Path(folder) / path.rpartition("/")[2]
    with _open(path) as file, copy.open("wb") as sink:
        shutil.copyfileobj(file, sink)
    return str(copy)


@contextmanager
def publish_arrow(path: str, scratch: str, schema: pa.Schema) -> Iterator[pa.RecordBatchFileWriter]:
    """Write an Arrow file that appears whole or not at all; see publish."""
    with publish(path, scratch) as sink, pa.ipc.new_file(sink, schema) as writer:
        yield writer


@contextmanager
def open_arrow(path: str) -> Iterator[pa.RecordBatchFileReader]:
    """Open an Arrow file, memory-mapped where it is local.

    Raises:
        OSError: it can't be opened.
        pa.ArrowInvalid: it is not whole.
    """
    with _open(path) if is_remote(path) else _mapped(path) as file:
        yield pa.ipc.open_file(file)


def read_batch(path: str) -> pa.RecordBatch:
    """The one batch of an Arrow file; raises as open_arrow."""
    with open_arrow(path) as file:
        return file.get_batch(0)


def _mapped(path: str) -> pa.MemoryMappedFile:
    try:
        return pa.memory_map(path)
    except OSError as error:
        if error.errno:
            raise
        raise OSError(errno.EIO, str(error), path) from error  # pyarrow's, where a file is open and can't be mapped


def is_arrow(path: str) -> bool:
    """Whether there is an Arrow file that has its end."""
    try:
        with open_arrow(path):
            return True
    except (pa.ArrowInvalid, OSError):
        return False
