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
from cluster.programs import Program, pretraining_of, searched
from preprocessing.status import entries, is_file, looking, sees
from preprocessing.storage_errors import UnavailableError, reason
from trainer.config import Recipe, advice_on, differences, load_recipe
from trainer.deepspeed_config import accumulation_steps, resolve
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


def check_folder(folder: Path) -> None:
    """See that jobs will find the code in their folder.

    Raises:
        ConfigError: PYTHONPATH would end within its path.
    """
    if ":" in str(folder):
        raise ConfigError(
            f"{folder}: a colon ends a path in PYTHONPATH, where jobs look for their code; take a name without"
        )


@contextmanager
def writing(advice: str) -> Iterator[None]:
    """Say in a line what can't be written, and what to do.

    Raises:
        ConfigError: the system refused to write something within.
    """
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{error.filename or 'output'}: can't be written ({reason(error)}); {advice}") from error


def check_outputs(programs: Iterable[Program]) -> None:
    """See that programs will take what their outputs hold, as far as that can be seen from here.

    Raises:
        ConfigError: the folder of shards holds something else, a run directory something that is not a run, or a run of
            other settings; or an evaluation of an export that is still to be made finds results of something else.
    """
    for program in programs:
        if program.name == "preprocess":
            _check_shards(program)
        if program.recipe:
            _check_run(program, program.recipe)
        if program.name == "eval":
            _check_results(program)


def _check_shards(program: Program) -> None:
    try:
        from preprocessing.output import JobError, check_ours
    except ModuleNotFoundError:  # which _check_preprocessing tells
        return
    try:
        if is_file(program.output):
            raise ConfigError(f"{program.name}: {program.output}: a file; choose another --output")
        check_ours(str(program.output))
    except JobError as error:
        raise ConfigError(f"{program.name}: {error}") from error
    except OSError:  # a folder that the nodes' user may enter and this one may not
        return


def _check_run(program: Program, recipe: Recipe) -> None:
    run = RunDirectory(program.output)
    try:
        run.check()
        has_checkpoint = run.step > 0
    except CheckpointError as error:
        raise ConfigError(f"{program.name}: {error}") from error
    except (OSError, UnavailableError):  # a folder that the nodes' user may enter and this one may not, or their disk
        return
    begun = load_recipe(run.config) if os.access(run.config, os.R_OK) else recipe
    if changed := differences(begun, recipe):
        raise ConfigError(
            f"{program.name}: {run.path}: the run was started with other settings ({'; '.join(changed)}); "
            f"{advice_on(changed, has_checkpoint)}"
        )


def _check_results(program: Program) -> None:
    """Results of a step before are in the way of those of a later one: told here, and not when that is trained."""
    try:
        from eval.errors import UsageError
        from eval.options import parse
        from eval.results import RESULTS, read_earlier
    except ModuleNotFoundError:  # which _check_evaluation tells
        return
    checkpoint: Path = parse(program.arguments, program.name).checkpoint
    if os.access(checkpoint, os.F_OK):  # the evaluation itself compares its weights, and at once
        return
    file = program.output / RESULTS
    if not os.access(file, os.R_OK):  # none there, or in a folder that the nodes' user may enter and this one may not
        return
    try:
        earlier = read_earlier(file)
    except (UsageError, UnavailableError) as error:
        raise ConfigError(f"{program.name}: {error}") from error
    if earlier and Path(earlier["checkpoint"]["path"]).name != checkpoint.name:
        raise ConfigError(
            f"{program.name}: {file}: of the weights in {earlier['checkpoint']['path']}, not of {checkpoint.name}; "
            "choose another --output, or delete that folder"
        )


def check_reads(programs: Iterable[Program]) -> None:
    """See that what the programs read is there.

    Raises:
        ConfigError: something is missing.
        UnavailableError: something can't be looked at now.
    """
    for program in programs:
        for path in program.reads:
            if not sees(path):
                raise ConfigError(
                    f"{program.name}: {path}: not there; make it first, or start all jobs by `all`, which makes shards "
                    "and a run's last export"
                )
        for pattern in program.corpus:
            if not sees(pattern) and not any(glob.iglob(pattern, recursive=True)):  # noqa: PTH207
                with looking(folder := searched(pattern)):  # glob passes over what it can't list
                    entries(folder)
                raise ConfigError(f"{program.name}: {pattern}: nothing is there; check the path, and quote a glob")


