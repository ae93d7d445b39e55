"""What is wrong with a job wherever it is to run, told before anything is written."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.paths import current_folder
from cluster.programs import Program
from trainer.config import differences, load_recipe
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
