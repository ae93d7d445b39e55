"""Worker processes on this machine, in conditions that Beam is not made for."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import apache_beam as beam
import psutil
import pytest

from preprocessing import files, interruption, runner
from preprocessing.job import Job, describe
from preprocessing.output import DISK_FULL, JobError, JobFailedError
from preprocessing.schema import ShardDirectory
from preprocessing.sources import SourceError
from preprocessing.work_files import WorkFile
from tests.conftest import ROOT
from tests.failing import fail_on
from tests.preprocessing.maker import job_at, started_by


@pytest.fixture
def command(books: Path, vocabulary_file: Path, tmp_path: Path) -> list[str]:
    options = ["--vocab", str(vocabulary_file), "--output", str(tmp_path / "out"), "--direct_num_workers=2"]
    return ["beam", "run", "preprocessing/make_shards.py", "--books", str(books / "*.txt"), *options]


@pytest.mark.slow
def test_a_proxy_is_not_asked_for_the_way_to_this_machine(command: list[str], tmp_path: Path) -> None:
    """As clusters set it: gRPC would ask it for localhost too, and workers wait for ever."""
    environment = {**os.environ, "http_proxy": "http://127.0.0.1:1", "https_proxy": "http://127.0.0.1:1"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=300)
    assert ShardDirectory(tmp_path / "out").manifest.statistics["documents"]["in_shards"] == 12


@pytest.mark.slow
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
    assert b" parts, " in os.read(master, 1000)  # how many of them, a fast machine decides
    os.close(master)
    assert process.wait(timeout=300) == 0
    assert ShardDirectory(tmp_path / "out").manifest.statistics["documents"]["in_shards"] == 12


@pytest.mark.parametrize(
    ("known", "then"),
    [
        ({}, "localhost,127.0.0.1"),
        ({"no_proxy": "a.org,localhost"}, "a.org,localhost,127.0.0.1"),
        ({"no_proxy": "a.org", "no_grpc_proxy": "b.org"}, "b.org,localhost,127.0.0.1"),
    ],
)
def test_what_else_is_reached_without_a_proxy_stays_so(
    monkeypatch: pytest.MonkeyPatch, known: dict[str, str], then: str
) -> None:
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name, value in known.items():
        monkeypatch.setenv(name, value)
    runner._reach_by_no_proxy()
    assert dict(os.environ)["no_grpc_proxy"] == then


def test_noise_is_shown_where_an_error_is_not_explained_and_everything_is_as_it_was(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def noisy(error: Exception, noise: bytes) -> NoReturn:
        os.write(2, noise)
        raise error

    def fail(error: Exception, noise: bytes) -> str:
        with pytest.raises(type(error)), runner._quiet(embedded=True):
            noisy(error, noise)
        return capfd.readouterr().err

    def level() -> int:
        return logging.getLogger("apache_beam").level

    before = psutil.Process().num_fds(), level()
    with runner._quiet(embedded=True) as terminal:
        assert (runner.Watchdog.terminal, level()) == (terminal, logging.ERROR)
    for error in (JobError, JobFailedError, SourceError):
        assert fail(error("told by the command"), b"noise") == ""
    assert fail(ValueError("unexpected"), b"noise") == "noise"
    assert fail(ValueError("unexpected"), b"x" * 5000 + b"the end") == "x" * 3993 + "the end"
    assert fail(ValueError("unexpected"), "ü".encode() * 2000 + b"!") == "\ufffd" + "ü" * 1999 + "!"
    os.write(2, b"told")
    assert capfd.readouterr().err == "told"
    assert (psutil.Process().num_fds(), level()) == before
    assert runner.Watchdog.terminal is None


def test_what_another_machines_engine_says_is_shown_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    with runner._quiet(embedded=False) as terminal:
        os.write(2, b"noise")
        assert terminal == 2
        assert capfd.readouterr().err == "noise"


def test_without_room_for_a_temporary_file_the_user_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_on(monkeypatch, tempfile, "TemporaryFile", number=errno.ENOSPC)
    with pytest.raises(JobError, match=r"no temporary file .*No space left on device.; .*TMPDIR"), runner._quiet(True):
        pass


@pytest.fixture
def job(tmp_path: Path) -> Job:
    (tmp_path / "out" / ".work").mkdir(parents=True)
    return job_at(tmp_path / "out")


def run_and_fail(job: Job, error: Exception, dead_worker: bool = False) -> None:
    """Run a pipeline whose engine ends with an error, and perhaps has a worker that died."""

    def build(_pipeline: beam.Pipeline) -> NoReturn:
        if dead_worker:
            run_thread("run_worker")
        raise error

    runner.run_pipeline(job, ["--runner=FnApiRunner"], build)


def test_of_several_reasons_the_one_that_tells_most_is_told(job: Job) -> None:
    kinds = (WorkFile.STUCK_ERROR, WorkFile.STORAGE_ERROR, WorkFile.PASSING_ERROR, WorkFile.ERROR)
    left = {kind: Path(job.path(kind, place="a")) for kind in kinds}
    for path in left.values():
        path.write_text(f"what is in {path.name}")
    for kind, told in [
        (WorkFile.STUCK_ERROR, JobFailedError("what is in error-stuck-a")),
        (WorkFile.STORAGE_ERROR, JobError("what is in error-storage-a")),
        (None, JobError(DISK_FULL.format(job.output))),
    ]:
        with pytest.raises(type(told), match=f"^{re.escape(str(told))}$"):
            run_and_fail(job, OSError(errno.ENOSPC, "what Beam says of it"), dead_worker=True)
        if kind:
            left[kind].unlink()
    assert left[WorkFile.ERROR].exists(), "for nothing was wrong with the inputs"


def test_storage_that_fails_for_a_worker_is_told_before_a_mistake_and_what_was_done_stays(job: Job) -> None:
    for kind in (WorkFile.PASSING_ERROR, WorkFile.ERROR):
        Path(job.path(kind, place="a")).write_text(f"what is in {kind.beginning}a")
    with pytest.raises(JobFailedError, match=r"^what is in error-passing-a$"):
        run_and_fail(job, RuntimeError("what Beam says of it"))
    assert Path(job.path(WorkFile.ERROR, place="a")).exists()


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EROFS, errno.ENODEV, errno.ENXIO])
@pytest.mark.parametrize(
    "told_of",
    [
        lambda number: OSError(number, os.strerror(number), "/out/.work/tmp-12"),
        lambda number: RuntimeError(f"OSError: [Errno {number}] {os.strerror(number)} [while running 'Build']"),
    ],
    ids=["by the system", "in Beam's words"],
)
def test_storage_where_nothing_can_be_written_any_more_is_told(
    job: Job, number: int, told_of: Callable[[int], Exception]
) -> None:
    """A worker can't leave a word there: of what it could not write, its error tells."""
    said = f"{job.output}: can't be written or read ({os.strerror(number)}); once it can, the same command goes on"
    with pytest.raises(JobFailedError, match=f"^{re.escape(said)}$"):
        run_and_fail(job, told_of(number))


