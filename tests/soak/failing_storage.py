"""What campaigns share that have the storage below a folder fail, at one file operation after the other.

A campaign gives a command again and again. In each of its starts an operation of the C library's fails, or it and all
others for a while: as a disk or a network's storage that is away does, or a full disk. The command must end in a line
and never in a traceback, whatever failed; only what lasts may be the user's matter, exit code 2; and the same command
must then come to what the undisturbed one did.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import multiprocessing
import os
import platform
import random
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from preprocessing.storage_errors import is_passing
from tests.soak.program import run_and_report

ERRORS = (errno.EIO, errno.ESTALE, errno.ENOSPC)
LASTING = (0.0, 0.0, 0.05, 600.0)  # seconds that other operations fail as well
ENDINGS = {0: "it went on", 1: "exit code 1", 2: "exit code 2"}
_LIBRARY, _STATE = "LD_PRELOAD", "STORAGE_STATE"  # variables, by which a command's own processes find both as well
_PATIENCE = 240.0  # seconds; a hang is a failure, not a wait


class Fault(NamedTuple):
    """What is to fail: the operation of that number, others for so long after it, and how."""

    number: int
    error: int
    seconds: float


NONE = Fault(0, errno.EIO, 0.0)


class Start(NamedTuple):
    """What became of one."""

    code: int
    met: int  # operations
    failed: str  # the first one that did, and its place below the folder; empty for none
    said: str

    def __str__(self) -> str:
        return f"exit code {self.code}, {self.failed or 'nothing'} failed:\n{self.said}"


class Campaign(ABC):
    """Starts of a command whose storage fails.

    Attributes:
        cases: the situations in which it starts, by turns.
        directory: of what it needs.
        log: what the command says.
        met: what failed, and what became of the command -> how many times.
        wrong: starts that were not as they should be.
    """

    cases: Sequence[str]

    def __init__(self, directory: Path, seed: int):
        self.met: Counter[tuple[str, str]] = Counter()
        self.wrong = 0
        self.directory, self.log = directory, directory / "log"
        self._chance = random.Random(seed)
        self._library = ctypes.CDLL(os.environ[_LIBRARY])
        self._library.storage_arm.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_int, ctypes.c_double]
        self._library.storage_met.restype, self._library.storage_failed.restype = ctypes.c_long, ctypes.c_char_p

    @abstractmethod
    def begin(self, case: str) -> Path:
        """Bring about a situation; returns the folder whose storage fails in it."""

    @abstractmethod
    def command(self) -> int:
        """Give the command, whose output goes to the log; returns its exit code."""

    @abstractmethod
    def state(self) -> object:
        """What must be the same at the end, in whatever case it began and however it came there."""

    @abstractmethod
    def place_of(self, path: str, case: str) -> str:
        """What a file of the folder is of, for the table, or the folder itself, whose path is empty."""

    def ending(self, start: Start, fault: Fault, case: str) -> str:
        """See that the command ended as it should where a fault was; returns the word for that."""
        assert start.code in ENDINGS, "no exit code of ours"
        assert not start.code or "error: " in start.said, "no line says why"
        assert start.code < 2 or not is_passing(OSError(fault.error, "")), "what may pass is a verdict"
        return ENDINGS[start.code]

    def run(self, starts: int) -> None:
        """As many, whose faults are spread over all operations."""
        operations: dict[tuple[str, int], int] = {}  # that may fail
        whole: object = None
        for case, error in itertools.product(dict.fromkeys(self.cases), ERRORS):
            undisturbed = self.attempt(self.begin(case), Fault(0, error, 0.0))
            assert undisturbed.code == 0, undisturbed.said
            whole, operations[case, error] = whole or self.state(), undisturbed.met
            assert self.state() == whole, f"{case}: it comes to something else undisturbed"
        for number in range(starts):
            case = self.cases[number % len(self.cases)]
            error = self._chance.choice([error for error in ERRORS if operations[case, error]])
            of = 1 + int((number + self._chance.random()) / starts * operations[case, error])
            self._start(case, Fault(of, error, self._chance.choice(LASTING)), whole)
            print(f"\r{number + 1} starts", end="", flush=True)
        print()
        if self.wrong:
            sys.exit(f"{self.wrong} starts were not as they should be")

    def attempt(self, below: Path, fault: Fault = NONE) -> Start:
        """Give the command once."""
        self.log.unlink(missing_ok=True)
        self._library.storage_arm(str(below).encode(), *fault)
        try:
            code = self.command()
        finally:
            self._library.storage_disarm()
        said = self.log.read_text(errors="replace")
        return Start(code, self._library.storage_met(), self._library.storage_failed().decode(), said)

    def _start(self, case: str, fault: Fault, whole: object) -> None:
        below, starts = self.begin(case), list[Start]()
        try:
            starts.append(start := self.attempt(below, fault))
            assert "Traceback" not in start.said, "a traceback"
            ending = self.ending(start, fault, case)
            starts.append(again := self.attempt(below))
            assert again.code == 0, "the same command does not come to its end"
            assert self.state() == whole, "the same command comes to something else"
        except (AssertionError, ValueError) as wrong:  # the latter of our readers, where a file is damaged
            self.wrong += 1
            print(f"\n{wrong}: {fault} of {case!r}", *starts, sep="\n", flush=True)
            return
        operation, _, path = start.failed.partition(" /")
        what = f"{self.place_of(path, case)}: {operation.strip()}" if start.failed else "none: it had ended"
        self.met[what, ending] += 1


def forked(log: Path, main: Callable[..., int | None], *arguments: Any) -> int:
    """The exit code of a command's main, called in a copy of this process, which has imported what it needs."""
    process = multiprocessing.get_context("fork").Process(target=_logged, args=(log, main, *arguments))
    process.start()
    process.join(_PATIENCE)
    process.kill()  # one that hangs
    process.join()
    return process.exitcode


def _logged(log: Path, main: Callable[..., int | None], *arguments: Any) -> None:
    with log.open("ab") as sink:
        os.dup2(sink.fileno(), 1)
        os.dup2(sink.fileno(), 2)
    sys.exit(main(*arguments))


def _figures(campaign: Campaign, seconds: float) -> str:
    endings = list(dict.fromkeys([*ENDINGS.values(), *(ending for _, ending in campaign.met)]))
    endings = [ending for ending in endings if any(met == ending for _, met in campaign.met)]
    rows = [
        [name, *(str(campaign.met[name, ending] or "") for ending in endings)]
        for name in sorted({name for name, _ in campaign.met})
    ]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"""| what failed first | {" | ".join(endings)} |
| --- |{" --- |" * len(endings)}
{table}

After all {campaign.met.total()} starts the same command came to what the undisturbed one did. It took
{seconds / 60:.0f} minutes on {os.cpu_count()} cores ({platform.machine()}, Python {platform.python_version()}).
"""


def main(program: Path, doc: str, make: Callable[[Path, int], Campaign], starts: int) -> int:
    """A campaign's program; no page is written where a start was not as it should be, which is told."""
    if _STATE in os.environ:
        return run_and_report(program, doc, doc.partition(".")[0], "--starts", starts, make, _figures)
    with tempfile.TemporaryDirectory(prefix="storage-") as directory:
        # Only a process that starts loads a library first.
        library = Path(directory) / "storage.so"
        source = Path(__file__).with_suffix(".c")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", source, "-o", library, "-ldl"], check=True)
        here = {**os.environ, _LIBRARY: str(library), _STATE: str(Path(directory) / "state")}
        return subprocess.run([sys.executable, *sys.argv], env=here).returncode
