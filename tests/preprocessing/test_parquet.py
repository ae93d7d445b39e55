from __future__ import annotations

import errno
import gzip
import io
import random
import tracemalloc
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from preprocessing.sources import Columns, Document, Item, Part, ReadOptions, Skipped, SourceError
from preprocessing.sources.parquet import _held, read
from tests.failing import REASON


def parquet(table: pa.Table, **options: object) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def documents(data: bytes, part: Part | None = None, **columns: str) -> list[Item]:
    options = ReadOptions(parquet=Columns(**columns))
    return list(read(io.BytesIO(data), "w/0.parquet", options, part=part))


# The layout of wikimedia/wikipedia.
WIKIPEDIA = pa.table(
    {
        "id": [str(number) for number in range(1000)],
        "url": [f"https://en.wikipedia.org/wiki/{number}" for number in range(1000)],
        "title": [f"T{number}" for number in range(1000)],
        "text": [f"Text {number}. " + "More. " * (number % 50) for number in range(1000)],
    }
)


def test_rows_are_documents_named_by_file_and_row() -> None:
    found = documents(parquet(WIKIPEDIA))
    assert [item.doc_id for item in found] == [f"w/0.parquet#{row}" for row in range(1000)]
    assert found[3] == Document("w/0.parquet#3", "parquet", "T3", "Text 3. More. More. More. ")


@pytest.mark.parametrize("size", [1, 100, 1000, 5000, 1 << 20])
@pytest.mark.parametrize("compression", ["snappy", "zstd", "none"])
def test_the_parts_are_the_file(size: int, compression: str) -> None:
    data = parquet(WIKIPEDIA, row_group_size=90, compression=compression)
    cuts = [Part(begin, min(begin + size, len(data))) for begin in range(0, len(data), size)]
    if size == 1:  # where the file's parts are single bytes only those matter where a group begins
        metadata = pq.ParquetFile(io.BytesIO(data)).metadata
        columns = [metadata.row_group(group).column(0) for group in range(metadata.num_row_groups)]
        starts = {column.dictionary_page_offset or column.data_page_offset for column in columns}
        cuts = [Part(at, at + 1) for start in sorted(starts) for at in (start - 1, start)]
    found = [documents(data, part) for part in cuts]
    assert [item for part in found for item in part] == documents(data) == documents(parquet(WIKIPEDIA))
    assert size > 5000 or sum(map(bool, found)) > 1


class Watched(io.BytesIO):
    """A file that notes how much is asked of it, at once and in all."""

    asked: int = 0
    total: int = 0

    def read(self, size: int | None = -1, /) -> bytes:
        found = super().read(size)
        self.asked = max(self.asked, len(found))
        self.total += len(found)
        return found


def test_a_large_group_of_rows_is_not_read_at_once() -> None:
    table = pa.table({"text": [f"{number} " * 10_000 for number in range(200)]})
    data = parquet(table, compression="none", use_dictionary=False, write_batch_size=8)
    assert len(data) > 6 << 20
    file = Watched(data)
    assert len(list(read(file, "w/0.parquet"))) == 200
    assert file.asked < 2 << 20


def test_columns_that_nobody_asks_for_are_not_read() -> None:
    noise = [random.Random(number).randbytes(100_000) for number in range(20)]
    file = Watched(parquet(pa.table({"text": ["A"] * 20, "noise": noise}), write_batch_size=1))
    assert len(list(read(file, "w/0.parquet"))) == 20
    assert file.total < 500_000


