"""How far a job is, told on the terminal while it runs."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from preprocessing import files
from preprocessing.interruption import end
from preprocessing.job import Job
from preprocessing.output import FAILED
from preprocessing.terminal import tell
from preprocessing.work_files import WorkFile

LIVE_SECONDS = 1.0  # between two looks at the work folder
QUIET_SECONDS = 3.0  # the same where stderr is no terminal
LINE_SECONDS = 30.0  # between two lines where stderr is no terminal
SHARE = 0.05  # of the time that may go into looking: a list of many thousand notes takes a while


@contextmanager
def show_progress(job: Job, terminal: int) -> Iterator[None]:
    """Say on a descriptor's terminal how far the job is, from the notes in its work folder: any engine, any worker."""
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(job, terminal, done), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _watch(job: Job, terminal: int, done: threading.Event) -> None:
    begun = told = time.monotonic()
    live, progress = os.isatty(terminal), Progress(job)
    pause, took = LIVE_SECONDS if live else QUIET_SECONDS, 0.0
    while not done.wait(max(pause, took / SHARE)):
        now = time.monotonic()
        try:
            reason = job.left_error(WorkFile.STUCK_ERROR)
            line = progress.line(now - begun) if live or now - told >= LINE_SECONDS else ""
        except OSError:  # storage that fails for a moment must not end the watch
            continue
        took = time.monotonic() - now
        if reason:
            end(FAILED, f"make_shards: error: {reason}", terminal)  # a worker is dead, and not every engine notices
        if line:
            told = now
            tell(terminal, f"\r\033[K{line}" if live else f"{line}\n")
    if live:
        tell(terminal, "\r\033[K")


class Progress:
    """How far a job is, by the notes in its work folder; each of a part that is whole is read once."""

    def __init__(self, job: Job):
        self._job = job
        self._parts: set[str] = set()
        self._counts: Counter[str] = Counter()  # of whole parts
        self._reading: Counter[str] = Counter()  # of those that are being read
        with contextlib.suppress(OSError):  # storage that fails for a moment: the next look will do
            self._look()
        self._characters_before = self._total("characters")  # an earlier run's, which took none of this one's time
        self._read_after: float | None = None  # seconds, once all parts are read

    def _look(self) -> int:
        """Read the new notes of parts; returns how many shards are built."""
        notes = [name for name in files.names_below(self._job.work) if name.endswith(".json")]
        # At its very end a job removes its notes.
        for name in set(filter(WorkFile.UNIT_NOTE.fits, notes)) - self._parts:
            if note := files.read_note(files.join(self._job.work, name)):
                self._parts.add(name)
                self._counts.update(note["totals"]["counts"])
        self._reading.clear()
        for name in filter(WorkFile.READING_NOTE.fits, notes):
            if name.replace(WorkFile.READING_NOTE.beginning, WorkFile.UNIT_NOTE.beginning) not in self._parts:
                note = files.read_json(files.join(self._job.work, name))
                self._reading.update(note if isinstance(note, dict) else {})
        return sum(map(WorkFile.SHARD_NOTE.fits, notes))

    def _total(self, count: str) -> int:
        found = self._counts + self._reading
        return sum(number for name, number in found.items() if name.startswith(f"{count}/"))

    def line(self, seconds: float) -> str:
        """What there is to tell after so many seconds."""
        built, job = self._look(), self._job
        skipped = self._total("skipped")
        if len(self._parts) == job.units:
            self._read_after = self._read_after or seconds
        rate = (self._total("characters") - self._characters_before) / 1e6 / (self._read_after or seconds)
        minutes, rest = divmod(int(seconds), 60)
        shards = job.layout.train_shards + job.layout.validation_shards
        return (
            f"{minutes}:{rest:02d}  read {len(self._parts)}/{job.units} parts, "
            f"{self._total('kept') + skipped:,} documents ({skipped:,} skipped), {rate:.2f} M characters/s; "
            f"built {built}/{shards} shards"
        )
