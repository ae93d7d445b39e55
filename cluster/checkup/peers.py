"""Ranks together: do they find each other and see the same files, do clocks agree, and what does the network give."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed

from cluster.checkup.asking import ask
from cluster.checkup.findings import Finding, Placed, judge
from cluster.checkup.speed import judge_speeds, measure_speeds
from cluster.checkup.storage import advice_for, remove, write_synced
from cluster.slurm.rank import rank_environment
from preprocessing.terminal import counted
from trainer.lineage import environment, unlike
from trainer.world import World

_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_PORTS = 20_000, 10_000  # SLURM jobs take one of so many, from here on
_SLOW_NAME = 2.0  # seconds
_CLOCK = {"warning": 1.0, "wrong": 30.0}  # seconds of difference
_EXCHANGES = 5
_LATE_FILE = 1.0  # seconds until a file is seen elsewhere
_MISSING_FILE = 15.0
# Bytes of an all-reduce, and GB/s below which something is not as it should be.
_SIZES = {"nccl": 256 << 20, "gloo": 16 << 20}
_SLOW = {("nccl", True): 20.0, ("nccl", False): 10.0, ("gloo", True): 0.1, ("gloo", False): 0.1}  # (backend, one host)
_ROUNDS = 5


class UsageError(Exception):
    """A launcher's variables that don't make sense. The message says which."""


@dataclass(frozen=True)
class Peers(World):
    """The ranks, and the host of each."""

    hosts: list[str]

    @property
    def one_host(self) -> bool:
        """Whether all are on one machine."""
        return len(set(self.hosts)) == 1


def read_launch(environment: Mapping[str, str]) -> dict[str, str] | None:
    """The variables that a launcher gives a rank, from torchrun's names or SLURM's; None for one that has no others.

    Raises:
        UsageError: some are there and others are not, or are not numbers.
    """
    if "RANK" not in environment and "WORLD_SIZE" not in environment:
        if environment.get("SLURM_STEP_NUM_TASKS", "1") == "1":
            return None  # not of SLURM_NTASKS, which are all of the job, in a batch script and salloc's shell too
        try:
            environment = {**environment, **rank_environment(environment), **_slurm_meeting(environment)}
        except (KeyError, ValueError, ZeroDivisionError) as error:
            raise UsageError(
                f"SLURM's variables are not those of a task ({error}); start this by srun within a job, or give --alone"
            ) from error
    launch = {name: environment.get(name, "") for name in (*_VARIABLES, "LOCAL_WORLD_SIZE")}
    launch["LOCAL_RANK"] = launch["LOCAL_RANK"] or "0"
    launch["LOCAL_WORLD_SIZE"] = launch["LOCAL_WORLD_SIZE"] or "1"
    missing = [name for name, value in launch.items() if not value]
    if missing:
        raise UsageError(f"{', '.join(missing)} must be set beside RANK; or give --alone to check this node by itself")
    numbers = [value for name, value in launch.items() if name != "MASTER_ADDR"]
    if not all(number.isdecimal() for number in numbers) or int(launch["RANK"]) >= int(launch["WORLD_SIZE"]):
        raise UsageError(
            "RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE and MASTER_PORT must be numbers, and RANK below WORLD_SIZE"
        )
    if not 0 < int(launch["MASTER_PORT"]) < 1 << 16:
        raise UsageError(f"MASTER_PORT {launch['MASTER_PORT']} must be from 1 to 65535")
    return launch if int(launch["WORLD_SIZE"]) > 1 else None


def _slurm_meeting(environment: Mapping[str, str]) -> dict[str, str]:
    """Where the tasks of a job step meet: as is given, or else on its first node, and at a port of the job's own."""
    first, count = _PORTS
    job = int(environment.get("SLURM_JOB_ID", "0")) + 97 * int(environment.get("SLURM_STEP_ID", "0"))
    return {
        "MASTER_ADDR": environment.get("MASTER_ADDR") or _first_node(environment),
        "MASTER_PORT": environment.get("MASTER_PORT") or str(first + job % count),
    }


def _first_node(environment: Mapping[str, str]) -> str:
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
    try:
        told = ask(["scontrol", "show", "hostnames", nodes])
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"scontrol doesn't say which nodes {nodes!r} are ({error}); set MASTER_ADDR") from error
    if not (names := told.split()):
        raise UsageError(f"scontrol names no node for {nodes!r}; set MASTER_ADDR")
    return names[0]


