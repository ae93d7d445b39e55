"""The metrics of a run: files with a line for each step, cut back to the step that a resume goes on from."""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Iterator
from itertools import groupby, takewhile
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO

from preprocessing.status import exists
from preprocessing.terminal import counted
from trainer.files import append_lines, replacing, sync
from trainer.run_directory import RunDirectory

INTERVAL = 1.0  # seconds between two writes
STRETCH = 1 << 16  # bytes that are read at once, where a place in a file is looked for
_TOGETHER = 100  # lines that are written at once
_BUFFER = 1 << 13  # bytes of a read on the way there: more would be for nothing
_LOOKED_AT = 1 << 20  # bytes before the place where a file is cut, in which damaged lines are looked for

_log = logging.getLogger("pretrain")


class MetricsLog:
    """Writes lines of metrics, those of a second together; those that find no room wait until there is some.

    A network's disk takes milliseconds for it, in which a GPU that has done its step would have no other one.
    """

    def __init__(self) -> None:
        """Begin without lines that wait."""
        self.waiting: list[tuple[Path, dict[str, Any]]] = []
        self._next = -math.inf  # when lines are to be written, by time.monotonic
        self._is_told = False  # that they can't be

    def add(self, path: Path, line: dict[str, Any]) -> None:
        """Add a line to a file, after those that wait."""
        self.waiting.append((path, line))
        if time.monotonic() >= self._next and (problem := self.write()) and not self._is_told:
            self._is_told = True
            _log.error("%s: can't be written (%s); its lines are kept until they can", path, problem.strerror)

    def write(self) -> OSError | None:
        """Write the lines that wait; returns what went wrong."""
        self._next = time.monotonic() + INTERVAL
        try:
            while self.waiting:
                path, of_path = next(groupby(self.waiting[:_TOGETHER], key=itemgetter(0)))
                lines = [line for _, line in of_path]
                append_lines(path, *lines)
                del self.waiting[: len(lines)]
        except OSError as error:
            return error
        self._is_told = False
        return None

    def close(self) -> None:
        """Write the lines that wait for the last time."""
        if problem := self.write():
            lines = counted(len(self.waiting), "line")
            _log.error("%s of metrics could not be written and got lost (%s)", lines, problem.strerror)


def cut_metrics(run: RunDirectory, step: int) -> None:
    """Drop the lines of steps after ``step``, which are about to be trained again, and a half-written last one.

    Lines at that place that a failing disk or a power cut has damaged are dropped too, with a warning: a run of days is
    not to wait for somebody to mend them. Further from it, what lies on disk since earlier checkpoints isn't read.
    """
    for path in filter(exists, (run.metrics, run.validation_metrics)):
        with path.open("rb", buffering=_BUFFER) as file:
            end, size = end_of_step(file, step), file.seek(0, os.SEEK_END)
            is_sound = _is_sound(file, end, step)
        if not is_sound:
            _rewrite(path, step)
        elif end < size:
            os.truncate(path, end)
            sync(path)


def has_line(path: Path, step: int) -> bool:
    """Whether a file of metrics has a line of a step."""
    return any(line["step"] == step for line in lines_after(path, step - 1))


def lines_after(path: Path, step: int) -> Iterator[dict[str, Any]]:
    """The good lines of a file of metrics of steps after ``step``, up to one that has no end yet."""
    if exists(path):
        with path.open("rb", buffering=_BUFFER) as file:
            file.seek(end_of_step(file, step))
            for line in takewhile(lambda line: line.endswith(b"\n"), file):
                values = _metrics_of(line)
                if values is not None and values["step"] > step:
                    yield values


def _metrics_of(line: bytes) -> dict[str, Any] | None:
    """The object of a line of metrics, with its step; None where the line is damaged or has no end yet."""
    try:
        values: dict[str, Any] = json.loads(line) if line.endswith(b"\n") else {}
        return values if isinstance(values["step"], int) else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def end_of_step(file: BinaryIO, step: int) -> int:
    """Where the lines of a file of metrics end whose steps are at most ``step``, in bytes from its beginning.

    Steps ascend, so the place is looked for by halves: of a file of any size, little is read. What is damaged is
    passed over, and belongs to what comes behind the place where it lies there.
    """
    low, high = 0, file.seek(0, os.SEEK_END)  # such a line ends at low, or it is 0; none begins at high or behind it
    while high - low > STRETCH:
        middle = (low + high) // 2
        file.seek(middle - 1)
        begin = middle - 1 + len(file.readline())
        end, found = next(_steps_from(file, begin), (begin, step + 1))
        low, high = (end, high) if found <= step else (low, middle)
    return max((end for end, found in _steps_from(file, low, high) if found <= step), default=low)


def _is_sound(file: BinaryIO, end: int, step: int) -> bool:
    """Whether the last lines before ``end`` are good, of steps up to ``step``, and the first one behind it is good."""
    begin = file.seek(max(0, end - _LOOKED_AT))
    begin += len(file.readline()) if begin else 0
    for line in file:
        values = _metrics_of(line)
        if begin >= end:
            return values is not None or not line.endswith(b"\n")
        if values is None or values["step"] > step:
            return False
        begin += len(line)
    return True


def _rewrite(path: Path, step: int) -> None:
    """Leave the good lines of steps up to ``step``."""
    with path.open("rb") as old, replacing(path) as new:
        for number, line in enumerate(old, start=1):
            values = _metrics_of(line)
            if values is not None and values["step"] <= step:
                new.write(line)
            elif values is None and line.endswith(b"\n"):
                _log.warning("%s: line %d is damaged and left out", path, number)


def _steps_from(file: BinaryIO, begin: int, before: int | None = None) -> Iterator[tuple[int, int]]:
    """End and step of the good lines that begin at ``begin``, where a line begins, and thereafter."""
    file.seek(begin)
    for line in file:
        if before is not None and begin >= before:
            return
        begin += len(line)
        values = _metrics_of(line)
        if values is not None:
            yield begin, values["step"]
