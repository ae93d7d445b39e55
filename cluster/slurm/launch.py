"""Job files for SLURM: checked against the cluster, written, submitted."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cluster import checks
from cluster.paths import current_folder, fingerprint, whole
from cluster.programs import NAMES, Name, Program, pretraining_of
from cluster.slurm.partitions import check_fit, read_partitions
from cluster.slurm.requeue import Verdict
from cluster.slurm.settings import Container, EvalJob, Job, SlurmSettings
from cluster.slurm.visible import check_container, check_interpreter, check_shared
from cluster.snapshot import take_snapshot
from cluster.templates import write_script
from preprocessing.status import make_folder
from trainer.outcome import MISTAKE
from trainer.settings import ConfigError

LOGS = "logs"
# Variables of sbatch for what every job file says, and for what it says where the settings do.
_OF_EVERY_FILE = tuple(
    f"SBATCH_{name}"
    for name in ("ARRAY_INX", "JOB_NAME", "NO_REQUEUE", "OPEN_MODE", "OUTPUT", "REQUEUE", "SIGNAL", "TIMELIMIT", "WAIT")
)
_GPUS = ("SBATCH_GPUS", "SBATCH_GPUS_PER_NODE", "SBATCH_GPUS_PER_TASK", "SBATCH_GRES")
_OF_OPTIONS = {
    "partition": ("SBATCH_PARTITION",),
    "account": ("SBATCH_ACCOUNT",),
    "qos": ("SBATCH_QOS",),
    "constraint": ("SBATCH_CONSTRAINT",),
    "gpus-per-node": _GPUS,
    "gres": _GPUS,
    "mem": ("SBATCH_MEM_PER_NODE", "SBATCH_MEM_PER_CPU", "SBATCH_MEM_PER_GPU"),
}
_GRES = "--gres="
_CONFIGURATION = ("SLURM_CONF", "SLURM_JWT")  # where SLURM is, and who asks


def launch(programs: Sequence[Program], settings: SlurmSettings, folder: Path, dry_run: bool) -> None:
    """Check, write the job files into ``folder``, submit them and say what to look at.

    Raises:
        ConfigError: the cluster can't run them.
    """
    settings = replace(settings, container=_with_whole_paths(settings.container))
    check(programs, settings, folder, dry_run)
    with checks.writing("choose another --output"):
        file = write(programs, settings, folder, take_snapshot(folder, pretraining_of(programs)))
    command = ["bash" if file.suffix == ".sh" else "sbatch", str(file)]
    if not dry_run:
        outputs = {program.name: program.output for program in programs}
        for name, number in submit(command, programs[0].name, _overruling(programs, settings)):
            members = "_*" if _array(settings.of_job(name)) else ""
            print(_where_to_look(name, number, f"{name}-{number}{members}.log", folder / LOGS, outputs[name]))
    print(f"{'to submit' if dry_run else 'once more'}: {shlex.join(command)}")


def _with_whole_paths(container: Container) -> Container:
    """A container whose image and mounts are found from everywhere.

    Raises:
        ConfigError: a path is none that a shell would have found, or has characters that can't be told to a container.
    """
    image = str(whole(container.image_file)) if container.image_file else container.image
    mounts = [whole(mount) for mount in container.mounts]
    try:
        return replace(container, image=image, mounts=mounts)
    except ValueError as error:
        raise ConfigError(f"slurm.container: {error}") from error


def check(programs: Sequence[Program], settings: SlurmSettings, folder: Path, dry_run: bool) -> None:
    """Find what is wrong before anything is written.

    Raises:
        ConfigError: it says what and what to do.
    """
    checks.check_programs(programs, settings.eval.array, settings.preprocess.cpus_per_task)
    checks.check_reads(programs)
    checks.check_ranks(programs, settings.pretrain.ranks, "slurm.pretrain.nodes and slurm.pretrain.gpus_per_node")
    checks.check_outputs(programs)
    paths = [current_folder(), *(path for program in programs for path in program.paths), folder]
    checks.check_printable(paths)
    checks.check_folder(folder)
    for path in paths:
        if "\\" in str(path):
            raise ConfigError(f"{path}: sbatch drops backslashes from the names of logs; take a name without")
    shared = [whole(folder) for folder in settings.shared]
    check_shared(paths, shared)
    check_container(settings.container, [*paths, *(path for program in programs for path in program.cache)])
    python = _python(settings)
    if not settings.container.runtime and "/" in python:
        check_interpreter(Path(python), shared)
    try:
        groups = read_partitions()
    except ConfigError as error:
        if not dry_run:
            raise
        print(f"warning: partitions are not checked: {error}", file=sys.stderr)  # a dry run may be tried on any machine
        return
    for program in programs:
        job = settings.of_job(program.name)
        # Where none is named, SLURM's administrators may choose one by account, QOS or features.
        if job.partition:
            check_fit(groups, program.name, job, getattr(job, "nodes", 1))


def write(programs: Sequence[Program], settings: SlurmSettings, folder: Path, snapshot: Path) -> Path:
    """Write a job file for each program, and one that submits all of them where they are several.

    Returns:
        The file to submit.
    """
    make_folder(folder / LOGS)
    files = {program.name: folder / f"{program.name}.sbatch" for program in programs}
    for program in programs:
        template = "pretrain" if program.name == "pretrain" else "process"
        values = _values(program, settings, folder, snapshot)
        write_script(files[program.name], f"slurm/{template}.sbatch.j2", values)
    if len(files) == 1:
        return next(iter(files.values()))
    values = {"files": files, "overruling": _overruling(programs, settings), "configuration": _CONFIGURATION}
    write_script(folder / "all.sh", "slurm/all.sh.j2", values)
    return folder / "all.sh"


def submit(command: list[str], name: Name, overruling: Collection[str]) -> Iterable[tuple[Name, str]]:
    """Submit; returns the jobs' names and numbers.

    Args:
        command: sbatch or bash, and the file.
        name: of the job; of several the file says them.
        overruling: variables that sbatch is not to see.

    Raises:
        ConfigError: SLURM refused.
    """
    if dropped := sorted(set(overruling) & os.environ.keys()):
        print(f"note: {', '.join(dropped)} of this shell are left out, for the settings say it", file=sys.stderr)
    left_out = {*dropped, *_of_a_job_around()}
    environment = {variable: value for variable, value in os.environ.items() if variable not in left_out}
    command = ["sbatch", "--parsable", *command[1:]] if command[0] == "sbatch" else command
    done = subprocess.run(  # noqa: S603  our own job files
        command, capture_output=True, encoding="utf-8", errors="replace", env=environment
    )
    if done.returncode:
        raise ConfigError(f"{shlex.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    if command[0] == "sbatch":
        numbers = re.findall(r"^(\d+)(?:;.*)?$", done.stdout, re.MULTILINE)  # a site's own sbatch may say more
        if not numbers:
            said = (done.stdout + done.stderr).strip()
            raise ConfigError(f"{shlex.join(command)}: no number of a job, but {said!r}")
        return [(name, numbers[-1])]
    of_jobs = dict(line.split() for line in done.stdout.splitlines())
    return [(name, of_jobs[name]) for name in NAMES]


def _of_a_job_around() -> list[str]:
    """Variables of a job that this is started from, such as an interactive one: another job's srun would obey them."""
    of_slurm = [name for name in os.environ if name.startswith("SLURM_") and name not in _CONFIGURATION]
    return of_slurm if "SLURM_JOB_ID" in of_slurm else []