@pytest.mark.parametrize("below", ["", "/.work/tmp-12"])
def test_a_network_that_fails_is_of_storage_where_a_file_of_the_output_is_told_with_it(job: Job, below: str) -> None:
    """Else it may be that of an engine."""
    reason = os.strerror(errno.ETIMEDOUT)

    def fail_with(told: str) -> None:
        run_and_fail(job, RuntimeError(f"OSError: {told} [while running 'Build']"))

    error = OSError(errno.ETIMEDOUT, reason, f"{job.output}{below}")
    with pytest.raises(JobFailedError, match=rf"^{job.output}: can't be written or read \({reason}\); once it can"):
        fail_with(str(error))
    missing = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"{job.output}{below}")
    for other in (f"[Errno {errno.ETIMEDOUT}] {reason}", str(error).replace(job.output, f"{job.output}2"), missing):
        with pytest.raises(RuntimeError, match="while running 'Build'"):
            fail_with(str(other))


def test_storage_where_nothing_can_be_read_any_more_is_told(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_on(monkeypatch, files, "names_below", number=errno.ESTALE)
    with pytest.raises(JobFailedError, match=r"out: can't be written or read \(Stale file handle\); once it can"):
        run_and_fail(job, RuntimeError("what Beam says of it"))


def test_a_mistake_of_the_users_is_told_though_what_was_made_can_not_be_removed(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out" / "job.json").write_text(json.dumps(describe(job, [])))
    Path(job.path(WorkFile.ERROR, place="a")).write_text("a.txt: damaged")
    fail_on(monkeypatch, files, "_remove")
    with pytest.raises(SourceError, match=r"^a\.txt: damaged$"):
        run_and_fail(job, RuntimeError("what Beam says of it"))


def test_a_mistake_of_the_users_leaves_nothing_and_a_dead_worker_what_was_done(job: Job, tmp_path: Path) -> None:
    (tmp_path / "out" / "job.json").write_text(json.dumps(describe(job, [])))
    made = Path(job.unit_files(0).tokens)
    made.write_text("of an hour")
    with pytest.raises(JobFailedError, match=r"^a worker process has died \(exited with return code -9\)"):
        run_and_fail(job, RuntimeError("what Beam says of it"), dead_worker=True)
    assert made.exists()
    Path(job.path(WorkFile.ERROR, place="a")).write_text("a.txt: damaged")
    with pytest.raises(SourceError, match=r"^a\.txt: damaged$"):
        run_and_fail(job, RuntimeError("what Beam says of it"), dead_worker=True)
    assert not made.exists()


def test_a_limit_of_threads_is_named_whoever_meets_it(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker, or this process, which has some threads for each of them."""
    Ends(monkeypatch)
    with pytest.raises(JobFailedError, match=r"^no thread can be started, for lack of threads \(ulimit -u, .* pids, "):
        run_and_fail(job, RuntimeError("can't start new thread"))
    with runner._deaths_noticed(2) as why:
        run_thread("run_worker", "Worker subprocess exited with return code 134")
        assert "return code 134), for lack of memory or threads (ulimit -u, " in (why() or "")


def test_what_nothing_explains_is_left_to_its_traceback(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    def build(_pipeline: beam.Pipeline) -> NoReturn:
        os.write(2, b"noise")
        raise RuntimeError("what Beam says of it")

    with pytest.raises(RuntimeError, match=r"^what Beam says of it$"):
        runner.run_pipeline(job, ["--runner=FnApiRunner"], build)
    assert capfd.readouterr().err == "noise"


@pytest.mark.parametrize(("name", "cancelled"), [("FnApiRunner", False), ("FlinkRunner", True)])
def test_an_end_cancels_what_runs_on_other_machines(
    job: Job, monkeypatch: pytest.MonkeyPatch, name: str, cancelled: bool
) -> None:
    class Running:
        def cancel(self) -> None:
            raise AssertionError("nothing has ended")

        def wait_until_finish(self) -> None:
            waited.append([action.__name__ for action in interruption._before_end])

    waited: list[list[str]] = []
    monkeypatch.setattr(beam.Pipeline, "run", lambda _pipeline: Running())
    runner.run_pipeline(job, [f"--runner={name}"], lambda _pipeline: None)
    assert waited == [["acquire", *(["cancel"] if cancelled else [])]]  # the first: no more workers are started here


class Ends:
    """What would have ended the process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.told: list[tuple[int, str]] = []
        self.happened = threading.Event()
        monkeypatch.setattr(runner, "end", self)

    def __call__(self, code: int, message: str, _terminal: int) -> None:
        self.told.append((code, message))
        self.happened.set()


def run_thread(name: str, told: str = "exited with return code -9") -> None:
    def fail() -> None:
        raise RuntimeError(told)

    thread = threading.Thread(target=fail, name=name)
    thread.start()
    thread.join()


def test_of_workers_that_die_the_first_one_ends_a_job_that_does_not_end_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends = Ends(monkeypatch)
    monkeypatch.setattr(runner, "SECONDS", 0.01)
    with runner._deaths_noticed(2) as why:
        assert why() is None
        run_thread("run_worker")
        run_thread("run_worker")
        assert ends.happened.wait(30)
        threading.Event().wait(0.1)  # a second one would end it too
        assert "a worker process has died (exited with return code -9)" in (why() or "")
    assert ends.told == [(1, f"make_shards: error: {why()}")]


def test_a_job_that_ends_by_itself_is_not_ended_once_more_and_other_threads_fail_as_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends, failed = Ends(monkeypatch), []
    monkeypatch.setattr(threading, "excepthook", lambda told: failed.append(told.thread.name))
    monkeypatch.setattr(runner, "SECONDS", 0.2)
    with runner._deaths_noticed(2) as why:
        run_thread("another")
        assert why() is None
        run_thread("run_worker")
    run_thread("run_worker")
    assert not ends.happened.wait(0.5)
    assert failed == ["another", "run_worker"]
