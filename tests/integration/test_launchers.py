"""Signals under the launchers that people use: a checkpoint, a word for job scripts, and nobody left behind."""

import signal

import psutil
import pytest

from tests.integration.launching import LAUNCHERS, curve
from trainer.run_directory import RunDirectory

pytestmark = pytest.mark.slow

LONG = 100_000  # steps: the run is never over before it is stopped


@pytest.fixture
def train(start):
    """Launch a training and wait until it trains."""

    def begin(launcher, *settings):
        launched = start(launcher, "run", LONG, "checkpoint.every=50", *settings)
        launched.wait_for_lines(5)
        return launched

    return begin


def assert_stopped(launched):
    """Everybody is gone, the last step is saved, and the outcome says requeue."""
    launched.wait_for_end()
    run = RunDirectory(launched.run)
    step = curve(launched.run)[-1][0]
    assert run.outcome == ("requeue", f"asked to stop after step {step}")
    assert run.step == step


@pytest.mark.parametrize(
    ("launcher", "name"),
    [("deepspeed", "SIGTERM"), ("torchrun", "SIGUSR1"), pytest.param("torchrun", "SIGTERM", marks=pytest.mark.long)],
)
def test_a_signal_to_a_rank(train, launcher, name):
    launched = train(launcher)
    assert len(launched.ranks()) == 2
    launched.ranks()[1].send_signal(signal.Signals[name])
    assert_stopped(launched)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ctrl_c(train, launcher):
    """To launchers, ranks and their loaders alike, as a terminal sends it where none has a session of its own."""
    launched = train(launcher, "data.workers=1")
    for process in [psutil.Process(launched.process.pid), *launched.family]:
        process.send_signal(signal.SIGINT)
    assert_stopped(launched)
    log = launched.run.with_name(f"{launched.run.name}.log").read_text()
    assert log.count("stopping after this step, with a checkpoint") == 1
    assert 'trainer/pretrain.py", line' not in log, "no rank has a traceback"


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
def test_a_signal_to_the_launcher(train, launcher, name):
    """torchrun passes SIGTERM on; `deepspeed` passes nothing on, and nobody SIGKILL: the ranks see that it is gone."""
    launched = train(launcher)
    launched.process.send_signal(signal.Signals[name])
    assert_stopped(launched)


def test_a_rank_that_is_killed_takes_all_with_it_and_leaves_no_word(train):
    """With `deepspeed`: test_kill.py."""
    launched = train("torchrun")
    launched.ranks()[1].kill()
    assert launched.wait_for_end() != 0
    assert RunDirectory(launched.run).outcome is None
