"""What --init-from names: weights that are given, and checkpoints of other runs with their moments."""

import dataclasses
import errno
import functools
import json
import math
import os
import re
import shutil
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import BertForPreTraining as TheirBert

from preprocessing.schema import ShardDirectory, Vocabulary, checksum
from preprocessing.storage_errors import UnavailableError
from tests.conftest import ROOT
from tests.failing import failures_in_turn
from tests.ranks import run_ranks
from tests.trainer.conftest import FLOAT32, TINY, losses
from tests.trainer.rank_tasks import (
    run_pretrain,
    run_pretrain_and_crash,
    run_pretrain_and_keep_its_beginning,
    run_pretrain_in_fp16,
    run_pretrain_on_nodes_that_differ,
    run_pretrain_where_the_last_rank_s_storage_fails,
)
from trainer import initial_model
from trainer.checkpoint import RUN_STATE, commit_checkpoint, read_run_state
from trainer.config import load_recipe
from trainer.corpus import open_corpus
from trainer.data import SampleStream
from trainer.files import read_lines, write_atomically
from trainer.hugging_face import Export, load_config
from trainer.initial_model import (
    GivenCheckpoint,
    GivenExport,
    check_is_export,
    find_given,
    given_model,
    tells_its_model,
)
from trainer.initial_model import initial_model as given_initial_model
from trainer.model import BertForPreTraining, parameter_shapes, pretraining_losses
from trainer.run_directory import RunDirectory
from trainer.settings import ConfigError
from trainer.sharded_state import MOMENTS, WEIGHTS, StateReader

BRIEF = ("log.validate_every=0", "checkpoint.every=4", "train.max_steps=4")


@pytest.mark.parametrize(("name", "value"), [
    ("vocab_size", 72), ("hidden_size", 64), ("num_hidden_layers", 3), ("num_attention_heads", 4),
    ("intermediate_size", 32), ("hidden_act", "relu"), ("is_decoder", True), ("pre_layer_norm", True),
    ("max_position_embeddings", 64), ("type_vocab_size", 3), ("layer_norm_eps", 1e-5),
])  # fmt: skip
def test_weights_of_a_model_that_computes_something_else_are_refused(recipe, tmp_path, monkeypatch, name, value):
    """Most would fit, and give another model."""
    settings = load_recipe(recipe)
    weights = {"nsp.bias": torch.zeros(2)}
    monkeypatch.setattr("trainer.initial_model.load_export", lambda *_: Export(settings.model, weights, []))
    assert GivenExport(tmp_path).weights(settings).state is weights
    other = dataclasses.replace(settings.model, **{name: value})
    monkeypatch.setattr("trainer.initial_model.load_export", lambda *_: Export(other, weights, []))
    advice = "give it the shards' words" if name == "vocab_size" else f"set model.{name}={json.dumps(value)}, or take a"
    with pytest.raises(ConfigError, match=rf"has {name} {value}, the recipe {getattr(settings.model, name)}; {advice}"):
        GivenExport(tmp_path).weights(settings)


@pytest.fixture(scope="module")
def checkpoint(recipe, shards, tmp_path_factory):
    """Of two ranks after four steps."""
    run = tmp_path_factory.mktemp("first") / "run"
    arguments = ["--config", str(recipe), "--deepspeed_config", str(ROOT / "ds_config.json"), "--shards", str(shards),
                 "--output", str(run), *BRIEF]  # fmt: skip
    assert run_ranks(2, run_pretrain, arguments) == [0, 0]
    return run / "checkpoints" / "step-000004"


def state_of(folder, recipe):
    """Weights and moments of all parameters, and the updates that the moments have seen."""
    shapes = parameter_shapes(load_recipe(recipe).model)
    reader = StateReader(folder, shapes)
    kinds = (WEIGHTS, *MOMENTS)
    whole = {(kind, name): reader.read_range(kind, name, 0, shapes[name].numel()) for kind in kinds for name in shapes}
    return whole, reader.optimizer_step


