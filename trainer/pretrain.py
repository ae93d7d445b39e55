"""Pretrain BERT on shards.

    deepspeed trainer/pretrain.py --config trainer/recipes/bert_large.toml --deepspeed_config ds_config.json \
        --shards shards/ --output runs/large [section.key=value ...]

The same command again goes on where the run stopped. One rank per GPU, or per --num_accelerators on CPUs.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

# `deepspeed trainer/pretrain.py` puts trainer/ first on the module path, where our names would hide others'.
if sys.path and Path(sys.path[0]).resolve() == Path(__file__).resolve().parent:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch

from preprocessing.schema import ShardError, checksum
from preprocessing.tokenization import (
    TOKENIZER_FILE,
    VOCABULARY_FILE,
    VocabularyError,
    load_vocabulary,
    load_words,
)
from trainer.checkpoint import read_run_state, remove_leftovers, set_aside
from trainer.config import Phase, Recipe, differences, load_recipe, other_draws, to_toml
from trainer.corpus import Corpus, open_corpus
from trainer.data import validation_stream
from trainer.deepspeed_config import resolve_deepspeed
from trainer.engine import device_kind, fp16_is_supported, join_world
from trainer.files import is_full, write_atomically
from trainer.fp8 import why_not_fp8
from trainer.hugging_face import WEIGHTS
from trainer.leases import RunInUseError, hold_run
from trainer.lineage import code_version, uncommitted_changes
from trainer.loading import DamagedShardError, LoaderError
from trainer.non_finite import NonFiniteError
from trainer.outcome import MISTAKE
from trainer.run_directory import CheckpointError, RunDirectory, step_number
from trainer.saving import Saver, export_if_missing
from trainer.session import Session, initial_weights, owes_validation, train_stream
from trainer.settings import ConfigError, is_override
from trainer.sharded_state import StateError, verify_state
from trainer.stopping import StopRequests, end_at_once, wait_for_first
from trainer.world import PortInUseError, World, has_joined, leave_world

_log = logging.getLogger("pretrain")
_Result = TypeVar("_Result")

# What the same command would meet again: a run that ended so is not worth starting again as it is.
_COMES_AGAIN = (ConfigError, ShardError, VocabularyError, CheckpointError, StateError, NonFiniteError)

# Seconds for a node's first rank, which may still import torch, to tell a mistake that all ranks meet: launchers end
# all ranks with the first that ends, and the others' end must not come before its word.
_HEAD_START = 30.0


def main(argv: Sequence[str] | None = None) -> int:
    """Train or go on training; returns 2 for a mistake in what was asked for, 1 for what went wrong on the way.

    How a run ended, trainer.outcome tells: of a crash the run directory has no word.
    """
    arguments = _parse(argv)
    first = os.environ.get("RANK", "0") == "0"
    nowhere = Path(os.devnull).open("w")  # noqa: SIM115  for streams that the caller has closed, as by `2>&-`
    sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere
    logging.basicConfig(level=logging.INFO if first else logging.ERROR, format="%(message)s", force=True)
    with contextlib.ExitStack() as held:  # let go when the end is told: MLflow may take a minute
        try:
            pretrain(arguments, held)
        except (LoaderError, RunInUseError, PortInUseError) as error:  # of all ranks, and nothing that must come again
            if first:
                print(f"error: {error}", file=sys.stderr)
            return 1
        except _COMES_AGAIN as error:
            if _write_failure(RunDirectory(arguments.output), str(error)):
                print(f"error: {error}", file=sys.stderr)
            return 1 if isinstance(error, NonFiniteError | DamagedShardError) else MISTAKE
        except Exception:  # maybe of this rank alone, while the others wait for it: told at once, before anything waits
            traceback.print_exc()
            return 1
    return 0


def _write_failure(run: RunDirectory, reason: str) -> bool:
    """Leave word of an error where there is a run; returns whether it is this rank that tells it."""
    first = os.environ.get("LOCAL_RANK", "0") == "0"  # a node's disk may have trouble of its own, and so may a rank
    first = first or not (has_joined() or wait_for_first(_HEAD_START))
    if not run.config.is_file():
        return first
    try:
        if has_joined():  # by now it may be one rank's alone: whoever is first tells
            return run.claim_outcome("failed", reason)
        if first:
            with hold_run(run, patience=0):
                if run.ending != "done":
                    run.set_outcome("failed", reason)  # in the place of a "requeue" that led here
    except RunInUseError:
        pass  # how a run ends that another trainer holds is that one's to tell
    except OSError as error:
        _log.error("%s: can't be written (%s)", run.path, error.strerror)
        return first or has_joined()
    return first


def pretrain(arguments: argparse.Namespace, held: contextlib.ExitStack) -> None:
    """Check everything on every rank before anything is written; then train.

    Args:
        arguments: of the command line.
        held: gets what the first rank holds for as long as its process does its work.
    """
    stop = StopRequests()
    recipe = load_recipe(arguments.config, arguments.settings)
    shards = open_corpus(arguments.shards, recipe.data.cache_dir, recipe.data.verify)
    run = RunDirectory(arguments.output)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    configs = [resolve_deepspeed(arguments.deepspeed_config, recipe, phase, ranks) for phase in recipe.phases]
    for phase in recipe.phases:
        train_stream(recipe, phase, shards)
        _check_validation(recipe, phase, shards)
    _check_precision(recipe, configs[0])  # which is the same in all phases
    _check_vocabulary(recipe, shards)
    _check_segments(recipe, shards)
    _check_run(run, recipe, shards)
    if arguments.init_from and not run.step:
        _check_initial_vocabulary(arguments.init_from, shards)
        initial_weights(arguments.init_from, recipe)

    world = join_world(recipe.train.threads)
    world.gather(None)  # under NCCL ranks meet here only: none takes the run while another may still find a mistake
    step = _on_first(world, lambda: _take_over(run, recipe, shards, arguments.init_from, held))
    owed = _on_first(world, lambda: step > 0 and owes_validation(run, recipe, step))
    if step >= recipe.last_step and not owed:
        if world.is_first:
            export_if_missing(run, step, recipe.model)
            run.set_outcome("done")
        _log.info("%s: done already, %d steps", run.path, step)
        leave_world()
        return
    if recipe.data.verify and not recipe.data.cache_dir:  # a cache has compared them already
        shards.verify(world.rank, world.size, world.sum)
    _on_first(world, lambda: _write_run(run, recipe, arguments, shards, step))
    _warn_of_the_warmup(recipe)
    saver = Saver(run, world, recipe.model, recipe.checkpoint)
    session = Session(configs, arguments.init_from, recipe, shards, run, world, stop, saver, owed)
    if world.is_first:
        held.enter_context(_start_tracking(run, recipe))
    ending, reason = session.train(step)
    if world.is_first:
        run.set_outcome(ending, reason)
    leave_world()  # only where all ranks do: with one that failed, NCCL's good order could wait for ever


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="deepspeed [--num_accelerators N] trainer/pretrain.py",
        description="Pretrain BERT on shards. The same command again goes on where the run stopped.",
        epilog="Settings are those of the recipe, as section.key=value: train.max_steps=10 model.num_hidden_layers=2 "
        "phases.0.micro_batch_size=8. docs/training.md lists them, trainer/config.py explains each.",
    )
    parser.add_argument("--config", type=Path, required=True, metavar="TOML", help="the recipe; see trainer/recipes/")
    parser.add_argument(
        "--deepspeed_config", type=Path, default=Path("ds_config.json"), metavar="JSON",
        help="DeepSpeed's own knobs: ZeRO, precision, offload, communication (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--shards", nargs="+", action="extend", required=True, metavar="DIR",
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
    arguments = parser.parse_intermixed_args(argv)
    taken = [text for text in arguments.shards if is_override(text)]  # by the open-ended --shards
    arguments.shards = [text for text in arguments.shards if text not in taken]
    arguments.settings = [*taken, *arguments.settings]
    if not arguments.shards:
        parser.error("--shards names no directory")
    return arguments


def _check_precision(recipe: Recipe, config: dict[str, Any]) -> None:
    if config.get("fp16", {}).get("enabled") and not fp16_is_supported():
        raise ConfigError("fp16: this machine's processor can't compute in it; use bf16, or train on GPUs")
    if recipe.train.fp8 and (reason := why_not_fp8(device_kind())):
        raise ConfigError(f"train.fp8: {reason}")
    if recipe.train.fused and (reason := why_not_fused(device_kind())):
        raise ConfigError(f"train.fused: {reason}")


def why_not_fused(device: torch.device) -> str:
    """What keeps this machine from the kernels of trainer.fused, or ''."""
    if device.type != "cuda":
        return "its kernels are for GPUs; leave it out on a CPU"
    return "" if find_spec("triton") else "triton is not installed, which torch brings on Linux: pip install triton"


def _check_validation(recipe: Recipe, phase: Phase, shards: Corpus) -> None:
    if recipe.log.validate_every:
        try:
            validation_stream(shards.directories, phase.sequence_length, recipe.model.is_decoder)
        except ShardError as error:
            raise ConfigError(f"{error}; make them with --validation-fraction, or set log.validate_every=0") from error


def _check_vocabulary(recipe: Recipe, shards: Corpus) -> None:
    found, wanted = shards.vocabulary.size, recipe.model.vocab_size
    if found != wanted:
        raise ConfigError(
            f"{shards.name}: made with a vocabulary of {found} entries, but model.vocab_size is {wanted}; "
            f"set model.vocab_size={found} or make shards with the model's vocabulary"
        )


def _check_segments(recipe: Recipe, shards: Corpus) -> None:
    """See that there are next sentences to judge, and that the model knows the second of two segments."""
    for directory in shards.directories:
        if recipe.train.next_sentence and not directory.manifest.next_sentence:
            raise ConfigError(
                f"{directory.path}: made with --no-nsp, so there are no next sentences to learn from; "
                "set train.next_sentence=false, or make shards without --no-nsp"
            )
        if recipe.model.type_vocab_size < 2 and directory.manifest.next_sentence:
            raise ConfigError(
                f"{directory.path}: samples have two segments, but model.type_vocab_size is "
                f"{recipe.model.type_vocab_size}; set it to 2, or make shards with --no-nsp"
            )


def _check_initial_vocabulary(directory: Path, shards: Corpus) -> None:
    """See that the words of a Hugging Face directory, where it tells them, are those of the shards."""
    wanted = load_vocabulary(shards.tokenizer / VOCABULARY_FILE)
    if not any((directory / name).is_file() for name in (VOCABULARY_FILE, TOKENIZER_FILE)):
        return
    try:
        found = load_words(directory)
    except VocabularyError as error:
        raise ConfigError(f"--init-from: {error}") from error
    if found != wanted:
        pairs = itertools.zip_longest(found, wanted)
        i, (theirs, ours) = next((i, pair) for i, pair in enumerate(pairs) if pair[0] != pair[1])
        raise ConfigError(
            f"--init-from: {directory} has another vocabulary than {shards.name}: id {i} is {theirs!r} there and "
            f"{ours!r} here; make shards with its vocabulary, or give it that of the shards by trainer.new_vocabulary"
        )


def _check_run(run: RunDirectory, recipe: Recipe, shards: Corpus) -> None:
    """See that the run directory is new, or was begun by this very command."""
    run.check()
    if run.is_new:
        return
    advice = "choose another --output, or go on with what the run was started with"
    changed = differences(load_recipe(run.config), recipe)
    if changed:
        raise CheckpointError(f"{run.path}: the run was started with other settings ({'; '.join(changed)}); {advice}")
    if run.manifest.is_file() and checksum(run.manifest) != shards.manifest_blake2b:
        raise CheckpointError(f"{run.path}: the run was started with other shards than {shards.name}; {advice}")


def _warn_of_the_warmup(recipe: Recipe) -> None:
    """Say so where a schedule ends before its peak, as that of a recipe that was shortened."""
    schedules = {phase.schedule or recipe.schedule: phase.steps for phase in recipe.phases}
    if recipe.schedule in schedules:  # one for all phases that have none of their own
        schedules[recipe.schedule] = recipe.total_steps
    for schedule, steps in schedules.items():
        if schedule.warmup_steps >= steps:
            _log.warning(
                "the learning rate never reaches its peak: schedule.warmup_steps is %d, and there are %d steps",
                schedule.warmup_steps, steps,
            )  # fmt: skip


def _on_first(world: World, work: Callable[[], _Result]) -> _Result:
    """What the first rank's work returns or raises, on all ranks: so they leave together."""
    result: _Result | None = None
    error: Exception | None = None
    if world.is_first:
        try:
            result = work()
        except (OSError, ValueError, RunInUseError) as found:
            error = found
    gathered: list[tuple[_Result, Exception | None]] = world.gather((result, error))
    result, error = gathered[0]
    if error is not None:
        raise error
    return result


