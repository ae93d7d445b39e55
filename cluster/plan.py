"""Plan a training on paper: memory, largest micro-batch, hours, network, cost, for a recipe on a number of GPUs.

    python -m cluster.plan --recipe bert_large --gpu h200 --gpus 64 [--plot plan.png] [section.key=value ...]
    python -m cluster.plan --calibration

Nothing is run. docs/planning.md says what is computed and how far it can be trusted; --calibration holds it against
published runs.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
import math
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from cluster.planning.estimate import check_shares, make_plan, scaling
from cluster.planning.figure import draw
from cluster.planning.hardware import GPUS, Gpu, change_node, find_gpu
from cluster.planning.plans import Assumptions, Cluster
from cluster.planning.report import calibration, report
from cluster.planning.sharding import Sharding, read_sharding
from preprocessing.command_line import OneLineParser, parse_path, whole_number
from preprocessing.status import is_file, looking
from preprocessing.storage_errors import UnavailableError, exit_code
from preprocessing.terminal import print_result, tell_error
from trainer.config import Recipe, load_recipe
from trainer.deepspeed_config import read_deepspeed, resolve
from trainer.initial_model import find_given, given_model
from trainer.settings import ConfigError

_MOST = 2**31 - 1  # of GPUs, and of sequences of a micro-batch
EFFICIENCY, EFFICIENCY_SOURCE = 0.45, "assumed; NVIDIA's on an A100, see --calibration"
# What DeepSpeed's configuration may say of micro-batches.
_OF_MICRO_BATCHES = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def main(argv: Sequence[str] | None = None) -> int:
    """Print a plan; the exit code is 0, 2 for a mistake in what was asked for, or 1 where storage fails."""
    arguments = _parse(argv)
    try:
        text = "\n".join(calibration()) if arguments.calibration else _plan(arguments)
    except (ConfigError, UnavailableError) as error:
        tell_error(error)
        return exit_code(error)
    return print_result(text)


def _plan(arguments: argparse.Namespace) -> str:
    path = _recipe_path(arguments.recipe)
    model = given_model(arguments.init_from) if arguments.init_from else None
    recipe = load_recipe(path, arguments.settings, model)
    if model:
        find_given(arguments.init_from).check_sizes(model, recipe)
    gpu = _gpu(arguments)
    check_shares(recipe, arguments.gpus)
    cluster = Cluster(gpu, arguments.gpus, _sharding(arguments.deepspeed_config, recipe, arguments.gpus))
    assumptions = _assumptions(arguments)
    plan = make_plan(recipe, cluster, assumptions, arguments.micro_batch)
    others = list(scaling(recipe, cluster, assumptions, arguments.up_to, arguments.micro_batch))
    if arguments.plot:
        if not others:
            raise ConfigError(
                "--plot: no power of two of these GPUs fits and divides the batches, so there is no curve"
            )
        draw(f"{path.stem} on {gpu.name}", others, arguments.plot)
    if arguments.json:
        whole = {"recipe": path.stem, "hours": plan.hours, "gpu_hours": plan.gpu_hours, "cost": plan.cost}
        phases = [{**dataclasses.asdict(phase), "rate": phase.rate, "hours": phase.hours} for phase in plan.phases]
        return json.dumps({**whole, **dataclasses.asdict(plan), "phases": phases, "scaling": others}, indent=2)
    source = EFFICIENCY_SOURCE if arguments.efficiency is None else "as given"
    return "\n".join(report(path.stem, plan, source, others))


def _recipe_path(name: str) -> Path:
    """A file, or a recipe of the project by its name.

    Raises:
        ConfigError: there is neither.
        UnavailableError: nobody can tell now whether the file is there.
    """
    with looking(name):
        if is_file(name):
            return Path(name)
    known = {path.stem: path for path in Path(str(files("trainer") / "recipes")).glob("*.toml")}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known)
    raise ConfigError(
        f"no recipe {name!r}; " + (f"{' or '.join(near)}?" if near else f"known: {', '.join(sorted(known))}")
    )


def _gpu(arguments: argparse.Namespace) -> Gpu:
    for name in ("bus_gbs", "network_gbps"):
        value = getattr(arguments, name)
        if value is not None and not 0 < value < math.inf:
            raise ConfigError(f"--{name.replace('_', '-')} {value:g}: give a positive number")
    return change_node(find_gpu(arguments.gpu), arguments.gpus_per_node, arguments.bus_gbs, arguments.network_gbps)


def _sharding(path: Path, recipe: Recipe, gpus: int) -> Sharding:
    """What the trainer would make of DeepSpeed's configuration, but for micro-batches, which the plan chooses."""
    smallest, file = dataclasses.replace(recipe.phases[0], micro_batch_size=1), read_deepspeed(path)
    settings = {name: value for name, value in file.settings.items() if name not in _OF_MICRO_BATCHES}
    return read_sharding(resolve(file._replace(settings=settings), recipe, smallest, gpus))


