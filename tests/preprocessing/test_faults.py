"""What is bad in the inputs, or goes wrong around the job: told, or counted; never a hang, never half a result."""

from __future__ import annotations

import errno
import gzip
import io
import json
import lzma
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from preprocessing import files, first_pass, launch, transforms
from preprocessing.inputs import Input
from preprocessing.job import Job, describe
from preprocessing.output import JobError, inspect
from preprocessing.reading import read_inputs
from preprocessing.schema import ShardDirectory
from preprocessing.second_pass import DropsNote
from preprocessing.sources import MAX_DOCUMENT, Document, Part, ReadOptions, Skipped, SourceError, StorageError
from tests.conftest import ROOT
from tests.preprocessing.maker import TWO_PROCESSES, Maker, contents, job_at, rows
from tests.preprocessing.test_inputs import text, write_jsonl, write_parquet
from tests.preprocessing.test_wikipedia import SITEINFO, dump, page
from tests.preprocessing.test_wikipedia_parts import damage, multistream

PAGES = [page(text(number), number=number) for number in range(1, 101)]
SKIP = ReadOptions(on_error="skip")


def skipped(output: Path, source: str) -> dict[str, int]:
    counts: dict[str, int] = ShardDirectory(output).manifest.statistics["sources"][source]["skipped"]
    return counts