def _take_over(
    run: RunDirectory, recipe: Recipe, shards: Corpus, init_from: Path | None, held: contextlib.ExitStack
) -> int:
    """Make the run directory this trainer's alone and look at it again; returns the step to go on from."""
    try:
        held.enter_context(hold_run(run))
        run.set_outcome(None)
    except OSError as error:
        raise _unwritable(run, error) from None
    _check_run(run, recipe, shards)  # another trainer may have begun it meanwhile
    remove_leftovers(run)
    step = _newest_good_step(run)
    if not step and run.config.is_file():
        _check_initial_weights(run, init_from)
    return step


def _unwritable(run: RunDirectory, error: OSError) -> CheckpointError:
    advice = "make room, and give the same command" if is_full(error) else "choose another --output"
    return CheckpointError(f"{run.path}: can't be written ({error.strerror}); {advice}")


def _check_initial_weights(run: RunDirectory, init_from: Path | None) -> None:
    """See that a run that has no checkpoint yet begins again with the weights that it began with."""
    told = run.read_initial_weights()
    if (told and told["blake2b"]) != (init_from and checksum(init_from / WEIGHTS)):
        begun = f"with the weights of {told['directory']}" if told else "without --init-from"
        raise CheckpointError(
            f"{run.path}: the run was started {begun} and has no checkpoint yet; start it so again, or choose another "
            "--output"
        )


