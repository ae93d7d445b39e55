"""Worker processes on this machine, in conditions that Beam is not made for."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from preprocessing.schema import ShardDirectory
from tests.conftest import ROOT
from tests.preprocessing.maker import started_by


@pytest.fixture
def command(books: Path, vocabulary_file: Path, tmp_path: Path) -> list[str]:
    options = ["--vocab", str(vocabulary_file), "--output", str(tmp_path / "out"), "--direct_num_workers=2"]
    return ["beam", "run", "preprocessing/make_shards.py", "--books", str(books / "*.txt"), *options]


def test_a_proxy_is_not_asked_for_the_way_to_this_machine(command: list[str], tmp_path: Path) -> None:
    """As clusters set it: gRPC would ask it for localhost too, and workers wait for ever."""
    environment = {**os.environ, "http_proxy": "http://127.0.0.1:1", "https_proxy": "http://127.0.0.1:1"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=300)
    assert ShardDirectory(tmp_path / "out").manifest.statistics["documents"]["in_shards"] == 12


def test_workers_that_die_before_anyone_knows_them_end_the_job(command: list[str], tmp_path: Path) -> None:
    """Beam would wait for ever for what they say."""
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    workers: list[psutil.Process] = []
    while process.poll() is None and not (workers := started_by(process.pid, "sdk_worker_main")):
        time.sleep(0.005)
    for worker in workers:
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.suspend()  # a shell, which could start the worker itself after a look at what it has started
            for one in [*worker.children(recursive=True), worker]:
                one.kill()
    _, told = process.communicate(timeout=300)
    assert process.returncode == 1
    assert told == (
        "make_shards: error: a worker process has died (Worker subprocess exited with return code -9), for lack of "
        "memory perhaps; the same command goes on with this job\n"
    )
    subprocess.run(command, cwd=ROOT, check=True, timeout=300)
    assert ShardDirectory(tmp_path / "out").manifest.statistics["documents"]["in_shards"] == 12


def test_the_job_goes_on_when_nobody_watches_any_more(command: list[str], tmp_path: Path) -> None:
    """Its terminal was closed, with what it was disowned by, and `| head` has seen enough."""
    master, terminal = os.openpty()
    reads, writes = os.pipe()
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=writes, stderr=terminal)
    for descriptor in (terminal, writes, reads):
        os.close(descriptor)
    assert b"read 0/" in os.read(master, 1000)
    os.close(master)
    assert process.wait(timeout=300) == 0
    assert ShardDirectory(tmp_path / "out").manifest.statistics["documents"]["in_shards"] == 12
