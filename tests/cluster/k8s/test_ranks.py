"""What a training Pod runs: ranks that know their place, signals handed on, an exit code that means something."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from cluster.k8s import ranks
from cluster.k8s.ranks import Node, pod_exit_code, read_node
from tests.conftest import ROOT
from tests.waiting import wait_for
from trainer.run_directory import Ending, RunDirectory

NODE = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "a-0.a",
        "PET_MASTER_PORT": "29500"}  # fmt: skip


def start(run: Path, program: str, **variables: str) -> subprocess.Popen[str]:
    """The Pod's command, with a short program in place of the trainer."""
    command = [
        sys.executable,
        "-m",
        "cluster.k8s.ranks",
        f"--run={run}",
        "--",
        "-c",
        textwrap.dedent(program),
        str(run),
    ]
    inherited = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}  # CPUS would not count
    environment = {**inherited, **NODE, **variables}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)


def outcome(run: Path, word: Ending) -> None:
    RunDirectory(run).set_outcome(word)


def wait_for_starts(path: Path, number: int) -> None:
    wait_for(lambda: len(list(path.glob("started-*"))) >= number)


STARTED = """
    import os, pathlib, signal, sys, time
    run = pathlib.Path(sys.argv[1])
    rank = os.environ["RANK"]
    def started():
        (run / f"started-{rank}").touch()
    def take_signals():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM, signal.SIGUSR1])
"""


def test_each_rank_learns_its_place(tmp_path):
    outcome(tmp_path, "done")
    program = (
        STARTED
        + """
    import json
    names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT OMP_NUM_THREADS".split()
    (run / f"rank-{rank}.json").write_text(json.dumps([os.environ.get(name) for name in names]))
    """
    )
    assert start(tmp_path, program, CPUS="6").wait(60) == 0
    places = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("rank-*.json"))]
    assert places == [
        ["2", "4", "0", "2", "a-0.a", "29500", "3"],
        ["3", "4", "1", "2", "a-0.a", "29500", "3"],
    ]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_reaches_every_rank_and_the_pod_is_to_be_started_again(tmp_path, number):
    outcome(tmp_path, "requeue")
    program = (
        STARTED
        + """
    def stop(number, frame):
        (run / f"stopped-{rank}").write_text(str(number))
        sys.exit(0)
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGUSR1, stop)
    take_signals()
    started()
    time.sleep(600)
    """
    )
    pod = start(tmp_path, program)
    wait_for_starts(tmp_path, 2)
    pod.send_signal(number)
    assert pod.wait(120) == 10
    assert [path.read_text() for path in tmp_path.glob("stopped-*")] == [str(int(number))] * 2


def test_a_signal_that_comes_while_the_ranks_still_import_waits_for_them(tmp_path):
    outcome(tmp_path, "requeue")
    program = (
        STARTED
        + """
    started()
    while signal.SIGTERM not in signal.sigpending():
        time.sleep(0.02)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    take_signals()
    sys.exit(1)
    """
    )
    pod = start(tmp_path, program)
    wait_for_starts(tmp_path, 2)
    pod.send_signal(signal.SIGTERM)
    assert pod.wait(120) == 10


def test_a_mistake_in_the_command_is_the_pods_exit_code(tmp_path):
    assert start(tmp_path, "raise SystemExit(2)").wait(60) == 2
    outcome(tmp_path, "failed")  # by another rank, for which the mistake was a failure
    assert pod_exit_code(2, tmp_path) == 2


def test_a_crash_is_not_hidden(tmp_path):
    assert start(tmp_path, "raise SystemExit(7)").wait(60) == 7


def test_a_killed_rank_gives_the_signals_code_and_the_others_do_not_outlive_it(tmp_path, monkeypatch):
    """A rank that waits for the lost one for ever is ended after a while."""
    program = (
        STARTED
        + """
    started()
    if rank == "3":
        while not (run / "started-2").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
    """
    )
    short = "import sys, cluster.k8s.ranks as r; r.PATIENCE = 1; sys.exit(r.main(sys.argv[1:]))"
    command = [sys.executable, "-c", short, f"--run={tmp_path}", "--", "-c", textwrap.dedent(program), str(tmp_path)]
    pod = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **NODE})
    wait_for_starts(tmp_path, 2)
    children = psutil.Process(pod.pid).children()
    assert pod.wait(60) == 128 + signal.SIGKILL
    assert not any(child.is_running() for child in children)


