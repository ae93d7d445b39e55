from __future__ import annotations

import bz2
import io

import numpy as np
import pytest

from preprocessing import bzip2
from preprocessing.bzip2 import decompress, first_start
from preprocessing.sources import SourceError

TEXTS = [np.random.default_rng(number).bytes(5000) + b"x" * 400_000 for number in range(6)]
STREAMS = [bz2.compress(text) for text in TEXTS]
STARTS = [sum(map(len, STREAMS[:number])) for number in range(len(STREAMS))]
WHOLE = b"".join(STREAMS)


def contents(data: bytes, begin: int = 0) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for start, piece in decompress(io.BytesIO(data), begin, "a.bz2"):
        found[start] = found.get(start, b"") + piece
    return found


@pytest.mark.parametrize("padding", [0, 1, 7, 600_000])
def test_streams_and_where_they_begin(padding: int) -> None:
    data = (b"\0" * padding).join([*STREAMS, b""])
    starts = [start + number * padding for number, start in enumerate(STARTS)]
    assert contents(data) == dict(zip(starts, TEXTS, strict=True))
    assert contents(data, starts[4]) == dict(zip(starts[4:], TEXTS[4:], strict=True))


def test_an_empty_stream_is_passed_through() -> None:
    assert list(contents(STREAMS[0] + bz2.compress(b"") + STREAMS[1]).values()) == TEXTS[:2]


@pytest.mark.parametrize("cut", [1, 20, len(STREAMS[-1]) - 3])
def test_a_stream_that_is_cut_short_is_told_with_its_offset(cut: int) -> None:
    with pytest.raises(SourceError, match=f"a.bz2: cut short at byte {len(WHOLE) - cut:,}") as caught:
        contents(WHOLE[:-cut])
    assert f"begins at byte {STARTS[-1]:,}" in str(caught.value)


def test_a_damaged_stream_is_told_with_its_offset() -> None:
    for at in (STARTS[3] + 2000, STARTS[3] + 1):  # in a block; in the header, which bz2.BZ2File takes for padding
        data = bytearray(WHOLE)
        data[at] ^= 0xFF
        with pytest.raises(SourceError, match=f"a.bz2: damaged .* begins at byte {STARTS[3]:,}"):
            contents(bytes(data))


def test_of_a_damaged_stream_the_whole_blocks_before_the_damage_are_handed_out_and_not_a_byte_of_it() -> None:
    text = np.random.default_rng(1).integers(97, 123, 4_500_000, np.uint8).tobytes()  # five blocks
    packed = bytearray(bz2.compress(text))
    packed[len(packed) * 7 // 10] ^= 0xFF
    pieces: list[bytes] = []
    with pytest.raises(SourceError, match="damaged before byte"):
        pieces.extend(piece for _, piece in decompress(io.BytesIO(packed), 0, "a.bz2"))
    assert text.startswith(b"".join(pieces))
    assert sum(map(len, pieces)) > 1_700_000  # of those before it the last one waits for as much as a block holds


def test_what_is_not_padding_after_a_stream_is_no_end() -> None:
    with pytest.raises(SourceError, match=f"begins at byte {len(WHOLE):,}"):
        contents(WHOLE + b"garbage")


def naive(begin: int, end: int) -> int | None:
    return next((start for start in STARTS if begin <= start < end), None)


@pytest.mark.parametrize("read", [7, 64, 5000, 1 << 18])
def test_the_first_start_of_any_range(read: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bzip2, "_READ", read)
    edges = {edge for start in STARTS for edge in (start - 1, start, start + 1)} | {len(WHOLE) // 2, len(WHOLE)}
    ordered = sorted(edge for edge in edges if edge >= 0)
    chosen = ordered if read > 64 else ordered[::4]
    for begin in chosen:
        for end in (edge for edge in chosen if edge > begin):
            assert first_start(io.BytesIO(WHOLE), begin, end) == naive(begin, end)


def test_streams_of_every_size_of_blocks_are_found() -> None:
    for level in range(1, 10):
        assert first_start(io.BytesIO(b"before" + bz2.compress(b"text", level)), 0, 100) == 6


def test_a_damaged_stream_still_begins_where_it_does() -> None:
    data = bytearray(WHOLE)
    data[STARTS[3] + 2000] ^= 0xFF
    assert first_start(io.BytesIO(bytes(data)), STARTS[2] + 1, len(data)) == STARTS[3]
