"""What is wrong with a job wherever it is to run, told before anything is written."""

from __future__ import annotations

import glob
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cluster.paths import current_folder
from cluster.programs import Program, pretraining_of
from trainer.config import differences, load_recipe
from trainer.deepspeed_config import accumulation_steps, resolve_deepspeed
from trainer.run_directory import CheckpointError, RunDirectory
from trainer.settings import ConfigError


def check_printable(paths: Iterable[Path]) -> None:
    """See that no path has line ends or the like in it: job files have a comment with it, and lines for SLURM.

    Raises:
        ConfigError: one has.
    """
    for path in (current_folder(), *paths):
        if not str(path).isprintable():
            raise ConfigError(f"{str(path)!r}: the name holds characters that can't be printed; take another one")


@contextmanager
def writing(advice: str) -> Iterator[None]:
    """Say in a line what can't be written, and what to do.

    Raises:
        ConfigError: the system refused to write something within.
    """
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{error.filename or 'output'}: can't be written ({error.strerror or error}); {advice}"
        ) from error


def check_runs(programs: Iterable[Program]) -> None:
    """See that the trainer will take the run directory, as far as that can be seen from here.

    Raises:
        ConfigError: it holds something that is not a run, or a run of other settings.
    """
    for program in programs:
        if not program.recipe:
            continue
        run = RunDirectory(program.output)
        try:
            run.check()
        except CheckpointError as error:
            raise ConfigError(f"{program.name}: {error}") from error
        except OSError:  # a folder that the nodes' user may enter and this one may not
            continue
        begun = load_recipe(run.config) if os.access(run.config, os.R_OK) else program.recipe
        if changed := differences(begun, program.recipe):
            raise ConfigError(
                f"{program.name}: {run.path}: the run was started with other settings ({'; '.join(changed)}); "
                "choose another --output, or go on with what the run was started with"
            )


def check_reads(programs: Iterable[Program]) -> None:
    """See that what the programs read is there.

    Raises:
        ConfigError: something is missing.
    """
    for program in programs:
        for path in program.reads:
            if not os.access(path, os.F_OK):  # exists() raises where a folder on the way can't be entered
                raise ConfigError(f"{program.name}: {path}: not there; make it first, or start all jobs by `all`")
        for pattern in program.corpus:
            if not os.access(pattern, os.F_OK) and not any(glob.iglob(pattern, recursive=True)):  # noqa: PTH207
                raise ConfigError(f"{program.name}: {pattern}: nothing is there; check the path, and quote a glob")


def check_amounts(programs: Sequence[Program], ranks: int, processes: int, cores: int | None) -> None:
    """See that the programs can do with what a place gives them.

    Args:
        programs: of the job.
        ranks: that train.
        processes: that evaluate.
        cores: of the preprocessing; None for those of this machine.

    Raises:
        ConfigError: so many ranks can't train the recipe, there is no such task, or no grid for the processes to share.
    """
    if pretraining := pretraining_of(programs):
        _check_ranks(pretraining, ranks)
    for program in programs:
        if program.name == "eval":
            _check_tasks(program, processes)
        if program.name == "preprocess" and cores is not None:
            _warn_of_workers(program, cores)


def _check_ranks(program: Program, ranks: int) -> None:
    """See that so many ranks can train the recipe.

    Raises:
        ConfigError: they can't divide a global batch, or DeepSpeed's configuration contradicts the recipe.
    """
    assert program.recipe
    assert program.deepspeed_config
    for phase in program.recipe.phases:
        accumulation_steps(phase, ranks)
        resolve_deepspeed(program.deepspeed_config, program.recipe, phase, ranks)


def _warn_of_workers(program: Program, cores: int) -> None:
    """Say so where a preprocessing is told to start more workers than its job has cores."""
    told = re.findall(r"--direct_num_workers[= ](\d+)", " ".join(program.arguments))
    if told and int(told[-1]) > cores:
        print(
            f"warning: preprocess: --direct_num_workers={told[-1]}, but the job has {cores} cores "
            "(slurm.preprocess.cpus_per_task, kubernetes.preprocess.cpu); make them the same",
            file=sys.stderr,
        )


def _check_tasks(program: Program, processes: int) -> None:
    """See that there are such tasks, as far as can be seen from here, and points for so many processes to share.

    Raises:
        ConfigError: no such task, a file that describes none, or no grid whose points processes could share.
    """
    try:
        from eval.errors import UsageError  # seconds to import, and its packages need not be where a job is launched
        from eval.tasks import select
        from eval.tasks.finetuned import FineTuned
        from eval.tasks.own import SUFFIX
    except ModuleNotFoundError as error:
        print(f"warning: --tasks is not checked, since {error.name} is not installed here", file=sys.stderr)
        return
    # A file that this machine does not have describes a task that is learned, as all of them do.
    seen = [name for name in program.tasks if not name.endswith(SUFFIX) or os.access(name, os.R_OK)]
    try:
        tasks = select(seen) if seen or not program.tasks else []
    except UsageError as error:
        raise ConfigError(f"{program.name}: {error}") from error
    learns = len(seen) < len(program.tasks) or any(isinstance(task, FineTuned) for task in tasks)
    if processes > 1 and not learns:
        raise ConfigError(
            f"{program.name}: {processes} processes are to share the points of a grid, but {', '.join(program.tasks)} "
            "learns nothing and has none; take one process (slurm.eval.array, kubernetes.eval.pods)"
        )
