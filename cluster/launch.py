"""Start preprocessing, pretraining, evaluation, or all three, on a cluster or on this machine.

    python -m cluster.launch pretrain --on slurm --settings cluster.toml slurm.pretrain.nodes=4 -- \
        --config trainer/recipes/bert_large.toml --shards shards/ --output runs/large phases.0.micro_batch_size=8

What follows `--` is what the program takes on its own command line. The code and the resolved configuration are copied
into the run directory, job files are written there and submitted. docs/cluster.md tells the rest.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cluster.k8s.launch import launch as launch_on_kubernetes
from cluster.local.launch import launch as launch_here
from cluster.programs import NAMES, READERS, Name, Program, folder_of, read_chain
from cluster.settings import ClusterSettings, load_settings
from cluster.slurm.launch import launch as launch_on_slurm
from preprocessing.command_line import OneLineParser, parse_path
from preprocessing.storage_errors import UnavailableError, exit_code
from preprocessing.terminal import tell_error
from trainer.settings import ConfigError

# What starts jobs there: of the programs, by the place's section of the settings, through job files in a folder.
_PLACES: dict[str, Callable[[Sequence[Program], Any, Path, bool], None]] = {
    "slurm": launch_on_slurm,
    "kubernetes": launch_on_kubernetes,
    "local": launch_here,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Check, write and submit; exits with 2 for a mistake in what was asked for, and with 1 where storage fails."""
    arguments, given = _parse(sys.argv[1:] if argv is None else argv)
    logging.getLogger().setLevel(logging.ERROR)  # Beam warns at its import of Google's client libraries
    try:
        settings = load_settings(arguments.settings, arguments.overrides)
        programs = read_programs(arguments.job, settings, given)
        _PLACES[arguments.on](programs, getattr(settings, arguments.on), folder_of(programs), arguments.dry_run)
    except (ConfigError, UnavailableError) as error:
        tell_error(error)
        return exit_code(error)
    return 0


def read_programs(job: str, settings: ClusterSettings, given: Sequence[str]) -> list[Program]:
    """The programs of a job, with their arguments from the settings and the command line.

    Raises:
        ConfigError: an argument that lacks or is wrong.
    """
    of_settings: dict[Name, Sequence[str]] = {name: getattr(settings, name).arguments for name in NAMES}
    if job != "all":
        name: Name = next(name for name in NAMES if name == job)
        words = [*of_settings[name], *given]
        if not words:
            where = f"after --, or as arguments = [...] in [{name}] of the file that --settings names"
            raise ConfigError(f"{name}: no arguments for the program; give them {where}")
        return [READERS[name](words)]
    if given:
        raise ConfigError("all: which program is this for? write arguments = [...] in [preprocess], [pretrain], [eval]")
    if lacking := [f"[{name}]" for name in NAMES if not of_settings[name]]:
        where = f"{', '.join(lacking)} of the file that --settings names"
        raise ConfigError(f"all: no arguments for the programs; write arguments = [...] in {where}")
    return read_chain(of_settings)


def _parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = OneLineParser(
        prog="python -m cluster.launch",
        usage="%(prog)s JOB --on PLACE [--settings TOML] [--dry-run] [section.key=value ...] [-- ARGUMENTS]",
        description="Start a job on a cluster. What follows -- is what the program takes on its own command line.",
    )
    parser.add_argument("job", choices=[*NAMES, "all"], help="a program, or all three, each after the one before")
    parser.add_argument("--on", choices=[*_PLACES], required=True, help="where it runs")
    parser.add_argument("--settings", type=parse_path, metavar="TOML", help="of the cluster; see docs/cluster.md")
    parser.add_argument("--dry-run", action="store_true", help="check and write the job files, but submit nothing")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="settings that replace the file's")
    end = list(argv).index("--") if "--" in argv else len(argv)
    parser.refuse_misspelt(argv[:end])
    for option in parser.unknown(argv[:end]):
        parser.error(f"unknown option {option!r}: what is for the program itself follows --")
    return parser.parse_intermixed_args(argv[:end]), list(argv[end + 1 :])


if __name__ == "__main__":
    sys.exit(main())
