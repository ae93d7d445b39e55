"""Pretrain BERT on shards.

    deepspeed trainer/pretrain.py --config trainer/recipes/bert_large.toml --deepspeed_config ds_config.json \
        --shards shards/ --output runs/large [section.key=value ...]

The same command again goes on where the run stopped. One rank per GPU, or per --num_accelerators on CPUs.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import logging
import os
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

# `deepspeed trainer/pretrain.py` puts trainer/ first on the module path, where our names would hide others'.
if sys.path and Path(sys.path[0]).resolve() == Path(__file__).resolve().parent:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch

from preprocessing.schema import ShardError
from preprocessing.status import is_dir, is_file
from preprocessing.storage_errors import UnavailableError, comes_of_passing, is_passing, reason
from preprocessing.terminal import counted, tell_error
from preprocessing.tokenization import VocabularyError
from trainer.agreement import check_agreement, check_initial_weights, check_is_shared
from trainer.arguments import output_of, parse
from trainer.config import Recipe, load_recipe
from trainer.corpus import as_begun, open_corpus
from trainer.deepspeed_config import read_deepspeed, resolve
from trainer.divergence import DivergedError
from trainer.initial_model import initial_model
from trainer.joining import NoDeviceError, RanksApartError, check_launcher, join_world
from trainer.leases import RunInUseError, hold_run
from trainer.loading import DamagedShardError, LoaderError, NoProcessError
from trainer.monitors import Monitors
from trainer.non_finite import NonFiniteError
from trainer.outcome import MISTAKE
from trainer.preflight import check, check_output, warn_of_settings
from trainer.run_directory import CheckpointError, Ending, RunDirectory, one_line
from trainer.saving import UnsavedError, export_if_missing
from trainer.session import Session, owes_validation
from trainer.settings import ConfigError
from trainer.shard_cache import cache_folder
from trainer.sharded_state import StateError
from trainer.start import find_beginning, reopen, take_over, write_run
from trainer.stopping import StopRequests, end_at_once, wait_for_first
from trainer.world import World, has_joined, leave_world

_log = logging.getLogger("pretrain")
_Result = TypeVar("_Result")

# What the same command would meet again: a run that ended so is not worth starting again as it is.
_COMES_AGAIN = (ConfigError, ShardError, VocabularyError, CheckpointError, StateError, NonFiniteError, DivergedError)

# Seconds for a node's first rank, which may still import torch, to tell a mistake that all ranks meet: launchers end
# all ranks with the first that ends, and the others' end must not come before its word.
_HEAD_START = 30.0

_AGAIN = "give the same command again"


class _StorageError(RuntimeError):
    """Storage that fails while a run is looked at or written down. The message says what to do."""


@dataclass
class _Start:
    """How far a start of the trainer has come.

    Attributes:
        held: what the first rank holds for as long as its process does its work.
        has_run: whether the ranks have the run directory, so that no outcome of an earlier start is there but "done".
    """

    held: contextlib.ExitStack
    has_run: bool = False


def main(argv: Sequence[str] | None = None) -> int:
    """Train or go on training; returns 2 for a mistake in what was asked for, 1 for what went wrong on the way.

    How a run ended, trainer.outcome tells: of a crash the run directory has no word.
    """
    words = sys.argv[1:] if argv is None else argv
    output = output_of(words)
    run = RunDirectory(output) if output else None  # that the command is about, whatever else is wrong with it
    _open_streams()
    first = os.environ.get("RANK", "0") == "0"
    logging.basicConfig(level=logging.INFO if first else logging.ERROR, format="%(message)s", force=True)
    with contextlib.ExitStack() as held:  # let go when the end is told: MLflow may take a minute
        start = _Start(held)
        try:
            pretrain(_parse(words), start)
        except (LoaderError, RunInUseError, UnsavedError, _StorageError) as error:  # of all ranks, and may pass
            if first:
                _tell(error)
            return 1
        except (NoDeviceError, NoProcessError, UnavailableError) as error:  # of this rank's node alone
            _tell(error)
            return 1
        except RanksApartError as error:  # maybe of a node that does not find the first rank
            if os.environ["LOCAL_RANK"] == "0":
                _tell(error)
            return 1
        except _COMES_AGAIN as error:
            if told := _of_storage(error, run):
                _tell(told)
                return 1
            if _write_failure(run, start, str(error)):
                _tell(error)
            return 1 if isinstance(error, NonFiniteError | DivergedError | DamagedShardError) else MISTAKE
        except Exception as error:  # maybe of this rank alone, while others wait for it: told before anything waits
            if told := _of_storage(error, run):
                _tell(told)
            else:
                traceback.print_exc()
                tell_error(_of_this_rank(error))
            return 1
    return 0


def _parse(words: Sequence[str]) -> argparse.Namespace:
    try:
        return parse(words)
    except ConfigError as error:
        raise ConfigError(f"{error}; see --help") from error


def _open_streams() -> None:
    """Have nowhere for streams that the caller has closed, as by `2>&-`: other files would get their numbers."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    nowhere = Path(os.devnull).open("w")  # noqa: SIM115
    sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere


