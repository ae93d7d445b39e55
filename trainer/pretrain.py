"""Pretrain BERT on shards.

    deepspeed trainer/pretrain.py --config trainer/recipes/bert_large.toml --deepspeed_config ds_config.json \
        --shards shards/ --output runs/large [section.key=value ...]

The same command again goes on where the run stopped. One rank per GPU, or per --num_accelerators on CPUs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import math
import os
import re
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# `deepspeed trainer/pretrain.py` puts trainer/ first on the module path, where our names would hide others'.
if sys.path and Path(sys.path[0]).resolve() == Path(__file__).resolve().parent:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch

from preprocessing.schema import ShardError, checksum
from preprocessing.tokenization import VocabularyError
from trainer.checkpoint import (
    CheckpointError,
    Ending,
    RunDirectory,
    RunState,
    append_line,
    read_run_state,
    step_number,
    write_atomically,
)
from trainer.config import Phase, Recipe, differences, load_recipe, resolve_deepspeed, to_toml
from trainer.corpus import Corpus, open_corpus
from trainer.data import Batch, SampleStream, evaluation_batches, validation_stream
from trainer.engine import (
    Engine,
    GlobalCounts,
    device_kind,
    fp16_is_supported,
    join_world,
)
from trainer.fp8 import why_not_fp8
from trainer.hugging_face import load_export
from trainer.lineage import code_version, uncommitted_changes
from trainer.loading import DamagedShardError, LoaderError, StepReader, Steps
from trainer.metrics import measure_ceiling, peak_memory
from trainer.model import parameter_count
from trainer.non_finite import NonFiniteError
from trainer.progress import Clock, Progress
from trainer.saving import Saver, export_if_missing
from trainer.settings import ConfigError
from trainer.sharded_state import StateError, verify_state
from trainer.stopping import StopRequests, watch
from trainer.world import World, has_joined, leave_world

_log = logging.getLogger("pretrain")


# What the same command would meet again: a run that ended so is not worth starting again as it is.
_COMES_AGAIN = (ConfigError, ShardError, VocabularyError, CheckpointError, StateError, NonFiniteError)


def main(argv: Sequence[str] | None = None) -> int:
    """Train or go on training; exits with 2 for a mistake in what was asked for, 1 for what went wrong on the way.

    How a run ended, trainer.outcome tells: whatever else is raised is a crash, of which the run directory has no word.
    """
    arguments = _parse(argv)
    first = os.environ.get("RANK", "0") == "0"
    logging.basicConfig(level=logging.INFO if first else logging.ERROR, format="%(message)s", force=True)
    try:
        pretrain(arguments)
    except LoaderError as error:  # of all ranks, and a crash
        if first:
            print(f"error: {error}", file=sys.stderr)
        return 1
    except _COMES_AGAIN as error:
        if _write_failure(RunDirectory(arguments.output), str(error)):
            print(f"error: {error}", file=sys.stderr)
        return 1 if isinstance(error, NonFiniteError | DamagedShardError) else 2
    finally:
        leave_world()
    return 0


def _write_failure(run: RunDirectory, reason: str) -> bool:
    """Leave word of an error where there is a run; returns whether it is this rank that tells it."""
    first = os.environ.get("LOCAL_RANK", "0") == "0"  # a node's disk may have trouble of its own
    if not run.config.is_file():
        return first
    if has_joined():  # by now it may be one rank's alone: whoever is first tells
        return run.claim_outcome("failed", reason)
    if first and not (run.outcome and run.outcome.ending == "done"):
        run.set_outcome("failed", reason)  # in the place of a "requeue" that led here
    return first


def pretrain(arguments: argparse.Namespace) -> None:
    """Check everything on every rank before anything is written; then train."""
    stop = StopRequests()
    recipe = load_recipe(arguments.config, arguments.settings)
    shards = open_corpus(arguments.shards, recipe.data.cache_dir, recipe.data.verify)
    run = RunDirectory(arguments.output)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    for phase in recipe.phases:
        config = resolve_deepspeed(arguments.deepspeed_config, recipe, phase, ranks)
        _train_stream(recipe, phase, shards)
        _check_validation(recipe, phase, shards)
    _check_precision(recipe, config)  # which is the same in all phases
    _check_vocabulary(recipe, shards)
    _check_run(run, recipe, shards)
    if arguments.init_from and not run.step:
        _initial_weights(arguments.init_from, recipe)
    if run.step >= recipe.last_step:
        if os.environ.get("RANK", "0") == "0":
            export_if_missing(run, run.step, recipe.model)
            run.set_outcome("done")
        _log.info("%s: done already, %d steps", run.path, run.step)
        return

    world = join_world(recipe.train.threads)
    if world.is_first:
        run.set_outcome(None)
    if recipe.data.verify and not recipe.data.cache_dir:  # a cache has compared them already
        shards.verify(world.rank, world.size, world.sum)
    if world.is_first:
        try:
            _write_run(run, recipe, arguments.deepspeed_config, shards)
        except OSError as error:
            raise CheckpointError(f"{run.path}: can't be written ({error.strerror}); choose another --output") from None
    world.barrier()
    saver = Saver(run, world, recipe.model, recipe.checkpoint)
    session = Session(arguments.deepspeed_config, arguments.init_from, recipe, shards, run, world, stop, saver)
    tracking = _start_tracking(run, recipe) if world.is_first else contextlib.nullcontext()
    with tracking:
        ending, reason = session.train()
    if world.is_first:
        run.set_outcome(ending, reason)


@dataclass
class Session:
    """One start of the trainer: what every part of the loop needs."""

    deepspeed_config: Path
    init_from: Path | None
    recipe: Recipe
    shards: Corpus
    run: RunDirectory
    world: World
    stop: StopRequests
    saver: Saver
    unwritten: list[tuple[Path, dict[str, Any]]] = field(default_factory=list)  # lines of metrics

    def train(self) -> tuple[Ending, str]:
        """Train the phases that are left; "requeue" and why where something asked for an end before they were done."""
        step = self.world.agree(_newest_good_step(self.run) if self.world.is_first else 0)
        if self.world.is_first:
            export_if_missing(self.run, step, self.recipe.model)
        for begin, end, phase in self.recipe.phase_ranges():
            end = min(end, self.recipe.last_step)
            if step < end:
                step, stopped = self._train_phase(phase, begin, step, end)
                if stopped and step < self.recipe.last_step:
                    _log.info("asked to stop after step %d; the same command goes on from there", step)
                    return "requeue", f"asked to stop after step {step}"
        _log.info("done: %d steps; the newest export is %s", step, self.run.export(step))
        return "done", ""

    def _train_phase(self, phase: Phase, begin: int, step: int, end: int) -> tuple[int, bool]:
        """Train steps [step, end) of a phase that began at ``begin``; returns how far it got and whether to stop."""
        first = step
        engine = self._start_engine(phase, step)
        if step == begin and phase.reset_moments:
            engine.reset_moments()
        steps = self._steps(phase, begin)
        ceiling = self.world.sum([measure_ceiling(self.world.device, engine.dtype)])[0]
        _log.info("ceiling: %.3f TFLOP/s of matrix products in %s over all ranks", ceiling / 1e12, engine.dtype)
        progress, clock = Progress(self.world.is_first, self.recipe, step), Clock()
        loader = StepReader(steps, step - begin, end - begin, self.recipe.data.workers)
        stopped = False
        while step < end and not stopped:
            watch(self.recipe.train.hang_seconds)
            clock.restart()
            batches, totals = self._take(loader, engine, clock, step if step > first else 0)
            placed = [(steps.micro_batch_index(i), batch) for i, batch in enumerate(batches)]
            try:
                rate = self.recipe.learning_rate(step)
                metrics = engine.train_step(step, placed, totals, rate, meanwhile=loader.read_ahead)
            except NonFiniteError:
                self.saver.finish()  # what is being written is from before
                raise
            clock.lap("compute_seconds")
            step, stopped = step + 1, totals.stop
            if _is_due(self.recipe.log.validate_every, step, end):
                self._validate(engine, phase, step)
                clock.lap("validation_seconds")
            if stopped or _is_due(self.recipe.checkpoint.every, step, end):
                self.saver.begin(self._state(step, engine), engine)
                clock.lap("checkpoint_seconds")
            self._report(step, metrics | _throughput(totals, clock, ceiling), progress)
        watch(0)
        loader.close()
        progress.close()
        _log.info("time of %d steps: %s", step - first, clock.shares())
        self.saver.finish()
        engine.close()
        if self.saver.last != step:
            raise CheckpointError(f"{self.run.path}: no checkpoint of step {step} ({self.saver.problem})")
        return step, stopped

    def _take(self, loader: StepReader, engine: Engine, clock: Clock, trained: int) -> tuple[list[Batch], GlobalCounts]:
        """This rank's micro-batches of the next step, and what the ranks agree on before it.

        Where a rank can't read its own, all of them save what they have trained, up to step ``trained`` (0: nothing
        new), and raise what that rank says of it.
        """
        error: LoaderError | DamagedShardError | None = None
        batches: list[Batch] = []
        try:
            batches = next(loader)
        except (LoaderError, DamagedShardError) as found:
            error = type(found)(f"rank {self.world.rank}: {found}")
        clock.lap("data_seconds")
        totals = engine.count_step(batches, self.stop.received, self.saver.writing, unreadable=error is not None)
        clock.lap("compute_seconds")
        if totals.unreadable:
            if trained:
                self.saver.begin(self._state(trained, engine), engine)
            self.saver.finish()
            raise next(filter(None, self.world.gather(error)))
        if not totals.writing:
            self.saver.settle()
        clock.lap("checkpoint_seconds")
        return batches, totals

    def _start_engine(self, phase: Phase, step: int) -> Engine:
        """The engine of a phase with the weights after ``step``, new ones for 0."""
        recipe, world = self.recipe, self.world
        config = resolve_deepspeed(self.deepspeed_config, recipe, phase, world.size)
        checkpoint = self.run.checkpoint(step) if step else None
        weights = _initial_weights(self.init_from, recipe) if self.init_from and not checkpoint else None
        loss_scale = read_run_state(checkpoint).loss_scale if checkpoint else None
        engine = Engine(recipe, config, world, checkpoint=checkpoint, weights=weights, loss_scale=loss_scale)
        assert engine.parameters == parameter_count(recipe.model)
        _log.info(
            "model: %s parameters, ZeRO stage %d",
            f"{engine.parameters:,}", config.get("zero_optimization", {}).get("stage", 0),
        )  # fmt: skip
        _log.info(
            "batch: %d samples of %d tokens = %d rank(s) on %s, %d thread(s) each, x %d x %d accumulated",
            phase.global_batch_size, phase.sequence_length, world.size, world.device.type, torch.get_num_threads(),
            phase.micro_batch_size, config["gradient_accumulation_steps"],
        )  # fmt: skip
        if checkpoint:
            _log.info("resumed after step %d from %s", step, checkpoint)
            _warn_of_other_bits(read_run_state(checkpoint), world)
        if world.is_first:
            self.run.cut_metrics(step)
        return engine

    def _steps(self, phase: Phase, begin: int) -> Steps:
        stream = _train_stream(self.recipe, phase, self.shards)
        first = sum(  # phases of one length read one stream
            (to - since) * earlier.global_batch_size
            for since, to, earlier in self.recipe.phase_ranges()
            if to <= begin and earlier.sequence_length == phase.sequence_length
        )
        return Steps(stream, phase.global_batch_size, phase.micro_batch_size, self.world.rank, self.world.size, first)

    def _report(self, step: int, metrics: dict[str, float], progress: Progress) -> None:
        metrics["peak_memory_gb"] = peak_memory(self.world.device) / 1e9
        if self.world.is_first:
            line = {"step": step, "time": time.time(), "samples": _samples(self.recipe, step), **metrics}
            self._log_line(self.run.metrics, line)
            progress.show(line)

    def _log_line(self, path: Path, line: dict[str, Any]) -> None:
        """Add a line to a file, and those that found no room before."""
        self.unwritten.append((path, line))
        try:
            while self.unwritten:
                append_line(*self.unwritten[0])
                self.unwritten.pop(0)
        except OSError as error:
            if len(self.unwritten) == 1:
                _log.error("%s: can't be written (%s); its lines are kept until they can", path, error.strerror)

    def _validate(self, engine: Engine, phase: Phase, step: int) -> None:
        stream = validation_stream(self.shards.directories, phase.sequence_length, self.recipe.model.is_decoder)
        samples = min(stream.size, self.recipe.log.validation_samples)
        batches = evaluation_batches(stream, samples, phase.micro_batch_size, self.world.rank, self.world.size)
        metrics = engine.evaluate(batches)
        metrics["perplexity"] = math.exp(min(metrics["mlm_loss"], 700.0))  # a run that diverges is not ended by it
        if self.world.is_first:
            self._log_line(self.run.validation_metrics, {"step": step, "time": time.time(), **metrics})
            _log.info(
                "step %d, held out: loss %.4f, perplexity %.1f, MLM accuracy %.4f, NSP accuracy %.4f",
                step, metrics["loss"], metrics["perplexity"], metrics["mlm_accuracy"], metrics["nsp_accuracy"],
            )  # fmt: skip

    def _state(self, step: int, engine: Engine) -> RunState:
        return RunState(
            step=step,
            samples=_samples(self.recipe, step),
            world_size=self.world.size,
            threads=torch.get_num_threads(),
            manifest_blake2b=self.shards.manifest_blake2b,
            config_blake2b=checksum(self.run.config),
            loss_scale=engine.loss_scale,
        )


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="deepspeed [--num_accelerators N] trainer/pretrain.py",
        description="Pretrain BERT on shards. The same command again goes on where the run stopped.",
        epilog="Settings are those of the recipe, as section.key=value: train.max_steps=10 model.num_hidden_layers=2 "
        "phases.0.micro_batch_size=8. docs/training.md explains all of them.",
    )
    parser.add_argument("--config", type=Path, required=True, metavar="TOML", help="the recipe; see trainer/recipes/")
    parser.add_argument(
        "--deepspeed_config", type=Path, default=Path("ds_config.json"), metavar="JSON",
        help="DeepSpeed's own knobs: ZeRO, precision, offload, communication (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--shards", nargs="+", required=True, metavar="DIR",
        help="made by preprocessing/make_shards.py; several are mixed by data.weights, or else by their numbers of "
        "pairs; with data.cache_dir also URLs that fsspec opens",
    )  # fmt: skip
    parser.add_argument(
        "--output", type=Path, required=True, metavar="DIR", help="the run directory, new or to go on with"
    )
    parser.add_argument(
        "--init-from", type=Path, metavar="DIR",
        help="begin with the weights of a Hugging Face BERT directory (continued pretraining); a resume has its own",
    )  # fmt: skip
    parser.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)  # the launcher's; LOCAL_RANK says the same
    parser.add_argument("settings", nargs="*", metavar="section.key=value", help="settings that replace the recipe's")
    arguments = parser.parse_args(argv)
    taken = [text for text in arguments.shards if re.fullmatch(r"\w+(\.\w+)+=.*", text)]  # by the open-ended --shards
    arguments.shards = [text for text in arguments.shards if text not in taken]
    arguments.settings = [*taken, *arguments.settings]
    if not arguments.shards:
        parser.error("--shards names no directory")
    return arguments


def _train_stream(recipe: Recipe, phase: Phase, shards: Corpus) -> SampleStream:
    return SampleStream(
        shards.directories,
        "train",
        phase.sequence_length,
        seed=recipe.train.seed,
        max_predictions=phase.max_predictions,
        masking=recipe.masking,
        data=recipe.data,
        causal=recipe.model.is_decoder,
    )


def _check_precision(recipe: Recipe, config: dict[str, Any]) -> None:
    if config.get("fp16", {}).get("enabled") and not fp16_is_supported():
        raise ConfigError("fp16: this machine's processor can't compute in it; use bf16, or train on GPUs")
    if recipe.train.fp8 and (reason := why_not_fp8(device_kind())):
        raise ConfigError(f"train.fp8: {reason}")


def _check_validation(recipe: Recipe, phase: Phase, shards: Corpus) -> None:
    if recipe.log.validate_every:
        try:
            validation_stream(shards.directories, phase.sequence_length, recipe.model.is_decoder)
        except ShardError as error:
            raise ConfigError(f"{error}; or set log.validate_every=0") from error


def _check_vocabulary(recipe: Recipe, shards: Corpus) -> None:
    found, wanted = shards.vocabulary.size, recipe.model.vocab_size
    if found != wanted:
        raise ConfigError(
            f"{shards.name}: made with a vocabulary of {found} entries, but model.vocab_size is {wanted}; "
            f"set model.vocab_size={found} or make shards with the model's vocabulary"
        )


def _initial_weights(directory: Path, recipe: Recipe) -> dict[str, torch.Tensor]:
    """The weights of a Hugging Face directory, heads included where it has them.

    Raises:
        ConfigError: it can't be read or is not the recipe's model.
    """
    try:
        export = load_export(directory, recipe.train.seed)
    except ValueError as error:
        raise ConfigError(f"--init-from: {error}") from error
    sizes = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act",
             "is_decoder", "pre_layer_norm", "max_position_embeddings", "type_vocab_size",
             "layer_norm_eps")  # fmt: skip
    for name in sizes:
        found, wanted = getattr(export.config, name), getattr(recipe.model, name)
        if found != wanted:
            raise ConfigError(
                f"--init-from: {directory} has {name} {found}, the recipe {wanted}; set model.{name}={found}"
            )
    if export.initialized:
        _log.info("%s has no %s: newly initialised", directory, ", ".join(export.initialized))
    return export.state


def _check_run(run: RunDirectory, recipe: Recipe, shards: Corpus) -> None:
    """See that the run directory is new or was begun by this very command."""
    if run.path.exists() and not run.path.is_dir():
        raise CheckpointError(f"{run.path}: a file; choose another --output")
    if not run.path.exists() or all(path == run.job for path in run.path.iterdir()):
        return
    if not run.config.is_file():
        raise CheckpointError(f"{run.path}: holds something that is not a run; choose another --output")
    advice = "choose another --output, or go on with what the run was started with"
    changed = differences(load_recipe(run.config), recipe)
    if changed:
        raise CheckpointError(f"{run.path}: the run was started with other settings ({'; '.join(changed)}); {advice}")
    if run.manifest.is_file() and checksum(run.manifest) != shards.manifest_blake2b:
        raise CheckpointError(f"{run.path}: the run was started with other shards than {shards.name}; {advice}")


def _newest_good_step(run: RunDirectory) -> int:
    """The step of the newest checkpoint whose checksums are right; a damaged one is passed over with a warning."""
    for checkpoint in run.candidates():
        try:
            read_run_state(checkpoint)
            verify_state(checkpoint)
        except (CheckpointError, StateError) as error:
            _log.warning("passed over a damaged checkpoint: %s", error)
        else:
            return step_number(checkpoint)
    return 0


def _warn_of_other_bits(state: RunState, world: World) -> None:
    """Say so where a run goes on in a way that makes the last bits differ."""
    if (state.world_size, state.threads) != (world.size, torch.get_num_threads()):
        _log.warning(
            "written by %d rank(s) of %d thread(s), gone on with by %d of %d: the same samples, masks and dropout, but "
            "the last bits of the losses will differ",
            state.world_size, state.threads, world.size, torch.get_num_threads(),
        )  # fmt: skip


def _write_run(run: RunDirectory, recipe: Recipe, deepspeed_config: Path, shards: Corpus) -> None:
    """Write down what this start of the run is made of."""
    run.path.mkdir(parents=True, exist_ok=True)
    shutil.copytree(shards.tokenizer, run.tokenizer, dirs_exist_ok=True)
    write_atomically(run.manifest, shards.manifest)
    write_atomically(run.deepspeed_config, deepspeed_config.read_text(encoding="utf-8"))
    write_atomically(run.path / "code.json", json.dumps(code_version(), indent=2) + "\n")
    write_atomically(run.path / "code.diff", uncommitted_changes())
    write_atomically(run.config, to_toml(recipe))  # last: with it the directory is a run


def _start_tracking(run: RunDirectory, recipe: Recipe) -> contextlib.AbstractContextManager[Any]:
    if not recipe.tracking.enabled:
        return contextlib.nullcontext()
    from trainer.tracking import Tracker  # seconds to import, and only one rank needs it

    return Tracker(run, recipe.tracking.experiment, recipe.tracking.system_metrics)


def _throughput(totals: GlobalCounts, clock: Clock, ceiling: float) -> dict[str, float]:
    """Seconds of the parts of a step, and rates while it waited for data and computed."""
    seconds = clock.parts["data_seconds"] + clock.parts["compute_seconds"]
    return {
        **clock.parts,
        "tokens_per_second": totals.tokens / seconds,
        "tflops": totals.flops / seconds / 1e12,
        "mfu": totals.flops / seconds / ceiling,
        "padding": 1 - totals.tokens / totals.slots,
    }


def _samples(recipe: Recipe, step: int) -> int:
    """Samples seen after ``step`` steps."""
    return sum(
        (min(end, step) - begin) * phase.global_batch_size
        for begin, end, phase in recipe.phase_ranges()
        if step > begin
    )


def _is_due(every: int, step: int, end: int) -> bool:
    return every > 0 and (step % every == 0 or step == end)


if __name__ == "__main__":
    sys.exit(main())
