"""Job files for SLURM: checked against the cluster, written, submitted."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from cluster.checks import check_outputs, check_printable, check_programs, check_reads, writing
from cluster.paths import current_folder, fingerprint, whole
from cluster.programs import NAMES, Name, Program, pretraining_of
from cluster.slurm.partitions import check_fit, read_partitions
from cluster.slurm.requeue import Verdict
from cluster.slurm.settings import Container, EvalJob, Job, SlurmSettings
from cluster.slurm.visible import check_container, check_interpreter, check_shared
from cluster.snapshot import take_snapshot
from cluster.templates import write_script
from trainer.settings import ConfigError

LOGS = "logs"


def launch(programs: Sequence[Program], settings: SlurmSettings, folder: Path, dry_run: bool) -> None:
    """Check, write the job files into ``folder``, submit them and say what to look at.

    Raises:
        ConfigError: the cluster can't run them.
    """
    check(programs, settings, folder, dry_run)
    with writing("choose another --output"):
        file = write(programs, settings, folder, take_snapshot(folder, pretraining_of(programs)))
    command = ["bash" if file.suffix == ".sh" else "sbatch", str(file)]
    if not dry_run:
        outputs = {program.name: program.output for program in programs}
        for name, number in submit(command, programs[0].name):
            print(_where_to_look(name, number, folder / LOGS, outputs[name]))
    print(f"{'to submit' if dry_run else 'once more'}: {shlex.join(command)}")


def check(programs: Sequence[Program], settings: SlurmSettings, folder: Path, dry_run: bool) -> None:
    """Find what is wrong before anything is written.

    Raises:
        ConfigError: it says what and what to do.
    """
    check_programs(programs, settings.pretrain.ranks, settings.eval.array, settings.preprocess.cpus_per_task)
    check_reads(programs)
    check_outputs(programs)
    paths = [current_folder(), *(path for program in programs for path in program.paths), folder]
    check_printable(paths)
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
            check_fit(groups, job.partition, program.name, job, getattr(job, "nodes", 1))


def write(programs: Sequence[Program], settings: SlurmSettings, folder: Path, snapshot: Path) -> Path:
    """Write a job file for each program, and one that submits all of them where they are several.

    Returns:
        The file to submit.
    """
    (folder / LOGS).mkdir(exist_ok=True)
    files = {program.name: folder / f"{program.name}.sbatch" for program in programs}
    for program in programs:
        template = "pretrain" if program.name == "pretrain" else "process"
        values = {**_values(program, settings, folder, snapshot), "file": files[program.name]}
        write_script(files[program.name], f"slurm/{template}.sbatch.j2", values)
    if len(files) == 1:
        return next(iter(files.values()))
    write_script(folder / "all.sh", "slurm/all.sh.j2", {"file": folder / "all.sh", "files": files})
    return folder / "all.sh"


def submit(command: list[str], name: Name) -> Iterable[tuple[Name, str]]:
    """Submit; returns the jobs' names and numbers.

    Raises:
        ConfigError: SLURM refused.
    """
    command = ["sbatch", "--parsable", *command[1:]] if command[0] == "sbatch" else command
    done = subprocess.run(command, capture_output=True, text=True)  # noqa: S603  our own job files
    if done.returncode:
        raise ConfigError(f"{shlex.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    if command[0] == "sbatch":
        return [(name, done.stdout.partition(";")[0].strip())]
    numbers = dict(line.split() for line in done.stdout.splitlines())
    return [(name, numbers[name]) for name in NAMES]


def _values(program: Program, settings: SlurmSettings, folder: Path, snapshot: Path) -> dict[str, Any]:
    """What the job file of a program says."""
    job = settings.of_job(program.name)
    python = _python(settings)
    inside, here = _container(settings.container)
    rank = ["-m", "cluster.slurm.rank"] if program.name == "pretrain" else []
    on_cpu = {"DS_ACCELERATOR": "cpu"} if program.name == "pretrain" and not job.gpus_per_node else {}
    # $HOME is seen in images too, with packages of other versions that the user has installed there.
    in_image = {"PYTHONNOUSERSITE": "1"} if settings.container.runtime else {}
    array = _array(job)
    return {
        "title": _title(program),
        "log": str(folder / LOGS).replace("%", "%%") + f"/{program.name}-{'%A_%a' if array else '%j'}.log",
        "job": job,
        "slurm": settings,
        "options": _options(job, settings.gres),
        "array": array,
        "bin": Path(python).parent if python.startswith("/") else "",
        "threads": job.cpus_per_task,
        "environment": {**on_cpu, **in_image, **job.environment},
        "directory": current_folder(),
        "snapshot": snapshot,
        "program": [*inside, python, *rank, *program.command(snapshot)],
        "here": [*here, python],
        "run": program.output,
        "verdict": Verdict,
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
    """Options of sbatch by their names; empty ones are left out."""
    gpus = ":".join(filter(None, (job.gpu_type, str(job.gpus_per_node)))) if job.gpus_per_node else ""
    return {
        "partition": job.partition,
        "account": job.account,
        "qos": job.qos,
        "constraint": job.constraint,
        "gpus-per-node": "" if gres else gpus,
        "gres": f"gpu:{gpus}" if gres and gpus else "",
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


def _where_to_look(name: Name, number: str, logs: Path, output: Path) -> str:
    lines = [
        f"{name}: job {number}",
        f"  queue     squeue --job={number}",
        f"  log       tail -F {shlex.quote(str(logs))}/{name}-{number}*.log",
    ]
    if name == "pretrain":
        lines += [f"  metrics   {output}/metrics.jsonl", f"  outcome   {output}/outcome: done, requeue or failed"]
    else:
        lines += [f"  output    {output}"]
    return "\n".join(lines)
