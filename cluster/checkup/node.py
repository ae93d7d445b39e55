"""A node by itself: versions, GPUs, compiler, limits, shared memory, threads."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, metadata, requires
from pathlib import Path

import psutil
import torch
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from cluster.checkup.asking import ask
from cluster.checkup.findings import Finding, judge
from preprocessing.status import entries
from trainer.lineage import installed_version

_PROJECT = "bert-pretraining"
_SHOWN = ("torch", "deepspeed")  # the others are named where they are not right
_INFINIBAND = Path("/sys/class/infiniband")
_VERBS = "libibverbs.so.1"
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  that is what is looked at
_CONTAINER = Path("/sys/fs/cgroup")  # its own limits, in a container
_OPEN_FILES = {"wrong": 1024, "warning": 4096}
_NO_DEVICES = "No devices were found"  # nvidia-smi's words, and exit code 6, where SLURM hides them from a job
_BUSY_MEMORY = 0.05  # of a GPU, in use by somebody else
_GPU_FIELDS = (
    "name",
    "driver_version",
    "memory.total",
    "memory.used",
    "ecc.errors.uncorrected.volatile.total",
    "clocks_throttle_reasons.hw_slowdown",
    "temperature.gpu",
)


def check_node(environment: Mapping[str, str]) -> Iterator[Finding]:
    """All checks of a node.

    Args:
        environment: with a launcher's LOCAL_WORLD_SIZE, if any.
    """
    yield check_python()
    yield from check_packages()
    yield from check_gpus()
    yield check_compiler()
    yield from check_limits()
    yield check_shared_memory()
    yield check_threads(environment)


def check_python() -> Finding:
    """The interpreter itself, and the processor."""
    wanted = SpecifierSet(_wanted_python())
    return judge(
        "python",
        f"Python {platform.python_version()}, {platform.machine()}, {_cores()} cores",
        f"The project needs {wanted}.",
        wrong=not wanted.contains(platform.python_version(), prereleases=True),
    )


def _wanted_python() -> str:
    try:
        return str(metadata(_PROJECT)["Requires-Python"] or "")
    except PackageNotFoundError:  # which check_packages tells
        return ""


def check_packages() -> Iterator[Finding]:
    """Installed versions against those that the project asks for."""
    try:
        wanted = [Requirement(line) for line in requires(_PROJECT) or ()]
    except PackageNotFoundError:
        yield Finding(
            "packages", "wrong", f"{_PROJECT} is not installed", "Install the project: pip install -e . in its root."
        )
        return
    base = [requirement for requirement in wanted if requirement.marker is None or requirement.marker.evaluate()]
    problems = [problem for requirement in base if (problem := _mismatch(requirement))]
    shown = ", ".join(f"{name} {installed_version(name) or 'missing'}" for name in _SHOWN)
    yield judge(
        "packages",
        "; ".join(problems) or shown,
        "Install the project's own versions on every node, best in one environment that all nodes see.",
        wrong=bool(problems),
    )


def _mismatch(requirement: Requirement) -> str:
    installed = installed_version(requirement.name)
    if installed is None:
        return f"{requirement.name} is missing"
    if not requirement.specifier.contains(installed, prereleases=True):
        return f"{requirement.name} is {installed}, not {requirement.specifier}"
    return ""


def check_gpus() -> Iterator[Finding]:
    """What nvidia-smi and PyTorch say of the GPUs."""
    smi = shutil.which("nvidia-smi")
    visible = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if smi is None:
        found = f"{visible} by PyTorch, no nvidia-smi" if visible else "none"
        yield judge("gpus", found, "Without GPUs ranks run on the CPU: for tests only.", warning=not visible)
        return
    try:
        lines = ask([smi, f"--query-gpu={','.join(_GPU_FIELDS)}", "--format=csv,noheader,nounits"]).splitlines()
    except (OSError, subprocess.SubprocessError) as error:
        reason = _reason(error)
        none = "No GPU is given to this job: ask for them (--gpus-per-node, --gres)."
        advice = none if reason == _NO_DEVICES else "The driver does not answer: restart the node."
        yield Finding("gpus", "wrong", f"nvidia-smi fails ({reason})", advice)
        return
    rows = [[word.strip() for word in line.split(",")] for line in lines]
    if unknown := next((line for line, row in zip(lines, rows, strict=True) if len(row) != len(_GPU_FIELDS)), None):
        yield Finding(
            "gpus",
            "wrong",
            f"nvidia-smi says {unknown.strip()[:200]!r}",
            "Look at `nvidia-smi` yourself; its driver may be broken.",
        )
        return
    yield from _check_gpus([dict(zip(_GPU_FIELDS, row, strict=True)) for row in rows], visible)


def _check_gpus(gpus: list[dict[str, str]], visible: int) -> Iterator[Finding]:
    names = sorted({f"{gpu['name']}, {_number(gpu['memory.total']) / 1024:.0f} GiB" for gpu in gpus})
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    expected = len(gpus) if chosen is None else min(len(gpus), len(chosen.split(",")))
    yield judge(
        "gpus",
        f"{len(gpus)} x {' and '.join(names)}"
        + ("" if visible == len(gpus) else f", PyTorch sees {visible}")
        + ("" if visible else f" ({_why_none()})"),
        "PyTorch and the driver do not fit together, or the job was not given GPUs: ask for them (--gres), and install "
        "a PyTorch for this driver's CUDA. Error 802: nvidia-fabricmanager does not run on this node.",
        wrong=not visible,
        warning=len(names) > 1 or visible < expected,
    )
    driver = gpus[0]["driver_version"] if gpus else "none"
    nccl: tuple[int, ...] | None = torch.cuda.nccl.version() if visible else None  # type: ignore[no-untyped-call]
    yield judge(
        "cuda",
        f"driver {driver}, CUDA {torch.version.cuda}, NCCL {'.'.join(map(str, nccl)) if nccl else 'none'}",
        "NCCL before 2.29.3 may hang on this processor without an error (nccl #2353): install torch 2.12 or later.",
        warning=nccl is not None and nccl < (2, 29, 3) and platform.machine() == "aarch64",
    )
    errors = [i for i, gpu in enumerate(gpus) if _number(gpu["ecc.errors.uncorrected.volatile.total"]) > 0]
    slow = [i for i, gpu in enumerate(gpus) if gpu["clocks_throttle_reasons.hw_slowdown"] == "Active"]
    busy = [
        i for i, gpu in enumerate(gpus) if _number(gpu["memory.used"]) > _BUSY_MEMORY * _number(gpu["memory.total"])
    ]
    words = [
        f"GPU {', '.join(map(str, places))} {what}"
        for places, what in (
            (errors, "has memory errors that were not corrected"),
            (slow, "is slowed down by its hardware"),
            (busy, "has memory in use"),
        )
        if places
    ]
    yield judge(
        "gpu health",
        "; ".join(words) or f"no errors, at most {max((_number(g['temperature.gpu']) for g in gpus), default=0):.0f} C",
        "Memory errors: take the node out. Slowed down: look at power and cooling. In use: another job is there.",
        wrong=bool(errors),
        warning=bool(slow or busy),
    )


def _why_none() -> str:
    """What keeps PyTorch from GPUs, in its own words: of several kinds of trouble no other program tells which."""
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:  # the latter where it is built without CUDA
        return str(error).partition("\n")[0][:200]
    return "no reason is given"


def _number(text: str) -> float:
    """0 for what a GPU does not tell, such as [N/A]."""
    try:
        return float(text)
    except ValueError:
        return 0.0


def check_compiler() -> Finding:
    """What torch.compile and Triton make kernels with."""
    named = os.environ.get("CC")  # what Triton looks for, and in this order
    compiler = next(filter(None, map(shutil.which, [named] if named else ["gcc", "clang"])), None)
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    missing = [name for name, there in (("C compiler", compiler), ("Python.h", header.is_file())) if not there]
    return judge(
        "compiler",
        f"no {', no '.join(missing)}" if missing else f"{compiler}, Python.h",
        "Only train.compile and train.fused need it: install gcc and python3-dev.",
        warning=bool(missing),
    )


def check_limits() -> Iterator[Finding]:
    """Open files, memory that adapters may pin, their library, and stacks."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield judge(
        "open files",
        _limit(files, 1, ""),
        "Shards, loader workers and sockets need more: ulimit -n 65536 in the job, or in /etc/security/limits.conf.",
        wrong=0 <= files < _OPEN_FILES["wrong"],
        warning=0 <= files < _OPEN_FILES["warning"],
    )
    pinned, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    adapters = [path.name for path in entries(_INFINIBAND)]
    yield judge(
        "locked memory",
        _limit(pinned, 2**20, " MiB") + (f", adapters {', '.join(adapters)}" if adapters else ", no InfiniBand"),
        "InfiniBand pins its buffers: ulimit -l unlimited, by LimitMEMLOCK=infinity in the service of SLURM's slurmd, "
        "or of Kubernetes' containerd.",
        wrong=bool(adapters) and pinned != resource.RLIM_INFINITY,
    )
    if adapters:
        yield check_verbs(adapters)
    stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    yield judge(
        "stack",
        _limit(stack, 2**20, " MiB"),
        "Threads get this much each; set what is usual: ulimit -s 8192.",
        warning=stack != resource.RLIM_INFINITY and not 2**20 <= stack <= 2**30,
    )


