"""Files of several bzip2 streams, such as multistream dumps: where the streams begin, and what they hold.

`bz2.BZ2File` can't begin at a stream in the middle, and takes whatever follows a damaged stream for padding: the rest
of the file is then missing without an error.
"""

from __future__ import annotations

import bz2
import re
from collections import deque
from collections.abc import Iterator
from typing import BinaryIO

from preprocessing.sources import SourceError

MAGIC = re.compile(rb"BZh[1-9]")
# A stream's header with that of its first block. Compressed data may look like it (once in 10^13 files of 20 GB).
_START = re.compile(rb"BZh[1-9]1AY&SY")
_START_BYTES = 10
_READ = 1 << 18  # bytes of the file
_PIECE = 1 << 16  # bytes of what comes out
_BLOCK = 900_000  # that a block of text holds, at whose end is its checksum; one of long repetitions holds more


def is_bzip2(file: BinaryIO) -> bool:
    """Whether a file, at its beginning, is compressed so."""
    return bool(MAGIC.match(file.read(4)))


def decompress(file: BinaryIO, begin: int, name: str) -> Iterator[tuple[int, bytes]]:
    """What the streams from one on hold, a piece at a time, each once so much follows as a block of text holds.

    So nothing is handed out before its checksum was right, but for the beginning of a block that holds more: of long
    repetitions, or damaged. Whoever can't make sense of what comes should read on to the error.

    Args:
        file: the compressed file, seekable.
        begin: where a stream begins.
        name: what error messages call the file.

    Yields:
        Where the stream of a piece begins, and the piece.

    Raises:
        SourceError: a stream is damaged, or ends with the file; what is before that has been yielded.
    """
    file.seek(begin)
    data, at = file.read(_READ), begin  # `at` is where the file goes on after `data` once that is handed over
    while data:
        filled = data.lstrip(b"\0")  # tapes and some tools pad
        at += len(data) - len(filled)
        if not filled:
            data = file.read(_READ)
            continue
        start, data, decompressor = at, filled, bz2.BZ2Decompressor()
        unchecked: deque[bytes] = deque()  # may belong to a block that has not ended
        size = 0
        while not decompressor.eof:
            if decompressor.needs_input:
                data = data or file.read(_READ)
                if not data:
                    raise SourceError(
                        f"{name}: cut short at byte {at:,}, in the bzip2 stream that begins at byte {start:,}; "
                        "fetch it again"
                    )
            handed, data, at = data, b"", at + len(data)
            try:
                piece = decompressor.decompress(handed, _PIECE)
            except OSError as error:
                raise SourceError(
                    f"{name}: damaged before byte {at:,}, in the bzip2 stream that begins at byte {start:,} ({error}); "
                    "fetch it again"
                ) from error
            unchecked.append(piece)
            size += len(piece)
            while unchecked and (decompressor.eof or size - len(unchecked[0]) > _BLOCK):
                checked = unchecked.popleft()
                size -= len(checked)
                if checked:
                    yield start, checked
        data = decompressor.unused_data
        at -= len(data)
        data = data or file.read(_READ)


def first_start(file: BinaryIO, begin: int, end: int) -> int | None:
    """Where the first stream that begins in [begin, end) does so, whole or damaged; None where none does."""
    at = begin
    while at < end:
        file.seek(at)
        window = file.read(min(_READ, end - at) + _START_BYTES - 1)
        if match := _START.search(window):
            return at + match.start()
        at += _READ
    return None