@pytest.mark.parametrize(
    ("stage", "world", "precision"),
    [(0, 1, "float32"), (0, 2, "float32"), (1, 1, "float32"), (1, 2, "bf16"), (2, 1, "bf16"), (2, 2, "float32"),
     (2, 4, "bf16"), (3, 2, "bf16")],
)  # fmt: skip
def test_a_run_begins_with_the_very_state_of_another_one_s_checkpoint(
    call, checkpoint, recipe, deepspeed_config, tmp_path, stage, world, precision
):
    config = deepspeed_config(**(FLOAT32 if precision == "float32" else {}), zero_optimization={"stage": stage})
    given = {"init-from": checkpoint, "deepspeed_config": config, "output": tmp_path / "run"}
    settings = ("phases.0.steps=3", "schedule.warmup_steps=0", "log.validate_every=0")
    codes, log = call(*settings, world=world, task=run_pretrain_and_keep_its_beginning, **given)
    assert codes == [0] * world, log
    (expected, updates), (found, counted) = state_of(checkpoint, recipe), state_of(tmp_path / "run.begun", recipe)
    assert updates == counted == 4
    assert all(found[key].equal(expected[key]) for key in expected)
    assert all(found[MOMENTS[0], name].any() for kind, name in expected if kind == WEIGHTS)
    assert state_of(tmp_path / "run" / "checkpoints" / "step-000003", recipe)[1] == 7
    lines = list(read_lines(tmp_path / "run" / "metrics.jsonl"))
    assert [(line["step"], line["samples"]) for line in lines] == [(1, 8), (2, 16), (3, 24)]
    assert [line["learning_rate"] for line in lines] == pytest.approx([1e-2, 2e-2 / 3, 1e-2 / 3])


def test_the_updates_after_it_are_those_of_plain_adamw_with_the_same_state(
    call, checkpoint, recipe, shards, deepspeed_config, tmp_path
):
    without = ("model.hidden_dropout_prob=0", "model.attention_probs_dropout_prob=0")
    overrides = [*without, "optimizer.name=adamw", "schedule.warmup_steps=0", "phases.0.steps=3", "train.seed=2"]
    settings, (state, updates) = load_recipe(recipe, overrides), state_of(checkpoint, recipe)
    phase = settings.phases[0]
    stream = SampleStream(
        ShardDirectory(shards), "train", phase.sequence_length, seed=2, max_predictions=phase.max_predictions,
        masking=settings.masking, data=settings.data,
    )  # fmt: skip
    model = BertForPreTraining(settings.model)
    model.load_state_dict({name: state[WEIGHTS, name].view_as(p) for name, p in model.named_parameters()})
    parameters = dict(model.named_parameters())
    undecayed = [p for name, p in parameters.items() if name.endswith("bias") or "norm" in name]
    decayed = [p for p in parameters.values() if all(p is not q for q in undecayed)]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": undecayed, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.999), eps=1e-6)
    for name, p in parameters.items():
        moments = {kind: state[kind, name].view_as(p).clone() for kind in MOMENTS}
        optimizer.state[p] = {"step": torch.tensor(float(updates)), **moments}
    expected = []
    for step in range(3):
        batch = stream.batch(np.arange(8 * step, 8 * step + 8))
        mlm_logits, nsp_logits = model(batch.tokens, batch.positions)
        sums = pretraining_losses(mlm_logits, batch.mlm_labels, nsp_logits, batch.nsp_labels)
        loss = sums.mlm_loss / (batch.mlm_labels >= 0).sum() + sums.nsp_loss / 8
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate(step)
        optimizer.step()
        expected.append(loss.item())

    given = {"init-from": checkpoint, "deepspeed_config": deepspeed_config(**FLOAT32), "output": tmp_path / "run"}
    codes, log = call(*overrides, "log.validate_every=0", world=2, **given)
    assert codes == [0, 0], log
    assert losses(tmp_path / "run") == pytest.approx(expected, rel=1e-5)
    found, counted = state_of(tmp_path / "run" / "checkpoints" / "step-000003", recipe)
    assert counted == updates + 3
    for name, p in parameters.items():
        for kind, value in ((WEIGHTS, p), *((kind, optimizer.state[p][kind]) for kind in MOMENTS)):
            torch.testing.assert_close(found[kind, name], value.detach().view(-1), rtol=1e-4, atol=1e-6)


