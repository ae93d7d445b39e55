"""CUDA graphs on a CPU: operations recorded with their tensors and done again without Python, in the same memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_NEED_THE_HOST = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal")  # how many, or which value


class _Tape(TorchDispatchMode):
    """What is asked of torch, and whatever it writes into."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.written: dict[int, Tensor] = {}  # by where their memory begins

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """What torch.compile has made is computed as it is, and not traced anew."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        asks = any(name in func._schema.name for name in _NEED_THE_HOST)
        if asks or ("::index" in func._schema.name and any(x.dtype == torch.bool for x in _tensors(args[1]))):
            raise RuntimeError(f"{func}: a graph can't wait for a value")
        result = func(*args, **kwargs)
        self.calls.append((func, args, kwargs, result))
        given = {_place(x) for x in _tensors((args, kwargs))}
        made = [x for x in _tensors(result) if _place(x) not in given]
        changed = [x for x, which in zip(args, func._schema.arguments, strict=False) if _is_written(which)]
        self.written |= {_place(x): x for x in tree_leaves([made, changed])}
        return result

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, before in self.calls:
            for old, new in zip(_tensors(before), _tensors(func(*args, **kwargs)), strict=True):
                if _place(old) != _place(new):
                    old.copy_(new)


class EmulatedRecorder:
    """In place of trainer.graphs.Recorder, where a forward graph and a backward graph are recorded in turn.

    All graphs work in one memory: before a forward pass whatever any of them has written becomes NaN.
    """

    def __init__(self) -> None:
        self._tapes: list[_Tape] = []

    def begin_anew(self, forget: Callable[[], None]) -> None:
        """Graphs that are no more work in no memory."""
        forget()
        self._tapes.clear()

    def rehearsal(self) -> AbstractContextManager[None]:
        """Nothing needs to prepare itself but a compiler."""
        return nullcontext()

    def record(self, compute: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        """See Recorder."""
        is_forward, tape = len(self._tapes) % 2 == 0, _Tape()
        with tape:
            result = compute()
        self._tapes.append(tape)

        def replay() -> None:
            if is_forward:
                self._spoil()
            tape.replay()

        return result, replay

    @torch.no_grad()
    def _spoil(self) -> None:
        for tape in self._tapes:
            for tensor in tape.written.values():
                whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
                whole.fill_(torch.nan if tensor.is_floating_point() else 0)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write