def test_storage_that_fails_is_not_called_a_damaged_file() -> None:
    class Failing(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell() >= 4:
                raise OSError(errno.EIO, REASON)
            return super().read(size)

    with pytest.raises(OSError, match=REASON) as raised:
        list(read(Failing(parquet(WIKIPEDIA)), "w/0.parquet"))
    assert raised.value.errno == errno.EIO


def test_as_many_rows_are_decoded_at_once_as_take_16_mib_and_256_at_the_most() -> None:
    def held(texts: list[str], *names: str, title: str = "", **options: object) -> int:
        titles = pa.DictionaryArray.from_arrays(pa.array([0] * len(texts), pa.int32()), pa.array([title]))
        data = parquet(pa.table({"text": texts, "title": titles}), dictionary_pagesize_limit=1 << 30, **options)
        return _held(pq.ParquetFile(io.BytesIO(data)).metadata.row_group(0), names or ("text", "title"))

    long = [chr(97 + number) * 100_000 for number in range(20)]
    assert held(["a"] * 1000) == 256
    assert held(long, use_dictionary=False) == (1 << 24) // 100_000
    assert held(["a" * 20_000_000], use_dictionary=False) == 1
    assert held(long, use_dictionary=["text"]) == (1 << 24) // 2_000_000, "any of them may be all of a dictionary"
    assert held(["a"] * 1000, title="b" * 4_000_000) == 4
    assert held(["a"] * 1000, "text", title="b" * 4_000_000) == 256
    assert held(["a"] * 1000, title="b" * 20_000_000) == 1


def test_columns_have_other_names_and_the_title_is_optional() -> None:
    data = parquet(WIKIPEDIA.rename_columns(["id", "url", "name", "body"]))
    assert documents(data, text="body", title="name") == documents(parquet(WIKIPEDIA))
    found = documents(data, text="body")
    assert isinstance(found[0], Document)
    assert found[0].title is None
    with pytest.raises(SourceError, match=r"no column 'text', but 'id', 'url', 'name', 'body'; use --parquet-text"):
        documents(data)
    with pytest.raises(SourceError, match=r"no column 'nmae', but 'id', .*; use --parquet-title-column"):
        documents(data, text="body", title="nmae")
    with pytest.raises(SourceError, match=r"the column 'text' holds int64, not strings"):
        documents(parquet(pa.table({"text": [1]})))
    with pytest.raises(SourceError, match=r"the column 'title' holds list<.*>, not strings; use --parquet-title"):
        documents(parquet(pa.table({"text": ["A"], "title": [["B"]]})))


def test_a_part_without_any_text_is_empty() -> None:
    """As pandas writes it where all values are None."""
    for rows in (0, 2):
        found = documents(parquet(pa.table({"text": pa.nulls(rows), "title": pa.nulls(rows)})))
        names = [f"w/0.parquet#{row}" for row in range(rows)] or ["w/0.parquet"]
        assert found == [Skipped(name, "parquet", "empty") for name in names]


def test_of_long_texts_few_are_held_at_once() -> None:
    texts = [chr(97 + row) * 4_000_000 for row in range(20)]
    data = parquet(pa.table({"text": texts}), use_dictionary=False, write_batch_size=1)  # a page is read whole
    before, most = pa.total_allocated_bytes(), 0
    for item in read(io.BytesIO(data), "f"):
        assert isinstance(item, Document)
        most = max(most, pa.total_allocated_bytes() - before)
    assert 4_000_000 < most < 40_000_000


def test_a_large_text_that_many_rows_have_is_in_memory_a_few_times() -> None:
    """In the file it is there once, and compressed: a kilobyte would take four gigabytes."""
    large = pa.DictionaryArray.from_arrays(pa.array([0] * 10, pa.int32()), pa.array(["x" * 8_000_000]))
    for kind in (large.type, pa.string()):
        sink = io.BytesIO()
        with pq.ParquetWriter(
            sink, pa.schema({"text": kind}), compression="zstd", dictionary_pagesize_limit=1 << 30
        ) as writer:
            for _ in range(20):
                writer.write_table(pa.table({"text": large.cast(kind)}), row_group_size=300)
        data = sink.getvalue()
        before, most = pa.total_allocated_bytes(), 0
        for item in read(io.BytesIO(data), "f"):
            assert isinstance(item, Document)
            most = max(most, pa.total_allocated_bytes() - before)
        assert most < 60_000_000


@pytest.mark.parametrize("kind", [
    pa.large_string(),
    pytest.param(pa.string_view(), marks=pytest.mark.skipif(
        int(pa.__version__.partition(".")[0]) < 21, reason="this pyarrow writes no such columns"
    )),
])  # fmt: skip
def test_texts_may_be_strings_of_any_kind(kind: pa.DataType) -> None:
    other = WIKIPEDIA.set_column(3, "text", WIKIPEDIA["text"].cast(kind))
    assert documents(parquet(other)) == documents(parquet(WIKIPEDIA))


def test_texts_may_be_a_dictionarys() -> None:
    table = WIKIPEDIA.set_column(3, "text", WIKIPEDIA["text"].dictionary_encode())
    data = parquet(table.set_column(2, "title", table["title"].dictionary_encode()))
    assert pa.types.is_dictionary(pq.ParquetFile(io.BytesIO(data)).schema_arrow.field("text").type)
    assert documents(data) == documents(parquet(WIKIPEDIA))


def test_what_is_no_text() -> None:
    invalid = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\4\0\0\0"), pa.py_buffer(b"a\xffb "))
    table = pa.table({"text": pa.chunked_array([pa.array(["x", None, " "]), invalid])})
    found = documents(parquet(table))
    assert found[1:3] == [Skipped(f"w/0.parquet#{row}", "parquet", "empty") for row in (1, 2)]
    assert found[3] == Document("w/0.parquet#3", "parquet", None, "a\ufffdb ", replaced=1)


def test_too_large_documents_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("preprocessing.sources.parquet.MAX_DOCUMENT", 100)
    found = documents(parquet(pa.table({"text": ["x" * 101, "é" * 100, "\U0001f40b" * 101, "\U0001f40b" * 100]})))
    assert [getattr(item, "reason", "read") for item in found] == ["too_large", "read", "too_large", "read"]


def test_of_a_too_large_document_no_more_is_copied_than_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("preprocessing.sources.parquet.MAX_DOCUMENT", 100)
    file, most = parquet(pa.table({"text": ["é" * 10_000_000, "a" * 100], "title": ["b", "c" * 402]})), 1 << 20
    tracemalloc.start()
    found = documents(file)
    assert tracemalloc.get_traced_memory()[1] < most
    tracemalloc.stop()
    assert found[0] == Skipped("w/0.parquet#0", "parquet", "too_large")


def test_only_what_is_wanted_is_read() -> None:
    data = parquet(WIKIPEDIA)
    found = read(io.BytesIO(data), "f", wanted=lambda doc_id: doc_id in ("f#1", "f#999"))
    assert [item.doc_id for item in found] == ["f#1", "f#999"]


def test_files_that_hold_nothing_or_are_none() -> None:
    without_groups = io.BytesIO()
    pq.ParquetWriter(without_groups, WIKIPEDIA.schema).close()
    for empty in (parquet(WIKIPEDIA.slice(0, 0)), without_groups.getvalue()):
        assert documents(empty) == [Skipped("w/0.parquet", "parquet", "empty")]
        assert documents(empty, Part(0, 4)) == [Skipped("w/0.parquet", "parquet", "empty")]
        assert documents(empty, Part(4, len(empty))) == []  # the first part has told it
    data = parquet(WIKIPEDIA)
    for bad in (
        b"",
        b"PAR1",
        data[:-100],
        data[:4] + b"\xff" * (len(data) - 4004) + data[-4000:],
    ):
        with pytest.raises(SourceError, match=r"^w/0.parquet: not a readable Parquet file"):
            documents(bad)


@pytest.mark.parametrize(
    "data",
    [b"not parquet" * 100, gzip.compress(b"x"), b"PK\x03\x04" + b"x" * 99, b"PAR"],
    ids=["text", "gzip", "zip", "shorter than its mark"],  # bytes of gzip have the time in them
)
def test_a_file_of_another_format_is_told_as_such(data: bytes) -> None:
    """Fetching it again would not help."""
    for part in (Part(0, len(data)), Part(50, len(data))):
        with pytest.raises(SourceError, match=r"^w/0.parquet: no Parquet file, as these begin with PAR1; unpack"):
            documents(data, part)


def test_a_column_whose_name_is_no_text() -> None:
    data = parquet(pa.table({"text": ["Text."], "spoilt": [""]}), store_schema=False).replace(b"spoilt", b"spo\xfflt")
    with pytest.raises(SourceError, match=r"^w/0.parquet: not a readable Parquet file"):
        documents(data)


def test_pages_are_compared_with_their_checksums() -> None:
    data = bytearray(parquet(WIKIPEDIA, write_page_checksum=True, compression="none", use_dictionary=False))
    place = data.index(b"Text 3. More.")
    data[place] ^= 1
    with pytest.raises(SourceError, match="CRC checksum verification failed"):
        documents(bytes(data))


@pytest.mark.parametrize(("titles", "read"), [
    ([None, None], [None, None]), ([7, None], ["7", None]),
    (pa.array([0, None], pa.timestamp("s", "Europe/Berlin")), ["1970-01-01 00:00:00.000", None]),  # in UTC everywhere
    (pa.array([0, None], pa.timestamp("s", "Nowhere/Land")), ["1970-01-01 00:00:00.000", None]),
])  # fmt: skip
def test_a_title_need_not_be_a_string(titles: Sequence[int | None], read: list[str | None]) -> None:
    found = documents(parquet(pa.table({"text": ["A", "B"], "title": titles})))
    assert [item.title for item in found if isinstance(item, Document)] == read


def test_two_columns_of_one_name_are_refused() -> None:
    table = pa.table([pa.array(["A"]), pa.array(["B"])], names=["text", "text"])
    with pytest.raises(SourceError, match="several columns are called 'text'; use --parquet-text-column"):
        documents(parquet(table))
