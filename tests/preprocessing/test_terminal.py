from __future__ import annotations

import os
import subprocess
import sys

import pytest

from preprocessing.terminal import tell_error


@pytest.mark.parametrize(("program", "begins"), [(None, "error: "), ("make_shards", "make_shards: error: ")])
def test_an_error_is_one_line_that_commands_no_terminal(
    program: str | None, begins: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tell_error(FileNotFoundError("of\ntwo lines\x1b[2J: not there"), program)
    assert capsys.readouterr().err == rf"{begins}of\ntwo lines\x1b[2J: not there" + "\n"


@pytest.mark.parametrize(
    ("reader", "code", "told"),
    [("full", 2, "error: standard output: No space left on device; send it elsewhere\n"), ("gone", 0, "")],
)
def test_a_result_that_nobody_gets(reader: str, code: int, told: str) -> None:
    """A full disk is a failure; a pipe whose reader has gone, as of `| true`, is none."""
    if reader == "full":
        out = os.open("/dev/full", os.O_WRONLY)
    else:
        gone, out = os.pipe()
        os.close(gone)
    script = "import sys; from preprocessing.terminal import print_result; sys.exit(print_result('a figure'))"
    done = subprocess.run([sys.executable, "-c", script], stdout=out, stderr=subprocess.PIPE, text=True)
    os.close(out)
    assert (done.returncode, done.stderr) == (code, told)