def _of_this_rank(error: Exception) -> str:
    """An error in a line that says where it was: launchers mix the tracebacks of ranks, and few name theirs."""
    place = f"rank {os.environ.get('RANK', 0)} on {socket.gethostname()}, local rank {os.environ.get('LOCAL_RANK', 0)}"
    if isinstance(error, torch.OutOfMemoryError):
        return f"{place}: the GPU is out of memory; set phases.N.micro_batch_size lower, or what else saves some"
    said = str(error).partition("\n")[0]
    return one_line(f"{place}: {type(error).__name__}" + (f": {said}" if said else ""))


def _tell(error: Exception) -> None:
    tell_error(one_line(str(error)))


def _write_failure(run: RunDirectory | None, start: _Start, reason: str) -> bool:
    """Leave word of an error where a run is, or may be; returns whether it is this rank that tells it."""
    if has_joined():  # what ranks that have met are refused for, all of them are
        first = os.environ.get("RANK", "0") == "0"
    else:  # a node's disk may have trouble of its own, and so may a rank
        first = "0" in (os.environ.get("RANK"), os.environ.get("LOCAL_RANK", "0")) or not wait_for_first(_HEAD_START)
    if run is None or not _is_run(run):
        return first
    try:
        if start.has_run:  # by now it may be one rank's alone: whoever is first tells
            return run.claim_outcome("failed", reason) or (first and run.ending == "done")
        if first:
            with hold_run(run, patience=0):
                if run.ending != "done":
                    run.set_outcome("failed", reason)  # in the place of a "requeue" that led here
    except RunInUseError:
        pass  # how a run ends that another trainer holds is that one's to tell
    except OSError as error:
        _log.error("%s: can't be written (%s)", run.path, error.strerror)
        return first or start.has_run
    return first


def _is_run(run: RunDirectory) -> bool:
    """Whether a run has begun in a folder, or could; not where anything keeps one from looking."""
    with contextlib.suppress(OSError):
        return is_dir(run.path) and (run.is_new or is_file(run.config))
    return False


