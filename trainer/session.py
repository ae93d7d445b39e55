"""The training loop: one start of the trainer, from its first step to its last."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from preprocessing.terminal import counted
from trainer.bottlenecks import Bottlenecks
from trainer.checkpoint import Learner, RunState, read_run_state
from trainer.config import Phase, Recipe
from trainer.corpus import Corpus, train_stream
from trainer.data import Batch
from trainer.determinism import arithmetic_of
from trainer.divergence import Divergence
from trainer.engine import Engine, GlobalCounts
from trainer.initial_model import GivenCheckpoint, GivenExport, find_given
from trainer.loading import DamagedShardError, LoaderError, StepReader, Steps
from trainer.metrics import Laps, measure_ceiling, memory_share, peak_memory, roomiest_micro_batch
from trainer.metrics_log import MetricsLog, has_line
from trainer.model import parameter_count
from trainer.monitors import Monitors
from trainer.non_finite import NonFiniteError
from trainer.profiling import StepProfile
from trainer.progress import Progress
from trainer.run_directory import CheckpointError, Ending, RunDirectory
from trainer.saving import Saver, UnsavedError, export_if_missing
from trainer.skipping import count_skipped
from trainer.start import Written, warn_of_other_bits
from trainer.stopping import StopRequests, watch
from trainer.validation import Validation, describe, warn_of_a_rise
from trainer.world import World

_HOST = torch.device("cpu")  # by whose clock the parts of a step are measured here
_log = logging.getLogger("pretrain")
_Unreadable = LoaderError | DamagedShardError


@dataclass
class Session:
    """One start of the trainer: what every part of the loop needs."""

    deepspeed_configs: Sequence[dict[str, Any]]  # of each phase: the user's file may be another by its time
    init_from: Path | None
    recipe: Recipe
    shards: Corpus
    run: RunDirectory
    written: Written
    world: World
    stop: StopRequests
    monitors: Monitors  # of the first rank
    owes_validation: bool  # whether the last step was to be validated, and is not yet
    saver: Saver = field(init=False)
    _unreadable: _Unreadable | None = field(init=False, default=None)  # held out; all ranks stop, once all is saved
    _divergence: Divergence = field(init=False)
    _metrics: MetricsLog = field(init=False, default_factory=MetricsLog)

    def __post_init__(self) -> None:
        self._divergence = Divergence(self.recipe, self.run)

    def train(self, step: int) -> tuple[Ending, str]:
        """Train the phases that are left after ``step``; "requeue" and why where something asked for an end earlier.

        Raises:
            UnsavedError: something asked for it, and the last step's checkpoint could not be written.
        """
        self.saver = Saver(self.run, self.world, self.recipe.model, self.recipe.checkpoint, step, self._metrics.write)
        try:
            return self._train_phases(step)
        finally:
            watch(0)
            self._metrics.close()

    def _train_phases(self, step: int) -> tuple[Ending, str]:
        if self.world.is_first:
            export_if_missing(self.run, step, self.recipe.model)
        for config, (begin, end, phase) in zip(self.deepspeed_configs, self.recipe.phase_ranges(), strict=True):
            end = min(end, self.recipe.last_step)
            if step < end or (self.owes_validation and step == end):
                step, is_complete = self._train_phase(phase, config, begin, step, end)
                if not is_complete:
                    if why := self.saver.problem:
                        raise UnsavedError(
                            f"asked to stop after step {step}, whose checkpoint can't be written ({why.text}); make "
                            f"room: the same command goes on after step {self.saver.last}"
                        )
                    _log.info("stopped on request after step %d; run the same command to resume", step)
                    return "requeue", f"asked to stop after step {step}"
        if self.world.is_first:
            with contextlib.suppress(OSError):  # what is done stays so, whatever can't be read of it just now
                export = self.run.export(step)
                there = f"; the newest export is {export}" if export.is_dir() else ""
                _log.info("done: %s%s", counted(step, "step"), there)
                warn_of_a_rise(self.run, self.recipe)
        return "done", ""

    def _train_phase(self, phase: Phase, config: dict[str, Any], begin: int, step: int, end: int) -> tuple[int, bool]:
        """Train steps [step, end) of a phase that began at ``begin``, and validate.

        Returns:
            How far it got, and whether all is done that is due by then; if not, something asked for the end.
        """
        first = step
        self._watch()
        engine = self._start_engine(phase, config, step)
        if step == begin:
            self._divergence.enter(begin, phase)
            if phase.reset_moments:
                engine.reset_moments()
        steps = self._steps(phase, begin)
        validation = Validation(self.shards, self.recipe, phase, self.world) if self.recipe.log.validate_every else None
        ceiling = self.world.sum([measure_ceiling(self.world.device, engine.dtype)])[0]
        _log.info("ceiling: %.3f TFLOP/s of matrix products in %s over all ranks", ceiling / 1e12, engine.dtype)
        progress = Progress(self.world.is_first, self.recipe, step)
        bottlenecks, spent = Bottlenecks(self.world), defaultdict[str, float](float)
        loader = StepReader(steps, step - begin, end - begin, self.recipe.data.processes(self.world.device))
        profiled = StepProfile(self.recipe.log.profile_step * self.world.is_first, self.run.profile, self.world.device)
        self.stop.wait_for_the_step()
        if self.owes_validation:
            self._validate(validation, engine, step)
        stopped = self.owes_validation
        while step < end and not stopped:
            self._watch()
            laps = Laps(_HOST)
            batches, totals = self._take(loader, engine, laps, step)
            placed = [(steps.micro_batch_index(i), batch) for i, batch in enumerate(batches)]
            try:
                rate = self.recipe.learning_rate(step)
                metrics = engine.train_step(step, placed, totals, rate, meanwhile=loader.read_ahead)
            except NonFiniteError:
                self.saver.finish()  # what is being written is from before
                raise
            laps.lap("compute_seconds")
            step, stopped = step + 1, totals.stop > 0
            self._divergence.follow(step, metrics)
            if step == first + 1:
                self._tell_of_room(phase, len(batches), totals)
            stopped = self._save_and_validate(step, end, engine, validation, laps, stopped)
            seconds = laps.seconds()
            for part, taken in seconds.items():
                spent[part] += taken
            if step > first + 1:  # the first one also waits for loader processes to start, and for kernels
                _warn_of(bottlenecks, batches, metrics | seconds)
            self._report(step, metrics | _throughput(totals, seconds, ceiling), progress)
            profiled.after_step(step)
            if self._divergence.is_seen:
                self.saver.finish()
                raise self._divergence.error(step)
        self._watch()
        loader.close()
        profiled.close()
        progress.close()
        if step > first:
            _log.info("time of %s: %s", counted(step - first, "step"), _shares(spent))
        is_complete = step == end and not self.owes_validation and not (stopped and step < self.recipe.last_step)
        self._finish_saving(engine, step, is_complete)
        self._watch()
        engine.close()
        return step, is_complete

    def _tell_of_room(self, phase: Phase, accumulated: int, totals: GlobalCounts) -> None:
        """Say so where a GPU is given small micro-batches one after the other, and has memory for larger ones.

        A small one takes a fast GPU less time than the host needs to ask for it (docs/results/gpu.md).
        """
        share = memory_share(self.world.device)
        whole = max(1.0, phase.global_batch_size * phase.sequence_length / totals.slots)  # if all sequences were full
        size = roomiest_micro_batch(phase.micro_batch_size, accumulated, share * whole)
        if size > phase.micro_batch_size:
            _log.info(
                "%.0f%% of the GPU's memory is in use: phases.%d.micro_batch_size=%d fits too, and fewer, larger ones "
                "are faster", 100 * share, self.recipe.phases.index(phase), size,
            )  # fmt: skip

    def _watch(self) -> None:
        """What follows may take ``train.hang_seconds``."""
        watch(self.recipe.train.hang_seconds)

    def _save(self, engine: Engine, step: int, laps: Laps) -> None:
        self._watch()
        self.saver.begin(self._state(step, engine), engine)
        laps.lap("checkpoint_seconds")

    def _save_and_validate(
        self, step: int, end: int, engine: Engine, validation: Validation | None, laps: Laps, stopped: bool
    ) -> bool:
        """Do what of it is due after a step of a phase; returns whether something asked for the end by then."""
        kept = self.recipe.checkpoint
        is_saved = stopped or _is_due(kept.every, step, end) or _is_due(kept.keep_every, step, end)
        if is_saved:
            self._save(engine, step, laps)
        self.owes_validation = _is_due(self.recipe.log.validate_every, step, end)
        if self.owes_validation and not stopped:  # while the checkpoint is written
            self._validate(validation, engine, step)
            stopped = self.owes_validation
            laps.lap("validation_seconds")
            if stopped and not is_saved:
                self._save(engine, step, laps)
        return stopped

    def _finish_saving(self, engine: Engine, step: int, is_complete: bool) -> None:
        """Have the last step of a phase saved, and raise what keeps the run from going on after it."""
        self.saver.finish()
        if self.saver.problem:  # nothing comes any more that would be saved instead, and it may have passed
            self._save(engine, step, Laps(_HOST))
            self.saver.finish()
        if self._unreadable:
            raise self._without_checkpoint(self._unreadable)
        if is_complete and (why := self.saver.problem):
            raise (UnsavedError if why.passes else CheckpointError)(
                f"{self.run.path}: no checkpoint of step {step} ({why.text}); mend that, and give the same command: "
                f"it goes on after step {self.saver.last}"
            )

    def _take(self, loader: StepReader, engine: Engine, laps: Laps, step: int) -> tuple[list[Batch], GlobalCounts]:
        """This rank's micro-batches of the step after ``step``, and what the ranks agree on before it.

        Where a rank can't read its own, all of them save what they have trained, and raise what that rank says of it.
        """
        error: _Unreadable | None = None
        batches: list[Batch] = []
        try:
            batches = next(loader)
        except (LoaderError, DamagedShardError) as found:
            error = type(found)(f"rank {self.world.rank}: {found}")
        laps.lap("data_seconds")
        totals = engine.count_step(batches, self.stop.received, self.saver.writing, unreadable=error is not None)
        laps.lap("compute_seconds")
        if totals.unreadable:
            self.saver.finish()
            if self.saver.last != step:  # what is complete is not written again: a kill could take both
                self.saver.begin(self._state(step, engine), engine)
                self.saver.finish()
            raise self._without_checkpoint(next(filter(None, self.world.gather(error))))
        if not totals.writing:
            self.saver.settle()
        laps.lap("checkpoint_seconds")
        return batches, totals

    def _without_checkpoint(self, error: _Unreadable) -> _Unreadable:
        """The same error, which says so where what was trained before it could not be saved."""
        why = self.saver.problem
        return type(error)(f"{error}; no checkpoint of the last step ({why.text})") if why else error

    def _start_engine(self, phase: Phase, config: dict[str, Any], step: int) -> Engine:
        """The engine of a phase with the weights after ``step``; for 0 new ones, or those that the run begins with."""
        recipe, world = self.recipe, self.world
        beginning = find_given(self.init_from) if self.init_from and not step else None
        branch = beginning if isinstance(beginning, GivenCheckpoint) else None
        export = beginning.weights(recipe) if isinstance(beginning, GivenExport) else None
        checkpoint = self.run.checkpoint(step) if step else branch.directory if branch else None
        state = read_run_state(checkpoint) if checkpoint else None
        engine = Engine(
            recipe, config, world, checkpoint=checkpoint, weights=export.state if export else None,
            loss_scale=state.loss_scale if state else None, monitors=self.monitors, step=step,
        )  # fmt: skip
        _log.info("model: %s parameters, ZeRO stage %d", f"{parameter_count(recipe.model):,}", engine.zero_stage)
        _log.info(
            "batch: %d samples of %d tokens = %d rank(s) on %s, %d thread(s) each, x %d x %d accumulated",
            phase.global_batch_size, phase.sequence_length, world.size, world.device.type, torch.get_num_threads(),
            phase.micro_batch_size, config["gradient_accumulation_steps"],
        )  # fmt: skip
        if export:
            lacking = f", which has no {', '.join(export.initialized)}: newly initialised" if export.initialized else ""
            _log.info("begins with the weights of %s%s", self.init_from, lacking)
        if branch:
            branch.tell(engine.optimizer_step, recipe, self.shards)
        elif state:
            self._divergence.trend = state.trend
            _log.info("resumed after step %d from %s", step, checkpoint)
            warn_of_other_bits(state, world, self.written.code)
        return engine

    def _steps(self, phase: Phase, begin: int) -> Steps:
        stream = train_stream(self.recipe, phase, self.shards)
        end = min(begin + phase.steps, self.recipe.last_step)
        first, last = (self.recipe.samples(step, phase.sequence_length) for step in (begin, end))
        reads = (read.describe(self.shards.source(read.directory)) for read in stream.reads(first, last))
        skipped = count_skipped(self.recipe.data.skip, first, last)
        without = f"; {skipped:,} of them are skipped" if skipped else ""
        _log.info("data: %s%s", "; ".join(reads), without)
        return Steps(stream, phase.global_batch_size, phase.micro_batch_size, self.world.rank, self.world.size, first)

    def _report(self, step: int, metrics: dict[str, float], progress: Progress) -> None:
        metrics["peak_memory_gb"] = peak_memory(self.world.device) / 1e9
        if self.world.is_first:
            samples = self.recipe.samples(step)
            line = {"step": step, "time": time.time(), "samples": samples, **metrics}
            self._metrics.add(self.run.metrics, line)
            progress.show(line)
            self.monitors.report(samples, metrics, "Train")

    def _validate(self, validation: Validation | None, engine: Engine, step: int) -> None:
        """Validate; owed still is what a rank does not come to, asked to stop or without its part of the data."""
        assert validation is not None
        try:
            figures = validation.figures(engine, lambda: self.stop.received)
        except (LoaderError, DamagedShardError) as error:
            self._unreadable, figures = error, None
        if figures is None:
            return
        self.owes_validation = False
        if self.world.is_first:
            self._metrics.add(self.run.validation_metrics, {"step": step, "time": time.time(), **figures})
            self.monitors.report(self.recipe.samples(step), figures, "Validation")
            for told in describe(figures, self.recipe.train.next_sentence):
                _log.info("step %d, %s", step, told)

    def _state(self, step: int, engine: Engine) -> RunState:
        recipe = self.recipe
        return RunState(
            step=step,
            samples=recipe.samples(step),
            world_size=self.world.size,
            threads=torch.get_num_threads(),
            manifest_blake2b=self.shards.manifest_blake2b,
            config_blake2b=self.written.config_blake2b,
            code=self.written.code,
            trend=self._divergence.trend,
            loss_scale=engine.loss_scale,
            learner=Learner(
                asdict(recipe.model), self.shards.vocabulary.blake2b, recipe.optimizer.name, recipe.train.seed
            ),
            arithmetic=arithmetic_of(self.world.device),
        )


def owes_validation(run: RunDirectory, recipe: Recipe, step: int) -> bool:
    """Whether the step that a run goes on from was to be validated, and something asked for the end before that."""
    ends = (min(end, recipe.last_step) for begin, end, _ in recipe.phase_ranges() if begin < step <= end)
    is_due = any(_is_due(recipe.log.validate_every, step, end) for end in ends)
    return is_due and not has_line(run.validation_metrics, step)


def _warn_of(bottlenecks: Bottlenecks, batches: Sequence[Batch], seconds: Mapping[str, float]) -> None:
    """Say what all ranks wait for, by the seconds of this rank's parts of a step."""
    tokens = sum(len(batch.tokens.input_ids) for batch in batches)
    forward, wait = seconds["forward_seconds"], seconds["data_seconds"]
    asking = seconds.get("host_share", 0.0)  # a CPU asks nobody
    for line in bottlenecks.after_step(forward, wait, wait + seconds["compute_seconds"], tokens, asking):
        _log.warning(line)


def _shares(spent: Mapping[str, float]) -> str:
    """Where the time of all steps went, in words."""
    total = sum(spent.values()) or 1.0
    return ", ".join(f"{part.removesuffix('_seconds')} {seconds / total:.2%}" for part, seconds in spent.items())


def _throughput(totals: GlobalCounts, seconds: Mapping[str, float], ceiling: float) -> dict[str, float]:
    """Seconds of the parts of a step, and rates while it waited for data and computed."""
    rated = seconds["data_seconds"] + seconds["compute_seconds"]
    return {
        **seconds,
        "tokens_per_second": totals.tokens / rated,
        "tflops": totals.flops / rated / 1e12,
        "mfu": totals.flops / rated / ceiling,
        "padding": 1 - totals.tokens / totals.slots,
    }


def _is_due(every: int, step: int, end: int) -> bool:
    return every > 0 and (step % every == 0 or step == end)
