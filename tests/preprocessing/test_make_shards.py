from __future__ import annotations

import argparse
import bz2
import contextlib
import errno
import gzip
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from preprocessing import inspect, launch, second_pass, train_vocab, transforms
from preprocessing.encoder import EncoderError
from preprocessing.fingerprints import RepeatRule
from preprocessing.inputs import Input
from preprocessing.job import BYTES_PER_TOKEN, FULL_SHARD, SHARD_BYTES, Job, choose_layout, versions
from preprocessing.layout import MAX_SHARD_TOKENS, Settlement, ShardingError
from preprocessing.make_shards import main
from preprocessing.options import _OTHERS_NAMES, EPILOG, Arguments, Options, VocabularyRule, parse, parser
from preprocessing.output import JobError, JobFailedError
from preprocessing.schema import Manifest, Shard, ShardDirectory, ShardError
from preprocessing.shards import PairOptions, shard_sentences
from preprocessing.shared_options import SAMPLE_BYTES
from preprocessing.sources import Columns, ReadOptions, SourceError, StorageError
from preprocessing.storage_errors import UnavailableError
from preprocessing.tokenization import VocabularyError, load_vocabulary
from tests.conftest import ROOT
from tests.failing import fail_on
from tests.preprocessing.conftest import write_books
from tests.preprocessing.maker import TWO_PROCESSES, Maker, contents
from trainer.data import DataConfig, SampleStream
from trainer.masking import MaskingConfig


@contextlib.contextmanager
def tokenizing_counted() -> Iterator[list[int]]:
    done: list[int] = []
    original = transforms.tokenize_unit

    def counted(job: transforms.Job, unit: transforms.Unit) -> transforms.UnitNote:
        done.append(unit.number)
        return original(job, unit)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transforms, "tokenize_unit", counted)
        yield done


def test_the_whole_path(make: Maker, books: Path, tmp_path: Path) -> None:
    said = make(tmp_path / "out", "--books", books / "*.txt", "--num-shards", 2, "--seed", 5)
    opened = ShardDirectory(tmp_path / "out")
    opened.verify()
    manifest = opened.manifest
    assert [entry.split for entry in manifest.shards] == ["train", "train", "validation"]
    assert sum(entry.rows for entry in manifest.shards) == 12
    (held_out,) = manifest.split("validation")
    assert held_out.rows == 2
    doc_ids = {d for e in manifest.shards for d in opened.shard(e).table.column("doc_id").to_pylist()}
    assert doc_ids == {f"book-{number:02d}.txt" for number in range(12)}
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
        ["job.json", "manifest.json", "tokenizer", *(entry.file for entry in manifest.shards)]
    )
    statistics = manifest.statistics
    assert statistics["documents"] == {"read": 12, "in_shards": 12, "collisions": 0, "skipped": 0}
    assert statistics["tokens"] == sum(entry.tokens for entry in manifest.shards)
    assert manifest.options["pairs"]["duplicates"] == 2
    assert (manifest.seed, manifest.created_by) == (5, versions())
    assert "12 (0 skipped" in said
    assert f"{statistics['tokens']:,}" in said
    for entry in manifest.shards:
        check_pairs(opened.shard(entry), 32)
        check_pairs(opened.shard(entry), 64)
        assert entry.pairs == {str(length): len(opened.shard(entry).pairs(length)) for length in (32, 64)}
    assert "nothing to do" in make(tmp_path / "out", "--books", books / "*.txt", "--num-shards", 2, "--seed", 5)


def check_pairs(shard: Shard, length: int) -> None:
    pairs, lengths = shard.pairs(length), np.diff(shard.token_offsets)
    a, b = pairs.a_end - pairs.a_begin, pairs.b_end - pairs.b_begin
    assert a.min() >= 1
    assert b.min() >= 1
    assert (a + b).max() <= length - 3
    assert pairs.a_begin.min() >= 0
    assert pairs.b_begin.min() >= 0
    assert (pairs.a_end <= lengths[pairs.row]).all()
    assert (pairs.b_end <= lengths[pairs.b_row]).all()
    assert ((pairs.b_row == pairs.row) == pairs.is_next).all()
    # A true next begins where A ended, up to what was cut off: just one sentence's end lies there.
    ends, origin = shard_sentences(shard.table).ends, shard.token_offsets[pairs.row][pairs.is_next]
    after_a = np.searchsorted(ends, origin + pairs.a_end[pairs.is_next])
    assert (ends[after_a] <= origin + pairs.b_begin[pairs.is_next]).all()
    assert set(pairs.row.tolist()) == set(range(len(shard)))


