"""Before a start: see that recipe, machine, shards and run directory go together. Nothing is written."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from preprocessing.schema import ShardError
from preprocessing.terminal import counted
from preprocessing.tokenization import VOCABULARY_FILE, check_files, load_vocabulary, special_ids
from trainer.attention import is_modern
from trainer.config import Phase, Recipe
from trainer.corpus import Corpus, train_stream
from trainer.data import validation_stream
from trainer.engine import check_deepspeed
from trainer.fp8 import why_not_fp8
from trainer.initial_model import find_given, initial_model
from trainer.joining import device_kind, fp16_is_supported
from trainer.masking import STANDARD
from trainer.model import BertConfig
from trainer.monitors import check_installed
from trainer.run_directory import RunDirectory
from trainer.settings import ConfigError
from trainer.sources import check_weights
from trainer.start import check_run

_log = logging.getLogger("pretrain")


def check_output(run: RunDirectory, cache: Path | None) -> None:
    """See that a run can be in its directory, before shards are copied to a cache, which may take long.

    Raises:
        CheckpointError, ConfigError: it can't, or the cache would be in its way.
    """
    run.check()
    if cache and cache.resolve().is_relative_to(run.path.resolve()):
        raise ConfigError(f"data.cache_dir {cache} lies in --output, where only the run's own files are; take another")


def check(
    recipe: Recipe, configs: Sequence[dict[str, Any]], shards: Corpus, run: RunDirectory, init_from: Path | None
) -> None:
    """See that recipe, machine, shards and run directory go together. Nothing is written.

    Args:
        recipe: of the run.
        configs: DeepSpeed's of its phases, resolved.
        shards: to train on.
        run: new, or to go on with.
        init_from: Hugging Face directory or checkpoint that a new run begins with.

    Raises:
        ConfigError, ShardError, VocabularyError, CheckpointError: what does not, and what to do.
        UnavailableError: the storage of one fails, maybe for a moment only.
    """
    for config in configs:
        check_deepspeed(config)
    check_installed(configs[0])  # which is the same in all phases
    is_new = run.is_new
    if is_new:  # though each phase may have its own; one that has begun must keep them
        check_weights(recipe.data.weights, shards.directories)
    for phase in recipe.phases:
        train_stream(recipe, phase, shards)
        _check_validation(recipe, phase, shards)
    _check_precision(recipe, configs[0])
    _check_vocabulary(recipe, shards, initial_model(init_from, run) if is_new else None)
    check_files(shards.tokenizer)  # which every export will have
    if is_new:
        _check_padding(recipe, shards)
    _check_segments(recipe, shards)
    check_run(run, recipe, shards)
    if init_from and not run.step:
        beginning = find_given(init_from)
        beginning.check_vocabulary(shards)
        beginning.check(recipe)


def _check_precision(recipe: Recipe, config: dict[str, Any]) -> None:
    if config.get("fp16", {}).get("enabled") and not fp16_is_supported():
        raise ConfigError("fp16: this machine's processor can't compute in it; use bf16, or train on GPUs")
    if config.get("bf16", {}).get("enabled") and not is_modern(device_kind()):
        _log.warning(
            "bf16: GPUs multiply in it from Ampere on (compute capability 8.0); this one is older, and it is emulated "
            "there, slowly; take fp16 in DeepSpeed's configuration"
        )
    if recipe.train.fp8 and (reason := why_not_fp8(device_kind())):
        raise ConfigError(f"train.fp8: {reason}")
    if recipe.train.cuda_graphs and device_kind().type != "cuda":
        raise ConfigError("train.cuda_graphs: there is no GPU to have graphs; leave it out on a CPU")
    if recipe.train.fused and (reason := why_not_fused(device_kind())):
        raise ConfigError(f"train.fused: {reason}")


def _check_validation(recipe: Recipe, phase: Phase, shards: Corpus) -> None:
    if recipe.log.validate_every:
        try:
            validation_stream(shards.directories, phase.sequence_length, recipe.model.is_decoder)
        except ShardError as error:
            raise ConfigError(f"{error}, or set log.validate_every=0") from error


def _check_vocabulary(recipe: Recipe, shards: Corpus, given: BertConfig | None) -> None:
    """See that the model has as many words as the shards; ``given`` is the one whose weights it begins with."""
    found, wanted = shards.vocabulary.size, recipe.model.vocab_size
    if found != wanted:
        advice = f"set model.vocab_size={found}"
        if given and given.vocab_size != found:
            advice = "give the weights of --init-from these words by trainer.new_vocabulary"
        raise ConfigError(
            f"{shards.name}: made with a vocabulary of {found} entries, but model.vocab_size is {wanted}; "
            f"{advice} or make shards with the model's vocabulary"
        )


def _check_padding(recipe: Recipe, shards: Corpus) -> None:
    """See that the model's padding is that of the shards: fine-tuning never trains its row of the embeddings."""
    found, wanted = special_ids(load_vocabulary(shards.tokenizer / VOCABULARY_FILE)).pad, recipe.model.pad_token_id
    if found != wanted:
        raise ConfigError(
            f"{shards.name}: [PAD] is entry {found} of its vocabulary, but model.pad_token_id is {wanted}; "
            f"set model.pad_token_id={found}"
        )


