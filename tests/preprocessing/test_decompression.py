from __future__ import annotations

import io
import lzma

import pytest
import zstandard

from preprocessing.decompression import decompressed
from preprocessing.sources import SourceError


def read(data: bytes) -> bytes:
    with decompressed(io.BytesIO(data), "a.xz") as stream:
        return stream.read()


def test_streams_of_xz_that_follow_each_other_are_all_read_or_told() -> None:
    first, second = (lzma.compress(part) for part in (b"one\n", b"two\n"))
    for between, after in ((b"", b""), (b"\0" * 8, b"\0" * 4), (b"", b"\0" * (1 << 19))):
        assert read(first + between + second + after) == b"one\ntwo\n"
    damaged = bytes([second[0], second[1] ^ 255, *second[2:]])
    for rest in (damaged, b"garbage", second[:-20]):
        with pytest.raises(SourceError, match=r"a\.xz: the compressed file is cut"):
            read(first + rest)


def test_a_frame_that_zstandard_skips_may_stand_first() -> None:
    assert read(b"\x50\x2a\x4d\x18\x04\0\0\0size" + zstandard.ZstdCompressor().compress(b"text")) == b"text"