def test_a_branch_that_is_killed_begins_again_and_goes_on(call, checkpoint, tmp_path):
    copy = tmp_path / "copied" / "elsewhere"
    shutil.copytree(checkpoint, copy)
    open_recipe = tmp_path / "open.toml"
    open_recipe.write_text(TINY[TINY.index("[schedule]") :])
    given = {"config": open_recipe, "init-from": copy}
    settings = ("train.seed=2", "schedule.warmup_steps=0", "phases.0.steps=6")
    codes, log = call(*settings, output=tmp_path / "whole", **given)
    assert codes == [0], log
    assert f"begins with the weights of {copy} and the moments of 4 updates by bert_adam\n" in log
    assert "train.seed=" not in log

    branch = RunDirectory(tmp_path / "branch")
    assert call(*settings, output=branch.path, task=run_pretrain_and_crash, **given)[0] == [1]
    told = branch.read_initial_weights()
    assert (told["directory"], told["step"]) == (str(copy), "4")
    other = tmp_path / "other"
    assert call(*BRIEF, "train.max_steps=2", output=other)[0] == [0]
    for initial in ({}, {"init-from": other / "checkpoints/step-000002"}, {"init-from": other / "exports/step-000002"}):
        codes, log = call(*settings, output=branch.path, **{"config": tmp_path / "other" / "config.toml", **initial})
        assert codes == [2]
        assert f"the run was started with the weights of {copy} and has no checkpoint yet; start it so again" in log
    assert call(*settings, "train.max_steps=4", output=branch.path, **given)[0] == [0]
    shutil.rmtree(copy)
    codes, log = call(*settings, output=branch.path, **given)
    assert codes == [0], log
    assert "resumed after step 4 from" in log
    assert losses(branch.path) == losses(tmp_path / "whole")
    assert json.loads((branch.export(6) / "lineage.json").read_text())["initial_weights"] == told


def test_the_loss_scale_goes_on_too(call, deepspeed_config, tmp_path):
    """Of a checkpoint in fp16: DeepSpeed's settings would begin with one that overflows, or with a small one."""
    config = {power: deepspeed_config(bf16=None, fp16={"enabled": True, "initial_scale_power": power, "hysteresis": 1})
              for power in (20, 4)}  # fmt: skip
    call(*BRIEF, output=tmp_path / "first", task=run_pretrain_in_fp16, deepspeed_config=config[20])
    checkpoint = tmp_path / "first" / "checkpoints" / "step-000004"
    given = {"init-from": checkpoint, "task": run_pretrain_in_fp16, "deepspeed_config": config[4]}
    codes, log = call("train.max_steps=1", "log.validate_every=0", **given)
    assert codes == [0], log
    (line,) = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert line["loss_scale"] == read_run_state(checkpoint).loss_scale.scale
    assert 2**4 < line["loss_scale"] < 2**20


def test_moments_that_the_recipe_resets_are_left_out(call, checkpoint, recipe, tmp_path):
    """And another optimizer goes on with the weights."""
    settings = ("phases.0.reset_moments=true", "optimizer.name=lamb", "train.max_steps=3", "log.validate_every=0")
    codes, log = call(*settings, **{"init-from": checkpoint})
    assert codes == [0], log
    assert f"begins with the weights of {checkpoint}; phases.0.reset_moments leaves its moments out\n" in log
    assert state_of(tmp_path / "run" / "checkpoints" / "step-000003", recipe)[1] == 3


@pytest.mark.parametrize(("settings", "told"), [
    ([], ["4 updates by bert_adam", "samples and masks again, of a length from the first one on; train.seed=2 draws"]),
    (["train.seed=2"], ["4 updates by bert_adam"]),
    (["train.seed=2", "optimizer.name=lamb"], ["4 updates by bert_adam, with which lamb goes on"]),
])  # fmt: skip
def test_what_a_branch_takes_over_and_does_again_is_told(checkpoint, recipe, shards, caplog, settings, told):
    caplog.set_level("INFO")
    corpus = open_corpus([str(shards)])
    GivenCheckpoint(checkpoint).tell(4, load_recipe(recipe, settings), corpus)
    assert len(caplog.messages) == len(told)
    assert all(words in message for message, words in zip(caplog.messages, told, strict=True))


