"""SIGINT, SIGTERM and SIGHUP, from a user or a scheduler whose time limit is near, end a job there and then.

Python's own answer to Ctrl-C, a KeyboardInterrupt in the main thread, serves a job badly: Beam makes a RuntimeError of
one that comes while a transform works, waits for ever for worker processes that the same signal has ended, and code in
C does not hear it at all. Nothing has to be unwound: what is finished is under its final name, the rest is made anew.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import NoReturn

import psutil

from preprocessing.terminal import tell

OF_A_TERMINAL = (signal.SIGINT, signal.SIGHUP)  # which what does not belong to it any more ignores
_PATIENCE = 20.0  # seconds that an action before the end may take
_before_end: list[Callable[[], object]] = []
_ending = threading.Event()


@contextlib.contextmanager
def before_end(action: Callable[[], object]) -> Iterator[None]:
    """Within, an end by a signal does something first, such as telling others who work for this process.

    Nobody leaves while an end is under way: what the action breaks off is no error to tell.
    """
    _before_end.append(action)
    try:
        yield
    finally:
        if _ending.is_set():
            threading.Event().wait()  # for the end of the process
        _before_end.remove(action)


def end_when_interrupted(message: str) -> None:
    """From now on these signals end this process and all that it starts, with a message.

    A shell sees 130, 143 or 129 as exit code; to Python's subprocess the first is -2, as of all that dies of Ctrl-C.

    To be called before anything is started: what a terminal sends to all, SIGINT, and SIGHUP where it closes, is
    blocked in later threads and processes, so that no worker answers to it by itself. Where it is ignored, as in what
    a shell's script runs in the background, or nohup, it stays so.
    """
    if sys.stderr is None:  # closed by whoever started this, such as a daemon
        sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115
        os.dup2(sys.stderr.fileno(), 2)
    # Python runs a handler in the main thread, when that comes round to it; these bytes come from whichever thread the
    # signal has hit, a library's that was there before among them, at once.
    signals, hears = os.pipe()
    os.set_blocking(hears, False)
    signal.set_wakeup_fd(hears)
    for number in (*OF_A_TERMINAL, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    threading.Thread(target=_wait, args=(signals, message, os.dup(2)), daemon=True).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, OF_A_TERMINAL)


def _wait(signals: int, message: str, terminal: int) -> NoReturn:
    """End with the first signal; ``terminal`` is stderr as it was, for while Beam works 2 is a file."""
    [number] = os.read(signals, 1)
    end(128 + number, message, terminal)


def end(code: int, message: str, terminal: int) -> NoReturn:
    """End this process and all that it has started, whatever they are at.

    Args:
        code: exit code.
        message: for the user.
        terminal: a descriptor to tell it on.
    """
    line = "\r\033[K" if os.isatty(terminal) else ""  # where the progress stands
    tell(terminal, f"{line}{message}\n")
    _ending.set()
    for action in [*_before_end]:
        actor = threading.Thread(target=action, daemon=True)
        actor.start()
        actor.join(_PATIENCE)
    _kill_all_below(psutil.Process())
    if code == 128 + signal.SIGINT:
        _die_of_ctrl_c()
    os._exit(code)


def _die_of_ctrl_c() -> None:
    """End as if SIGINT had not been heard, so that a loop of bash ends too; it goes on after an exit code of 130."""
    ctypes.CDLL(None).signal(signal.SIGINT, None)  # Python's is for the main thread alone, which may be in C code
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.raise_signal(signal.SIGINT)  # no more than a try where this is a container's first process


def _kill_all_below(top: psutil.Process) -> None:
    """SIGKILL to all that a process has started; they are stopped first, for one that runs may start another."""
    stopped: set[psutil.Process] = set()
    while found := set(top.children(recursive=True)) - stopped:
        stopped |= found
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.suspend()
    for process in stopped:
        with contextlib.suppress(psutil.Error):
            process.kill()
