"""What a job script does by what it finds in the run directory."""

import errno
import itertools
import json
import os
import time
from pathlib import Path

import pytest

from cluster.slurm import requeue
from cluster.slurm.requeue import PATIENCE, Verdict, judge, main
from tests.failing import REASON, fail_on
from trainer.outcome import MISTAKE
from trainer.run_directory import RunDirectory


@pytest.fixture
def run(tmp_path, monkeypatch) -> RunDirectory:
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    return RunDirectory(tmp_path)


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """The time in seconds, which goes by in sleep alone."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return now


def checkpoint(run: RunDirectory, step: int) -> None:
    run.checkpoint(step).mkdir(parents=True)
    (run.checkpoints / "latest").write_text(f"step-{step:06d}\n")


@pytest.mark.parametrize(
    ("outcome", "exit_code", "verdict"),
    [
        ("done\n", 0, Verdict.DONE),
        ("done\n", 137, Verdict.DONE),  # a launcher's own trouble after the end
        ("requeue\n", 0, Verdict.REQUEUE),
        ("requeue\n", 143, Verdict.REQUEUE),
        ("failed\n", 0, Verdict.GIVE_UP),
        ("failed: step 7: the loss is nan\n", 1, Verdict.GIVE_UP),
        (None, 2, Verdict.GIVE_UP),  # refused before anything was written
        (None, 137, Verdict.REQUEUE),
        (None, 0, Verdict.REQUEUE),  # ended without a word
    ],
)
def test_the_run_directory_decides_and_the_exit_code_where_it_is_silent(run, outcome, exit_code, verdict):
    if outcome:
        (run.path / "outcome").write_text(outcome)
    assert judge(run, "7", exit_code, 3, 0.0)[0] == verdict


def test_crashes_without_progress_come_to_an_end_and_progress_starts_the_count_anew(run):
    def crash(job: str = "7") -> Verdict:
        return judge(run, job, 1, 2, next(times))[0]

    times = itertools.count(0.5)
    assert [crash(), crash()] == [Verdict.REQUEUE, Verdict.REQUEUE]
    checkpoint(run, 100)
    assert [crash(), crash(), crash()] == [Verdict.REQUEUE, Verdict.REQUEUE, Verdict.GIVE_UP]
    assert crash(job="8") == Verdict.REQUEUE  # submitted by hand: the user has done something about it


def test_without_retries_the_first_crash_is_the_last(run):
    assert judge(run, "7", 1, 0, 0.0)[0] == Verdict.GIVE_UP


def test_an_outcome_of_an_earlier_start_is_not_taken_for_this_one_s(run):
    """Of a run that was done and is given more steps neither."""
    times = itertools.count(0.5)
    for old in ("requeue: x", "failed: x", "done"):
        (run.path / "outcome").write_text(old)
        assert main(["before", str(run.path)]) == 0
        assert judge(run, "7", 1, 3, next(times))[0] == Verdict.REQUEUE
    assert main(["before", str(run.path / "new")]) == 0  # a run that was never started


def test_an_outcome_that_can_not_be_removed_is_told_with_a_code_that_keeps_the_ranks_from_starting(run, capsys):
    run.outcome_file.mkdir()
    assert main(["before", str(run.path)]) == MISTAKE
    told = f"error: {run.path}: its outcome can't be removed ({os.strerror(errno.EISDIR)})\n"
    assert capsys.readouterr().err == told


def test_what_the_command_is_not_told(run, capsys):
    """No crash is allowed then; and there is nothing but before and after."""
    assert main(["after", str(run.path), "--crashes", "1"]) == 10
    assert "crash 1 since step 0 (exit code 0)" in capsys.readouterr().err
    assert main(["after", str(run.path)]) == 11
    assert "given up: it crashed 2 times since the checkpoint of step 0" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["during", str(run.path)])
    assert "invalid choice: 'during'" in capsys.readouterr().err


def test_the_command_says_what_it_decided(run, capsys):
    checkpoint(run, 40)
    run.set_outcome("requeue", "SIGUSR1 after step 40")
    assert main(["after", str(run.path), "--job", "7", "--exit-code", "0", "--crashes", "3"]) == 10
    assert "will be restarted: SIGUSR1 after step 40; it resumes from step 40" in capsys.readouterr().err
    run.set_outcome("requeue")
    assert main(["after", str(run.path), "--job", "7", "--exit-code", "0", "--crashes", "3"]) == 10
    assert "will be restarted: asked to stop; it resumes from step 40" in capsys.readouterr().err
    run.set_outcome(None)
    assert main(["after", str(run.path), "--job", "7", "--exit-code", "2", "--crashes", "3"]) == 11
    assert "given up: it would fail again: refused; the log says why" in capsys.readouterr().err
    assert main(["after", str(run.path), "--job", "7", "--exit-code", "137", "--crashes", "1"]) == 10
    assert "will be restarted: crash 1 since step 40 (exit code 137)" in capsys.readouterr().err
    (run.checkpoints / "latest").write_text("step-000099")
    run.set_outcome(None)
    assert main(["after", str(run.path), "--job", "7", "--exit-code", "1", "--crashes", "3"]) == 11
    assert "names 'step-000099', which is not there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        ("done", "done: the run is complete"),
        ("requeue", "will be restarted: asked to stop; it resumes from step 0; it ran on node[7-8]"),
        (None, "will be restarted: crash 1 since step 0 (exit code 1); it ran on node[7-8]"),
    ],
)
def test_the_nodes_are_told_for_a_person_to_exclude_one(run, monkeypatch, capsys, outcome, told):
    """SLURM gives a job that is requeued the same ones, mostly."""
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node[7-8]")
    run.set_outcome(outcome)
    main(["after", str(run.path), "--job", "7", "--exit-code", "1", "--crashes", "3"])
    assert capsys.readouterr().err == f"{run.path}: {told}\n"


def test_a_damaged_list_of_crashes_ends_the_job_in_a_line(run, capsys):
    run.job.mkdir()
    (run.job / "crashes.jsonl").write_text('{"job": \n')
    assert main(["after", str(run.path), "--job", "7", "--exit-code", "1", "--crashes", "3"]) == 11
    assert "crashes.jsonl: line 1 is damaged" in capsys.readouterr().err


def test_a_line_of_something_else_among_the_crashes_is_no_crash(run):
    run.job.mkdir()
    (run.job / "crashes.jsonl").write_text('{"old": 1}\n')
    assert main(["after", str(run.path), "--job", "7", "--exit-code", "1", "--crashes", "1"]) == 10


def test_a_crash_that_can_not_be_written_down_ends_the_job_in_a_line(run, capsys):
    """As on a full disk, of which it may have crashed."""
    run.job.mkdir()
    (run.job / "crashes.jsonl").symlink_to("/dev/full")
    assert main(["after", str(run.path), "--job", "7", "--exit-code", "1", "--crashes", "3"]) == 11
    assert capsys.readouterr().err == f"{run.path}: given up: [Errno 28] No space left on device\n"


def fail_until(patch: pytest.MonkeyPatch, clock: list[float], back: float, owner, call: str, place: Path) -> None:
    """Have storage fail at a call until the clock says so many seconds."""
    really, failing = getattr(owner, call), pytest.MonkeyPatch()
    fail_on(failing, owner, call, place)
    fails = getattr(owner, call)
    failing.undo()
    patch.setattr(owner, call, lambda *args, **more: (fails if clock[0] < back else really)(*args, **more))


@pytest.mark.parametrize(("call", "place"), [("read_text", "outcome"), ("open", "job/crashes.jsonl")])
def test_a_crash_by_storage_that_fails_is_counted_when_that_is_well_again(run, monkeypatch, capsys, clock, call, place):
    """Else the outage that ended the ranks would end the job too."""
    fail_until(monkeypatch, clock, 95, Path, call, run.path / place)
    assert main(["after", str(run.path), "--job", "7", "--exit-code", "1", "--crashes", "3"]) == 10
    assert clock[0] == 100  # it is asked every ten seconds
    waiting, decided = capsys.readouterr().err.splitlines()
    assert waiting.startswith(
        f"error: {run.path}: storage fails ([Errno 5] {REASON}: '{run.path / place}'); it is asked"
    )
    assert decided == f"{run.path}: will be restarted: crash 1 since step 0 (exit code 1)"
    (line,) = (run.job / "crashes.jsonl").read_text().splitlines()
    assert json.loads(line)["exit_code"] == 1


def test_a_crash_that_was_written_down_before_storage_failed_counts_once(run, monkeypatch, clock):
    """What is there is read only when it is written."""
    really, failed = requeue.read_lines, []

    def read_lines(path: Path):
        if not failed:
            failed.append(path)
            raise OSError(errno.ESTALE, "stale")
        return really(path)

    monkeypatch.setattr(requeue, "read_lines", read_lines)
    assert main(["after", str(run.path), "--job", "7", "--exit-code", "1", "--crashes", "1"]) == 10
    assert len((run.job / "crashes.jsonl").read_text().splitlines()) == 1


def test_storage_that_stays_away_ends_the_job_after_a_while(run, monkeypatch, capsys, clock):
    """A run whose crashes nobody can count might be restarted for ever."""
    fail_on(monkeypatch, Path, "read_text", run.outcome_file)
    assert main(["after", str(run.path), "--job", "7", "--exit-code", "1", "--crashes", "3"]) == 11
    assert clock[0] == PATIENCE
    _, decided = capsys.readouterr().err.splitlines()
    assert decided == f"{run.path}: given up: [Errno 5] {REASON}: '{run.outcome_file}'"
    fail_on(monkeypatch, Path, "unlink", run.outcome_file)
    assert main(["before", str(run.path)]) == MISTAKE
    assert clock[0] == 2 * PATIENCE


def test_checkpoints_on_a_disk_that_stays_away_end_the_job_in_a_line_too(run, capsys, clock):
    run.checkpoints.symlink_to(run.path / "away")
    assert main(["after", str(run.path), "--job", "7", "--exit-code", "1", "--crashes", "3"]) == 11
    assert clock[0] == PATIENCE
    _, decided = capsys.readouterr().err.splitlines()
    assert decided.startswith(f"{run.path}: given up: {run.checkpoints}: can't be read now (a link to what is not")


def test_an_outcome_is_removed_when_storage_is_well_again(run, monkeypatch, capsys, clock):
    run.set_outcome("done")
    fail_until(monkeypatch, clock, 25, Path, "unlink", run.outcome_file)
    assert main(["before", str(run.path)]) == 0
    assert not run.outcome_file.exists()
    assert clock[0] == 30
    assert len(capsys.readouterr().err.splitlines()) == 1
