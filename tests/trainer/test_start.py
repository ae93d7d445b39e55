"""What comes before the first step: mistakes that are found, what a start goes on from, what it begins with."""

import contextlib
import dataclasses
import errno
import functools
import json
import math
import os
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertForPreTraining as TheirBert

from preprocessing.schema import MANIFEST, Manifest, checksum, checksum_of
from tests.trainer.conftest import TINY, losses
from tests.trainer.rank_tasks import (
    run_pretrain_and_crash,
    run_pretrain_and_die_before_the_run_has_begun,
    run_pretrain_on_nodes_that_differ,
)
from tests.trainer.shard_factory import write_shards
from trainer.checkpoint import RunState, begin_checkpoint, commit_checkpoint
from trainer.config import load_recipe, to_toml
from trainer.corpus import open_corpus
from trainer.hugging_face import load_config
from trainer.model import parameter_shapes
from trainer.run_directory import CheckpointError, RunDirectory
from trainer.sharded_state import MOMENTS, WEIGHTS, Flat, Fragment, write_state
from trainer.start import (
    _check_segments,
    _is_seen,
    _other_shards,
    find_beginning,
    take_over,
    warn_of_settings,
    write_run,
)


def damaged_shards(shards, tmp_path):
    copy = tmp_path / "damaged"
    shutil.copytree(shards, copy)
    return copy


def without_next_sentences(shards, tmp_path):
    copy = tmp_path / "single"
    shutil.copytree(shards, copy)
    manifest = Manifest.from_json((copy / MANIFEST).read_bytes())
    options = {"pairs": {"next_sentence": False}}
    (copy / MANIFEST).write_text(dataclasses.replace(manifest, options=options).to_json())
    return copy


BAD_INPUT = {
    "no such shards": (lambda s, t: {"shards": t / "nowhere"}, [], r"nowhere: no such directory; make shards with"),
    "shards without a manifest": (
        lambda s, t: {"shards": (damaged := damaged_shards(s, t), (damaged / MANIFEST).unlink())[0]},
        [],
        "no manifest.json, so its shards are not complete",
    ),
    "a shard that is cut off": (
        lambda s, t: {"shards": (damaged := damaged_shards(s, t), _cut(damaged / "shard-00000-of-00003.arrow"))[0]},
        [],
        "shard-00000-of-00003.arrow: 100 bytes where the manifest says",
    ),
    "a tokenizer that is cut off, which every export would have": (
        lambda s, t: {"shards": (damaged := damaged_shards(s, t), _cut(damaged / "tokenizer" / "tokenizer.json"))[0]},
        [],
        "tokenizer.json: not a tokenizer (",
    ),
    "shards of which none is held out": (
        lambda s, t: {"shards": write_shards(t / "trained", train=(3,), validation=())},
        [],
        "of four documents or more with --validation-fraction, or set log.validate_every=0",
    ),
    "another vocabulary than the model's": (
        lambda s, t: {},
        ["model.vocab_size=100"],
        "made with a vocabulary of 64 entries, but model.vocab_size is 100; set model.vocab_size=64",
    ),
    "shards without next sentences": (
        lambda s, t: {"shards": without_next_sentences(s, t)},
        [],
        r"made with --no-nsp, so there are no next sentences to learn from; set train.next_sentence=false",
    ),
    "second segments that the model does not know": (
        lambda s, t: {},
        ["model.type_vocab_size=1", "train.next_sentence=false"],
        r"samples have two segments, but model.type_vocab_size is 1; set it to 2",
    ),
    "an unknown setting": (lambda s, t: {}, ["model.hiden_size=3"], "unknown setting model.hiden_size; did you mean"),
    "a recipe that is not there": (lambda s, t: {"config": t / "x.toml"}, [], "x.toml: can't read the recipe"),
    "the name of a recipe": (lambda s, t: {"config": "bert_base"}, [], "directory); there is "),
    "a phase that is not there": (
        lambda s, t: {},
        ["phases.1.steps=5"],
        "phases.1.steps: there is no '1' at this place of the settings; those there end with number 0",
    ),
    "a global batch that the ranks can't divide": (
        lambda s, t: {},
        ["phases.0.micro_batch_size=3"],
        "global batch of 8 can't be cut into micro-batches of 3 for 1 rank(s): it must be a multiple of 3",
    ),
    "a length that the shards do not have": (
        lambda s, t: {},
        ["phases.0.sequence_length=16"],
        "no pairs for sequence length 16, only for [32]; make the shards with --sequence-lengths 16",
    ),
    "weights of other directories where each phase has its own": (
        lambda s, t: {},
        ["data.weights=[1,2]", "phases.0.weights=[1]"],
        "weights [1.0, 2.0] for 1 shard directories; give data.weights, or phases.N.weights, one number for each",
    ),
    "graphs of a CPU": (
        lambda s, t: {},
        ["train.compile=true", "train.cuda_graphs=true", "data.token_multiple=64"],
        "train.cuda_graphs: there is no GPU to have graphs; leave it out on a CPU",
    ),
    "kernels of a GPU on a CPU": (
        lambda s, t: {},
        ["train.fused=true"],
        "train.fused: its kernels are for GPUs; leave it out on a CPU",
    ),
    "shards without a validation part": (
        lambda s, t: {"shards": write_shards(t / "all-for-training", validation=())},
        [],
        "or set log.validate_every=0",
    ),
    "a cache in the output": (
        lambda s, t: {},
        lambda s, t: [f"data.cache_dir={t / 'run' / 'cache'}"],
        "lies in --output, where only the run's own files are; take another",
    ),
    "a cache by a variable that is not set": (
        lambda s, t: {},
        ["data.cache_dir=$SCRATCH_OF_NOBODY/shards"],
        "data.cache_dir $SCRATCH_OF_NOBODY/shards: SCRATCH_OF_NOBODY is not set where the trainer runs; set it there",
    ),
    "padding that is another word": (
        lambda s, t: {},
        ["model.pad_token_id=1"],
        "[PAD] is entry 0 of its vocabulary, but model.pad_token_id is 1; set model.pad_token_id=0",
    ),
    "an output that is a file": (
        lambda s, t: {"output": ((t / "file").touch(), t / "file")[1]},
        [],
        "file: a file; choose another --output",
    ),
    "an output that holds something else": (
        lambda s, t: {"output": ((t / "other").mkdir(), (t / "other" / "file").touch(), t / "other")[2]},
        [],
        "other: holds something that is not a run; choose another --output",
    ),
}