@pytest.fixture
def damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A multistream dump, read in parts, of which one stream is damaged."""
    monkeypatch.setattr("preprocessing.inputs.PART_BYTES", 4000)
    data = multistream(SITEINFO, PAGES)
    path = tmp_path / "dump.xml.bz2"
    path.write_bytes(damage(data, len(data) // 2))
    return path


def test_damage_is_told_with_file_and_offset(make: Maker, damaged: Path, tmp_path: Path) -> None:
    said = make.error(tmp_path / "out", "--wikipedia", damaged)
    assert "dump.xml.bz2: damaged before byte" in said
    assert "in the bzip2 stream that begins at byte" in said


def test_what_is_done_when_an_input_is_damaged_is_of_use_to_the_same_command_that_skips_it_and_to_no_other(
    make: Maker, books: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("preprocessing.inputs.UNIT_BYTES", 1)  # each file is read alone
    good, bad, output = tmp_path / "a.jsonl", tmp_path / "b.jsonl", tmp_path / "out"
    good.write_text("".join(json.dumps({"text": text(number)}) + "\n" for number in range(40)))
    bad.write_text('{"text": "cut\n')
    asked = ("--jsonl", good, bad, "--num-shards", 2)
    make(tmp_path / "whole", *asked, "--on-error", "skip")
    kept: list[int] = []
    find_drops = transforms.find_drops

    def drops(job: Job) -> DropsNote:
        kept.append(Path(job.unit_files(0).tokens).stat().st_ino)
        return find_drops(job)

    monkeypatch.setattr(transforms, "find_drops", drops)

    said = make.error(output, *asked)
    assert "b.jsonl#0: not a JSON object" in said
    done = (output / ".work" / "tokens-00000.arrow").stat()
    assert make.error(output, *asked) == said
    make(output, *asked, "--on-error", "skip")
    assert kept[-1] == done.st_ino
    assert contents(output) == contents(tmp_path / "whole")
    assert (output / "job.json").read_text() == (tmp_path / "whole" / "job.json").read_text()

    make.error(output, *asked, "--overwrite")
    make(output, "--books", books / "*.txt", "--num-shards", 2)  # in whose way nothing stands
    make(tmp_path / "books", "--books", books / "*.txt", "--num-shards", 2)
    assert contents(output) == contents(tmp_path / "books")
    assert make.error(output, *asked).endswith("use --overwrite to replace it, or another directory")


def test_what_skips_damage_is_no_beginning_of_a_job_that_fails_at_it(tmp_path: Path) -> None:
    skips, fails = (describe(job_at(tmp_path, *asked), []) for asked in (["--on-error", "skip"], []))
    (tmp_path / "job.json").write_text(json.dumps(fails))
    assert inspect(str(tmp_path), skips) == inspect(str(tmp_path), fails) == "interrupted"
    (tmp_path / "job.json").write_text(json.dumps(skips))
    assert inspect(str(tmp_path), skips) == "interrupted"
    with pytest.raises(JobError, match=r"options\.read\.on_error was skip there and is fail here"):
        inspect(str(tmp_path), fails)


def test_damage_is_skipped_and_counted_when_asked(make: Maker, damaged: Path, tmp_path: Path) -> None:
    said = make(tmp_path / "out", "--wikipedia", damaged, "--on-error", "skip", "--num-shards", 2)
    assert skipped(tmp_path / "out", "wikipedia") == {"damaged": 1}
    assert "1 damaged" in said
    found = {int(row["doc_id"].split("/")[1]) for row in rows(tmp_path / "out")}
    assert 50 < len(found) < 100
    lost = sorted(set(range(1, 101)) - found)
    assert lost == list(range(lost[0], lost[-1] + 1))  # from the damage to the end of its part, and nothing else
    make(tmp_path / "two", "--wikipedia", damaged, "--on-error", "skip", "--num-shards", 2, *TWO_PROCESSES)
    assert contents(tmp_path / "two") == contents(tmp_path / "out")


def test_what_is_before_the_damage_of_a_file_is_kept(tmp_path: Path) -> None:
    data = multistream(SITEINFO, PAGES)
    path = tmp_path / "a.bz2"
    path.write_bytes(data[:-300])
    file = Input("wikipedia", "a.bz2", len(data) - 300, str(path))
    *documents, last = read_inputs([file], SKIP)
    assert last == Skipped("a.bz2", "wikipedia", "damaged")
    assert len(documents) >= 90
    assert all(isinstance(item, Document) for item in documents)
    parts = [file._replace(part=Part(begin, begin + 9000)) for begin in range(0, file.bytes, 9000)]
    assert [item for item in read_inputs(parts, SKIP) if isinstance(item, Document)] == documents
    with pytest.raises(SourceError, match=r"a\.bz2: cut short at byte"):
        list(read_inputs([file]))


@pytest.mark.parametrize(
    ("pack", "least"), [(gzip.compress, 900), (lzma.compress, 600), (zstandard.ZstdCompressor().compress, 600)]
)
def test_what_is_before_the_end_of_a_compressed_file_that_is_cut_short_is_kept(
    pack: Callable[[bytes], bytes], least: int, tmp_path: Path
) -> None:
    lines = "".join(json.dumps({"text": text(number)}) + "\n" for number in range(2000)).encode()
    packed = pack(lines)
    (tmp_path / "whole.jsonl").write_bytes(packed)
    whole = Input("jsonl", "a.jsonl", len(packed), str(tmp_path / "whole.jsonl"))
    path = tmp_path / "a.jsonl"
    path.write_bytes(packed[: len(packed) // 2])
    *documents, last = read_inputs([Input("jsonl", "a.jsonl", path.stat().st_size, str(path))], SKIP)
    assert last == Skipped("a.jsonl", "jsonl", "damaged")
    assert documents == list(read_inputs([whole]))[: len(documents)]
    assert len(documents) > least


def test_what_is_no_file_of_text_is_told(make: Maker, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    assert "no regular file, and what is read once" in make.error(tmp_path / "out", "--books", tmp_path / "pipe.txt")
    (tmp_path / "a.txt").write_bytes(b"PK\x03\x04 and so on")
    assert "a.txt: a zip archive; extract the files" in make.error(tmp_path / "out", "--books", tmp_path / "a.txt")


def test_lines_after_a_damaged_one_are_read(make: Maker, tmp_path: Path) -> None:
    lines = [json.dumps({"text": text(number)}) for number in range(6)]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines[:3], '{"text": "cut', *lines[3:]]))
    said = make.error(tmp_path / "out", "--jsonl", tmp_path / "a.jsonl")
    assert "a.jsonl#3: not a JSON object (Unterminated string" in said
    assert "use --on-error skip" in said
    make(tmp_path / "out", "--jsonl", tmp_path / "a.jsonl", "--on-error", "skip")
    assert skipped(tmp_path / "out", "jsonl") == {"damaged": 1}
    assert len(rows(tmp_path / "out")) == 6


def test_bytes_that_are_no_utf8_are_counted(make: Maker, tmp_path: Path) -> None:
    xml = dump(SITEINFO, *PAGES[:5]).replace(b"ship", b"sh\xffip", 3)
    (tmp_path / "a.xml").write_bytes(xml)
    broken = ("Café. " * 20 + text(7)).encode() + b" caf\xe9 "
    (tmp_path / "book.txt").write_bytes(broken)
    make(tmp_path / "out", "--wikipedia", tmp_path / "a.xml", "--books", tmp_path / "book.txt")
    sources = ShardDirectory(tmp_path / "out").manifest.statistics["sources"]
    assert {source: its["replaced"] for source, its in sources.items()} == {"wikipedia": 3, "books": 1}


def test_books_that_are_taken_for_windows_1252_are_counted_and_told(make: Maker, tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}.txt").write_bytes(f"{text(number)} Caf\xe9.".encode("latin-1" if number else "utf-8"))
    said = make(tmp_path / "out", "--books", tmp_path / "*.txt")
    assert "\n  encoding   3 files taken for Windows-1252, being no UTF-8; docs/preprocessing.md tells how to" in said
    (source,) = ShardDirectory(tmp_path / "out").manifest.statistics["sources"].values()
    assert (source["windows_1252"], source["replaced"]) == (3, 0)


def test_strange_documents_are_handled_and_counted(make: Maker, books: Path, tmp_path: Path) -> None:
    huge = "It is very long. " * (50_000_000 // 17)
    nested = "{{a|" * 10_000 + "x" + "}}" * 10_000
    pages = [
        page(huge, number=1),
        page(f"Before. {nested} After the ship.", number=2),
        page("[[a|" * 10_000 + "The ship.", number=3),
        page("{|\n|" * 10_000 + "of a table", number=4),
    ]
    (tmp_path / "strange.xml").write_bytes(dump(SITEINFO, *pages))
    folder = tmp_path / "books"
    folder.mkdir()
    (folder / "empty.txt").write_text("")
    (folder / "endless.txt").write_text("word " * 300_000)
    (folder / "no-space.txt").write_text("x" * 1_000_000)
    (folder / "one.txt").write_text("The only sentence.")
    (folder / "chinese.txt").write_text("好的。" * 200_000)
    (folder / "huge.txt").write_text("x" * (MAX_DOCUMENT + 1))
    (folder / "a-folder.txt").mkdir()
    begun = time.monotonic()
    make(
        tmp_path / "out",
        *("--wikipedia", tmp_path / "strange.xml", "--books", folder / "*.txt", books / "*.txt"),
    )
    assert time.monotonic() - begun < 300  # a quiet machine takes 8
    sources = ShardDirectory(tmp_path / "out").manifest.statistics["sources"]
    assert sources["wikipedia"]["skipped"] == {"empty": 1, "too_large": 1}
    assert sources["books"]["skipped"] == {"empty": 1, "too_large": 1}
    assert sources["books"]["one_sentence"] == 1
    sentences = {row["doc_id"]: len(row["sentence_ends"]) for row in rows(tmp_path / "out")}
    assert sentences["one.txt"] == 1
    assert sentences["endless.txt"] > 90  # cut, for nothing ends there
    assert sentences["testwiki/2"] == 2
    assert sentences["chinese.txt"] == 200_000


def test_an_empty_dump_and_a_folder_are_told(make: Maker, tmp_path: Path) -> None:
    (tmp_path / "empty.xml").write_bytes(b"")
    assert "empty.xml: not a MediaWiki XML dump" in make.error(tmp_path / "out", "--wikipedia", tmp_path / "empty.xml")
    assert "is a folder" in make.error(tmp_path / "out", "--jsonl", tmp_path)


def test_a_window_that_is_too_large_is_no_damage(make: Maker, tmp_path: Path) -> None:
    # A frame by hand, as `zstd --ultra --long=31` begins it: a window of 2 GB, and one block of a byte as it is.
    (tmp_path / "a.jsonl.zst").write_bytes(b"\x28\xb5\x2f\xfd" + bytes([0x00, 21 << 3]) + b"\x09\0\0x")
    said = make.error(tmp_path / "out", "--jsonl", tmp_path / "a.jsonl.zst")
    assert "a.jsonl.zst: compressed with a window larger than is read here (--long); decompress it first" in said


# --- Storage that fails for a while ---


class _Failing(io.FileIO):
    """A file of which nothing can be read any more after some bytes."""

    limit = 0

    def readinto(self, buffer: Any) -> int:
        if self.tell() >= self.limit:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return super().readinto(memoryview(buffer)[:1000]) or 0


def fails(patch: pytest.MonkeyPatch, name: str, after: int) -> None:
    """Let reading fail after so many bytes of every file of a name."""
    original = files.FileSystems.open

    def opened(path: str, **options: Any) -> Any:
        if not path.endswith(name):
            return original(path, **options)
        if not after:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        file = _Failing(path)
        file.limit = after
        return io.BufferedReader(file, buffer_size=1000)

    patch.setattr(files.FileSystems, "open", opened)


@pytest.mark.parametrize("after", [0, 2000])
def test_storage_that_fails_is_told_and_what_is_done_stays(
    make: Maker, books: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    monkeypatch.setattr("preprocessing.inputs.UNIT_BYTES", 1)
    arguments = ("--books", books / "*.txt", "--num-shards", 2, "--on-error", "skip")
    make(tmp_path / "whole", *arguments)
    with pytest.MonkeyPatch.context() as patch:
        fails(patch, "book-11.txt", after)
        said = make.error(tmp_path / "out", *arguments, code=1 if after else 2)
    assert f"{books}/book-11.txt: can't be read ({'Stale file handle' if after else 'Permission denied'})" in said
    done = {note: note.stat().st_mtime_ns for note in tmp_path.glob("out/.work/tokens-*.json")}
    assert done
    with pytest.MonkeyPatch.context() as patch:
        # The job's end clears its work folder.
        patch.setattr(launch, "clear_work", lambda _output: None)
        make(tmp_path / "out", *arguments)
    assert {note: note.stat().st_mtime_ns for note in done} == done
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.parametrize("kind", ["txt", "gz", "bz2", "xz", "zst", "parquet"])
def test_storage_that_fails_is_no_damage_whatever_the_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path = tmp_path / f"a.{kind}"
    lines = [json.dumps({"text": random.Random(number).randbytes(500).hex()}) for number in range(100)]
    if kind == "parquet":
        write_parquet(path, lines)
    else:
        write_jsonl(path, lines)
    file = Input("parquet" if kind == "parquet" else "jsonl", path.name, path.stat().st_size, str(path))
    if kind == "parquet":
        file = file._replace(part=Part(0, file.bytes))
    assert len(list(read_inputs([file]))) == 100
    fails(monkeypatch, path.name, 20_000)
    with pytest.raises(
        StorageError, match=r"can't be read \(Stale file handle\); once it can, the same command goes on"
    ):
        list(read_inputs([file], SKIP))


@pytest.mark.parametrize("size", [0, 120, 1_200_000])
def test_an_input_that_changes_while_it_is_read_is_told(
    make: Maker, books: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """A download that goes on, or a copy over it: what was read is half of one thing or of another."""
    monkeypatch.setattr("preprocessing.inputs.UNIT_BYTES", 1)
    books = shutil.copytree(books, tmp_path / "books")
    read, book = first_pass.read_inputs, books / "book-05.txt"

    def change_and_read(inputs: tuple[Input, ...], *rest: Any, **options: Any) -> Any:
        if inputs[0].path == str(book):
            book.write_text("A sentence. " * (size // 12))
        return read(inputs, *rest, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(first_pass, "read_inputs", change_and_read)
        said = make.error(tmp_path / "out", "--books", books / "*.txt")
    assert f"{book}: has changed since the job began, from" in said
    assert f"bytes to {size:,}; once nobody writes to it, give the command again with --overwrite" in said
    assert not (tmp_path / "out" / "manifest.json").exists()
    make(tmp_path / "out", "--books", books / "*.txt", "--overwrite")


# --- No space left ---


@pytest.mark.parametrize("name", ["lines-00000.arrow", "tokens-00000.json", "shard-00000", "manifest"])
def test_a_full_disk_is_told_and_the_job_goes_on_later(make: Maker, books: Path, tmp_path: Path, name: str) -> None:
    arguments = ("--books", books / "*.txt", "--num-shards", 2)
    make(tmp_path / "whole", *arguments)
    write = files.HashingWriter.write
    publish = files.publish.__wrapped__  # type: ignore[attr-defined]
    full: list[str] = []

    def watched(path: str, scratch: str) -> Any:
        full.append(path)
        yield from publish(path, scratch)

    def fail(self: files.HashingWriter, data: Any) -> int:
        if name in full[-1]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(self, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "publish", files.contextmanager(watched))
        patch.setattr(files.HashingWriter, "write", fail)
        said = make.error(tmp_path / "out", *arguments)
    assert "disk full or quota reached" in said
    assert f"{tmp_path}/out" in said
    assert not (tmp_path / "out" / "manifest.json").exists()
    for shard in tmp_path.glob("out/*.arrow"):
        assert contents(tmp_path / "whole")[shard.name]
        assert shard.read_bytes() == (tmp_path / "whole" / shard.name).read_bytes()
    make(tmp_path / "out", *arguments)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


# --- An output whose storage fails for a while ---


def told_and_gone_on_with(
    make: Maker, books: Path, output: Path, owner: Any, function: str, fail: Any, number: int = errno.ESTALE
) -> None:
    """See what a job says whose output fails by a function, and that the same command goes on with it later."""
    asked = ("--books", books / "*.txt", "--num-shards", 2)
    make(output.parent / "whole", *asked)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, function, fail)
        with pytest.raises(SystemExit, match="1"):
            make(output, *asked)
    assert make.capsys.readouterr().err == (
        f"make_shards: error: {output}: can't be written or read ({os.strerror(number)}); "
        "once it can, the same command goes on\n"
    )
    make(output, *asked)
    assert contents(output) == contents(output.parent / "whole")
    assert not (output / ".work").exists()


@pytest.mark.parametrize(
    ("name", "no_word"),
    [
        *((name, False) for name in (
            "job.json", "lines-00000.arrow", "tokens-00000.json", "drops.json", "shard-00000-of-00002.arrow",
            "tokenizer/vocab.txt", "manifest.json",
        )),
        ("lines-00000.arrow", True),
    ],
)  # fmt: skip
def test_an_output_that_can_not_be_written_for_a_while_is_told_though_no_word_of_it_can_be_written_either(
    make: Maker, books: Path, tmp_path: Path, name: str, no_word: bool
) -> None:
    """By every step: in an engine's words a network that fails may be its own."""
    rename = files._rename

    def fail(unfinished: str, path: str) -> None:
        if path.endswith(f"/{name}") or (no_word and "/error-" in path):
            named = () if no_word else (unfinished,)  # as an error of a write is not
            raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), *named)
        rename(unfinished, path)

    told_and_gone_on_with(make, books, tmp_path / "out", files, "_rename", fail, errno.ETIMEDOUT)


