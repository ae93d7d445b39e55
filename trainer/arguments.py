"""The command line of the trainer."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from preprocessing.command_line import OneLineParser, parse_path, parse_place
from trainer.settings import ConfigError, is_override

# What others call it: google-research/bert, NVIDIA, bing_bert and transformers. docs/migrating.md has more.
_OTHERS_NAMES = {
    **dict.fromkeys(("--input_file", "--input_dir", "--train_file"), "--shards"),
    "--output_dir": "--output",
    **dict.fromkeys(("--init_from", "--init_checkpoint", "--model_name_or_path"), "--init-from"),
    **dict.fromkeys(("--bert_config_file", "--config_file"), "[model] in the recipe of --config"),
    **dict.fromkeys(("--learning_rate", "--lr"), "schedule.peak=X"),
    **dict.fromkeys(
        ("--warmup_proportion", "--warmup_ratio", "--num_warmup_steps", "--warmup_steps"), "schedule.warmup_steps=N"
    ),
    "--weight_decay": "optimizer.weight_decay=X",
    "--adam_beta1": "optimizer.beta1=X",
    "--adam_beta2": "optimizer.beta2=X",
    **dict.fromkeys(("--adam_epsilon", "--adam_eps"), "optimizer.eps=X"),
    **dict.fromkeys(("--max_grad_norm", "--gradient_clipping"), "optimizer.max_gradient_norm=X"),
    **dict.fromkeys(("--num_train_steps", "--num_train_epochs"), "phases.0.steps=N"),
    "--max_steps": "train.max_steps=N",
    "--train_batch_size": "phases.0.global_batch_size=N, of an update over all ranks",
    **dict.fromkeys(
        ("--gradient_accumulation_steps", "--per_device_train_batch_size", "--train_micro_batch_size_per_gpu"),
        "phases.0.micro_batch_size=N, from which accumulation follows",
    ),
    "--max_seq_length": "phases.0.sequence_length=N",
    **dict.fromkeys(("--mlm_probability", "--masked_lm_prob"), "masking.probability=X"),
    "--max_predictions_per_seq": "masking.probability=X, which phases.0.max_predictions=N may limit",
    "--seed": "train.seed=N",
    **dict.fromkeys(("--gradient_checkpointing", "--checkpoint_activations"), "model.activation_checkpointing=true"),
    **dict.fromkeys(("--fp16", "--bf16", "--amp"), "fp16 and bf16 in the file of --deepspeed_config"),
    "--deepspeed": "--deepspeed_config FILE, alone",
    "--resume_from_checkpoint": "the same command again, which resumes",
}


class _Parser(OneLineParser):
    """A parser for which a mistake in the command line is one as any other: a run may end by it."""

    def error(self, message: str) -> NoReturn:
        """Tell what is wrong.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(message)


def parse(
    words: Sequence[str], path: Callable[[str], Path] = parse_path, place: Callable[[str], str] = parse_place
) -> argparse.Namespace:
    """Read a command line.

    Args:
        words: of it.
        path: reads a path.
        place: reads a path or an address.

    Returns:
        config, deepspeed_config and output, paths; shards, places; init_from, a path or None; and settings, words.

    Raises:
        ConfigError: it is none.
    """

    def parse_shards(text: str) -> str:
        return text if is_override(text) else place(text)  # a setting: an open-ended --shards takes it too

    parser = _Parser(
        prog="deepspeed [--num_accelerators N] trainer/pretrain.py",
        description="Pretrain BERT on shards. The same command again goes on where the run stopped.",
        epilog="Settings are those of the recipe, as section.key=value: train.max_steps=10 model.num_hidden_layers=2 "
        "phases.0.micro_batch_size=8. docs/training.md lists them, trainer/config.py explains each.",
    )
    parser.add_argument("--config", type=path, required=True, metavar="TOML", help="the recipe; see trainer/recipes/")
    parser.add_argument(
        "--deepspeed_config", type=path, default=Path("ds_config.json"), metavar="JSON",
        help="DeepSpeed's own knobs: ZeRO, precision, offload, communication (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--shards", type=parse_shards, nargs="+", action="extend", required=True, metavar="DIR",
        help="made by preprocessing/make_shards.py; several are mixed by data.weights, or else by their numbers of "
        "pairs; with data.cache_dir also URLs that fsspec opens",
    )  # fmt: skip
    parser.add_argument(
        "--output", type=path, required=True, metavar="DIR", help="the run directory, new or to go on with"
    )
    parser.add_argument(
        "--init-from", type=path, metavar="DIR",
        help="begin with the weights of a Hugging Face BERT directory (continued pretraining), or with weights and "
        "moments of another run's RUN/checkpoints/step-...; a resume has its own",
    )  # fmt: skip
    # The launcher's, DeepSpeed's or torch.distributed.launch's; LOCAL_RANK says the same.
    parser.add_argument("--local_rank", "--local-rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("settings", nargs="*", metavar="section.key=value", help="settings that replace the recipe's")
    parser.refuse_names_of_others(words, _OTHERS_NAMES)  # first: an option of ours is missing then
    parser.refuse_misspelt(words)
    for word in parser.unknown(words):
        parser.error(_advice(word))
    arguments = parser.parse_intermixed_args(words)
    taken = [text for text in arguments.shards if is_override(text)]
    arguments.shards = [text for text in arguments.shards if text not in taken]
    arguments.settings = [*taken, *arguments.settings]
    for advice in filter(None, map(_others_setting, arguments.settings)):
        parser.error(advice)
    if not arguments.shards:
        parser.error("--shards names no directory")
    return arguments


def output_of(words: Sequence[str]) -> Path | None:
    """What a command line names as --output, whatever else is wrong with it."""
    parser = _Parser(add_help=False)
    parser.add_argument("--output", type=parse_path)
    with contextlib.suppress(ConfigError):
        output: Path | None = parser.parse_known_args(words)[0].output
        return output
    return None


def _others_setting(word: str) -> str | None:
    """What to say of a setting that is called as another program calls an option, such as learning_rate=1e-4."""
    name = word.partition("=")[0]
    key = name.rpartition(".")[2]
    meant = _OTHERS_NAMES.get(f"--{key}")
    return f"unknown setting {name}: here it is {meant}" if meant and f".{key}=" not in meant else None


def _advice(word: str) -> str:
    option = word.partition("=")[0]
    if is_override(word.lstrip("-")):
        return f"unknown option {option}: a setting has no dashes, {word.lstrip('-')}"
    return f"unknown option {option}: settings are section.key=value; docs/migrating.md has the names of other programs"
