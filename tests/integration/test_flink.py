"""The preprocessing job on a real Flink cluster: faults in mid-job, and the bytes of the embedded runner. And on Prism.

Needs the laboratory beside the repository (../shared/beam: a script that starts a JobManager, TaskManagers and Beam's
job server), with java, mvn and go. The workers have Beam and the libraries but not this project: it travels as a wheel.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from preprocessing.schema import ShardDirectory
from tests.conftest import ROOT
from tests.labs import to_itself

SHARED = ROOT.parent / "shared"
LAB = Path(os.environ.get("FLINK_LAB_DIR", "/tmp/flink-lab"))
BEAM = Path(sys.executable).with_name("beam")
BOOKS = SHARED / "data" / "books"
SOME = "pg1*.txt"  # of these, for jobs that last long enough to be disturbed
PACKAGES = ("preprocessing", "trainer", "eval", "cluster")

pytestmark = [
    pytest.mark.flink,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not (SHARED / "beam" / "flink-up").exists(), reason="no Flink laboratory at ../shared/beam"),
    pytest.mark.skipif(not BOOKS.exists(), reason="no books at ../shared/data"),
    pytest.mark.skipif(
        not all(map(shutil.which, ("java", "mvn", "go"))), reason="the Flink laboratory needs java, mvn and go"
    ),
]


def lab(command: str) -> None:
    """Run flink-up or flink-down; in a session of its own, since what it starts lives on."""
    environment = {**os.environ, "FLINK_LAB_DIR": str(LAB), "FLINK_LAB_PYTHON": sys.executable}
    done = subprocess.run([SHARED / "beam" / command], env=environment, stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, timeout=900, text=True, start_new_session=True)  # fmt: skip
    if done.returncode == 2:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def flink() -> Iterator[list[str]]:
    """The pipeline options of a running cluster."""
    with to_itself("flink"):
        lab("flink-up")
        words = shlex.split((LAB / "env").read_text())
        options = next(word for word in words if word.startswith("BEAM_FLINK_OPTIONS="))
        yield shlex.split(options.partition("=")[2])
        lab("flink-down")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project as a wheel, built from a copy: a build leaves folders behind."""
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", built, source]
    subprocess.run(command, check=True, capture_output=True)
    (path,) = built.glob("*.whl")
    return path


def start(output: Path, *options: object) -> subprocess.Popen[bytes]:
    """The command on some books."""
    command = [
        BEAM, "run", "preprocessing/make_shards.py", "--books", BOOKS / SOME,
        "--vocab", SHARED / "data" / "vocab" / "bert-base-uncased-vocab.txt", "--output", output,
        "--sequence-lengths", "128", "--duplicates", "2", "--num-shards", "2", *options,
    ]  # fmt: skip
    log = output.with_suffix(".log").open("wb")
    return subprocess.Popen(list(map(str, command)), cwd=ROOT, stdout=log, stderr=log)


def contents(output: Path) -> dict[str, str]:
    """The checksums of finished shards; documents in are documents out, and nothing else is left."""
    assert not (output / ".work").exists()
    directory = ShardDirectory(output)
    directory.verify()
    documents = directory.manifest.statistics["documents"]
    rows = sum(entry.rows for entry in directory.manifest.shards)
    assert documents["read"] == 20
    assert rows == documents["in_shards"] == documents["read"] - documents["collisions"] - documents["skipped"]
    return {entry.file: entry.blake2b for entry in directory.manifest.shards}


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the embedded runner makes."""
    output = tmp_path_factory.mktemp("right") / "out"
    assert start(output).wait(900) == 0, told(output)
    return contents(output)


def wait_for(what: Callable[[], object], job: subprocess.Popen[bytes], seconds: float = 600) -> None:
    """Wait until something is so while a job runs."""
    deadline = time.monotonic() + seconds
    while not what():
        assert job.poll() is None, "the job was over before it could be disturbed"
        assert time.monotonic() < deadline, "the job did not get so far"
        time.sleep(0.02)


def running_jobs() -> list[str]:
    """The cluster's jobs that are not over, by its REST interface."""
    words = shlex.split((LAB / "env").read_text())
    address = next(word for word in words if word.startswith("FLINK_REST=")).partition("=")[2]
    with urllib.request.urlopen(f"{address if '://' in address else f'http://{address}'}/jobs", timeout=30) as answer:
        jobs = json.load(answer)["jobs"]
    return [job["id"] for job in jobs if job["status"] not in ("FINISHED", "CANCELED", "FAILED")]


