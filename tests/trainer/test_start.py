"""A start in a run directory: what it goes on from, what it refuses to go on with, what it writes down."""

import contextlib
import dataclasses
import errno
import json
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from preprocessing.schema import MANIFEST, checksum
from preprocessing.storage_errors import UnavailableError
from tests.trainer.conftest import STATE, losses
from tests.trainer.rank_tasks import (
    run_pretrain_and_crash,
    run_pretrain_and_die_before_the_run_has_begun,
)
from tests.trainer.shard_factory import write_shards
from trainer.checkpoint import begin_checkpoint, commit_checkpoint
from trainer.config import load_recipe, to_toml
from trainer.corpus import open_corpus
from trainer.deepspeed_config import read_deepspeed
from trainer.determinism import arithmetic_of
from trainer.lineage import code_version
from trainer.model import parameter_shapes
from trainer.run_directory import CheckpointError, RunDirectory
from trainer.sharded_state import MOMENTS, WEIGHTS, Flat, Fragment, write_state
from trainer.start import _other_shards, check_run, find_beginning, reopen, take_over, warn_of_other_bits, write_run
from trainer.world import World


@pytest.mark.parametrize(
    ("settings", "world", "changes", "message"),
    [
        (["schedule.peak=0.5"], 1, {}, "started with other settings (schedule.peak: 0.01 -> 0.5)"),
        (["model.num_hidden_layers=3"], 2, {}, "model.num_hidden_layers: 2 -> 3"),
    ],
)
def test_a_run_is_not_gone_on_with_as_another(call, deepspeed_config, settings, world, changes, message):
    assert call("train.max_steps=4")[0] == [0]
    codes, log = call(*settings, world=world, deepspeed_config=deepspeed_config(**changes))
    assert codes == [2] * world
    assert message in log


def test_a_run_is_not_gone_on_with_on_other_shards(call, tmp_path):
    assert call("train.max_steps=4")[0] == [0]
    codes, log = call(shards=write_shards(tmp_path / "others", seed=1))
    assert codes == [2]
    assert f"started with other shards than {tmp_path / 'others'}; choose another --output" in log


def test_a_run_goes_on_with_its_shards_where_they_were_made_again(call, shards, tmp_path):
    assert call("train.max_steps=4")[0] == [0]
    again = Path(shutil.copytree(shards, tmp_path / "again"))
    manifest = json.loads((again / MANIFEST).read_text())
    (again / MANIFEST).write_text(json.dumps(manifest | {"created_by": {"pyarrow": "99"}}))
    codes, log = call(shards=again)
    assert codes == [0], log
    assert f"{again}: made again with the same content as when the run was started" in log
    assert checksum(tmp_path / "run" / "manifest.json") == checksum(shards / MANIFEST)


def test_which_shards_of_several_are_not_those_of_a_run_is_told(shards, books, tmp_path):
    others = write_shards(tmp_path / "others", seed=1)
    begun_with = [checksum(path / MANIFEST) for path in (shards, books)]

    def told(*given):
        return _other_shards(begun_with, open_corpus([*map(str, given)]))

    assert told(books, shards) == (f"the run was started with these shards in another order, --shards {shards} {books}")
    assert told(shards, others) == (
        f"the run was started with other shards than {shards}, {others}, {others} not among them"
    )
    assert told(others) == f"the run was started with other shards than {others}"
    assert told(books) == f"the run was started with 2 shard directories, of which {books} lacks some"


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(call, tmp_path):
    call(output=tmp_path / "whole")
    assert call("train.max_steps=6", "checkpoint.every=2")[0] == [0]
    state = tmp_path / "run" / "checkpoints" / "step-000006" / "state-00000-of-00001.safetensors"
    state.write_bytes(state.read_bytes()[:-4] + b"\0\1\2\3")
    codes, log = call()
    assert codes == [0]
    assert f"skipped a checkpoint: {state}: not the bytes that were written" in log
    assert "resumed after step 4" in log
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")