def _overruling(programs: Sequence[Program], settings: SlurmSettings) -> list[str]:
    """Variables by which sbatch would not do what a job file says: they count for more than the lines in it."""
    jobs = [settings.of_job(program.name) for program in programs]
    said = {option for job in jobs for option, value in _options(job, settings.gres).items() if value}
    of_options = [variable for option, variables in _OF_OPTIONS.items() if option in said for variable in variables]
    return [*_OF_EVERY_FILE, *dict.fromkeys(of_options)]


def _values(program: Program, settings: SlurmSettings, folder: Path, snapshot: Path) -> dict[str, Any]:
    """What the job file of a program says."""
    job = settings.of_job(program.name)
    python = _python(settings)
    inside, here = _container(settings.container)
    rank = ["-m", "cluster.slurm.rank"] if program.name == "pretrain" else []
    array = _array(job)
    return {
        "title": _title(program),
        "log": str(folder / LOGS).replace("%", "%%") + f"/{program.name}-{'%A_%a' if array else '%j'}.log",
        "job": job,
        "slurm": settings,
        "options": _options(job, settings.gres),
        "other_options": [option for option in job.options if not option.startswith(_GRES)],
        # By the settings, as an option, of which sbatch takes beginnings too, or as srun's variable.
        "distributed": "SLURM_DISTRIBUTION" in job.environment
        or any(option.startswith("--dis") for option in job.options),
        "array": array,
        "bin": Path(python).parent if python.startswith("/") else "",
        "threads": job.cpus_per_task,
        "environment": {
            **program.variables(job.gpus_per_node),
            **_of_image(settings.container, job.gpus_per_node),
            **job.environment,
        },
        "directory": current_folder(),
        "snapshot": snapshot,
        "program": [*inside, python, *rank, *program.on(job.gpus_per_node).command(snapshot)],
        "here": [*here, python],
        "run": program.output,
        "verdict": Verdict,
        "mistake": MISTAKE,
    }


