"""When a run is to end before its last step: signals, a launcher that is gone, a step that hangs."""

from __future__ import annotations

import faulthandler
import os
import signal
from pathlib import Path

import psutil


class StopRequests:
    """Whether this process was asked to end. The ranks agree on it before every step.

    It is by SIGTERM or SIGUSR1, and by the end of its launcher: `deepspeed` passes no signal on, and a launcher that is
    killed can't. Ranks that trained on without one would be in the way of the next start.
    """

    def __init__(self) -> None:
        self._signalled = False
        self._parent = os.getppid()
        self._runner = _runner()
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._receive)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])  # a launcher may have held back what came earlier

    @property
    def received(self) -> bool:
        """Whether to end after the step."""
        return self._signalled or os.getppid() != self._parent or not _is_alive(self._runner)

    def _receive(self, *_: object) -> None:
        self._signalled = True


def _runner() -> psutil.Process | None:
    """The `deepspeed` command, which on one machine starts the launcher that starts the ranks; None elsewhere."""
    launcher = psutil.Process().parent()
    runner = launcher.parent() if launcher else None
    if not launcher or not runner or "deepspeed.launcher.launch" not in _command(launcher):
        return None
    return runner if any(Path(word).name == "deepspeed" for word in _command(runner)) else None


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:  # another user's, or gone
        return []


def _is_alive(process: psutil.Process | None) -> bool:
    try:
        return process is None or (process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def watch(seconds: int) -> None:
    """Unless called again in so many seconds, print where every thread stands and end the process; 0 calls it off."""
    if seconds:
        faulthandler.dump_traceback_later(seconds, exit=True)
    else:
        faulthandler.cancel_dump_traceback_later()
