"""Runs make_shards in tests, and looks at what it made."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import psutil
import pytest

from preprocessing.job import Job
from preprocessing.layout import Layout
from preprocessing.make_shards import main
from preprocessing.options import parse
from preprocessing.schema import ShardDirectory, Vocabulary

TWO_PROCESSES = ("--direct_running_mode=multi_processing", "--direct_num_workers=2")


class Maker:
    """Runs the command with the settings that all tests share."""

    def __init__(self, vocabulary: Path, capsys: pytest.CaptureFixture[str]):
        self.vocabulary, self.capsys = vocabulary, capsys

    def __call__(self, output: Path | str, *arguments: object) -> str:
        shared = ["--vocab", self.vocabulary, "--sequence-lengths", 32, 64, "--duplicates", 2, "--output", output]
        main([str(argument) for argument in (*shared, *arguments)])
        return self.capsys.readouterr().out

    def error(self, output: Path | str, *arguments: object, code: int = 2) -> str:
        """The one line that a refused command says, which ends with an exit code."""
        with pytest.raises(SystemExit) as caught:
            self(output, *arguments)
        assert caught.value.code == code
        said = self.capsys.readouterr()
        assert said.out == ""
        (line,) = said.err.strip().split("\n")
        return line


def job_at(output: Path | str, *options: str) -> Job:
    """A job of three units, two shards and one to validate with, none of whose inputs is there."""
    asked = parse(["--books", "x", "--vocab", "v", "--output", "o", *options]).options
    return Job(str(output), asked, Vocabulary(100, "identity", True), Layout(1, 2, 1, 0.1), units=3)


def started_by(pid: int, word: str) -> list[psutil.Process]:
    """The processes below one that have a word in their command line."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if word in " ".join(process.cmdline()):
                found.append(process)
    return found


def contents(output: Path) -> dict[str, str]:
    return {entry.file: entry.blake2b for entry in ShardDirectory(output).manifest.shards}


def rows(output: Path) -> list[dict[str, Any]]:
    """The documents of all shards, by doc_id."""
    opened = ShardDirectory(output)
    tables = [opened.shard(entry).table for entry in opened.manifest.shards]
    return sorted((row for table in tables for row in table.to_pylist()), key=lambda row: str(row["doc_id"]))
