"""The model that a recipe leaves open: that of the weights that a run begins with."""

from __future__ import annotations

import os
from pathlib import Path

from trainer.config import load_recipe
from trainer.hugging_face import CONFIG, load_config
from trainer.model import BertConfig
from trainer.run_directory import RunDirectory, newest_export_around
from trainer.settings import ConfigError


def initial_model(init_from: Path | None, run: RunDirectory) -> BertConfig | None:
    """What load_recipe takes for all that a recipe does not say of its model.

    Args:
        init_from: Hugging Face directory whose weights a new run begins with.
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


def given_model(directory: Path) -> BertConfig:
    """The model of a Hugging Face directory's weights.

    Raises:
        ConfigError: there is no such directory, or its configuration can't be read or is of no model that we have.
    """
    if not os.access(directory, os.F_OK):
        raise ConfigError(
            f"--init-from: {directory}: no such folder; a model of the Hugging Face hub comes into one by "
            "`hf download NAME --local-dir DIR`"
        )
    try:
        check_is_export(directory)
        return load_config(directory)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--init-from: {error}") from error
