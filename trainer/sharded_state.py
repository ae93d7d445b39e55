"""The tensors of a checkpoint: what every rank holds of weights and moments, and how any other set of ranks reads it.

Under ZeRO a rank owns flat float32 tensors in which parameters, or parts of them, lie one after the other. It writes
them as they are into one safetensors file, with a table of which stretch belongs to which parameter. Reading goes by
that table, so ranks of any number and any ZeRO stage find what they need. Nothing is pickled, nothing is stored twice.

DeepSpeed's own checkpoints are not used: they are pickled, written in place, refused by another number of ranks, and
its universal ones share one step count and one group's hyperparameters under ZeRO 3 (deepspeed 0.19.8).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Annotated, NamedTuple

import pydantic
import torch
from safetensors import safe_open
from torch import Tensor

from preprocessing.schema import checksum
from preprocessing.status import is_file
from trainer.files import DamagedFileError, in_threads, write_atomically
from trainer.settings import first_problem
from trainer.tensor_files import open_tensors, write_tensors

_FILE = re.compile(r"state-[0-9]{5}-of-([0-9]{5})\.safetensors")  # as file_name has it
_CHECKSUM = ".blake2b"  # ending of the file beside a state file
WEIGHTS, MOMENTS = "weights", ("exp_avg", "exp_avg_sq")


class StateError(ValueError):
    """A checkpoint whose tensors are missing, damaged or of another model. The message names the file."""


class Fragment(NamedTuple):
    """A stretch of a flat tensor: all or a part of one parameter, both seen as one row of numbers."""

    start: pydantic.NonNegativeInt  # in the flat tensor
    length: pydantic.NonNegativeInt
    parameter: str
    offset: pydantic.NonNegativeInt  # in the parameter

    @property
    def span(self) -> tuple[int, int]:
        """Begin and end in the flat tensor."""
        return self.start, self.start + self.length


class _Table(pydantic.BaseModel):
    """What a state file says of itself, as safetensors keeps it: in strings."""

    fragments: pydantic.Json[list[list[Fragment]]]  # of each flat tensor
    optimizer_step: Annotated[int, pydantic.Field(ge=0, le=1 << 24)]  # counted in float32, which stays there


@dataclass(frozen=True)
class Flat:
    """A flat tensor of a rank with its moments.

    Attributes:
        fragments: what lies where; the rest is padding.
        tensors: float32 [n] each, under the names WEIGHTS and MOMENTS.
    """

    fragments: list[Fragment]
    tensors: dict[str, Tensor]

    def room(self) -> Flat:
        """Zeros in CPU memory to take copies in: memory that is there already makes a copy many times as fast."""
        first = self.tensors[WEIGHTS]
        # Pinned all at once: torch 2.11 pins a power of two of bytes, of three blocks half as much again as of one.
        rows = torch.zeros(len(self.tensors), len(first), pin_memory=first.is_cuda)
        return Flat(self.fragments, dict(zip(self.tensors, rows, strict=True)))

    def fill(self, kind: str, read: Callable[[str, int, int], Tensor]) -> None:
        """Put what ``read`` gives of a parameter, from one number to another, where it lies; padding is left."""
        for start, length, name, offset in self.fragments:
            self.tensors[kind][start : start + length].copy_(read(name, offset, offset + length))

    def take(self, live: Flat) -> None:
        """Copy what another one holds, which training may change then.

        What is padding there is 0 here: under ZeRO 3 DeepSpeed leaves whatever memory held, which may be no number.
        """
        for name, tensor in self.tensors.items():
            tensor.copy_(live.tensors[name])
            for begin, end in _gaps([fragment.span for fragment in self.fragments], len(tensor)):
                tensor[begin:end] = 0


def _gaps(spans: Iterable[tuple[int, int]], size: int) -> Iterator[tuple[int, int]]:
    """Begin and end of each gap around spans of [0, size), empty ones too; negative where they overlap or exceed it."""
    return ((end, begin) for (_, end), (begin, _) in pairwise([(0, 0), *sorted(spans), (size, size)]))


def file_name(rank: int, world: int) -> str:
    """The file of a rank's tensors."""
    return f"state-{rank:05d}-of-{world:05d}.safetensors"


