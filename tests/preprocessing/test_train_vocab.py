from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from preprocessing import files
from preprocessing.files import write_text
from preprocessing.tokenization import SPECIAL_TOKENS, load_vocabulary, vocabulary_text
from preprocessing.train_vocab import main, parser
from tests.conftest import ROOT
from tests.failing import fail_on
from tests.preprocessing import memory_filesystem
from tests.streams import nobody_reads, stdout_to


def error(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.strip().split("\n")
    return line


def test_the_command_writes_one_vocabulary(books: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = sorted(books.glob("*.txt"))
    outputs = [tmp_path / "new" / "one.txt", tmp_path / "two.txt"]
    for output, order in zip(outputs, (files, files[::-1]), strict=True):
        main(["--books", *map(str, order), "--size", "60", "--output", str(output)])
    assert outputs[0].read_bytes() == outputs[1].read_bytes()
    tokens = load_vocabulary(outputs[0])
    assert len(tokens) == 60
    assert tuple(tokens[:5]) == SPECIAL_TOKENS
    assert "60 tokens, learnt from 12 documents" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["new", "one.txt", "two.txt"]


def test_a_real_dump_gives_the_size_asked_for(real_data: Path, tmp_path: Path) -> None:
    dump = real_data / "wikipedia" / "enwiki-first75-pages-articles-multistream.xml.bz2"
    output = tmp_path / "vocab.txt"
    main(["--wikipedia", str(dump), "--size", "4096", "--output", str(output)])
    tokens = load_vocabulary(output)
    assert len(tokens) == 4096
    assert {"the", "of", "##s", "##ing"} <= set(tokens)


def test_tables_are_learnt_from_too(books: Path, tmp_path: Path) -> None:
    texts = [path.read_text() for path in sorted(books.glob("*.txt"))]
    pq.write_table(pa.table({"text": texts}), tmp_path / "books.parquet")
    for option, corpus in (("--books", books / "*.txt"), ("--parquet", tmp_path / "books.parquet")):
        main([option, str(corpus), "--size", "60", "--output", str(tmp_path / option)])
    assert (tmp_path / "--parquet").read_bytes() == (tmp_path / "--books").read_bytes()


def test_the_command_heeds_what_it_is_told(books: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [f"Ahoy {path.read_text()}" for path in sorted(books.glob("*.txt"))]
    pq.write_table(pa.table({"text": ["no"] * len(texts), "body": texts}), tmp_path / "books.parquet")
    table = ["--parquet", str(tmp_path / "books.parquet"), "--parquet-text-column", "body"]
    main([*table, "--size", "9000", "--cased", "--seed", "0", "--output", str(tmp_path / "cased.txt")])
    found = load_vocabulary(tmp_path / "cased.txt")
    told = capsys.readouterr().out
    assert f"cased.txt: {len(found)} tokens (9,000 were asked for; the text has no more), learnt from 12 doc" in told
    assert "Ahoy" in found
    main([*table, "--size", "60", "--sample-bytes", str(2 * len(texts[0])), "--output", str(tmp_path / "few.txt")])
    assert re.search(r"few\.txt: 60 tokens, learnt from [12] documents?, ", capsys.readouterr().out)
    assert all(
        token.islower() or token in SPECIAL_TOKENS for token in load_vocabulary(tmp_path / "few.txt") if token.isalpha()
    )


def test_what_is_unfinished_lies_beside_the_output(books: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[str, str]] = []
    monkeypatch.setattr(files, "write_text", lambda path, _, scratch: written.append((path, scratch)))
    for output in ("/nowhere/vocab.txt", "/vocab.txt"):
        main(["--books", f"{books}/*.txt", "--size", "60", "--output", output])
    assert written == [("/nowhere/vocab.txt", "/nowhere"), ("/vocab.txt", "/")]


GIVEN = [*SPECIAL_TOKENS, *"abcdefghijklmnopqrstuvwxyz", *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")]


def test_a_vocabulary_is_extended(books: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_text(str(tmp_path / "base.txt"), vocabulary_text(GIVEN), str(tmp_path))
    command = ["--books", f"{books}/*.txt", "--extend", f"{tmp_path}/base.txt", "--output", f"{tmp_path}/vocab.txt"]
    for _ in range(2):  # the same again changes nothing, and needs no --overwrite
        main([*command, "--size", "70"])
        tokens = load_vocabulary(tmp_path / "vocab.txt")
        assert tokens[: len(GIVEN)] == GIVEN
        assert len(tokens) == 70
        told = capsys.readouterr().out
        assert f"vocab.txt: 70 tokens, {70 - len(GIVEN)} of them new, learnt from 12 documents" in told
        after, before = map(float, re.findall(r"\d\.\d{3}", told))
        assert after < before
    assert "holds something else" in error(capsys, *command, "--size", 71)


def test_a_vocabulary_that_cannot_be_extended_is_told(
    books: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / "base.txt"
    without_size = ("--books", books / "*.txt", "--output", tmp_path / "vocab.txt", "--extend", base)
    command = (*without_size, "--size", 70)
    monkeypatch.setattr("preprocessing.train_vocab.sample_texts", pytest.fail)  # all this before anything is read
    assert "base.txt: can't read the vocabulary" in error(capsys, *command)
    base.write_text("a\nb\n")
    assert "the special token [PAD] is missing" in error(capsys, *command)
    base.write_text(vocabulary_text(GIVEN))
    assert "it is an uncased vocabulary; leave --cased out" in error(capsys, *command, "--cased")
    assert f"--extend needs --size N, the entries wanted in all, more than the 57 of {base}" in error(
        capsys, *without_size
    )
    assert "--size 57 leaves no room beside the 57 entries of --extend" in error(capsys, *command, "--size", 57)
    base.write_text(vocabulary_text([*GIVEN, "Cat"]))
    assert "it is a cased vocabulary; add --cased" in error(capsys, *command)
    assert "base.txt is one of the inputs" in error(capsys, *command, "--cased", "--overwrite", "--output", base)
    assert not (tmp_path / "vocab.txt").exists()


def test_unusable_inputs_are_told_in_a_line(books: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "v.txt"
    assert "no input file matches" in error(capsys, "--books", tmp_path / "*.txt", "--output", output)
    assert "nothing to read" in error(capsys, "--output", output)
    assert "no room" in error(capsys, "--books", books / "*.txt", "--size", 9, "--output", output)
    assert "required: --output" in error(capsys, "--books", books / "*.txt")
    assert "--output is empty" in error(capsys, "--books", books / "*.txt", "--output", "")
    assert not output.exists()


def test_an_output_that_cannot_be_written_is_told_in_a_line(
    books: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--books", books / "*.txt", "--size", 60, "--output")
    (tmp_path / "file").write_text("")
    assert "file/vocab.txt: can't be written" in error(capsys, *arguments, tmp_path / "file" / "vocab.txt")
    assert "is a folder; name the file" in error(capsys, "--books", tmp_path / "none", "--output", tmp_path)
    assert "is a folder; name the file" in error(capsys, *arguments, f"{tmp_path}/new/")
    assert "is there, and no file" in error(capsys, *arguments, "/dev/null")  # root could replace it
    # As a folder that this user may not enter; from Python 3.14 on that is found when it is written.
    assert "can't be written (" in error(capsys, *arguments, tmp_path / ("a" * 300) / "vocab.txt")
    for url in ("s3://bucket/vocab.txt", "gs://bucket/vocab.txt", "nowhere://bucket/vocab.txt"):
        told = error(capsys, *arguments, url)
        assert f"--output {url}: can't be written (" in told
        assert "needs an extra of Beam" in told or "Beam knows no nowhere://" in told
    (tmp_path / "link").symlink_to("link")  # to itself
    assert "link/vocab.txt: can't be written (" in error(capsys, *arguments, tmp_path / "link" / "vocab.txt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]


@pytest.mark.parametrize(("number", "code"), [(errno.ESTALE, 1), (errno.EACCES, 2)])
@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("_open", r"book-00\.txt: can't be read \({}\)"),
        ("_rename", r"/vocab\.txt: can't be written \({}\); use another"),
    ],
    ids=["an input", "the output"],
)
def test_storage_that_fails_is_told_with_whether_that_may_pass(
    books: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    call: str, told: str, number: int, code: int,
) -> None:  # fmt: skip
    fail_on(monkeypatch, files, call, number=number)
    with pytest.raises(SystemExit) as ended:
        main(["--books", str(books / "*.txt"), "--size", "60", "--output", str(tmp_path / "vocab.txt")])
    assert ended.value.code == code
    assert re.search(told.format(os.strerror(number)), capsys.readouterr().err)
    assert list(tmp_path.iterdir()) == []


def test_no_input_and_no_other_file_is_written_over_unasked(
    books: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(books, tmp_path / "books")
    arguments = ("--books", tmp_path / "books" / "*.txt", "--output")
    book = tmp_path / "books" / "book-03.txt"
    before = book.read_bytes()
    for asked in ((), ("--overwrite",)):
        assert "book-03.txt is one of the inputs" in error(capsys, *arguments, book, *asked)
    assert book.read_bytes() == before
    output = tmp_path / "vocab.txt"
    output.write_text("mine")
    with monkeypatch.context() as patch:
        patch.setattr("preprocessing.train_vocab.sample_texts", pytest.fail)  # that is told before anything is read
        assert "is there and holds something else; use another name, or --overwrite" in error(
            capsys, *arguments, output
        )
    again = [str(argument) for argument in (*arguments, output, "--size", 60)]
    main([*again, "--overwrite"])
    vocabulary = output.read_text()
    main(again)
    assert "holds something else" in error(capsys, *arguments, output, "--size", 61)
    assert output.read_text() == vocabulary
    output.write_text(f"{vocabulary[:-2]}~\n")  # as many bytes
    assert "holds something else" in error(capsys, *arguments, output, "--size", 60)
    assert output.read_text() == f"{vocabulary[:-2]}~\n"
    output.write_bytes("\n".join([*SPECIAL_TOKENS, "é"]).encode("latin-1"))
    assert "holds something else" in error(capsys, *arguments, output)


def test_a_file_that_can_not_be_looked_at_for_a_moment_is_not_written_over(
    books: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever look at it fails."""
    output, stat, said = tmp_path / "vocab.txt", os.stat, ""
    output.write_text("mine")
    failing, looks = 0, 0

    def fail_once(path: str | Path, **options: Any) -> os.stat_result:
        nonlocal looks
        looks += str(path) == str(output)
        if str(path) == str(output) and looks == failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return stat(path, **options)

    while "holds something else" not in said:
        failing, looks = failing + 1, 0
        with monkeypatch.context() as patch:
            patch.setattr(os, "stat", fail_once)
            with pytest.raises(SystemExit) as ended:
                main(["--books", str(books / "*.txt"), "--size", "60", "--output", str(output)])
            said = capsys.readouterr().err
            assert ended.value.code == (1 if "Input/output error" in said else 2)
        assert "can't be written (Input/output error)" in said or looks < failing
        assert output.read_text() == "mine"
    assert failing > 1


def test_the_commands_that_the_help_shows_are_taken_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    assert shown.startswith("usage: python -m preprocessing.train_vocab INPUTS --output FILE [options]\n")
    commands = re.findall(r"^  python -m preprocessing.train_vocab (.*)", shown, re.M)
    assert [parser().parse_args(shlex.split(command)).extend for command in commands] == [None, "base.txt"]


def test_the_end_is_told_to_whoever_may_be_there(
    books: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that lacks a letter, or has gone."""
    for stdout in (tmp_path / "told", nobody_reads()):
        with stdout_to(stdout, "ascii"):
            main(["--books", f"{books}/*.txt", "--size", "60", "--output", str(tmp_path / "é.txt")])
        assert capsys.readouterr().err == ""
    assert "/?.txt: 60 tokens, learnt" in (tmp_path / "told").read_text()


def test_a_folder_in_the_place_of_a_file_is_an_error_and_no_other_attempt(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(IsADirectoryError):
        write_text(str(tmp_path / "taken"), "text", str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_a_vocabulary_on_another_file_system_leaves_nothing_here(
    books: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory_filesystem.FILES.clear()
    monkeypatch.chdir(tmp_path)
    main(["--books", f"{books}/*.txt", "--size", "60", "--output", "memory://bucket/vocab.txt"])
    assert list(memory_filesystem.FILES) == ["memory://bucket/vocab.txt"]
    assert not list(tmp_path.iterdir())


def test_who_imports_the_command_keeps_a_log_of_its_own() -> None:
    program = "import logging, preprocessing.train_vocab; print(logging.getLogger().level == logging.WARNING)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "True\n"
