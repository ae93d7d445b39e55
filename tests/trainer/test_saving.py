import dataclasses
import errno
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from tests.trainer.conftest import STATE
from tests.trainer.test_sharded_state import flat
from trainer import saving
from trainer.checkpoint import begin_checkpoint
from trainer.config import CheckpointConfig
from trainer.model import BertConfig
from trainer.run_directory import RunDirectory, step_folders
from trainer.saving import Problem, Saver, _problem_of, export_if_missing
from trainer.sharded_state import file_name, verify_state
from trainer.world import World

NO_ROOM = Problem("no room", passes=False)


class Alone(World):
    """The only rank, of no process group."""

    def gather(self, value):
        return [value]


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path / "run")


@pytest.fixture
def saver(run, monkeypatch):
    """Of a rank whose exports are empty folders."""
    monkeypatch.setattr(saving, "export_checkpoint", lambda *rest: rest[3].mkdir(parents=True))
    settings = CheckpointConfig(keep=1, keep_every=3, keep_exports=2)
    return Saver(run, Alone(0, 1, torch.device("cpu")), BertConfig(vocab_size=64), settings, 0, lambda: None)


def engine(snapshot=lambda: [flat([("words", 0, 20), ("bias", 0, 3)])]):
    """Of which two updates were left out, or whose moments were reset."""
    return SimpleNamespace(snapshot=snapshot, optimizer_step=2)


def save(saver, *steps):
    for step in steps:
        saver.begin(dataclasses.replace(STATE, step=step), engine())
    saver.finish()


def test_lines_of_metrics_are_written_before_a_checkpoint_gets_its_name(saver, run):
    """No resume from it would train their steps again."""
    there = []
    saver._write_metrics = lambda: there.append(run.checkpoint(4).exists())
    save(saver, 4)
    assert (there, run.checkpoint(4).exists()) == ([False], True)


def test_weights_are_copied_before_training_goes_on(saver):
    copied_by = []
    saver.begin(STATE, engine(lambda: copied_by.append(threading.current_thread()) or []))
    assert copied_by == [threading.main_thread()]
    saver.finish()


def test_a_checkpoint_tells_the_updates_that_its_moments_have_seen(saver, run):
    """Which are not its step where updates were left out or moments reset."""
    save(saver, 4)
    content = (run.checkpoint(4) / file_name(0, 1)).read_bytes()
    assert b'"optimizer_step":"2"' in content
    verify_state(run.checkpoint(4))


def test_a_checkpoint_is_complete_before_the_next_one_begins(saver, run):
    save(saver, 3, 6)
    assert [path.name for path in step_folders(run.checkpoints)] == ["step-000003", "step-000006"]
    assert (saver.last, saver.problem) == (6, None)


def test_checkpoints_and_exports_are_kept_by_settings_of_their_own(saver, run):
    save(saver, 1, 2, 3, 4, 5)
    assert [path.name for path in step_folders(run.checkpoints)] == ["step-000003", "step-000005"]
    assert [path.name for path in step_folders(run.exports)] == ["step-000004", "step-000005"]


def test_a_rank_is_writing_until_its_part_is_on_disk(saver, run, monkeypatch):
    going_on, write = threading.Event(), saving.write_state
    monkeypatch.setattr(saving, "write_state", lambda *rest: going_on.wait(60) and write(*rest))
    assert not saver.writing
    saver.begin(STATE, engine())
    assert saver.writing
    going_on.set()
    while saver.writing:
        time.sleep(0.01)
    assert run.step == 0, "it has no name yet"
    saver.settle()
    assert run.step == saver.last == 4


@pytest.fixture
def saver_of_two(saver, run):
    """A saver of one of two ranks; the other one says what is listed, each time that they tell each other."""

    def make(rank, *others):
        answers = iter(others)

        class OfTwo(World):
            def gather(self, value):
                told = [next(answers)] * 2
                told[rank] = value
                return told

        return Saver(
            run, OfTwo(rank, 2, torch.device("cpu")), BertConfig(vocab_size=64), CheckpointConfig(), 3, lambda: None
        )

    return make


def test_what_another_rank_can_not_write_is_given_up_by_all(saver_of_two, run, caplog):
    saver = saver_of_two(0, None, NO_ROOM)
    save(saver, 4)
    assert (saver.last, saver.problem) == (3, NO_ROOM)
    assert not list(run.checkpoints.iterdir())
    assert caplog.messages == ["step 4: the checkpoint can't be written (no room)",
                               "the newest good checkpoint is that of step 3"]  # fmt: skip


@pytest.mark.parametrize("problem", [None, NO_ROOM])
def test_only_the_first_rank_names_and_exports_what_all_have_written_or_gives_it_up(saver_of_two, run, caplog, problem):
    begin_checkpoint(run, 4)
    of_first = run.staging(4) / file_name(0, 2)
    of_first.touch()
    saver = saver_of_two(1, None, None, problem)
    save(saver, 4)
    assert (saver.last, saver.problem) == (3 if problem else 4, problem)
    assert [path.name for path in run.checkpoints.iterdir()] == [run.staging(4).name]
    assert {of_first, run.staging(4) / file_name(1, 2)} <= {*run.staging(4).iterdir()}
    assert not run.exports.exists()
    assert caplog.messages == []


