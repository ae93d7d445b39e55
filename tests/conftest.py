"""What all tests share: where things are, and an environment like the Makefile's."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).parents[1]
TEXTS = Path(sys.prefix) / "texts" / "gensim" / "test" / "test_data"  # texts that the Makefile fetches
LAB = ROOT.parent / "shared"  # real corpora and cluster laboratories, beside the checkout where there are any

# As the Makefile sets it: tools of the same environment come first.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# No time is asserted, on machines that others use too; and every run of the tests is of the same examples.
settings.register_profile("ours", deadline=None, derandomize=True)
settings.load_profile("ours")


def pytest_collection_finish() -> None:
    """Leave what has been imported out of all collections of garbage, which would look through millions of objects.

    And compute by one thread: products as small as those of tests only wait for each other on several.
    """
    gc.freeze()
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def pytest_unconfigure() -> None:
    """At the exit of the process, libraries look for what they have left."""
    gc.unfreeze()


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real corpora; the test is skipped where it is missing."""
    path = LAB / "data"
    if not path.is_dir():
        pytest.skip(f"needs the real corpora in {path}")
    return path


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """A command's main sets what is logged for its whole process; a test's process goes on with the next test."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


@pytest.fixture(autouse=True)
def _signals_as_they_were() -> Iterator[None]:
    """What a process holds back or ignores, all programs of later tests would inherit."""
    before = _unheard()
    yield
    assert _unheard() == before


def _unheard() -> set[int]:
    """The signals that don't reach this process's programs."""
    held_back = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    return {number for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN} | held_back
