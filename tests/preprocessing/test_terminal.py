from __future__ import annotations

import pytest

from preprocessing.terminal import tell_error


@pytest.mark.parametrize(("program", "begins"), [(None, "error: "), ("make_shards", "make_shards: error: ")])
def test_an_error_is_one_line_that_commands_no_terminal(
    program: str | None, begins: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tell_error(FileNotFoundError("of\ntwo lines\x1b[2J: not there"), program)
    assert capsys.readouterr().err == rf"{begins}of\ntwo lines\x1b[2J: not there" + "\n"
