"""Wait for what another job makes: an init container's work, since Kubernetes has no "after that job".

    python -m cluster.k8s.wait --shards=DIR --minutes=1440      until the shards are complete
    python -m cluster.k8s.wait --run=RUN --minutes=1440         until the run is done

The exit code is 0 when it is there, 2 when it does not come: nothing after so many minutes, or a run that failed. A
file system that can't be read may be back in a minute, so that is waited for too.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from cluster.k8s.ranks import DONE, FAILED, read_outcome
from preprocessing.command_line import OneLineParser, number, parse_path, parse_place
from preprocessing.schema import MANIFEST
from preprocessing.status import is_file
from preprocessing.terminal import tell_error

SECONDS = 10.0  # between two looks
_minutes = number("a number of minutes", lambda minutes: 0 <= minutes < math.inf)


class NeverError(Exception):
    """What is waited for will not come."""


def main(argv: Sequence[str] | None = None) -> int:
    """Wait; the exit code is told above."""
    parser = OneLineParser(prog="python -m cluster.k8s.wait", description="Wait for another job's result.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--shards", type=parse_place, metavar="DIR", help="shards, whose manifest is written last")
    what.add_argument("--run", type=parse_path, metavar="DIR", help="a run directory")
    parser.add_argument("--minutes", type=_minutes, required=True, help="how long")
    arguments = parser.parse_args(argv)
    if "://" in (arguments.shards or ""):  # no job of a cluster makes them, and the trainer says if they are not there
        return 0
    ready = shards_are_complete if arguments.shards else run_is_done
    try:
        wait(ready, Path(arguments.shards or arguments.run), arguments.minutes * 60)
    except NeverError as error:
        tell_error(error)
        return 2
    return 0


def wait(ready: Callable[[Path], bool], path: Path, seconds: float) -> None:
    """Return when ``ready(path)``; what keeps it from being looked at is told where it is another thing than before.

    Raises:
        NeverError: it is not, after so many seconds.
    """
    deadline = time.monotonic() + seconds
    told = None
    while True:
        problem = ""
        try:
            if ready(path):
                return
        except OSError as error:
            problem = f"{error.filename or path}: {error.strerror}"
        if time.monotonic() >= deadline:
            why = f"can't be read ({problem})" if problem else "not there"
            raise NeverError(f"{path}: {why} after {seconds / 60:g} minutes; see the job that makes it")
        if told != problem:
            print(f"waiting for {path}" + (f" ({problem})" if problem else ""), file=sys.stderr, flush=True)
            told = problem
        time.sleep(min(SECONDS, max(0.0, deadline - time.monotonic())))


def shards_are_complete(path: Path) -> bool:
    """Whether a shard directory has its manifest."""
    return is_file(path / MANIFEST)


def run_is_done(path: Path) -> bool:
    """Whether a run has ended.

    Raises:
        NeverError: it failed.
    """
    outcome = read_outcome(path)
    if outcome == FAILED:
        raise NeverError(f"{path}: the run failed; its outcome and its job's log say why")
    return outcome == DONE


if __name__ == "__main__":
    sys.exit(main())
