"""Files of tensors (safetensors) that are like any other: what keeps one from being written or read is an OSError.

Those of torch.save, in which many older models are published, are read too, and never written.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from preprocessing.schema import new_checksum
from trainer.files import DamagedFileError

_NAMES = {torch.float32: "F32"}  # of the kinds of numbers that are written


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """Write tensors and put them on disk, in a folder that has no final name yet; the bytes are those of safetensors.

    Its own writer sets a file's size first, and passes over what is said when the file is closed, where Lustre, for
    one, tells of a write that has failed, and only there: zeros would lie in the file, and nobody would know.

    Args:
        path: of the file.
        tensors: float32, contiguous, on any device.
        metadata: that stands at the beginning of the file.

    Returns:
        The checksum of what was to be written, whatever can be read there.

    Raises:
        OSError: they can't be written.
    """
    in_order = dict(sorted(tensors.items()))
    numbers = (tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data for tensor in in_order.values())
    parts: Iterator[bytes | memoryview] = chain([_header(in_order, metadata)], numbers)
    digest = new_checksum()
    try:
        with path.open("wb") as file:
            for part in parts:
                file.write(part)
                digest.update(part)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    return digest.hexdigest()


def _header(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """What stands before the numbers in a file of safetensors: its length, and where which tensor lies."""
    content: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        content[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # so that numbers begin where their size divides the place
    return len(text).to_bytes(8, "little") + text


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