def check_verbs(adapters: list[str]) -> Finding:
    """The library by which NCCL, which loads it when it starts, reaches a node's InfiniBand or RoCE adapters."""
    try:
        ctypes.CDLL(_VERBS)
    except OSError as error:
        reason = str(error)
    else:
        reason = ""
    return judge(
        "rdma",
        f"no {_VERBS} for {', '.join(adapters)} ({reason})" if reason else _VERBS,
        "NCCL takes TCP without a word: install libibverbs1, ibverbs-providers and librdmacm1 (Debian), on the node or "
        "in the image.",
        wrong=bool(reason),
    )


def _limit(value: int, unit: int, name: str) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else f"{value // unit:,}{name}"


def check_shared_memory() -> Finding:
    """Where NCCL hands things over within a node; loader workers have no more than their locks there."""
    wrong, low = (128 * 2**20, 2**30) if torch.cuda.is_available() else (2**20, 2**20)
    try:
        space = shutil.disk_usage(_SHARED_MEMORY)
    except OSError as error:
        return Finding("shared memory", "wrong", f"no {_SHARED_MEMORY} ({error.strerror})", "Mount a tmpfs there.")
    return judge(
        "shared memory",
        f"{space.free / 2**30:.2f} of {space.total / 2**30:.2f} GiB free in {_SHARED_MEMORY}",
        "NCCL and loader workers need it: docker --shm-size=8g; in Kubernetes an emptyDir of medium Memory there.",
        wrong=space.free < wrong,
        warning=space.free < low,
    )


