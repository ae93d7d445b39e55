"""Safetensors files, written like any other file: their mode is the umask's, and a full disk is an OSError."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from trainer.files import sync


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors and put them on disk, in a folder that has no final name yet.

    Args:
        path: of the file.
        tensors: contiguous, of any dtype.
        metadata: that stands at the beginning of the file.

    Raises:
        OSError: they can't be written.
    """
    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)
    try:
        save_file(dict(tensors), path, dict(metadata))
    except SafetensorError as error:  # which is no OSError, whatever the operating system said
        raise OSError(f"{path}: {error}") from error
    path.chmod(mode)  # safetensors 0.8 renames a temporary file of mode 0600
    sync(path)
