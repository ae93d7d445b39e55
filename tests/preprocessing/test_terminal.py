from __future__ import annotations

import os
import subprocess
import sys

import pytest

from preprocessing.terminal import tell_error
from tests.streams import nobody_reads


@pytest.mark.parametrize(("program", "begins"), [(None, "error: "), ("make_shards", "make_shards: error: ")])
def test_an_error_is_one_line_that_commands_no_terminal(
    program: str | None, begins: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tell_error(FileNotFoundError("of\ntwo lines\x1b[2J: not there"), program)
    assert capsys.readouterr().err == rf"{begins}of\ntwo lines\x1b[2J: not there" + "\n"


@pytest.mark.parametrize(
    ("shown", "reader", "code", "told"),
    [
        ("print_result('a figure')", "full", 2, "error: standard output: No space left on device; send it elsewhere\n"),
        ("print_result('a figure')", "gone", 0, ""),
        ("show('a name') is None", "full", 0, ""),
        ("show('a name') is None", "gone", 0, ""),
    ],
)
def test_what_nobody_gets(shown: str, reader: str, code: int, told: str) -> None:
    """To a full disk a result is lost, to a pipe whose reader has gone, as of `| true`, none; nor is a word beside it.

    Python itself would find that nothing can be written, once more, where it ends.
    """
    out = os.open("/dev/full", os.O_WRONLY) if reader == "full" else nobody_reads()
    script = f"import sys; from preprocessing.terminal import print_result, show; sys.exit({shown})"
    done = subprocess.run([sys.executable, "-c", script], stdout=out, stderr=subprocess.PIPE, text=True)
    os.close(out)
    assert (done.returncode, done.stderr) == (code, told)
