"""The command line of the trainer: options and settings in any order, and what other programs call them."""

import re

import pytest

from trainer.arguments import parse
from trainer.settings import ConfigError


def test_of_shards_a_leading_tilde_is_the_home_folder_and_an_address_is_left_alone(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    words = ["--shards=~/wiki", "--shards", "s3://b//c/", "data.cache_dir=x//y"]
    arguments = parse(["--config", "a.toml", "--output", "run", *words])
    assert arguments.shards == ["/home/ada/wiki", "s3://b//c/"]
    assert arguments.settings == ["data.cache_dir=x//y"]


@pytest.mark.parametrize(("word", "told"), [
    ("--learning_rate=2e-5", "--learning_rate: here it is schedule.peak=X"),
    ("--per-device-train-batch-size=8", "here it is phases.0.micro_batch_size=N, from which accumulation follows"),
    ("--deepspeed", "here it is --deepspeed_config FILE, alone"),  # and no beginning of that
    ("--weight_decay=0.1", "here it is optimizer.weight_decay=X"),
    ("--adam_beta2=0.98", "here it is optimizer.beta2=X"),
    ("--adam_epsilon=1e-8", "here it is optimizer.eps=X"),
    ("--max_grad_norm=1.0", "here it is optimizer.max_gradient_norm=X"),
    ("--gradient_checkpointing", "here it is model.activation_checkpointing=true"),
    ("--init_from", "here it is --init-from"),
    ("--train.seed=3", "--train.seed: a setting has no dashes, train.seed=3"),
    ("--wandb", "--wandb: settings are section.key=value; docs/migrating.md has the names of other programs"),
])  # fmt: skip
def test_what_other_programs_call_an_option_is_told(word, told):
    with pytest.raises(ConfigError) as error:
        parse(["--config", "a.toml", "--output", "run", "--shards", "shards", word, "train.seed=3"])
    assert f"unknown option {word.partition('=')[0]}: " in str(error.value)
    assert told in str(error.value)


@pytest.mark.parametrize(("word", "told"), [
    ("schedule.warmup_proportion=0.1", "schedule.warmup_proportion: here it is schedule.warmup_steps=N"),
    ("optimizer.max_grad_norm=1", "optimizer.max_grad_norm: here it is optimizer.max_gradient_norm=X"),
    ("learning_rate=1e-4", "learning_rate: here it is schedule.peak=X"),
    ("train.bf16=true", "train.bf16: here it is fp16 and bf16 in the file of --deepspeed_config"),
])  # fmt: skip
def test_what_other_programs_call_a_setting_is_told(word, told):
    with pytest.raises(ConfigError, match=re.escape(f"unknown setting {told}")):
        parse(["--config", "a.toml", "--output", "run", "--shards", "shards", "--", word])


def test_our_own_settings_are_no_other_ones():
    ours = ["train.seed=2", "train.max_steps=3", "schedule.warmup_steps=4", "phases.0.schedule.warmup_steps=1"]
    given = ["--config", "a.toml", "--output", "lr=1e-4", "--shards", "shards", "lr=3", "--init-from=learning_rate=3"]
    arguments = parse([*given, *ours])
    assert (arguments.settings, arguments.output.name, arguments.shards[1]) == (ours, "lr=1e-4", "lr=3")


@pytest.mark.parametrize("words", [
    ["--config", "a.toml", "--output_dir", "run", "--shards", "shards"],
    ["--config_file=bert.json", "--output", "run", "--shards", "shards"],
    ["--config", "a.toml", "--output", "run", "--input-dir", "shards"],
])  # fmt: skip
def test_another_name_is_told_before_what_is_then_missing(words):
    with pytest.raises(ConfigError, match=": here it is ") as error:
        parse(words)
    assert "required" not in str(error.value)


def test_our_own_name_is_no_other_ones():
    arguments = parse(["--init-from", "m", "--config", "a.toml", "--output", "run", "--shards", "shards"])
    assert arguments.init_from.name == "m"


@pytest.mark.parametrize("word", ["--local_rank=3", "--local-rank=3"])
def test_launchers_may_give_the_rank_on_the_command_line(word):
    """DeepSpeed's and torch.distributed.launch."""
    arguments = parse([word, "--config", "a.toml", "--output", "run", "--shards", "shards", "train.seed=3"])
    assert (arguments.shards, arguments.settings) == (["shards"], ["train.seed=3"])