def test_real_books_have_the_balance_of_the_paper(
    real_data: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    vocabulary = real_data / "vocab" / "bert-base-uncased-vocab.txt"
    arguments = [
        "--books",
        f"{real_data}/books/pg1[0-2]*.txt",
        "--vocab",
        str(vocabulary),
        "--output",
        str(tmp_path / "out"),
    ]
    main([*arguments, "--duplicates", "2", "--short-sequence-probability", "0"])
    opened = ShardDirectory(tmp_path / "out")
    assert opened.manifest.statistics["unknown_rate"] < 1e-4
    (entry,) = opened.manifest.split("train")
    shard = opened.shard(entry)
    for length in (128, 512):
        check_pairs(shard, length)
        pairs = shard.pairs(length)
        whole = (pairs.a_end - pairs.a_begin + pairs.b_end - pairs.b_begin) == length - 3
        assert whole.mean() > 0.9
        # A little less than half: a sentence as long as the sequence is a chunk by itself, and has no true next.
        assert {128: 0.46, 512: 0.48}[length] < pairs.is_next.mean() < 0.5 + 4 * 0.5 / len(pairs) ** 0.5
        others = np.bincount(pairs.b_row[~pairs.is_next], minlength=len(shard)) / (~pairs.is_next).sum()
        assert np.abs(others - 1 / len(shard)).max() < 0.1


def test_the_same_bytes_in_other_processes_order_places_and_batches(
    make: Maker, books: Path, tmp_path: Path, one_book_a_unit: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "one", "--books", books / "*.txt", "--num-shards", 2)
    elsewhere = tmp_path / "moved"
    shutil.copytree(books, elsewhere)
    backwards = sorted(elsewhere.iterdir(), reverse=True)
    make(tmp_path / "two", "--books", *backwards[:5], "--books", *backwards[5:], "--num-shards", 2, *TWO_PROCESSES)
    monkeypatch.setattr("preprocessing.inputs.UNIT_BYTES", 1 << 30)
    monkeypatch.setattr("preprocessing.first_pass.BATCH_TOKENS", 500)
    make(tmp_path / "three", "--books", books / "*.txt", "--num-shards", 2)
    monkeypatch.setattr("preprocessing.first_pass.BATCH_DOCUMENTS", 1)
    make(tmp_path / "four", "--books", books / "*.txt", "--num-shards", 2)
    made = [tmp_path / name for name in ("one", "two", "three", "four")]
    assert all(contents(output) == contents(made[0]) for output in made)
    assert len({(output / "manifest.json").read_bytes() for output in made}) == 1


def test_an_interrupted_job_goes_on(make: Maker, books: Path, tmp_path: Path, one_book_a_unit: None) -> None:
    arguments = ("--books", books / "*.txt", "--num-shards", 2)
    make(tmp_path / "whole", *arguments)
    output = tmp_path / "out"
    original = transforms.write_shard

    def failing(job: transforms.Job, shard: str, *rest: object) -> transforms.ShardNote:
        if any(output.glob("shard-*")):  # one of the two, whichever came first
            raise MemoryError("in the middle")
        return original(job, shard, *rest)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch, tokenizing_counted() as tokenized:
        patch.setattr(transforms, "write_shard", failing)
        with pytest.raises(Exception, match="in the middle"):
            make(output, *arguments)
    assert sorted(tokenized) == list(range(12))
    assert not (output / "manifest.json").exists()
    (output / ".work" / "tokens-00003.json").unlink()
    (output / ".work" / "tmp-0123").write_text("half")
    finished = {path.name: path.stat().st_mtime_ns for path in output.glob("*shard-*")}
    assert len(finished) == 1
    with tokenizing_counted() as tokenized:
        make(output, *arguments)
    assert tokenized == [3]
    assert contents(output) == contents(tmp_path / "whole")
    assert all((output / name).stat().st_mtime_ns == made for name, made in finished.items())
    assert not (output / ".work").exists()


def test_shards_are_read_as_the_documentation_shows(
    make: Maker, books: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "shards", "--books", books / "*.txt", "--sequence-lengths", 128)
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "preprocessing.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"\n((?:    .*ShardDirectory.*\n)(?:(?:    .*)?\n)+)", page)
    found: dict[str, Any] = {}
    exec(textwrap.dedent(example), found)
    assert found["ends"][-1].as_py() == len(found["tokens"])
    assert len(found["segments"]) == len(found["pairs"]) > 0


@pytest.mark.parametrize("options", [[], ["--no-nsp"]])
def test_samples_are_made_without_this_project_as_the_documentation_shows(
    make: Maker, books: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    make(tmp_path / "shards", "--books", books / "*.txt", "--sequence-lengths", 128, "--num-shards", 1, *options)
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "preprocessing.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"\n((?:    import pyarrow.*\n)(?:(?:    .*)?\n)+)", page)
    found: dict[str, Any] = {}
    exec(textwrap.dedent(example), found)
    stream = SampleStream(
        ShardDirectory("shards"), "train", 128, seed=1, masking=MaskingConfig(), data=DataConfig()
    )  # an epoch has each of them once
    tokens, types, lengths, is_next = stream.samples(np.arange(stream.size))
    rows = zip(tokens.tolist(), types.tolist(), lengths.tolist(), is_next.tolist(), strict=True)
    assert sorted(found["samples"]) == sorted((row[:n], kinds[:n], follows) for row, kinds, n, follows in rows)
    assert len(found["samples"]) > 10
    assert any(1 in kinds for _, kinds, _ in found["samples"]) == (not options)


def test_an_engine_that_carries_out_every_step_twice_gives_the_same_shards(
    make: Maker, books: Path, tmp_path: Path
) -> None:
    """As Flink, Spark and Dataflow do with a step whose worker is lost before it has told that it is done."""
    asked = ("--books", books / "*.txt", "--contamination", books)
    make(tmp_path / "once", *asked)
    make(tmp_path / "twice", *asked, "--direct_runner_bundle_repeat=2")
    once, twice = (tmp_path / name / "manifest.json" for name in ("once", "twice"))
    assert twice.read_bytes() == once.read_bytes()
    assert not (tmp_path / "twice" / ".work").exists()


def test_a_command_killed_before_its_first_file_is_begun_anew(make: Maker, books: Path, tmp_path: Path) -> None:
    work = tmp_path / "out" / ".work"
    work.mkdir(parents=True)
    (work / "tmp-0123").write_text("half a job.json")
    (work / "tokens-00000.json").write_text("of nobody knows which job")
    make(tmp_path / "out", "--books", books / "*.txt")
    assert ShardDirectory(tmp_path / "out").manifest.statistics["documents"]["in_shards"] == 12


def test_unusable_inputs_are_told_in_a_line(make: Maker, books: Path, tmp_path: Path, vocabulary: list[str]) -> None:
    output = tmp_path / "out"
    assert "no input file matches" in make.error(output, "--books", tmp_path / "*.txt")
    assert f"is a folder; give the files in it, as in '{books}/*'" in make.error(output, "--parquet", books)
    assert "[[] for a bracket" in make.error(output, "--books", tmp_path / "run [1]" / "*.txt")
    assert "nothing to read" in make.error(output)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.txt").write_text("x")
    said = make.error(output, "--books", tmp_path / "a/*.txt", "--books", tmp_path / "b/*.txt")
    assert "both are called 'x.txt'" in said
    without_mask = tmp_path / "v.txt"
    without_mask.write_text("\n".join(token for token in vocabulary if token != "[MASK]"))
    assert "v.txt: the special token [MASK] is missing" in make.error(
        output, "--books", books / "*.txt", "--vocab", without_mask
    )
    assert "none.txt: can't read" in make.error(output, "--books", books / "*.txt", "--vocab", tmp_path / "none.txt")
    (tmp_path / "file").write_text("")
    assert "can't write there" in make.error(tmp_path / "file" / "out", "--books", books / "*.txt")
    (tmp_path / "link").symlink_to("link")  # to itself
    for place in (tmp_path / "link", tmp_path / "link" / "out"):
        assert f"{place}: can't write there (Too many levels of symbolic links)" in make.error(
            place, "--books", books / "*.txt"
        )
    assert "nowhere://x: can't write there" in make.error("nowhere://x", "--books", books / "*.txt")
    assert "--direct_num_workers must be 0" in make.error(output, "--books", books / "*.txt", "--direct_num_workers=-1")
    assert not output.exists()


@pytest.mark.parametrize(("command", "option"), [(main, "--vocab"), (train_vocab.main, "--extend")])
def test_a_vocabulary_that_can_not_be_read_for_a_while_is_nobodys_mistake(
    books: Path, vocabulary_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], command: Callable[[list[str]], None], option: str,
) -> None:  # fmt: skip
    fail_on(monkeypatch, Path, "read_text")
    with pytest.raises(SystemExit, match="1"):
        command(["--books", f"{books}/*.txt", option, str(vocabulary_file), "--output", f"{tmp_path}/out"])
    told = f"error: {vocabulary_file}: can't be read now (Input/output error); give the same command again\n"
    assert capsys.readouterr().err.endswith(told)
    assert not list(tmp_path.iterdir())


def test_names_that_would_command_a_terminal_are_told_as_python_writes_them(
    make: Maker, books: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Or a line of an error could be made to say anything."""
    folder = tmp_path / "a\nmake_shards: done\x1b[2J\u202e"
    shutil.copytree(books, folder / "in")
    name = r"a\nmake_shards: done\x1b[2J\u202e"
    said = make.error(tmp_path / "out", "--books", folder / "*.none")
    assert said.startswith(f"make_shards: error: {tmp_path}/{name}/*.none: no input file matches")
    (folder / "in" / "again.txt").symlink_to("book-00.txt")
    said = make(folder / "out", "--books", folder / "in" / "*.txt")
    assert said.startswith(f"{tmp_path}/{name}/out: done in ")
    assert make(folder / "out", "--books", folder / "in" / "*.txt").count("\n") == 1
    train_vocab.main(["--books", f"{folder}/in/*.txt", "--size", "60", "--output", f"{folder}/vocab.txt"])
    out, err = capsys.readouterr()
    assert out.startswith(f"{tmp_path}/{name}/vocab.txt: 60 tokens")
    assert err.startswith("1 path to a file named already passed over")
    assert err.count("\n") == 1
    with pytest.raises(SystemExit):
        inspect.main([f"{folder}/none"])
    assert capsys.readouterr().err.startswith(f"inspect: error: {tmp_path}/{name}/none: ")


def test_a_vocabulary_of_the_other_case_is_told(
    make: Maker, books: Path, tmp_path: Path, vocabulary: list[str]
) -> None:
    cased = tmp_path / "cased.txt"
    cased.write_text("\n".join([*vocabulary, "The", "##The"]) + "\n")
    said = make.error(tmp_path / "out", "--books", books / "*.txt", "--vocab", cased)
    assert said.endswith("cased.txt: has upper-case letters, so it is a cased vocabulary; add --cased")
    stray = tmp_path / "stray.txt"
    stray.write_text("\n".join([*vocabulary, "\u211d"]) + "\n")  # as bert-base-uncased has it
    said = make.error(tmp_path / "out", "--books", books / "*.txt", "--vocab", stray, "--cased")
    assert said.endswith("stray.txt: has no upper-case letter, so it is an uncased vocabulary; leave --cased out")
    shared = ["--books", f"{books}/*.txt", "--output", str(tmp_path / "out"), "--vocab"]
    for arguments in [(cased, "--cased"), (stray,)]:
        launch.prepare(parse([*shared, *map(str, arguments)]), str(tmp_path / "out"))


def test_a_corpus_without_two_documents_is_told_in_a_line(make: Maker, books: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    for more in ((), ("--no-nsp",)):
        said = make.error(output, "--books", books / "book-03.txt", *more)
        assert "a single document, 'book-03.txt', but a shard needs at least 2; give more inputs" in said
    (tmp_path / "empty.txt").write_text(" \n")
    said = make.error(output, "--books", tmp_path / "empty.txt")
    assert "hold no document with text (passed over: 1 empty), but a shard needs at least 2" in said
    said = make.error(output, "--books", books / "*.txt", "--num-shards", 9)
    assert "--num-shards" in said
    assert not output.exists()  # nothing that would stand in the way of the corrected command


@pytest.mark.parametrize("mode", [(), TWO_PROCESSES])
def test_a_truncated_dump_is_told_in_a_line_from_any_process(
    make: Maker, books: Path, tmp_path: Path, mode: tuple[str, ...]
) -> None:
    text = (books / "book-05.txt").read_bytes() * 50
    (tmp_path / "cut.txt.bz2").write_bytes(bz2.compress(text)[:-40])
    said = make.error(tmp_path / "out", "--books", books / "*.txt", tmp_path / "cut.txt.bz2", *mode)
    assert "cut.txt.bz2: cut short at byte" in said
    assert not list((tmp_path / "out").glob("*.arrow"))


def test_compression_is_seen_by_content(make: Maker, tmp_path: Path) -> None:
    books = write_books(tmp_path / "books", 4)
    plain = (books / "book-02.txt").read_bytes()
    make(tmp_path / "plain", "--books", books / "*.txt")
    (books / "book-02.txt").write_bytes(gzip.compress(plain))
    (books / "book-03.txt").write_bytes(bz2.compress((books / "book-03.txt").read_bytes()))
    make(tmp_path / "packed", "--books", books / "*.txt")
    assert contents(tmp_path / "plain") == contents(tmp_path / "packed")


def test_documents_of_one_sentence_have_no_true_nexts_and_a_line_says_so(make: Maker, tmp_path: Path) -> None:
    lines = (json.dumps({"text": f"The captain spoke of whale {number}"}) for number in range(6))
    (tmp_path / "short.jsonl").write_text("\n".join(lines))
    said = make(tmp_path / "out", "--jsonl", tmp_path / "short.jsonl")
    assert "few true next sentences: 6 of 6 documents are of one sentence; --no-nsp" in said
    assert "few true" not in make(tmp_path / "single", "--jsonl", tmp_path / "short.jsonl", "--no-nsp")
    for splits in ShardDirectory(tmp_path / "out").manifest.statistics["pairs"].values():
        assert {split: (counts["is_next"], counts["is_next_rate"]) for split, counts in splits.items()} == {
            "train": (0, 0.0),
            "validation": (0, 0.0),
        }


def test_sentences_as_long_as_a_sequence_have_no_true_nexts_and_a_line_says_so(make: Maker, tmp_path: Path) -> None:
    """Such a sentence fills a sequence, so no other one follows it there, however many its document has."""
    sentence = "The captain spoke of the whale, and of the sea, and of the ship, and of the day, and of the whale "
    with (tmp_path / "long.jsonl").open("w") as file:
        for document in range(5):
            text = "\n".join(f"{sentence}{document} {number}." for number in range(20))
            file.write(json.dumps({"text": text}) + "\n")
    options = ["--deduplicate", "none", "--sequence-lengths", 32, "--duplicates", 10]
    said = make(tmp_path / "out", "--jsonl", tmp_path / "long.jsonl", *options)
    told = "a sentence has 31 tokens on average, and two seldom fit in a sequence of 32; take longer --sequence-lengths"
    assert f"few true next sentences: {told}, or --no-nsp" in said
    assert "are of one sentence" not in said


def test_so_few_pairs_that_chance_alone_decides_are_not_told_to_lack_true_nexts(make: Maker, tmp_path: Path) -> None:
    with (tmp_path / "few.jsonl").open("w") as file:
        for document in range(4):
            file.write(json.dumps({"text": f"The whale is here. The ship is far. It is day {document}."}) + "\n")
    for seed in range(5):
        output, arguments = tmp_path / str(seed), ["--jsonl", tmp_path / "few.jsonl", "--duplicates", 1]
        assert "few true" not in make(output, *arguments, "--seed", seed)


def test_how_much_is_really_held_out_is_told_where_that_is_far_from_what_was_asked_for(
    make: Maker, tmp_path: Path
) -> None:
    books = ["--books", write_books(tmp_path / "books", 6) / "*.txt", "--validation-fraction"]
    said = make(tmp_path / "out", *books, 0.05)
    manifest = ShardDirectory(tmp_path / "out").manifest
    held_out = sum(entry.tokens for entry in manifest.split("validation")) / manifest.statistics["tokens"]
    told = f"held out   2 of 6 documents with {held_out:.1%} of the tokens, where --validation-fraction says 5.0%: "
    assert told in said
    assert "held out" not in make(tmp_path / "near", *books, 0.3)
    assert "held out" not in make(tmp_path / "none", *books, 0)


def test_short_documents_and_empty_ones_are_counted(make: Maker, tmp_path: Path) -> None:
    books = write_books(tmp_path / "books", 4)
    (books / "short.txt").write_text("A whale.")
    (books / "empty.txt").write_text("")
    make(tmp_path / "out", "--books", books / "*.txt", "--min-tokens", 50)
    statistics = ShardDirectory(tmp_path / "out").manifest.statistics
    assert statistics["sources"]["books"]["skipped"] == {"empty": 1, "too_short": 1}
    assert statistics["documents"] == {"read": 6, "in_shards": 4, "collisions": 0, "skipped": 2}


def test_what_is_skipped_of_several_sources_is_told_by_reason(make: Maker, tmp_path: Path) -> None:
    books, notes = write_books(tmp_path / "books", 4), tmp_path / "notes.jsonl"
    (books / "empty.txt").write_text("")
    notes.write_text('{"text": ""}\n{"text": "  "}\n')
    said = make(tmp_path / "out", "--books", books / "*.txt", "--jsonl", notes)
    assert "  skipped    3 empty\n" in said


def test_words_that_the_vocabulary_lacks_are_counted(make: Maker, tmp_path: Path) -> None:
    books = write_books(tmp_path / "books", 4)
    (books / "chinese.txt").write_text("狗。犬。")
    make(tmp_path / "out", "--books", books / "*.txt")
    statistics = ShardDirectory(tmp_path / "out").manifest.statistics
    assert statistics["unknown_rate"] == pytest.approx(4 / statistics["tokens"])


def test_a_vocabulary_that_lacks_the_characters_is_told(make: Maker, tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text(f"狗喜欢海。猫在{number}月睡觉。\n")
    said = make(tmp_path / "out", "--books", tmp_path / "?.txt")
    assert "so many unknown tokens suggest the wrong vocabulary" in said
    assert "tokens a word suggest" not in said


@pytest.mark.parametrize(("published", "case", "told"), [
    ("multilingual-cased", ["--cased"], False),
    ("uncased", [], True),  # letter by letter, hardly anything being unknown
])  # fmt: skip
def test_a_vocabulary_of_another_language_is_told(
    make: Maker, real_data: Path, tmp_path: Path, published: str, case: list[str], told: bool
) -> None:
    words = real_data / "vocab" / f"bert-base-{published}-vocab.txt"
    corpus = ("--books", real_data / "korean" / "kowiki" / "wiki_63", "--books-format", "google", "--language", "ko")
    said = make(tmp_path / "out", *corpus, "--vocab", words, *case)
    assert ("so many tokens a word suggest a vocabulary of another language" in said) == told
    assert "unknown tokens suggest" not in said
    directory = ShardDirectory(tmp_path / "out")
    entries = load_vocabulary(words)
    counted = sum(
        not entries[token].startswith("##")
        for entry in directory.manifest.shards
        for token in directory.shard(entry).tokens.tolist()
    )
    assert directory.manifest.statistics["words"] == counted
    assert f", {directory.manifest.statistics['tokens'] / counted:.2f} a word, " in said


def test_a_dump_and_books_together(make: Maker, real_data: Path, books: Path, tmp_path: Path) -> None:
    dump = real_data / "wikipedia" / "tiny_dump.xml.bz2"
    said = make(tmp_path / "out", "--wikipedia", dump, "--wikipedia", dump, "--books", books / "*.txt")
    sources = ShardDirectory(tmp_path / "out").manifest.statistics["sources"]
    assert sources["books"]["documents"] == 12
    assert sources["wikipedia"]["documents"] == 6  # of 70 pages 64 redirect
    assert sources["wikipedia"]["skipped"]["redirect"] == 64
    assert "64 redirect" in said


@pytest.mark.parametrize(("tagged", "told"), [(1, False), (2, True)])  # of a hundred
def test_tags_of_html_are_told_and_stripped_as_the_documentation_shows(
    make: Maker, tmp_path: Path, tagged: int, told: bool
) -> None:
    texts = [f"The whale {n} <br />sailed <i>home</i>.<br/><br/>The ship &amp; the sea slept." for n in range(tagged)]
    texts += [f"The captain spoke of {n} < {n + 1}. He never slept." for n in range(tagged, 100)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    said = make(tmp_path / "out", "--jsonl", tmp_path / "a.jsonl")
    assert ShardDirectory(tmp_path / "out").manifest.statistics["sources"]["jsonl"]["tagged"] == tagged
    assert (f"  markup     {tagged} of 100 documents have tags of HTML, kept as text" in said) == told
    page = (ROOT / "docs" / "preprocessing.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"\n    python -c '((?:\n    .*)+)' < reviews\.jsonl > plain\.jsonl\n", page)
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with (tmp_path / "a.jsonl").open() as reviews:
        done = subprocess.run(command, stdin=reviews, capture_output=True, text=True, check=True)
    plain = [json.loads(line)["text"] for line in done.stdout.splitlines()]
    assert plain[0] == "The whale 0 \nsailed home.\n\nThe ship & the sea slept."
    assert plain[tagged:] == texts[tagged:]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--direct_running_mode=multi_threading"], "loses documents"),
        (["--direct_running_mode=in_memory", "--direct_num_workers=2"], "is one process"),
        (["--direct_num_workers=two"], "invalid int value: 'two'"),
        (["--runner=Foo"], "--runner=Foo: Beam has no such runner, but "),
        (["--duplicate", "3"], "unknown option '--duplicate'"),
        (["--seed", "1", "stray"], "unknown option 'stray'"),
        (["--sequence-lengths", "4"], "'4' is not a whole number of 8 or more"),
        (["--sequence-lengths", "64", "64"], "twice"),
        (["--sequence-lengths", "64,128", "64"], "twice"),
        (["--sequence-lengths", "64,4"], "'4' is not a whole number of 8 or more"),
        (["--sequence-lengths", "64,,128"], "'' is not a whole number of 8 or more"),
        (["--duplicates", "40000"], "40000 is more than 32767, the most that is taken here"),
        (["--train-vocab", "10000001"], "10000001 is more than 10000000, the most that is taken here"),
        (["--validation-fraction", "1"], "'1' is not a share"),
        (["--validation-fraction", "abc"], "'abc' is not a share: a number from 0 to less than 1"),
        (["--seed", "abc"], "'abc' is not a whole number of 0 or more"),
        (["--no-nsp", "--negatives", "uniform"], "--no-nsp draws none"),
        (["--vocab-sample-bytes", "10"], "--vocab-sample-bytes is for --train-vocab"),
        (["--jsonl-text-field", "body"], "--jsonl-text-field says how --jsonl is read, which is not given"),
        (["--language", "English"], "not a language code"),
        (["--language", "kr"], "'kr' is a country, not a language; did you mean ko?"),
        (["--num_workers=4"], "does nothing on one machine; there it is --direct_num_workers"),
        (["--workers", "4"], "unknown option --workers: here it is --direct_num_workers"),
        (["--text", "a.txt"], "unknown option --text: here it is --books"),
        (["--dupe_factor=10"], "unknown option --dupe_factor: here it is --duplicates"),
        (["--max-seq-length", "128"], "unknown option --max-seq-length: here it is --sequence-lengths"),
        (["--do_lower_case=False"], "done without being asked for; --cased keeps case and accents"),
        (["--masked_lm_prob=0.15"], "here it is the training's, which draws masks anew each time"),
        (["--seed", "-1"], "'-1' is not a whole number of 0 or more"),
        (["--contamination", ""], "--contamination is empty"),
        (["--books", ""], "--books is empty"),
        (["--books", "a.txt", ""], "--books is empty"),
        (["--vocab", ""], "--vocab is empty"),
        (["--jsonl-text-field="], "--jsonl-text-field is empty"),
        (["--negatives", "none"], "invalid choice"),
        (["--output", "hdfs://bucket/out"], "Beam reads from HDFS, but shards can't be made there"),
        (["--profile_cpu"], "--profile_cpu needs --profile_location DIR, and --profile_memory needs both"),
        (["--profile_memory", "--profile_location=a"], "--profile_memory needs both"),
        (["--dry_run=True"], "--dry_run does nothing on one machine, where the job would run all the same"),
        (["--update"], "--update does nothing on one machine"),
        (["--flink_master=far:8081"], "--flink_master is for another engine, and none is asked for: add its --runner"),
        (["--sdk_worker_parallelism", "4"], "--sdk_worker_parallelism is for another engine"),
        (["--spark_master_url=local"], "--spark_master_url is for another engine"),
        (["--prism_location", "prism"], "--prism_location is for another engine"),
        (["--job_port=8099"], "--job_port is for another engine"),
        (["--jsonl-text-field=caf\udce9"], "'caf\\udce9' is not UTF-8"),
        (["--streaming"], "--streaming does nothing on one machine"),
        (["--pickle_library=dill"], "this job goes to its workers by cloudpickle; leave it out"),
    ],
)
def test_bad_options_are_told_in_a_line(make: Maker, tmp_path: Path, arguments: list[str], told: str) -> None:
    assert told in make.error(tmp_path / "out", "--books", "x.txt", *arguments)


def test_workers_that_beam_can_not_start_are_refused(
    make: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would tell a shell to, in which a blank ends a path."""
    monkeypatch.setattr(sys, "executable", "/home/me/my files/python")
    told = make.error(tmp_path / "out", "--books", "x.txt", "--direct_num_workers=2")
    assert "Beam can't start workers by /home/me/my files/python, whose path a shell would cut" in told
    assert parsed("--direct_num_workers=1").beam  # which nobody has to start


def test_the_command_of_google_s_program_is_told_our_names(capsys: pytest.CaptureFixture[str]) -> None:
    """Though none of what is needed here is given."""
    for option, meant in [("--input_file=a.txt", "--books FILE --books-format google"), ("--vocab_file=v", "--vocab")]:
        with pytest.raises(SystemExit) as caught:
            parse([option, "--max_seq_length=128"])
        assert caught.value.code == 2
        assert f": here it is {meant}" in capsys.readouterr().err


def parsed(*arguments: str) -> Arguments:
    return parse(["--books", "x.txt", "--vocab", "v", "--output", "o", *arguments])


@pytest.mark.parametrize("written", ["512 128", "512,128", "512, 128"])
def test_sequence_lengths_have_blanks_or_commas_between_them(written: str) -> None:
    assert parsed("--sequence-lengths", *written.split(" ")).options.pairs.sequence_lengths == (128, 512)
    assert parsed().options.pairs.sequence_lengths == (128, 512)


def test_options_that_are_not_given_are_those_that_the_help_tells() -> None:
    assert parsed().options == Options(
        pairs=PairOptions((128, 512), 10, 0.1, "uniform", next_sentence=True),
        validation_fraction=0.01,
        seed=1,
        lowercase=True,
        language="en",
        min_tokens=1,
        num_shards=None,
        repeats=RepeatRule(documents=True, lines=True, line_characters=100, near_duplicates=None),
        read=ReadOptions("file", Columns("text", "title"), Columns("text", "title"), "fail"),
        train_vocabulary=None,
    )
    rest = parsed()
    assert (rest.inputs, rest.vocabulary, rest.output, rest.contamination) == ({"books": ["x.txt"]}, "v", "o", None)
    assert (rest.overwrite, rest.encoder, rest.patience) == (False, "auto", 600)


def test_every_option_is_where_the_job_looks_for_it() -> None:
    pairs = "--sequence-lengths 64 32 --duplicates 3 --short-sequence-probability 0.5 --negatives by-sentence"
    text = "--cased --language kor --min-tokens 5 --encoder words"
    repeats = "--deduplicate lines --min-repeated-line 9 --near-duplicates 0.8 --contamination folder"
    output = "--validation-fraction 0 --seed 7 --num-shards 4 --document-timeout 0 --overwrite"
    reading = "--books b.txt --books a/*.txt --books-format google --jsonl c.jsonl --parquet d.parquet --on-error skip"
    names = "--jsonl-text-field body --parquet-title-column heading"
    found = parsed(*" ".join((pairs, text, repeats, output, reading, names)).split())
    assert found.options == Options(
        pairs=PairOptions((32, 64), 3, 0.5, "by-sentence", next_sentence=True),
        validation_fraction=0,
        seed=7,
        lowercase=False,
        language="kor",
        min_tokens=5,
        num_shards=4,
        repeats=RepeatRule(documents=False, lines=True, line_characters=9, near_duplicates=0.8),
        read=ReadOptions("google", Columns("text", "heading"), Columns("body", "title"), "skip"),
        train_vocabulary=None,
    )
    inputs = {"books": ["x.txt", "b.txt", "a/*.txt"], "parquet": ["d.parquet"], "jsonl": ["c.jsonl"]}
    assert (found.inputs, found.contamination) == (inputs, "folder")
    assert (found.overwrite, found.encoder, found.patience) == (True, "words", 0)
    assert not parsed("--no-nsp").options.pairs.next_sentence
    nothing = parsed("--deduplicate", "none").options.repeats
    assert (nothing.documents, nothing.lines) == (False, False)


def test_a_vocabulary_that_is_trained_has_a_size_and_a_sample() -> None:
    asked = ["--books", "x.txt", "--output", "o", "--train-vocab", "8000"]
    assert parse(asked).options.train_vocabulary == VocabularyRule(8000, SAMPLE_BYTES)
    assert parse([*asked, "--vocab-sample-bytes", "5"]).options.train_vocabulary == VocabularyRule(8000, 5)


@pytest.mark.parametrize(
    ("option", "taken", "refused"),
    [
        ("--duplicates", ["1", "32767"], ["0", "32768"]),
        ("--num-shards", ["1", "99999"], ["0", "100000"]),
        ("--min-tokens", ["1"], ["0"]),
        ("--min-repeated-line", ["1"], ["0"]),
        ("--document-timeout", ["0"], ["-1"]),
        ("--short-sequence-probability", ["0", "0.99"], ["-0.1", "1", "nan"]),
        ("--near-duplicates", ["0.5", "0.99"], ["0.49", "0.991", "nan"]),
        ("--sequence-lengths", ["8", "65536"], ["7", "65537"]),
        ("--language", ["en", "als"], ["e", "EN", "engl", "en1", "en-us"]),
        ("--output", ["s3://bucket/out"], ["file:///out", "caf\udce9"]),
    ],
)
def test_what_an_option_may_be_ends_where_it_says(
    option: str, taken: list[str], refused: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for value in taken:
        parsed(f"{option}={value}")
    for value in refused:
        with pytest.raises(SystemExit, match="2"):
            parsed(f"{option}={value}")
        assert f"argument {option}: " in capsys.readouterr().err


def test_the_commands_that_the_help_shows_are_taken_as_they_are() -> None:
    lines = EPILOG.replace("\\\n", "")
    commands = re.findall(r"^  beam run preprocessing/make_shards.py (.*)", lines, re.M)
    found = [parse(shlex.split(command)) for command in commands]
    assert [list(arguments.inputs) for arguments in found] == [["books"], ["wikipedia", "books"]]
    for example in re.findall(r"^  (--\w.*?)    ", EPILOG, re.M):
        parsed(*shlex.split(example))


def test_the_runner_is_never_left_to_chance() -> None:
    assert parsed().beam == ["--runner=FnApiRunner"]
    for runner in ("DirectRunner", "direct", "apache_beam.runners.direct.direct_runner.DirectRunner"):
        assert parsed(f"--runner={runner}").beam[-1] == "--runner=FnApiRunner"
    assert parsed(*TWO_PROCESSES).beam == [*TWO_PROCESSES, "--runner=FnApiRunner"]
    workers, mode = "--direct_num_workers=4", "--direct_running_mode=multi_processing"
    assert parsed(workers).beam == [workers, mode, "--runner=FnApiRunner"]
    assert parsed("--direct_num_workers=1").beam == ["--direct_num_workers=1", "--runner=FnApiRunner"]
    flink = ["--runner=FlinkRunner", "--flink_master=localhost:8081", "--some_flink_option=1"]
    assert parsed(*flink).beam == flink


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        (("--duplicate", "3"), "--duplicates"),
        (("--validation-fracton=0.2",), "--validation-fraction"),
        (("--num_shards", "4"), "--num-shards"),
    ],
)
def test_a_typo_is_not_handed_on_to_another_runner(
    typo: tuple[str, ...], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parsed("--runner=FlinkRunner", "--some_flink_option=1", *typo)
    assert caught.value.code == 2
    assert f"did you mean {meant!r}?" in capsys.readouterr().err


def test_no_option_of_beam_s_passes_for_a_typo_of_ours() -> None:
    theirs = argparse.ArgumentParser(add_help=False, conflict_handler="resolve")
    for group in {str(group): group for group in PipelineOptions.__subclasses__()}.values():
        group._add_argparse_args(theirs)
    options = [option for option in theirs._option_string_actions if option.startswith("--")]
    assert len(options) > 100
    parser().refuse_misspelt(options)
    parser().refuse_names_of_others(options, _OTHERS_NAMES)


def test_the_number_of_shards_is_a_function_of_sizes() -> None:
    def train_shards(*inputs: Input, books_format: str = "file") -> int:
        return choose_layout(inputs, parsed("--books-format", books_format).options, 30522).train_shards

    dump = Input("wikipedia", "enwiki.xml.bz2", 20 << 30, "/x")
    assert 100 < train_shards(dump) < 300
    assert train_shards(Input("books", "a.txt", 1 << 20, "/x")) == 1
    huge = [Input("books", f"{number}.txt", 1 << 30, "/x") for number in range(40)]
    assert train_shards(*huge) == 1  # no more shards than documents can fill
    assert train_shards(*huge, books_format="google") == train_shards(*(file._replace(source="jsonl") for file in huge))
    assert 200 < train_shards(*huge, books_format="google") < 600
    assert choose_layout([dump], parsed("--validation-fraction", "0").options, 30522).validation_shards == 0
    assert choose_layout([dump], parsed("--num-shards", "7").options, 30522).train_shards == 7


@pytest.mark.parametrize("entries", [30522, 100_000])
def test_of_much_text_there_are_two_thousand_shards_until_they_are_full(entries: int) -> None:
    asked = parsed("--validation-fraction", "0.01").options
    found = []
    for gigabytes in range(50, 12_001, 50):
        layout = choose_layout([Input("jsonl", "a.jsonl", gigabytes * 10**9, "/x")], asked, entries)
        tokens = 0.99 * gigabytes * 1e9 / BYTES_PER_TOKEN
        of_64_mb = round(tokens * (2 if entries == 30522 else 4) / SHARD_BYTES)
        assert layout.train_shards == of_64_mb or (layout.train_shards >= 2000 and of_64_mb > 2000)
        assert tokens / layout.train_shards <= FULL_SHARD < MAX_SHARD_TOKENS / 3
        assert 1 <= layout.validation_shards <= 2000
        found.append(layout.train_shards)
    assert found == sorted(found)
    assert found.count(2000) > 75
    assert found[-1] > 4000


@pytest.mark.parametrize("too_many", [-1, 1])
def test_documents_that_are_lost_or_handed_on_twice_are_noticed(
    make: Maker, books: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, too_many: int
) -> None:
    original = transforms.write_shard

    def careless(*arguments: object) -> transforms.ShardNote:
        note = original(*arguments)  # type: ignore[arg-type]
        note.counts["documents/books"] += too_many
        return note

    monkeypatch.setattr(transforms, "write_shard", careless)
    with pytest.raises(Exception, match="documents were lost"):
        make(tmp_path / "out", "--books", books / "*.txt")
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_the_manifest_has_its_shards_in_order_whichever_is_done_first(
    make: Maker, books: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = second_pass.make_manifest

    def backwards(job: Job, notes: Iterable[transforms.ShardNote], settlement: Settlement) -> Manifest:
        return original(job, sorted(notes, key=str, reverse=True), settlement)

    monkeypatch.setattr(second_pass, "make_manifest", backwards)
    make(tmp_path / "out", "--books", books / "*.txt", "--num-shards", 2)
    files = [entry.file for entry in ShardDirectory(tmp_path / "out").manifest.shards]
    assert files == [*(f"shard-0000{n}-of-00002.arrow" for n in (0, 1)), "validation-shard-00000-of-00001.arrow"]


def test_lost_shards_are_noticed(make: Maker, books: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = transforms.write_shard

    def repetitive(job: transforms.Job, shard: str, *rest: object) -> transforms.ShardNote:
        note = original(job, shard, *rest)  # type: ignore[arg-type]
        note.entry["file"] = shard.replace("shard-00001", "shard-00000")
        return note

    monkeypatch.setattr(transforms, "write_shard", repetitive)
    with pytest.raises(Exception, match="3 shards came out where 3 were expected"):
        make(tmp_path / "out", "--books", books / "*.txt", "--num-shards", 2)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_three_documents_are_a_corpus_without_a_validation_split(make: Maker, tmp_path: Path) -> None:
    make(tmp_path / "out", "--books", write_books(tmp_path / "books", 3) / "*.txt", "--validation-fraction", 0.5)
    manifest = ShardDirectory(tmp_path / "out").manifest
    assert [(entry.split, entry.rows) for entry in manifest.shards] == [("train", 3)]


@pytest.mark.parametrize(
    ("kind", "code"),
    [(EncoderError, 2), (JobError, 2), (JobFailedError, 1), (ShardError, 2), (ShardingError, 2), (SourceError, 2),
     (StorageError, 2), (UnavailableError, 1), (VocabularyError, 2)],
)  # fmt: skip
@pytest.mark.parametrize("cause", [None, OSError(errno.EIO, "of a disk")], ids=["by itself", "of storage that fails"])
def test_every_error_that_a_user_may_meet_is_told_in_a_line_with_what_may_pass_as_1(
    make: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception], code: int,
    cause: OSError | None,
) -> None:  # fmt: skip
    def fail(*_: object) -> None:
        raise kind("what is wrong") from cause

    monkeypatch.setattr(launch, "prepare", fail)
    said = make.error(tmp_path / "out", "--books", "x.txt", code=1 if cause else code)
    assert said == "make_shards: error: what is wrong"


@pytest.mark.parametrize("program", ["make_shards", "train_vocab"])
def test_what_beam_warns_of_at_its_import_is_not_shown(program: str) -> None:
    command = [sys.executable, "-m", f"preprocessing.{program}", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.startswith("usage: ")


def test_of_the_module_path_only_the_script_s_own_folder_is_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder, checkout = ROOT / "preprocessing", tmp_path / "bert-preprocessing"
    for first, then in ((folder, ROOT), (checkout, checkout)):
        monkeypatch.setattr(sys, "path", [str(first), *sys.path])
        runpy.run_path(str(folder / "make_shards.py"))
        assert sys.path[0] == str(then)


def test_lines_without_marks_that_end_sentences_are_told_with_what_to_do(make: Maker, tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text("the captain spoke of his first long voyage\n" * 99 + str(number))
    said = make(tmp_path / "out", "--books", tmp_path / "?.txt")
    assert "many tokens in no pair: a sentence has 793 of them on average" in said
    assert "few true next" not in said
    said = make(tmp_path / "google", "--books", tmp_path / "?.txt", "--books-format", "google")
    assert "many tokens" not in said


def test_files_of_more_text_than_a_document_may_have_are_told_with_what_to_do(
    make: Maker, books: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("preprocessing.sources.books.MAX_DOCUMENT", 10_000)
    (tmp_path / "corpus.txt").write_text("The old whale sailed home.\n" * 1000)
    said = make(tmp_path / "out", "--books", books / "*.txt", tmp_path / "corpus.txt")
    assert "too large  1 of more than" in said
    assert "a file holds several documents between blank lines with --books-format google" in said