def test_a_checkpoint_that_is_another_or_damaged_on_a_node_begins_nothing(call, checkpoint, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(checkpoint, other)
    damaged = other / "state-00001-of-00002.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-4] + b"\0\1\2\3")
    apart = functools.partial(run_pretrain_on_nodes_that_differ, option="--init-from", of_the_last=other)
    given = {"init-from": checkpoint, "world": 2, "task": apart}
    codes, log = call(**given)
    assert codes == [2, 2]
    assert f"error: rank 1: --init-from: {damaged}: not the bytes that were written; copy it again, or take an" in log
    write_atomically(damaged.with_suffix(".blake2b"), checksum(damaged) + "\n")
    codes, log = call(**given)
    assert codes == [2, 2]
    assert "error: rank 1 was given other initial weights than rank 0" in log
    assert not (tmp_path / "run" / "config.toml").exists()


def look_through(directory, recipe, shards):
    """At all that a start reads of what it begins with."""
    given_model(directory)
    given = find_given(directory)
    given.check_vocabulary(open_corpus([str(shards)]))
    given.check(load_recipe(recipe))
    given.verify()


@pytest.mark.parametrize("kind", ["exports", "checkpoints"])
def test_storage_that_fails_is_told_from_a_beginning_that_is_damaged(checkpoint, recipe, shards, monkeypatch, kind):
    directory = checkpoint.parents[1] / kind / checkpoint.name
    told = set()
    for path in failures_in_turn(monkeypatch, directory, lambda: look_through(directory, recipe, shards)):
        try:
            look_through(directory, recipe, shards)  # which may get by without
        except UnavailableError as error:
            told.add(path.name)
            message = str(error)
        else:
            continue
        assert "Stale file handle" in message
        assert "; give the same command again" in message
        part = "state-" if path.name.startswith("state-") else path.name  # threads read the parts, in any order
        assert str(directory if path == directory else directory / part) in message
    assert told == {directory.name, RUN_STATE} | {
        "exports": {"config.json", "model.safetensors", "vocab.txt", "tokenizer.json"},
        "checkpoints": {"state-00000-of-00002.safetensors", "state-00000-of-00002.blake2b",
                        "state-00001-of-00002.safetensors", "state-00001-of-00002.blake2b"},
    }[kind]  # fmt: skip


@pytest.mark.parametrize("kind", ["exports", "checkpoints"])
def test_storage_that_fails_for_one_rank_is_told_on_all_and_the_same_command_begins(call, checkpoint, tmp_path, kind):
    given = {"init-from": checkpoint.parents[1] / kind / checkpoint.name, "world": 2}
    codes, log = call("train.max_steps=1", task=run_pretrain_where_the_last_rank_s_storage_fails, **given)
    assert codes == [1, 1]
    assert log.count("error: ") == 1
    assert "error: rank 1: --init-from: " in log
    assert "Stale file handle" in log
    assert not RunDirectory(tmp_path / "run").outcome
    codes, log = call("train.max_steps=1", **given)
    assert codes == [0, 0], log


@pytest.fixture
def run(checkpoint, tmp_path):
    """Of the checkpoint, in a place of its own."""
    shutil.copytree(checkpoint.parents[1], tmp_path / "first")
    return RunDirectory(tmp_path / "first")


@pytest.mark.parametrize(("named", "told"), [
    (".", "neither a checkpoint nor an export; the newest of its run: "),
    ("checkpoints", "neither a checkpoint nor an export; the newest of its run: "),
    ("checkpoints/latest", "neither a checkpoint nor an export; the newest of its run: "),
    ("exports", "neither a checkpoint nor an export; the newest of its run: "),
    ("checkpoints/step-000003", "no such folder; the newest of its run: "),
])  # fmt: skip
def test_what_of_a_run_is_no_beginning_is_told_with_what_is(run, named, told):
    with pytest.raises(ConfigError, match=f"^--init-from: {re.escape(str(run.path / named))}: {told}") as error:
        given_model(run.path / named)
    both = f"{run.checkpoint(4)} (with the moments too), {run.export(4)} (weights alone)"
    assert str(error.value).endswith(both)


@pytest.mark.parametrize(("lost", "told"), [
    (RUN_STATE, f"{RUN_STATE}: not a run state (.*No such file.*); copy it again, or take another checkpoint"),
    ("state-00001-of-00002.safetensors", "state-00001-of-00002.safetensors is missing from this checkpoint; copy it"),
    ("state-00001-of-00002.blake2b", "state-00001-of-00002.safetensors: its checksum is missing (.*); copy it again"),
])  # fmt: skip
def test_a_checkpoint_that_is_not_whole_is_told(run, recipe, lost, told):
    (run.checkpoint(4) / lost).unlink()
    pattern = re.escape(told).replace(r"\.\*", ".*")
    with pytest.raises(ConfigError, match=f"^--init-from: {re.escape(str(run.checkpoint(4)))}.*{pattern}"):
        check_and_verify(run.checkpoint(4), recipe)


def check_and_verify(checkpoint, recipe):
    find_given(checkpoint).check(load_recipe(recipe))
    find_given(checkpoint).verify()


@pytest.mark.parametrize("damage", [b"", b"{", b"[" * 100_000, b"\xff"])
def test_a_checkpoint_whose_own_words_are_damaged_is_told(run, recipe, damage):
    for name in (RUN_STATE, "state-00000-of-00002.safetensors"):
        kept = (run.checkpoint(4) / name).read_bytes()
        (run.checkpoint(4) / name).write_bytes(damage)
        with pytest.raises(ConfigError, match=rf"^--init-from: .*{name}: .*; copy it again"):
            check_and_verify(run.checkpoint(4), recipe)
        (run.checkpoint(4) / name).write_bytes(kept)
    check_and_verify(run.checkpoint(4), recipe)


@pytest.mark.parametrize(("name", "value"), [("num_attention_heads", 4), ("hidden_size", 64), ("hidden_act", "relu")])
def test_a_checkpoint_of_another_model_is_refused(checkpoint, recipe, name, value):
    """Of the heads its tensors tell nothing."""
    with pytest.raises(ConfigError, match=rf"has {name} .*, the recipe {value}; set model.{name}="):
        find_given(checkpoint).check(load_recipe(recipe, [f"model.{name}={json.dumps(value)}"]))


def test_a_checkpoint_that_tells_of_a_model_without_end_is_refused_at_once(run, monkeypatch):
    """A table of 200 million parameters would take all memory of each rank."""
    state = read_run_state(run.checkpoint(4))
    told = {**state.learner.model, "num_hidden_layers": 1 << 24, "max_position_embeddings": 128}
    run.checkpoint(4).rename(run.staging(5))
    commit_checkpoint(run, dataclasses.replace(state, step=5, learner=dataclasses.replace(state.learner, model=told)))
    monkeypatch.setattr(initial_model, "parameter_shapes", None)
    recipe = load_recipe(ROOT / "trainer/recipes/continued.toml", model=given_model(run.checkpoint(5)))
    with pytest.raises(ConfigError, match=r"step-000005: too small for a model of [\d,]{14,} parameters, .*; copy it"):
        find_given(run.checkpoint(5)).check(recipe)


def test_a_checkpoint_of_another_vocabulary_is_refused(checkpoint, shards):
    find_given(checkpoint).check_vocabulary(open_corpus([str(shards)]))
    others = SimpleNamespace(name="others", vocabulary=Vocabulary(64, "b", lowercase=True))
    with pytest.raises(ConfigError, match=rf"{checkpoint} is of another vocabulary than others; make shards with the "):
        find_given(checkpoint).check_vocabulary(others)


def test_a_copy_is_the_same_beginning_and_another_step_is_none(run, checkpoint):
    assert find_given(run.checkpoint(4)).verify() == {
        "directory": str(run.checkpoint(4)), "blake2b": find_given(checkpoint).checksum(), "step": "4",
    }  # fmt: skip
    state = read_run_state(checkpoint)
    run.checkpoint(4).rename(run.staging(5))
    commit_checkpoint(run, dataclasses.replace(state, step=5))
    assert find_given(run.checkpoint(5)).checksum() != find_given(checkpoint).checksum()


def with_words(export, count, tmp_path, value=0.0):
    """A copy of an export whose vocabulary has so many entries, the last with a value in all its places."""
    copy = tmp_path / f"words-{count}-{value}"
    model = TheirBert.from_pretrained(export)
    model.resize_token_embeddings(count, mean_resizing=False)
    model.get_input_embeddings().weight.data[-1] = value
    model.save_pretrained(copy)
    return copy


def test_continued_pretraining_begins_with_the_very_weights_of_a_directory(call, tmp_path):
    call()
    export = tmp_path / "run" / "exports" / "step-000008"
    codes, log = call(
        "schedule.warmup_steps=4", "train.max_steps=1", world=2, output=tmp_path / "continued", **{"init-from": export}
    )
    assert codes == [0, 0]
    first = tmp_path / "continued" / "exports" / "step-000001" / "model.safetensors"  # the rate of the first step is 0
    assert first.read_bytes() == (export / "model.safetensors").read_bytes()
    begun = {"directory": str(export), "blake2b": checksum(export / "model.safetensors")}
    assert json.loads((tmp_path / "continued" / "initial_weights.json").read_text()) == begun
    assert json.loads((first.parent / "lineage.json").read_text())["initial_weights"] == begun
    assert json.loads((export / "lineage.json").read_text())["initial_weights"] is None
    sizes = ("model.hidden_size=64", "model.intermediate_size=128")
    codes, log = call(*sizes, output=tmp_path / "other", **{"init-from": export})
    assert codes == [2]
    assert "has hidden_size 32, the recipe 64; intermediate_size 64, the recipe 128; " in log
    assert "; set model.hidden_size=32 model.intermediate_size=64, or take a recipe that leaves it open, such as" in log
    codes, log = call(
        "model.vocab_size=64", output=tmp_path / "other", **{"init-from": with_words(export, 72, tmp_path)}
    )
    assert codes == [2]
    assert "has vocab_size 72, the recipe 64; give it the shards' words by trainer.new_vocabulary" in log
    codes, log = call(output=tmp_path / "other", **{"init-from": with_words(export, 64, tmp_path, math.nan)})
    assert codes == [2]
    assert "model.safetensors: bert.embeddings.word.weight contains NaN or infinity; take weights from before" in log
    codes, log = call(output=tmp_path / "other", **{"init-from": tmp_path / "nowhere"})
    assert codes == [2]
    assert f"error: --init-from: {tmp_path / 'nowhere'}: no such folder; a model of the Hugging Face hub comes" in log
    assert not (tmp_path / "other").exists()


def test_what_a_recipe_leaves_open_of_the_model_is_that_of_the_weights(call, tmp_path):
    open_recipe = tmp_path / "open.toml"
    open_recipe.write_text(TINY[TINY.index("[schedule]") :])
    other = ["model.hidden_act=relu", "model.layer_norm_eps=1e-5", "model.attention_probs_dropout_prob=0"]
    assert call("train.max_steps=1", *other)[0] == [0]
    export, output = tmp_path / "run" / "exports" / "step-000001", tmp_path / "continued"
    given = {"config": open_recipe, "init-from": export}
    codes, log = call("train.max_steps=2", "model.hidden_dropout_prob=0.2", world=2, output=output, **given)
    assert codes == [0, 0]
    assert f"begins with the weights of {export}\n" in log
    model = load_recipe(output / "config.toml").model
    assert model == dataclasses.replace(load_config(export), hidden_dropout_prob=0.2)
    codes, log = call(output=tmp_path / "wide", **{**given, "init-from": with_words(export, 72, tmp_path)})
    assert codes == [2]
    assert "vocabulary of 64 entries, but model.vocab_size is 72; give the weights of --init-from these words by" in log
    shutil.rmtree(export)
    assert call("train.max_steps=4", output=output, **given)[0] == [0], "a run that has begun has its own model"
    assert call(output=output, config=open_recipe)[0] == [0]
    assert load_recipe(output / "config.toml").model == model
    codes, log = call("model.hidden_dropout_prob=0.1", output=output, **given)
    assert codes == [2]
    assert "other settings (model.hidden_dropout_prob: 0.2 -> 0.1)" in log
    codes, log = call(output=tmp_path / "new", config=open_recipe)
    assert codes == [2]
    assert f"{open_recipe}: has no [model], for it goes on with a given one; name by --init-from its folder" in log


def test_weights_may_lie_in_a_pickle_as_older_models_are_published(call, tmp_path):
    call("train.max_steps=1")
    export, older = tmp_path / "run" / "exports" / "step-000001", tmp_path / "older"
    older.mkdir()
    for name in ("config.json", "vocab.txt"):
        shutil.copy(export / name, older)
    torch.save(load_file(export / "model.safetensors"), older / "pytorch_model.bin")
    settings = ("schedule.warmup_steps=4", "train.max_steps=1")  # the rate of the first step is 0
    codes, _ = call(*settings, output=tmp_path / "continued", **{"init-from": older})

    assert codes == [0]
    first = tmp_path / "continued" / "exports" / "step-000001" / "model.safetensors"
    assert first.read_bytes() == (export / "model.safetensors").read_bytes()
    begun = {"directory": str(older), "blake2b": checksum(older / "pytorch_model.bin")}
    assert json.loads((tmp_path / "continued" / "initial_weights.json").read_text()) == begun


@pytest.mark.parametrize(("file", "words", "others", "told"), [
    ("vocab.txt", "word1\n", "other\n", "id 6 is 'other' there and 'word1' here"),
    ("vocab.txt", "word58\n", "word58\nmore\n", "id 64 is 'more' there and None here"),
    ("tokenizer.json", '"word1"', '"other"', "id 6 is 'other' there and 'word1' here"),
])  # fmt: skip
def test_weights_of_another_vocabulary_are_refused(call, shards, tmp_path, file, words, others, told):
    call("train.max_steps=1")
    other = tmp_path / "other"
    shutil.copytree(tmp_path / "run" / "exports" / "step-000001", other)
    for name in {"vocab.txt", "tokenizer.json"} - {file}:
        (other / name).unlink()
    (other / file).write_text((other / file).read_text().replace(words, others))
    codes, log = call(output=tmp_path / "continued", **{"init-from": other})
    assert codes == [2]
    assert f"{other} has another vocabulary than {shards}: {told}" in log
    assert not (tmp_path / "continued").exists()


@pytest.mark.parametrize("ask", [
    given_model, tells_its_model, find_given, lambda directory: GivenExport(directory).model,
    lambda directory: given_initial_model(None, RunDirectory(directory)),
])  # fmt: skip
def test_what_can_not_be_looked_at_is_not_called_missing_nor_something_else(tmp_path, monkeypatch, ask):
    """A start would end as failed, and a checkpoint be taken for an export."""
    (tmp_path / "exports" / "step-000001").mkdir(parents=True)
    monkeypatch.setattr(os, "access", lambda *_: False)  # as it says where storage fails
    monkeypatch.setattr(os, "stat", mock.Mock(side_effect=OSError(errno.EIO, os.strerror(errno.EIO))))
    with pytest.raises(
        UnavailableError, match=rf"^{tmp_path}.*: can't be read now \(Input/output error\); give the same"
    ):
        ask(tmp_path)


def test_what_a_user_may_not_look_at_is_no_beginning(tmp_path, monkeypatch):
    """So a launch goes on without, where the nodes' user may."""
    refused = OSError(errno.EACCES, os.strerror(errno.EACCES))
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(os, "stat", mock.Mock(side_effect=refused))
    monkeypatch.setattr(os, "listdir", mock.Mock(side_effect=refused))
    monkeypatch.setattr(os, "scandir", mock.Mock(side_effect=refused))
    assert not tells_its_model(tmp_path)
    assert given_initial_model(None, RunDirectory(tmp_path)) is None
    assert isinstance(find_given(tmp_path), GivenExport)


def test_an_export_that_can_not_be_looked_at_is_not_called_missing(tmp_path, monkeypatch):
    export = tmp_path / "exports" / "step-000001"
    export.mkdir(parents=True)
    monkeypatch.setattr(os, "stat", mock.Mock(side_effect=OSError(errno.EIO, os.strerror(errno.EIO))))
    with pytest.raises(OSError, match="Input/output error"):
        check_is_export(export)
