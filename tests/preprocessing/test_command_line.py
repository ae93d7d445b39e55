"""Every command tells a mistake in its options in a line, and a word that it does not know first."""

import ast
import importlib
import re
import subprocess
import sys
from argparse import ArgumentTypeError
from collections.abc import Sequence
from pathlib import Path

import pytest

from preprocessing.command_line import OneLineParser, parse_path, whole_number
from tests.conftest import ROOT


def parser() -> OneLineParser:
    """Of a command with an option that it needs and one that it does not."""
    ours = OneLineParser("command")
    ours.add_argument("--limit", type=int)
    ours.add_argument("--output", required=True)
    ours.add_argument("words", nargs="*")
    return ours


def told(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit, match="2"):
        parser().parse_args(words)
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--outptu", "x"], "unknown option '--outptu': did you mean '--output'?"),  # and not that --output is missing
        (["--output=x", "--limt=3"], "unknown option '--limt': did you mean '--limit'?"),
        (["--output=x", "--li=3"], "unknown option '--li'"),  # no beginning of an option is taken for it
        (["--wandb"], "unknown option '--wandb'"),
        (["--wandb", "--limt"], "unknown option '--limt': did you mean '--limit'?"),
        (["--limit", "3"], "the following arguments are required: --output"),
        (["--output=x", "--limit=a"], "argument --limit: invalid int value: 'a'"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(words, capsys) == f"command: error: {error}; see --help\n"


@pytest.mark.parametrize("option", ["--min_log_level", "--min-log-level", "--min-log_level"])
def test_another_program_s_name_of_an_option_is_told_in_whichever_dashes(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ours, here = parser(), {"--min_log_level": "--limit", "--output": "none of another program"}
    with pytest.raises(SystemExit, match="2"):
        ours.refuse_names_of_others(["--output=x", f"{option}=3"], here)
    assert capsys.readouterr().err == f"command: error: unknown option {option}: here it is --limit; see --help\n"
    ours.refuse_names_of_others(["min_log_level=3", "--output=x", "--", option], here)


def test_what_would_end_the_line_or_command_a_terminal_is_written_out(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parser().error("no file a\nb\x1b[31m")
    assert capsys.readouterr().err == "command: error: no file a\\nb\\x1b[31m; see --help\n"


def test_what_only_looks_like_an_option_is_left_alone() -> None:
    assert parser().parse_args(["--output=--limt", "--", "--limt"]).words == ["--limt"]
    assert parser().parse_args(["--output", "--an option has no blanks"]).output == "--an option has no blanks"


def test_options_of_commands_within_are_known() -> None:
    ours = OneLineParser("command")
    ours.add_subparsers(dest="what").add_parser("score").add_argument("--limit", type=int)
    assert ours.parse_args(["score", "--limit", "3"]).limit == 3


def test_the_rest_of_a_line_that_is_another_program_s_is_left_to_that() -> None:
    ours = OneLineParser("command")
    run = ours.add_subparsers(dest="what").add_parser("run")
    run.add_argument("--limit", type=int)
    run.add_argument("rest", nargs="...")
    assert ours.parse_args(["run", "program", "--limt", "3"]).rest == ["program", "--limt", "3"]


@pytest.mark.parametrize(("text", "number"), [("1", 1), ("10", 10), ("007", 7)])
def test_whole_numbers(text: str, number: int) -> None:
    assert whole_number(1, 10)(text) == number


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0", "'0' is not a whole number of 1 or more"),
        ("-3", "'-3' is not a whole number of 1 or more"),
        ("1.5", "'1.5' is not a whole number of 1 or more"),
        ("", "'' is not a whole number of 1 or more"),
        ("x" * 5000, f"'{'x' * 100}'... is not a whole number of 1 or more"),
        ("11", "11 is more than 10, the most that is taken here"),
        ("9" * 5000, "a number of 5,000 digits is more than 10, the most that is taken here"),  # Python reads no such
    ],
)
def test_what_is_no_whole_number_between_two(text: str, reason: str) -> None:
    with pytest.raises(ArgumentTypeError, match=f"^{re.escape(reason)}$"):
        whole_number(1, 10)(text)


def test_a_leading_tilde_is_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert parse_path("~/runs") == tmp_path / "runs"  # which no shell puts into --output=~/runs
    assert parse_path("./~/runs").parts[0] == "~"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("preprocessing.inspect", [""]),
        ("preprocessing.inspect", ["shards", "--histograms", ""]),
        ("trainer.outcome", [""]),
        ("trainer.export", ["run", ""]),
        ("trainer.new_vocabulary", ["model", "", "new"]),
        ("trainer.tracking.__main__", ["sync", ""]),
        ("trainer.pretrain", ["--config", "a.toml", "--shards", "shards", "--output", ""]),
        ("trainer.pretrain", ["--config", "a.toml", "--shards", "shards", "--output", "run", "--init-from", ""]),
        ("trainer.pretrain", ["--config", "a.toml", "--output", "run", "--shards", ""]),
        ("cluster.doctor", ["--shared", ""]),
    ],
)
def test_a_variable_of_the_shell_that_is_not_set_is_not_the_current_folder(
    command: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        sys.exit(importlib.import_module(command).main(words))
    assert "the path is empty; write . for the current folder" in capsys.readouterr().err


def makes_parsers(file: Path) -> bool:
    calls = (node.func for node in ast.walk(ast.parse(file.read_bytes())) if isinstance(node, ast.Call))
    return any(isinstance(call, ast.Attribute) and call.attr == "ArgumentParser" for call in calls)


def test_all_commands_have_this_parser() -> None:
    folders = [ROOT / name for name in ("preprocessing", "trainer", "eval", "cluster")]
    files = [file for folder in folders for file in folder.rglob("*.py")]
    assert [file.name for file in files if makes_parsers(file)] == []


@pytest.mark.parametrize(
    ("command", "typo", "meant"),
    [
        ("preprocessing.inspect", "--histogram", "--histograms"),
        ("trainer.pretrain", "--ouput", "--output"),
        ("eval.run", "--learning-rate", "--learning-rates"),
        ("eval.watch", "--onec", "--once"),
        ("eval.watch", "--shard", "--shards"),
        ("cluster.doctor", "--share", "--shared"),
        ("cluster.launch", "--dryrun", "--dry-run"),
    ],
)
def test_a_misspelt_option_is_told_with_what_was_meant(
    command: str, typo: str, meant: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Though what the command needs is not given."""
    with pytest.raises(SystemExit, match="2"):
        sys.exit(importlib.import_module(command).main([typo, "3"]))
    assert_told(capfd.readouterr().err, typo, meant)


def test_a_misspelt_option_is_told_by_a_job_on_beam_too() -> None:
    """In a process of its own: beam runs the job as a script, and a script changes how its process takes signals."""
    words = [
        sys.executable,
        "-m",
        "preprocessing.beam_cli",
        "run",
        "preprocessing/make_shards.py",
        "--train_vocab",
        "3",
    ]
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert run.returncode == 2
    assert_told(run.stderr, "--train_vocab", "--train-vocab")


def assert_told(said: str, typo: str, meant: str) -> None:
    assert said.endswith(f"error: unknown option {typo!r}: did you mean {meant!r}?; see --help\n")
    assert said.count("\n") == 1