class Begun:
    """A run that has checkpoints of all zeros, as one rank writes them."""

    def __init__(self, recipe, shards, folder):
        self.recipe, self.shards, self.run = load_recipe(recipe), open_corpus([str(shards)]), RunDirectory(folder)
        self.run.path.mkdir()
        self.run.config.write_text(to_toml(self.recipe))

    def write_checkpoint(self, step, length=None, **state):
        sizes = {name: shape.numel() for name, shape in parameter_shapes(self.recipe.model).items()}
        flats = [
            Flat([Fragment(0, size, name, 0)], {kind: torch.zeros(length or size) for kind in (WEIGHTS, *MOMENTS)})
            for name, size in sizes.items()
        ]
        begin_checkpoint(self.run, step)
        write_state(self.run.staging(step), 0, 1, flats, optimizer_step=step)
        told = {"step": step, "samples": self.recipe.samples(step), "manifest_blake2b": self.shards.manifest_blake2b}
        commit_checkpoint(self.run, dataclasses.replace(STATE, **{**told, **state}))

    def take_over(self):
        with contextlib.ExitStack() as held:
            take_over(self.run, held)
            return find_beginning(self.run, self.recipe, self.shards, None)


@pytest.fixture
def begun(recipe, shards, tmp_path):
    return Begun(recipe, shards, tmp_path / "begun")


def test_a_start_goes_on_from_the_newest_checkpoint(begun):
    begun.write_checkpoint(2)
    begun.write_checkpoint(4)
    assert begun.take_over() == 4


@pytest.mark.parametrize(("ending", "left"), [("failed", None), ("requeue", None), ("done", "done")])
def test_how_a_run_ended_is_open_again_once_it_is_taken_over_but_for_what_is_done(begun, ending, left):
    """What crashes then would be told as what came of an earlier start; and what is done may have more to train."""
    begun.run.set_outcome(ending, "why")
    begun.take_over()
    assert begun.run.ending == left
    reopen(begun.run)
    assert begun.run.ending is None


@pytest.mark.parametrize(("other", "message"), [
    ({"samples": 33}, "its run_state.json has samples 33, but here it is 32; this is another step's checkpoint or an"),
    ({"manifest_blake2b": "m"}, "its run_state.json has manifest_blake2b m, but here it is "),
    ({"length": 1}, "stretches of 0.weights lie in one another or beyond its end"),
])  # fmt: skip
def test_a_checkpoint_that_another_run_wrote_is_passed_over_for_the_one_before(begun, caplog, other, message):
    begun.write_checkpoint(2)
    begun.write_checkpoint(4, **other)
    assert begun.take_over() == 2
    (told,) = caplog.messages
    assert told.startswith(f"skipped a checkpoint: {begun.run.checkpoint(4)}")
    assert message in told