def pretrain(arguments: argparse.Namespace, start: _Start) -> None:
    """Check everything on every rank before anything is written; then train.

    Args:
        arguments: of the command line.
        start: is kept up to date.
    """
    stop = StopRequests()
    check_launcher(os.environ)
    run = RunDirectory(arguments.output)
    recipe = load_recipe(arguments.config, arguments.settings, initial_model(arguments.init_from, run))
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    deepspeed = read_deepspeed(arguments.deepspeed_config)
    configs = [resolve(deepspeed, recipe, phase, ranks) for phase in recipe.phases]
    cache = cache_folder(recipe.data.cache_dir)
    check_output(run, cache)
    shards = as_begun(open_corpus(arguments.shards, cache, recipe.data.verify), run.manifest)
    check(recipe, configs, shards, run, arguments.init_from)

    world = join_world(recipe.train.threads, recipe.train.hang_seconds)
    check_agreement(world, recipe, configs, shards)
    on_first = partial(_on_first, world, run)
    on_first(lambda: take_over(run, start.held, lambda: stop.received))
    start.has_run = True
    step = on_first(lambda: find_beginning(run, recipe, shards, arguments.init_from))
    owed = on_first(lambda: step > 0 and owes_validation(run, recipe, step))
    if step >= recipe.last_step and not owed:
        if world.is_first:
            export_if_missing(run, step, recipe.model)
        on_first(lambda: _end(run, "done"))
        _log.info("%s: done already, %s", run.path, counted(step, "step"))
        leave_world()
        return
    on_first(lambda: reopen(run))
    weights = check_initial_weights(world, arguments.init_from) if arguments.init_from and not step else None
    if recipe.data.verify and not cache:  # a cache has compared them already
        shards.verify(world)
    written = on_first(lambda: write_run(run, recipe, shards, deepspeed, weights, step))
    check_is_shared(run, written.config_blake2b, world)
    warn_of_settings(recipe)
    monitors = Monitors()
    on_first(lambda: monitors.start(deepspeed.settings, is_new=not step))
    session = Session(configs, arguments.init_from, recipe, shards, run, written, world, stop, monitors, owed)
    if world.is_first:
        start.held.enter_context(_start_tracking(run, recipe))
    try:
        ending, reason = session.train(step)
    except DamagedShardError as error:
        if cache and recipe.data.verify:
            raise LoaderError(f"{error}; it is a copy in data.cache_dir: the same command makes it anew") from error
        raise
    # All wait for it: to a launcher whose other ranks have ended, the first one's last export may take too long.
    on_first(lambda: _end(run, ending, reason))
    leave_world()  # only where all ranks do: with one that failed, NCCL's good order could wait for ever


def _end(run: RunDirectory, ending: Ending, reason: str = "") -> None:
    """Write down how a run ended.

    Raises:
        UnsavedError: it can't be written.
    """
    try:
        run.set_outcome(ending, reason)
    except OSError as error:
        told = f"{run.path}: can't be written ({error.strerror}); mend that, and give the same command: no step is lost"
        raise UnsavedError(told) from error


def _of_storage(error: Exception, run: RunDirectory | None) -> _StorageError | None:
    """As what an error is told that came of storage which fails, maybe for a moment only; None for another one."""
    if isinstance(error, UnavailableError):
        return _StorageError(str(error))
    if comes_of_passing(error.__cause__):
        return _StorageError(f"{error}; {_AGAIN}")
    if isinstance(error, OSError) and (is_passing(error) or (run and _lies_in(run, error.filename))):
        return _storage_error(error, run)
    return None


def _lies_in(run: RunDirectory, name: object) -> bool:
    return isinstance(name, str) and Path(name).is_relative_to(run.path)


def _storage_error(error: OSError, run: RunDirectory | None) -> _StorageError:
    place = error.filename or (run.path if run else "storage")
    return _StorageError(f"{place}: can't be read or written now ({reason(error)}); {_AGAIN}")


def _on_first(world: World, run: RunDirectory, work: Callable[[], _Result]) -> _Result:
    """What the first rank's work returns or raises, on all ranks: so they leave together."""
    result: _Result | None = None
    error: Exception | None = None
    if world.is_first:
        try:
            result = work()
        except OSError as found:
            error = _storage_error(found, run)
        except (UnavailableError, ValueError, RunInUseError, DivergedError, UnsavedError) as found:
            error = _of_storage(found, run) or found
    gathered: list[tuple[_Result, Exception | None]] = world.gather((result, error))
    result, error = gathered[0]
    if error is not None:
        raise error
    return result


def _start_tracking(run: RunDirectory, recipe: Recipe) -> contextlib.AbstractContextManager[Any]:
    if not recipe.tracking.enabled:
        return contextlib.nullcontext()
    from trainer.tracking import Tracker  # seconds to import, and only one rank needs it

    return Tracker(run, recipe.tracking.experiment, recipe.tracking.system_metrics)


if __name__ == "__main__":
    code = main()
    if not code:
        atexit._run_exitfuncs()  # what libraries have left to do, as monitors may
    # Python's own end would destroy what threads of libraries still use, and C++ then aborts a run that is done.
    end_at_once(code)
