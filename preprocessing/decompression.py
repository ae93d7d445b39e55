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

_GZIP = b"\x1f\x8b"
_XZ = b"\xfd7zXZ\x00"
_ZSTANDARD = re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")  # a frame, or one to skip, as pzstd writes
_ZIP = b"PK\x03\x04"
_TAR, _TAR_AT = b"ustar", 257  # in the header of an archive's first file
_BEGINNING = _TAR_AT + len(_TAR)  # bytes of a file that tell what it is
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
    start = raw.read(_BEGINNING)
    raw.seek(0)
    if start.startswith(_ZIP):
        raise SourceError(f"{path}: a zip archive; extract the files in it and name these")
    _refuse_tar(start, path)
    if start.startswith(_GZIP):
        pieces = _intact(_pieces_of(gzip.GzipFile(fileobj=raw)), raw, path)
    elif start.startswith(_XZ):
        pieces = _intact(_xz_streams(raw), raw, path)
    elif _ZSTANDARD.match(start):
        pieces = _intact(_pieces_of(pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")), raw, path)
    elif bzip2.is_bzip2(start):
        pieces = (piece for _, piece in bzip2.decompress(raw, 0, path))
    else:
        return raw
    stream = io.BufferedReader(_Pieces(pieces), buffer_size=1 << 20)
    _refuse_tar(stream.peek(), path)
    return cast(BinaryIO, stream)


def is_plain(raw: BinaryIO) -> bool:
    """Whether a file is read as it lies: neither compressed nor an archive. It is at its beginning before and after."""
    beginning = raw.read(_BEGINNING)
    raw.seek(0)
    packed = beginning.startswith((_ZIP, _GZIP, _XZ)) or _ZSTANDARD.match(beginning) or bzip2.is_bzip2(beginning)
    return not (packed or beginning.startswith(_TAR, _TAR_AT))


def _refuse_tar(beginning: bytes, path: str) -> None:
    if beginning.startswith(_TAR, _TAR_AT):
        raise SourceError(f"{path}: a tar archive; extract the files in it and name these")


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
