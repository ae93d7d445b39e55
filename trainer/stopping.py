"""When a run is to end before its last step: signals, a launcher that is gone, a step that hangs, an error."""

from __future__ import annotations

import faulthandler
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn

import psutil

from preprocessing.interruption import OF_A_TERMINAL
from preprocessing.terminal import tell

REQUESTS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)  # to stop
_ONE_KEY = 1.0  # seconds in which a rank may hear one Ctrl-C twice: from the terminal and from torchrun
_LAUNCHERS = {"deepspeed", "deepspeed.launcher.launch", "torchrun", "torch.distributed.run"}


class StopRequests:
    """Whether this process was asked to end. The ranks agree on it before every step.

    It is by SIGTERM, SIGUSR1, Ctrl-C, or SIGHUP, as where a connection by ssh is lost; and by the end of its launcher:
    `deepspeed` passes no signal on, and a launcher that is killed can't. Ranks that trained on without one would be in
    the way of the next start. Before there is anything to save, and where it comes again, Ctrl-C ends the process there
    and then.
    """

    def __init__(self) -> None:
        self._signalled = False
        self._waits = False
        self._launchers = _launchers()
        # Python runs a handler in the main thread, once that is back from torch; these bytes come at once.
        signals, hears = os.pipe()
        os.set_blocking(hears, False)
        signal.set_wakeup_fd(hears, warn_on_full_buffer=False)
        threading.Thread(target=self._count_interrupts, args=(signals,), name="interrupts", daemon=True).start()
        for number in REQUESTS:
            if number not in OF_A_TERMINAL or signal.getsignal(number) != signal.SIG_IGN:  # as for what a script has
                signal.signal(number, self._receive)  # put in the background, or nohup has started
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])  # a launcher may have held back what came earlier

    @property
    def received(self) -> bool:
        """Whether to end after the step."""
        return self._signalled or not all(map(_is_alive, self._launchers))

    def wait_for_the_step(self) -> None:
        """From now on a Ctrl-C waits for the end of a step."""
        self._waits = True

    def _receive(self, *_: object) -> None:
        self._signalled = True

    def _count_interrupts(self, signals: int) -> NoReturn:
        """Answer to each Ctrl-C that is read as a byte: with a line of the first rank, or with the end."""
        first = 0.0
        while True:
            [number] = os.read(signals, 1)
            if number != signal.SIGINT:
                continue
            if not self._waits or (first and time.monotonic() > first + _ONE_KEY):
                _kill_children()
                os._exit(128 + number)  # without a last word: whoever was to read it may not
            if not first and os.environ.get("RANK", "0") == "0":
                told = "\nstopping after this step, with a checkpoint\n"
                threading.Thread(target=tell, args=(2, told), daemon=True).start()
            first = first or time.monotonic()


def _launchers() -> list[psutil.Process]:
    """Those above this process, as `deepspeed` is above its launcher; shells between or above them may go."""

    def is_launcher(process: psutil.Process) -> bool:
        program = _command(process)[:4]  # at most: python -u -m NAME; what follows may be a launcher's command line
        return any(Path(word).name in _LAUNCHERS for word in program)

    return [process for process in psutil.Process().parents() if is_launcher(process)]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:  # another user's, or gone
        return []


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
    except OSError:  # out of file handles, say: it is looked at again before the next step
        return True


def wait_for_first(seconds: float) -> bool:
    """Wait until the first rank of this node has ended, and at most so many seconds; returns whether it has."""
    parent = psutil.Process().parent()
    for process in parent.children() if parent else []:
        try:
            if process.environ().get("LOCAL_RANK") == "0":
                process.wait(seconds)
        except psutil.TimeoutExpired:
            return False
        except psutil.Error:  # gone, or not a rank
            pass
    return True


def watch(seconds: int) -> None:
    """Unless called again in so many seconds, print where every thread stands and end the process; 0 calls it off."""
    if seconds:
        faulthandler.dump_traceback_later(seconds, exit=True)
    else:
        faulthandler.cancel_dump_traceback_later()


def end_at_once(code: int) -> NoReturn:
    """End this process, and the processes that it started, with an exit code, and wait for nobody.

    After an error the other ranks may sit in a collective that this one never joins. An orderly end could wait for
    them, or for a thread that waits for what they would have sent; and they would wait for this process.
    """
    _kill_children()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _kill_children() -> None:
    for process in multiprocessing.active_children():
        process.kill()
