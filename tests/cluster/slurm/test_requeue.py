"""What a job script does by what it finds in the run directory."""

import errno
import os

import pytest

from cluster.slurm.requeue import Verdict, judge, main
from trainer.outcome import MISTAKE
from trainer.run_directory import RunDirectory


@pytest.fixture
def run(tmp_path) -> RunDirectory:
    return RunDirectory(tmp_path)


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
    assert judge(run, "7", exit_code, allowed=3)[0] == verdict


def test_crashes_without_progress_come_to_an_end_and_progress_starts_the_count_anew(run):
    def crash(job: str = "7") -> Verdict:
        return judge(run, job, 1, allowed=2)[0]

    assert [crash(), crash()] == [Verdict.REQUEUE, Verdict.REQUEUE]
    checkpoint(run, 100)
    assert [crash(), crash(), crash()] == [Verdict.REQUEUE, Verdict.REQUEUE, Verdict.GIVE_UP]
    assert crash(job="8") == Verdict.REQUEUE  # submitted by hand: the user has done something about it


def test_without_retries_the_first_crash_is_the_last(run):
    assert judge(run, "7", 1, allowed=0)[0] == Verdict.GIVE_UP


def test_an_outcome_of_an_earlier_start_is_not_taken_for_this_one_s(run):
    """Of a run that was done and is given more steps neither."""
    for old in ("requeue: x", "failed: x", "done"):
        (run.path / "outcome").write_text(old)
        assert main(["before", str(run.path)]) == 0
        assert judge(run, "7", 1, allowed=3)[0] == Verdict.REQUEUE
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
