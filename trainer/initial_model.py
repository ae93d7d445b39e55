"""What --init-from names: the weights that a run begins with, and with a checkpoint its optimizer's moments too."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from preprocessing.schema import checksum, checksum_of
from trainer.checkpoint import RUN_STATE, Learner, read_run_state
from trainer.config import Recipe, load_recipe
from trainer.hugging_face import CONFIG, WEIGHTS, Export, load_config, load_export
from trainer.model import BertConfig, parameter_shapes
from trainer.run_directory import CheckpointError, RunDirectory, newest_checkpoint_around, newest_export_around
from trainer.settings import ConfigError, parse
from trainer.sharded_state import StateError, StateReader, stored_checksums, verify_state

# What a recipe's model must have in common with the weights, for else they are another one's.
_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act",
          "is_decoder", "pre_layer_norm", "max_position_embeddings", "type_vocab_size", "layer_norm_eps")  # fmt: skip


def initial_model(init_from: Path | None, run: RunDirectory) -> BertConfig | None:
    """What load_recipe takes for all that a recipe does not say of its model.

    Args:
        init_from: directory whose weights a new run begins with.
        run: new, or to go on with: this one's own model counts then, as the directory may be gone.

    Returns:
        None where the weights are new ones.

    Raises:
        ConfigError: a configuration can't be read, or is of no model that we have.
    """
    if os.access(run.config, os.R_OK):  # which raises nothing, whatever keeps one from looking
        return load_recipe(run.config).model if os.access(run.initial_weights, os.F_OK) else None
    return given_model(init_from) if init_from else None


def check_is_export(directory: Path) -> None:
    """See that a directory is no run, checkpoint or folder of exports, as is often given instead of an export.

    Raises:
        ConfigError: it has no configuration and lies in a run; the message names the newest export there.
    """
    if not os.access(directory / CONFIG, os.F_OK) and (newest := newest_export_around(directory)):
        raise ConfigError(f"{directory / CONFIG}: missing, so it is no export; the newest one is {newest}")


def is_checkpoint(directory: Path) -> bool:
    """Whether a folder is a checkpoint, or what is left of one."""
    return os.access(directory / RUN_STATE, os.F_OK) or any(directory.glob("state-*-of-*"))


def tells_its_model(directory: Path) -> bool:
    """Whether this user can read there which model the weights are of."""
    return any(os.access(directory / name, os.R_OK) for name in (CONFIG, RUN_STATE))


def given_model(directory: Path) -> BertConfig:
    """The model of the weights in a Hugging Face directory or in a checkpoint.

    Raises:
        ConfigError: there is no such directory, it is neither, or what it says of its model can't be read or is of no
            model that we have.
    """
    newest = _newest_around(directory)
    if not os.access(directory, os.F_OK):
        hub = "a model of the Hugging Face hub comes into one by `hf download NAME --local-dir DIR`"
        raise ConfigError(f"--init-from: {directory}: no such folder; {newest or hub}")
    if is_checkpoint(directory):
        return _model_of(directory)
    if newest and not os.access(directory / CONFIG, os.F_OK):
        raise ConfigError(f"--init-from: {directory}: neither a checkpoint nor an export; {newest}")
    try:
        return load_config(directory)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--init-from: {error}") from error


def initial_weights(directory: Path, recipe: Recipe) -> Export:
    """The model in a Hugging Face directory, heads included where it has them.

    Raises:
        ConfigError: it can't be read or is not the recipe's model.
    """
    try:
        export = load_export(directory, recipe.train.seed)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--init-from: {error}") from error
    _check_sizes(directory, export.config, recipe)
    return export


def check_given(directory: Path, recipe: Recipe) -> None:
    """See that a Hugging Face directory or a checkpoint is of the recipe's model.

    Raises:
        ConfigError: it is not, or is damaged, as far as that shows before all of a checkpoint is read.
    """
    if not is_checkpoint(directory):
        initial_weights(directory, recipe)
        return
    _check_sizes(directory, _model_of(directory), recipe)
    try:
        StateReader(directory, parameter_shapes(recipe.model))
    except StateError as error:
        raise _damaged(error) from error


def learner_of(checkpoint: Path) -> Learner:
    """What a checkpoint is of.

    Raises:
        ConfigError: it does not tell, or is damaged.
    """
    try:
        learner = read_run_state(checkpoint).learner
    except CheckpointError as error:
        raise _damaged(error) from error
    if learner is None:
        raise ConfigError(
            f"--init-from: {checkpoint / RUN_STATE}: of an earlier version, which does not tell the model; train that "
            "run for another step, or begin with its export, which has no moments"
        )
    return learner


def _model_of(checkpoint: Path) -> BertConfig:
    return parse(learner_of(checkpoint).model, BertConfig, f"--init-from: {checkpoint / RUN_STATE}")


def verify_given(directory: Path) -> dict[str, str]:
    """Read once all that a run begins with; returns what RunDirectory.read_initial_weights tells of it later.

    Raises:
        ConfigError: it is a checkpoint and damaged.
    """
    told = {"directory": str(directory.resolve()), "blake2b": given_checksum(directory)}
    if not is_checkpoint(directory):
        return told
    try:
        verify_state(directory)
        return {**told, "step": str(read_run_state(directory).step)}
    except (CheckpointError, StateError) as error:
        raise _damaged(error) from error


def given_checksum(directory: Path) -> str:
    """What tells weights from others: the checksum of an export's, or of those that a checkpoint has of its files.

    Raises:
        ConfigError: it is a checkpoint and damaged.
    """
    if not is_checkpoint(directory):
        return checksum(directory / WEIGHTS)
    try:
        return checksum_of("\n".join([checksum(directory / RUN_STATE), *stored_checksums(directory)]).encode())
    except StateError as error:
        raise _damaged(error) from error


def _check_sizes(directory: Path, given: BertConfig, recipe: Recipe) -> None:
    values = {name: (getattr(given, name), getattr(recipe.model, name)) for name in _SIZES}
    if differing := {name: (found, wanted) for name, (found, wanted) in values.items() if found != wanted}:
        told = "; ".join(f"{name} {found}, the recipe {wanted}" for name, (found, wanted) in differing.items())
        settings = [f"model.{name}={json.dumps(found)}" for name, (found, _) in differing.items()]  # as TOML has it too
        advice = f"set {' '.join(settings)}, or take a recipe that leaves it open, such as continued.toml"
        if "vocab_size" in differing:  # that of the shards, as has been seen
            advice = "give it the shards' words by trainer.new_vocabulary, or make shards with its own"
        raise ConfigError(f"--init-from: {directory} has {told}; {advice}")


def _newest_around(path: Path) -> str:
    """What of the run that a path is, or lies in, can be begun with; '' where none is seen."""
    newest: dict[str, Path | None] = {}
    with contextlib.suppress(OSError):  # of a path that can't be
        newest = {"with the moments too": newest_checkpoint_around(path), "weights alone": newest_export_around(path)}
    there = [f"{folder} ({what})" for what, folder in newest.items() if folder]
    return f"the newest of its run: {', '.join(there)}" if there else ""


def _damaged(error: Exception) -> ConfigError:
    return ConfigError(f"--init-from: {error}; copy it again, or take another checkpoint")