def check_names(launch: Mapping[str, str]) -> Iterator[Finding]:
    """Whether the meeting place and this node's own name lead somewhere, and how fast."""
    address = launch["MASTER_ADDR"]
    began = time.monotonic()
    try:
        places = sorted({str(info[4][0]) for info in socket.getaddrinfo(address, int(launch["MASTER_PORT"]))})
    except (OSError, UnicodeError) as error:  # the second of what can't be a name
        why = error.strerror if isinstance(error, OSError) else error
        yield Finding(
            "names", "wrong", f"MASTER_ADDR {address} does not resolve here ({why})",
            "Give an address, or a name that DNS or /etc/hosts knows on every node.",
        )  # fmt: skip
        return
    seconds = time.monotonic() - began
    yield judge(
        "names",
        f"MASTER_ADDR {address} is {', '.join(places)}" + (f", after {seconds:.0f} s" if seconds > 1 else ""),
        "Look-ups are slow, and every start makes many: mend DNS, or put the nodes into /etc/hosts.",
        warning=seconds > _SLOW_NAME,
    )


@contextmanager
def joined(launch: Mapping[str, str], patience: float) -> Iterator[Peers]:
    """Meet the other ranks.

    Raises:
        RuntimeError: they were not all there in time. (Its kinds are torch's own.)
    """
    os.environ.update(launch)
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(launch["LOCAL_RANK"]) % torch.cuda.device_count())
    distributed.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=timedelta(seconds=patience))
    try:
        world = World(distributed.get_rank(), distributed.get_world_size(), torch.device("cuda" if cuda else "cpu"))
        yield Peers(world.rank, world.size, world.device, world.gather(socket.gethostname()))
    finally:
        distributed.destroy_process_group()


def check_peers(peers: Peers, shared: Path | None, clock: Callable[[], float] = time.time) -> Iterator[Finding]:
    """All checks that take every rank; each yields what it has found itself."""
    lacking = {host for host, has in zip(peers.hosts, peers.gather(torch.cuda.is_available()), strict=True) if not has}
    yield from check_environments(peers)
    if lacking and lacking != {*peers.hosts}:  # their ranks would wait for one another in different collectives
        if peers.rank == 0:
            found = f"no CUDA on {', '.join(sorted(lacking))}, but on other nodes"
            yield Finding("same devices", "wrong", found, "See `gpus` of these nodes; no speed was measured.")
    else:
        yield from check_speed(peers)
        yield from check_bandwidth(peers, "gloo" if lacking else "nccl")
    yield from check_clocks(peers, clock)
    if shared is not None and (finding := check_visibility(peers, shared)):
        yield finding


def check_environments(peers: Peers) -> Iterator[Finding]:
    """Each rank's code and libraries against the first one's, without which no training begins."""
    first, *others = peers.gather(environment())
    if peers.rank:
        return
    apart = {
        f"{host}: {'; '.join(differing)}"
        for host, other in zip(peers.hosts[1:], others, strict=True)
        if (differing := unlike(other, first))
    }
    yield judge(
        "same versions",
        ", ".join(sorted(apart)) or "all ranks have the same code and libraries",
        "Let all nodes have the same code and libraries, best in one environment that all of them see.",
        wrong=bool(apart),
    )


def check_speed(peers: Peers) -> Iterator[Finding]:
    """All ranks measure at once, so that what they share, power above all, counts; the first one tells."""
    host = peers.hosts[peers.rank]
    mine = measure_speeds(peers.hosts[: peers.rank].count(host), peers.hosts.count(host), f" of {host}")
    gathered = peers.gather(mine)
    if peers.rank == 0:
        yield judge_speeds([speed for own in gathered for speed in own])


def check_bandwidth(peers: Peers, backend: str) -> Iterator[Finding]:
    """Sum a large tensor over all ranks; the first rank tells how fast, as nccl-tests count (bus bandwidth)."""
    size = _SIZES[backend]
    device = "cuda" if backend == "nccl" else "cpu"
    values = torch.ones(size // 4, device=device)
    distributed.all_reduce(values)  # the first one opens connections
    right = all(peers.gather(bool((values == peers.size).all())))
    seconds = []
    for _ in range(_ROUNDS):
        distributed.barrier()
        began = time.monotonic()
        distributed.all_reduce(values)
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.monotonic() - began)
    if peers.rank:
        return
    speed = 2 * (peers.size - 1) / peers.size * size / min(seconds) / 1e9
    yield judge(
        "all-reduce",
        f"{speed:.2f} GB/s over {backend}, {peers.size} ranks on {counted(len(set(peers.hosts)), 'host')}"
        + ("" if right else ", a WRONG sum"),
        "NCCL_DEBUG=INFO says what it goes over. Sockets where InfiniBand was meant want NCCL_IB_HCA and locked "
        "memory; for the wrong interface set NCCL_SOCKET_IFNAME, or GLOO_SOCKET_IFNAME.",
        wrong=not right,
        warning=speed < _SLOW[backend, peers.one_host],
    )


