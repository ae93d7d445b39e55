"""The partitions of this SLURM cluster, and whether a job fits into one."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from cluster.slurm.settings import Job, seconds_of
from trainer.settings import ConfigError

_FORMAT = "%P|%l|%D|%G"  # name, with * at the default one; time limit; nodes; generic resources
_ROW = re.compile(r"([^|]+)\|([^|]*)\|(\d+)\|(.*)", re.ASCII)
_GPUS = re.compile(r"\bgpu:(?:(?P<kind>[^:(,]+):)?(?P<count>\d+)")


@dataclass(frozen=True)
class NodeGroup:
    """Nodes of a partition that are alike."""

    partition: str
    seconds: float  # limit of a job
    nodes: int
    gpus: dict[str, int]  # of a node, by kind; "" for those of any kind

    def describe(self) -> str:
        """In a few words."""
        limit = "without limit" if self.seconds == float("inf") else f"{self.seconds / 3600:g} h at most"
        gpus = ", ".join(_amount(count, f"{kind} GPU") for kind, count in self.gpus.items() if kind) or (
            _amount(self.gpus.get("", 0), "GPU")
        )
        return f"{self.partition} has {_amount(self.nodes, 'node')} with {gpus}, {limit}"


def read_partitions() -> list[NodeGroup]:
    """Ask SLURM.

    Raises:
        ConfigError: this is no machine of a cluster, or its SLURM does not answer.
    """
    if not shutil.which("sinfo"):
        raise ConfigError("sinfo: not found; launch on a login node of the cluster, or take --on local")
    command = ["sinfo", "--all", "--noheader", f"--format={_FORMAT}"]  # hidden partitions too
    done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")  # noqa: S603  fixed words
    if done.returncode:
        said = done.stderr.strip().rpartition("\n")[2].removeprefix("sinfo: ")
        raise ConfigError(f"sinfo: {said or 'failed'}; is this a login node of the cluster?")
    return parse_partitions(done.stdout)


def parse_partitions(text: str) -> list[NodeGroup]:
    """What sinfo printed in our format; lines of another form are the site's own words."""
    rows = [match.groups() for match in map(_ROW.fullmatch, text.splitlines()) if match]
    return [
        NodeGroup(partition=name.rstrip("*"), seconds=_limit(limit), nodes=int(nodes), gpus=_gpus(resources))
        for name, limit, nodes, resources in rows
    ]


def _limit(told: str) -> float:
    """In seconds; without end for "infinite", "n/a" and whatever else is no time, of which SLURM itself is to judge."""
    try:
        return seconds_of(told)
    except ValueError:
        return float("inf")


def _amount(count: int, what: str) -> str:
    return f"{count or 'no'} {what}{'' if count == 1 else 's'}"


def _gpus(resources: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for match in _GPUS.finditer(resources):
        kind, count = match["kind"] or "", int(match["count"])
        found[kind] = found.get(kind, 0) + count
    return {**found, "": sum(found.values())} if found else {}


def check_fit(groups: Sequence[NodeGroup], job: str, wanted: Job, nodes: int) -> None:
    """See that one of the partitions that a job names can ever run it.

    Args:
        groups: of this cluster.
        job: its name, for messages.
        wanted: where it is to run, with commas between partitions, and what it takes of each node.
        nodes: how many.

    Raises:
        ConfigError: there is no such partition, or none is large enough.
    """
    known = {group.partition for group in groups}
    asked = set(wanted.partition.split(","))
    if unknown := sorted(asked - known):
        raise ConfigError(f"{job}: there is no partition {unknown[0]!r}; this cluster has {', '.join(sorted(known))}")
    if not any(_fits(name, groups, wanted, nodes) for name in asked):
        there = "; ".join(group.describe() for group in groups if group.partition in asked)
        gpus = _amount(wanted.gpus_per_node, f"{wanted.gpu_type} GPU".strip())
        raise ConfigError(f"{job}: needs {_amount(nodes, 'node')} with {gpus} for {wanted.time}, but {there}")


def _fits(name: str, groups: Sequence[NodeGroup], wanted: Job, nodes: int) -> bool:
    able = [
        group.nodes
        for group in groups
        if group.partition == name
        and group.seconds >= wanted.seconds
        and group.gpus.get(wanted.gpu_type, 0) >= wanted.gpus_per_node
    ]
    return sum(able) >= nodes
