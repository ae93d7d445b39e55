from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path

import pytest

from preprocessing import files, progress
from preprocessing.job import Job
from preprocessing.progress import Progress, show_progress
from preprocessing.terminal import tell
from preprocessing.work_files import WorkFile
from tests.preprocessing.maker import job_at


def write_note(job: Job, unit: int, **counts: int) -> None:
    noted = {"spans": {}, "totals": {"counts": {f"{name}/books": n for name, n in counts.items()}}}
    files.write_note(job.path(WorkFile.UNIT_NOTE, unit=unit), noted, job.work)


def test_progress_tells_what_this_run_has_read(tmp_path: Path) -> None:
    job = job_at(tmp_path)
    write_note(job, 0, characters=9_000_000, kept=5)
    progress = Progress(job)
    assert progress.line(10) == ("0:10  read 1/3 parts, 5 documents (0 skipped), 0.00 M characters/s; built 0/3 shards")
    write_note(job, 1, characters=40_000_000, kept=1200, skipped=34)
    Path(job.path(WorkFile.SHARD_NOTE, shard="shard-00000-of-00002.arrow")).write_text("{}")
    assert progress.line(80) == (
        "1:20  read 2/3 parts, 1,239 documents (34 skipped), 0.50 M characters/s; built 1/3 shards"
    )


def test_the_rate_is_that_of_reading(tmp_path: Path) -> None:
    """It does not fall while shards are built."""
    job = job_at(tmp_path)
    progress = Progress(job)
    for unit in range(3):
        write_note(job, unit, characters=40_000_000)
    assert "6.00 M characters/s; built 0/3" in progress.line(20)
    Path(job.path(WorkFile.SHARD_NOTE, shard="shard-00000-of-00002.arrow")).write_text("{}")
    assert "6.00 M characters/s; built 1/3" in progress.line(60)


def test_each_note_is_read_once_and_no_file_of_tokens_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are large, and there may be many thousand."""
    job, read, read_json = job_at(tmp_path), [], files.read_json
    monkeypatch.setattr(files, "read_json", lambda path: (read.append(path), read_json(path))[1])
    write_note(job, 0, kept=5)
    Path(job.unit_files(0).tokens).write_text("{}")
    progress = Progress(job)
    write_note(job, 1, kept=5)
    for _ in range(3):
        assert "read 2/3 parts, 10 documents" in progress.line(1)
    assert read == [job.path(WorkFile.UNIT_NOTE, unit=0), job.path(WorkFile.UNIT_NOTE, unit=1)]


def test_what_a_large_part_has_read_so_far_is_told(tmp_path: Path) -> None:
    """Once, when the part is whole; and again of what an earlier run has left, when its part is read once more."""
    job = job_at(tmp_path)
    write_note(job, 0, characters=1_000_000, kept=5)
    progress = Progress(job)
    reading = Path(job.path(WorkFile.READING_NOTE, unit=1))
    for characters in (20_000_000, 40_000_000):
        reading.write_text(json.dumps({"characters/books": characters, "kept/books": 100, "skipped/books/empty": 7}))
        rate = f"{characters / 1e6 / 10:.2f}"
        assert progress.line(10).endswith(
            f"read 1/3 parts, 112 documents (7 skipped), {rate} M characters/s; built 0/3 shards"
        )
    for damaged in ('{"characters/books": 5', "7", '["characters/books"]'):
        reading.write_text(damaged)
        assert "read 1/3 parts, 5 documents (0 skipped)" in progress.line(10)
    Path(job.path(WorkFile.UNIT_NOTE, unit=1)).write_text("7")
    assert "read 1/3 parts, 5 documents (0 skipped)" in progress.line(10)
    write_note(job, 1, characters=50_000_000, kept=120)
    assert "read 2/3 parts, 125 documents (0 skipped), 5.00 M" in progress.line(10)


def test_a_note_that_is_removed_before_it_is_read_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its very end a job removes its notes."""
    job, names_below = job_at(tmp_path), files.names_below
    write_note(job, 0, kept=5)
    monkeypatch.setattr(files, "names_below", lambda folder: names_below(folder) | {"tokens-00001.json": 10})
    assert "read 1/3 parts, 5 documents" in Progress(job).line(1)


def test_a_terminal_shows_one_line_that_is_wiped_out_before_anything_else_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = threading.Event()

    def slow(terminal: int, text: str) -> None:
        shown.set()
        threading.Event().wait(0.1)
        tell(terminal, text)

    monkeypatch.setattr(progress, "LIVE_SECONDS", 0.01)
    monkeypatch.setattr(progress, "tell", slow)
    master, terminal = os.openpty()
    with show_progress(job_at(tmp_path), terminal):
        assert shown.wait(30)
    os.write(terminal, b"and the result")
    said = ""
    while not said.endswith("and the result"):
        said += os.read(master, 10_000).decode()
    assert said.startswith("\r\033[K0:00  read 0/3 parts")
    assert said.endswith("\r\033[Kand the result")
    assert "\n" not in said


class Clock:
    """Time that passes while a watch waits, and while it looks; it may wait so many times."""

    def __init__(self, waits: int):
        self.now, self.waits, self._most = 100.0, [], waits

    def monotonic(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        self.waits.append(seconds)
        return len(self.waits) > self._most


@pytest.mark.parametrize(
    ("seconds_a_look", "waits", "told"),
    [(0.0, [3.0] * 31, ["0:30", "1:00", "1:30"]), (1.0, [3.0, 20.0, 20.0, 20.0, 20.0], ["0:45", "1:27"])],
)
def test_a_log_gets_a_line_now_and_then_and_looking_takes_a_small_share_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds_a_look: float, waits: list[float], told: list[str]
) -> None:
    clock = Clock(len(waits))

    def look(_job: Job, _kind: str) -> None:
        clock.now += seconds_a_look

    monkeypatch.setattr(progress, "time", clock)
    monkeypatch.setattr(Job, "left_error", look)
    with (tmp_path / "log").open("w") as log:
        progress._watch(job_at(tmp_path), log.fileno(), clock)
    assert clock.waits[:-1] == waits
    lines = (tmp_path / "log").read_text().splitlines()
    assert [line.split()[0] for line in lines] == told
    assert all(
        line.endswith("read 0/3 parts, 0 documents (0 skipped), 0.00 M characters/s; built 0/3 shards")
        for line in lines
    )


def test_storage_that_fails_for_a_moment_does_not_end_the_look_for_stuck_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, ended, ends, looks = job_at(tmp_path), threading.Event(), [], []
    Path(job.path(WorkFile.STUCK_ERROR, place="unit-00000")).parent.mkdir()
    Path(job.path(WorkFile.STUCK_ERROR, place="unit-00000")).write_text("a document takes for ever")
    names_below = files.names_below

    def stale(folder: str) -> dict[str, int]:
        looks.append(folder)
        if len(looks) < 4:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), folder)
        return names_below(folder)

    monkeypatch.setattr(files, "names_below", stale)
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.01)
    monkeypatch.setattr(progress, "end", lambda code, why, _terminal: (ends.append((code, why)), ended.set()))
    with (tmp_path / "told").open("w") as told, show_progress(job, told.fileno()):
        assert ended.wait(30)
    assert len(looks) > 3
    assert ends[0] == (1, "make_shards: error: a document takes for ever")
