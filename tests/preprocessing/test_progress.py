from __future__ import annotations

import json
from pathlib import Path

from preprocessing.job import Job
from preprocessing.layout import Layout
from preprocessing.options import parse
from preprocessing.progress import Progress
from preprocessing.schema import Vocabulary


def write_note(job: Job, unit: int, **counts: int) -> None:
    path = Path(job.unit_note(unit))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"spans": {}, "totals": {"counts": {f"{name}/books": n for name, n in counts.items()}}}))


def test_progress_tells_what_this_run_has_read(tmp_path: Path) -> None:
    options = parse(["--books", "x", "--vocab", "v", "--output", "o"]).options
    job = Job(str(tmp_path), options, Vocabulary(1, "", True), Layout(1, 2, 1, 0.1), units=3)
    write_note(job, 0, characters=9_000_000, kept=5)
    progress = Progress(job)
    assert progress.line(10) == ("0:10  read 1/3 parts, 5 documents (0 skipped), 0.00 M characters/s; built 0/3 shards")
    write_note(job, 1, characters=40_000_000, kept=1200, skipped=34)
    Path(job.shard_note("shard-00000-of-00002.arrow")).write_text("{}")
    assert progress.line(80) == (
        "1:20  read 2/3 parts, 1,239 documents (34 skipped), 0.50 M characters/s; built 1/3 shards"
    )
