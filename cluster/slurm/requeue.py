"""What a job does when its ranks have ended: nothing more, restart, or give up.

    python -m cluster.slurm.requeue before RUN
    python -m cluster.slurm.requeue after RUN --job ID --exit-code N --crashes N

The run directory decides and not the exit code, which launchers change: `done` is done; `requeue` (asked to stop, and
stopped with a checkpoint) is restarted; `failed` would fail again. Without an outcome it crashed, and it is restarted
until it has crashed more often than allowed without a newer checkpoint. `after` exits with a verdict; `before` with 0,
or with 2 where it can't remove the outcome of an earlier start. Storage that fails, of which the ranks may have
crashed, may be well again in a while: both ask it again until then, for half an hour.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import TypeVar

from preprocessing.command_line import OneLineParser
from preprocessing.status import make_folder
from preprocessing.storage_errors import UnavailableError, comes_of_passing
from preprocessing.terminal import tell_error
from trainer.files import DamagedFileError, append_lines, read_lines
from trainer.outcome import EXIT_CODES, MISTAKE
from trainer.run_directory import CheckpointError, RunDirectory

PATIENCE = 1800.0  # seconds for storage that fails; the job keeps its nodes meanwhile
_PAUSE = 10.0  # seconds until it is asked again
_Answer = TypeVar("_Answer")


class Verdict(IntEnum):
    """What is to be done, as an exit code."""

    DONE = EXIT_CODES["done"]
    REQUEUE = EXIT_CODES["requeue"]
    GIVE_UP = EXIT_CODES["failed"]


def main(argv: Sequence[str] | None = None) -> int:
    """Clear away an old outcome, or judge a new one and say so on one line."""
    arguments = _parse(argv)
    run = RunDirectory(arguments.run)
    if arguments.when == "before":
        # `done` too: a later last step makes a run go on, and where there is nothing to do the trainer says it again.
        try:
            patiently(partial(run.set_outcome, None), run.path)
        except OSError as error:
            tell_error(f"{run.path}: its outcome can't be removed ({error.strerror})")
            return MISTAKE
        return 0
    try:
        judging = partial(judge, run, arguments.job, arguments.exit_code, arguments.crashes, time.time())
        verdict, reason = patiently(judging, run.path)
    except (CheckpointError, DamagedFileError, UnavailableError, OSError) as error:
        verdict, reason = Verdict.GIVE_UP, str(error)  # of a full disk too, which may be what it crashed of
    words = {Verdict.DONE: "done", Verdict.REQUEUE: "will be restarted", Verdict.GIVE_UP: "given up"}
    nodes = os.environ.get("SLURM_JOB_NODELIST") if verdict != Verdict.DONE else None  # one of which may be to blame
    print(f"{run.path}: {words[verdict]}: {reason}" + (f"; it ran on {nodes}" if nodes else ""), file=sys.stderr)
    return verdict


def patiently(ask: Callable[[], _Answer], place: Path) -> _Answer:
    """What ``ask`` returns, which is asked again while storage fails in a way that may pass; that is told once.

    Args:
        ask: may be asked any number of times.
        place: what is asked for, to tell.

    Raises:
        Exception: what ``ask`` raises for other reasons, and still raises for that one after so long.
    """
    deadline, told = time.monotonic() + PATIENCE, False
    while True:
        try:
            return ask()
        except Exception as error:
            if not comes_of_passing(error) or time.monotonic() >= deadline:
                raise
            if not told:
                tell_error(f"{place}: storage fails ({error}); it is asked again for {PATIENCE / 60:g} minutes")
                told = True
        time.sleep(_PAUSE)


def judge(run: RunDirectory, job: str, exit_code: int, allowed: int, now: float) -> tuple[Verdict, str]:
    """What to do now that the ranks have ended, and why; the same crash, told again, counts once.

    Args:
        run: what they trained.
        job: SLURM's number of the job, the same for all its starts; a crash is written down with it.
        exit_code: of srun.
        allowed: so many crashes one after another without a newer checkpoint.
        now: when they ended, in seconds since 1970; by it a crash is known.

    Raises:
        CheckpointError: the run's checkpoints are not in order.
        DamagedFileError: the list of its crashes is.
        UnavailableError: storage fails.
        OSError: it does, or the crash can't be written down.
    """
    ending, reason = run.outcome or ("failed" if exit_code == MISTAKE else None, "refused; the log says why")
    if ending == "done":
        return Verdict.DONE, "the run is complete"
    if ending == "requeue":
        return Verdict.REQUEUE, f"{reason or 'asked to stop'}; it resumes from step {run.step}"
    if ending == "failed":
        return Verdict.GIVE_UP, f"it would fail again: {reason}"
    make_folder(run.job)
    crashes = run.job / "crashes.jsonl"
    append_lines(crashes, {"job": job, "time": now, "step": run.step, "exit_code": exit_code})
    same = sum(1 for crash in read_lines(crashes) if (crash.get("job"), crash.get("step")) == (job, run.step))
    if same > allowed:
        return Verdict.GIVE_UP, f"it crashed {same} times since the checkpoint of step {run.step}"
    return Verdict.REQUEUE, f"crash {same} since step {run.step} (exit code {exit_code})"


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = OneLineParser(prog="python -m cluster.slurm.requeue", description=__doc__.partition("\n")[0])
    parser.add_argument("when", choices=("before", "after"), help="the ranks start, or have ended")
    parser.add_argument("run", type=Path, metavar="RUN", help="the run directory")
    parser.add_argument("--job", default="", metavar="ID", help="SLURM's number of the job")
    parser.add_argument("--exit-code", type=int, default=0, metavar="N", help="of srun")
    parser.add_argument("--crashes", type=int, default=0, metavar="N", help="restart after at most so many in a row")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
