from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

HANGS = """
import sys, time
from preprocessing.watchdog import Watchdog, watching

folder, terminal = sys.argv[1:]
Watchdog.terminal = int(terminal) if terminal else None
with watching(folder, 0.5) as dog:
    dog.watch("whale.txt")
    time.sleep(100)
"""


@pytest.mark.parametrize("place", ["terminal", "file"])
def test_what_hangs_is_ended_where_that_can_not_be_told(tmp_path: Path, place: str) -> None:
    """The terminal was closed, or the folder of intermediate files can't be written."""
    (tmp_path / "no-folder").touch()
    reads, terminal = os.pipe()
    os.close(reads)
    told = str(terminal) if place == "terminal" else ""
    command = [sys.executable, "-c", HANGS, str(tmp_path / "no-folder"), told]
    done = subprocess.run(command, cwd=ROOT, pass_fds=[terminal], timeout=60, capture_output=True, check=False)
    os.close(terminal)
    assert done.returncode == -signal.SIGKILL
