"""Triton's interpreter, mended (3.6 to 3.9), and made to see what a GPU would not tell of a kernel's memory.

It multiplies bfloat16 as integers, has no constants of it in 3.6, and seeks its words at each call. And it runs the
programs of a kernel one after another, on whatever memory their pointers lead to. Here each element that they read or
write must be one of an argument's, and one that is written is so once in a launch, and read in another: so that it does
not count which program, or which thread of it, comes first.
"""

import inspect
from functools import cache
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import GridExecutor, InterpreterBuilder, TensorHandle


@cache
def mend() -> None:
    """Have products of bfloat16 computed in float32, where they are exact, as a GPU does, and words looked for once.

    From now on kernels that go beyond their arguments, or where it counts who comes first, end in an InterpreterError.
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
        interpreter.interpreter_builder.memory = _Memory([*found[0], *found[1].values()])
        return found

    def create_masked_load(builder: Any, pointers: TensorHandle, mask: TensorHandle, *others: Any) -> TensorHandle:
        builder.memory.read(pointers.data[mask.data])
        return load(builder, pointers, mask, *others)

    def create_masked_store(
        builder: Any, pointers: TensorHandle, value: TensorHandle, mask: TensorHandle, *others: Any
    ) -> None:
        builder.memory.write(pointers.data[mask.data])
        store(builder, pointers, value, mask, *others)

    InterpreterBuilder.get_bf16 = get_bf16
    InterpreterBuilder.create_dot = create_dot
    InterpreterBuilder.create_masked_load = create_masked_load
    InterpreterBuilder.create_masked_store = create_masked_store
    GridExecutor._init_args_hst = init_args
    interpreter._patch_builtin = patch_builtin


class _Block:
    """Memory that some arguments of a launch share: of each byte, whether it is theirs, and was read or written."""

    def __init__(self, storage: torch.UntypedStorage):
        self.begin = storage.data_ptr()
        self.theirs, self.read, self.written = np.zeros((3, storage.nbytes()), bool)

    def add(self, x: torch.Tensor) -> None:
        """An argument's elements."""
        places = torch.arange(len(self.theirs) // x.itemsize).as_strided(x.shape, x.stride(), x.storage_offset())
        self.theirs.reshape(-1, x.itemsize)[places.flatten().numpy()] = True

    def find(self, addresses: np.ndarray) -> np.ndarray:
        """Which of them are elements of an argument."""
        places = addresses.astype(np.int64) - self.begin
        inside = (places >= 0) & (places < len(self.theirs))
        return inside & self.theirs[np.where(inside, places, 0)]


class _Memory:
    """What the programs of a launch may reach."""

    def __init__(self, arguments: list[Any]):
        self._blocks: dict[int, _Block] = {}
        for x in arguments:
            if isinstance(x, torch.Tensor) and x.numel():
                storage = x.untyped_storage()
                self._blocks.setdefault(storage.data_ptr(), _Block(storage)).add(x)

    def read(self, addresses: np.ndarray) -> None:
        """See that elements are an argument's, and nobody has written them."""
        for block, places in self._found(addresses):
            _refuse(block.written[places], "is read and written")
            block.read[places] = True

    def write(self, addresses: np.ndarray) -> None:
        """See that elements are an argument's, and nobody has read or written them, nor writes them twice now."""
        for block, places in self._found(addresses):
            _refuse(block.read[places], "is read and written")
            _refuse(block.written[places] | (len(np.unique(places)) < len(places)), "is written twice")
            block.written[places] = True

    def _found(self, addresses: np.ndarray) -> list[tuple[_Block, np.ndarray]]:
        of_blocks = {block: block.find(addresses) for block in self._blocks.values()}
        _refuse(~np.logical_or.reduce([*of_blocks.values(), np.zeros(addresses.shape, bool)]), "is none of an argument")
        return [(block, (addresses[inside] - block.begin).astype(np.int64)) for block, inside in of_blocks.items()]


def _refuse(wrong: np.ndarray, what: str) -> None:
    if wrong.any():
        raise MemoryError(f"an element {what}")


@cache
def _builtins(package: Any) -> list[str]:
    """What a kernel may call; before it is interpreted, as these are not to be told from others then."""
    return [name for name, member in inspect.getmembers(package) if tl.core.is_builtin(member)]


def _widened(x: TensorHandle) -> TensorHandle:
    if x.dtype.scalar != tl.bfloat16:
        return x
    return TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)
