import contextlib
import dataclasses
import errno
import json
import os
from pathlib import Path

import pytest

from preprocessing.schema import checksum_of
from preprocessing.storage_errors import UnavailableError
from tests.trainer.conftest import STATE
from trainer.checkpoint import (
    begin_checkpoint,
    commit_checkpoint,
    keep_newest,
    read_run_state,
    remove_folder,
    set_aside,
)
from trainer.files import append_lines, read_lines
from trainer.loss_scale import LossScale
from trainer.loss_trend import LossTrend
from trainer.run_directory import CheckpointError, step_folders


def commit(run, step, keep=0):
    begin_checkpoint(run, step)
    (run.staging(step) / "weights").write_text(f"weights of {step}")
    commit_checkpoint(run, dataclasses.replace(STATE, step=step))
    keep_newest(run.checkpoints, keep)


def test_a_run_without_checkpoints(run):
    assert run.candidates() == []
    assert run.step == 0


def test_a_committed_checkpoint_is_the_latest(run):
    commit(run, 4)
    commit(run, 8)
    directory = run.candidates()[0]
    assert directory == run.checkpoint(8)
    assert read_run_state(directory) == dataclasses.replace(STATE, step=8)
    assert (directory / "weights").read_text() == "weights of 8"
    assert run.step == 8


def test_an_interrupted_checkpoint_is_invisible_and_does_not_stand_in_the_way(run):
    commit(run, 4)
    begin_checkpoint(run, 8)
    (run.staging(8) / "half").write_text("half of the weights")
    assert run.step == 4
    assert not run.checkpoint(8).exists()
    commit(run, 8)
    assert run.step == 8
    assert not (run.checkpoint(8) / "half").exists()


def test_what_is_named_is_on_disk_and_an_older_one_goes_last(run, monkeypatch):
    """The order of these calls is all that a test can see of what a power cut would leave."""
    commit(run, 4)
    append_lines(run.metrics, {"step": 8})
    append_lines(run.validation_metrics, {"step": 8})
    done = []

    def noted(what, call):
        def call_and_note(path, *to):
            done.append(" ".join([what, *(Path(p).name for p in (path, *to))]))
            return call(path, *to)

        return call_and_note

    monkeypatch.setattr("os.fsync", lambda file: done.append(f"sync {Path(f'/proc/self/fd/{file}').readlink().name}"))
    for name in ("rename", "replace"):
        monkeypatch.setattr(Path, name, noted("rename", getattr(Path, name)))
    commit(run, 8, keep=1)
    assert done == [
        "sync .run_state.json.incomplete",
        "rename .run_state.json.incomplete run_state.json",
        "sync metrics.jsonl",
        "sync validation.jsonl",
        "sync .step-000008.incomplete",
        "rename .step-000008.incomplete step-000008",
        "sync checkpoints",
        "sync .latest.incomplete",
        "rename .latest.incomplete latest",
        "sync checkpoints",
        "rename step-000004 .step-000004.removed",
    ]


def test_a_step_that_is_trained_again_replaces_its_checkpoint(run):
    """As after `latest` was set back by hand."""
    commit(run, 4)
    commit(run, 8)
    (run.checkpoint(8) / "old").touch()
    (run.checkpoints / "latest").write_text("step-000004\n")
    commit(run, 8)
    assert run.step == 8
    assert not (run.checkpoint(8) / "old").exists()


def test_old_checkpoints_go_by_number_and_not_by_name(run):
    for step in (999_998, 999_999, 1_000_000):
        commit(run, step, keep=2)
    assert sorted(path.name for path in run.checkpoints.glob("step-*")) == ["step-1000000", "step-999999"]


def test_the_newest_from_before_a_rise_of_the_loss_stays_whatever_comes_after(run):
    for step in (4, 8, 12, 16, 20):
        begin_checkpoint(run, step)
        commit_checkpoint(run, dataclasses.replace(STATE, step=step))
        keep_newest(run.checkpoints, 1, good_step=min(step, 11))
    assert step_folders(run.checkpoints) == [run.checkpoint(8), run.checkpoint(20)]
    keep_newest(run.checkpoints, 1, good_step=20)
    assert step_folders(run.checkpoints) == [run.checkpoint(20)]


def test_keeping_all(run):
    for step in (1, 2, 3):
        commit(run, step, keep=0)
    keep_newest(run.checkpoints, 0)
    assert len(list(run.checkpoints.glob("step-*"))) == 3


def test_the_pointer_can_be_set_back_by_hand(run):
    for step in (4, 8, 12):
        commit(run, step)
    (run.checkpoints / "latest").write_text("step-000008\n")
    assert run.candidates() == [run.checkpoint(8), run.checkpoint(4)]


def test_what_the_pointer_names_is_looked_for_by_its_name(run, monkeypatch):
    """Over NFS a node that listed the folder as it started sees no newer checkpoint for up to a minute."""
    commit(run, 4)
    listed = list(run.checkpoints.iterdir())
    commit(run, 8)
    monkeypatch.setattr(Path, "iterdir", lambda _: iter(listed))
    assert run.candidates() == [run.checkpoint(8), run.checkpoint(4)]
    assert run.step == 8