def tokenizing(output: Path) -> Callable[[], bool]:
    """Whether the first pass has begun to write.

    The command writes there too, before a worker has begun; and workers of the job before may still be on their way.
    """
    return lambda: bool(python_workers()) and any((output / ".work").glob("tmp-*")) and bool(running_jobs())


def task_manager(number: int) -> psutil.Process:
    return psutil.Process(int((LAB / "run" / f"tm{number}.pid").read_text()))


def python_workers() -> list[psutil.Process]:
    """The processes that run our code for the TaskManagers."""
    below = [child for number in (1, 2) for child in task_manager(number).children(recursive=True)]
    return [process for process in below if is_python_worker(process)]


def is_python_worker(process: psutil.Process) -> bool:
    try:
        return "sdk_worker_main" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # it has ended meanwhile
        return False


def told(output: Path) -> str:
    """The end of what a job said, for a failing test."""
    return output.with_suffix(".log").read_text(errors="replace")[-2000:]


@pytest.mark.long
def test_the_bytes_of_the_embedded_runner(flink: list[str], wheel: Path, right: dict[str, str], tmp_path: Path) -> None:
    """Whether it has one process or several. With other command lines: tests/cluster/test_flink_sidecar.py."""
    two = ("--direct_running_mode=multi_processing", "--direct_num_workers=2")
    for name, options in (("workers", two), ("flink", (*flink, f"--extra_package={wheel}"))):
        output = tmp_path / name
        assert start(output, *options).wait(900) == 0, told(output)
        assert contents(output) == right


def test_a_python_worker_killed_and_then_a_task_manager_lost_and_replaced(
    flink: list[str], wheel: Path, right: dict[str, str], tmp_path: Path
) -> None:
    output = tmp_path / "out"
    job = start(output, *flink, f"--extra_package={wheel}")
    wait_for(tokenizing(output), job)
    known = set(python_workers())
    next(iter(known)).kill()
    wait_for(lambda: set(python_workers()) - known, job)  # the job is at work again
    lost = task_manager(1)
    lost.send_signal(signal.SIGKILL)
    lost.wait(120)
    lab("flink-up")
    assert job.wait(900) == 0, told(output)
    assert contents(output) == right


def test_a_command_that_is_ended_ends_the_job_and_the_same_command_goes_on(
    flink: list[str], wheel: Path, right: dict[str, str], tmp_path: Path
) -> None:
    """Else its workers would go on writing among the files of whoever comes next."""
    output = tmp_path / "out"
    job = start(output, *flink, f"--extra_package={wheel}")
    wait_for(tokenizing(output), job)
    assert running_jobs()
    job.send_signal(signal.SIGTERM)
    assert job.wait(120) == 143, told(output)
    deadline = time.monotonic() + 120
    while running_jobs():
        assert time.monotonic() < deadline, "the job is still at work"
        time.sleep(0.2)
    again = start(output, *flink, f"--extra_package={wheel}")
    assert again.wait(900) == 0, told(output)
    assert contents(output) == right


def test_a_corpus_larger_than_a_task_managers_heap(flink: list[str], wheel: Path, tmp_path: Path) -> None:
    """Tokens lie in files and never travel through the engine: 600 MB of text pass through heaps of 512 MB."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    books = [path.read_text(encoding="utf-8", errors="replace") for path in sorted(BOOKS.iterdir())]
    for copy in range(24):
        with (corpus / f"{copy:02d}.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(json.dumps({"text": text}) + "\n" for text in books)
    assert sum(path.stat().st_size for path in corpus.iterdir()) > 600e6
    output = tmp_path / "out"
    command = [
        BEAM, "run", "preprocessing/make_shards.py", "--jsonl", corpus / "*.jsonl", "--deduplicate", "none",
        "--vocab", SHARED / "data" / "vocab" / "bert-base-uncased-vocab.txt", "--output", output,
        "--sequence-lengths", "128", "--duplicates", "1", *flink, f"--extra_package={wheel}",
    ]  # fmt: skip
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr[-2000:]
    directory = ShardDirectory(output)
    directory.verify()
    documents = directory.manifest.statistics["documents"]
    assert documents["read"] == 24 * 56 == sum(entry.rows for entry in directory.manifest.shards)


def test_prism_makes_the_same_bytes(right: dict[str, str], tmp_path: Path) -> None:
    built = subprocess.run(
        [SHARED / "beam" / "prism-build"], check=True, stdout=subprocess.PIPE, text=True, timeout=900
    )
    output = tmp_path / "out"
    prism = ["--runner=PrismRunner", f"--prism_location={built.stdout.strip()}", "--environment_type=LOOPBACK"]
    assert start(output, *prism).wait(900) == 0, told(output)
    assert contents(output) == right
