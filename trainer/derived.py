"""What the commands have in common that write a new directory of weights: an export, or a model that was changed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from preprocessing.schema import checksum
from preprocessing.status import exists, make_folder
from preprocessing.storage_errors import UnavailableError, comes_of_passing, exit_code
from preprocessing.terminal import in_line, show, tell_error
from trainer.hugging_face import Export, load_export, save_export, weights_file
from trainer.initial_model import check_is_export
from trainer.lineage import code_version
from trainer.model import BertConfig

_log = logging.getLogger(__name__)


def write_new(output: Path, write: Callable[[], str]) -> int:
    """Do what a command is for, which is to write a new directory.

    Args:
        output: the directory.
        write: writes it; returns what to show of it.

    Returns:
        The command's exit code: 0, 1 where storage fails, maybe for a moment, or 2 for a mistake in what was asked for.
    """
    try:
        if exists(output):
            raise ValueError(f"{output}: is there already; choose another directory")  # noqa: TRY301
        told = write()
    except (OSError, ValueError, UnavailableError) as error:
        what = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
        if comes_of_passing(error) and not isinstance(error, UnavailableError):  # which says so itself
            what += "; give the same command again"
        elif isinstance(error, OSError):
            what += "; choose another directory, or make room"
        tell_error(what)
        return exit_code(error)
    show(in_line(f"{output}: {told}"))
    return 0


def open_original(model: Path) -> Export:
    """Read the model that is to be changed, and say what it lacks.

    Raises:
        ValueError: it can't be read or is no export.
    """
    check_is_export(model)
    export = load_export(model)
    if export.initialized:
        _log.warning("%s has no %s: newly initialised", model, ", ".join(export.initialized))
    return export


def save_derived(output: Path, config: BertConfig, state: Mapping[str, Tensor], tokenizer: Path, model: Path) -> None:
    """Write the changed model, complete or not at all, with the tokenizer's files and a lineage that names ``model``.

    Raises:
        ValueError: there is no tokenizer.
        OSError: it can't be written.
    """
    begun = {"directory": str(model.resolve()), "blake2b": checksum(weights_file(model))}
    make_folder(output.parent, parents=True)
    save_export(output, state, config, tokenizer, {"initial_weights": begun, "code": code_version()})
