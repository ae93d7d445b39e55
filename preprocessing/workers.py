"""Worker processes of Beam on this machine, where Beam itself does not see after them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from preprocessing.interruption import end
from preprocessing.output import FAILED

SECONDS = 10.0  # for Beam to find out by itself that a worker has died
_THREAD = "run_worker"  # Beam's name of the one that waits for a worker's end


def reach_by_no_proxy() -> None:
    """Have workers and this process speak to each other directly; gRPC would ask http_proxy even for localhost."""
    name = "no_grpc_proxy"  # in small letters alone
    known = (os.environ.get(name) or os.environ.get("no_proxy") or "").split(",")
    os.environ[name] = ",".join(dict.fromkeys(filter(None, [*known, "localhost", "127.0.0.1"])))


@contextmanager
def deaths_noticed(terminal: int) -> Iterator[Callable[[], str | None]]:
    """End this process when a worker has died and Beam doesn't notice: before the two are connected it waits for ever.

    Args:
        terminal: a descriptor to tell the user on.

    Yields:
        What asks why the first worker died; None while none has.
    """
    deaths: list[str] = []
    timers: list[threading.Timer] = []
    before = threading.excepthook

    def hear(told: threading.ExceptHookArgs) -> None:
        if told.thread is None or told.thread.name != _THREAD:
            before(told)
            return
        deaths.append(
            f"a worker process has died ({told.exc_value}), for lack of memory perhaps; "
            "the same command goes on with this job"
        )
        if len(deaths) == 1:  # one tells for all
            timer = threading.Timer(SECONDS, end, (FAILED, f"make_shards: error: {deaths[0]}", terminal))
            timer.daemon = True
            timers.append(timer)
            timer.start()

    threading.excepthook = hear
    try:
        yield lambda: deaths[0] if deaths else None
    finally:
        threading.excepthook = before
        for timer in timers:
            timer.cancel()
