"""Retention of exports beside evaluations that read them, and trainers of one run, in processes of their own."""

import errno
import fcntl
import os
import socket
import subprocess
import sys
import threading

import pytest

from preprocessing.status import is_file
from preprocessing.storage_errors import UnavailableError
from tests.failing import failures_in_turn
from trainer.checkpoint import keep_newest
from trainer.leases import RunInUseError, hold_export, hold_run, is_held, remove_export
from trainer.run_directory import CheckpointError, RunDirectory

HOLD = """
import sys, time, pathlib
from trainer.leases import hold_export
with hold_export(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


HOLD_RUN = """
import sys, pathlib
from trainer.run_directory import RunDirectory
from trainer.leases import hold_run
with hold_run(RunDirectory(pathlib.Path(sys.argv[1]))):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_full_disk_is_no_reason_to_stop(tmp_path):
    full = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
"""
    command = [sys.executable, "-c", full + HOLD_RUN, str(tmp_path)]
    run = subprocess.run(command, input="", capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout, run.stderr) == (0, "held\n", "")


@pytest.fixture
def exports(tmp_path):
    for step in (1, 2, 3):
        folder = tmp_path / f"step-00000{step}"
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_text("weights")
    return tmp_path


def test_an_export_that_can_not_be_looked_at_is_not_taken_for_a_folder_that_nobody_holds(exports, monkeypatch):
    export = exports / "step-000001"
    with monkeypatch.context() as patch:
        for _ in failures_in_turn(patch, export, lambda: is_file(export / "config.json")):
            with pytest.raises(OSError, match="Stale file handle"):
                remove_export(export)
    assert {path.name for path in export.iterdir()} == {"config.json", "model.safetensors"}
    remove_export(export)
    assert not export.exists()


@pytest.fixture
def holder(exports):
    """A process that holds the first export."""
    yield from held_by(HOLD, exports / "step-000001")


def held_by(program, path):
    """A process that has run a program with a path up to the line "held"."""
    command = [sys.executable, "-c", program, str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def keep_one(exports):
    keep_newest(exports, 1, remove=remove_export)
    return names(exports)


def test_an_export_that_is_held_stays_and_goes_when_it_is_let_go(exports, holder):
    assert keep_one(exports) == ["step-000001", "step-000003"]
    assert names(exports / "step-000001") == ["config.json", "model.safetensors"]
    holder.communicate("")
    assert keep_one(exports) == ["step-000003"]


def test_a_holder_that_is_killed_holds_nothing(exports, holder):
    holder.kill()
    holder.wait()
    assert keep_one(exports) == ["step-000003"]


def test_several_may_hold_one(exports, holder):
    with hold_export(exports / "step-000001"):
        holder.kill()
        holder.wait()
        assert keep_one(exports) == ["step-000001", "step-000003"]
    assert keep_one(exports) == ["step-000003"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_holding_needs_no_permission_to_write(exports):
    (exports / "step-000001").chmod(0o555)
    (exports / "step-000001" / "config.json").chmod(0o444)
    with hold_export(exports / "step-000001"):
        pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_one_may_not_read_is_refused(exports):
    (exports / "step-000001").chmod(0)
    with pytest.raises(CheckpointError, match="can't be read"), hold_export(exports / "step-000001"):
        pass
    (exports / "step-000001").chmod(0o755)


@pytest.mark.parametrize("failing", ["pathlib.Path.open", "preprocessing.locks.fcntl.flock", "os.stat"])
def test_a_disk_that_fails_at_the_file_its_lock_or_once_that_is_held_is_told_with_what_it_says(
    exports, monkeypatch, failing
):
    def fail(*_, **__):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    if failing == "os.stat":
        monkeypatch.setattr("fcntl.flock", lambda *_: monkeypatch.setattr(failing, fail))
    else:
        monkeypatch.setattr(failing, fail)
    told = r"config\.json: can't be read now \(Stale file handle\); give the same command again"
    with pytest.raises(UnavailableError, match=told), hold_export(exports / "step-000001"):
        pass


def test_what_is_no_export_is_not_held(tmp_path):
    with hold_export(tmp_path):
        assert names(tmp_path) == []


def test_an_export_is_not_taken_while_it_is_deleted(exports, monkeypatch):
    def take_it(_):
        with hold_export(exports / "step-000001"):
            pass

    monkeypatch.setattr("trainer.leases.remove_folder", take_it)
    with pytest.raises(CheckpointError, match="is being deleted; take a newer one"):
        remove_export(exports / "step-000001")


def test_an_export_that_goes_before_it_is_locked_is_not_taken_either(exports, monkeypatch):
    export = exports / "step-000001"
    monkeypatch.setattr("fcntl.flock", lambda *_: export.rename(exports / ".step-000001.removed"))
    with pytest.raises(CheckpointError, match="was just deleted; take a newer one"), hold_export(export):
        pass


@pytest.fixture
def no_locks(monkeypatch):
    """A file system that has none."""

    def fail(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("preprocessing.locks.fcntl.flock", fail)


@pytest.mark.usefixtures("no_locks")
def test_where_there_are_no_locks_nothing_is_deleted(exports, caplog):
    with hold_export(exports / "step-000001"):
        assert keep_one(exports) == ["step-000001", "step-000002", "step-000003"]
    assert "stays, for this file system has no locks" in caplog.text


def test_a_deletion_that_was_cut_short_is_finished_the_next_time(exports):
    (exports / ".step-000000.removed").mkdir()
    assert keep_one(exports) == ["step-000003"]


def test_an_export_that_has_lost_its_configuration_goes_all_the_same(exports):
    """Somebody who deletes it by hand may have been cut short."""
    (exports / "step-000001" / "config.json").unlink()
    assert keep_one(exports) == ["step-000003"]


@pytest.fixture
def trainer(tmp_path):
    """A process that holds a run directory."""
    yield from held_by(HOLD_RUN, tmp_path / "run")


def test_a_run_has_one_trainer(tmp_path, trainer, caplog):
    who = f"process {trainer.pid} on {socket.gethostname()}"
    message = rf"run: in use by {who}; end that trainer, or choose another --output"
    with pytest.raises(RunInUseError, match=message), hold_run(RunDirectory(tmp_path / "run"), patience=0.1):
        pass
    assert f"in use by {who}; waiting" in caplog.text


def test_a_trainer_whose_name_is_damaged_is_another_one_all_the_same(tmp_path):
    run = RunDirectory(tmp_path)
    run.lock.write_bytes(b"process \xff\n")
    with run.lock.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(RunInUseError, match="in use by process \ufffd; end that"), hold_run(run, patience=0):
            pass


def test_a_run_s_folder_is_made_with_all_above_it(tmp_path):
    """runs/large, the first time."""
    with hold_run(RunDirectory(tmp_path / "runs" / "large")):
        assert names(tmp_path / "runs" / "large") == ["trainer.lock"]


def test_who_has_ended_is_not_named_any_more(tmp_path):
    """Its number may soon be that of another process, which nobody is to signal."""
    run = RunDirectory(tmp_path)
    with hold_run(run):
        assert str(os.getpid()) in run.lock.read_text()
        with pytest.raises(RunInUseError), hold_run(run, patience=0):
            pass
        assert str(os.getpid()) in run.lock.read_text()
    assert run.lock.read_text() == ""


def test_a_run_is_free_when_its_trainer_has_ended(tmp_path, trainer):
    threading.Timer(0.3, trainer.kill).start()
    with hold_run(RunDirectory(tmp_path / "run")):
        assert (tmp_path / "run" / "trainer.lock").read_text() == f"process {os.getpid()} on {socket.gethostname()}\n"


@pytest.mark.usefixtures("no_locks")
def test_without_locks_a_trainer_goes_on(tmp_path, caplog):
    with hold_run(RunDirectory(tmp_path / "run")):
        assert "has no locks; start no other trainer in this run directory" in caplog.text


def test_who_only_looks_whether_a_run_is_held_is_not_taken_for_its_trainer(tmp_path):
    """As two that carry a run over to MLflow may, at one time."""
    run = RunDirectory(tmp_path)
    assert not is_held(run), "nobody has ever trained here"
    run.lock.touch()
    with run.lock.open("rb") as looked_at:
        fcntl.flock(looked_at, fcntl.LOCK_SH)
        assert not is_held(run)
        fcntl.flock(looked_at, fcntl.LOCK_EX)
        assert is_held(run)


@pytest.mark.usefixtures("no_locks")
def test_without_locks_nobody_is_taken_for_a_trainer(tmp_path):
    """Or a run that was killed there would be a running one in MLflow for ever."""
    RunDirectory(tmp_path).lock.touch()
    assert not is_held(RunDirectory(tmp_path))