def _newest_good_step(run: RunDirectory) -> int:
    """The step of the newest checkpoint whose checksums are right; a damaged one is skipped with a warning.

    Raises:
        CheckpointError: all are damaged. To begin anew is not for this program to decide.
    """
    candidates = run.candidates()
    for checkpoint in candidates:
        try:
            read_run_state(checkpoint)
            verify_state(checkpoint)
        except (CheckpointError, StateError) as error:
            _log.warning("skipped a damaged checkpoint: %s", error)
        else:
            return step_number(checkpoint)
    if candidates:
        raise CheckpointError(
            f"{run.path}: no checkpoint is whole ({', '.join(path.name for path in candidates)}); put a good copy "
            "back, or move checkpoints/ away to begin with step 0"
        )
    return 0


def _write_run(run: RunDirectory, recipe: Recipe, arguments: argparse.Namespace, shards: Corpus, step: int) -> None:
    """Write down what this start of the run is made of, and make way for it."""
    try:
        aside = set_aside(run, step)
        draws = other_draws(load_recipe(run.config), recipe) if run.config.is_file() else []
        _write_settings(run, recipe, arguments, shards, step)
    except OSError as error:
        raise _unwritable(run, error) from None
    if draws:
        _log.warning(
            "%s: from here on the same samples and masks as without this change, but other dropout", "; ".join(draws)
        )
    if aside:
        _log.warning(
            "resuming from step %d: newer checkpoints and exports are now in %s, with a copy of the metrics; delete "
            "that folder when nobody needs it",
            step, aside,
        )  # fmt: skip


