"""A second process that ends this one when a document takes for ever.

Limits of size, depth and number bound the work on any document, the same on every machine, and the clock decides
nothing about the shards' contents. What these limits have missed is a bug: a job that hangs over it is ended, and the
document named. A thread could not do this, as code that hangs may well hold Python's lock.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from preprocessing.terminal import in_line, tell
from preprocessing.work_files import WorkFile

_STATE = struct.Struct("<QH500s")  # how many times there was something to watch, and the name of the latest
_LOOK_SECONDS = 0.5


class Watchdog:
    """Where it is noted what a thread works on; cheap enough to do so for every document."""

    terminal: ClassVar[int | None] = None  # a descriptor to tell the user on, where this process has one

    def __init__(self, folder: str, patience: float):
        """Start the second process; it ends when this object or this process does.

        Args:
            folder: of intermediate files, where the document is named if need be.
            patience: seconds for one document, 0 for any time.
        """
        self._count = 0
        with tempfile.TemporaryFile() as file:
            file.truncate(_STATE.size)
            self._state = mmap.mmap(file.fileno(), _STATE.size)
            if patience:
                terminal = Watchdog.terminal
                process = subprocess.Popen(  # noqa: S603 - this module
                    [sys.executable, "-m", __name__, *map(str, (file.fileno(), patience, folder, terminal or -1))],
                    stdin=subprocess.PIPE,
                    pass_fds=[file.fileno(), *([] if terminal is None else [terminal])],
                )
                weakref.finalize(self, _dismiss, process)

    def watch(self, what: str) -> bool:
        """Work on something begins; always true, so that it can be asked for documents that are wanted."""
        self._count += 1
        name = what.encode(errors="replace")[:500]
        _STATE.pack_into(self._state, 0, self._count, len(name), name)
        return True

    def rest(self) -> None:
        """That work is done; what follows may take its time."""
        self.watch("")


class _Own(threading.local):
    """A thread's watchdog, kept from one unit of work to the next, and what it was started for."""

    asked: tuple[str, float, int | None] | None = None
    dog: Watchdog


_own = _Own()


@contextmanager
def watching(folder: str, patience: float) -> Iterator[Watchdog]:
    """Watch this thread while it works on one document after the other; see Watchdog."""
    asked = (folder, patience, Watchdog.terminal)
    if _own.asked != asked:
        _own.dog, _own.asked = Watchdog(folder, patience), asked
    try:
        yield _own.dog
    finally:
        _own.dog.rest()


def _dismiss(process: subprocess.Popen[bytes]) -> None:
    """End the second process. That its standard input closes would not do: a process forked meanwhile holds it too."""
    process.kill()
    process.communicate()


def _stuck(state: mmap.mmap, patience: float) -> str | None:
    """Wait until the watched process ends, None, or until it has been at one thing for too long: what that is.

    A long time between two looks is one in which both processes were stopped, by Ctrl-Z or a scheduler: it counts for
    no more than a short one.
    """
    pause = min(_LOOK_SECONDS, patience / 4)
    seen, waited, looked = -1, 0.0, time.monotonic()
    while not select.select([sys.stdin], [], [], pause)[0]:
        before, looked = looked, time.monotonic()
        count, length, name = _STATE.unpack_from(state)
        if count != seen or not length:
            seen, waited = count, 0.0
        elif (waited := waited + min(looked - before, 2 * pause)) > patience:
            return str(name[:length], errors="replace")
    return None


def main() -> None:
    """The second process; its standard input closes when the watched one is dead; _dismiss ends it before."""
    descriptor, patience, folder, terminal = sys.argv[1:]
    watched = os.getppid()
    with mmap.mmap(int(descriptor), _STATE.size, access=mmap.ACCESS_READ) as state:
        stuck = _stuck(state, float(patience))
    if stuck is None:
        return
    message = (
        f"{stuck}: still not done after {float(patience):g} s; leave it out of the inputs, "
        "and report it as a bug with the document"
    )
    try:
        if int(terminal) >= 0:
            tell(int(terminal), f"make_shards: error: {in_line(message)}\n")
        else:
            from preprocessing import files  # takes a second, for Beam's file systems

            files.write_text(files.join(folder, WorkFile.STUCK_ERROR.format(place=watched)), message, folder)
    finally:
        os.kill(watched, signal.SIGKILL)


if __name__ == "__main__":
    main()