def test_an_orphan_of_a_rank_is_none_of_the_ranks(tmp_path):
    """Of a Pod's first process it becomes a child, and what it ends with says nothing."""
    outcome(tmp_path, "done")
    program = """
    import os, pathlib, time
    reads, writes = os.pipe()
    if not os.fork():
        if not (orphan := os.fork()):
            os._exit(7)
        os.write(writes, str(orphan).encode())
        os._exit(0)
    os.wait()
    left = pathlib.Path("/proc", os.read(reads, 20).decode())
    while left.exists():
        time.sleep(0.01)
    """
    first = "import ctypes, sys, cluster.k8s.ranks as r; ctypes.CDLL(None).prctl(36, 1); sys.exit(r.main(sys.argv[1:]))"
    command = [sys.executable, "-c", first, f"--run={tmp_path}", "--", "-c", textwrap.dedent(program)]
    assert subprocess.run(command, cwd=ROOT, env={**os.environ, **NODE}, timeout=60).returncode == 0


def test_the_rank_that_fails_first_has_the_word(tmp_path):
    """The others fail because of it, with codes that say less."""
    program = (
        STARTED
        + """
    if rank == "3":
        (run / "pid").write_text(str(os.getpid()))
        started()
        raise SystemExit(7)
    while not (run / "started-3").exists():
        time.sleep(0.01)
    while pathlib.Path("/proc", (run / "pid").read_text()).exists():
        time.sleep(0.01)
    raise SystemExit(5)
    """
    )
    assert start(tmp_path, program).wait(60) == 7


def test_a_run_that_failed_for_good_is_told_from_a_crash(tmp_path):
    outcome(tmp_path, "failed")  # an earlier start's, which says the same
    program = (
        STARTED
        + """
    (run / "outcome").write_text("failed\\n")
    raise SystemExit(1)
    """
    )
    assert start(tmp_path, program).wait(60) == 11


def test_the_failure_of_an_earlier_start_is_not_this_one_s(tmp_path):
    outcome(tmp_path, "failed")
    assert start(tmp_path, "import os; os.kill(os.getpid(), 9)").wait(60) == 137


def test_the_outcome_may_come_a_moment_after_the_ranks_end(tmp_path, monkeypatch):
    """The first rank writes it, and that may be in another Pod, on a file system that takes its time."""
    answers = iter([12, 12, 10])
    monkeypatch.setattr(ranks, "read_outcome", lambda run: next(answers))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    assert pod_exit_code(None, tmp_path) == 10


def test_ranks_that_end_well_without_an_outcome_have_crashed(tmp_path, monkeypatch):
    monkeypatch.setattr(ranks, "PATIENCE", 0)
    assert pod_exit_code(None, tmp_path) == 12


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"PET_NNODES": None}, "PET_NNODES is '', not a number"),
        ({"PET_NPROC_PER_NODE": "auto"}, "PET_NPROC_PER_NODE is 'auto', not a number"),
        ({"PET_NPROC_PER_NODE": "0"}, "these don't describe a node"),
        ({"PET_NODE_RANK": "2"}, "these don't describe a node"),
        ({"PET_MASTER_ADDR": ""}, "these don't describe a node"),
    ],
)
def test_variables_that_describe_no_node_are_refused(change, message):
    environment = {name: value for name, value in {**NODE, **change}.items() if value is not None}
    with pytest.raises(ValueError, match=message):
        read_node(environment)


def test_a_wrong_variable_is_one_line_and_no_restart(tmp_path):
    pod = start(tmp_path, "", PET_NODE_RANK="x")
    _, told = pod.communicate(timeout=60)
    assert pod.returncode == 2
    assert "PET_NODE_RANK is 'x', not a number" in told.splitlines()[-1]


def test_threads_are_left_alone_where_the_user_says_how_many():
    assert read_node({**NODE, "CPUS": "8", "OMP_NUM_THREADS": "1"}).cpus is None
    assert "OMP_NUM_THREADS" not in Node(1, 0, 1, "a", 1, None).environment(0)
    assert Node(1, 0, 8, "a", 1, 4).environment(0)["OMP_NUM_THREADS"] == "1"