def _write_settings(
    run: RunDirectory, recipe: Recipe, arguments: argparse.Namespace, shards: Corpus, step: int
) -> None:
    run.tokenizer.mkdir(exist_ok=True)
    for file in filter(Path.is_file, shards.tokenizer.iterdir()):
        write_atomically(run.tokenizer / file.name, file.read_bytes())
    write_atomically(run.manifest, shards.manifest)
    write_atomically(run.deepspeed_config, arguments.deepspeed_config.read_text(encoding="utf-8"))
    write_atomically(run.code, json.dumps(code_version(), indent=2) + "\n")
    write_atomically(run.code_changes, uncommitted_changes())
    if not arguments.init_from and not step:
        run.initial_weights.unlink(missing_ok=True)  # of a start that did not get as far as to make it a run
    elif not step:
        weights = arguments.init_from.resolve()
        told = {"directory": str(weights), "blake2b": checksum(weights / WEIGHTS)}
        write_atomically(run.initial_weights, json.dumps(told, indent=2) + "\n")
    write_atomically(run.config, to_toml(recipe))  # last: with it the directory is a run


def _start_tracking(run: RunDirectory, recipe: Recipe) -> contextlib.AbstractContextManager[Any]:
    if not recipe.tracking.enabled:
        return contextlib.nullcontext()
    from trainer.tracking import Tracker  # seconds to import, and only one rank needs it

    return Tracker(run, recipe.tracking.experiment, recipe.tracking.system_metrics)


if __name__ == "__main__":
    code = main()
    if code:
        end_at_once(code)
