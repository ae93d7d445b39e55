"""A pretrained model changed and written as another one that --init-from takes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from preprocessing.schema import checksum
from preprocessing.status import exists
from trainer.hugging_face import WEIGHTS, Export, load_export, save_export
from trainer.initial_model import check_is_export
from trainer.lineage import code_version
from trainer.model import BertConfig

_log = logging.getLogger(__name__)


def open_original(model: Path, output: Path) -> Export:
    """Read the model that is to be changed, and say what it lacks.

    Raises:
        ValueError: it can't be read or is no export, or ``output`` is there already.
    """
    if exists(output):
        raise ValueError(f"{output}: is there already; choose another directory")
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
    begun = {"directory": str(model.resolve()), "blake2b": checksum(model / WEIGHTS)}
    output.parent.mkdir(parents=True, exist_ok=True)
    save_export(output, state, config, tokenizer, {"initial_weights": begun, "code": code_version()})
