"""Follow a training run and evaluate every export that appears.

    python -m eval.watch runs/large --shards shards/ --data data/ --final-tasks pretraining,glue,squad

Each export is evaluated on a few cheap tasks, the last one of a finished run on the final tasks too; every other option
goes to eval.run as it is. Results lie in RUN/evaluations/step-001000/ and RUN/evaluations/step-001000-final/, and are
all that is remembered, with a note beside them that saves reading the weights again: the same command again does what
is missing, and any number of watchers share the work.

An evaluation is a process of its own, so that nothing it does ends the watch, and the trainer is left alone: the watch
reads exports and the run's outcome, and writes below RUN/evaluations. It ends when the run is done and evaluated, or
has failed; a run that was stopped to go on later is waited for.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from preprocessing.extras import needs
from preprocessing.status import is_dir, is_file, make_folder, resolved

with needs("eval"):
    from eval.asked import Asked
    from eval.errors import UsageError
    from eval.evaluated import EVALUATIONS
    from eval.locks import claimed
    from eval.options import EFFECTS_TOLD, split_words, without_effect
    from eval.options import parse as parse_evaluation
    from eval.parts import read_parts
    from eval.plan import check_source
    from eval.results import FINAL, RESULTS, by_command, read_results
    from eval.stamps import known_checksum, noted_checksum, read_checksum, stamp
    from eval.storage import check_output
    from eval.tasks import GROUPS, Task, select
    from eval.tasks.finetuned import FineTuned
    from eval.tasks.intrinsic import Intrinsic
    from preprocessing.command_line import OneLineParser, number, parse_path
    from preprocessing.interruption import end_when_interrupted
    from preprocessing.schema import ShardDirectory, ShardError
    from preprocessing.storage_errors import UnavailableError, exit_code
    from preprocessing.terminal import in_line, tell_error
    from trainer.hugging_face import WEIGHTS
    from trainer.run_directory import CheckpointError, Ending, Outcome, RunDirectory, step_number

CHEAP = ("mlm", "nsp", "fill_mask")
_NOTE = ".weights.json"  # beside results: the checksum of the export's weights, see eval.stamps
_OF_WHAT_IS_READ = (1, 2)  # exit codes of evaluations that data sets may have ended which can't be read
_LONGEST_POLL = 1_000_000  # seconds; no operating system waits for as long as a float can say
_ROOM = 1 << 20  # bytes: less than this an evaluation need not be begun with

_log = logging.getLogger("eval")


@dataclass(frozen=True)
class Job:
    """An export, the tasks to evaluate it on, and the folder for the results."""

    export: Path
    tasks: tuple[str, ...]
    output: Path


class Watch:
    """A watcher of a run."""

    def __init__(
        self,
        run: RunDirectory,
        tasks: Sequence[str],
        final_tasks: Sequence[str],
        options: Sequence[str],
        evaluation: argparse.Namespace,
        asked: Asked,
    ) -> None:
        """Remember what to do.

        Args:
            run: to follow.
            tasks: of every export.
            final_tasks: of the last one of a run that is done; none for no such evaluation.
            options: of eval.run, in words.
            evaluation: the same, read.
            asked: of every export.
        """
        self.failed: set[Path] = set()  # folders of evaluations that failed; they are not tried again by this watcher
        self.hindered: dict[Path, str] = {}  # those that could not be begun when they were tried last, and why
        self._run = run
        self._tasks = tuple(tasks)
        self._final_tasks = tuple(final_tasks)
        self._options = options
        self._evaluation = evaluation
        self._asked = asked
        # Now: a file that describes a task may change while a run is followed.
        self._names = {
            words: {task.name for task in select(words)} for words in (self._tasks, self._final_tasks) if words
        }
        self._settled: dict[Path, tuple[Any, Any]] = {}  # folder -> stamps of its results and weights when it was so
        self._unknown_outcome = ""  # the last look's
        self._lacks_last = False  # as has been told

    def outcome(self) -> Outcome | None:
        """How the run ended; tells once of what stands there and doesn't say it, as the run may be gone on with."""
        outcome, unknown = self._run.read_outcome()
        if unknown not in ("", self._unknown_outcome):
            told = "%s: no outcome that is known here (%s), so the run counts as going on"
            _log.warning(told, self._run.outcome_file, unknown)
        self._unknown_outcome = unknown
        return outcome

    def follow(self, poll: float) -> Outcome:
        """Evaluate until nothing more is to come; look every ``poll`` seconds. Returns how the run ended."""
        problem = ""  # the last look's
        while True:
            try:
                outcome = self.outcome()
                busy = self.evaluate(outcome.ending if outcome else None)
                problem = ""
                if outcome and outcome.ending in ("done", "failed") and not busy:
                    return outcome
            except (OSError, UnavailableError) as error:  # such as of a network's file system that is away for a while
                why = str(error.__cause__ or error)
                if problem != why:
                    _log.warning("%s: can't be read (%s); it is tried again at every look", self._run.path, why)
                problem = why
            time.sleep(poll)

    def evaluate(self, ending: Ending | None) -> bool:
        """Evaluate what is there and has no results, the earliest export first.

        Args:
            ending: of the run, read before: what a run has that is done, is there.

        Returns:
            Whether other watchers still work on some of it.

        Raises:
            OSError: the run can't be read.
            UnavailableError: what results would be compared with can't be read now.
        """
        busy = False
        for job in self._jobs(ending):
            if self._is_settled(job, known_checksum):
                continue
            try:
                make_folder(job.output.parent)
                with claimed(job.output.with_name(f".{job.output.name}.lock")) as claim:
                    if claim is None:
                        busy = True
                    elif not self._is_settled(job, read_checksum):  # as by another, between the look and the claim
                        self._evaluate(job, claim)
                self.hindered.pop(job.output, None)
            except OSError as error:  # such as no room, even for a lock
                if self.hindered.get(job.output) != str(error):
                    _log.warning("%s: can't be written (%s); it is tried again at every look", job.output, error)
                self.hindered[job.output] = str(error)
        return busy

    def _jobs(self, ending: Ending | None) -> list[Job]:
        evaluations = self._run.path / EVALUATIONS
        exports = self._run.complete_exports
        jobs = [Job(export, self._tasks, evaluations / export.name) for export in exports if self._tasks]
        if ending == "done" and self._final_tasks and exports:
            self._tell_if_not_last(exports[-1])
            jobs.append(Job(exports[-1], self._final_tasks, evaluations / f"{exports[-1].name}-{FINAL}"))
        return jobs

    def _tell_if_not_last(self, export: Path) -> None:
        """Say once where a run that is done has a later step than its newest export, as where a disk was full."""
        step = 0
        with contextlib.suppress(CheckpointError, UnavailableError, OSError):  # the checkpoints may be gone
            step = self._run.step
        if step > step_number(export) and not self._lacks_last:
            told = "%s: the newest export, but the run ended with step %d: its command, given again, exports that"
            _log.warning(told, export, step)
            self._lacks_last = True

    def _is_settled(self, job: Job, checksum: Callable[[Path, Path], str | None]) -> bool:
        """Whether nothing is to be done: there are results, or it failed, as it does with results made otherwise.

        Args:
            job: to be done.
            checksum: of the weights, given their file and the note on it; one that doesn't read them may not know.
        """
        if job.output in self.failed:
            return True
        stamps = self._stamps(job)
        if self._settled.get(job.output) == stamps:
            return True
        found = self._found(job, checksum)
        for name, of_command in found.items():
            if difference := self._asked.difference(name, of_command, job.export):
                _log.error(
                    "%s: made %s; delete %s to have it evaluated anew",
                    *(job.output, difference.made, f"its {RESULTS}" if difference.keeps_points else "the folder"),
                )
                self.failed.add(job.output)
                return True
        if found.keys() != self._names[job.tasks]:
            return False
        self._settled[job.output] = stamps
        return True

    def _stamps(self, job: Job) -> tuple[Any, Any]:
        return stamp(job.output / RESULTS), stamp(job.export / WEIGHTS)

    def _found(self, job: Job, checksum: Callable[[Path, Path], str | None]) -> dict[str, dict[str, Any]]:
        """Task -> the results that have it, on these very weights, as a run that went back writes a step anew.

        What failed is none of them, so a watcher that is started again tries it once more.
        """
        try:
            results = read_results(job.output / RESULTS)
            wanted = self._names[job.tasks] - results["failed"].keys()
            found = {name: part for part in by_command(results) for name in part["tasks"] if name in wanted}
            if not found or checksum(job.export / WEIGHTS, job.output / _NOTE) != _weights_of(results):
                return {}
        except (UsageError, UnavailableError, OSError):
            return {}
        return found

    def _evaluate(self, job: Job, claim: int) -> None:
        weights = self._begin(job)
        _check_room(job.output)  # what is computed without any is lost
        _log.info("%s: %s", job.export.name, ",".join(job.tasks))
        code = _run_evaluation([*evaluation_words(job), *self._options], claim)
        readable = self._readable(job) if code in _OF_WHAT_IS_READ else job.tasks
        if readable and readable != job.tasks:
            _log.error("%s: evaluated without the tasks that can't be read", job.export.name)
            code = _run_evaluation([*evaluation_words(replace(job, tasks=readable)), *self._options], claim)
        stamps = self._stamps(job)
        if code == 0 and self._found(job, read_checksum).keys() == self._names[job.tasks]:
            self._settled[job.output] = stamps
            _log.info("%s: evaluated, %s", job.export.name, job.output / RESULTS)
        elif not is_dir(job.export):
            _log.warning("%s: deleted before it was evaluated; keep more by checkpoint.keep_exports", job.export.name)
        elif self._weights(job) != weights:
            _log.info("%s: trained anew meanwhile, so it is evaluated anew", job.export.name)
            self._evaluate(job, claim)
        else:
            _check_room(job.output)
            self.failed.add(job.output)
            why = _ending(code) if code else f"tasks are missing in {job.output / RESULTS}"
            _log.error("%s: the evaluation failed (%s); see above", job.export.name, why)

    def _begin(self, job: Job) -> str | None:
        """Make a job's folder, without what it has of other weights; returns the checksum of those that are there."""
        make_folder(job.output)
        try:
            of: str | None = _weights_of(read_results(job.output / RESULTS))
        except (UsageError, UnavailableError):
            of = noted_checksum(job.output / _NOTE)
        weights = self._weights(job)
        if weights is not None and of not in (None, weights):
            for path in job.output.iterdir():
                if is_dir(path) and not path.is_symlink():
                    shutil.rmtree(path)
                elif path.name != _NOTE:
                    path.unlink()
        return weights

    def _weights(self, job: Job) -> str | None:
        """The checksum of an export's weights; None where there are none."""
        try:
            return read_checksum(job.export / WEIGHTS, job.output / _NOTE)
        except OSError:
            return None

    def _readable(self, job: Job) -> tuple[str, ...]:
        """The tasks of a job without those whose data sets can't be read any more, of which the log says why."""
        names = tuple(name for word in job.tasks for name in GROUPS.get(word, (word,)))
        unreadable = set()
        for name in names:
            try:
                [task] = select([name])
                if isinstance(task, FineTuned):
                    read_parts(task, self._evaluation.data, self._evaluation.test, self._evaluation.limit)
            except (UsageError, UnavailableError, OSError) as error:
                _log.error("%s: %s", name, error)
                unreadable.add(name)
        return tuple(name for name in names if name not in unreadable) if unreadable else job.tasks


