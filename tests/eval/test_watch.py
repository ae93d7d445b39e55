"""Every export is evaluated once, whatever comes between; the trainer notices nothing."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pytest
from mlflow.tracking import MlflowClient

from eval import run as evaluation
from eval import stamps, watch
from eval.plan import Plan
from eval.results import read_results, write_results
from eval.results import tasks_of as results_tasks
from eval.tasks import GROUPS, Task
from eval.tasks.result import Result
from eval.watch import main
from preprocessing.schema import checksum
from tests.eval.conftest import CONFIG, random_state
from tests.eval.evaluations import task, write_evaluation
from tests.eval.processes import assert_free, assert_interrupted
from tests.eval.small_data import write_mrpc, write_stsb, write_table
from tests.failing import LISTING, REASON, fail_at, fail_on
from tests.preprocessing.test_interruption import start
from tests.trainer.mlflow_store import empty_store
from tests.trainer.shard_factory import write_shards
from tests.waiting import wait_for
from trainer.hugging_face import WEIGHTS, save_export
from trainer.run_directory import RunDirectory, step_name
from trainer.tracking import prepare, sync

OPTIONS = ("--samples", "8", "--threads", "1", "--no-tracking")
NO_SAMPLES = "--samples: for tasks that read held-out samples only, without effect on "
INTERRUPTED = "eval.watch: interrupted; the same command goes on"


@pytest.fixture
def run(export: Path) -> RunDirectory:
    """A run that goes on, with exports of the steps 7 and 9."""
    run = RunDirectory(export.parents[1])
    add_export(run, 9)
    return run


@pytest.fixture
def follow(
    run: RunDirectory, shards: Path, evaluated: list[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., int]:
    """Follow the run. Between two looks, one event after the other happens; past the last one the test fails."""

    def start(*options: str, events: Sequence[Callable[[], object]] = ()) -> int:
        coming = list(events)
        monkeypatch.setattr(watch.time, "sleep", lambda _: coming.pop(0)())
        code = main([str(run.path), "--tasks", "fill_mask", "--shards", str(shards), *OPTIONS, *options])
        assert coming == []
        return code

    return start


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The evaluations that were begun, by their folders. They run in this process: it has imported torch already."""
    names: list[str] = []

    def run_here(words: Sequence[str], claim: int) -> int:
        names.append(Path(words[words.index("--output") + 1]).name)
        return evaluation.main(words)

    monkeypatch.setattr(watch, "_run_evaluation", run_here)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    return names


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The exports whose weights the watch has read."""
    exports: list[str] = []

    def count(weights: Path) -> str:
        exports.append(weights.parent.name)
        return checksum(weights)

    monkeypatch.setattr(stamps, "checksum", count)
    return exports


def add_export(run: RunDirectory, step: int) -> None:
    shutil.copytree(run.export(7), run.export(step))


def tasks_of(run: RunDirectory, name: str) -> list[str]:
    return sorted(results_tasks(read_results(run.path / "evaluations" / name / "results.json")))


def done(run: RunDirectory) -> Callable[[], None]:
    return lambda: run.set_outcome("done")


def test_every_export_once_and_the_last_one_on_all_tasks(
    run: RunDirectory, follow: Callable[..., int], evaluated: list[str]
) -> None:
    run.set_outcome("done")
    for _ in range(2):  # nothing is left for the second
        assert follow("--final-tasks", "pretraining,fill_mask") == 0
    assert evaluated == ["step-000007", "step-000009", "step-000009-final"]
    assert tasks_of(run, "step-000009") == ["fill_mask"]
    assert tasks_of(run, "step-000009-final") == ["fill_mask", "mlm", "nsp"]


def test_options_that_no_task_heeds_the_final_ones_included_are_told_once(
    run: RunDirectory, follow: Callable[..., int], evaluated: list[str], tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    run.set_outcome("done")
    data = ("--data", str(write_mrpc(tmp_path / "data")))
    assert follow("--tasks", "mlm", "--final-tasks", "mrpc", *data, "--epochs", "1", "--learning-rates", "1e-3") == 0
    assert "without effect" not in caplog.text
    assert follow("--final-tasks", "mrpc", *data, "--epochs", "1", "--learning-rates", "1e-3") == 0
    assert len(evaluated) == 5
    assert [told for told in caplog.messages if "without effect" in told] == [f"{NO_SAMPLES}fill_mask, mrpc"]


def test_nothing_until_the_end(run: RunDirectory, follow: Callable[..., int], evaluated: list[str]) -> None:
    run.set_outcome("done")
    assert follow("--tasks", "", "--final-tasks", "fill_mask") == 0
    assert evaluated == ["step-000009-final"]


def test_exports_are_evaluated_as_they_appear(
    run: RunDirectory, follow: Callable[..., int], evaluated: list[str]
) -> None:
    events = [
        lambda: add_export(run, 11),
        lambda: None,
        lambda: run.set_outcome("requeue"),  # stopped, to go on
        lambda: run.set_outcome(None),
        lambda: [add_export(run, 100), add_export(run, 1000000), run.set_outcome("done")],
    ]
    assert follow("--final-tasks", "fill_mask", events=events) == 0
    names = [*map(step_name, (7, 9, 11, 100, 1000000)), "step-1000000-final"]
    assert evaluated == names


def test_an_outcome_that_is_no_known_word_is_told_once_and_the_run_counts_as_going_on(
    run: RunDirectory, follow: Callable[..., int], evaluated: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """As of a newer version, whose words nobody knows here; a start of the run takes it away."""
    newer, told = "paused: until Monday", f"{run.outcome_file}: no outcome that is known here (%s), "
    events = [
        lambda: run.outcome_file.write_text(f"{newer}\n"),
        lambda: add_export(run, 11),
        lambda: run.set_outcome(None),
        done(run),
    ]
    assert follow("--final-tasks", "fill_mask", events=events) == 0
    assert evaluated == ["step-000007", "step-000009", "step-000011", "step-000011-final"]
    assert [message for message in caplog.messages if "known here" in message] == [
        f"{told % newer}so the run counts as going on"
    ]
    run.outcome_file.write_text("d\0ne\n")
    assert follow("--once") == 0
    assert told % r"d\x00ne" in caplog.messages[-1]


def test_what_a_run_leaves_while_it_is_evaluated_and_ends_is_evaluated_too(
    run: RunDirectory, follow: Callable[..., int], evaluated: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_here = watch._run_evaluation

    def run_and_end(words: Sequence[str], claim: int) -> int:
        if evaluated == ["step-000007"]:
            add_export(run, 11)
            run.set_outcome("done")
        return run_here(words, claim)

    monkeypatch.setattr(watch, "_run_evaluation", run_and_end)
    assert follow("--final-tasks", "mlm", events=[lambda: None]) == 0
    assert evaluated == ["step-000007", "step-000009", "step-000011", "step-000011-final"]


def test_an_export_that_lost_its_weights_is_evaluated_in_vain(
    run: RunDirectory, follow: Callable[..., int], evaluated: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing tells whether the results that are there are of it."""
    assert follow("--once") == 0
    (run.export(7) / WEIGHTS).unlink()
    assert follow("--once") == 1
    assert evaluated[2:] == ["step-000007"]
    assert f"error: {run.export(7) / WEIGHTS}: missing" in capsys.readouterr().err