def _check_segments(recipe: Recipe, shards: Corpus) -> None:
    """See that there are next sentences to judge, and that the model knows the second of two segments."""
    for directory in shards.directories:
        if recipe.train.next_sentence and not directory.manifest.next_sentence:
            raise ConfigError(
                f"{directory.path}: made with --no-nsp, so there are no next sentences to learn from; "
                "set train.next_sentence=false, or make shards without --no-nsp"
            )
        if recipe.model.type_vocab_size < 2 and directory.manifest.next_sentence:
            raise ConfigError(
                f"{directory.path}: samples have two segments, but model.type_vocab_size is "
                f"{recipe.model.type_vocab_size}; set it to 2, or make shards with --no-nsp"
            )


def why_not_fused(device: torch.device) -> str:
    """What keeps this machine from the kernels of trainer.fused, or ''."""
    if device.type != "cuda":
        return "its kernels are for GPUs; leave it out on a CPU"
    if not is_modern(device):
        return "its kernels multiply matrices as GPUs do from Ampere on (compute capability 8.0), and this one is older"
    return "" if find_spec("triton") else "triton is not installed, which torch brings on Linux: pip install triton"


def warn_of_settings(recipe: Recipe) -> None:
    """Say so where one setting takes away what another one asks for, as may be where a recipe was changed."""
    _warn_of_schedules(recipe)
    spans = (recipe.masking.span_probability, recipe.masking.longest_span)
    if recipe.masking.unit != "span" and spans != (STANDARD.span_probability, STANDARD.longest_span):
        _log.warning(
            "masking.span_probability and masking.longest_span have no effect: masking.unit is %s, not span",
            recipe.masking.unit,
        )
    for number, phase in enumerate(recipe.phases):
        if recipe.model.is_decoder and phase.max_predictions:
            _log.warning("phases.%d.max_predictions limits nothing: a left-to-right model predicts every token", number)
        taken, asked = recipe.predictions(phase), recipe.predictions(phase.unlimited)
        if taken < asked:
            _log.warning(
                "phases.%d.max_predictions is %d: of %d tokens so many are predicted, and not the %d that "
                "masking.probability=%g asks for; leave it out to have them",
                number, taken, phase.sequence_length, asked, recipe.masking.probability,
            )  # fmt: skip


def _warn_of_schedules(recipe: Recipe) -> None:
    """A schedule may end before its peak, as that of a recipe that was shortened, or have a floor and never fall."""
    schedules = [(phase.schedule, phase.steps) for phase in recipe.phases if phase.schedule]
    if recipe.has_common_schedule:
        schedules.append((recipe.schedule, recipe.total_steps))
    for schedule, steps in dict.fromkeys(schedules):
        if schedule.warmup_steps >= steps:
            _log.warning(
                "the learning rate never reaches its peak: schedule.warmup_steps is %d, and there %s %s",
                schedule.warmup_steps, "is" if steps == 1 else "are", counted(steps, "step"),
            )  # fmt: skip
        if schedule.floor and not schedule.power:
            _log.warning("schedule.floor has no effect: schedule.power=0 holds the peak")
