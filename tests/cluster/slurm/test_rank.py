"""A rank as srun starts it."""

import json
import os
import signal
import subprocess
import sys

from cluster.slurm.rank import rank_environment
from tests.conftest import ROOT

TASK = {"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_NUM_NODES": "2"}
PROGRAM = """
import json, os, signal, sys
print(json.dumps({name: os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")}))
received = []
for number in (signal.SIGUSR1, signal.SIGTERM):
    os.kill(os.getpid(), number)  # as SLURM would while the program still imports
    signal.signal(number, lambda number, _: received.append(number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
print(json.dumps([received, sys.argv[1:]]))
"""


def start(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cluster.slurm.rank", *arguments]
    environment = {**os.environ, **variables}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)


def test_slurm_s_numbers_become_a_launcher_s():
    assert rank_environment(TASK) == {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}


def test_the_program_has_them_and_signals_that_came_too_early_wait_for_it(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = start(str(tmp_path / "program.py"), "--option", "a b", **TASK)
    environment, (received, arguments) = map(json.loads, done.stdout.splitlines())
    assert environment == rank_environment(TASK)
    assert received == [signal.SIGUSR1, signal.SIGTERM]  # of the time limit, of a preemption
    assert arguments == ["--option", "a b"]
    assert done.returncode == 0


def test_the_program_s_exit_code_is_the_rank_s():
    assert start("-c", "raise SystemExit(7)", **TASK).returncode == 7


def test_outside_a_job_it_says_so():
    done = start("-c", "print('never')", SLURM_PROCID="")
    assert done.returncode == 2
    assert done.stderr == "error: SLURM_LOCALID is not set; start this by srun within a job\n"
    assert not done.stdout