def test_a_look_at_a_run_that_goes_on(run: RunDirectory, follow: Callable[..., int], evaluated: list[str]) -> None:
    assert follow("--once", "--final-tasks", "mlm") == 0
    assert evaluated == ["step-000007", "step-000009"]
    run.set_outcome("done")
    assert follow("--once", "--final-tasks", "mlm") == 0
    assert evaluated[2:] == ["step-000009-final"]


def test_a_look_through_a_link_at_exports_that_lie_there_alone(
    run: RunDirectory, follow: Callable[..., int], evaluated: list[str]
) -> None:
    lies = run.path.rename(run.path.with_name("lies"))
    run.path.symlink_to(lies)
    run.config.unlink()
    assert follow("--once") == 0
    assert evaluated == ["step-000007", "step-000009"]


def test_a_run_without_exports_yet(
    run: RunDirectory, follow: Callable[..., int], evaluated: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(run.exports)
    assert follow("--once") == 0
    assert follow(events=[lambda: None, done(run)]) == 0
    assert evaluated == []
    assert "no run is there yet" not in caplog.text


@pytest.mark.parametrize(("reason", "told"), [("the loss is no number", "the loss is no number"), ("", "see its log")])
def test_a_failed_run(
    run: RunDirectory, follow: Callable[..., int], evaluated: list[str], capsys: pytest.CaptureFixture[str],
    reason: str, told: str,
) -> None:  # fmt: skip
    assert follow("--final-tasks", "mlm", events=[lambda: run.set_outcome("failed", reason)]) == 1
    assert evaluated == ["step-000007", "step-000009"]
    assert f"failed: the training of {run.path}: {told}\n" in capsys.readouterr().err


def test_a_broken_export_is_skipped(
    run: RunDirectory, follow: Callable[..., int], evaluated: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (run.export(7) / "config.json").write_text("{")
    assert follow(events=[lambda: None, done(run)]) == 1
    assert evaluated == ["step-000007", "step-000009"]  # not again at every look
    error = capsys.readouterr().err
    assert f"{run.export(7) / 'config.json'}: not JSON" in error
    assert f"failed: {run.path / 'evaluations' / 'step-000007'}\n" in error

    shutil.copyfile(run.export(9) / "config.json", run.export(7) / "config.json")  # mended: a new start tries it again
    assert follow() == 0
    assert evaluated[2:] == ["step-000007"]


def test_a_failed_task_is_tried_once_more_by_a_new_watcher_and_told_each_time(
    run: RunDirectory, follow: Callable[..., int], evaluated: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = evaluation._result

    def fail_at_nsp(task: Task, plan: Plan, failed: dict[str, str]) -> Result | None:
        if task.name == "nsp":
            failed["nsp"] = "an accident"
            return None
        return result(task, plan, failed)

    monkeypatch.setattr(evaluation, "_result", fail_at_nsp)
    assert follow("--tasks", "mlm,nsp", events=[done(run)]) == 1
    assert follow("--tasks", "mlm,nsp") == 1
    assert evaluated == ["step-000007", "step-000009"] * 2
    monkeypatch.setattr(evaluation, "_result", result)
    assert follow("--tasks", "mlm,nsp") == 0
    assert follow("--tasks", "mlm,nsp") == 0
    assert evaluated == ["step-000007", "step-000009"] * 3


@pytest.mark.parametrize(
    ("tasks", "place", "told"),
    [
        ("mrpc,mlm,stsb", "MRPC", "no train.tsv in MRPC/"),
        ("a group", "MRPC/test.tsv", "no test.tsv beside train.tsv"),
    ],
)
def test_a_data_set_that_vanishes_costs_its_task_alone(
    run: RunDirectory, follow: Callable[..., int], evaluated: list[str], tmp_path: Path,
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
    tasks: str, place: str, told: str,
) -> None:  # fmt: skip
    monkeypatch.setitem(GROUPS, "a group", ("mrpc", "mlm", "stsb"))
    data = write_mrpc(write_stsb(tmp_path / "data"))
    quick = ("--epochs", "1", "--learning-rates", "1e-3", "--test", "--data", str(data))
    final = ("--final-tasks", tasks)
    lost = [lambda: (data / place).rename(tmp_path / "away"), done(run)]
    assert follow(*quick, *final, events=lost) == 1
    assert tasks_of(run, "step-000009-final") == ["mlm", "stsb"]
    assert f"mrpc: {data}" in caplog.text
    assert told in caplog.text
    assert f"failed: {run.path / 'evaluations' / 'step-000009-final'}\n" in capsys.readouterr().err
    (tmp_path / "away").rename(data / place)
    assert follow(*quick, *final) == 0
    assert tasks_of(run, "step-000009-final") == ["mlm", "mrpc", "stsb"]
    evaluated.clear()
    assert follow(*quick, *final) == 0
    assert evaluated == []  # the results are known to be of these very test sets


def test_a_data_set_whose_storage_fails_costs_its_task_alone(
    run: RunDirectory, follow: Callable[..., int], evaluated: list[str], tmp_path: Path,
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    data = write_mrpc(tmp_path / "data")
    words = ("--epochs", "1", "--learning-rates", "1e-3", "--data", str(data), "--final-tasks", "mrpc,mlm")
    file = data / "MRPC" / "train.tsv"
    with monkeypatch.context() as patch:
        assert follow(*words, events=[lambda: fail_at(patch, file, named=False), done(run)]) == 1
    assert f"mrpc: {file}: can't be read now ({REASON}); give the same command again" in caplog.messages
    assert tasks_of(run, "step-000009-final") == ["mlm"]
    assert follow(*words) == 0
    assert tasks_of(run, "step-000009-final") == ["mlm", "mrpc"]


def test_a_file_that_describes_a_task_may_change_meanwhile(
    run: RunDirectory, follow: Callable[..., int], evaluated: list[str], tmp_path: Path
) -> None:
    task = tmp_path / "tickets.toml"
    task.write_text('text = "t"\nlabels = ["0", "1"]\nepochs = [1]\nlearning_rates = [1e-3]\n')
    for split in ("train", "dev"):
        write_table(tmp_path / f"{split}.tsv", ["t", "label"], [[f"word{i}", i % 2] for i in range(8)])
    words = ("--tasks", f"fill_mask,{task}", "--data", str(tmp_path))
    assert follow(*words, events=[lambda: task.write_text("text = "), done(run)]) == 0
    assert evaluated == ["step-000007", "step-000009"]


def test_a_folder_that_is_no_step_is_skipped(
    run: RunDirectory, follow: Callable[..., int], evaluated: list[str]
) -> None:
    (run.exports / "step-9x").mkdir()
    assert follow(events=[done(run)]) == 0
    assert evaluated == ["step-000007", "step-000009"]


def test_an_export_that_vanishes_is_skipped(
    run: RunDirectory, follow: Callable[..., int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run_here = watch._run_evaluation

    def vanish_then_run(words: Sequence[str], claim: int) -> int:
        shutil.rmtree(run.export(7), ignore_errors=True)
        return run_here(words, claim)

    monkeypatch.setattr(watch, "_run_evaluation", vanish_then_run)
    with caplog.at_level("INFO"):
        assert follow(events=[done(run)]) == 0
    assert "step-000007: deleted before it was evaluated" in caplog.text
    assert tasks_of(run, "step-000009") == ["fill_mask"]


@pytest.mark.parametrize(
    ("code", "words"), [(-9, "killed by SIGKILL"), (-35, "killed by signal 35"), (1, "exit code 1")]
)
def test_an_evaluation_that_dies_does_not_end_the_watch(
    run: RunDirectory,
    follow: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    code: int,
    words: str,
) -> None:
    run_here = watch._run_evaluation
    monkeypatch.setattr(
        watch, "_run_evaluation", lambda w, claim: code if "step-000007" in w[1] else run_here(w, claim)
    )
    assert follow(events=[lambda: None, done(run)]) == 1
    assert f"step-000007: the evaluation failed ({words})" in caplog.text
    assert tasks_of(run, "step-000009") == ["fill_mask"]


def test_a_full_disk_is_waited_for_as_long_as_the_run_goes_on(
    run: RunDirectory, follow: Callable[..., int], evaluated: list[str], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    claimed, full = watch.claimed, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fill_the_disk() -> None:
        add_export(run, 11)
        monkeypatch.setattr(watch, "claimed", mock.Mock(side_effect=full))

    def make_room() -> None:
        monkeypatch.setattr(watch, "claimed", claimed)

    assert follow(events=[fill_the_disk, lambda: None, make_room, done(run)]) == 0
    assert evaluated == ["step-000007", "step-000009", "step-000011"]
    folder = run.path / "evaluations" / "step-000011"
    told = f"{folder}: can't be written ([Errno 28] No space left on device); it is tried again at every look"
    assert [message for message in caplog.messages if "can't be written" in message] == [told]

    add_export(run, 12)
    monkeypatch.setattr(watch, "claimed", mock.Mock(side_effect=full))
    assert follow() == 1  # the run is done: nothing more is waited for
    assert f"failed: {folder.with_name('step-000012')}\n" in capsys.readouterr().err


def test_a_run_that_can_not_be_read_is_looked_at_again_and_told_of_once(
    run: RunDirectory, follow: Callable[..., int], evaluated: list[str], caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def end() -> None:
        run.outcome_file.rmdir()
        run.set_outcome("done")

    run.outcome_file.mkdir()
    told = f"{run.path}: can't be read ([Errno 21] Is a directory: '{run.outcome_file}'); "
    assert follow("--once") == 2
    assert capsys.readouterr().err == f"error: {told}mend that and look again\n"
    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "outcome", property(mock.Mock(side_effect=OSError(errno.ESTALE, "stale"))))
        assert follow("--once") == 1  # it may pass
    assert follow(events=[lambda: None, end]) == 0
    again = f"{told}it is tried again at every look"
    assert [message for message in caplog.messages if "can't be read" in message] == [again]
    assert evaluated == ["step-000007", "step-000009"]


def test_of_a_run_that_is_done_exports_on_a_disk_that_is_not_mounted_are_waited_for(
    run: RunDirectory, follow: Callable[..., int], evaluated: list[str], tmp_path: Path,
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    away = run.exports.rename(tmp_path / "unmounted")
    run.exports.symlink_to(tmp_path / "disk")
    run.set_outcome("done")
    why = (
        f"{run.exports}: can't be read now (a link to what is not there: mount that, or remove the link to do without)"
    )
    assert follow("--once") == 1
    assert capsys.readouterr().err == f"error: {why}; give the same command again\n"
    assert follow(events=[lambda: away.rename(tmp_path / "disk")]) == 0
    assert [message for message in caplog.messages if why in message] == [
        f"{run.path}: can't be read ({why}; give the same command again); it is tried again at every look"
    ]
    assert evaluated == ["step-000007", "step-000009"]


def test_that_the_last_step_of_a_run_has_no_export_is_told(
    run: RunDirectory, follow: Callable[..., int], evaluated: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Final tasks would pass for those of the finished model."""
    run.checkpoint(9).mkdir(parents=True)
    run.set_outcome("done")
    assert follow("--final-tasks", "nsp") == 0
    told = "the newest export, but the run ended with step"
    assert told not in caplog.text
    run.checkpoint(12).mkdir()
    assert follow("--final-tasks", "mlm") == 0
    assert [message for message in caplog.messages if told in message] == [
        f"{run.export(9)}: {told} 12: its command, given again, exports that"
    ]
    assert evaluated == ["step-000007", "step-000009", "step-000009-final", "step-000009-final"]
    run.latest.write_text("step-000099")  # whatever is wrong with checkpoints
    assert follow("--final-tasks", "mlm") == 0


@pytest.mark.parametrize("option", ["--once", "--poll=1"])
def test_a_run_that_can_not_be_looked_for_at_the_start(
    run: RunDirectory, follow: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    option: str,
) -> None:  # fmt: skip
    """Nobody knows whether one is there, or is to be waited for."""
    fail_on(monkeypatch, os, "stat", run.config)
    assert follow(option) == 1
    assert capsys.readouterr() == ("", f"error: [Errno {errno.EIO}] {REASON}: '{run.config}'\n")


def test_an_evaluation_that_finds_the_disk_full_is_made_when_there_is_room_again(
    run: RunDirectory, follow: Callable[..., int], evaluated: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_here, has_room = watch._run_evaluation, True

    def take_file(**of: Any) -> Any:
        if not has_room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return io.FileIO(os.memfd_create("room"), "w")

    def fill_the_disk(words: Sequence[str], claim: int) -> int:
        nonlocal has_room
        assert has_room, "what is computed without any is lost"
        if has_room := evaluated != ["step-000007"]:
            return run_here(words, claim)
        evaluated.append("step-000009, in vain")
        return 1

    def make_room() -> None:
        nonlocal has_room
        has_room = True

    monkeypatch.setattr("tempfile.TemporaryFile", take_file)
    monkeypatch.setattr(watch, "_run_evaluation", fill_the_disk)
    assert follow(events=[lambda: None, make_room, done(run)]) == 0
    assert evaluated == ["step-000007", "step-000009, in vain", "step-000009"]


def test_what_another_watcher_works_on_is_left_to_it(
    run: RunDirectory, follow: Callable[..., int], evaluated: list[str]
) -> None:
    run.set_outcome("done")
    lock = run.path / "evaluations" / ".step-000007.lock"
    lock.parent.mkdir()
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        # It is waited for, as the run is not evaluated before the other one has finished; the other one dies.
        assert follow(events=[lambda: None, lambda: fcntl.flock(held, fcntl.LOCK_UN)]) == 0
    assert evaluated == ["step-000009", "step-000007"]


def test_a_file_system_without_locks(
    run: RunDirectory,
    follow: Callable[..., int],
    evaluated: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    flock = fcntl.flock

    def no_locks(file: Any, operation: int) -> None:
        if operation & fcntl.LOCK_EX:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert follow("--once") == 0
    assert evaluated == ["step-000007", "step-000009"]
    warning = f"{run.path / 'evaluations'}: the file system has no locks; make sure no other process uses it"
    assert warning in caplog.messages


def train_anew(run: RunDirectory, step: int, shards: Path) -> None:
    """Other weights of the same size, which a copy has brought: with the time of modification that the old ones had."""
    before = (run.export(step) / WEIGHTS).stat()
    state = {name: tensor + 0.01 for name, tensor in random_state().items()}
    save_export(run.export(step), state, CONFIG, shards / "tokenizer", {"run": str(run.path), "step": step})
    os.utime(run.export(step) / WEIGHTS, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (run.export(step) / WEIGHTS).stat().st_size == before.st_size


def test_a_step_that_was_trained_anew_is_evaluated_anew(
    run: RunDirectory, follow: Callable[..., int], evaluated: list[str], shards: Path
) -> None:
    assert follow(events=[lambda: None, lambda: train_anew(run, 9, shards), done(run)]) == 0
    assert evaluated == ["step-000007", "step-000009", "step-000009"]
    train_anew(run, 7, shards)
    assert follow() == 0
    assert evaluated[3:] == ["step-000007"]


def test_a_step_that_is_trained_anew_while_it_is_evaluated_is_evaluated_anew(
    run: RunDirectory, follow: Callable[..., int], evaluated: list[str], shards: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    run_here = watch._run_evaluation

    def run_and_train(words: Sequence[str], claim: int) -> int:
        code = run_here(words, claim)
        if evaluated == ["step-000007"]:
            train_anew(run, 7, shards)
        return code

    monkeypatch.setattr(watch, "_run_evaluation", run_and_train)
    assert follow("--once") == 0
    assert evaluated == ["step-000007", "step-000007", "step-000009"]
    results = read_results(run.path / "evaluations" / "step-000007" / "results.json")
    assert results["checkpoint"]["weights_blake2b"] == checksum(run.export(7) / WEIGHTS)


@pytest.mark.parametrize("finished", [True, False])
def test_nothing_of_the_old_weights_stays_beside_a_step_that_was_trained_anew(
    run: RunDirectory, follow: Callable[..., int], evaluated: list[str], shards: Path, tmp_path: Path, finished: bool
) -> None:
    data = ("--once", "--data", str(write_mrpc(tmp_path / "data")), "--epochs", "1", "--learning-rates", "1e-3")
    assert follow(*data, "--tasks", "mrpc", "--save-models", "--test") == 0
    folder = run.path / "evaluations" / "step-000007"
    if not finished:
        (folder / "results.json").unlink()
    train_anew(run, 7, shards)
    assert follow(*data, "--tasks", "fill_mask") == 0
    left = {file.name for file in folder.iterdir()}
    assert left == {".collect.lock", ".weights.json", "results.json"}
    assert follow(*data, "--tasks", "mrpc") == 0
    assert tasks_of(run, "step-000007") == ["fill_mask", "mrpc"]


def test_weights_that_were_written_over_are_evaluated_anew(
    run: RunDirectory, follow: Callable[..., int], evaluated: list[str], shards: Path
) -> None:
    assert follow("--once") == 0
    train_anew(run, 7, shards)
    elsewhere = run.path / "elsewhere"
    elsewhere.mkdir()
    (run.path / "evaluations" / "step-000007" / "models").symlink_to(elsewhere)
    subprocess.run(["cp", "-p", run.export(7) / WEIGHTS, run.export(9) / WEIGHTS], check=True)  # whose inode stays
    assert follow("--once") == 0
    assert evaluated[2:] == ["step-000007", "step-000009"]
    assert elsewhere.is_dir()
    assert not (run.path / "evaluations" / "step-000007" / "models").is_symlink()


def test_weights_that_were_evaluated_are_not_read_again(
    run: RunDirectory, follow: Callable[..., int], evaluated: list[str], read: list[str], tmp_path: Path
) -> None:
    run.set_outcome("done")
    assert follow("--final-tasks", "mlm") == 0
    assert read == ["step-000007", "step-000009", "step-000009"]
    assert follow("--final-tasks", "mlm") == 0  # nor by another watcher
    add_export(run, 11)
    assert follow("--once") == 0
    assert read[3:] == ["step-000011"]


def test_of_a_copied_run_the_weights_are_read_once(
    run: RunDirectory, follow: Callable[..., int], evaluated: list[str], read: list[str]
) -> None:
    assert follow("--once") == 0
    original = run.path.rename(run.path.with_name("original"))
    subprocess.run(["cp", "-a", original, run.path], check=True)
    for _ in range(2):
        assert follow("--once") == 0
    assert read == ["step-000007", "step-000009"] * 2
    assert evaluated == ["step-000007", "step-000009"]


def test_what_another_watcher_reads_is_left_to_it(
    run: RunDirectory, follow: Callable[..., int], evaluated: list[str], read: list[str]
) -> None:
    write_evaluation(run.path, 7, fill_mask=task())
    with (run.path / "evaluations" / ".step-000007.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert follow("--once") == 0
    assert read == evaluated == ["step-000009"]


def test_results_are_read_again_when_they_have_changed(
    run: RunDirectory, follow: Callable[..., int], evaluated: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[list[str]] = [[]]

    def count(path: Path) -> dict[str, Any]:
        looks[-1].append(path.parent.name)
        return read_results(path)

    def look() -> None:
        looks.append([])

    def write_anew() -> None:
        look()
        file = run.path / "evaluations" / "step-000009" / "results.json"
        write_results(file, read_results(file))

    monkeypatch.setattr(watch, "read_results", count)
    assert follow(events=[look, look, write_anew, look, lambda: [look(), run.set_outcome("done")]]) == 0
    assert looks[2:] == [[], ["step-000009"], [], []]
    assert evaluated == ["step-000007", "step-000009"]


def test_results_that_lose_a_task_are_made_anew(
    run: RunDirectory, follow: Callable[..., int], evaluated: list[str]
) -> None:
    def lose() -> None:
        file = run.path / "evaluations" / "step-000007" / "results.json"
        write_results(file, read_results(file) | {"tasks": {}})

    assert follow(events=[lambda: None, lose, done(run)]) == 0
    assert evaluated == ["step-000007", "step-000009", "step-000007"]


def test_more_tasks_than_were_evaluated(run: RunDirectory, follow: Callable[..., int], evaluated: list[str]) -> None:
    assert follow("--once") == 0
    assert follow("--once", "--tasks", "fill_mask,mlm") == 0
    assert evaluated == ["step-000007", "step-000009"] * 2
    assert tasks_of(run, "step-000007") == ["fill_mask", "mlm"]


def test_watchers_of_other_tasks_share_a_folder(
    run: RunDirectory, follow: Callable[..., int], evaluated: list[str]
) -> None:
    run.set_outcome("done")
    for tasks, final in (("fill_mask", "nsp"), ("mlm", "mlm"), ("fill_mask", "mlm"), ("mlm", "nsp")):
        assert follow("--tasks", tasks, "--final-tasks", final) == 0
    assert evaluated == ["step-000007", "step-000009", "step-000009-final"] * 2
    assert tasks_of(run, "step-000009") == ["fill_mask", "mlm"]
    assert tasks_of(run, "step-000009-final") == ["mlm", "nsp"]


def test_results_made_otherwise_are_named_with_what_to_delete_to_have_them_anew(
    run: RunDirectory, follow: Callable[..., int], evaluated: list[str], tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    data = ("--once", "--data", str(write_mrpc(tmp_path / "data")))
    points = ("--tasks", "mrpc", "--epochs", "1", "--learning-rates", "1e-3")
    folder = run.path / "evaluations" / "step-000007"
    assert follow(*data, *points) == 0
    assert follow(*data, *points, "--seeds", "2") == 1
    told = "made with other points of the grid of mrpc; delete its results.json to have it evaluated anew"
    assert f"{folder}: {told}" in caplog.messages
    assert follow(*data, *points, "--max-length", "24") == 1
    assert f"{folder}: made with --max-length 48; delete the folder to have it evaluated anew" in caplog.messages
    assert evaluated == ["step-000007", "step-000009"]
    (folder / "results.json").unlink()
    shutil.rmtree(folder.with_name("step-000009"))
    assert follow(*data, *points, "--seeds", "2") == 0
    assert evaluated == ["step-000007", "step-000009"] * 2


def test_results_of_other_samples_are_named_and_left(
    run: RunDirectory, follow: Callable[..., int], evaluated: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert follow("--once", "--tasks", "mlm", "--samples", "9") == 0
    assert follow("--once", "--tasks", "mlm", "--samples", "20") == 1
    assert evaluated == ["step-000007", "step-000009"]
    folder = run.path / "evaluations" / "step-000007"
    assert f"{folder}: made with --samples 9; delete the folder to have it evaluated anew" in caplog.messages
    shutil.rmtree(folder.parent)
    assert follow("--once", "--tasks", "mlm", "--samples", "100") == 0
    assert follow("--once", "--tasks", "mlm", "--samples", "2000") == 0  # the shards have no more than 33
    assert evaluated == ["step-000007", "step-000009"] * 2


def test_results_of_another_limit_are_named_and_left(
    run: RunDirectory, follow: Callable[..., int], evaluated: list[str], tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    for step, limit in ((7, 4), (9, None)):
        file = write_evaluation(run.path, step, mrpc=task({"selected_by": "f1"}, f1=50.0), mlm=task(loss=1.0))
        write_results(file, read_results(file) | {"data": {"path": "/data", "limit": limit}})
    learning = ("--once", "--tasks", "mrpc", "--data", str(write_mrpc(tmp_path)))
    assert follow(*learning) == 1
    assert follow(*learning, "--limit", "4") == 1
    told = [message.partition("; delete")[0] for message in caplog.messages if "made with" in message]
    evaluations = run.path / "evaluations"
    assert told == [
        f"{evaluations / 'step-000007'}: made with --limit 4",
        f"{evaluations / 'step-000009'}: made without --limit",
    ]
    assert follow("--once", "--tasks", "mlm") == 0  # which reads no data set
    assert evaluated == []


def test_no_run_is_there_yet(
    tmp_path: Path, follow: Callable[..., int], run: RunDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as a folder whose name was mistyped, or that the run's own job will fill."""
    shutil.rmtree(run.exports)
    recipe = run.config.read_text()
    run.config.unlink()
    assert follow(events=[lambda: None, lambda: run.config.write_text(recipe), done(run)]) == 0
    assert caplog.messages == [f"{run.path}: no run is there yet; waiting for one", f"{NO_SAMPLES}fill_mask"]


def test_nothing_of_the_trainer_is_touched(run: RunDirectory, follow: Callable[..., int]) -> None:
    def files() -> dict[str, tuple[int, bytes]]:
        found = (path for path in run.path.rglob("*") if path.is_file() and "evaluations" not in path.parts)
        return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in found}

    before = files()
    assert follow("--once") == 0
    assert files() == before


@pytest.fixture
def store(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty one beside the run, which is tracked there."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    uri = empty_store(run.path.parent / "mlflow.db")
    prepare(run, "tests")
    return uri


def test_evaluations_become_children_of_the_training(
    run: RunDirectory, shards: Path, evaluated: list[str], store: str
) -> None:
    parent = sync(run)
    arguments = [str(run.path), "--tasks", "mlm", "--shards", str(shards), "--samples", "8"]
    assert main([*arguments, "--once"]) == 0  # while the run trains: its own thread is the writer
    assert len(list((run.path / "mlflow.pending").iterdir())) == 2
    run.set_outcome("done")
    assert main([*arguments, "--final-tasks", "fill_mask"]) == 0

    client = MlflowClient(store)
    assert client.get_run(parent).info.status == "FINISHED"
    experiment = client.get_experiment_by_name("tests").experiment_id
    children = client.search_runs([experiment], f"tags.mlflow.parentRunId = '{parent}'", order_by=["start_time"])
    assert [child.info.run_name for child in children] == ["eval step-000007", *["eval step-000009"] * 2]
    for child in children[:2]:
        figures = read_results(run.path / "evaluations" / child.info.run_name.split()[1] / "results.json")
        assert child.data.metrics["mlm_perplexity"] == figures["tasks"]["mlm"]["metrics"]["perplexity"]["value"]
        assert child.data.tags["export_blake2b"] == figures["checkpoint"]["weights_blake2b"]
        assert {"step", "manifest_blake2b", "config_blake2b", "code_version"} <= child.data.tags.keys()


@pytest.mark.usefixtures("store")
def test_what_waits_for_mlflow_goes_on_waiting_where_that_is_out_of_reach(
    run: RunDirectory, follow: Callable[..., int], evaluated: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    (run.path.parent / "mlflow.db").write_text("no database")
    run.pending_evaluations.mkdir()
    (run.pending_evaluations / "step-000007.json").write_text("{}")
    run.set_outcome("done")
    assert follow() == 0
    (warning,) = (message for message in caplog.messages if message.startswith("MLflow: "))
    assert warning.endswith(f"; later: python -m trainer.tracking sync {run.path}")


@pytest.mark.usefixtures("store")
def test_that_nobody_can_tell_what_waits_for_mlflow_is_told_at_the_end(
    run: RunDirectory, follow: Callable[..., int], evaluated: list[str], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    run.pending_evaluations.mkdir()
    run.set_outcome("done")
    fail_on(monkeypatch, os, LISTING, run.pending_evaluations)
    assert follow() == 0
    (warning,) = (message for message in caplog.messages if message.startswith("MLflow: "))
    told = f"{run.pending_evaluations}: can't be looked through for evaluations that wait ({REASON})"
    assert warning == f"MLflow: {told}; later: python -m trainer.tracking sync {run.path}"


def test_the_password_of_an_mlflow_that_is_out_of_reach_is_not_shown(
    run: RunDirectory, follow: Callable[..., int], evaluated: list[str], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@127.0.0.1:1")
    prepare(run, "tests")
    run.pending_evaluations.mkdir()
    (run.pending_evaluations / "step-000007.json").write_text("{}")
    run.set_outcome("done")
    assert follow() == 0
    (warning,) = (message for message in caplog.messages if message.startswith("MLflow: "))
    assert "secret" not in warning
    assert "\n" not in warning


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tasks", "mlm,glew"], "error: no task is named 'glew'"),
        (["--final-tasks", "glew"], "error: no task is named 'glew'"),
        (["--shards", "gone"], "error: gone: no such directory\n"),
        (["--data", "gone"], "error: gone: no such directory\n"),
        ([], "error: mlm reads held-out samples; give the folder of their shards with --shards\n"),
        (["--tasks", "fill_mask", "--final-tasks", "mrpc"], "error: mrpc reads a data set; give the folder of its "),
        (["--tasks", "fill_mask", "--output", "x"], "error: --checkpoint, --output, --points-only and --grid-* are "),
        *(
            (["--tasks", "fill_mask", *own], "error: --checkpoint, --output, --points-only and --grid-* are ")
            for own in (["--checkpoint", "x"], ["--points-only"], ["--grid-index", "0", "--grid-count", "2"])
        ),
    ],
)
def test_mistakes_end_with_one_line(
    run: RunDirectory, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main([str(run.path), *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith(message)
    assert error.count("\n") == 1


def test_a_data_set_of_the_final_tasks_that_is_missing_is_told_at_once(
    run: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not after the weeks of a training."""
    data = write_mrpc(tmp_path / "data")
    assert main([str(run.path), "--tasks", "fill_mask", "--final-tasks", "mrpc,rte", "--data", str(data)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {data}: no train.tsv in RTE/")
    assert error.count("\n") == 1
    assert not (run.path / "evaluations").exists()


def test_results_are_not_taken_for_what_is_asked_while_that_can_not_be_read(
    run: RunDirectory, follow: Callable[..., int], evaluated: list[str], shards: Path, tmp_path: Path,
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """For good, since what is settled is not looked at again."""
    others = write_shards(tmp_path / "shards", sequence_lengths=(32, 40, 64), validation=(6, 6))
    assert main([str(run.path), "--tasks", "mlm", "--shards", str(others), *OPTIONS, "--once"]) == 0
    manifest = shards / "manifest.json"
    with monkeypatch.context() as patch:
        fail_on(patch, Path, "read_bytes", manifest)
        assert follow("--tasks", "mlm", "--once") == 1
        told = f"{manifest}: can't be read now ({REASON}); give the same command again"
        assert capsys.readouterr().err == f"error: {told}\n"
        assert follow("--tasks", "mlm", events=[lambda: None, lambda: (patch.undo(), done(run)())]) == 1
    again = f"{run.path}: can't be read ([Errno 5] {REASON}: '{manifest}'); it is tried again at every look"
    assert caplog.messages.count(again) == 1
    for step in ("step-000007", "step-000009"):
        folder = run.path / "evaluations" / step
        assert f"{folder}: made with other shards; delete the folder to have it evaluated anew" in caplog.messages
    assert evaluated == ["step-000007", "step-000009"]


@pytest.mark.parametrize(
    ("manifest", "reason"), [("{", "not a shard manifest ("), (None, "no manifest.json, so its shards")]
)
def test_shards_that_are_damaged_or_not_complete_are_told_at_once(
    run: RunDirectory, evaluated: list[str], shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    manifest: str | None, reason: str,
) -> None:  # fmt: skip
    """No results could be compared by them, and what is settled stays so; who reads none may have such."""
    damaged = tmp_path / "shards"
    shutil.copytree(shards, damaged)
    if manifest is None:
        (damaged / "manifest.json").unlink()
    else:
        (damaged / "manifest.json").write_text(manifest)
    words = (str(run.path), "--tasks", "fill_mask", "--shards", str(damaged), *OPTIONS)
    assert main([*words, "--final-tasks", "nsp"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {damaged}")
    assert reason in error
    assert error.count("\n") == 1
    assert evaluated == []
    assert main([*words, "--once"]) == 0


@pytest.mark.parametrize("name", ["MRPC/train.tsv", "sentences.txt"])
def test_what_is_evaluated_on_and_can_not_be_read_for_a_moment_is_told_at_once(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    data = write_mrpc(tmp_path / "data")
    (data / "sentences.txt").write_text("a [MASK]\n")
    words = ("--tasks", "fill_mask", "--final-tasks", "mrpc", "--data", data, "--sentences", data / "sentences.txt")
    fail_at(monkeypatch, data / name)
    assert main([str(run.path), *map(str, words)]) == 1
    told = f"error: {data / name}: can't be read now ({REASON}); give the same command again\n"
    assert capsys.readouterr() == ("", told)


@pytest.mark.parametrize("option", ["--once", "--poll=1"])
def test_a_run_that_takes_no_evaluations(
    run: RunDirectory, shards: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    file = run.path / "evaluations"
    file.write_text("mine")  # which root is refused too
    assert main([str(run.path), "--shards", str(shards), option]) == 2
    assert capsys.readouterr().err == f"error: {file}: not a directory; choose another place\n"


def test_a_run_that_is_not_there_yet_is_waited_for(
    run: RunDirectory, follow: Callable[..., int], evaluated: list[str], tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    later = tmp_path / "later"
    run.path.rename(later)
    assert follow(events=[lambda: later.rename(run.path), done(run)]) == 0
    assert f"{run.path}: no run is there yet; waiting for one" in caplog.text
    assert evaluated == ["step-000007", "step-000009"]


def test_no_run_to_look_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for path in (tmp_path / "gone", tmp_path, tmp_path / "loop"):
        assert main([str(path), "--tasks", "fill_mask", "--once"]) == 2
        assert capsys.readouterr().err == f"error: {path}: no run is there; give a run directory\n"


def test_a_run_whose_folder_is_not_there_can_not_be_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "gone" / "later"), "--tasks", "fill_mask"]) == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path / 'gone'}: no such directory; ")


def test_a_word_that_is_no_option_is_told_by_the_watch_itself(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([str(run.path), "--sahrds", "x"])
    error = "python -m eval.watch: error: unknown option '--sahrds': did you mean '--shards'?; see --help\n"
    assert capsys.readouterr().err == error


def test_several_directories_of_shards_are_told_in_a_line(
    run: RunDirectory, shards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([str(run.path), "--shards", str(shards), "more"])
    error = capsys.readouterr().err
    assert error.startswith("python -m eval.watch: error: --shards: an evaluation reads one directory; ")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ["--poll", "0"],
        ["--poll", "inf"],
        ["--poll", "1e300"],
        ["--poll", "x"],
        ["--sample", "9"],
        ["--task", "nsp"],
        ["--samples", "-1"],
    ],
)
def test_words_that_are_no_options(run: RunDirectory, words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(run.path), *words])
    assert ended.value.code == 2


def start_watcher(run: RunDirectory, *options: str) -> subprocess.Popen[str]:
    return start(sys.executable, "-m", "eval.watch", run.path, "--poll", "0.2", *OPTIONS, *options)


def test_a_watcher_that_waits_is_interrupted(run: RunDirectory) -> None:
    shutil.rmtree(run.exports)
    run.config.unlink()
    watcher = start_watcher(run, "--tasks", "fill_mask")
    assert watcher.stderr
    assert "no run is there yet" in watcher.stderr.readline()
    assert_interrupted(watcher, signal.SIGINT, INTERRUPTED)


@pytest.mark.slow
def test_watchers_that_are_killed_and_share_the_work(run: RunDirectory, shards: Path) -> None:
    """Two at once; one is killed during an evaluation, which goes on and stays claimed; a third takes its place."""
    evaluations = run.path / "evaluations"
    options = ("--tasks", "mlm", "--shards", str(shards))
    watchers = [start_watcher(run, *options) for _ in range(2)]
    wait_for(lambda: len(list(evaluations.glob(".*.lock"))) == 2)
    wait_for(lambda: all(psutil.Process(watcher.pid).children() for watcher in watchers))
    watchers[0].kill()
    watchers[0].wait()
    add_export(run, 11)
    watchers.append(start_watcher(run, *options))
    wait_for(lambda: len(list(evaluations.glob("*/results.json"))) == 3)
    run.set_outcome("done")
    errors = [watcher.communicate(timeout=500)[1] for watcher in watchers]
    assert [watcher.returncode for watcher in watchers] == [-signal.SIGKILL, 0, 0]
    begun = [line.split()[2] for error in errors for line in error.splitlines() if line.endswith(": mlm")]
    assert sorted(begun) == ["step-000007:", "step-000009:", "step-000011:"]  # none twice
    for step in (7, 9, 11):
        assert tasks_of(run, step_name(step)) == ["mlm"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_watcher_that_is_stopped_stops_its_evaluation(
    run: RunDirectory, shards: Path, number: signal.Signals
) -> None:
    watcher = start_watcher(run, "--tasks", "mlm", "--shards", str(shards))
    lock = run.path / "evaluations" / ".step-000007.lock"
    wait_for(lock.exists)
    assert_interrupted(watcher, number, INTERRUPTED)
    assert_free([lock])


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_watcher_that_is_stopped_stops_the_workers_of_its_evaluation(
    run: RunDirectory, tmp_path: Path, number: signal.Signals
) -> None:
    data = write_mrpc(tmp_path / "data")
    learning = ("--epochs", "100000", "--learning-rates", "1e-3", "--seeds", "2", "--workers", "2")
    watcher = start_watcher(run, "--tasks", "mrpc", "--data", str(data), *learning)
    evaluations = run.path / "evaluations"
    wait_for(lambda: len(list(evaluations.glob("step-000007/mrpc/points/.lr*.lock"))) == 2)
    assert_interrupted(watcher, number, INTERRUPTED)
    assert_free(evaluations.rglob(".*.lock"))