def _weights_of(results: dict[str, Any]) -> str:
    return str(results["checkpoint"]["weights_blake2b"])


def evaluation_words(job: Job) -> list[str]:
    """The options of eval.run for a job."""
    return ["--checkpoint", str(job.export), "--tasks", ",".join(job.tasks), "--output", str(job.output), EFFECTS_TOLD]


def _check_room(folder: Path) -> None:
    """See that a folder takes a small file.

    Raises:
        OSError: it doesn't, as on a full disk.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(_ROOM))
        file.flush()
        os.fsync(file.fileno())


def _run_evaluation(words: Sequence[str], claim: int) -> int:
    """Its exit code. It inherits the claim: should the watcher be killed, its work goes on and stays claimed."""
    command = [sys.executable, "-m", "eval.run", *words]
    return subprocess.run(command, pass_fds=[claim]).returncode  # noqa: S603  a list of words of ours


def _ending(code: int) -> str:
    if code > 0:
        return f"exit code {code}"
    names = {known.value: known.name for known in signal.Signals}
    return f"killed by {names.get(-code, f'signal {-code}')}"


def main(argv: Sequence[str] | None = None) -> int:
    """Follow; the exit code is 0, 1 if the run, an evaluation or the storage failed, or 2 for a mistake."""
    arguments, options = _parse(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s watch: %(message)s", datefmt="%H:%M:%S")
    run = RunDirectory(arguments.run)
    try:
        wanted = select([*arguments.tasks, *arguments.final_tasks])
        evaluation = _check(run, wanted, options, arguments.once)
        asked = Asked(evaluation, wanted)
        watch = Watch(run, arguments.tasks, arguments.final_tasks, options, evaluation, asked)
        is_there = _is_there(run)
    except (UsageError, OSError, UnavailableError) as error:
        tell_error(error)
        return exit_code(error)
    if not is_there:
        _log.warning("%s: no run is there yet; waiting for one", run.path)
    for note in without_effect(evaluation, wanted):  # the evaluations themselves are silent of it
        _log.warning(note)
    try:
        if arguments.once:
            watch.evaluate(run.ending)
        outcome = watch.outcome() if arguments.once else watch.follow(arguments.poll)
    except UnavailableError as error:
        tell_error(error)
        return exit_code(error)
    except OSError as error:
        tell_error(f"{run.path}: can't be read ({error}); mend that and look again")
        return exit_code(error)
    return _conclude(run, outcome, watch.failed | watch.hindered.keys())


def _is_there(run: RunDirectory) -> bool:
    """Whether a run has begun, or its exports alone lie there."""
    return is_file(run.config) or is_dir(run.exports)


def _conclude(run: RunDirectory, outcome: Outcome | None, failed: set[Path]) -> int:
    """Carry over to MLflow what still waits, and say what went wrong."""
    if outcome and _some_may_wait(run):
        _carry_over(run)
    for output in sorted(failed):
        print(in_line(f"failed: {output}"), file=sys.stderr)
    if outcome and outcome.ending == "failed":
        why = outcome.reason or "see its log"
        print(in_line(f"failed: the training of {run.path}: {why}"), file=sys.stderr)
        return 1
    return 1 if failed else 0


def _some_may_wait(run: RunDirectory) -> bool:
    try:
        return bool(run.waiting_evaluations)
    except OSError:  # as a sync tells
        return True


def _carry_over(run: RunDirectory) -> None:
    from trainer.tracking import status_of, sync  # seconds to import
    from trainer.tracking.store import first_line

    try:
        sync(run, status_of(run))
    except Exception as error:  # MLflow raises its own, its database's and its HTTP client's
        _log.warning("MLflow: %s; later: python -m trainer.tracking sync %s", first_line(error), run.path)


def _check(run: RunDirectory, wanted: Sequence[Task], options: Sequence[str], once: bool) -> argparse.Namespace:
    """Look for what would make every evaluation fail; returns the options of eval.run.

    Raises:
        UsageError: no run that could be waited for, one that can't be written to, a folder that is missing or not
            there, damaged shards, or an option that is the watch's own; argparse ends the program for other words.
    """
    job = Job(resolved(run.path), tuple(task.name for task in wanted), run.path)
    parsed = parse_evaluation([*evaluation_words(job), *options], "python -m eval.watch")
    if once and not _is_there(run):
        raise UsageError(f"{run.path}: no run is there; give a run directory")
    if not is_dir(run.path.absolute().parent):
        raise UsageError(f"{run.path.parent}: no such directory; give a run directory, which may be made later")
    check_output(run.path / EVALUATIONS)
    if (parsed.checkpoint, parsed.output, parsed.grid_count, parsed.points_only) != (job.export, job.output, 1, False):
        raise UsageError("--checkpoint, --output, --points-only and --grid-* are the watch's own; leave them out")
    for folder in filter(None, (parsed.shards, parsed.data)):
        if not is_dir(folder):
            raise UsageError(f"{folder}: no such directory")
    check_source([task for task in wanted if isinstance(task, FineTuned)], parsed)
    for task in wanted:
        if isinstance(task, Intrinsic) and task.needs_shards:
            if not parsed.shards:
                raise UsageError(f"{task.name} reads held-out samples; give the folder of their shards with --shards")
            _check_shards(parsed.shards)
    return parsed


def _check_shards(folder: Path) -> None:
    """See that results can be compared by the shards that are asked for; those that can't be read now may be later.

    Raises:
        UsageError: they are damaged, not complete, or not for this user to read.
    """
    with contextlib.suppress(UnavailableError):
        try:
            ShardDirectory(folder)
        except ShardError as error:
            raise UsageError(str(error)) from error


def _parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    parser = OneLineParser(
        prog="python -m eval.watch",
        description="Follow a training run and evaluate every export that appears.",
        epilog="All other options are those of eval.run, such as --shards, --data, --seeds or --workers; "
        "python -m eval.run --help lists them and the tasks.",
    )
    parser.add_argument("run", type=parse_path, metavar="RUN", help="a run directory")
    parser.add_argument(
        "--tasks", type=split_words, default=list(CHEAP), metavar="NAME[,NAME...]",
        help=f"of every export (default: {','.join(CHEAP)})",
    )  # fmt: skip
    parser.add_argument(
        "--final-tasks",
        type=split_words,
        default=[],
        metavar="NAME[,NAME...]",
        help="of the last one, when the run is done",
    )
    seconds = number(f"a number of seconds above 0 and up to {_LONGEST_POLL:,}", lambda poll: 0 < poll <= _LONGEST_POLL)
    parser.add_argument("--poll", type=seconds, default=30.0, metavar="SECONDS", help="(default: %(default)s)")
    parser.add_argument("--once", action="store_true", help="evaluate what is there now, and end")
    parser.refuse_misspelt(sys.argv[1:] if argv is None else argv)
    return parser.parse_known_args(argv)


if __name__ == "__main__":
    end_when_interrupted("eval.watch: interrupted; the same command goes on")
    sys.exit(main())
