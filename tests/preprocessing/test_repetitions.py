"""What is repeated in a corpus, through the whole job."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from preprocessing import transforms
from preprocessing.contamination import Search, read_benchmark, shares
from preprocessing.make_shards import main
from preprocessing.options import parse
from preprocessing.schema import ShardDirectory
from preprocessing.sources import SourceError, StorageError
from preprocessing.storage_errors import exit_code
from preprocessing.text import clean
from tests.conftest import ROOT
from tests.failing import fail_on
from tests.preprocessing.conftest import write_books
from tests.preprocessing.maker import TWO_PROCESSES

Make = Callable[..., ShardDirectory]


@pytest.fixture
def make(vocabulary_file: Path, capsys: pytest.CaptureFixture[str]) -> Make:
    def run(output: Path, *arguments: object) -> ShardDirectory:
        shared = ["--vocab", vocabulary_file, "--sequence-lengths", 32, "--duplicates", 1, "--output", output]
        main([str(argument) for argument in (*shared, *arguments)])
        capsys.readouterr()
        opened = ShardDirectory(output)
        opened.verify()
        return opened

    return run


@pytest.fixture
def repetitive(tmp_path: Path) -> Path:
    """Sixteen books: 00 to 09 are unlike each other, the others repeat them in one way or another."""
    folder = write_books(tmp_path / "books", 10)
    shutil.copy(folder / "book-03.txt", folder / "book-03-again.txt")
    shutil.copy(folder / "book-03.txt", folder / "a-book-03.txt")  # the smallest id, so this one stays
    paragraphs = (folder / "book-07.txt").read_text().split("\n\n")
    own = "An old whale spoke of home. The ship never slept."
    (folder / "some-of-07.txt").write_text("\n\n".join([*paragraphs[:4], own, *paragraphs[4:6], paragraphs[4]]))
    (folder / "only-of-07.txt").write_text("\n\n".join(paragraphs[2:5]))
    (folder / "b-of-08.txt").write_text((folder / "book-08.txt").read_text().split("\n\n")[0])
    words = (folder / "book-09.txt").read_text().split(" ")
    chance = random.Random(0)
    (folder / "near-09.txt").write_text(" ".join(word if chance.random() > 0.004 else "sea" for word in words))
    return folder


def documents(opened: ShardDirectory) -> dict[str, int]:
    """Sentences by document."""
    tables = [opened.shard(entry).table for entry in opened.manifest.shards]
    return {row["doc_id"]: len(row["sentence_ends"]) for table in tables for row in table.to_pylist()}


def test_repetitions_are_dropped_and_counted(make: Make, repetitive: Path, tmp_path: Path) -> None:
    everything = documents(make(tmp_path / "all", "--books", repetitive / "*.txt", "--deduplicate", "none"))
    opened = make(tmp_path / "out", "--books", repetitive / "*.txt")
    kept, statistics = documents(opened), opened.manifest.statistics
    assert everything.keys() - kept.keys() == {"book-03.txt", "book-03-again.txt", "only-of-07.txt"}
    assert statistics["documents"] == {"read": 16, "in_shards": 13, "collisions": 0, "skipped": 3}
    books = statistics["sources"]["books"]
    assert books["skipped"] == {"duplicate_document": 2, "repeated_lines": 1}
    assert kept["some-of-07.txt"] == 2  # its own line
    assert kept["book-07.txt"] == everything["book-07.txt"]
    assert kept["b-of-08.txt"] == everything["b-of-08.txt"]
    assert kept["book-08.txt"] == everything["book-08.txt"] - everything["b-of-08.txt"]
    assert books["repeated"]["sentences"] == sum(everything[name] - kept[name] for name in kept)
    assert books["sentences"] == sum(kept.values())
    longer = make(tmp_path / "longer", "--books", repetitive / "*.txt", "--min-tokens", 14)
    assert kept.keys() - documents(longer).keys() == {"some-of-07.txt"}, "of which 13 are left"


def test_near_duplicates_are_dropped_when_asked(make: Make, repetitive: Path, tmp_path: Path) -> None:
    only_near = ("--deduplicate", "none", "--near-duplicates", 0.8)
    opened = make(tmp_path / "out", "--books", repetitive / "*.txt", *only_near)
    gone = {path.name for path in repetitive.iterdir()} - documents(opened).keys()
    assert gone == {"book-03.txt", "book-03-again.txt", "near-09.txt"}
    assert opened.manifest.statistics["sources"]["books"]["skipped"] == {"near_duplicate": 3}


def test_lines_alone_and_short_ones_that_may_repeat(make: Make, repetitive: Path, tmp_path: Path) -> None:
    opened = make(tmp_path / "out", "--books", repetitive / "*.txt", "--deduplicate", "lines", "--min-repeated-line", 1)
    skipped = opened.manifest.statistics["sources"]["books"]["skipped"]
    assert skipped == {"repeated_lines": 3}  # a duplicate is nothing but lines that are repeated
    longer = ("--deduplicate", "lines", "--min-repeated-line", 100_000)
    assert len(documents(make(tmp_path / "all", "--books", repetitive / "*.txt", *longer))) == 16


def test_the_same_bytes_whatever_the_order_the_processes_and_the_batches(
    make: Make, repetitive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("--num-shards", 2, "--near-duplicates", 0.8)
    make(tmp_path / "one", "--books", repetitive / "*.txt", *asked)
    monkeypatch.setattr("preprocessing.inputs.UNIT_BYTES", 1)  # a book a unit
    shuffled = random.Random(1).sample(sorted(repetitive.iterdir()), 16)
    make(tmp_path / "two", "--books", *shuffled, *asked, *TWO_PROCESSES)
    monkeypatch.setattr("preprocessing.first_pass.BATCH_TOKENS", 300)
    monkeypatch.setattr("preprocessing.dedup.RANGE_RECORDS", 16)
    monkeypatch.setattr("preprocessing.inputs.UNIT_BYTES", 1 << 30)
    make(tmp_path / "three", "--books", *shuffled, *asked)
    manifests = {(tmp_path / name / "manifest.json").read_bytes() for name in ("one", "two", "three")}
    assert len(manifests) == 1  # it has every shard's checksum


KILLED = """
import os, signal, sys
from preprocessing import files, make_shards
original = files._rename
def killing(unfinished, path):
    if path.endswith(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    original(unfinished, path)
files._rename = killing
make_shards.main(sys.argv[2:])
"""


@pytest.mark.parametrize("before", ["lost.arrow", "drops.json"])
def test_a_job_killed_between_the_passes_goes_on_to_the_same_bytes(
    make: Make, repetitive: Path, vocabulary_file: Path, tmp_path: Path, before: str
) -> None:
    asked = ("--books", repetitive / "*.txt", "--num-shards", 2)
    command = [
        "--vocab",
        vocabulary_file,
        "--sequence-lengths",
        32,
        "--duplicates",
        1,
        "--output",
        tmp_path / "out",
        *asked,
    ]
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, before, *map(str, command)], capture_output=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    left = {path.name for path in (tmp_path / "out" / ".work").iterdir()}
    assert "tokens-00000.json" in left
    assert before not in left
    assert any(name.startswith("tmp-") for name in left)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transforms, "tokenize_unit", None)  # nothing is read again
        make(tmp_path / "out", *asked)
    make(tmp_path / "whole", *asked)
    assert (tmp_path / "out" / "manifest.json").read_bytes() == (tmp_path / "whole" / "manifest.json").read_bytes()
    assert not (tmp_path / "out" / ".work").exists()


def test_a_corpus_of_one_document_and_its_copies_is_refused(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    books = write_books(tmp_path / "books", 1)
    shutil.copy(books / "book-00.txt", books / "copy.txt")
    with pytest.raises(SystemExit) as caught:
        make(tmp_path / "out", "--books", books / "*.txt")
    assert caught.value.code == 2
    assert "a single document, 'book-00.txt'" in capsys.readouterr().err


@pytest.mark.parametrize("written", [["documents,lines"], ["documents,", "lines"], ["lines", "documents"], None])
def test_what_is_dropped_has_blanks_or_commas_between_it(written: list[str] | None) -> None:
    asked = ["--deduplicate", *written] if written else []
    repeats = parse(["--books", "x", "--vocab", "v", "--output", "o", *asked]).options.repeats
    assert (repeats.documents, repeats.lines) == (True, True)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--deduplicate", "none", "lines"], "none can't be combined with other values"),
        (["--deduplicate", "documents", "--min-repeated-line", "5"], "is for --deduplicate lines"),
        (["--deduplicate", "words"], "invalid choice: 'words' (choose from documents, lines, none)"),
        (["--deduplicate", "documents,words"], "invalid choice: 'words'"),
        (["--deduplicate", ","], "invalid choice: ''"),
        (["--deduplicate", "lines,none"], "none can't be combined with other values"),
        (["--near-duplicates", "0.2"], "'0.2' is not a similarity: a number from 0.5 to 0.99"),
        (["--near-duplicates", "1"], "'1' is not a similarity: a number from 0.5 to 0.99"),
        (["--near-duplicates", "abc"], "'abc' is not a similarity: a number from 0.5 to 0.99"),
        (["--contamination", "/nowhere"], "/nowhere: no such folder"),
    ],
)
def test_bad_options_are_told(
    make: Make, books: Path, tmp_path: Path, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        make(tmp_path / "out", "--books", books / "*.txt", *arguments)
    assert caught.value.code == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_two_real_books_share_a_story(real_data: Path, tmp_path: Path, make: Make) -> None:
    # "Jeeves and the Chump Cyril" is in both collections; the rest of them is not.
    folder = tmp_path / "books"
    folder.mkdir()
    for name in ("pg59254-the-inimitable-jeeves.txt", "pg8176-death-at-the-excelsior.txt", "pg1250-anthem.txt"):
        shutil.copy(real_data / "books" / name, folder)
    vocabulary = real_data / "vocab" / "bert-base-uncased-vocab.txt"
    arguments = ("--books", folder / "*.txt", "--vocab", vocabulary, "--validation-fraction", 0)
    everything = documents(make(tmp_path / "all", *arguments, "--deduplicate", "none"))
    opened = make(tmp_path / "out", *arguments)
    kept, repeated = documents(opened), opened.manifest.statistics["sources"]["books"]["repeated"]
    assert {name for name in kept if kept[name] < everything[name]} == {"pg8176-death-at-the-excelsior.txt"}
    assert 150 < repeated["lines"] < 250
    assert 5_000 < repeated["tokens"] < 20_000


def test_the_share_of_a_benchmark_that_is_in_the_corpus(
    make: Make, books: Path, tmp_path: Path, one_book_a_unit: None
) -> None:
    paragraphs = (books / "book-05.txt").read_text().split("\n\n")
    folder = tmp_path / "benchmark"
    (folder / "qa").mkdir(parents=True)
    unseen = "This is a sentence of so many words that nobody has ever written down"
    (folder / "qa" / "dev.json").write_text(json.dumps({"data": [{"text": paragraphs[0]}, unseen, "too short"]}))
    fields = [paragraphs[1].upper(), "1", paragraphs[2].replace(".", " !"), unseen]
    (folder / "train.tsv").write_text("\t".join(fields) + "\n" + f"0\t{unseen}\n")
    (folder / "more.jsonl").write_text(json.dumps({"text": unseen}) + "\n")
    (folder / "readme.md").write_text(paragraphs[3])
    asked = ("--books", books / "*.txt", "--contamination", folder)
    told = make(tmp_path / "out", *asked).manifest.statistics["contamination"]
    assert told == {
        "more.jsonl": {"texts": 1, "in_corpus": 0, "share": 0.0},
        "qa/dev.json": {"texts": 2, "in_corpus": 1, "share": 0.5},
        "train.tsv": {"texts": 3, "in_corpus": 2, "share": 2 / 3},
    }
    (folder / "broken.json").write_text("{")
    with pytest.raises(SourceError, match=r"broken.json: can't be read as .json"):
        read_benchmark(folder, print)


def test_a_text_of_a_benchmark_has_eight_words_or_more_and_is_a_string(tmp_path: Path) -> None:
    eight = "one two three four five six seven eight"
    values = [eight, eight.rpartition(" ")[0], 8, 1.5, True, None, {"of": {"more": [f"{eight} nine"]}, "none": None}]
    (tmp_path / "dev.json").write_text(json.dumps(values))
    benchmark = read_benchmark(tmp_path, print)
    assert sorted(map(len, benchmark.texts.column("sequences").to_pylist())) == [1, 2]
    assert len(benchmark.sequences) == 2, "the eight words are in both"


def test_a_benchmark_is_the_same_one_in_every_process(tmp_path: Path) -> None:
    """Or a job would not go on with what another one has found."""
    texts = [" ".join(f"{word}{number}" for word in "abcdefghi") for number in range(50)]
    (tmp_path / "dev.txt").write_text("\n".join(texts))
    (tmp_path / "test.TSV").write_text("\t".join(texts[::-1]))
    program = f"""
from pathlib import Path
from preprocessing.contamination import read_benchmark
print(read_benchmark(Path({str(tmp_path)!r}), print).identity)"""
    told = {
        subprocess.check_output([sys.executable, "-c", program], env=os.environ | {"PYTHONHASHSEED": seed}, cwd=ROOT)
        for seed in ("1", "2")
    }
    assert len(told) == 1


def test_a_folder_without_a_text_to_look_for_is_told_as_what_it_is(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(SourceError, match=r"no text of 8 words or more in any file that ends in \.json, \.jsonl, "):
            read_benchmark(tmp_path, print)
        (tmp_path / "short.txt").write_text("So few words as nobody looks for")


def test_a_benchmark_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text("[" * 300 + "]" * 300)
    with pytest.raises(SourceError, match=r"deep.json: can't be read as .json in UTF-8 \(nested more than 200 deep\)"):
        read_benchmark(tmp_path, print)
    (tmp_path / "deep.json").unlink()
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_text(" ".join(f"word{number}" for number in range(12)))
    with pytest.raises(SourceError, match=r"caf.*\.txt: can't be read .*mend or remove it"):
        read_benchmark(tmp_path, print)
    (tmp_path / os.fsdecode(b"caf\xe9")).mkdir()
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).rename(tmp_path / os.fsdecode(b"caf\xe9") / "a.txt")
    with pytest.raises(SourceError, match=r"caf.*/a\.txt: can't be read .*mend or remove it"):
        read_benchmark(tmp_path, print)
    with pytest.raises(SourceError, match=r"xxx: no such folder; --contamination takes one that holds"):
        read_benchmark(tmp_path / ("x" * 300), print)


def test_a_file_of_a_benchmark_whose_storage_fails_is_not_called_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dev.tsv").write_text(" ".join(f"word{number}" for number in range(12)))
    fail_on(monkeypatch, Path, "read_text")
    with pytest.raises(
        StorageError, match=r"dev.tsv: can't be read \(Input/output error\); once it can, the same command goes on"
    ) as raised:
        read_benchmark(tmp_path, print)
    assert exit_code(raised.value) == 1


@pytest.mark.parametrize("call", ["stat", "listdir"])
def test_a_folder_of_a_benchmark_whose_storage_fails_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    really_look = getattr(os, call)

    def fail(path: object, **options: object) -> object:
        if str(path).startswith(str(tmp_path)):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return really_look(path, **options)

    (tmp_path / "dev.tsv").write_text(" ".join(f"word{number}" for number in range(12)))
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(
        StorageError, match=r"can't be read \(Stale file handle\); once it can, the same command goes on"
    ):
        read_benchmark(tmp_path, print)


def test_which_files_of_a_benchmark_are_not_read_is_told(tmp_path: Path) -> None:
    for name in ("dev.TSV", "train.jsonl.gz", "LICENSE"):
        (tmp_path / name).write_text(" ".join(f"word{number}" for number in range(12)))
    notes: list[str] = []
    assert read_benchmark(tmp_path, notes.append).texts.column("file").to_pylist() == ["dev.TSV"]
    told = f"2 files below {tmp_path} passed over, such as {tmp_path}/LICENSE: read are .json, .jsonl, .tsv, .txt"
    assert notes == [told]


def test_what_lies_below_a_folder_of_a_benchmark_is_read_through_links_and_nothing_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "dev.txt").write_text("It was the best of times, it was the worst of times.\n")
    folder = tmp_path / "benchmark"
    folder.mkdir()
    (folder / "linked").symlink_to("../elsewhere")
    (folder / ".cache").mkdir()
    (folder / ".cache" / "dev.txt").write_text("Hidden are those that a program of its own has put there.\n")
    assert read_benchmark(folder, print).texts.column("file").to_pylist() == ["linked/dev.txt"]
    (folder / "test.txt").symlink_to("nowhere.txt")
    with pytest.raises(SourceError, match=r"test\.txt: a link that leads nowhere; mend it"):
        read_benchmark(folder, print)


def test_the_texts_of_a_benchmark_are_counted_by_the_words_by_which_they_are_found(tmp_path: Path) -> None:
    """Others, in which a dash by itself passes for a word, would be counted and never found."""
    dashes, hyphens = "It was - so they say - a whale .", "the-old-captain's first/long/voyage was over"
    (tmp_path / "a.txt").write_text(f"{dashes}\n{hyphens}\n")
    benchmark = read_benchmark(tmp_path, print)
    search = Search(benchmark.sequences)
    search.look_in("The old captain's first long voyage was over.")
    assert shares(benchmark.texts, [search.positions()]) == {"a.txt": {"texts": 1, "in_corpus": 1, "share": 1.0}}


@pytest.mark.parametrize("name", ["a.txt", "a.tsv", "a.json", "a.jsonl"])
def test_a_file_of_a_benchmark_may_begin_with_a_byte_order_mark(tmp_path: Path, name: str) -> None:
    text = "It was the best of times, it was the worst of times."
    (tmp_path / name).write_text(json.dumps(text) if "json" in name else text, encoding="utf-8-sig")
    assert read_benchmark(tmp_path, print).texts.num_rows == 1


def test_a_text_of_ten_sequences_needs_seven(tmp_path: Path) -> None:
    text = [f"word{number}" for number in range(17)]
    (tmp_path / "a.txt").write_text(" ".join(text))
    benchmark = read_benchmark(tmp_path, print)
    for words, told in ((13, 0), (14, 1)):
        search = Search(benchmark.sequences)
        search.look_in(" ".join(text[:words]))
        assert shares(benchmark.texts, [search.positions()])["a.txt"]["in_corpus"] == told


def test_a_refrain_counts_once_among_a_texts_sequences(tmp_path: Path) -> None:
    """Or a song would be in every corpus that has its refrain."""
    (tmp_path / "a.txt").write_text("la " * 40 + "the old whale sailed home under the ship")
    benchmark = read_benchmark(tmp_path, print)
    search = Search(benchmark.sequences)
    search.look_in("la " * 20)
    assert shares(benchmark.texts, [search.positions()])["a.txt"]["in_corpus"] == 0


def test_what_any_part_of_the_corpus_has_counts(tmp_path: Path) -> None:
    """A text's sequences may be in documents of several units."""
    text = [f"word{number}" for number in range(17)]
    (tmp_path / "a.txt").write_text(" ".join(text))
    benchmark = read_benchmark(tmp_path, print)
    found = []
    for part in (text[:12], text[9:]):
        search = Search(benchmark.sequences)
        search.look_in(" ".join(part))
        found.append(search.positions())
    assert shares(benchmark.texts, found)["a.txt"]["in_corpus"] == 0
    search = Search(benchmark.sequences)
    search.look_in(" ".join(text[4:13]))
    assert shares(benchmark.texts, [*found, search.positions()])["a.txt"]["in_corpus"] == 1


def test_a_line_of_json_may_hold_what_elsewhere_ends_lines(tmp_path: Path) -> None:
    text = " ".join(f"word{number}" for number in range(12))
    lines = [json.dumps({"text": text.replace(" ", end)}, ensure_ascii=False) for end in " \u2028\u2029\x85"]
    (tmp_path / "a.jsonl").write_text("\n \n".join(lines) + "\r\n")
    assert read_benchmark(tmp_path, print).texts.num_rows == 4


def test_what_a_real_benchmark_has_in_its_own_texts_and_in_a_book(real_data: Path, tmp_path: Path) -> None:
    raw = (real_data / "squad" / "dev-v1.1.json").read_text()
    (tmp_path / "dev.json").write_text(raw)
    benchmark = read_benchmark(tmp_path, print)
    search = Search(benchmark.sequences)
    search.look_in(clean((real_data / "books" / "pg2701-moby-dick.txt").read_text()))
    assert shares(benchmark.texts, [search.positions()])["dev.json"]["share"] < 0.001
    contexts = {paragraph["context"] for article in json.loads(raw)["data"] for paragraph in article["paragraphs"]}
    for context in contexts:
        search.look_in(clean(context))
    told = shares(benchmark.texts, [search.positions()])["dev.json"]
    assert len(contexts) <= told["in_corpus"] < told["texts"]  # questions are in no article


@pytest.mark.parametrize("seed", range(4))
def test_copies_are_accounted_for_wherever_the_split_falls(make: Make, tmp_path: Path, seed: int) -> None:
    # So small a corpus moves documents between the splits, and may have no validation split at all.
    count = 3 + seed % 2
    books = write_books(tmp_path / "books", count)
    for number in range(12):
        shutil.copy(books / f"book-{number % 3:02d}.txt", books / f"copy-{number}.txt")
    opened = make(tmp_path / "out", "--books", books / "*.txt", "--seed", seed, "--validation-fraction", 0.4)
    assert documents(opened).keys() == {f"book-{number:02d}.txt" for number in range(count)}
    assert opened.manifest.statistics["sources"]["books"]["skipped"] == {"duplicate_document": 12}


def test_two_real_dumps_of_one_wiki_have_every_page_once(real_data: Path, tmp_path: Path, make: Make) -> None:
    dumps = real_data / "wikipedia"
    opened = make(
        tmp_path / "out",
        *("--wikipedia", dumps / "enwiki-first75-pages-articles-multistream.xml.bz2"),
        *("--wikipedia", dumps / "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"),
        *("--vocab", real_data / "vocab" / "bert-base-uncased-vocab.txt", "--near-duplicates", 0.8),
    )
    tables = [opened.shard(entry).table for entry in opened.manifest.shards]
    ids = [doc_id for table in tables for doc_id in table.column("doc_id").to_pylist()]
    counts = opened.manifest.statistics["documents"]
    assert len(ids) == len(set(ids)) == counts["in_shards"]
    assert counts["collisions"] > 5  # pages that both have, of which the newer revision stays


def test_a_folder_of_a_benchmark_without_files_that_can_not_be_looked_at_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_on(monkeypatch, os, "stat", tmp_path, errno.ESTALE)
    with pytest.raises(StorageError, match=rf"^{tmp_path}: can't be read \(Stale file handle\); once it can") as raised:
        read_benchmark(tmp_path, print)
    assert exit_code(raised.value) == 1