@pytest.mark.parametrize("name", [".work/vocab.txt", "manifest.json"])
def test_a_file_of_an_output_that_can_not_be_read_for_a_while_is_told(
    make: Maker, books: Path, tmp_path: Path, name: str
) -> None:
    read_text = files.read_text

    def fail(path: str) -> str | None:
        if path.endswith(f"/{name}") and (tmp_path / "out" / name).exists():
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        return read_text(path)

    told_and_gone_on_with(make, books, tmp_path / "out", files, "read_text", fail)


@pytest.mark.parametrize("name", ["documents-00000.arrow", "tokens-00000.arrow", "lost.arrow"])
def test_an_arrow_file_of_an_output_that_can_not_be_opened_for_a_while_is_told(
    make: Maker, books: Path, tmp_path: Path, name: str
) -> None:
    memory_map = files.pa.memory_map

    def fail(path: str) -> Any:
        if path.endswith(f"/{name}"):
            raise OSError(errno.ESTALE, f"Failed to open local file '{path}'")
        return memory_map(path)

    told_and_gone_on_with(make, books, tmp_path / "out", files.pa, "memory_map", fail)


def test_an_arrow_file_that_can_not_be_mapped_is_of_storage_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of that pyarrow tells without a number."""

    def fail(_path: str) -> None:
        raise OSError("Memory mapping file failed: Stale file handle")

    monkeypatch.setattr(files.pa, "memory_map", fail)
    with pytest.raises(OSError, match="Memory mapping file failed") as caught, files.open_arrow(f"{tmp_path}/a.arrow"):
        pass
    assert caught.value.errno == errno.EIO


# --- A power failure ---


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("tokens-00000.json", b""),
        ("lines-00000.arrow", b"ARROW1"),
        ("drops.json", b"\0\xff"),
        ("shard-00000-of-00002.arrow.json", b'[{"file"'),
        ("../shard-00000-of-00002.arrow", b""),
        ("tokens-00000.json", b"{}"),
        ("drops.json", b'[{}, "x"]'),
        ("shard-00000-of-00002.arrow.json", b'{"noted": [{}, {}], "blake2b": "c0"}'),
    ],
)
def test_what_a_power_failure_has_cut_or_others_have_changed_is_made_again(
    make: Maker, books: Path, tmp_path: Path, name: str, left: bytes
) -> None:
    arguments = ("--books", books / "*.txt", "--num-shards", 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "clear_work", lambda _output: None)
        make(tmp_path / "out", *arguments)
    whole = contents(tmp_path / "out")
    (tmp_path / "out" / "manifest.json").unlink()
    cut = tmp_path / "out" / ".work" / name
    assert len(cut.read_bytes()) > len(left)
    cut.write_bytes(left)
    make(tmp_path / "out", *arguments)
    assert contents(tmp_path / "out") == whole
    ShardDirectory(tmp_path / "out").verify()


def command(*arguments: object, environment: dict[str, str] | None = None, limit: int | None = None) -> Any:
    return subprocess.run(
        [sys.executable, "-m", "preprocessing.make_shards", *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | (environment or {}),
        capture_output=True,
        text=True,
        timeout=100,
        preexec_fn=limit and (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))),
        check=False,
    )


@pytest.mark.parametrize("mode", [(), pytest.param(TWO_PROCESSES, marks=pytest.mark.slow)])
def test_a_limit_on_files_is_like_a_full_disk(
    books: Path, vocabulary_file: Path, tmp_path: Path, mode: tuple[str, ...]
) -> None:
    arguments = ("--books", books / "*.txt", "--vocab", vocabulary_file, "--output", tmp_path / "out", *mode)
    run = command(*arguments, limit=30_000)
    assert run.returncode == 2, run.stderr
    assert (
        run.stderr.strip().split("\n")[-1].startswith(f"make_shards: error: {tmp_path}/out: disk full or quota reached")
    )
    assert not (tmp_path / "out" / "manifest.json").exists()
    for shard in tmp_path.glob("out/*.arrow"):
        with files.open_arrow(str(shard)) as whole:
            assert whole.num_record_batches == 1


# --- A document that takes for ever ---

HANGING = """
import re
import preprocessing.text

