"""Checkpoints and exports written while training goes on.

A save costs training the time of a copy to CPU memory. A thread of each rank writes its own file into a folder under
another name; once all ranks have told each other that they are done, in the all-reduce that every step begins with, the
first rank gives the folder its name, and a thread of it drops old checkpoints and makes the export. A disk that is full
costs the checkpoint, not the run.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from preprocessing.status import exists
from preprocessing.storage_errors import comes_of_passing
from trainer.checkpoint import RunState, begin_checkpoint, commit_checkpoint, keep_newest, read_run_state
from trainer.config import CheckpointConfig
from trainer.engine import Engine
from trainer.export import export_checkpoint
from trainer.leases import remove_export
from trainer.model import BertConfig
from trainer.run_directory import RunDirectory
from trainer.sharded_state import check_files, write_state
from trainer.world import World

_log = logging.getLogger("pretrain")


class UnsavedError(RuntimeError):
    """What is asked for is done, but can't be written down: the last steps' checkpoint, or how the run ended."""


class Problem(NamedTuple):
    """What keeps something from being written."""

    text: str
    passes: bool  # maybe by itself: see preprocessing.storage_errors


class Saver:
    """Writes one checkpoint at a time. All ranks call the same methods in the same order.

    Attributes:
        last: step of the newest good checkpoint: the last that was committed, or the one that the run goes on from.
        problem: why the one after it could not be written; None where it could.
    """

    def __init__(
        self,
        run: RunDirectory,
        world: World,
        model: BertConfig,
        settings: CheckpointConfig,
        step: int,
        write_metrics: Callable[[], object],
    ):
        """Prepare; nothing is written yet.

        Args:
            run: whose checkpoints these are.
            world: this rank's place.
            model: of the exports.
            settings: how many are kept.
            step: that the run goes on from; 0 where there is no checkpoint.
            write_metrics: has lines of metrics that wait written, before a checkpoint from which no resume would train
                their steps again.
        """
        self.last = step
        self.problem: Problem | None = None
        self._run = run
        self._world = world
        self._model = model
        self._settings = settings
        self._write_metrics = write_metrics
        self._begun: tuple[RunState, Future[Problem | None]] | None = None  # a checkpoint, and who writes it
        self._exporter: Future[Problem | None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")  # writer and exporter take turns

    @property
    def writing(self) -> bool:
        """Whether this rank's part of a checkpoint is not on disk yet."""
        return self._begun is not None and not self._begun[1].done()

    def begin(self, state: RunState, engine: Engine) -> None:
        """Copy what this rank owns, and start writing it."""
        self.finish()
        run, world = self._run, self._world
        made = _problem_of(lambda: begin_checkpoint(run, state.step)) if world.is_first else None
        if problem := next(filter(None, world.gather(made)), None):
            self._give_up(state, problem)
            return
        flats, moment_step = engine.snapshot(), engine.optimizer_step
        writer = self._thread.submit(
            _problem_of, lambda: write_state(run.staging(state.step), world.rank, world.size, flats, moment_step)
        )
        self._begun = state, writer

    def settle(self) -> None:
        """Commit the checkpoint that all ranks have written, or give it up if one could not. All ranks know that."""
        if self._begun is None:
            return
        (state, writer), self._begun = self._begun, None
        problems = self._world.gather(writer.result())
        if not any(problems):
            problems = self._world.gather(_problem_of(lambda: self._commit(state)) if self._world.is_first else None)
        if problem := next(filter(None, problems), None):
            self._give_up(state, problem)
        else:
            self.last, self.problem = state.step, None
            if self._world.is_first:
                self._exporter = self._thread.submit(_problem_of, lambda: self._clean_up_and_export(state))

    def finish(self) -> None:
        """Wait until nothing is being written any more."""
        self.settle()
        if self._exporter is not None:
            _report_export(self._exporter.result())
            self._exporter = None

    def _commit(self, state: RunState) -> None:
        self._write_metrics()
        check_files(self._run.staging(state.step), state.world_size)
        commit_checkpoint(self._run, state)

    def _clean_up_and_export(self, state: RunState) -> None:
        run, settings = self._run, self._settings
        good_step = state.trend.good_step if state.trend else 0
        keep_newest(run.checkpoints, settings.keep, settings.keep_every, good_step)  # gigabytes: no step waits for it
        export_checkpoint(run, state, run.checkpoint(state.step), run.export(state.step), self._model)
        keep_newest(run.exports, settings.keep_exports, good_step=good_step, remove=remove_export)

    def _give_up(self, state: RunState, problem: Problem) -> None:
        self.problem = problem
        if self._world.is_first:
            shutil.rmtree(self._run.staging(state.step), ignore_errors=True)
            _log.error("step %d: the checkpoint can't be written (%s)", state.step, problem.text)
            _log.warning("the newest good checkpoint is that of step %d", self.last)


def export_if_missing(run: RunDirectory, step: int, model: BertConfig) -> None:
    """Make the export of a checkpoint where a kill came between the two; one that can't be made costs nothing else."""
    checkpoint, export = run.checkpoint(step), run.export(step)

    def make_if_missing() -> None:
        if not exists(export):
            export_checkpoint(run, read_run_state(checkpoint), checkpoint, export, model)

    if step:
        _report_export(_problem_of(make_if_missing))


def _report_export(problem: Problem | None) -> None:
    if problem:
        _log.error("the export can't be written (%s); to make it later, run python -m trainer.export", problem.text)


def _problem_of(work: Callable[[], None]) -> Problem | None:
    """What went wrong in it, whatever that was, in words: no error may be taken for success."""
    try:
        work()
    except (KeyboardInterrupt, SystemExit):
        raise
    except (OSError, ValueError) as error:
        return Problem(str(error) or repr(error), comes_of_passing(error))
    except BaseException as error:  # nobody has foreseen it, as Rust's panics, so its kind says more than its words
        return Problem(repr(error), passes=False)
    return None