def _assumptions(arguments: argparse.Namespace) -> Assumptions:
    return Assumptions(
        efficiency=EFFICIENCY if arguments.efficiency is None else arguments.efficiency,
        fill=arguments.fill,
        headroom=arguments.headroom,
        launch=arguments.launch_us * 1e-6,
        write=arguments.write_gbs * 1e9,
        price=arguments.price_per_gpu_hour,
    )


def _numbers(text: str) -> list[int]:
    return list(map(whole_number(1, _MOST), text.split(",")))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    default = Assumptions(EFFICIENCY)
    parser = OneLineParser(prog="python -m cluster.plan", description="Plan a training on paper.")
    parser.add_argument("settings", nargs="*", metavar="section.key=value", help="settings that replace the recipe's")
    count = whole_number(1, _MOST)
    for name, kind, value, metavar, told in (
        ("--recipe", str, None, "NAME", "a recipe's name or file"),
        ("--gpu", str, None, "NAME", f"one of {', '.join(GPUS)}"),
        ("--gpus", count, None, "N", "how many"),
        ("--init-from", parse_path, None, "DIR", "of whose weights is what the recipe leaves open of its model"),
        ("--micro-batch", _numbers, None, "N[,N...]",
         "of all phases or of each (default: the largest that fits and divides)"),
        ("--efficiency", float, None, "SHARE", f"of the GPU's peak that products reach (default {EFFICIENCY})"),
        ("--fill", float, default.fill, "SHARE", "mean share of a sequence that is text (default %(default)s)"),
        ("--headroom", float, default.headroom, "SHARE", "of memory that stays free (default %(default)s)"),
        ("--gpus-per-node", count, None, "N", "(default: as the GPU usually comes)"),
        ("--bus-gbs", float, None, "GB/s", "through each GPU within a node (default: likewise)"),
        ("--network-gbps", float, None, "Gb/s", "line rate of a node's adapters together (default: likewise)"),
        ("--launch-us", float, default.launch * 1e6, "US", "of the CPU for an operation (default %(default)g)"),
        ("--write-gbs", float, default.write / 1e9, "GB/s", "of the shared file system (default %(default)g)"),
        ("--price-per-gpu-hour", float, None, "PRICE", "adds costs"),
        ("--up-to", count, 4096, "N", "GPUs in the table of other numbers (default %(default)s)"),
        ("--plot", parse_path, None, "PNG", "draw time against the number of GPUs"),
    ):  # fmt: skip
        parser.add_argument(name, type=kind, default=value, metavar=metavar, help=told)
    parser.add_argument(
        "--deepspeed_config", "--ds-config", type=parse_path, default=Path("ds_config.json"), metavar="JSON",
        help="DeepSpeed's (default %(default)s)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    parser.add_argument(
        "--calibration", action="store_true", help="print published runs beside what this model says of them, and stop"
    )
    arguments = parser.parse_intermixed_args(argv)
    if arguments.calibration and arguments != parser.parse_intermixed_args(["--calibration"]):
        parser.error("--calibration: it is of published runs and takes nothing beside it")
    missing = [name for name in ("recipe", "gpu", "gpus") if getattr(arguments, name) is None]
    if missing and not arguments.calibration:
        parser.error(f"--{' and --'.join(missing)} must be given, or --calibration")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