def test_a_disk_of_checkpoints_that_is_not_mounted_is_no_new_run(run, tmp_path):
    """It would lose the metrics of all steps, and begin again."""
    commit(run, 4)
    disk = run.checkpoints.rename(tmp_path / "disk")
    run.checkpoints.symlink_to(disk)
    assert run.step == 4
    away = disk.rename(tmp_path / "unmounted")
    with pytest.raises(UnavailableError, match=r"checkpoints: can't be read now \(a link to what is not there: mount"):
        run.candidates()
    away.rename(disk)
    assert run.step == 4


def test_without_a_pointer_the_newest_checkpoint_is_the_latest(run):
    for step in (4, 8):
        commit(run, step)
    (run.checkpoints / "latest").unlink()
    assert run.candidates() == [run.checkpoint(8), run.checkpoint(4)]


def test_a_run_that_was_set_back_by_hand_keeps_what_it_trains_then(run):
    for step in (4, 8, 12):
        commit(run, step)
        run.export(step).mkdir(parents=True)
        append_lines(run.metrics, {"step": step})
        append_lines(run.validation_metrics, {"step": step})
    (run.checkpoints / "latest").write_text("step-000004\n")
    aside = set_aside(run, 4)
    begin_checkpoint(run, 6)
    commit_checkpoint(run, dataclasses.replace(STATE, step=6))
    keep_newest(run.checkpoints, 1, keep_every=4)
    run.export(6).mkdir()
    keep_newest(run.exports, 1)
    assert run.candidates() == [run.checkpoint(6), run.checkpoint(4)]
    assert step_folders(run.exports) == [run.export(6)]
    assert aside == run.path / "set_aside" / "1"
    assert (aside / "checkpoints" / "step-000012" / "weights").read_text() == "weights of 12"
    assert [path.name for path in step_folders(aside / "exports")] == ["step-000008", "step-000012"]
    for name in ("metrics.jsonl", "validation.jsonl"):
        assert [line["step"] for line in read_lines(aside / name)] == [4, 8, 12]


def test_what_is_set_aside_again_lies_beside_the_first(run):
    for step, back, folder in ((8, 4, "1"), (8, 4, "2")):
        commit(run, 4)
        commit(run, step)
        assert set_aside(run, back) == run.path / "set_aside" / folder
    assert set_aside(run, 4) is None


def test_what_lies_on_another_disk_is_set_aside_too(run, monkeypatch):
    """Where checkpoints/ is a link or a volume; a rename does not get from one to the other."""
    for step in (4, 8):
        commit(run, step)

    def rename(path, target):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path, None, target)

    monkeypatch.setattr(os, "rename", rename)
    aside = set_aside(run, 4)
    assert (aside / "checkpoints" / "step-000008" / "weights").read_text() == "weights of 8"
    assert run.candidates() == [run.checkpoint(4)]


@pytest.mark.parametrize("cut", [1, 2, 3])
@pytest.mark.parametrize("step", [0, 4])
def test_setting_aside_may_be_cut_short(run, monkeypatch, step, cut):
    """A pointer to a checkpoint that was moved away would end the run for good."""
    for committed in (4, 8, 12):
        commit(run, committed)
    renames = []

    def rename_or_die(path, target, rename=os.rename):
        renames.append(path)
        if len(renames) == cut:
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", rename_or_die)
        with contextlib.suppress(KeyboardInterrupt):
            set_aside(run, step)
    run.candidates()
    set_aside(run, step)
    assert run.step == step
    assert len(list((run.path / "set_aside").glob("*/checkpoints/*"))) == 3 - bool(step)


def test_keeping_every_nth_for_good(run):
    for step in range(1, 9):
        begin_checkpoint(run, step)
        commit_checkpoint(run, dataclasses.replace(STATE, step=step))
        keep_newest(run.checkpoints, 2, keep_every=3)
    assert sorted(path.name for path in run.checkpoints.glob("step-*")) == [f"step-{n:06d}" for n in (3, 6, 7, 8)]


@pytest.mark.parametrize("pointer", [b"step-000099", b"../checkpoints/step-000004", b"", b"step-\xff"])
def test_a_pointer_to_nothing_is_an_error_that_says_so(run, pointer):
    commit(run, 4)
    (run.checkpoints / "latest").write_bytes(pointer)
    with pytest.raises(CheckpointError, match="which is not there; write the name of a checkpoint into it"):
        run.candidates()


@pytest.mark.parametrize(
    "text", ['{"step": 4}', '{"step": 4, "loss_scale": 3}', "[]", "null", "{", "[" * 100_000, None]
)
def test_a_damaged_or_missing_run_state(run, text):
    commit(run, 4)
    path = run.checkpoint(4) / "run_state.json"
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(CheckpointError, match=r"run_state\.json: not a run state"):
        read_run_state(run.checkpoint(4))


