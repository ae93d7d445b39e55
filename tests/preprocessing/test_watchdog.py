from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from preprocessing.watchdog import Watchdog
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


STOPPED = """
import os, sys, time
from preprocessing.watchdog import watching

with watching(sys.argv[1], 6.0) as dog:
    dog.watch("whale.txt")
    print("begun", flush=True)
    for _ in range(40):
        time.sleep(0.1)
"""


def test_the_time_in_which_a_job_was_stopped_counts_for_no_document(tmp_path: Path) -> None:
    """By Ctrl-Z, or by a scheduler that suspends it, with all of its processes."""
    command = [sys.executable, "-c", STOPPED, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, start_new_session=True) as job:
        assert job.stdout
        assert job.stdout.readline() == b"begun\n"
        time.sleep(2)  # for the second process to look
        os.killpg(job.pid, signal.SIGSTOP)
        time.sleep(6)
        os.killpg(job.pid, signal.SIGCONT)
        assert job.wait(60) == 0


def test_a_process_that_was_forked_meanwhile_keeps_none(tmp_path: Path) -> None:
    """It has all that was open, and so the pipe by whose end the second process knows that the first one is done."""
    before = psutil.Process().children()
    dog = Watchdog(str(tmp_path), 60.0)
    (second,) = (process for process in psutil.Process().children() if process not in before)
    forked = multiprocessing.get_context("fork").Process(target=time.sleep, args=(30,))
    forked.start()
    del dog
    assert forked.is_alive()
    assert not second.is_running()
    forked.kill()
    forked.join()
