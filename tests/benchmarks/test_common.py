"""Programs that a benchmark starts end with it."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from common import run_programs, seconds_since_start
from tests.ranks import is_there

ENDLESS = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
told = pathlib.Path(sys.argv[1])
told.with_suffix(".new").write_text(str(child.pid))
told.with_suffix(".new").rename(told)
time.sleep(600)
"""


def test_at_the_end_a_program_is_killed_with_all_that_it_started(tmp_path: Path):
    told = tmp_path / "pid"
    with pytest.raises(RuntimeError, match="endless was not done"):
        run_programs({"endless": [sys.executable, "-c", ENDLESS, told]}, tmp_path, seconds_since_start() + 12)
    child = int(told.read_text())
    for _ in range(300):  # the kernel takes its time
        if not is_there(child):
            return
        time.sleep(0.1)
    pytest.fail(f"process {child} still runs")


def test_a_program_that_fails_is_named_with_its_last_words(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    with pytest.raises(RuntimeError, match="broken ended with exit code 3: no such thing"):
        run_programs(
            {"broken": ["bash", "-c", "echo before; echo no such thing >&2; exit 3"], "other": ["sleep", "600"]},
            tmp_path, seconds_since_start() + 60,
        )  # fmt: skip
    assert "before\nno such thing" in capfd.readouterr().err
