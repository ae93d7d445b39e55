"""List columns of Arrow, whose values can't be null."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa


def lists(arrays: Sequence[np.ndarray], value_type: pa.DataType) -> pa.ListArray:
    """Arrays as one list column."""
    offsets = np.zeros(len(arrays) + 1, dtype=np.int32)
    np.cumsum([len(array) for array in arrays], out=offsets[1:])
    return list_column(offsets, pa.array(np.concatenate(arrays), type=value_type))


def list_column(offsets: np.ndarray, values: pa.Array) -> pa.ListArray:
    """Row n holds values[offsets[n] : offsets[n + 1]]."""
    item = pa.field("item", values.type, nullable=False)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, type=pa.list_(item))
