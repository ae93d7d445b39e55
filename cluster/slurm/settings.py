"""What a SLURM cluster is to be told: a section of the cluster's settings."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from cluster.places import Text, check_environment, check_rank_per_gpu, is_utf8

# sbatch's forms: minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes and with seconds.
_TIME = re.compile(r"(?:(?P<days>\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", re.ASCII)
_MEMORY = re.compile(r"\d+[KMGT]?", re.ASCII)
# What cluster.slurm.rank sets, and where programs and modules are found; setup may add to a PATH.
_OURS = re.compile("RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|PATH|PYTHONPATH|PYTHONHOME|PYTHONSAFEPATH")
# Options of sbatch that ask for GPUs; others, such as --gpu-freq and --gres=nvme:1, don't.
_ASKS_FOR_GPUS = re.compile(r"--gpus(-per-\w+)?([= ]|$)|--(gres|tres-per-\w+)[= ].*\bgpu\b")
_BLANK = re.compile(r"^(--[\w-]+) +")  # between an option and its value, which in quotes would belong to the name
# A rank to which one GPU alone is bound sees it as the first, whatever its LOCAL_RANK.
_BINDS = "ranks choose their GPU by LOCAL_RANK, for which each must see all those of its node; leave it out"
# What a job file says by itself, or by settings with a name of their own, which a launch checks; and what breaks it.
_OF_THE_FILE = {
    **dict.fromkeys(("job-name", "output", "open-mode", "requeue", "no-requeue"), "the job file sets it"),
    "dependency": "sbatch --dependency=...,singleton FILE submits a job file with one",
    "array": "say it by slurm.eval.array",
    "signal": "say it by slurm.notice",
    **dict.fromkeys(("time", "partition", "account", "qos", "constraint"), "say it by the setting of that name"),
    "mem": "say it by memory",
    "nodes": "say it by slurm.pretrain.nodes",
    **dict.fromkeys(("ntasks", "ntasks-per-node", "tasks-per-node"), "say it by slurm.pretrain.tasks_per_node"),
    "cpus-per-task": "say it by cpus_per_task",
    **dict.fromkeys(("gpu-bind", "tres-bind", "ntasks-per-gpu"), _BINDS),
    "wait": "a launch waits for no job; squeue --job=NUMBER tells of it",
}
# Names that SLURM's administrators give, with what selects several: commas, and | & [] () * for constraints.
_NAME = re.compile(r"[\w.,:+=/@|&\[\]()*-]*", re.ASCII)


@dataclass(frozen=True)
class Common:
    """What [slurm] says of all jobs, and [slurm.preprocess], [slurm.pretrain] and [slurm.eval] of one; see of_job.

    Attributes:
        partition: where it runs; empty for the cluster's default.
        account: who pays.
        qos: quality of service.
        constraint: features that a node must have.
        options: more options of sbatch, such as "--exclusive" or "--mail-type=FAIL".
        setup: lines of shell that a job begins with, such as "module load cuda".
        environment: variables, such as NCCL_SOCKET_IFNAME.
    """

    partition: Text = ""
    account: Text = ""
    qos: Text = ""
    constraint: Text = ""
    options: list[str] = field(default_factory=list)
    setup: list[str] = field(default_factory=list)
    environment: dict[str, Text] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_names(self, "partition", "account", "qos", "constraint")
        for option in self.options:
            if not option.startswith("--") or not option.isprintable():
                raise ValueError(f"options: {option!r} is not an option of sbatch, such as --exclusive")
            if _ASKS_FOR_GPUS.match(option):
                raise ValueError(
                    f"options: {option!r} asks for GPUs that the programs would not know of; say it by gpus_per_node "
                    "and gpu_type of the job, and by slurm.gres=true where the cluster wants --gres"
                )
            if of_the_file := _of_the_file(re.split("[= ]", option.removeprefix("--"), maxsplit=1)[0]):
                raise ValueError(f"options: {option!r} is not one to add; {_OF_THE_FILE[of_the_file]}")
        for line in self.setup:
            if "\0" in line or "\r" in line or not is_utf8(line):
                raise ValueError(f"setup: {line!r} holds a character that no shell reads")
        check_environment(self.environment, _OURS)


@dataclass(frozen=True)
class Job(Common):
    """What a job takes; [slurm.preprocess]: one node, whose cores Beam's workers share.

    Attributes:
        gpus_per_node: GPUs.
        gpu_type: where a partition has several, such as "h100".
        cpus_per_task: CPU cores of a process, which computes with as many threads.
        memory: of a node, such as "500G"; empty for the partition's default, "0" for all of it.
        time: limit in SLURM's forms, such as "2-00:00:00".
    """

    gpus_per_node: int = 0
    gpu_type: Text = ""
    cpus_per_task: int = 8
    memory: Text = ""
    time: Text = "1-00:00:00"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gpus_per_node < 0 or self.cpus_per_task <= 0:
            raise ValueError("gpus_per_node must be 0 or more, cpus_per_task positive")
        if self.memory and not _MEMORY.fullmatch(self.memory):
            raise ValueError(f"memory {self.memory!r} is not a number with K, M, G or T, such as 500G")
        if self.seconds <= 0:
            raise ValueError(f"time must be positive, not {self.time!r}")
        _check_names(self, "gpu_type")

    @property
    def seconds(self) -> int:
        """The time limit."""
        return seconds_of(self.time)


@dataclass(frozen=True)
class PretrainJob(Job):
    """[slurm.pretrain]: a process per GPU.

    Attributes:
        nodes: machines.
        tasks_per_node: ranks of a node; 0 for one per GPU, or one where there is none.
    """

    gpus_per_node: int = 8
    nodes: int = 1
    tasks_per_node: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nodes <= 0 or self.tasks_per_node < 0:
            raise ValueError("nodes must be positive, tasks_per_node 0 or more")
        check_rank_per_gpu("tasks_per_node", self.tasks_per_node, self.gpus_per_node)

    @property
    def ranks_per_node(self) -> int:
        """Processes of a node."""
        return self.tasks_per_node or self.gpus_per_node or 1

    @property
    def ranks(self) -> int:
        """Processes in all."""
        return self.nodes * self.ranks_per_node


@dataclass(frozen=True)
class EvalJob(Job):
    """[slurm.eval]: one process, or an array of them that share a grid.

    Attributes:
        array: jobs; more than one divide the points of the grid among them.
        array_limit: at most so many at a time; 0 for no limit.
    """

    gpus_per_node: int = 1
    array: int = 1
    array_limit: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.array <= 0 or self.array_limit < 0:
            raise ValueError("array must be positive, array_limit 0 or more")


@dataclass(frozen=True)
class Container:
    """[slurm.container]: the image in which the programs run.

    Attributes:
        runtime: pyxis (enroot, by options of srun) or apptainer; empty to run on the node itself.
        image: a file, or a name in a registry (pyxis: registry#name:tag; apptainer: docker://name:tag).
        mounts: folders that the program sees at the same place inside: data, shards, runs.
    """

    runtime: Literal["", "pyxis", "apptainer"] = ""
    image: str = ""
    mounts: list[Path] = field(default_factory=list)

    def __post_init__(self) -> None:
        if bool(self.runtime) != bool(self.image):
            raise ValueError("runtime and image belong together; give both or none")
        if not self.image.isprintable():
            raise ValueError("image holds characters that can't be printed")
        for mount in self.mounts:
            is_whole = mount.is_absolute() or str(mount).startswith("~")
            if not is_whole or re.search(r"[,:\s]", str(mount)) or not str(mount).isprintable():
                raise ValueError(f"mounts: {str(mount)!r} must be a whole path without commas, colons and spaces")

    @property
    def image_file(self) -> Path | None:
        """The image where it is a file."""
        named = "://" in self.image or (self.runtime == "pyxis" and not re.match(r"[./~]", self.image))
        return None if named or not self.image else Path(self.image)


@dataclass(frozen=True)
class SlurmSettings(Common):
    """[slurm]: what all jobs have in common, and each of them.

    Attributes:
        gres: ask for GPUs by --gres=gpu:N, where the cluster does not take --gpus-per-node.
        notice: seconds ahead of the time limit at which a job is asked to stop: for a step and a checkpoint.
        crashes: a run that crashes is restarted until it has crashed more often than this without a newer checkpoint.
        shared: folders that all nodes see although their file system looks like a disk of one machine.
        python: the interpreter on the nodes; empty for the one that launches, or the image's own.
    """

    gres: bool = False
    notice: int = 300
    crashes: int = 3
    shared: list[Path] = field(default_factory=list)
    python: str = ""
    container: Container = field(default_factory=Container)
    preprocess: Job = field(default_factory=Job)
    pretrain: PretrainJob = field(default_factory=PretrainJob)
    eval: EvalJob = field(default_factory=EvalJob)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, paths in (("python", [self.python]), ("shared", self.shared)):
            if not all(str(path).isprintable() for path in paths):
                raise ValueError(f"{name} holds characters that can't be printed")
        if not 0 < self.notice <= 65535 or self.crashes < 0:
            raise ValueError("notice must be from 1 to 65535 seconds, crashes 0 or more")
        for name, job in (("preprocess", self.preprocess), ("pretrain", self.pretrain), ("eval", self.eval)):
            if job.seconds <= self.notice:
                raise ValueError(f"notice, {self.notice} s, leaves nothing of {name}.time, {job.time}")

    def of_job(self, name: str) -> Job:
        """A job with what all have in common: its own names stand in their place, and its own lines are added.

        Args:
            name: preprocess, pretrain or eval.
        """
        job: Job = getattr(self, name)
        return replace(
            job,
            partition=job.partition or self.partition,
            account=job.account or self.account,
            qos=job.qos or self.qos,
            constraint=job.constraint or self.constraint,
            options=[_BLANK.sub(r"\1=", option) for option in (*self.options, *job.options)],
            setup=[*self.setup, *job.setup],
            environment={**self.environment, **job.environment},
        )


def seconds_of(time: str) -> int:
    """A time limit as SLURM writes it.

    Raises:
        ValueError: not one of SLURM's forms.
    """
    found = _TIME.fullmatch(time)
    if not found:
        raise ValueError(f"time {time!r} is not of a form like 90 (minutes), 12:00:00 or 2-00:00:00")
    days, *rest = found.groups()
    numbers = [int(number) for number in rest if number]
    if days is None and len(numbers) < 3:  # minutes first
        numbers = [0, *numbers]
    hours, minutes, seconds = (*numbers, 0, 0)[:3]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def _of_the_file(name: str) -> str | None:
    """The option of a job file that a name is or, as sbatch takes beginnings too, begins."""
    return name if name in _OF_THE_FILE else next((option for option in _OF_THE_FILE if option.startswith(name)), None)


def _check_names(settings: object, *fields: str) -> None:
    """SLURM reads these in lines of its own, where no quotes protect them."""
    for name in fields:
        if not _NAME.fullmatch(value := getattr(settings, name)):
            raise ValueError(f"{name} {value!r} is not a name that SLURM knows; letters, digits and _ . , : + - do")
