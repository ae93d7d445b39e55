"""Scripts for this machine: the jobs as plain processes, for trying."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from cluster import checks
from cluster.local.settings import LocalSettings
from cluster.paths import current_folder
from cluster.programs import Program, pretraining_of
from cluster.snapshot import take_snapshot
from cluster.templates import write_script


def launch(programs: Sequence[Program], settings: LocalSettings, folder: Path, dry_run: bool) -> None:
    """Write scripts into ``folder`` and become the one that runs all.

    Raises:
        ConfigError: this machine can't run them.
    """
    checks.check_programs(programs, processes=1, cores=None)
    checks.check_reads(programs)
    checks.check_ranks(programs, settings.processes, "local.gpus and local.ranks")
    checks.check_outputs(programs)
    checks.check_printable(program.output for program in programs)
    checks.check_folder(folder)
    with checks.writing("choose another --output"):
        file = write(programs, settings, folder, take_snapshot(folder, pretraining_of(programs)))
    print(f"{'to run' if dry_run else 'once more'}: {shlex.join(['bash', str(file)])}", flush=True)
    if not dry_run:
        os.execvp("bash", ["bash", str(file)])  # noqa: S606, S607  so that a signal reaches what it is meant for


def write(programs: Sequence[Program], settings: LocalSettings, folder: Path, snapshot: Path) -> Path:
    """Write a script for each program, and one that runs them in turn where they are several.

    Returns:
        The script to run.
    """
    files = {program.name: folder / f"{program.name}.sh" for program in programs}
    for program in programs:
        training = program.name == "pretrain"
        processes = settings.processes if training else 1
        starter = _torchrun(processes) if training else []
        values = {
            "bin": Path(sys.executable).parent,
            "threads": settings.threads or max(1, len(os.sched_getaffinity(0)) // processes),
            "environment": program.variables(settings.gpus),
            "directory": current_folder(),
            "snapshot": snapshot,
            "program": [sys.executable, *starter, *program.on(settings.gpus).command(snapshot)],
        }
        write_script(files[program.name], "local/job.sh.j2", values)
    if len(files) == 1:
        return next(iter(files.values()))
    write_script(folder / "all.sh", "local/all.sh.j2", {"files": files})
    return folder / "all.sh"


def _torchrun(ranks: int) -> list[str]:
    """Ranks of this machine alone, on a free port of their own."""
    return ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={ranks}"]
