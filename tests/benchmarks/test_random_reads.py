"""Orders of reading are compared on shards of any size, from the disk and from memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.trainer.shard_factory import write_shards


@pytest.mark.slow
def test_each_order_and_the_checksums_are_measured(tmp_path: Path):
    shards = write_shards(tmp_path / "shards", sequence_lengths=(32,), train=(70, 50), pairs_per_row=5)
    command = [
        "--shards",
        shards,
        "--gigabytes",
        0.0001,
        "--samples",
        64,
        "--sequence-length",
        32,
        "--scratch",
        tmp_path,
    ]
    done = subprocess.run(
        [sys.executable, "benchmarks/random_reads.py", *map(str, command), "--scratch", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    rows = [line.split("|")[1].strip() for line in done.stdout.splitlines() if line.startswith("| ")]
    assert rows[2:] == ["file order", "shuffled, a shard at a time", "shuffled among all"]
    assert "checksums: cold " in done.stdout