def write_state(directory: Path, rank: int, world: int, flats: Iterable[Flat], optimizer_step: int) -> None:
    """Write what a rank holds.

    Args:
        directory: of a checkpoint that is not complete yet.
        rank: of the writer.
        world: number of ranks.
        flats: everything that the rank owns; parameters that all ranks hold are written by the first alone.
        optimizer_step: updates that the moments have seen, for bias correction.

    Raises:
        StateError: some of it is infinite or not a number, and a resume from it would be in vain.
        OSError: it can't be written.
    """
    flats, path = list(flats), directory / file_name(rank, world)
    if not all(map(_is_finite, (tensor for flat in flats for tensor in flat.tensors.values()))):
        raise StateError("weights or moments are infinite or not numbers")
    tensors = {f"{i}.{name}": tensor for i, flat in enumerate(flats) for name, tensor in flat.tensors.items()}
    table = json.dumps([flat.fragments for flat in flats])
    written = write_tensors(path, tensors, {"fragments": table, "optimizer_step": str(optimizer_step)})
    write_atomically(path.with_suffix(_CHECKSUM), written + "\n")


def _is_finite(values: Tensor) -> bool:
    return not values.numel() or math.isfinite(torch.linalg.vector_norm(values, ord=math.inf))


def check_files(directory: Path, world: int) -> None:
    """See that every rank has written its file and then its checksum; verify_state reads them as well.

    All ranks wait for this: what is listed is not looked at one by one, and what is not may be listed late.

    Raises:
        StateError: one is missing.
        OSError: the folder can't be listed.
    """
    listed = set(directory.iterdir())
    paths = [directory / file_name(rank, world) for rank in range(world)]
    parts = ((path, part) for path in paths for part in (path, path.with_suffix(_CHECKSUM)))
    if missing := [path.name for path, part in parts if part not in listed and not is_file(part)]:
        raise StateError(f"{directory}: {missing[0]} or its checksum was not written")


def verify_state(directory: Path) -> None:
    """Read every file of a checkpoint once and compare its checksum.

    Raises:
        StateError: a file is missing, can't be read or is not what was written.
    """
    in_threads(_verify_file, _paths(directory))


def check_count(directory: Path, parameters: int) -> None:
    """See that the files of a checkpoint have room for so many parameters, before a table of all is made.

    Raises:
        StateError: they have not, or a file is missing or damaged.
        OSError: one can't be looked at.
    """
    paths = _paths(directory)
    for path in paths:
        _open(path)  # one that was cut is told by its name
    numbers = sum(path.stat().st_size for path in paths) // torch.float32.itemsize
    if numbers < parameters * (1 + len(MOMENTS)):
        raise StateError(f"{directory}: too small for a model of {parameters:,} parameters, as it says that it is of")


def stored_checksums(directory: Path) -> list[str]:
    """What verify_state compares: of each rank's file the checksum that was written beside it.

    Raises:
        StateError: a file or a checksum is missing.
    """
    return [_stored_checksum(path) for path in _paths(directory)]


def _stored_checksum(path: Path) -> str:
    try:
        return path.with_suffix(_CHECKSUM).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StateError(f"{path}: its checksum is missing ({error})") from error


def _verify_file(path: Path) -> None:
    expected = _stored_checksum(path)
    try:
        found = checksum(path)
    except FileNotFoundError:
        found = None
    except OSError as error:
        raise StateError(f"{path}: can't be read ({error.strerror})") from error
    if found != expected:
        raise StateError(f"{path}: not the bytes that were written")


def _paths(directory: Path) -> list[Path]:
    """The files of all ranks, in their order; what people leave beside them is passed over."""
    try:
        names = sorted(path.name for path in directory.iterdir())
    except OSError as error:
        raise StateError(f"{directory}: can't be read ({error.strerror})") from error
    matches = [match for name in names if (match := _FILE.fullmatch(name))]
    found, world = [match[0] for match in matches], int(matches[0][1]) if matches else 1
    for name, expected in zip_longest(found, (file_name(rank, world) for rank in range(world))):
        if expected and expected not in found:
            raise StateError(f"{directory}: {expected} is missing from this checkpoint")
        if name != expected:
            raise StateError(f"{directory}: {name} is of another number of ranks than {found[0]}")
    return [directory / name for name in found]


class _Piece(NamedTuple):
    """Where a part of a parameter is stored."""

    begin: int  # in the parameter
    end: int
    file: int
    flat: int
    start: int  # in the flat tensor


