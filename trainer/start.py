"""A start in a run directory: it is taken over, the step to go on from is found, and the start is written down."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from preprocessing.locks import refuse_link
from preprocessing.schema import checksum
from preprocessing.status import exists, is_file, make_folder
from preprocessing.storage_errors import UnavailableError, comes_of_passing, is_full, is_passing
from preprocessing.terminal import in_line
from trainer.checkpoint import RunState, read_run_state, remove_leftovers, set_aside
from trainer.config import Recipe, advice_on, differences, load_recipe, other_draws, to_toml
from trainer.corpus import Corpus, directory_checksums
from trainer.deepspeed_config import DeepSpeedFile, other_numbers, read_deepspeed
from trainer.determinism import arithmetic_of
from trainer.divergence import check_not_diverged
from trainer.files import write_atomically
from trainer.initial_model import find_given
from trainer.leases import hold_run
from trainer.lineage import code_version, other_versions, uncommitted_changes
from trainer.metrics_log import cut_metrics
from trainer.model import parameter_shapes
from trainer.naming import name_some
from trainer.run_directory import CheckpointError, RunDirectory, one_line, step_number
from trainer.settings import ConfigError
from trainer.sharded_state import StateError, StateReader, verify_state
from trainer.skipping import count_skipped, skip_setting
from trainer.world import World

_log = logging.getLogger("pretrain")


class Written(NamedTuple):
    """What a start has written down, whatever becomes of these files, and of the checkout, before the run has ended."""

    config_blake2b: str  # the checksum of config.toml
    code: dict[str, Any]  # see trainer.lineage.code_version


def take_over(run: RunDirectory, held: contextlib.ExitStack, stop: Callable[[], bool] = lambda: False) -> None:
    """Make the run directory this trainer's alone, for as long as ``held`` holds it.

    ``stop`` says that nobody waits any more for another trainer to end.

    How it ended is open again, but for what is done: it stays so until there is more to train.
    """
    with _writing(run):
        held.enter_context(hold_run(run, stop=stop))
        if run.ending != "done":
            run.set_outcome(None)


def reopen(run: RunDirectory) -> None:
    """Take back that a run is done: there is more to train."""
    with _writing(run):
        run.set_outcome(None)


def find_beginning(run: RunDirectory, recipe: Recipe, shards: Corpus, init_from: Path | None) -> int:
    """Look again at a run directory that is taken over; returns the step to go on from.

    Raises:
        CheckpointError, UnavailableError, DivergedError: it can't be gone on with.
    """
    check_run(run, recipe, shards)  # another trainer may have begun it meanwhile
    remove_leftovers(run)
    step = _newest_good_step(run, recipe, shards)
    if not step and is_file(run.config):
        _check_same_beginning(run, init_from)
    check_not_diverged(run, recipe, step)
    return step


def write_run(
    run: RunDirectory,
    recipe: Recipe,
    shards: Corpus,
    deepspeed: DeepSpeedFile,
    weights: dict[str, str] | None,
    step: int,
) -> Written:
    """Write down what this start of the run is made of, and make way for it.

    Args:
        run: the run, taken over.
        recipe: of the run.
        shards: that it is trained on.
        deepspeed: the file of its configuration.
        weights: what check_initial_weights returned; None where the run goes on, or begins with new ones.
        step: to go on from.

    Raises:
        CheckpointError: the directory can't be written.
        OSError: its storage fails, maybe for a moment only.
    """
    code = code_version()
    with _writing(run):
        aside = set_aside(run, step)
        cut_metrics(run, step)
        warnings = _warnings(run, recipe, deepspeed) if step else []
        _write_settings(run, recipe, shards, deepspeed, code, weights, step)
        written = Written(checksum(run.config), code)
    for warning in warnings:
        _log.warning(warning)
    if aside:
        _log.warning(
            "resuming from step %d: newer checkpoints and exports are now in %s, with a copy of the metrics; delete "
            "that folder when nobody needs it",
            step, aside,
        )  # fmt: skip
    return written


def _warnings(run: RunDirectory, recipe: Recipe, deepspeed: DeepSpeedFile) -> list[str]:
    """What to say of settings that are not those of the last start, where a run goes on with them."""
    found, before = [], load_recipe(run.config)
    if draws := other_draws(before, recipe):
        found.append(f"{'; '.join(draws)}: from here on the same samples and masks as without this change, but other "
                     "dropout")  # fmt: skip
    try:
        numbers = other_numbers(read_deepspeed(run.deepspeed_config).settings, deepspeed.settings)
    except ConfigError:  # nobody needs it but for this
        found.append(f"{run.deepspeed_config} is missing or damaged: whether DeepSpeed's configuration is another than "
                     "at the last start can't be told")  # fmt: skip
    else:
        if numbers:
            found.append(f"DeepSpeed's configuration is another than at the last start ({'; '.join(numbers)}): samples "
                         "and masks are the same, but losses will differ")  # fmt: skip
    skip = recipe.data.skip
    if again := [span for span in before.data.skip if count_skipped(skip, *span) < span[1] - span[0]]:
        found.append("the last start passed over samples that this one does not: give "
                     f"{skip_setting([*skip, *again])}, if they are to be left out where they come")  # fmt: skip
    return found


def warn_of_other_bits(state: RunState, world: World, code: Mapping[str, Any]) -> None:
    """Say so where a run goes on in a way that makes the last bits differ."""
    then = state.code.get("libraries")
    if apart := other_versions(code["libraries"], then if isinstance(then, dict) else {}):
        _log.warning(
            "checkpoint was written with other libraries than resume it (%s): samples and masks are the same, but "
            "losses may differ in the last bits",
            "; ".join(apart),
        )
    if state.arithmetic != (here := arithmetic_of(world.device)):
        _log.warning(
            "checkpoint was written on %s, resuming on %s: samples, masks and dropout are the same, but losses may "
            "differ in the last bits",
            in_line(state.arithmetic), here,
        )  # fmt: skip
    if (state.world_size, state.threads) != (world.size, torch.get_num_threads()):
        _log.warning(
            "checkpoint was written with %d rank(s) x %d thread(s), resuming with %d x %d: samples, masks and dropout "
            "are the same, but losses will differ in the last bits",
            state.world_size, state.threads, world.size, torch.get_num_threads(),
        )  # fmt: skip


def check_run(run: RunDirectory, recipe: Recipe, shards: Corpus) -> None:
    """See that the run directory is new, or was begun by this very command."""
    run.check()
    if run.is_new:
        return
    changed = differences(load_recipe(run.config), recipe)
    advice = advice_on(changed, run.step > 0)
    if not run.step and not exists(run.metrics):
        advice = "choose another --output, or remove this one, in which nothing has been trained"
    if changed:
        raise CheckpointError(f"{run.path}: the run was started with other settings ({'; '.join(changed)}); {advice}")
    if is_file(run.manifest) and checksum(run.manifest) != shards.manifest_blake2b:
        raise CheckpointError(f"{run.path}: {_other_shards(directory_checksums(run.manifest), shards)}; {advice}")


def _other_shards(begun_with: Sequence[str], shards: Corpus) -> str:
    """What to say of shards that are not those of the directories, by their checksums, that a run was started with."""
    given = dict(zip((directory.manifest_blake2b for directory in shards.directories), shards.sources, strict=True))
    if given.keys() == set(begun_with):
        order = " ".join(given[blake2b] for blake2b in begun_with)
        return f"the run was started with these shards in another order, --shards {order}"
    if unknown := [source for blake2b, source in given.items() if blake2b not in begun_with]:
        among = f", {name_some(unknown)} not among them" if len(given) > len(unknown) else ""
        return f"the run was started with other shards than {shards.name}{among}"
    return f"the run was started with {len(begun_with)} shard directories, of which {shards.name} lacks some"


@contextlib.contextmanager
def _writing(run: RunDirectory) -> Iterator[None]:
    """What keeps a run from being written is a mistake, unless storage fails, maybe for a moment only."""
    try:
        yield
    except OSError as error:
        if is_passing(error):
            raise
        advice = "make room, and give the same command" if is_full(error) else "choose another --output"
        place = error.filename2 or error.filename or run.path
        raise CheckpointError(f"{place}: can't be written ({error.strerror}); {advice}") from None


def _check_same_beginning(run: RunDirectory, init_from: Path | None) -> None:
    """See that a run that has no checkpoint yet begins again with the weights that it began with."""
    told = run.read_initial_weights()
    if (told and told["blake2b"]) != (init_from and find_given(init_from).checksum()):
        begun = f"with the weights of {told['directory']}" if told else "without --init-from"
        raise CheckpointError(
            f"{run.path}: the run was started {begun} and has no checkpoint yet; start it so again, or choose another "
            "--output"
        )


def _newest_good_step(run: RunDirectory, recipe: Recipe, shards: Corpus) -> int:
    """The step of the newest checkpoint that is whole and this run's; another one is skipped with a warning.

    Raises:
        CheckpointError: none is. To begin anew is not for this program to decide.
        UnavailableError: its storage fails, maybe for a moment only. To go on from an older one would set it aside.
    """
    candidates = run.candidates()
    for checkpoint in candidates:
        try:
            _check_state(checkpoint, read_run_state(checkpoint), recipe, shards)
            verify_state(checkpoint)
            StateReader(checkpoint, parameter_shapes(recipe.model))
        except (CheckpointError, StateError) as error:
            if comes_of_passing(error):
                raise UnavailableError(
                    f"{error}; give the same command again, or, if that doesn't help, write the name of an older "
                    f"checkpoint into {run.latest}"
                ) from error
            _log.warning("skipped a checkpoint: %s", one_line(str(error)))
        else:
            return step_number(checkpoint)
    if candidates:
        raise CheckpointError(
            f"{run.path}: no checkpoint is whole and this run's ({', '.join(path.name for path in candidates)}); put a "
            "good copy back, or move checkpoints/ away to begin with step 0"
        )
    return 0


def _check_state(checkpoint: Path, state: RunState, recipe: Recipe, shards: Corpus) -> None:
    """See that a checkpoint was written by this run after the step that its folder is named after."""
    step = step_number(checkpoint)
    expected = {"step": step, "samples": recipe.samples(step), "manifest_blake2b": shards.manifest_blake2b}
    for name, value in expected.items():
        if (found := getattr(state, name)) != value:
            raise CheckpointError(
                f"{checkpoint}: its run_state.json has {name} {found}, but here it is {value}; "
                "this is another step's checkpoint or another run's"
            )


def _write_settings(
    run: RunDirectory,
    recipe: Recipe,
    shards: Corpus,
    deepspeed: DeepSpeedFile,
    code: dict[str, Any],
    weights: dict[str, str] | None,
    step: int,
) -> None:
    refuse_link(run.tokenizer)
    make_folder(run.tokenizer)
    for file in filter(is_file, shards.tokenizer.iterdir()):
        write_atomically(run.tokenizer / file.name, file.read_bytes())
    write_atomically(run.manifest, shards.manifest)
    write_atomically(run.deepspeed_config, deepspeed.text)
    write_atomically(run.code, json.dumps(code, indent=2) + "\n")
    write_atomically(run.code_changes, uncommitted_changes())
    if weights:
        write_atomically(run.initial_weights, json.dumps(weights, indent=2) + "\n")
    elif not step:
        run.initial_weights.unlink(missing_ok=True)  # of a start that did not get as far as to make it a run
    write_atomically(run.config, to_toml(recipe))  # last: with it the directory is a run
