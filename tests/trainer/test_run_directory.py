import errno
import os
import re
from pathlib import Path
from unittest import mock

import pytest

from tests.limits import room_for, too_many_open_files
from trainer.run_directory import CheckpointError, Outcome, RunDirectory, newest_around, step_folders, without_links


@pytest.mark.parametrize("files", [
    [], ["job/job.sh"], ["trainer.lock"], ["trainer.lock", "tokenizer/vocab.txt", ".manifest.json.incomplete"],
    ["trainer.lock", "tokenizer/vocab.txt", "manifest.json", ".config.toml.incomplete", "job/job.sh"],
])  # fmt: skip
def test_a_directory_is_new_as_long_as_no_start_got_far(run, files):
    touch(run, files)
    assert run.is_new
    assert RunDirectory(run.path / "nowhere").is_new


@pytest.mark.parametrize("files", [
    ["trainer.lock", "config.toml"], ["trainer.lock", "thesis.tex"], ["manifest.json", "tokenizer/vocab.txt"],
])  # fmt: skip
def test_a_run_and_what_others_have_written_are_not_new(run, files):
    touch(run, files)
    assert not run.is_new


def touch(run, files):
    for file in files:
        (run.path / file).parent.mkdir(parents=True, exist_ok=True)
        (run.path / file).touch()


def test_an_outcome_is_a_word_and_a_reason_in_one_line(run):
    assert run.outcome is None
    run.set_outcome("failed", "step 3: the loss\n  is nan: sorry")
    assert (run.path / "outcome").read_text() == "failed: step 3: the loss is nan: sorry\n"
    assert run.outcome == ("failed", "step 3: the loss is nan: sorry")
    assert run.ending == "failed"
    run.set_outcome("done")
    assert (run.path / "outcome").read_text() == "done\n"
    assert run.outcome == ("done", "")
    run.set_outcome(None)
    assert not (run.path / "outcome").exists()
    assert run.ending is None
    run.set_outcome(None)


def test_the_ending_is_of_one_look_at_a_file_that_a_trainer_may_remove_at_any_time(run, monkeypatch):
    looks = iter([Outcome("requeue", "asked to stop"), None])
    monkeypatch.setattr(RunDirectory, "outcome", property(lambda _: next(looks)))
    assert run.ending == "requeue"


@pytest.mark.parametrize("left", ["", "fail", "requ", "paused: by somebody"])
def test_an_outcome_that_was_cut_short_or_is_unknown_is_none(run, left):
    (run.path / "outcome").write_text(left)
    assert run.outcome is None


def test_a_damaged_reason_is_still_an_outcome(run):
    (run.path / "outcome").write_bytes(b"failed: the loss\xff\n")
    assert run.outcome == ("failed", "the loss\ufffd")


def test_the_first_rank_that_fails_has_the_word(run):
    assert run.claim_outcome("failed", "mine")
    assert not run.claim_outcome("failed", "another's")
    assert run.outcome == ("failed", "mine")


def test_an_outcome_that_finds_no_room_does_not_keep_another_rank_from_telling(run):
    with room_for(4), pytest.raises(OSError, match="File too large"):
        run.claim_outcome("failed", "mine")
    assert run.claim_outcome("failed", "another's")


def test_a_rank_without_handles_takes_no_word_from_another(run):
    run.claim_outcome("failed", "mine")
    with too_many_open_files(), pytest.raises(OSError, match="Too many open files"):
        run.claim_outcome("failed", "another's")
    assert run.outcome == ("failed", "mine")


@pytest.mark.parametrize("left", ["", "[]", '"x"', "{}", '{"directory": "bert"}'])
def test_weights_that_a_run_began_with_are_not_guessed(run, left):
    run.initial_weights.write_text(left)
    with pytest.raises(CheckpointError, match=re.escape(f"{run.initial_weights}: damaged (")):
        run.read_initial_weights()


def test_a_folder_that_is_no_step_is_passed_over(tmp_path):
    for name in ("step-000010", "step-9x", "step-000002", "step-", "step-4", "step-0000004", "step-1000000",
                 "step-999999"):  # fmt: skip
        (tmp_path / name).mkdir()
    found = [path.name for path in step_folders(tmp_path)]
    assert found == ["step-000002", "step-000010", "step-999999", "step-1000000"]


def test_where_no_folder_is_there_are_no_steps_and_one_that_can_not_be_listed_is_not_empty(run, monkeypatch):
    """A run that seems to have no checkpoint would begin again."""
    assert step_folders(run.checkpoints) == []
    run.checkpoints.touch()
    assert step_folders(run.checkpoints) == []
    monkeypatch.setattr(Path, "iterdir", mock.Mock(side_effect=OSError(errno.ESTALE, os.strerror(errno.ESTALE))))
    with pytest.raises(OSError, match="Stale file handle"):
        run.candidates()


def test_what_is_newest_is_found_from_anywhere_in_a_run(run):
    touch(run, ["checkpoints/step-000004/file", "checkpoints/step-000008/file", "exports/step-000004/file"])
    for place in (".", "checkpoints", "exports/step-000004", "checkpoints/step-000006"):
        assert newest_around(run.path / place, "checkpoints") == run.checkpoint(8)
        assert newest_around(run.path / place, "exports") == run.export(4)
    assert newest_around(run.path.parent, "exports") is None


def test_of_all_links_to_an_export_its_folder_alone_stays_one(run, monkeypatch):
    disk, home = run.path.parent / "disk", run.path.parent / "home"
    (disk / "step-000004").mkdir(parents=True)
    run.exports.symlink_to(disk)
    (disk / "newest").symlink_to("step-000004")
    home.symlink_to(run.path.parent)
    monkeypatch.chdir(run.path)
    for name in ("exports/step-000004", home / "run/exports/newest", "exports/"):
        assert without_links(Path(name)) == (run.export(4) if name != "exports/" else disk)
    for name in (disk / "newest", run.path / "exports/../disk/step-000004", home / "disk/step-000004"):
        assert without_links(name) == disk / "step-000004"


@pytest.mark.parametrize(("number", "error", "told"), [
    (errno.EACCES, CheckpointError, "run: can't be read (Permission denied); choose another --output"),
    (errno.EIO, OSError, "Input/output error"),
])  # fmt: skip
def test_a_directory_that_can_not_be_looked_at_is_a_mistake_unless_that_may_pass(run, monkeypatch, number, error, told):
    monkeypatch.setattr(Path, "iterdir", mock.Mock(side_effect=OSError(number, os.strerror(number))))
    with pytest.raises(error, match=f"{re.escape(told)}$"):
        run.check()


def test_what_is_no_run_is_none_to_begin_in(run):
    run.check()
    RunDirectory(run.path / "nowhere").check()
    touch(run, ["thesis.tex"])
    with pytest.raises(CheckpointError, match=r"run: holds something that is not a run; choose another --output$"):
        run.check()
    with pytest.raises(CheckpointError, match=r"thesis\.tex: a file; choose another --output$"):
        RunDirectory(run.path / "thesis.tex").check()
    run.config.touch()
    run.check()
