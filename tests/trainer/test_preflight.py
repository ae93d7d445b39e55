"""What is seen before a start: mistakes in what was asked for, and settings that take away what others ask for."""

import dataclasses
import shutil

import pytest
import torch

from preprocessing.schema import MANIFEST, Manifest
from tests.trainer.shard_factory import write_shards
from trainer import preflight
from trainer.config import load_recipe
from trainer.corpus import open_corpus
from trainer.preflight import _check_precision, _check_segments, warn_of_settings


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
        ["train.cuda_graphs=true", "data.token_multiple=64"],
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


def test_a_warm_up_that_is_longer_than_the_run_is_told(call):
    _, log = call("schedule.warmup_steps=8")
    assert "the learning rate never reaches its peak: schedule.warmup_steps is 8, and there are 8 steps" in log


def test_each_of_two_phases_with_equal_schedules_has_to_reach_its_peak(recipe, caplog):
    phase = ("{{sequence_length=32, steps={}, global_batch_size=8, micro_batch_size=2, "
             "schedule={{peak=1e-2, warmup_steps=10}}}}")  # fmt: skip
    warn_of_settings(load_recipe(recipe, [f"phases=[{phase.format(5)}, {phase.format(100)}]"]))
    assert [message.partition(": ")[2] for message in caplog.messages] == [
        "schedule.warmup_steps is 10, and there are 5 steps"
    ]


def test_a_limit_that_takes_predictions_from_the_masking_is_told(recipe, caplog):
    for settings in ([], ["phases.0.max_predictions=5"], ["masking.probability=0.3"]):
        warn_of_settings(load_recipe(recipe, ["schedule.warmup_steps=0", *settings]))
    assert [record.getMessage() for record in caplog.records] == [
        f"phases.0.max_predictions is 4: of 32 tokens so many are predicted, and not the {asked} that "
        f"masking.probability={share} asks for; leave it out to have them"
        for asked, share in ((5, 0.15), (10, 0.3))
    ]


@pytest.mark.parametrize(("settings", "told"), [
    (["masking.longest_span=3"], "masking.span_probability and masking.longest_span have no effect: masking.unit is "
     "token, not span"),
    (["schedule.power=0", "schedule.floor=0.1"], "schedule.floor has no effect: schedule.power=0 holds the peak"),
])  # fmt: skip
def test_a_setting_without_effect_is_told(recipe, caplog, settings, told):
    warn_of_settings(load_recipe(recipe, ["masking.probability=0.1", *settings]))
    assert [record.getMessage() for record in caplog.records] == [told]


def test_a_limit_that_takes_nothing_from_a_left_to_right_model_is_told(recipe, caplog):
    left_to_right = ["model.is_decoder=true", "train.next_sentence=false", "schedule.warmup_steps=0"]
    warn_of_settings(load_recipe(recipe, left_to_right))
    assert [record.getMessage() for record in caplog.records] == [
        "phases.0.max_predictions limits nothing: a left-to-right model predicts every token"
    ]


@pytest.mark.parametrize(("capability", "precision", "warns"), [
    ((7, 5), "bf16", True), ((7, 5), "fp16", False), ((8, 0), "bf16", False),
])  # fmt: skip
def test_bf16_on_a_gpu_that_emulates_it_is_told(capability, precision, warns, recipe, monkeypatch, caplog):
    """Torch does so without a word, and DeepSpeed takes it."""
    for module, name, result in (
        (preflight, "device_kind", torch.device("cuda")),
        (preflight, "fp16_is_supported", True),
        (torch.cuda, "is_available", True),
        (torch.cuda, "get_device_capability", capability),
    ):
        monkeypatch.setattr(module, name, lambda *_, result=result: result)
    _check_precision(load_recipe(recipe), {precision: {"enabled": True}})
    assert ("bf16: GPUs multiply in it from Ampere on" in caplog.text) == warns
