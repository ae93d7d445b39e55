from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import itertools
import multiprocessing
import os
import re
import socket
import threading
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

import pytest

from preprocessing import job_lock, locks
from preprocessing.job_lock import alone
from preprocessing.locks import try_lock, wait_and_lock
from preprocessing.output import JobFailedError
from preprocessing.schema import ShardDirectory
from tests.failing import fail_on
from tests.preprocessing.maker import Maker


def test_a_second_job_waits_for_the_first_one_and_is_refused(
    make: Maker, books: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With other options and --overwrite too: each would take the other's files for its own."""
    monkeypatch.setattr(job_lock, "PATIENCE", 0.7)
    output = tmp_path / "out"
    notes: list[str] = []
    with alone(str(output), notes.append):
        for more in ((), ("--overwrite", "--seed", 2)):
            with pytest.raises(SystemExit) as caught:
                make(output, "--books", books / "*.txt", *more)
            assert caught.value.code == 1
            said = f"{output}: another job is at work there, process {os.getpid()} on {socket.gethostname()}"
            assert capsys.readouterr().err == (
                f"make_shards: {said}; waiting up to 1 s for it to end\n"
                f"make_shards: error: {said}; end that job, or choose another --output\n"
            )
    assert not output.exists()
    output.mkdir()
    with alone(str(output), notes.append):
        pass
    assert list(output.iterdir()) == notes == []


def test_a_second_job_goes_on_when_the_first_one_ends(make: Maker, books: Path, tmp_path: Path) -> None:
    first = alone(str(tmp_path / "out"), print)
    first.__enter__()
    threading.Timer(1.0, first.__exit__, (None, None, None)).start()
    make(tmp_path / "out", "--books", books / "*.txt")
    assert not (tmp_path / "out" / ".work").exists()
    assert len(ShardDirectory(tmp_path / "out").manifest.shards) > 0


def _hold_in_turn(output: str, marker: str, rounds: int) -> int:
    """How often this process held a directory, each time alone."""
    locks._INTERVAL = 0.0
    held = 0
    for _ in range(rounds):
        with contextlib.suppress(JobFailedError), alone(output, lambda _told: None):
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))  # FileExistsError where another one holds it too
            held += 1
            Path(marker).unlink()
    return held


def test_of_jobs_that_come_and_go_one_at_a_time_holds_a_directory(tmp_path: Path) -> None:
    """The last one out removes the lock and its folder while others are about to open it."""
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        held = pool.starmap(_hold_in_turn, [(str(tmp_path / "out"), str(tmp_path / "held"), 500)] * 4)
    assert min(held) > 0
    assert not list(tmp_path.glob("out/*"))


class _Closing(io.TextIOWrapper):
    """A file that tells when it is closed of what could not be written, as NFS does."""

    def close(self) -> None:
        super().close()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_ends_a_job_is_told_though_the_lock_can_not_be_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "open", lambda path, *_, **__: _Closing(io.FileIO(path, "a+"), encoding="utf-8"))
    with pytest.raises(JobFailedError, match="why it ends"), alone(str(tmp_path / "out"), pytest.fail):
        raise JobFailedError("why it ends")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE])
@pytest.mark.parametrize("where", [(fcntl, "flock"), (os, "fstat")], ids=["flock", "fstat"])
def test_a_lock_that_can_not_be_taken_is_a_note_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, where: tuple[ModuleType, str]
) -> None:
    """The user alone can see to it then that no other job works there."""
    notes: list[str] = []
    with monkeypatch.context() as patch:
        fail_on(patch, *where, number=number)
        context = alone(str(tmp_path / "out"), notes.append)
        context.__enter__()
    told = f"can't be locked ({os.strerror(number)}); make sure that no other job works there"
    assert notes == [f"{tmp_path}/out: {told}"]
    context.__exit__(None, None, None)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("call", "error"), [("make_folder", FileExistsError), ("lock_file", FileNotFoundError)])
def test_a_folder_that_another_job_removes_as_it_ends_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, error: type[OSError]
) -> None:
    """After a look at it, or before its file is there; and not without end."""
    really_do, failures = getattr(job_lock, call), [2]

    def do(path: Path, **options: Any) -> Any:
        if failures[0]:
            failures[0] -= 1
            raise error(errno.ENOENT, "gone", str(path))
        return really_do(path, **options)

    monkeypatch.setattr(job_lock, call, do)
    monkeypatch.setattr(job_lock, "_ATTEMPTS", 3)
    with alone(str(tmp_path / "out"), pytest.fail):
        assert (tmp_path / "out" / ".work" / "lock").exists()
    failures[0] = 99
    with alone(str(tmp_path / "out"), pytest.fail):  # where nothing can be made the job itself says why
        assert failures == [96]
        assert not (tmp_path / "out" / ".work" / "lock").exists()


