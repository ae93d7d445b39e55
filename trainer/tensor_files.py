"""Files of tensors (safetensors) that are like any other: their mode is the umask's, and a full disk is an OSError.

Those of torch.save, in which many older models are published, are read too, and never written.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from trainer.files import DamagedFileError, sync

_NUMBER = re.compile(r"\(os error ([0-9]+)\)")  # how Rust tells what the operating system said


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
        if found := _NUMBER.search(str(error)):
            number = int(found[1])
            raise OSError(number, os.strerror(number), str(path)) from error
        raise OSError(f"{path}: {error}") from error
    path.chmod(mode)  # safetensors 0.8 renames a temporary file of mode 0600
    sync(path)


def open_tensors(path: Path) -> safe_open:
    """Open a file of tensors, and map it.

    Raises:
        OSError: it can't be opened or mapped.
        DamagedFileError: it is no such file, or not whole.
    """
    path.open("rb").close()  # safetensors calls a file missing, whatever keeps it from that
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise DamagedFileError(str(error)) from error
    except (OSError, RuntimeError) as error:  # of a file that could be opened just now; the latter is torch's
        raise OSError(errno.EIO, str(error), str(path)) from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a file, mapped.

    Raises:
        OSError, DamagedFileError: see open_tensors.
    """
    file = open_tensors(path)
    return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  it is no mapping


def read_pickled_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a file that torch.save wrote, in memory.

    A pickle may have whoever reads it call anything. torch's unpickler of weights calls what makes tensors and
    containers, and nothing else.

    Raises:
        OSError: it can't be opened or read.
        DamagedFileError: it is no such file, not whole, or holds something else than tensors by name.
    """
    with path.open("rb") as file:
        try:
            content = torch.load(file, map_location="cpu", weights_only=True)
        except OSError:
            raise
        except Exception as error:  # an unpickler may fail by anything
            raise DamagedFileError(f"not whole, or no weights alone: {type(error).__name__}") from error
    if not isinstance(content, dict) or not all(isinstance(v, Tensor) and _is_plain(v) for v in content.values()):
        raise DamagedFileError("it holds other things than tensors by name")
    return {str(name): tensor.detach() for name, tensor in content.items()}


def _is_plain(tensor: Tensor) -> bool:
    """Whether it has all its numbers in memory: a file may tell of more than it has."""
    if tensor.layout != torch.strided or tensor.device.type != "cpu":
        return False
    return tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()