@pytest.mark.parametrize("name", ["run_state.json", "state-00000-of-00001.safetensors", "state-00000-of-00001.blake2b"])
@pytest.mark.parametrize("call", ["open", "read_text"])
def test_a_checkpoint_that_can_not_be_read_for_a_moment_is_not_passed_over(begun, monkeypatch, name, call):
    """It would be set aside, and its steps trained again."""
    begun.write_checkpoint(2)
    begun.write_checkpoint(4)
    path, does = begun.run.checkpoint(4) / name, getattr(Path, call)

    def fail(found, *arguments, **named):
        if found == path:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return does(found, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(f"pathlib.Path.{call}", fail)
        if call == "read_text" and name.endswith(".safetensors"):
            assert begun.take_over() == 4, "it is not read so"
            return
        with pytest.raises(UnavailableError, match=r"Stale file handle.*; give the same command again, or, if "):
            begun.take_over()
    assert begun.take_over() == 4


def test_a_checkpoint_under_another_step_s_name_is_not_gone_on_with(begun, caplog):
    """Its weights would be trained as if they had seen the samples of the steps between."""
    begun.write_checkpoint(4)
    begun.run.checkpoint(4).rename(begun.run.checkpoint(6))
    begun.run.latest.write_text("step-000006\n")
    with pytest.raises(
        CheckpointError, match=r"no checkpoint is whole and this run's \(step-000006\); put a good copy"
    ):
        begun.take_over()
    assert "step-000006: its run_state.json has step 4, but here it is 6" in caplog.text


def test_only_a_run_in_which_nothing_was_trained_may_be_removed(begun, recipe):
    begun.recipe = load_recipe(recipe, ["schedule.peak=0.5"])
    with pytest.raises(CheckpointError, match=r"0\.5\); choose another --output, or remove this one, in which nothing"):
        begun.take_over()
    begun.run.metrics.touch()
    with pytest.raises(CheckpointError, match=r"0\.5\); choose another --output, or go on with what .* started with$"):
        begun.take_over()


def test_how_a_run_is_trained_for_longer_or_on_more_is_told(begun, recipe, books):
    begun.write_checkpoint(2)
    begun.recipe = load_recipe(recipe, ["phases.0.steps=9"])
    longer = "; to train longer or otherwise, give its last checkpoint to --init-from, with another --output$"
    with pytest.raises(CheckpointError, match=rf"steps: 8 -> 9\); choose .*{longer}"):
        begun.take_over()
    begun.recipe = load_recipe(recipe, ["model.hidden_dropout_prob=0.2"])
    with pytest.raises(CheckpointError, match=r"hidden_dropout_prob: 0.1 -> 0.2\); choose .* started with$"):
        begun.take_over()
    begun.recipe, begun.shards = load_recipe(recipe), open_corpus([str(books)])
    begun.run.manifest.write_text("{}")
    with pytest.raises(CheckpointError, match=f"other shards than {books}; choose .*{longer}"):
        begun.take_over()


def test_a_run_of_which_every_checkpoint_is_damaged_does_not_begin_anew(call, tmp_path):
    assert call("train.max_steps=4", "checkpoint.every=2")[0] == [0]
    for state in (tmp_path / "run" / "checkpoints").glob("step-*/state-00000-of-00001.safetensors"):
        state.unlink()
        state.symlink_to(tmp_path / "nowhere")
    codes, log = call()
    assert codes == [2]
    assert (
        "no checkpoint is whole and this run's (step-000004, step-000002); put a good copy back, or move checkpoints/ "
        "away" in log
    )
    assert "Traceback" not in log
    assert len(losses(tmp_path / "run")) == 4
    assert RunDirectory(tmp_path / "run").ending == "done", "as far as it was asked to train"


def test_what_killed_trainers_were_writing_goes_at_the_next_start(call, tmp_path):
    """A rank that is killed in the grace after a signal leaves a part of a checkpoint that no later one replaces."""
    assert call("train.max_steps=4")[0] == [0]
    run = tmp_path / "run"
    left = ["checkpoints/.step-000003.incomplete", "exports/.step-000003.incomplete", "exports/.step-000002.removed"]
    for name in left:
        (run / name).mkdir()
        (run / name / "half").write_text("half of the weights")
    assert call("train.max_steps=4")[0] == [0]
    assert not list(run.rglob(".step*"))
    assert RunDirectory(run).step == 4


def test_a_first_start_that_is_killed_before_the_run_has_begun_is_made_again(call, tmp_path):
    call("train.max_steps=1", output=tmp_path / "other")
    run, export = tmp_path / "run", tmp_path / "other" / "exports" / "step-000001"
    with pytest.raises(AssertionError, match="rank 0 died"):
        call(task=run_pretrain_and_die_before_the_run_has_begun, **{"init-from": export})
    assert (run / "initial_weights.json").exists()
    assert not (run / "config.toml").exists()
    assert call("train.max_steps=1", world=2)[0] == [0, 0]
    lineage = json.loads((run / "exports" / "step-000001" / "lineage.json").read_text())
    assert lineage["initial_weights"] is None, "the second start named none"


def test_a_run_without_a_checkpoint_begins_again_with_the_same_weights(call, tmp_path):
    call("train.max_steps=4")
    export, output = tmp_path / "run" / "exports" / "step-000004", tmp_path / "continued"
    assert call(output=output, task=run_pretrain_and_crash, **{"init-from": export})[0] == [1]
    other = tmp_path / "other"
    shutil.copytree(export, other)
    save_file({n: t + 1 for n, t in load_file(other / "model.safetensors").items()}, other / "model.safetensors")
    for initial in ({}, {"init-from": other}):
        codes, log = call(world=2, output=output, **initial)
        assert codes == [2, 2]
        assert f"the run was started with the weights of {export} and has no checkpoint yet" in log
    assert call("train.max_steps=4", output=output, **{"init-from": export})[0] == [0]
    elsewhere = {"init-from": tmp_path / "nowhere"}
    assert call("train.max_steps=6", output=output, **elsewhere)[0] == [0], "a checkpoint has weights of its own"
    assert call(output=output)[0] == [0]
    assert call(output=tmp_path / "new", task=run_pretrain_and_crash)[0] == [1]
    codes, log = call(output=tmp_path / "new", **{"init-from": export})
    assert codes == [2]
    assert "the run was started without --init-from and has no checkpoint yet" in log


@pytest.mark.parametrize(("number", "advice"), [
    (errno.ENOSPC, "make room, and give the same command"),
    (errno.EROFS, "choose another --output"),
])  # fmt: skip
def test_a_run_directory_that_can_not_be_written_is_told_with_what_helps(
    recipe, deepspeed_config, tmp_path, monkeypatch, number, advice
):
    def fail(*_, **__):
        raise OSError(number, os.strerror(number))

    run, settings = RunDirectory(tmp_path / "run"), load_recipe(recipe)
    message = re.escape(f"{run.path}: can't be written ({os.strerror(number)}); {advice}")
    monkeypatch.setattr("trainer.start.hold_run", fail)
    monkeypatch.setattr("trainer.start.set_aside", fail)
    with pytest.raises(CheckpointError, match=message):
        take_over(run, contextlib.ExitStack())
    with pytest.raises(CheckpointError, match=message):
        write_run(run, settings, None, read_deepspeed(deepspeed_config()), None, step=0)


def test_storage_that_fails_for_a_moment_is_nobody_s_mistake(recipe, tmp_path, monkeypatch):
    """So the run has not failed: another --output would not help."""

    def fail(*_, **__):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    run, settings = RunDirectory(tmp_path / "run"), load_recipe(recipe)
    run.path.mkdir()
    run.config.write_text(to_toml(settings))
    with monkeypatch.context() as patch:
        patch.setattr("trainer.start.hold_run", fail)
        with pytest.raises(OSError, match="Stale file handle"):
            take_over(run, contextlib.ExitStack())
    monkeypatch.setattr("pathlib.Path.iterdir", fail)
    with pytest.raises(OSError, match="Stale file handle"):
        check_run(run, settings, None)


def test_settings_that_change_what_is_computed_are_told(begun, recipe, deepspeed_config, caplog):
    settings, run = load_recipe(recipe, ["data.skip=[[8,16],[40,48]]"]), begun.run

    def start(settings, *, step=4, **changes):
        caplog.clear()
        write_run(run, settings, begun.shards, read_deepspeed(deepspeed_config(**changes)), None, step=step)
        return caplog.text

    assert start(settings, step=0) == start(settings) == ""
    told = start(load_recipe(recipe, ["data.skip=[[50,56]]"]), zero_optimization={"stage": 3}, bf16=None)
    assert "(bf16.enabled: True -> None; zero_optimization.stage: 2 -> 3): samples and masks are the same" in told
    assert "passed over samples that this one does not: give data.skip=[[8,16],[40,48],[50,56]], if they" in told
    assert start(load_recipe(recipe, ["data.skip=[[44,60]]"])).count("give data.skip=") == 0
    smaller = load_recipe(recipe, ["data.skip=[[44,60]]", "phases.0.micro_batch_size=1"])
    told = (
        "phases.0.micro_batch_size: 2 -> 1: from here on the same samples and masks as without this change, but other"
    )
    assert told in start(smaller)
    assert start(smaller) == ""


@pytest.mark.parametrize("left", [b"{", b"\xff\xfe", None])
def test_a_run_goes_on_though_the_configuration_of_its_last_start_is_damaged(
    begun, recipe, deepspeed_config, caplog, left
):
    """It is there to be read by people, and to be compared."""
    settings, run, given = load_recipe(recipe), begun.run, read_deepspeed(deepspeed_config())
    write_run(run, settings, begun.shards, given, None, step=4)
    caplog.clear()
    run.deepspeed_config.unlink() if left is None else run.deepspeed_config.write_bytes(left)
    write_run(run, settings, begun.shards, given, None, step=4)
    assert caplog.text.count("ds_config.json is missing or damaged: ") == 1
    assert run.deepspeed_config.read_text() == given.text


def test_metrics_that_are_no_file_are_told_before_anything_is_trained(call, tmp_path):
    run = RunDirectory(tmp_path / "run")
    assert call("train.max_steps=2")[0] == [0]
    for metrics in (run.validation_metrics, run.metrics):
        metrics.unlink()
        metrics.mkdir()
        codes, log = call()
        assert codes == [2]
        assert f"error: {metrics}: can't be written (Is a directory); choose another --output\n" in log
        assert run.ending == "failed"


def test_a_tokenizer_that_somebody_s_link_leads_to_is_not_written(call, tmp_path):
    run, others = RunDirectory(tmp_path / "run"), tmp_path / "others"
    assert call("train.max_steps=1")[0] == [0]
    run.tokenizer.rename(others)
    (others / "vocab.txt").write_text("theirs\n")
    run.tokenizer.symlink_to(others)
    codes, log = call()
    assert codes == [2]
    assert f"error: {run.tokenizer}: can't be written (a link, where " in log
    assert (others / "vocab.txt").read_text() == "theirs\n"


def test_a_folder_beside_the_tokenizer_s_files_is_nobody_s_mistake(call, tmp_path):
    """As notebooks leave it."""
    shards = write_shards(tmp_path / "others")
    (shards / "tokenizer" / ".ipynb_checkpoints").mkdir()
    assert call("train.max_steps=1", shards=shards)[0] == [0]
    assert {path.name for path in (tmp_path / "run" / "tokenizer").iterdir()} >= {"vocab.txt", "tokenizer.json"}


def written_here(**told):
    """What a checkpoint tells that this process, of a single rank, has written."""
    own = {"threads": torch.get_num_threads(), "arithmetic": arithmetic_of(torch.device("cpu"))}
    return dataclasses.replace(STATE, **{**own, **told})


@pytest.mark.parametrize(
    ("ranks", "more_threads", "is_told"), [(2, 0, False), (1, 0, True), (4, 0, True), (2, 1, True)]
)
def test_a_resume_by_other_ranks_or_threads_is_told_to_differ_in_the_last_bits(caplog, ranks, more_threads, is_told):
    threads = torch.get_num_threads()
    state = written_here(world_size=ranks, threads=threads + more_threads)
    warn_of_other_bits(state, World(0, 2, torch.device("cpu")), code_version())
    how = f"written with {ranks} rank(s) x {threads + more_threads} thread(s), resuming with 2 x {threads}: "
    assert [how in message for message in caplog.messages] == [True] * is_told


@pytest.mark.parametrize(
    ("then", "told"),
    [({}, []), ({"torch": "2.11.0", "mlflow": "3.17"}, ["torch 2.12.0, not 2.11.0"]), ({"torch": "2.12.0"}, [])],
)
def test_a_resume_by_other_libraries_that_compute_may_differ_in_the_last_bits(caplog, then, told):
    """Of a checkpoint that says nothing of them nothing is known."""
    state = written_here(code={"libraries": then} if then else {})
    now = {"libraries": {"torch": "2.12.0", "mlflow": "3.18"}}
    warn_of_other_bits(state, World(0, 1, torch.device("cpu")), now)
    assert [re.search(r"\((.*)\)", message)[1] for message in caplog.messages] == told


def test_a_checkpoint_s_words_command_no_terminal_and_libraries_that_are_none_are_passed_over(caplog):
    state = written_here(code={"libraries": None}, arithmetic="\x1b[31mX\nY")
    warn_of_other_bits(state, World(0, 1, torch.device("cpu")), {"libraries": {"torch": "2.12.0"}})
    (message,) = caplog.messages
    assert message.startswith("checkpoint was written on \\x1b[31mX\\nY, resuming on ")


@pytest.mark.parametrize("then", ["as here", "NVIDIA H200"])
def test_a_resume_on_another_device_may_differ_in_the_last_bits(caplog, then):
    here = arithmetic_of(torch.device("cpu"))
    state = written_here(arithmetic=here if then == "as here" else then)
    warn_of_other_bits(state, World(0, 1, torch.device("cpu")), {"libraries": {}})
    told = f"written on NVIDIA H200, resuming on {here}: samples, masks and dropout are the same, but losses may differ"
    assert [told in message for message in caplog.messages] == [True] * (then == "NVIDIA H200")
