"""Look at a node, and at the network and files between nodes, before training on them.

    python -m cluster.doctor --shared /shared/runs
    srun --nodes=2 --ntasks-per-node=1 --gpus-per-node=8 python -m cluster.doctor --shared /shared/runs
    torchrun --nnodes=2 --nproc-per-node=8 ... -m cluster.doctor --shared /shared/runs

Alone it checks one node. As ranks, of torchrun, SLURM or anything that sets RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT, it checks each node and what is between them, and the first rank prints it all. Exit code: 0, 1 where
something is wrong, 2 for a mistake in how this was called, or where its findings can't be printed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence

from cluster.checkup.findings import Finding, Placed, table
from cluster.checkup.kernels import check_kernels
from cluster.checkup.node import check_node
from cluster.checkup.peers import UsageError, check_names, check_peers, collect, joined, read_launch
from cluster.checkup.speed import judge_speeds, measure_speeds
from cluster.checkup.storage import check_space, check_writing
from preprocessing.command_line import OneLineParser, number, parse_path
from preprocessing.terminal import print_result, tell_error

NEED_GB = 50.0  # of a run, where nothing is said
_positive = number("a number above 0 and up to 1e9", lambda found: 0 < found <= 1e9)


def main(argv: Sequence[str] | None = None) -> int:
    """Check and print; the exit code is told above."""
    arguments = _parse(argv)
    try:
        launch = None if arguments.alone else read_launch(os.environ)
    except UsageError as error:
        tell_error(error)
        return 2
    found = list(_check_alone(arguments, launch))
    placed = [(socket.gethostname(), finding) for finding in found]
    prints = launch is None or launch["LOCAL_RANK"] == "0"
    if launch is not None and not any(finding.check == "names" and finding.state == "wrong" for finding in found):
        placed, prints = _check_together(arguments, launch, found)
    lost = _print(placed, arguments.json) if prints else 0
    return lost or int(any(finding.state == "wrong" for _, finding in placed))


def _check_alone(arguments: argparse.Namespace, launch: Mapping[str, str] | None) -> Iterator[Finding]:
    """What takes no other rank, by the first rank of a node only."""
    if launch is None or launch["LOCAL_RANK"] == "0":
        yield from check_node({**os.environ, **(launch or {})})
        yield from check_kernels()
        if arguments.shared is not None:
            yield check_space(arguments.shared, (arguments.need_gb or NEED_GB) * 1e9)
            yield check_writing(arguments.shared)
    if launch is None:
        yield judge_speeds(measure_speeds())
    else:
        yield from check_names(launch)


def _check_together(
    arguments: argparse.Namespace, launch: Mapping[str, str], found: list[Finding]
) -> tuple[list[Placed], bool]:
    """Everybody's findings, and whether this rank is to print them."""
    try:
        with joined(launch, arguments.patience) as peers:
            found += check_peers(peers, arguments.shared)
            return collect(peers, found), peers.rank == 0
    except RuntimeError as error:  # torch's own kinds are of it
        reason = str(error).partition("\n")[0][:200]
        place = f"{launch['MASTER_ADDR']}:{launch['MASTER_PORT']}"
        advice = (
            f"Start all of them; let {place} be reached from every node (firewall, interface: GLOO_SOCKET_IFNAME, "
            "NCCL_SOCKET_IFNAME)."
        )
        found.append(Finding("ranks", "wrong", f"{launch['WORLD_SIZE']} ranks don't come together ({reason})", advice))
        return [(socket.gethostname(), finding) for finding in found], launch["LOCAL_RANK"] == "0"


def _print(placed: Sequence[Placed], as_json: bool) -> int:
    if as_json:
        rows = [{"host": host, **dataclasses.asdict(finding)} for host, finding in placed]
        return print_result(json.dumps(rows, indent=2))
    well = {finding.state for _, finding in placed} == {"ok"}
    return print_result("\n".join([*table(placed), *(["All is well."] if well else [])]))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = OneLineParser(
        prog="python -m cluster.doctor", description="Check a node, or several as ranks of a launcher."
    )
    parser.add_argument(
        "--shared", type=parse_path, metavar="DIR", help="where runs are to be, on a file system of all nodes"
    )
    parser.add_argument(
        "--need-gb", type=_positive, metavar="GB", help=f"a run writes into --shared (default {NEED_GB:g})"
    )
    parser.add_argument("--alone", action="store_true", help="check this node by itself, whatever a launcher has set")
    parser.add_argument(
        "--patience", type=_positive, default=120.0, metavar="S", help="to wait for other ranks (default %(default)g)"
    )
    parser.add_argument("--json", action="store_true", help="print findings as JSON")
    arguments = parser.parse_args(argv)
    if arguments.need_gb and arguments.shared is None:
        parser.error("--need-gb: in which folder? name it by --shared")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