def check_clocks(peers: Peers, clock: Callable[[], float] = time.time) -> Iterator[Finding]:
    """By how much clocks differ from the first rank's: half a round trip is the error, the shortest one counts."""
    mine = 0.0
    for other in range(1, peers.size):
        if peers.rank == 0:
            _tell_time(other, clock)
        elif peers.rank == other:
            mine = _ask_time(clock)
    offsets = peers.gather(mine)
    if peers.rank:
        return
    farthest = max(range(peers.size), key=lambda rank: abs(offsets[rank]))
    worst = abs(offsets[farthest])
    yield judge(
        "clocks",
        f"{worst:.3f} s apart at most" + (f", {peers.hosts[farthest]}" if worst > _CLOCK["warning"] else ""),
        "Let chrony or ntpd run on every node: times of files and logs do not compare.",
        wrong=worst > _CLOCK["wrong"],
        warning=worst > _CLOCK["warning"],
    )


def _tell_time(other: int, clock: Callable[[], float]) -> None:
    for _ in range(_EXCHANGES):
        distributed.recv(torch.empty(1, dtype=torch.float64), src=other)
        distributed.send(torch.tensor([clock()], dtype=torch.float64), dst=other)


def _ask_time(clock: Callable[[], float]) -> float:
    """This rank's clock minus the first one's."""
    measured = []
    for _ in range(_EXCHANGES):
        theirs = torch.empty(1, dtype=torch.float64)
        sent = clock()
        distributed.send(torch.zeros(1, dtype=torch.float64), dst=0)
        distributed.recv(theirs, src=0)
        received = clock()
        measured.append((received - sent, (sent + received) / 2 - float(theirs)))
    return min(measured)[1]


def check_visibility(peers: Peers, directory: Path) -> Finding | None:
    """The first rank of each host writes a file and looks for those of the others; None on other ranks."""
    name = peers.gather(uuid.uuid4().hex if peers.rank == 0 else None)[0]
    writers = [peers.hosts.index(host) for host in dict.fromkeys(peers.hosts)]
    is_writer = peers.rank in writers
    failure = _leave_file(directory, name, peers.rank) if is_writer else None
    failures = peers.gather(failure)
    written = [rank for rank in writers if failures[rank] is None]
    seconds, unseen = _look_for(directory, name, written) if is_writer else (0.0, [])
    peers.gather(None)  # nothing is removed before all have looked
    if not is_writer:
        return None
    remove(_file(directory, name, peers.rank))
    if failure is not None:
        return failure
    others = sorted({peers.hosts[rank] for rank in unseen})
    return judge(
        "shared files",
        f"{directory}: files of {', '.join(others)} are not seen"
        if others
        else f"{directory}: all nodes see each other's files" + (f", after {seconds:.0f} s" if seconds > 1 else ""),
        "It is not one file system on all nodes: mount the same one everywhere, at the same place."
        if others
        else "Files are seen late, by a cache of attributes (NFS: mount with actimeo=1 or noac).",
        wrong=bool(others),
        warning=seconds > _LATE_FILE,
    )


def _leave_file(directory: Path, name: str, rank: int) -> Finding | None:
    path = _file(directory, name, rank)
    try:
        write_synced(path.with_suffix(".new"), str(rank).encode())
        path.with_suffix(".new").replace(path)
    except OSError as error:
        remove(path.with_suffix(".new"))
        return Finding("shared files", "wrong", f"{directory}: {error.strerror}", advice_for(error))
    return None


def _look_for(directory: Path, name: str, ranks: list[int]) -> tuple[float, list[int]]:
    """Seconds until the look that found the files of these ranks began, and those whose were not found.

    How long a look takes, at the files of many ranks, does not count: it tells nothing of when they could be seen.
    """
    began, seconds, unseen = time.monotonic(), 0.0, list(ranks)
    while unseen := [rank for rank in unseen if not _is_there(_file(directory, name, rank), rank)]:
        if seconds >= _MISSING_FILE:
            break
        time.sleep(0.05)
        seconds = time.monotonic() - began
    return seconds, unseen


def _is_there(path: Path, rank: int) -> bool:
    try:
        return path.read_bytes() == str(rank).encode()
    except OSError:
        return False


def _file(directory: Path, name: str, rank: int) -> Path:
    return directory / f".doctor-{name}-{rank:05d}"


def collect(peers: Peers, findings: list[Finding]) -> list[Placed]:
    """All ranks' findings, on every rank."""
    gathered = peers.gather(findings)
    return compare_gpus([(host, finding) for host, own in zip(peers.hosts, gathered, strict=True) for finding in own])


def compare_gpus(placed: Sequence[Placed]) -> list[Placed]:
    """The same, with a warning for nodes whose GPUs are well by themselves but not those of most nodes."""
    well = [finding.found for _, finding in placed if finding.check == "gpus" and finding.state == "ok"]
    usual = max(well, key=well.count, default="")
    advice = (
        "All nodes get as many ranks: where a GPU is missing see what became of it (dmesg), or leave that node out. Of "
        "several kinds all wait for the slowest."
    )
    return [
        (host, Finding("gpus", "warning", f"{finding.found}, and {usual} elsewhere", advice))
        if finding.check == "gpus" and finding.state == "ok" and finding.found != usual
        else (host, finding)
        for host, finding in placed
    ]