def _cut(path):
    path.write_bytes(path.read_bytes()[:100])


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_gets_one_line_and_exit_code_2_and_leaves_nothing(call, shards, tmp_path, case):
    replaced, settings, message = BAD_INPUT[case]
    replaced = replaced(shards, tmp_path)
    settings = settings(shards, tmp_path) if callable(settings) else settings
    codes, log = call(*settings, **replaced)
    assert codes == [2]
    errors = [line for line in log.splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    assert message in errors[0]
    assert "Traceback" not in log
    output = replaced.get("output", tmp_path / "run")
    assert not output.is_dir() or [path.name for path in output.iterdir()] == ["file"]


@pytest.mark.parametrize("option", ["output", "init-from"])
def test_a_path_that_can_not_be_looked_at_is_one_line_too(call, tmp_path, option):
    """As one is within a folder that only others may enter."""
    path = tmp_path / ("long" * 100)
    codes, log = call(**{option: path})
    assert codes == [2]
    (error,) = [line for line in log.splitlines() if line.startswith("error:")]
    assert str(path) in error
    assert "Traceback" not in log


def test_a_model_that_knows_one_segment_learns_from_shards_that_have_no_second(recipe, shards, tmp_path):
    settings = load_recipe(recipe, ["model.type_vocab_size=1", "train.next_sentence=false"])
    _check_segments(settings, open_corpus([str(without_next_sentences(shards, tmp_path))]))


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
        told = RunState(step, self.recipe.samples(step), 1, 1, self.shards.manifest_blake2b, "c")
        commit_checkpoint(self.run, dataclasses.replace(told, **state))

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
    with pytest.raises(CheckpointError, match=r"0\.5\); choose another --output, or go on with what the run was"):
        begun.take_over()


def test_how_a_run_is_trained_for_longer_or_on_more_is_told(begun, recipe, books):
    begun.run.metrics.touch()
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


def with_words(export, count, tmp_path, value=0.0):
    """A copy of an export whose vocabulary has so many entries, the last with a value in all its places."""
    copy = tmp_path / f"words-{count}-{value}"
    model = TheirBert.from_pretrained(export)
    model.resize_token_embeddings(count, mean_resizing=False)
    model.get_input_embeddings().weight.data[-1] = value
    model.save_pretrained(copy)
    return copy


def test_nodes_with_other_weights_to_begin_with_are_told_apart(call, tmp_path):
    """DeepSpeed would give all ranks the first one's, which are then not those that a rank was given."""
    call("train.max_steps=1", output=tmp_path / "other")
    export = tmp_path / "other" / "exports" / "step-000001"
    other = with_words(export, 64, tmp_path, value=0.5)
    apart = functools.partial(run_pretrain_on_nodes_that_differ, option="--init-from", of_the_last=other)
    codes, log = call(world=2, task=apart, **{"init-from": export})
    assert codes == [2, 2]
    assert "error: rank 1 was given other initial weights than rank 0: see that all nodes have the same files" in log


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


def test_what_another_node_has_written_is_waited_for(tmp_path, monkeypatch):
    """NFS remembers for a while that a file was not there, and the one that was."""
    written = iter([b"an earlier start's", b"this one's"])
    monkeypatch.setattr("time.sleep", lambda _: (tmp_path / "config.toml").write_bytes(next(written)))
    assert _is_seen(tmp_path / "config.toml", checksum_of(b"this one's"))
    assert next(written, None) is None


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


@pytest.mark.parametrize(("number", "advice"), [
    (errno.ENOSPC, "make room, and give the same command"),
    (errno.EROFS, "choose another --output"),
])  # fmt: skip
def test_a_run_directory_that_can_not_be_written_is_told_with_what_helps(
    recipe, deepspeed_config, tmp_path, monkeypatch, number, advice
):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    run, settings = RunDirectory(tmp_path / "run"), load_recipe(recipe)
    message = re.escape(f"{run.path}: can't be written ({os.strerror(number)}); {advice}")
    monkeypatch.setattr("trainer.start.hold_run", fail)
    monkeypatch.setattr("trainer.start.set_aside", fail)
    with pytest.raises(CheckpointError, match=message):
        take_over(run, contextlib.ExitStack())
    with pytest.raises(CheckpointError, match=message):
        write_run(run, settings, None, deepspeed_config(), None, step=0)


def test_a_folder_beside_the_tokenizer_s_files_is_nobody_s_mistake(call, tmp_path):
    """As notebooks leave it."""
    shards = write_shards(tmp_path / "others")
    (shards / "tokenizer" / ".ipynb_checkpoints").mkdir()
    assert call("train.max_steps=1", shards=shards)[0] == [0]
    assert {path.name for path in (tmp_path / "run" / "tokenizer").iterdir()} >= {"vocab.txt", "tokenizer.json"}


def test_a_warm_up_that_is_longer_than_the_run_is_told(call):
    _, log = call("schedule.warmup_steps=8")
    assert "the learning rate never reaches its peak: schedule.warmup_steps is 8, and there are 8 steps" in log


def test_each_of_two_phases_with_equal_schedules_has_to_reach_its_peak(recipe, caplog):
    phase = ("{{sequence_length=32, steps={}, global_batch_size=8, micro_batch_size=2, "
             "schedule={{peak=1e-2, warmup_steps=10}}}}")  # fmt: skip
    warn_of_settings(load_recipe(recipe, [f"phases=[{phase.format(5)}, {phase.format(100)}]"]))
    assert [record.args for record in caplog.records] == [(10, 5)]


def test_a_limit_that_takes_predictions_from_the_masking_is_told(recipe, caplog):
    for settings in ([], ["phases.0.max_predictions=5"], ["masking.probability=0.3"]):
        warn_of_settings(load_recipe(recipe, ["schedule.warmup_steps=0", *settings]))
    assert [record.getMessage() for record in caplog.records] == [
        f"phases.0.max_predictions is 4: of 32 tokens so many are predicted, and not the {asked} that "
        f"masking.probability={share} asks for; leave it out to have them"
        for asked, share in ((5, 0.15), (10, 0.3))
    ]
