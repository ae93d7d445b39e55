"""Compressed files: bzip2, gzip, xz and Zstandard, known by their first bytes and not by their names."""

from __future__ import annotations

import gzip
import io
import lzma
import re
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

import pyarrow as pa

from preprocessing import bzip2
from preprocessing.sources import SourceError, is_of_storage

# How what is no plain text begins.
_MAGIC = {
    "zip": re.compile(rb"PK\x03\x04"),
    "tar": re.compile(rb".{257}ustar", re.DOTALL),  # in the header of its first file
    "gzip": re.compile(rb"\x1f\x8b"),
    "xz": re.compile(rb"\xfd7zXZ\x00"),
    "zstandard": re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"),  # a frame, or one to skip, as pzstd writes
    "bzip2": bzip2.MAGIC,
}
_BEGINNING = 262  # bytes of a file, in which all of these are
_READ = 1 << 18  # bytes of a compressed file
_PIECE = 1 << 14  # bytes of what comes out of it: when it ends within a piece, that piece is lost
# What the decompressors raise for a file that is cut short or damaged.
_DAMAGE = (EOFError, lzma.LZMAError, zlib.error, OSError)
_TOO_LARGE = "too much memory"  # how Zstandard says that a frame's window is above its limit of 128 MB


def decompressed(raw: BinaryIO, path: str) -> BinaryIO:
    """A file's content, decompressed if its first bytes are those of bzip2, gzip, xz or Zstandard.

    Args:
        raw: the file, at its beginning, seekable.
        path: what error messages call it.

    Raises:
        SourceError: the file is a zip or a tar archive, or turns out cut short or damaged while the content is read.
    """
    kind = _kind_of(raw)
    _refuse_archive(kind, path)
    match kind:
        case "gzip":
            pieces = _intact(_pieces_of(gzip.GzipFile(fileobj=raw)), raw, path)
        case "xz":
            pieces = _intact(_xz_streams(raw), raw, path)
        case "zstandard":
            pieces = _intact(_pieces_of(pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")), raw, path)
        case "bzip2":
            pieces = (piece for _, piece in bzip2.decompress(raw, 0, path))
        case _:
            return raw
    stream = io.BufferedReader(_Pieces(pieces), buffer_size=1 << 20)
    _refuse_archive(_kind(stream.peek()), path)
    return cast(BinaryIO, stream)


def is_plain(raw: BinaryIO) -> bool:
    """Whether a file is read as it lies: neither compressed nor an archive. It is at its beginning before and after."""
    return _kind_of(raw) is None


def _kind_of(raw: BinaryIO) -> str | None:
    beginning = raw.read(_BEGINNING)
    raw.seek(0)
    return _kind(beginning)


def _kind(beginning: bytes) -> str | None:
    return next((kind for kind, magic in _MAGIC.items() if magic.match(beginning)), None)


def _refuse_archive(kind: str | None, path: str) -> None:
    if kind in ("zip", "tar"):
        raise SourceError(f"{path}: a {kind} archive; extract the files in it and name these")


class _Pieces(io.RawIOBase):
    """Pieces of bytes as a stream."""

    def __init__(self, pieces: Iterator[bytes]):
        self._pieces, self._left = pieces, memoryview(b"")

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Hand out the next piece, or what the buffer has room for."""
        self._left = self._left or memoryview(next(self._pieces, b""))
        size = min(len(buffer), len(self._left))
        buffer[:size], self._left = self._left[:size], self._left[size:]
        return size


def _pieces_of(stream: Any) -> Iterator[bytes]:
    return iter(lambda: stream.read1(_PIECE), b"")


def _xz_streams(file: BinaryIO) -> Iterator[bytes]:
    """What is in an .xz file; lzma.LZMAFile takes whatever follows a stream for padding, and the rest is missing."""
    data = file.read(_READ)
    while data:
        if not (data := data.lstrip(b"\0")):  # what may stand between streams
            data = file.read(_READ)
            continue
        decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ)
        while not decompressor.eof:
            if decompressor.needs_input:
                data = data or file.read(_READ)
                if not data:
                    raise EOFError("the last stream has no end")
            if piece := decompressor.decompress(data, _PIECE):
                yield piece
            data = b""
        data = decompressor.unused_data or file.read(_READ)


def _intact(pieces: Iterator[bytes], raw: BinaryIO, path: str) -> Iterator[bytes]:
    """Pieces of a decompressed file, whose damage is told as the user's input, not as a failure of this program."""
    try:
        yield from pieces
    except _DAMAGE as error:
        if is_of_storage(error):
            raise
        if _TOO_LARGE in str(error):
            raise SourceError(
                f"{path}: compressed with a window larger than is read here (--long); decompress it first"
            ) from error
        raise SourceError(
            f"{path}: the compressed file is cut short or damaged before byte {raw.tell():,} ({error}); fetch it again"
        ) from error