@pytest.mark.parametrize(("right", "wrong"), [
    ('"samples": 32', '"samples": 36'), ('"scale": 65536.0', '"scale": 65532.0'), ('"blake2b"', '"blake2c"'),
])  # fmt: skip
def test_a_run_state_whose_bits_have_changed_is_damaged(run, right, wrong):
    begin_checkpoint(run, 4)
    commit_checkpoint(run, dataclasses.replace(STATE, loss_scale=LossScale(2.0**16, 7, 2)))
    path = run.checkpoint(4) / "run_state.json"
    path.write_text(path.read_text().replace(right, wrong))
    with pytest.raises(CheckpointError, match=r"run_state\.json: not a run state"):
        read_run_state(run.checkpoint(4))


@pytest.mark.parametrize(("name", "value"), [
    ("step", "x"), ("step", None), ("step", float("nan")), ("step", 4.0), ("step", True), ("samples", []),
    ("manifest_blake2b", 5), ("code", []), ("loss_scale", {"scale": 2.0}), ("another", 1),
    ("trend", {"mean": 2.0}), ("trend", {"mean": 2.0, "lowest": "x", "good_step": 3}),
])  # fmt: skip
def test_a_run_state_of_other_kinds_of_values_is_none_whatever_its_checksum(run, name, value):
    commit(run, 4)
    path = run.checkpoint(4) / "run_state.json"
    values = {**json.loads(path.read_text()), name: value}
    del values["blake2b"]
    text = json.dumps({**values, "blake2b": checksum_of(json.dumps(values, sort_keys=True).encode())})
    path.write_text(text)
    with pytest.raises(CheckpointError, match=rf"run_state\.json: not a run state \({name}"):
        read_run_state(run.checkpoint(4))


def test_a_run_state_without_its_checksum_is_damaged(run):
    commit(run, 4)
    path = run.checkpoint(4) / "run_state.json"
    values = json.loads(path.read_text())
    del values["blake2b"]
    path.write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match="not the values that were written"):
        read_run_state(run.checkpoint(4))


def test_a_run_state_keeps_the_loss_scale_the_code_and_the_trend(run):
    own = {"loss_scale": LossScale(2.0**16, 7, 2), "code": {"commit": "c0ffee"}, "trend": LossTrend(0.1 + 0.2, 0.1, 3)}
    state = dataclasses.replace(STATE, **own)
    begin_checkpoint(run, 4)
    commit_checkpoint(run, state)
    assert read_run_state(run.checkpoint(4)) == state


def test_what_a_deletion_that_was_cut_short_has_left_goes_at_the_next_one(run):
    for step in (4, 8):
        commit(run, step)
    for left in (".step-000002.removed", ".step-000004.removed"):
        (run.checkpoints / left / "half").mkdir(parents=True)
    remove_folder(run.checkpoint(4))
    assert [path.name for path in run.checkpoints.glob(".step-*")] == [".step-000002.removed"]
    keep_newest(run.checkpoints, 1)
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["latest", "step-000008"]


def test_what_can_not_be_deleted_takes_nothing_from_the_new_checkpoint(run, monkeypatch, caplog):
    """Such as a folder that somebody deletes by hand at that moment."""
    for step in (4, 8):
        commit(run, step)

    def rename_unless_it_is_gone(path, target, rename=Path.rename):
        if path == run.checkpoint(4):
            raise FileNotFoundError(2, "No such file or directory")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", rename_unless_it_is_gone)
    commit(run, 12, keep=1)
    assert run.candidates() == [run.checkpoint(12), run.checkpoint(4)]
    assert caplog.messages == [f"{run.checkpoint(4)}: can't be deleted (No such file or directory)"]


def test_what_of_a_deleted_checkpoint_takes_room_still_is_told_once(run, monkeypatch, caplog):
    """As files of another user do who shares the run by a group: its folder may be renamed, and not be emptied."""
    for step in (4, 8):
        commit(run, step)

    def refuse(*_, **__):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr("os.unlink", refuse)
    for step in (12, 16):
        commit(run, step, keep=2)
    left = [(run.checkpoint(step), f".step-{step:06}.removed") for step in (4, 8)]
    assert caplog.messages == [
        f"{path}: can't be deleted (its files lie in {name} now; delete them by who owns them)" for path, name in left
    ]
    assert all((run.checkpoints / name / "weights").is_file() for _, name in left)


def test_of_a_checkpoint_that_lies_elsewhere_the_link_goes_and_is_in_the_way_of_none(run, tmp_path):
    """A run that was set back comes to its step again."""
    (tmp_path / "disk").mkdir()
    for _ in range(2):
        run.checkpoint(4).parent.mkdir(parents=True, exist_ok=True)
        run.checkpoint(4).symlink_to(tmp_path / "disk")
        remove_folder(run.checkpoint(4))
    run.checkpoint(4).symlink_to(tmp_path / "disk")
    commit(run, 4)
    remove_folder(run.checkpoint(4))
    assert [path.name for path in run.checkpoints.iterdir()] == ["latest"]
    assert (tmp_path / "disk").is_dir()
