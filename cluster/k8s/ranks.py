"""The ranks of one node: what a training Pod runs.

    python -m cluster.k8s.ranks --run=RUN -- -m trainer.pretrain --config=... --output=RUN

Reads torchrun's variables, which Kubeflow's TrainJob sets and our other manifests too: PET_NNODES, PET_NPROC_PER_NODE,
PET_NODE_RANK, PET_MASTER_ADDR, PET_MASTER_PORT; and CPUS, the cores that the node's ranks share. It is not torchrun,
which makes every exit code 1, kills its ranks 30 s after SIGTERM, waits 300 s at the end for nodes that are gone, and
lets a Pod that was made anew join the round of the old one.

SIGTERM and SIGUSR1 go to the ranks, which then write a checkpoint. A rank that fails leaves the others a minute to end.
The exit code says what is to be done with the Pod:

    0    the run is done
    2    a mistake in the command: don't start it again
    10   stopped by a signal, with a checkpoint: start it again
    11   failed in a way that would recur, such as a NaN or infinite loss: don't
    else the code of the rank that failed first, or 128 + the signal that ended it: start it again
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from preprocessing.command_line import OneLineParser
from trainer.outcome import EXIT_CODES, MISTAKE
from trainer.run_directory import RunDirectory

PATIENCE = 60  # seconds that ranks have to end after one of them failed, and that the outcome has to appear
DONE, REQUEUE, FAILED = (EXIT_CODES[word] for word in ("done", "requeue", "failed"))


@dataclass(frozen=True)
class Node:
    """A node's place among the others."""

    nodes: int
    rank: int
    processes: int
    address: str
    port: int
    cpus: int | None

    def environment(self, local_rank: int) -> dict[str, str]:
        """What a launcher tells one of its ranks."""
        threads = {} if self.cpus is None else {"OMP_NUM_THREADS": str(max(1, self.cpus // self.processes))}
        return {
            **threads,
            "RANK": str(self.rank * self.processes + local_rank),
            "WORLD_SIZE": str(self.nodes * self.processes),
            "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(self.processes),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
        }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the node's ranks to their end; the exit code is told above."""
    parser = OneLineParser(prog="python -m cluster.k8s.ranks", description="Run a node's ranks.")
    parser.add_argument("--run", type=Path, required=True, metavar="DIR", help="the run directory, for its outcome")
    parser.add_argument("command", nargs="+", metavar="-- ...", help="what Python runs: -m trainer.pretrain ARGUMENTS")
    arguments = parser.parse_args(argv)
    try:
        node = read_node(os.environ)
    except ValueError as error:
        parser.error(str(error))
    earlier = _outcome_file(arguments.run)
    failure = run_ranks(node, [sys.executable, *arguments.command])
    return pod_exit_code(failure, arguments.run, earlier)


def read_node(environment: Mapping[str, str]) -> Node:
    """This node by torchrun's variables.

    Raises:
        ValueError: one is missing or is not a number.
    """

    def number(name: str) -> int:
        text = environment.get(name, "")
        if not text.isdecimal():
            raise ValueError(f"{name} is {text!r}, not a number; cluster/k8s/base/pretrain sets it, or a TrainJob does")
        return int(text)

    node = Node(
        nodes=number("PET_NNODES"),
        rank=number("PET_NODE_RANK"),
        processes=number("PET_NPROC_PER_NODE"),
        address=environment.get("PET_MASTER_ADDR", ""),
        port=number("PET_MASTER_PORT"),
        cpus=number("CPUS") if "CPUS" in environment and "OMP_NUM_THREADS" not in environment else None,
    )
    if not node.address or not node.processes or node.rank >= node.nodes:
        raise ValueError(f"these don't describe a node: {node}")
    return node


def run_ranks(node: Node, command: list[str]) -> int | None:
    """Start the ranks and wait for all of them.

    Returns:
        The exit code of the one that failed first, 128 + the signal for one that was killed; None where none failed.
    """
    ranks: set[int] = set()

    def tell(number: int, _: object = None) -> None:
        for pid in ranks:
            with contextlib.suppress(ProcessLookupError):  # ended a moment ago
                os.kill(pid, number)

    # Blocked while ranks are started: none is to miss a signal. The ranks inherit that, and in them they stay so until
    # the trainer takes them, as a signal that comes while it still imports would kill it.
    signals = {signal.SIGTERM, signal.SIGUSR1}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    for number in signals:
        signal.signal(number, tell)
    signal.signal(signal.SIGALRM, lambda *_: tell(signal.SIGKILL))
    for local_rank in range(node.processes):
        environment = {**os.environ, **node.environment(local_rank)}
        ranks.add(os.posix_spawn(command[0], command, environment))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)

    first_failure = None
    while ranks:
        pid, status = os.wait()  # an orphan of a rank too, in Pods of others that lack our shareProcessNamespace
        if pid not in ranks:
            continue
        ranks.remove(pid)
        code = os.waitstatus_to_exitcode(status)
        if code and first_failure is None:
            first_failure = code if code > 0 else 128 - code
            signal.alarm(PATIENCE)
    signal.alarm(0)
    return first_failure


def pod_exit_code(failure: int | None, run: Path, earlier: tuple[int, str] | None = None) -> int:
    """What the Pod's end means, by the ranks' exit codes and the outcome that the run's first rank wrote.

    Args:
        failure: of the ranks.
        run: the run directory.
        earlier: its outcome's file at the start. The trainer removes it only when all ranks have found each other, so
            that until then it may be an earlier start's "failed".
    """
    if failure == MISTAKE:
        return MISTAKE
    if failure is not None:
        return FAILED if read_outcome(run) == FAILED and _outcome_file(run) != earlier else failure
    deadline = time.monotonic() + PATIENCE  # the first rank, in another Pod perhaps, ends a moment later
    while (outcome := read_outcome(run)) not in (DONE, REQUEUE) and time.monotonic() < deadline:
        time.sleep(1)
    return outcome


def read_outcome(run: Path) -> int:
    """How a run ended, as trainer.outcome's exit code."""
    return EXIT_CODES[RunDirectory(run).ending or "crashed"]


def _outcome_file(run: Path) -> tuple[int, str] | None:
    """When the outcome was written, and what: two of them may say the same. None where there is none."""
    try:
        with RunDirectory(run).outcome_file.open(encoding="utf-8") as file:  # opened: NFS then looks what is new
            return os.fstat(file.fileno()).st_mtime_ns, file.read()
    except FileNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())
