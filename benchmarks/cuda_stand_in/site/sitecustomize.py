"""Python runs this at its start: what no program passes whose device holds nothing is left out.

trainer.engine looks for its weights where DeepSpeed says that they are, and would find zeros; the ranks, here one, tell
each other counts and objects by way of the device; and attention's formula goes through sequences, whose lengths are
zeros there.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any


def _change_engine(module: Any) -> None:
    module.Engine._check_layout = lambda *_: None


def _change_world(module: Any) -> None:
    add = module.World.sum

    def add_and_know(self: Any, values: Sequence[float]) -> list[float]:
        add(self, values)
        return [float(value) for value in values]

    module.World.sum = add_and_know
    module.World.gather = lambda _, value: [value]


def _change_attention(module: Any) -> None:
    module._IMPLEMENTATIONS["reference"] = module._IMPLEMENTATIONS["sdpa"]


_CHANGES = {
    "trainer.attention": _change_attention,
    "trainer.engine": _change_engine,
    "trainer.world": _change_world,
}


class _AfterImport(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, *_: Any) -> Any:
        change = _CHANGES.pop(name, None)
        if not change:
            return None
        spec: Any = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def execute_and_change(module: ModuleType) -> None:
            execute(module)
            change(module)

        spec.loader.exec_module = execute_and_change
        return spec


sys.meta_path.insert(0, _AfterImport())
