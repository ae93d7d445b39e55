"""SIGINT, from Ctrl-C or from a scheduler whose time limit is near, ends a job there and then.

Python's own answer, a KeyboardInterrupt in the main thread, serves a job badly: Beam makes a RuntimeError of one that
comes while a transform works, waits for ever for worker processes that the same signal has ended, and code in C does
not hear it at all. Nothing has to be unwound here: what is finished is under its final name, and the rest is made anew.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading

import psutil

INTERRUPTED_CODE = 130  # exit code, as a shell gives to what SIGINT has ended


def end_when_interrupted(message: str) -> None:
    """From now on SIGINT ends this process and all that it starts, with a message and INTERRUPTED_CODE.

    To be called before anything is started: SIGINT is blocked in all later threads and processes, so that no worker
    answers to it by itself. Where it is ignored, as in what a shell's script runs in the background, it stays so.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        return
    # Python runs a handler in the main thread, when that comes round to it; these bytes come from whichever thread the
    # signal has hit, a library's that was there before among them, at once.
    signals, hears = os.pipe()
    os.set_blocking(hears, False)
    signal.set_wakeup_fd(hears)
    signal.signal(signal.SIGINT, lambda *_: None)
    terminal = os.dup(2)  # while Beam works, 2 is a file
    threading.Thread(target=_end_at, args=(signals, message, terminal), daemon=True).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def _end_at(signals: int, message: str, terminal: int) -> None:
    while signal.SIGINT not in os.read(signals, 1):
        pass
    line = "\r\033[K" if os.isatty(terminal) else ""  # where the progress stands
    with contextlib.suppress(OSError):  # whoever read it, `tee` perhaps, has been interrupted too
        os.write(terminal, f"{line}{message}\n".encode())
    for worker in psutil.Process().children(recursive=True):
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGKILL)
    os._exit(INTERRUPTED_CODE)
