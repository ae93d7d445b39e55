from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from functools import partial

import pytest
import zstandard

from preprocessing import decompression
from preprocessing.decompression import decompressed, is_plain
from preprocessing.sources import SourceError

PACKERS = [bz2.compress, gzip.compress, lzma.compress, zstandard.ZstdCompressor().compress]


def read(data: bytes) -> bytes:
    with decompressed(io.BytesIO(data), "a.xz") as stream:
        return stream.read()


def test_a_text_may_begin_as_bzip2_does() -> None:
    assert read(b"BZhang was a poet.") == b"BZhang was a poet."


def test_streams_of_xz_that_follow_each_other_are_all_read_or_told() -> None:
    first, second = (lzma.compress(part) for part in (b"one\n", b"two\n"))
    for between, after in ((b"", b""), (b"\0" * 8, b"\0" * 4), (b"", b"\0" * (1 << 19))):
        assert read(first + between + second + after) == b"one\ntwo\n"
    damaged = bytes([second[0], second[1] ^ 255, *second[2:]])
    for rest in (damaged, b"garbage", second[:-20]):
        with pytest.raises(SourceError, match=r"a\.xz: the compressed file is cut"):
            read(first + rest)


@pytest.mark.parametrize("size", [1, 7, len(lzma.compress(b"one\n"))])
def test_streams_of_xz_are_all_read_wherever_a_read_of_the_file_ends(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decompression, "_READ", size)
    assert read(lzma.compress(b"one\n") + b"\0" * 8 + lzma.compress(b"two\n")) == b"one\ntwo\n"
    assert read(lzma.compress(b"one\n") + lzma.compress(b"two\n")) == b"one\ntwo\n"


@pytest.mark.parametrize("pack", PACKERS)
def test_nothing_is_lost_however_much_is_read_at_a_time(pack: Callable[[bytes], bytes]) -> None:
    content = random.Random(1).randbytes(3_000_000)
    packed = pack(content)
    assert read(packed) == content
    for size in (1000, 700_000, 2_000_000):
        for method in ("read", "read1"):
            with decompressed(io.BytesIO(packed), "a") as stream:
                assert b"".join(iter(partial(getattr(stream, method), size), b"")) == content


def test_of_what_is_packed_tightly_no_more_is_unpacked_than_is_read() -> None:
    packed = lzma.compress(bytes(50_000_000))
    tracemalloc.start()
    with decompressed(io.BytesIO(packed), "a") as stream:
        assert stream.read(10) == bytes(10)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 10_000_000


def in_tar(data: bytes, kind: int = tarfile.DEFAULT_FORMAT, name: str = "a.txt") -> bytes:
    """A tar archive of one file."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=kind) as archive:
        member = tarfile.TarInfo(name)
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    return content.getvalue()


@pytest.mark.parametrize("pack", [bytes, *PACKERS])
@pytest.mark.parametrize("kind", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_a_tar_archive_is_told_compressed_or_not(pack: Callable[[bytes], bytes], kind: int) -> None:
    with pytest.raises(SourceError, match=r"^a\.xz: a tar archive; extract the files in it and name these$"):
        read(pack(in_tar(b"text", kind)))
    assert read(pack(b" ustar" * 100)) == b" ustar" * 100


def test_a_header_of_a_tar_archive_may_hold_any_byte() -> None:
    """As in the name of a file, or in the number of a large one's bytes."""
    with pytest.raises(SourceError, match="a tar archive"):
        read(in_tar(b"text", name="a\nb.txt"))


@pytest.mark.parametrize("pack", [bytes, *PACKERS])
def test_a_zip_archive_is_told_compressed_or_not(pack: Callable[[bytes], bytes]) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("a.txt", "text")
    with pytest.raises(SourceError, match=r"^a\.xz: a zip archive; extract the files in it and name these$"):
        read(pack(content.getvalue()))
    assert read(pack(b"PK and so on")) == b"PK and so on"


@pytest.mark.parametrize(
    "data",
    [*(pack(b"text") for pack in PACKERS), in_tar(b"text"), b"PK\x03\x04", b"text", b""],
    ids=["bzip2", "gzip", "xz", "zstandard", "tar", "zip", "text", "nothing"],  # not the bytes: gzip writes the time
)
def test_what_is_plain_is_told_by_its_beginning_and_stays_to_be_read(data: bytes) -> None:
    file = io.BytesIO(data)
    assert is_plain(file) == (data in (b"text", b""))
    assert file.read() == data


def test_damage_of_gzip_is_told_where_it_can_not_be_decompressed_and_where_its_checksum_differs() -> None:
    packed = gzip.compress(b"text")
    for damaged in (packed[:10] + b"\xff" + packed[11:], packed[:-8] + b"\0" * 4 + packed[-4:]):
        with pytest.raises(SourceError, match="cut short or damaged"):
            read(damaged)


@pytest.mark.parametrize("first", [b"\x50", b"\x5f"])
def test_a_frame_that_zstandard_skips_may_stand_first(first: bytes) -> None:
    assert read(first + b"\x2a\x4d\x18\x04\0\0\0size" + zstandard.ZstdCompressor().compress(b"text")) == b"text"
