"""Start a program as one rank of a SLURM job step: what torchrun or deepspeed would set, from what SLURM tells.

    srun python -m cluster.slurm.rank trainer/pretrain.py --config ...

One process per GPU and no launcher between SLURM and the ranks, so that signals and exit codes arrive. MASTER_ADDR and
MASTER_PORT come from the job file, which knows the first node.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from preprocessing.terminal import tell_error


def rank_environment(slurm: Mapping[str, str]) -> dict[str, str]:
    """The variables of a rank.

    Args:
        slurm: the environment of a task that srun started.

    Raises:
        KeyError: srun did not start it.
    """
    return {
        "RANK": slurm["SLURM_PROCID"],
        "LOCAL_RANK": slurm["SLURM_LOCALID"],
        "WORLD_SIZE": slurm["SLURM_STEP_NUM_TASKS"],
        # As many on each node: the job file asks for --ntasks-per-node.
        "LOCAL_WORLD_SIZE": str(int(slurm["SLURM_STEP_NUM_TASKS"]) // int(slurm["SLURM_STEP_NUM_NODES"])),
    }


def main(argv: Sequence[str]) -> NoReturn:
    """Become the program; exits with 2 where srun did not start this."""
    try:
        os.environ.update(rank_environment(os.environ))
    except KeyError as error:
        tell_error(f"{error.args[0]} is not set; start this by srun within a job")
        raise SystemExit(2) from None
    # A signal that comes while the program still imports would kill it; the trainer takes it when it can.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGTERM])
    os.execv(sys.executable, [sys.executable, *argv])  # noqa: S606  the job file's own words


if __name__ == "__main__":
    main(sys.argv[1:])