def test_a_lock_that_another_job_has_removed_as_it_ended_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, left = tmp_path / "out" / ".work" / "lock", [2]

    def lock_once_gone(file: TextIO, *others: Any) -> bool | None:
        if left[0]:
            left[0] -= 1
            lock.unlink()
            if left[0]:
                lock.touch()  # another one's by now
        return wait_and_lock(file, *others)

    monkeypatch.setattr(job_lock, "wait_and_lock", lock_once_gone)
    with alone(str(tmp_path / "out"), pytest.fail), lock.open() as other:
        assert left == [0]
        assert try_lock(other.fileno()) is False


def test_what_lies_elsewhere_has_no_lock_and_nothing_is_made_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with alone("memory://bucket/out", pytest.fail):
        assert not list(tmp_path.iterdir())


def test_where_a_file_system_has_no_locks_that_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    fail_on(monkeypatch, fcntl, "flock", number=errno.ENOLCK)
    with alone(str(tmp_path / "out"), notes.append):
        assert (tmp_path / "out" / ".work" / "lock").exists()
    assert notes == [f"{tmp_path}/out: the file system has no locks; make sure that no other job works there"]
    assert not (tmp_path / "out").exists()


def test_a_job_that_was_at_work_when_the_storage_began_to_fail_is_not_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be at work still, and write among the files of the second one."""
    really_lock, tries = fcntl.flock, itertools.count(1)

    def fail_later(descriptor: int, operation: int) -> None:
        if next(tries) > 1:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        really_lock(descriptor, operation)

    notes: list[str] = []
    monkeypatch.setattr(locks, "_INTERVAL", 0.0)
    with alone(str(tmp_path / "out"), pytest.fail):
        monkeypatch.setattr(fcntl, "flock", fail_later)
        said = f"{tmp_path}/out: another job is at work there, process {os.getpid()} on {socket.gethostname()}; "
        with pytest.raises(JobFailedError, match=f"^{re.escape(said)}end that job, or choose another --output$"):
            alone(str(tmp_path / "out"), notes.append).__enter__()
    assert notes == [f"{said}waiting up to 90 s for it to end"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("call", ["mkdir", "open"])
@pytest.mark.parametrize(("number", "is_told"), [(errno.EIO, True), (errno.ENOSPC, False), (errno.EACCES, False)])
def test_a_lock_whose_file_can_not_be_made_is_a_note_where_the_job_may_work_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, is_told: bool
) -> None:
    """Where it may not, the job itself says why."""
    notes: list[str] = []
    fail_on(monkeypatch, Path, call, number=number)
    with alone(str(tmp_path / "out"), notes.append):
        pass
    told = f"can't be locked ({os.strerror(number)}); make sure that no other job works there"
    assert notes == ([f"{tmp_path}/out: {told}"] if is_told else [])
    assert not (tmp_path / "out").exists()


def test_a_lock_s_file_that_can_not_be_removed_is_no_error_and_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        fail_on(patch, Path, "unlink")
        with alone(str(tmp_path / "out"), pytest.fail):
            pass
    assert (tmp_path / "out" / ".work" / "lock").exists()
    with alone(str(tmp_path / "out"), pytest.fail):
        pass
    assert not (tmp_path / "out" / ".work").exists()


def test_who_holds_a_lock_need_not_be_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second job is refused all the same, and does not take it for a lock that can't be taken."""

    def fail(_file: TextIO, _size: int = -1) -> str:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    class Unreadable(io.TextIOWrapper):
        read = fail

    monkeypatch.setattr(job_lock, "PATIENCE", 0.1)
    with alone(str(tmp_path / "out"), pytest.fail):
        monkeypatch.setattr(Path, "open", lambda path, *_, **__: Unreadable(io.FileIO(path, "a+"), encoding="utf-8"))
        with pytest.raises(JobFailedError, match="another job is at work there, another process; end that job"):
            alone(str(tmp_path / "out"), lambda _told: None).__enter__()


@pytest.mark.parametrize("where", ["out", "out/.work", "."])
def test_where_no_lock_can_be_made_the_job_itself_says_why(tmp_path: Path, where: str) -> None:
    root = tmp_path / "root"
    if where == ".":
        root.symlink_to(tmp_path / "nowhere")
    else:
        (root / where).parent.mkdir(parents=True)
        (root / where).symlink_to(tmp_path / "nowhere")
    with alone(str(root / "out"), pytest.fail):
        pass