def check_threads(environment: Mapping[str, str]) -> Finding:
    """OMP_NUM_THREADS against the cores that the ranks of a node share."""
    cores = _cores()
    local = environment.get("LOCAL_WORLD_SIZE", "")
    ranks = int(local) if local.isdecimal() and int(local) else 1
    text = environment.get("OMP_NUM_THREADS", "")
    fair = max(1, cores // ranks)
    found = f"OMP_NUM_THREADS is {text or 'not set'}; {cores} cores, {_memory() / 2**30:.0f} GiB"
    if not text.isdecimal() or not int(text):
        advice = f"Results depend on it in their last bits: export OMP_NUM_THREADS={fair}, on every node the same."
        return Finding("threads", "warning", found, advice)
    return judge(
        "threads",
        f"{found}, {ranks} rank(s)",
        f"The ranks of this node want more threads than it has cores: export OMP_NUM_THREADS={fair}.",
        warning=int(text) > fair,
    )


def _cores() -> int:
    """Those that this process is bound to; in a container no more than it has time of."""
    bound = len(os.sched_getaffinity(0))
    time, *period = _limit_of_container("cpu.max")
    return bound if time == "max" else min(bound, max(1, int(time) // int(period[0])))


def _memory() -> int:
    """Bytes that there are, or that a container may have of them."""
    there = psutil.virtual_memory().total
    most = _limit_of_container("memory.max")[0]
    return there if most == "max" else min(there, int(most))


def _limit_of_container(name: str) -> list[str]:
    """The words of a file of cgroup version 2; a machine itself has none."""
    try:
        return (_CONTAINER / name).read_text().split()
    except OSError:
        return ["max"]


def _reason(error: Exception) -> str:
    """The first line that a program left."""
    if isinstance(error, subprocess.CalledProcessError):
        said: str = error.stdout + error.stderr
        return said.strip().partition("\n")[0] or f"exit code {error.returncode}"
    return str(error)