def clean(text, original=preprocessing.text.clean):
    if "forever" in text:
        re.match("(a+)+$", "a" * 64 + "b")  # holds Python's lock, as regular expressions do
    return original(text)

preprocessing.text.clean = clean
"""


@pytest.mark.parametrize("mode", [(), pytest.param(TWO_PROCESSES, marks=pytest.mark.slow)])
def test_a_document_that_takes_for_ever_ends_the_job_and_is_named(
    books: Path, vocabulary_file: Path, tmp_path: Path, mode: tuple[str, ...]
) -> None:
    (tmp_path / "sitecustomize.py").write_text(HANGING)
    (tmp_path / "stuck.txt").write_text("forever")
    arguments = ("--books", books / "*.txt", tmp_path / "stuck.txt", "--vocab", vocabulary_file, *mode)
    output = tmp_path / "out"
    run = command(
        *(*arguments, "--output", output, "--document-timeout", 2),
        environment={"PYTHONPATH": f"{tmp_path}:{ROOT}"},
    )
    assert run.returncode == (1 if mode else -signal.SIGKILL)
    (line,) = (line for line in run.stderr.split("\n") if line.startswith("make_shards: error:"))
    assert "error: stuck.txt: still not done after 2 s; leave it out of the inputs" in line
    assert not list(output.glob("*.arrow"))
    assert not (output / "manifest.json").exists()
