"""Triton's interpreter, mended (3.6 to 3.9), and made to see what a GPU would not tell of a kernel's memory.

It multiplies bfloat16 as integers, has no constants of it in 3.6, and seeks its words at each call. And it runs the
programs of a kernel one after another, on whatever memory their pointers lead to. Here each element that they read or
write must be one of an argument's, and none that one program writes may be read or written by another, whichever comes
first.
"""

import inspect
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import GridExecutor, InterpreterBuilder, TensorHandle

_NONE, _SEVERAL = -1, -2  # programs


def mend() -> None:
    """Have products of bfloat16 computed in float32, where they are exact, as a GPU does, and words looked for once.

    From now on kernels whose programs go beyond their arguments, or get in each other's way, end in an
    InterpreterError.
    """
    multiply, begin = InterpreterBuilder.create_dot, GridExecutor._init_args_hst
    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def create_dot(builder: InterpreterBuilder, a: TensorHandle, b: TensorHandle, *others: Any) -> TensorHandle:
        return multiply(builder, _widened(a), _widened(b), *others)

    def get_bf16(builder: InterpreterBuilder, value: float) -> TensorHandle:
        return builder.create_fp_trunc(builder.get_fp32(value), tl.bfloat16)

    def patch_builtin(package: Any, *how: Any) -> None:
        for name in _builtins(package):
            if tl.core.is_builtin(member := getattr(package, name)):
                interpreter._patch_attr(package, name, member, *how)

    def init_args(executor: GridExecutor, args: Any, kwargs: Any) -> Any:
        found = begin(executor, args, kwargs)
        interpreter.interpreter_builder.memory = _Memory.of([*found[0], *found[1].values()])
        return found

    def create_masked_load(builder: Any, pointers: TensorHandle, mask: TensorHandle, *others: Any) -> TensorHandle:
        builder.memory.read(pointers.data[mask.data], builder.grid_idx)
        return load(builder, pointers, mask, *others)

    def create_masked_store(
        builder: Any, pointers: TensorHandle, value: TensorHandle, mask: TensorHandle, *others: Any
    ) -> None:
        builder.memory.write(pointers.data[mask.data], builder.grid_idx)
        store(builder, pointers, value, mask, *others)

    InterpreterBuilder.get_bf16 = get_bf16
    InterpreterBuilder.create_dot = create_dot
    InterpreterBuilder.create_masked_load = create_masked_load
    InterpreterBuilder.create_masked_store = create_masked_store
    GridExecutor._init_args_hst = init_args
    interpreter._patch_builtin = patch_builtin


@dataclass
class _Block:
    """The memory that some arguments of a launch share; of each byte, whether it is theirs, and who has had it."""

    begin: int
    theirs: np.ndarray
    writer: np.ndarray = field(init=False)
    reader: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.writer, self.reader = (np.full(len(self.theirs), _NONE) for _ in range(2))


@dataclass
class _Memory:
    """What the programs of a launch may reach."""

    blocks: list[_Block]

    @classmethod
    def of(cls, arguments: list[Any]) -> "_Memory":
        """That of the tensors among a kernel's arguments."""
        blocks: dict[int, _Block] = {}
        for x in arguments:
            if isinstance(x, torch.Tensor):
                storage = x.untyped_storage()
                block = blocks.setdefault(
                    storage.data_ptr(), _Block(storage.data_ptr(), np.zeros(storage.nbytes(), bool))
                )
                elements = torch.arange(storage.nbytes() // x.itemsize)
                places = elements.as_strided(x.shape, x.stride(), x.storage_offset())
                block.theirs.reshape(-1, x.itemsize)[places.flatten().numpy()] = True
        return cls(list(blocks.values()))

    def read(self, addresses: np.ndarray, program: tuple[int, ...]) -> None:
        """See that elements are an argument's and no other program's."""
        for block, places, number in self._found(addresses, program):
            _refuse(~np.isin(block.writer[places], (_NONE, number)), program, "reads what another one writes")
            others = ~np.isin(block.reader[places], (_NONE, number))
            block.reader[places] = np.where(others, _SEVERAL, number)

    def write(self, addresses: np.ndarray, program: tuple[int, ...]) -> None:
        """See that elements are an argument's, each once, and no other program's."""
        for block, places, number in self._found(addresses, program):
            _refuse(len(np.unique(places)) < len(places), program, "writes an element twice at once")
            _refuse(~np.isin(block.writer[places], (_NONE, number)), program, "writes what another one writes")
            _refuse(~np.isin(block.reader[places], (_NONE, number)), program, "writes what another one reads")
            block.writer[places] = number

    def _found(self, addresses: np.ndarray, program: tuple[int, ...]) -> list[tuple[_Block, np.ndarray, int]]:
        x, y, z = program
        number = (x << 40) + (y << 20) + z
        missing = np.ones(addresses.shape, bool)
        found = []
        for block in self.blocks:
            places = addresses.astype(np.int64) - block.begin
            inside = (places >= 0) & (places < len(block.theirs))
            inside[inside] = block.theirs[places[inside]]
            if inside.any():
                found.append((block, places[inside], number))
            missing &= ~inside
        _refuse(missing, program, "reaches beyond what it was given")
        return found


def _refuse(wrong: Any, program: tuple[int, ...], what: str) -> None:
    if np.any(wrong):
        raise MemoryError(f"program {program} {what}")


@cache
def _builtins(package: Any) -> list[str]:
    """What a kernel may call; before it is interpreted, as these are not to be told from others then."""
    return [name for name, member in inspect.getmembers(package) if tl.core.is_builtin(member)]


def _widened(x: TensorHandle) -> TensorHandle:
    if x.dtype.scalar != tl.bfloat16:
        return x
    return TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)
