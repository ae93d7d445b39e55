"""Signals under the launchers that people use: a checkpoint, a word for job scripts, and nobody left behind."""

import signal

import psutil
import pytest

from tests.integration.launching import LAUNCHERS, curve, launch
from tests.waiting import wait_for
from trainer.run_directory import RunDirectory

pytestmark = pytest.mark.slow

LONG = 100_000  # steps: the run is never over before it is stopped


@pytest.fixture
def start(tmp_path):
    """Launch a training and wait until it trains."""
    launched = []

    def begin(launcher, *settings):
        launched.append(launch(launcher, tmp_path, tmp_path / "run", LONG, "checkpoint.every=50", *settings))
        launched[-1].wait_for_lines(5)
        return launched[-1]

    yield begin
    for one in launched:
        one.end()


def assert_stopped(launched):
    """Everybody is gone, the last step is saved, and the outcome says requeue."""
    launched.process.wait(60)
    wait_for(lambda: not launched.left(), 60)
    run = RunDirectory(launched.run)
    step = curve(launched.run)[-1][0]
    assert run.outcome == ("requeue", f"asked to stop after step {step}")
    assert run.step == step


@pytest.mark.parametrize(
    ("launcher", "name"),
    [("deepspeed", "SIGTERM"), ("torchrun", "SIGUSR1"), pytest.param("torchrun", "SIGTERM", marks=pytest.mark.long)],
)
def test_a_signal_to_a_rank(start, launcher, name):
    launched = start(launcher)
    assert len(launched.ranks()) == 2
    launched.ranks()[1].send_signal(signal.Signals[name])
    assert_stopped(launched)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ctrl_c(start, launcher):
    """To launchers, ranks and their loaders alike, as a terminal sends it where none has a session of its own."""
    launched = start(launcher, "data.workers=1")
    for process in [psutil.Process(launched.process.pid), *launched.family]:
        process.send_signal(signal.SIGINT)
    assert_stopped(launched)
    log = launched.run.with_name(f"{launched.run.name}.log").read_text()
    assert log.count("stopping after this step, with a checkpoint") == 1
    assert 'trainer/pretrain.py", line' not in log, "no rank has a traceback"


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
def test_a_signal_to_the_launcher(start, launcher, name):
    """torchrun passes SIGTERM on; `deepspeed` passes nothing on, and nobody SIGKILL: the ranks see that it is gone."""
    launched = start(launcher)
    launched.process.send_signal(signal.Signals[name])
    assert_stopped(launched)


def test_a_rank_that_is_killed_takes_all_with_it_and_leaves_no_word(start):
    """With `deepspeed`: test_kill.py."""
    launched = start("torchrun")
    launched.ranks()[1].kill()
    assert launched.process.wait(60) != 0
    wait_for(lambda: not launched.left(), 60)
    assert RunDirectory(launched.run).outcome is None
