"""What a step of BERT-LARGE costs the host, whatever the device: every tensor and operation, each almost empty.

    python benchmarks/host_time.py --shards shards/

A GPU waits for the host where the host has waited for it: after the loss has been read, that is through the update and
up to the next forward pass. A model with BERT-LARGE's 302 parameters, 16 wide, shows on a CPU how long that takes, with
the update as DeepSpeed makes it and as trainer.gradients has it, and with the next step unpacked then or before.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any
from unittest import mock

from common import be_the_only_rank, deepspeed_config, recipe_of, require_cpu, steps_of
from preprocessing.markdown import markdown_table
from preprocessing.schema import ShardDirectory
from trainer.engine import Engine, join_world
from trainer.gradients import take_norm_once
from trainer.loading import StepReader
from trainer.world import leave_world

NARROW = ("model.hidden_size=16", "model.num_attention_heads=1", "model.intermediate_size=16")
WARM_UP, STEPS = 10, 60


def main() -> None:
    """Print milliseconds, medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=Path, required=True)
    parser.add_argument("--large", action="store_true", help="BERT-LARGE's own widths, which takes 14 GB and minutes")
    arguments = parser.parse_args()
    shards = ShardDirectory(arguments.shards)
    widths, steps = ((), WARM_UP + 4) if arguments.large else (NARROW, STEPS)
    require_cpu()
    be_the_only_rank()
    world = join_world(threads=1)
    table = [["", "forward", "backward", "update"]]
    for name, change in (("DeepSpeed's norms", _no_change), ("one norm", take_norm_once)):
        recipe = recipe_of(shards, 128, 2, widths)
        with mock.patch("trainer.engine.take_norm_once", change):
            engine = Engine(recipe, deepspeed_config(recipe, world), world)
        found = []
        for number, batches in enumerate(StepReader(steps_of(recipe, shards), 0, steps, workers=0)):
            totals = engine.count_step(batches, stop=False)
            found.append(engine.train_step(number, list(enumerate(batches)), totals, 1e-4))
        parts = (
            statistics.median(metrics[f"{part}_seconds"] for metrics in found[WARM_UP:])
            for part in ("forward", "backward", "update")
        )
        table.append([name, *(f"{1e3 * seconds:.1f}" for seconds in parts)])
        engine.close()
    print(markdown_table(table, (1, 2, 3)))
    table = [["a step of 256 sequences of 128", "ms"]]
    for ahead in (False, True):
        recipe = recipe_of(shards, 128, 256, NARROW)
        reader, seconds = StepReader(steps_of(recipe, shards), 0, STEPS, workers=1), []
        for _ in range(STEPS):
            if ahead:
                reader.read_ahead()
            time.sleep(0.2)  # while the device computes
            began = time.perf_counter()
            next(reader)
            seconds.append(time.perf_counter() - began)
        when = "while the device computes" if ahead else "when it is due"
        table.append([f"unpacked {when}", f"{1e3 * statistics.median(seconds[WARM_UP:]):.2f}"])
    print(markdown_table(table, (1,)))
    leave_world()


def _no_change(_: Any) -> None:
    """The update as DeepSpeed makes it."""


if __name__ == "__main__":
    main()