def check_programs(programs: Sequence[Program], processes: int, cores: int | None) -> None:
    """See that the programs take their arguments, and can do with what a place gives them.

    Args:
        programs: of the job.
        processes: that evaluate.
        cores: of the preprocessing; None for those of this machine.

    Raises:
        ConfigError: there is no such task, no folder for data sets, or no grid for the processes to share.
        SystemExit: with code 2, once a program has said on stderr which argument it does not take.
    """
    for program in programs:
        if program.name == "eval":
            _check_evaluation(program, processes)
        if program.name == "preprocess":
            _check_preprocessing(program, cores)


def check_ranks(programs: Sequence[Program], ranks: int, set_by: str) -> None:
    """See that so many ranks, which the settings ``set_by`` say, can train the recipe.

    Raises:
        ConfigError: they can't divide a global batch, or DeepSpeed's configuration contradicts the recipe.
    """
    program = pretraining_of(programs)
    if not program:
        return
    assert program.recipe
    assert program.deepspeed_config
    for phase in program.recipe.phases:
        try:
            accumulation_steps(phase, ranks)
        except ConfigError as error:
            raise ConfigError(f"{program.name}: {error}, which {set_by} set") from error
        resolve(program.deepspeed_config, program.recipe, phase, ranks)


def _check_preprocessing(program: Program, cores: int | None) -> None:
    """See that it takes its arguments; warn where it is told to start more workers than its job has cores."""
    try:
        from preprocessing.options import parse  # seconds to import, and Beam need not be where a job is launched
    except ModuleNotFoundError as error:
        _warn_of_missing(program, error)
    else:
        parse(program.arguments)
    told = re.findall(r"--direct_num_workers[= ](\d+)", " ".join(program.arguments))
    if cores is not None and told and int(told[-1]) > cores:
        print(
            f"warning: preprocess: --direct_num_workers={told[-1]}, but the job has {cores} cores "
            "(slurm.preprocess.cpus_per_task, kubernetes.preprocess.cpu); make them the same",
            file=sys.stderr,
        )


def _check_evaluation(program: Program, processes: int) -> None:
    """See that it takes its arguments, as far as can be seen from here, and has points for so many processes to share.

    Raises:
        ConfigError: no such task, a file that describes none, no folder for data sets, or no grid whose points
            processes could share.
        SystemExit: with code 2, for another argument.
    """
    try:
        from eval.errors import UsageError  # likewise
        from eval.options import parse
        from eval.plan import check_source
        from eval.tasks import select
        from eval.tasks.finetuned import FineTuned
        from eval.tasks.own import SUFFIX
    except ModuleNotFoundError as error:
        _warn_of_missing(program, error)
        return
    # A file that this machine does not have describes a task that is learned, as all of them do.
    seen = [name for name in program.tasks if not name.endswith(SUFFIX) or os.access(name, os.R_OK)]
    arguments = parse(program.arguments, program.name)
    try:
        tasks = select(seen) if seen else []
        learned = [task for task in tasks if isinstance(task, FineTuned)]
        check_source(learned, arguments)
    except UsageError as error:
        raise ConfigError(f"{program.name}: {error}") from error
    if processes > 1 and not learned and len(seen) == len(program.tasks):
        raise ConfigError(
            f"{program.name}: {processes} processes are to share the points of a grid, but {', '.join(program.tasks)} "
            "learns nothing and has none; take one process (slurm.eval.array, kubernetes.eval.pods)"
        )


def _warn_of_missing(program: Program, error: ModuleNotFoundError) -> None:
    print(
        f"warning: {program.name}: its arguments are not checked, since {error.name} is not installed here",
        file=sys.stderr,
    )
