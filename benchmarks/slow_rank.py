"""Two ranks, each on a core of its own, without and with a busy program on the second one's: who says what of it.

    python benchmarks/slow_rank.py --shards demo/shards

The table has the first rank's seconds, as metrics.jsonl has them, in which a slow rank elsewhere looks like a long
backward pass; with it stands what the run's log says (trainer/bottlenecks.py).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from common import free_port, run_programs, seconds_since_start
from preprocessing.markdown import markdown_table
from trainer.files import read_lines

STEPS = 250
COUNTED = 100  # the last ones
PATIENCE = 600.0  # seconds
PARTS = ("data_seconds", "forward_seconds", "backward_seconds", "update_seconds", "compute_seconds")
TOLD = ("all ranks wait", "waiting for data")


def main() -> None:
    """Print a table, and the lines of the logs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=Path, required=True, help="as `make demo` makes them")
    shards = parser.parse_args().shards.absolute()
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        sys.exit("this takes two cores")
    table, told = [["second core", "tokens/s", *(part.removesuffix("_seconds") for part in PARTS)]], list[str]()
    for name, busy in (("free", False), ("shared", True)):
        with tempfile.TemporaryDirectory() as folder:
            log = train(shards, Path(folder), cores, busy)
            lines = list(read_lines(Path(folder) / "run" / "metrics.jsonl"))[-COUNTED:]
        row = [f"{median(line[part] for line in lines):.3f}" for part in PARTS]
        table.append([name, f"{median(line['tokens_per_second'] for line in lines):,.0f}", *row])
        told += [f"{name}: {line}" for line in log.splitlines() if any(words in line for words in TOLD)]
    print(markdown_table(table, range(1, 7)))
    print("\n".join(["", *told]))


def train(shards: Path, folder: Path, cores: Sequence[int], busy: bool) -> str:
    """A training of two ranks, with somebody else on the second core or without; returns the first rank's log."""
    options = ["--config", "trainer/recipes/demo.toml", "--shards", shards, "--output", folder / "run"]
    command = ["trainer/pretrain.py", *map(str, options), f"train.max_steps={STEPS}", "log.validate_every=0",
               "tracking.enabled=false"]  # fmt: skip
    launched = ["WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", f"MASTER_PORT={free_port()}", "OMP_NUM_THREADS=1"]
    ranks = {
        f"rank{rank}": ["env", *launched, f"RANK={rank}", f"LOCAL_RANK={rank}", *pinned(core, *command)]
        for rank, core in enumerate(cores)
    }
    with ExitStack() as started:
        if busy:
            other = started.enter_context(subprocess.Popen(pinned(cores[1], "-c", "while True: pass")))
            started.callback(other.kill)
        run_programs(ranks, folder, seconds_since_start() + PATIENCE, cpu=True)
    return (folder / "rank0.log").read_text(encoding="utf-8")


def pinned(core: int, *arguments: object) -> list[str]:
    """Python with one core."""
    return ["taskset", "--cpu-list", str(core), sys.executable, *map(str, arguments)]


if __name__ == "__main__":
    main()
