"""What a step of BERT-LARGE costs the host, and how long a GPU waits for it, on a machine without a GPU.

    python benchmarks/cuda_stand_in benchmarks/host_time.py --shards shards/

Kernels of the stand-in take no time, so the time of a step is the host's. A GPU does not see most of it: the host is
ahead of it. It stands idle where the host has waited for it, as for the loss, until the host asks for more.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

from common import be_the_only_rank, open_shards, release
from cuda_stand_in import Counts, counts
from gpu_predictions import BEST, BEST_BY_TORCH, BEST_IN_GRAPHS, BY_TORCH_IN_GRAPHS, LADDER, PEER, Row
from gpu_pretrain import Bench, trainer_of
from preprocessing.markdown import markdown_table
from trainer.engine import Engine
from trainer.joining import join_world
from trainer.loading import StepReader
from trainer.world import leave_world

WARM_UP, STEPS = 10, 40
LENGTH, BATCH = 128, 32  # the recipe's; the host's time hardly depends on it
UNPACKED = 256  # samples


@contextmanager
def _under_zero_2(*left_out: str) -> Iterator[None]:
    """As several ranks have it, and functions that do nothing."""
    with ExitStack() as changes:
        changes.enter_context(mock.patch("trainer.deepspeed_config._has_float32_sums", return_value=False))
        for name in left_out:
            changes.enter_context(mock.patch(name))
        yield


ROWS = {
    PEER.name: (PEER, nullcontext()),
    "ours as the recipe has it": (LADDER[2], nullcontext()),
    "layers by torch.compile": (BEST_BY_TORCH, nullcontext()),
    "and in CUDA graphs": (BY_TORCH_IN_GRAPHS, nullcontext()),
    "layers by kernels of our own": (BEST, nullcontext()),
    "these in CUDA graphs": (BEST_IN_GRAPHS, nullcontext()),
    "the recipe under ZeRO 2": (LADDER[2], _under_zero_2()),
    "torch.compile under ZeRO 2": (BEST_BY_TORCH, _under_zero_2()),
    "and the norm as DeepSpeed takes it": (BEST_BY_TORCH, _under_zero_2("trainer.engine.take_norm_once")),
    "kernels of our own under ZeRO 2": (BEST, _under_zero_2()),
    "these in CUDA graphs, under ZeRO 2": (BEST_IN_GRAPHS, _under_zero_2()),
}


def main() -> None:
    """Print the shortest times: a step has the same to do each time, and what else the machine does only adds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=Path, required=True)
    parser.add_argument("--size", choices=["large", "demo"], default="large")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), help="of the table; all without it")
    arguments = parser.parse_args()
    arguments.device = "cuda"
    shards = open_shards(parser, arguments)
    be_the_only_rank()
    bench = Bench(shards, join_world(threads=1), 1.0, 1.0, {LENGTH: BATCH}, arguments.size, 0.0)
    table = [["", "host, ms", "of it the update", "GPU idle, ms", "launches", "waits"]]
    for name in arguments.rows:
        row, change = ROWS[name]
        updates: list[float] = []
        with change, mock.patch.object(Engine, "_update", _timed(Engine._update, updates)):
            found = list(_steps(row, bench))[WARM_UP:]
        host, last = min(seconds for seconds, _ in found), found[-1][1]
        idle = min(step.idle for _, step in found)
        update = f"{1e3 * min(updates[WARM_UP:]):.1f}" if updates else ""
        table.append([name, f"{1e3 * host:.1f}", update, f"{1e3 * idle:.1f}", f"{last.launches:,}", str(last.waits)])
        release()
    print(markdown_table(table, range(1, 6)))
    print(markdown_table([[f"the next step of {UNPACKED} sequences is unpacked", "ms"], *_unpacking(bench)], (1,)))
    leave_world()


def _steps(row: Row, bench: Bench) -> Iterator[tuple[float, Counts]]:
    """Seconds of each step, and what it asked of the device."""
    recipe = bench.recipe(row, LENGTH)
    steps = bench.steps(row, recipe)
    batches = [steps[number] for number in range(8)]
    with closing(trainer_of(row, recipe, bench.world)) as trainer:
        for number in range(WARM_UP + STEPS):
            before, began = counts(), time.perf_counter()
            trainer.step(number, batches[number % len(batches)], lambda: None)
            yield time.perf_counter() - began, counts().since(before)


def _timed(function: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        began = time.perf_counter()
        result = function(*arguments)
        seconds.append(time.perf_counter() - began)
        return result

    return call


def _unpacking(bench: Bench) -> Iterator[list[str]]:
    recipe = bench.recipe(BEST, LENGTH, batch=UNPACKED)
    for ahead, when in (False, "when it is due"), (True, "while the device computes"):
        reader, seconds = StepReader(bench.steps(BEST, recipe), 0, STEPS, workers=1), []
        for _ in range(STEPS):
            if ahead:
                reader.read_ahead()
            time.sleep(0.2)  # while the device computes
            began = time.perf_counter()
            next(reader)
            seconds.append(time.perf_counter() - began)
        yield [when, f"{1e3 * min(seconds[WARM_UP:]):.2f}"]


if __name__ == "__main__":
    main()