class StateReader:
    """All ranks' files of a checkpoint as one set of parameters.

    Attributes:
        optimizer_step: updates that the moments have seen.
    """

    def __init__(self, directory: Path, shapes: dict[str, torch.Size]):
        """Open every file, see that its table fits its tensors, and that all hold each parameter whole and once.

        Args:
            directory: of a complete checkpoint.
            shapes: name -> shape of the model's parameters.

        Raises:
            StateError: a file is missing, damaged or can't be read, or the parameters are not those of the model.
        """
        self._shapes = shapes
        self._directory = directory
        paths = _paths(directory)
        self._files = [_open(path) for path in paths]
        tables = [_read_table(path, file) for path, file in zip(paths, self._files, strict=True)]
        self._pieces: dict[str, list[_Piece]] = {}
        for number, table in enumerate(tables):
            self._take_in(number, table.fragments)
        self.optimizer_step = tables[0].optimizer_step
        if any(table.optimizer_step != self.optimizer_step for table in tables):
            raise StateError(f"{directory}: its files are of different steps; this checkpoint is damaged")
        self._check()

    def read_range(self, kind: str, name: str, begin: int, end: int) -> Tensor:
        """The numbers [begin, end) of a parameter or moment seen as one row, float32 [end - begin].

        Args:
            kind: WEIGHTS or one of MOMENTS.
            name: of the parameter.
            begin: first number.
            end: exclusive.
        """
        parts = []
        for piece in self._pieces[name]:
            first, last = max(begin, piece.begin), min(end, piece.end)
            if first < last:
                stored = self._files[piece.file].get_slice(f"{piece.flat}.{kind}")
                parts.append(stored[piece.start + first - piece.begin : piece.start + last - piece.begin])
        return torch.cat(parts) if len(parts) != 1 else parts[0]

    def weights(self) -> dict[str, Tensor]:
        """All parameters in float32.

        Raises:
            StateError: some of them are infinite or not numbers.
        """
        whole = self._shapes.items()
        found = {name: self.read_range(WEIGHTS, name, 0, shape.numel()).view(shape) for name, shape in whole}
        if wrong := [name for name, tensor in found.items() if not _is_finite(tensor)]:
            raise StateError(f"{self._directory}: {wrong[0]} is infinite or not a number; this checkpoint is damaged")
        return found

    def fill_moments(self, flat: Flat) -> None:
        """Put this checkpoint's moments into a rank's flat tensors; weights and padding are left as they are."""
        for kind in MOMENTS:
            flat.fill(kind, partial(self.read_range, kind))

    def _take_in(self, number: int, flats: list[list[Fragment]]) -> None:
        for flat, fragments in enumerate(flats):
            for start, length, name, offset in fragments:
                piece = _Piece(offset, offset + length, number, flat, start)
                self._pieces.setdefault(name, []).append(piece)

    def _check(self) -> None:
        odd = sorted(self._pieces.keys() ^ self._shapes.keys())
        if odd:
            raise StateError(f"{self._directory}: holds another model's parameters; {odd[0]} is in only one of the two")
        for name, pieces in self._pieces.items():
            pieces.sort()
            spans = [(piece.begin, piece.end) for piece in pieces]
            if any(begin != end for begin, end in _gaps(spans, self._shapes[name].numel())):
                raise StateError(
                    f"{self._directory}: {name} is incomplete or stored more than once; this checkpoint is damaged"
                )


def _open(path: Path) -> safe_open:
    try:
        return open_tensors(path)
    except OSError as error:
        raise StateError(f"{path}: not a readable checkpoint file ({error.strerror})") from error
    except DamagedFileError as error:
        raise StateError(f"{path}: not a readable checkpoint file ({error})") from error


def _read_table(path: Path, file: safe_open) -> _Table:
    """What a file says of itself, which its tensors bear out."""
    try:
        table = _Table.model_validate(file.metadata() or {})
    except pydantic.ValidationError as error:
        raise StateError(f"{path}: not a state file of ours ({first_problem(error)})") from error
    stored = set(file.keys())
    for flat, fragments in enumerate(table.fragments):
        for name in (f"{flat}.{kind}" for kind in (WEIGHTS, *MOMENTS)):
            if name not in stored:
                raise StateError(f"{path}: the tensor {name} is missing")
            tensor = file.get_slice(name)
            dtype, shape = tensor.get_dtype(), tensor.get_shape()
            if dtype != "F32" or len(shape) != 1:
                raise StateError(f"{path}: {name} is {dtype} of shape {shape}, and not a row of float32 numbers")
            if any(end < begin for begin, end in _gaps([fragment.span for fragment in fragments], shape[0])):
                raise StateError(f"{path}: stretches of {name} lie in one another or beyond its end")
    return table