def _python(settings: SlurmSettings) -> str:
    """The interpreter of the jobs: a name that is looked for in PATH, or a whole path."""
    if not settings.python:
        return "python" if settings.container.runtime else sys.executable
    return str(whole(settings.python)) if "/" in settings.python else settings.python


def _title(program: Program) -> str:
    """A name that jobs have in common if, and only if, they write the same output: SLURM runs one of them at a time."""
    readable = re.sub(r"[^A-Za-z0-9_.-]", "_", program.output.name)
    return f"{program.name}-{readable}-{fingerprint(program.output)}"


def _options(job: Job, gres: bool) -> dict[str, str]:
    """Options of sbatch by their names; empty ones are left out. Of several --gres it would take the last alone."""
    others = [option.removeprefix(_GRES) for option in job.options if option.startswith(_GRES)]
    gpus = ":".join(filter(None, (job.gpu_type, str(job.gpus_per_node)))) if job.gpus_per_node else ""
    return {
        "partition": job.partition,
        "account": job.account,
        "qos": job.qos,
        "constraint": job.constraint,
        "gpus-per-node": "" if gres else gpus,
        "gres": ",".join([*([f"gpu:{gpus}"] if gres and gpus else []), *others]),
        "mem": job.memory,
    }


def _array(job: Job) -> str:
    """The members of an evaluation that share a grid, as sbatch takes them; empty for a process alone."""
    if not isinstance(job, EvalJob) or job.array == 1:
        return ""
    return f"0-{job.array - 1}" + (f"%{job.array_limit}" if job.array_limit else "")


def _container(container: Container) -> tuple[list[str], list[str]]:
    """What stands before a command behind srun, and on the node that the job file itself runs on."""
    mounts = ",".join(f"{mount}:{mount}" for mount in container.mounts)
    if container.runtime == "pyxis":  # adds options to srun
        mounted = [f"--container-mounts={mounts}"] if mounts else []
        options = [f"--container-image={container.image}", *mounted, f"--container-workdir={current_folder()}"]
        return options, ["srun", "--overlap", "--nodes=1", "--ntasks=1", *options]
    if container.runtime == "apptainer":
        mounted = ["--bind", mounts] if mounts else []
        command = ["apptainer", "exec", "--nv", *mounted, "--pwd", str(current_folder()), container.image]
        return command, command
    return [], []


def _of_image(container: Container, gpus: int) -> dict[str, str]:
    """Variables of a job that runs in an image, on a node of so many GPUs."""
    if not container.runtime:
        return {}
    # $HOME is seen in images too, with packages of other versions that the user has installed there.
    variables = {"PYTHONNOUSERSITE": "1"}
    if container.runtime == "pyxis" and gpus:
        # By these alone enroot's hook, 98-nvidia.sh, brings devices and CUDA's driver into an image; one that is made
        # of NVIDIA's has them itself. On a node without a driver the hook would fail.
        variables |= {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    return variables


def _where_to_look(name: Name, number: str, log: str, logs: Path, output: Path) -> str:
    lines = [
        f"{name}: job {number}",
        f"  queue     squeue --job={number}",
        f"  log       tail -F {shlex.quote(str(logs))}/{log}",
    ]
    if name == "pretrain":
        lines += [f"  metrics   {output}/metrics.jsonl", f"  outcome   {output}/outcome: done, requeue or failed"]
    else:
        lines += [f"  output    {output}"]
    return "\n".join(lines)
