"""Triton's interpreter, mended: it keeps bfloat16 as integers, and multiplies matrices of these (3.6 to 3.9 do)."""

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle


def mend() -> None:
    """Have products of bfloat16 computed in float32, where they are exact, as a GPU does."""
    multiply = InterpreterBuilder.create_dot

    def create_dot(builder: InterpreterBuilder, a: TensorHandle, b: TensorHandle, *others: Any) -> TensorHandle:
        return multiply(builder, _widened(a), _widened(b), *others)

    InterpreterBuilder.create_dot = create_dot


def _widened(x: TensorHandle) -> TensorHandle:
    if x.dtype.scalar != tl.bfloat16:
        return x
    return TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)