def test_storage_that_fails_for_a_while_costs_the_checkpoint_and_not_the_run(saver, run, monkeypatch, caplog):
    """It is looked at no more than it must be."""
    save(saver, 2)

    def fail(*_, **__):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        for name in ("open", "stat", "glob", "iterdir", "mkdir", "rename"):
            patch.setattr(f"pathlib.Path.{name}", fail)
        save(saver, 4)
    assert caplog.messages == ["step 4: the checkpoint can't be written ([Errno 5] Input/output error)",
                               "the newest good checkpoint is that of step 2"]  # fmt: skip
    save(saver, 5)
    assert run.step == saver.last == 5


def test_old_checkpoints_that_can_not_be_listed_cost_no_export(saver, run, monkeypatch, caplog):
    listed = Path.glob

    def fail(path, pattern):
        if path == run.checkpoints:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return listed(path, pattern)

    monkeypatch.setattr("pathlib.Path.glob", fail)
    save(saver, 4)
    told = f"{run.checkpoints}: can't be looked through for what is to be deleted ({os.strerror(errno.ESTALE)})"
    assert caplog.messages == [told]
    assert run.export(4).is_dir()


def test_an_export_is_waited_for_at_the_end(saver, monkeypatch):
    going_on, made = threading.Event(), []
    monkeypatch.setattr(saving, "export_checkpoint", lambda *_: made.append(going_on.wait(30)))
    saver.begin(STATE, engine())
    threading.Timer(0.5, going_on.set).start()
    saver.finish()
    assert made == [True]


def test_a_checkpoint_without_a_rank_s_file_gets_no_name(saver, run, monkeypatch):
    monkeypatch.setattr(saving, "write_state", lambda *_: None)
    save(saver, 4)
    assert saver.problem.text.endswith("state-00000-of-00001.safetensors or its checksum was not written")
    assert saver.last == 0
    assert not list(run.checkpoints.iterdir())


def test_a_checkpoint_that_finds_no_room_for_its_last_bytes_gets_no_name(saver, run, monkeypatch):
    def find_no_room(*_):
        raise OSError("no room")

    monkeypatch.setattr(saving, "commit_checkpoint", find_no_room)
    save(saver, 4)
    assert (saver.last, saver.problem) == (0, NO_ROOM)
    assert not list(run.checkpoints.iterdir())


def test_what_went_wrong_once_is_forgotten_when_it_goes_well(saver, run, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(saving, "write_state", lambda *_: None)
        save(saver, 4)
    save(saver, 5)
    assert (saver.last, saver.problem) == (5, None)
    assert run.step == 5


def test_a_checkpoint_whose_folder_can_not_be_made_is_a_problem_until_one_can(saver, run, caplog):
    """Where it was the last step's, the run has not ended well."""
    run.path.mkdir()
    run.checkpoints.write_text("in the way")
    save(saver, 4)
    assert "Not a directory" in saver.problem.text
    assert saver.last == 0
    assert len(caplog.messages) == 2, "the problem, and what is there"
    run.checkpoints.unlink()
    save(saver, 5)
    assert (saver.last, saver.problem) == (5, None)


def test_an_export_that_can_not_be_written_is_told_once_and_costs_no_checkpoint(saver, monkeypatch, caplog):
    def find_no_room(*_):
        raise OSError("no room")

    monkeypatch.setattr(saving, "export_checkpoint", find_no_room)
    save(saver, 3, 4)
    saver.finish()
    told = "the export can't be written (no room); to make it later, run python -m trainer.export"
    assert caplog.messages == [told] * 2, "of each"
    assert (saver.last, saver.problem) == (4, None)


def test_an_export_that_is_there_is_not_made_again_and_none_before_the_first_step(run, monkeypatch, caplog):
    """Somebody may be reading it."""
    made = []
    monkeypatch.setattr(saving, "export_checkpoint", lambda *_: made.append(1))
    run.export(4).mkdir(parents=True)
    for step in (0, 4):
        export_if_missing(run, step, BertConfig(vocab_size=64))
    assert made == caplog.messages == []


def test_an_export_that_can_not_be_looked_for_costs_nothing_else(run, monkeypatch, caplog):
    """The first rank would end at its start, while the others wait for it."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", mock.Mock(side_effect=OSError(errno.ESTALE, os.strerror(errno.ESTALE))))
        export_if_missing(run, 4, BertConfig(vocab_size=64))
    (told,) = caplog.messages
    assert told.startswith("the export can't be written ([Errno 116] Stale file handle); to make it later, run ")


class OddError(Exception):
    """Such as safetensors', of which nobody thought."""


class Panic(BaseException):
    """As Rust's are."""


@pytest.mark.parametrize("error", [OddError("no room"), OSError("no room"), MemoryError("no room"), Panic("no room")])
def test_whatever_goes_wrong_is_known(error):
    def work():
        raise error

    problem = _problem_of(work)
    assert "no room" in problem.text
    assert not problem.passes


@pytest.mark.parametrize("error", [OddError(), OSError(), ValueError(), MemoryError()])
def test_an_error_without_words_is_one_too(error):
    def work():
        raise error

    assert type(error).__name__ in _problem_of(work).text


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_who_asks_for_the_end_of_the_program_gets_it(error):
    def work():
        raise error

    with pytest.raises(type(error)):
        _problem_of(work)


def test_what_goes_well_says_nothing():
    assert _problem_of(lambda: None) is None
