"""What a step of BERT-LARGE costs the host, and how long a GPU waits for it, on a machine without a GPU.

    python benchmarks/cuda_stand_in benchmarks/host_time.py --shards shards/ [--ranks 8 --stage 1]

Kernels of the stand-in take no time, so the time of a step is the host's. A GPU does not see most of it: the host is
ahead of it. It stands idle where the host has waited for it, as for the loss, until the host asks for more. With
--ranks this is one of several, whose exchanges take no time either: all that the host has to do for them is there.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch.distributed
from torch.testing._internal.distributed.fake_pg import FakeStore

from common import be_the_only_rank, open_shards, release
from cuda_stand_in import Counts, counts
from gpu_predictions import BEST, BEST_BY_TORCH, BEST_IN_GRAPHS, BY_TORCH_IN_GRAPHS, LADDER, PEER, Row
from gpu_rows import Bench, trainer_of
from preprocessing.markdown import markdown_table
from trainer.engine import Engine
from trainer.joining import join_world
from trainer.loading import StepReader
from trainer.world import leave_world

WARM_UP, STEPS = 10, 40
LENGTH, BATCH = 128, 32  # the recipe's; the host's time hardly depends on it
UNPACKED = 256  # samples


# With functions of ours that do nothing there.
ROWS: dict[str, tuple[Row, tuple[str, ...]]] = {
    PEER.name: (PEER, ()),
    "ours as the recipe has it": (LADDER[2], ()),
    "layers by torch.compile": (BEST_BY_TORCH, ()),
    "and the norm as DeepSpeed takes it": (BEST_BY_TORCH, ("trainer.engine.take_norm_once",)),
    "torch.compile in CUDA graphs": (BY_TORCH_IN_GRAPHS, ()),
    "layers by kernels of our own": (BEST, ()),
    "these in CUDA graphs": (BEST_IN_GRAPHS, ()),
}


def main() -> None:
    """Print the shortest times: a step has the same to do each time, and what else the machine does only adds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=Path, required=True)
    parser.add_argument("--size", choices=["large", "demo"], default="large")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), help="of the table; all without it")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--stage", type=int, choices=[1, 2], help="of ZeRO; that of ds_config.json without it")
    arguments = parser.parse_args()
    arguments.device = "cuda"
    shards = open_shards(parser, arguments)
    be_the_only_rank()
    if arguments.ranks > 1:
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=arguments.ranks)
    bench = Bench(shards, join_world(threads=1), 1.0, 1.0, {LENGTH: BATCH}, arguments.size, 0.0)
    table = [["", "host, ms", "of it the update", "GPU idle, ms", "launches", "waits"]]
    for name in arguments.rows:
        row, left_out = ROWS[name]
        updates: list[float] = []
        with ExitStack() as changes:
            for function in left_out:
                changes.enter_context(mock.patch(function))
            changes.enter_context(mock.patch.object(Engine, "_update", _timed(Engine._update, updates)))
            found = list(_steps(row, bench, arguments.stage))[WARM_UP:]
        host, last = min(seconds for seconds, _ in found), found[-1][1]
        idle = min(step.idle for _, step in found)
        update = f"{1e3 * min(updates[WARM_UP:]):.1f}" if updates else ""
        table.append([name, f"{1e3 * host:.1f}", update, f"{1e3 * idle:.1f}", f"{last.launches:,}", str(last.waits)])
        release()
    print(markdown_table(table, range(1, 6)))
    print(markdown_table([[f"the next step of {UNPACKED} sequences is unpacked", "ms"], *_unpacking(bench)], (1,)))
    leave_world()


def _steps(row: Row, bench: Bench, stage: int | None) -> Iterator[tuple[float, Counts]]:
    """Seconds of each step, and what it asked of the device."""
    recipe = bench.recipe(row, LENGTH)
    steps = bench.steps(row, recipe)
    batches = [steps[number] for number in range(8)]
    of_all = replace(recipe, phases=[replace(recipe.phases[0], global_batch_size=BATCH * bench.world.size)])
    with closing(trainer_of(row, of_all, bench.world, stage)) as trainer:
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
