"""What a step of BERT-LARGE costs the host, whatever the device: every tensor and operation, each almost empty.

    python benchmarks/host_time.py --shards shards/

A GPU waits for the host where the host has waited for it: after the loss has been read, that is through the update and
up to the next forward pass. A model with BERT-LARGE's 302 parameters, 16 wide, shows on a CPU how long that takes, with
the update as DeepSpeed makes it and as trainer.gradients has it, and with the next step unpacked then or before.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

sys.path = [str(Path(__file__).parents[1]), *(folder for folder in sys.path if Path(folder).name != "benchmarks")]

from preprocessing.schema import ShardDirectory
from trainer.config import Recipe, load_recipe, resolve_deepspeed
from trainer.data import SampleStream
from trainer.engine import Engine, join_world
from trainer.gradients import take_norm_once
from trainer.loading import StepReader, Steps
from trainer.world import leave_world

ROOT = Path(__file__).resolve().parent.parent
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
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1",
                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29677", "DS_ACCELERATOR": "cpu"}  # fmt: skip
    world = join_world(threads=1)
    print("| | forward | backward | update |\n| --- | --- | --- | --- |")
    for name, change in (("DeepSpeed's norms", _no_change), ("one norm", take_norm_once)):
        recipe = _recipe(shards, 2, widths)
        with mock.patch("trainer.engine.take_norm_once", change):
            config = resolve_deepspeed(ROOT / "ds_config.json", recipe, recipe.phases[0], 1)
            engine = Engine(recipe, config, world)
        found = []
        for number, batches in enumerate(StepReader(_steps(recipe, shards), 0, steps, workers=0)):
            totals = engine.count_step(batches, stop=False)
            found.append(engine.train_step(number, list(enumerate(batches)), totals, 1e-4))
        parts = [
            [metrics[f"{part}_seconds"] for metrics in found[WARM_UP:]] for part in ("forward", "backward", "update")
        ]
        print(f"| {name} | {' | '.join(f'{1e3 * statistics.median(part):.1f}' for part in parts)} |")
        engine.close()
    print("\n| a step of 256 sequences of 128 | ms |\n| --- | --- |")
    for ahead in (False, True):
        reader, seconds = StepReader(_steps(_recipe(shards, 256, NARROW), shards), 0, STEPS, workers=1), []
        for _ in range(STEPS):
            if ahead:
                reader.read_ahead()
            time.sleep(0.2)  # while the device computes
            began = time.perf_counter()
            next(reader)
            seconds.append(time.perf_counter() - began)
        print(f"| unpacked {'while the device computes' if ahead else 'when it is due'} "
              f"| {1e3 * statistics.median(seconds[WARM_UP:]):.2f} |")  # fmt: skip
    leave_world()


def _no_change(_: Any) -> None:
    """The update as DeepSpeed makes it."""


def _recipe(shards: ShardDirectory, batch: int, widths: tuple[str, ...]) -> Recipe:
    phase = (f"{{sequence_length=128, steps=100000, global_batch_size={batch}, micro_batch_size={batch}, "
             "max_predictions=20}")  # fmt: skip
    vocabulary = f"model.vocab_size={shards.manifest.vocabulary.size}"
    return load_recipe(ROOT / "trainer" / "recipes" / "bert_large.toml", [*widths, vocabulary, f"phases=[{phase}]"])


def _steps(recipe: Recipe, shards: ShardDirectory) -> Steps:
    (phase,) = recipe.phases
    stream = SampleStream(shards, "train", 128, seed=1, max_predictions=20, masking=recipe.masking, data=recipe.data)
    return Steps(stream, phase.global_batch_size, phase.micro_batch_size, rank=0, world=1)


if __name__ == "__main__":
    main()
