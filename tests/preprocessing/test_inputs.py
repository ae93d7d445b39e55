"""Every source through the whole job, from and to any file system."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import random
from collections.abc import Callable
from importlib.util import find_spec
from itertools import permutations
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from apache_beam.io.filesystem import FileSystem
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions, S3Options

from preprocessing import train_vocab
from preprocessing.inputs import Input, Unit, find_inputs, group_units, units_checksum, units_of
from preprocessing.schema import ShardDirectory, pairs_column
from preprocessing.sources import Part, ReadOptions, SourceError
from preprocessing.sources.registry import SOURCES
from tests.preprocessing import memory_filesystem
from tests.preprocessing.conftest import WORDS, write_books
from tests.preprocessing.maker import Maker, contents, rows
from tests.preprocessing.test_decompression import in_tar
from tests.preprocessing.test_wikipedia import SITEINFO, page
from tests.preprocessing.test_wikipedia_parts import multistream

DATABASE = "enwiki-20260101-pages-articles-multistream"


def text(seed: int, sentences: int = 40) -> str:
    chance = random.Random(seed)
    words = [word for word in WORDS if word != "a"]  # which, with a full stop, is an abbreviation
    return " ".join(
        " ".join(chance.choices(words, k=chance.randint(4, 12))).capitalize() + "." for _ in range(sentences)
    )


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("preprocessing.inputs.PART_BYTES", 3000)
    monkeypatch.setattr("preprocessing.inputs.UNIT_BYTES", 1)


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    """A folder as of Wikimedia's mirrors: a multistream dump and its index."""
    pages = [page(text(number), number=number) for number in range(1, 101)]
    folder = tmp_path / "dumps"
    folder.mkdir()
    (folder / f"{DATABASE}.xml.bz2").write_bytes(multistream(SITEINFO, pages))
    (folder / f"{DATABASE}-index.txt.bz2").write_bytes(bz2.compress(b"638:10:AccessibleComputing\n"))
    return folder


