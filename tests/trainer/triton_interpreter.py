"""Triton's interpreter, mended (3.6 to 3.9): it multiplies bfloat16 as integers, and seeks its words at each call."""

import inspect
from functools import cache
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle


def mend() -> None:
    """Have products of bfloat16 computed in float32, where they are exact, as a GPU does, and words looked for once."""
    multiply = InterpreterBuilder.create_dot

    def create_dot(builder: InterpreterBuilder, a: TensorHandle, b: TensorHandle, *others: Any) -> TensorHandle:
        return multiply(builder, _widened(a), _widened(b), *others)

    def patch_builtin(package: Any, *how: Any) -> None:
        for name in _builtins(package):
            if tl.core.is_builtin(member := getattr(package, name)):
                interpreter._patch_attr(package, name, member, *how)

    InterpreterBuilder.create_dot = create_dot
    interpreter._patch_builtin = patch_builtin


@cache
def _builtins(package: Any) -> list[str]:
    """What a kernel may call; before it is interpreted, as these are not to be told from others then."""
    return [name for name, member in inspect.getmembers(package) if tl.core.is_builtin(member)]


def _widened(x: TensorHandle) -> TensorHandle:
    if x.dtype.scalar != tl.bfloat16:
        return x
    return TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)
