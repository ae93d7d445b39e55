from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path

import pytest

from preprocessing import files, progress
from preprocessing.job import Job
from preprocessing.layout import Layout
from preprocessing.options import parse
from preprocessing.progress import Progress, show_progress
from preprocessing.schema import Vocabulary
from preprocessing.watchdog import STUCK


def write_note(job: Job, unit: int, **counts: int) -> None:
    path = Path(job.unit_note(unit))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"spans": {}, "totals": {"counts": {f"{name}/books": n for name, n in counts.items()}}}))


def job_at(folder: Path) -> Job:
    options = parse(["--books", "x", "--vocab", "v", "--output", "o"]).options
    return Job(str(folder), options, Vocabulary(1, "", True), Layout(1, 2, 1, 0.1), units=3)


def test_progress_tells_what_this_run_has_read(tmp_path: Path) -> None:
    job = job_at(tmp_path)
    write_note(job, 0, characters=9_000_000, kept=5)
    progress = Progress(job)
    assert progress.line(10) == ("0:10  read 1/3 parts, 5 documents (0 skipped), 0.00 M characters/s; built 0/3 shards")
    write_note(job, 1, characters=40_000_000, kept=1200, skipped=34)
    Path(job.shard_note("shard-00000-of-00002.arrow")).write_text("{}")
    assert progress.line(80) == (
        "1:20  read 2/3 parts, 1,239 documents (34 skipped), 0.50 M characters/s; built 1/3 shards"
    )


def test_storage_that_fails_for_a_moment_does_not_end_the_look_for_stuck_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, ended, looks = job_at(tmp_path), threading.Event(), []
    Path(job.error_file("unit-00000", STUCK)).parent.mkdir()
    Path(job.error_file("unit-00000", STUCK)).write_text("a document takes for ever")
    names_below = files.names_below

    def stale(folder: str) -> dict[str, int]:
        looks.append(folder)
        if len(looks) in (2, 3):  # the first is of the beginning
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), folder)
        return names_below(folder)

    monkeypatch.setattr(files, "names_below", stale)
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.01)
    monkeypatch.setattr(progress, "end", lambda _code, _why, _terminal: ended.set())
    with (tmp_path / "told").open("w") as told, show_progress(job, told.fileno()):
        assert ended.wait(30)
    assert len(looks) > 3