def test_a_multistream_dump_in_parts_gives_the_shards_of_the_single_stream(
    make: Maker, dumps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = bz2.decompress((dumps / f"{DATABASE}.xml.bz2").read_bytes())
    (tmp_path / "single.xml.bz2").write_bytes(bz2.compress(whole))
    make(tmp_path / "single", "--wikipedia", tmp_path / "single.xml.bz2", "--num-shards", 2)
    monkeypatch.setattr("preprocessing.inputs.UNIT_BYTES", 1)
    for size in (1000, 3000, 7777):
        monkeypatch.setattr("preprocessing.inputs.PART_BYTES", size)
        inputs = find_inputs({"wikipedia": [f"{dumps}/*.bz2"]}, print)
        units = units_of(inputs)
        assert len(units) == -(-inputs[0].bytes // size) > 2
        make(tmp_path / f"multi-{size}", "--wikipedia", dumps / "*.bz2", "--num-shards", 2)
        assert contents(tmp_path / f"multi-{size}") == contents(tmp_path / "single")
    single, parts = (
        ShardDirectory(tmp_path / name).manifest.statistics["documents"] for name in ("single", "multi-1000")
    )
    assert single == parts
    assert single["in_shards"] == 100


def test_the_index_of_a_dump_is_passed_over_with_a_note(make: Maker, dumps: Path, tmp_path: Path) -> None:
    notes: list[str] = []
    (found,) = find_inputs({"wikipedia": [f"{dumps}/*.bz2"]}, notes.append)
    assert found.name == f"{DATABASE}.xml.bz2"
    index = f"{dumps}/{DATABASE}-index.txt.bz2"
    assert notes == [f"1 file of a dump's index passed over, such as {index}"]
    for name in (f"{DATABASE}-index.txt.bz2", f"{DATABASE}-index3.txt-p1p41242.bz2"):
        assert SOURCES["wikipedia"].passed_over is not None
        assert SOURCES["wikipedia"].passed_over.search(name)
    error = make.error(tmp_path / "no", "--wikipedia", dumps / "*index*")
    assert error.endswith(f"nothing but files of a dump's index, such as {index}; give the dump")


def test_units_are_told_apart_by_their_files_and_where_these_are_cut() -> None:
    file, other = Input("jsonl", "a.jsonl", 100, "/here/a.jsonl"), Input("jsonl", "b.jsonl", 100, "/here/b.jsonl")
    units = [Unit(0, (file._replace(part=Part(0, 50)),)), Unit(1, (file._replace(part=Part(50, 100)), other))]
    moved = [Unit(0, (file._replace(part=Part(0, 51)),)), Unit(1, (file._replace(part=Part(51, 100)), other))]
    joined = [Unit(0, (file._replace(part=Part(0, 50)), file._replace(part=Part(50, 100)))), Unit(1, (other,))]
    elsewhere = [Unit(unit.number, tuple(each._replace(path="/there") for each in unit.inputs)) for unit in units]
    assert units_checksum(elsewhere) == units_checksum(units)
    assert len({units_checksum(each) for each in (units, moved, joined)}) == 3


def test_parts_cover_a_file_and_follow_from_its_size(dumps: Path, small_parts: None) -> None:
    units = units_of(find_inputs({"wikipedia": [f"{dumps}/*.xml.bz2"]}, print))
    parts = [file.part for unit in units for file in unit.inputs]
    size = (dumps / f"{DATABASE}.xml.bz2").stat().st_size
    assert parts == [Part(begin, min(begin + 3000, size)) for begin in range(0, size, 3000)]


@pytest.mark.parametrize("pack", [gzip.compress, in_tar], ids=["gzip", "tar"])
def test_only_plain_and_bzip2_dumps_are_cut(dumps: Path, small_parts: None, pack: Callable[[bytes], bytes]) -> None:
    """What is in a tar archive has the streams of a bzip2 dump too."""
    path = dumps / f"{DATABASE}.xml.bz2"
    path.write_bytes(pack(path.read_bytes()))
    ((file,),) = (unit.inputs for unit in units_of(find_inputs({"wikipedia": [str(path)]}, print)))
    assert file.part is None


def write_parquet(path: Path, texts: list[str]) -> None:
    pq.write_table(pa.table({"title": [f"T{n}" for n in range(len(texts))], "text": texts}), path, row_group_size=3)


def write_jsonl(path: Path, texts: list[str]) -> None:
    data = "".join(
        json.dumps({"text": each, "title": f"T{number}"}) + "\n" for number, each in enumerate(texts)
    ).encode()
    pack: dict[str, Callable[[bytes], bytes]] = {
        ".gz": gzip.compress,
        ".bz2": bz2.compress,
        ".xz": lzma.compress,
        ".zst": zstandard.ZstdCompressor().compress,
    }
    path.write_bytes(pack.get(path.suffix, bytes)(data))


def write_wikiextractor(path: Path, texts: list[str]) -> None:
    path.write_text("".join(f'<doc id="{n}" title="T{n}">\nT{n}\n\n{each}\n</doc>\n' for n, each in enumerate(texts)))


def test_all_sources_in_one_job(make: Maker, dumps: Path, books: Path, tmp_path: Path, small_parts: None) -> None:
    texts = [text(number) for number in range(1000, 1040)]
    write_parquet(tmp_path / "a.parquet", texts[:20])
    write_wikiextractor(tmp_path / "wiki_00", texts[20:24])
    for number, ending in enumerate(["", ".gz", ".bz2", ".xz", ".zst"]):
        write_jsonl(tmp_path / f"{number}.jsonl{ending}", texts[24 + 3 * number : 27 + 3 * number])
    said = make(
        tmp_path / "out",
        *("--wikipedia", dumps / "*.xml.bz2", "--books", books / "*.txt", "--parquet", tmp_path / "*.parquet"),
        *("--jsonl", tmp_path / "*.jsonl*", "--wikiextractor", tmp_path / "wiki_*", "--num-shards", 2),
    )
    sources = ShardDirectory(tmp_path / "out").manifest.statistics["sources"]
    counts = {source: its["documents"] for source, its in sources.items()}
    assert counts == {"wikipedia": 100, "books": 12, "parquet": 20, "jsonl": 15, "wikiextractor": 4}
    made = rows(tmp_path / "out")
    assert {row["source"] for row in made} == set(SOURCES)
    by_id = {row["doc_id"]: row for row in made}
    assert by_id["a.parquet#17"]["title"] == "T17"
    assert by_id["4.jsonl.zst#2"]["title"] == "T2"
    assert by_id["wiki_00#3"]["source"] == "wikiextractor"
    assert by_id["testwiki/100"]["source"] == "wikipedia"
    assert "151" in said


def test_a_text_has_the_same_tokens_from_every_source(make: Maker, tmp_path: Path) -> None:
    texts = [text(number) for number in range(6)]
    write_parquet(tmp_path / "a.parquet", texts)
    write_jsonl(tmp_path / "a.jsonl", texts)
    write_wikiextractor(tmp_path / "wiki_00", texts)
    (tmp_path / "google.txt").write_text("\n\n".join(each.replace(". ", ".\n") for each in texts))
    found = []
    for option, name in [("parquet", "a.parquet"), ("jsonl", "a.jsonl"), ("wikiextractor", "wiki_00")]:
        make(tmp_path / option, f"--{option}", tmp_path / name)
        found.append(rows(tmp_path / option))
    make(tmp_path / "google", "--books", tmp_path / "google.txt", "--books-format", "google")
    found.append(rows(tmp_path / "google"))
    columns = [[(row["tokens"], row["sentence_ends"]) for row in made] for made in found]
    assert columns[0] == columns[1] == columns[2] == columns[3]


@pytest.mark.parametrize(
    ("sources", "refused"),
    [
        (("jsonl", "wikiextractor"), True),
        (("parquet", "jsonl"), True),
        (("books", "jsonl"), False),
        (("wikipedia", "jsonl"), False),
        (("wikipedia", "books"), False),
    ],
)
def test_one_name_in_two_sources_is_refused_where_their_ids_would_be_the_same(
    tmp_path: Path, sources: tuple[str, str], refused: bool
) -> None:
    for source in sources:
        (tmp_path / source / "AA").mkdir(parents=True)
        (tmp_path / source / "AA" / "wiki_00").write_text("x")
    patterns = {source: [f"{tmp_path}/{source}/*/wiki_*"] for source in sources}
    if refused:
        with pytest.raises(
            SourceError, match=rf"{sources[0]}/AA/wiki_00 of .* and .*{sources[1]}/AA/wiki_00 of .*'AA/"
        ):
            find_inputs(patterns, print)
    else:
        assert len(find_inputs(patterns, print)) == 2
    google = ReadOptions(books_format="google")
    if sources == ("books", "jsonl"):
        with pytest.raises(SourceError, match="rename one of them"):
            find_inputs(patterns, print, google)


def test_a_file_that_several_paths_lead_to_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    path = tmp_path / "a" / "b" / "x.txt"
    path.write_text("x")
    (tmp_path / "a" / "b" / "up").symlink_to(tmp_path)
    notes: list[str] = []
    detour = f"{tmp_path}/a/../a/b/x.txt"
    (found,) = find_inputs(
        {"books": [str(path), f"{tmp_path}/*/b/*.txt", detour, f"{tmp_path}/**/*.txt"]}, notes.append
    )
    assert (found.name, found.path) == ("a/b/x.txt", str(path))
    (note,) = notes
    assert note == f"1 path to a file named already passed over, such as {detour} to that of {path}"


def test_what_a_file_is_called_does_not_depend_on_the_order_of_the_patterns_that_match_it(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.txt").write_text("x")
    (tmp_path / "a" / "link.txt").symlink_to("x.txt")
    patterns = [f"{tmp_path}/a/*.txt", f"{tmp_path}/b/x.txt", f"{tmp_path}/**/*.txt", f"{tmp_path}/a/../b/*.txt"]
    found = [find_inputs({"books": list(order)}, lambda _: None) for order in permutations(patterns)]
    assert [(file.name, file.path) for file in found[0]] == [
        ("a/link.txt", f"{tmp_path}/a/link.txt"),
        ("b/x.txt", f"{tmp_path}/b/x.txt"),
    ]
    assert all(other == found[0] for other in found)


def test_a_name_in_two_sources_is_told_in_a_line(make: Maker, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "wiki_00", [text(1)])
    said = make.error(tmp_path / "out", "--jsonl", tmp_path / "wiki_00", "--wikiextractor", tmp_path / "wiki_00")
    assert "both are called 'wiki_00'" in said


def test_a_book_that_is_called_as_a_row_of_another_source_is_told_in_a_line(make: Maker, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", [text(1), text(2), text(3)])
    (tmp_path / "a.jsonl#1").write_text(text(4))
    said = make.error(tmp_path / "out", "--jsonl", tmp_path / "a.jsonl", "--books", tmp_path / "a.jsonl#1")
    assert "'a.jsonl#1' is the id of a document of --books and of one of --jsonl, which must differ; rename" in said
    assert not (tmp_path / "out" / "job.json").exists()


def test_a_folder_whose_own_name_looks_like_a_pattern(
    make: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "run [1]*"
    write_books(place / "a" / "b", 4)
    monkeypatch.chdir(place)
    assert [file.name for file in find_inputs({"books": ["a/*/*-0[12].txt"]}, print)] == [
        "b/book-01.txt",
        "b/book-02.txt",
    ]
    (tmp_path / "run 1!" / "out" / ".work").mkdir(parents=True)
    bystander = tmp_path / "run 1!" / "out" / "manifest.json"  # the folder's name, taken for a pattern, matches it
    bystander.write_text("{}")
    make(Path("out"), "--books", "a/**/*.txt")
    assert not (place / "out" / ".work").exists()
    make(Path("out"), "--books", "a/**/*.txt", "--seed", 2, "--overwrite")
    assert [row["doc_id"] for row in rows(place / "out")] == [f"b/book-0{number}.txt" for number in range(4)]
    assert bystander.read_text() == "{}"


def test_wikiextractors_json_output(make: Maker, tmp_path: Path) -> None:
    lines = [{"id": str(n), "revid": "1", "url": "u", "title": f"T{n}", "text": text(n)} for n in range(4)]
    (tmp_path / "wiki_00").write_text("\n".join(map(json.dumps, lines)))
    make(tmp_path / "out", "--jsonl", tmp_path / "wiki_00")
    assert [row["title"] for row in rows(tmp_path / "out")] == ["T0", "T1", "T2", "T3"]


def test_a_field_for_titles_that_no_record_has_is_told_in_the_summary(make: Maker, tmp_path: Path) -> None:
    lines = [{"headline": f"T{number}", "text": text(number)} for number in range(4)]
    lines[0]["headline"] = None  # type: ignore[assignment]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    told = "no titles: the field 'heading' of --jsonl-title-field is in no document of --jsonl"
    for field, warned in (("heading", True), ("headline", False), ("title", False)):
        said = make(tmp_path / field, "--jsonl", tmp_path / "a.jsonl", "--jsonl-title-field", field)
        assert (told in said) == ("no titles" in said) == warned
        jsonl = ShardDirectory(tmp_path / field).manifest.statistics["sources"]["jsonl"]
        assert jsonl["titles"] == (3 if field == "headline" else 0)


def test_a_column_for_titles_that_is_empty_is_told_in_the_summary(make: Maker, tmp_path: Path) -> None:
    texts, nothing = [text(number) for number in range(4)], pa.array([None] * 4, pa.string())
    pq.write_table(pa.table({"text": texts, "heading": nothing}), tmp_path / "a.parquet")
    said = make(tmp_path / "out", "--parquet", tmp_path / "a.parquet", "--parquet-title-column", "heading")
    assert "no titles: the column 'heading' of --parquet-title-column is in no document of --parquet" in said


def test_lines_of_googles_format_are_sentences(make: Maker, tmp_path: Path) -> None:
    document = "The ship sailed. The sea slept.\nof his first\nlong voyage home. And never"
    (tmp_path / "a.txt").write_text(f"{document}\n\n{text(1)}\n")
    said = make(tmp_path / "out", "--books", tmp_path / "a.txt", "--books-format", "google")
    assert "  inputs     1 file, " in said
    assert len(rows(tmp_path / "out")[0]["sentence_ends"]) == 3


def test_google_format_is_another_job_than_a_file_a_document(make: Maker, books: Path, tmp_path: Path) -> None:
    make(tmp_path / "out", "--books", books / "*.txt")
    said = make.error(tmp_path / "out", "--books", books / "*.txt", "--books-format", "google")
    assert "read.books_format was file there and is google here" in said


def test_inputs_and_output_on_another_file_system(
    make: Maker, dumps: Path, books: Path, tmp_path: Path, small_parts: None
) -> None:
    write_parquet(tmp_path / "a.parquet", [text(number) for number in range(20)])
    memory_filesystem.FILES.clear()
    for path in (*dumps.iterdir(), *books.iterdir(), tmp_path / "a.parquet"):
        memory_filesystem.FILES[f"memory://bucket/{path.parent.name}/{path.name}"] = path.read_bytes()
    memory_filesystem.FILES[f"memory://bucket/{tmp_path.name}/a.parquet"] = (tmp_path / "a.parquet").read_bytes()
    local = ("--wikipedia", dumps / "*.bz2", "--books", books / "*.txt", "--parquet", tmp_path / "*.parquet")
    remote = (
        *("--wikipedia", "memory://bucket/dumps/*.bz2", "--books", "memory://bucket/books/*.txt"),
        *("--parquet", f"memory://bucket/{tmp_path.name}/*.parquet"),
    )
    make(tmp_path / "local", *local, "--num-shards", 2)
    make(tmp_path / "remote", *remote, "--num-shards", 2)
    assert contents(tmp_path / "local") == contents(tmp_path / "remote")
    output = "memory://bucket/out"
    make(Path(output), "--output", output, *remote, "--num-shards", 2)
    manifest = json.loads(memory_filesystem.FILES[f"{output}/manifest.json"])
    assert {entry["file"]: entry["blake2b"] for entry in manifest["shards"]} == contents(tmp_path / "local")
    names = {name.removeprefix(output) for name in memory_filesystem.FILES if name.startswith(output)}
    assert not any(name.startswith("/.work") for name in names)
    assert "nothing to do" in make(Path(output), "--output", output, *remote, "--num-shards", 2)


def test_no_nsp_draws_single_segments(make: Maker, books: Path, tmp_path: Path) -> None:
    make(tmp_path / "out", "--books", books / "*.txt", "--no-nsp", "--short-sequence-probability", 0)
    opened = ShardDirectory(tmp_path / "out")
    for length in (32, 64):
        for entry in opened.manifest.shards:
            shard = opened.shard(entry)
            singles = shard.pairs(length)
            assert (singles.b_begin == singles.b_end).all()
            assert (singles.b_row == singles.row).all()
            assert singles.is_next.all()
            lengths = singles.a_end - singles.a_begin
            assert lengths.min() >= 1
            assert lengths.max() == length - 2  # [CLS] and one [SEP]
            assert (lengths == length - 2).mean() > 0.8
    assert opened.manifest.options["pairs"]["next_sentence"] is False
    said = make.error(tmp_path / "out", "--books", books / "*.txt", "--short-sequence-probability", 0)
    assert "pairs.next_sentence was False there and is True here" in said


def test_a_vocabulary_above_65536_entries_makes_wide_tokens(make: Maker, real_data: Path, tmp_path: Path) -> None:
    vocabulary = real_data / "vocab" / "bert-base-multilingual-cased-vocab.txt"
    korean = real_data / "korean" / "kowiki" / "*"
    arguments = ("--vocab", vocabulary, "--cased", "--language", "ko", "--books", korean)
    make(tmp_path / "out", *arguments, "--sequence-lengths", 128)
    opened = ShardDirectory(tmp_path / "out")
    assert opened.manifest.vocabulary.size > 1 << 16
    assert opened.manifest.statistics["unknown_rate"] < 0.02
    for entry in opened.manifest.shards:
        shard = opened.shard(entry)
        assert shard.tokens.dtype == "uint32"
        assert shard.table.schema.field("tokens").type.value_type == pa.uint32()
        assert shard.table.schema.names[-1] == pairs_column(128)
    assert max(int(opened.shard(entry).tokens.max()) for entry in opened.manifest.shards) > 1 << 16


def test_small_inputs_are_read_together() -> None:
    inputs = [Input("books", f"{number}.txt", 1 << 20, "/x") for number in range(10)]
    inputs.append(Input("wikipedia", "w.xml", 1 << 30, "/x"))
    units = group_units(inputs)
    assert [len(unit.inputs) for unit in units] == [4, 4, 2, 1]
    assert [unit.number for unit in units] == [0, 1, 2, 3]


def test_of_a_large_corpus_units_are_larger_for_all_of_them_are_open_at_once() -> None:
    inputs = [Input("books", f"{number}.txt", 5 << 20, "/x") for number in range(20_000)]
    assert 8192 <= len(group_units(inputs)) <= 2 * 8192
    parts = [inputs[0]._replace(part=Part(begin, begin + (32 << 20))) for begin in range(0, 1 << 40, 32 << 20)]
    assert 8192 <= len(group_units(parts)) <= 2 * 8192


def test_a_file_system_has_its_options_before_anything_is_looked_for(
    make: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    regions: list[str | None] = []

    def connect(_self: FileSystem, pipeline_options: PipelineOptions) -> None:
        regions.append(pipeline_options.view_as(S3Options).s3_region_name)

    monkeypatch.setattr(FileSystems, "_pipeline_options", None)
    monkeypatch.setattr(memory_filesystem.MemoryFileSystem, "__init__", connect)
    arguments = ("--books", "memory://bucket/none/*.txt", "--s3_region_name=eu-north-1")
    assert "no input file matches" in make.error(tmp_path / "out", *arguments)
    assert set(regions) == {"eu-north-1"}
    monkeypatch.setattr(FileSystems, "_pipeline_options", None)
    with pytest.raises(SystemExit, match="2"):
        train_vocab.main([*arguments[:2], "--output", str(tmp_path / "vocab.txt")])
    assert regions[-1] is None


@pytest.mark.parametrize(
    ("url", "package", "told"),
    [
        ("s3://bucket/x", "boto3", "s3:// needs an extra of Beam: pip install 'apache-beam[aws]'"),
        ("hdfs://bucket/x", "hdfs", "hdfs:// needs an extra of Beam: pip install 'apache-beam[hadoop]'"),
        ("gs://bucket/x", "apitools", "gs:// needs an extra of Beam: pip install 'apache-beam[gcp]'"),
        ("ftp://bucket/x", "", "Beam knows no ftp://, but gs://, s3://, hdfs://, azfs://"),
        ("file:///bucket/x", "", "'file:///bucket/x' is a file of this machine; give its path, without file://"),
    ],
)
def test_a_url_that_beam_can_not_open_is_told_with_what_is_missing(
    make: Maker, books: Path, tmp_path: Path, url: str, package: str, told: str
) -> None:
    if package and find_spec(package):
        pytest.skip(f"{package} is installed")
    assert told in make.error(tmp_path / "out", "--books", url)
    told = "shards can't be made there" if package == "hdfs" else told
    assert told in make.error(url, "--books", books / "*.txt")


def test_a_tilde_within_quotation_marks_is_the_home_of_the_user(
    make: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(write_books(tmp_path / "books", 4))
    make("~/out", "--books", "~/books/*.txt")
    assert [row["doc_id"] for row in rows(tmp_path / "out")] == [f"book-0{number}.txt" for number in range(4)]
    train_vocab.main(["--books", "~/books/*.txt", "--size", "60", "--output", "~/vocab.txt"])
    assert (tmp_path / "vocab.txt").is_file()
    assert not Path("~").exists()


def test_what_is_passed_over_is_counted_and_a_source_s_own_reason_is_told(tmp_path: Path) -> None:
    """Though another source has files below the output, which is not why this one has nothing."""
    for name in ("a.txt", "out/b.txt", "out/c.txt", "dump-multistream-index.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("A whale.")
    notes: list[str] = []
    output, patterns = str(tmp_path / "out"), {"books": [f"{tmp_path}/**/*.txt"]}
    assert len(find_inputs(patterns, notes.append, output=output)) == 2
    assert notes == [f"2 files below --output passed over, such as {tmp_path}/out/b.txt"]
    with pytest.raises(SourceError, match=r"nothing but files of a dump's index, such as .*; give the dump"):
        find_inputs({**patterns, "wikipedia": [f"{tmp_path}/*index*"]}, print, output=output)
