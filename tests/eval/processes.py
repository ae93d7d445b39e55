"""Ends of other processes, and what they hold."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
from collections.abc import Iterable
from pathlib import Path


def assert_interrupted(process: subprocess.Popen[str], number: signal.Signals, told: str) -> None:
    """That a command ends by a signal with this line; Ctrl-C reaches all processes of its group, others it alone."""
    (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == (-number if number == signal.SIGINT else 128 + number)
    assert said.splitlines().count(told) == 1
    assert "Traceback" not in said


def assert_free(locks: Iterable[Path]) -> None:
    """That nobody holds any of some locks, of which there is one at least."""
    paths = list(locks)
    assert paths
    for path in paths:
        with path.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
