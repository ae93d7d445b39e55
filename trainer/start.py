"""What comes before the first step: see that all fits together, take over the run directory, write down the start."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from preprocessing.schema import ShardError, checksum
from preprocessing.tokenization import (
    VOCABULARY_FILE,
    check_files,
    load_vocabulary,
    special_ids,
)
from trainer.checkpoint import RunState, read_run_state, remove_leftovers, set_aside
from trainer.config import Phase, Recipe, advice_on, differences, load_recipe, other_draws, to_toml
from trainer.corpus import Corpus, directory_checksums, train_stream
from trainer.data import validation_stream
from trainer.engine import check_deepspeed, device_kind, fp16_is_supported
from trainer.files import is_full, write_atomically
from trainer.fp8 import why_not_fp8
from trainer.initial_model import find_given, initial_model
from trainer.leases import hold_run
from trainer.lineage import code_version, environment, uncommitted_changes, unlike
from trainer.model import BertConfig, parameter_shapes
from trainer.naming import name_some
from trainer.run_directory import CheckpointError, RunDirectory, step_number
from trainer.settings import ConfigError
from trainer.sharded_state import StateError, StateReader, verify_state
from trainer.sources import check_weights
from trainer.world import World

_PATIENCE = 90  # seconds: for up to a minute NFS takes a file that another node has made for missing
_log = logging.getLogger("pretrain")


def check_output(run: RunDirectory, cache: Path | None) -> None:
    """See that a run can be in its directory, before shards are copied to a cache, which may take long.

    Raises:
        CheckpointError, ConfigError: it can't, or the cache would be in its way.
    """
    run.check()
    if cache and cache.resolve().is_relative_to(run.path.resolve()):
        raise ConfigError(f"data.cache_dir {cache} lies in --output, where only the run's own files are; take another")


def check(
    recipe: Recipe, configs: Sequence[dict[str, Any]], shards: Corpus, run: RunDirectory, init_from: Path | None
) -> None:
    """See that recipe, machine, shards and run directory go together. Nothing is written.

    Args:
        recipe: of the run.
        configs: DeepSpeed's of its phases, resolved.
        shards: to train on.
        run: new, or to go on with.
        init_from: Hugging Face directory or checkpoint that a new run begins with.

    Raises:
        ConfigError, ShardError, VocabularyError, CheckpointError: what does not, and what to do.
    """
    for config in configs:
        check_deepspeed(config)
    if run.is_new:  # though each phase may have its own; one that has begun must keep them
        check_weights(recipe.data.weights, shards.directories)
    for phase in recipe.phases:
        train_stream(recipe, phase, shards)
        _check_validation(recipe, phase, shards)
    _check_precision(recipe, configs[0])  # which is the same in all phases
    _check_vocabulary(recipe, shards, initial_model(init_from, run) if run.is_new else None)
    check_files(shards.tokenizer)  # which every export will have
    if run.is_new:
        _check_padding(recipe, shards)
    _check_segments(recipe, shards)
    _check_run(run, recipe, shards)
    if init_from and not run.step:
        beginning = find_given(init_from)
        beginning.check_vocabulary(shards)
        beginning.check(recipe)


def check_agreement(world: World, recipe: Recipe, configs: Sequence[dict[str, Any]], shards: Corpus) -> None:
    """See that all ranks have the same code and libraries, and were given the same: nodes may have their own of each.

    Under NCCL ranks meet here for the first time, so none takes the run while another may still find a mistake.

    Raises:
        ConfigError: on every rank, one has or was given something else than the first.
    """
    given = {"shards": shards.manifest_blake2b, "recipe": to_toml(recipe), "deepspeed_config": json.dumps(configs)}
    (first, firsts_own, _), *others = world.gather((given, environment(), socket.gethostname()))
    for rank, (other, own, host) in enumerate(others, start=1):
        if apart := unlike(own, firsts_own):
            raise ConfigError(
                f"rank {rank} on {host} has not what rank 0 has: {'; '.join(apart)}. Let all nodes have the same code "
                "and libraries, best in one environment that all of them see"
            )
        if differing := [name for name in given if other[name] != first[name]]:
            raise _apart(rank, " and ".join(differing))


def check_initial_weights(world: World, init_from: Path) -> dict[str, str]:
    """See that all ranks begin with the same weights.

    Returns:
        What RUN/initial_weights.json tells of them.

    Raises:
        ConfigError: on every rank, one was given others than the first, of which DeepSpeed would give it some; or a
            checkpoint that is damaged.
    """
    mine: dict[str, str] | ConfigError
    try:
        mine = find_given(init_from).verify()
    except ConfigError as error:
        mine = error
    found = world.gather(mine)
    for rank, told in enumerate(found):
        if isinstance(told, ConfigError):
            raise ConfigError(f"rank {rank}: {told}")
        if told["blake2b"] != found[0]["blake2b"]:
            raise _apart(rank, "initial weights")
    first: dict[str, str] = found[0]
    return first


def _apart(rank: int, what: str) -> ConfigError:
    return ConfigError(
        f"rank {rank} was given other {what} than rank 0: see that all nodes have the same files under these names, "
        "and get the same settings"
    )


def check_is_shared(run: RunDirectory, config_blake2b: str, world: World) -> None:
    """See that all ranks find what the first one has just written into the run directory.

    Args:
        run: that of this rank's node.
        config_blake2b: what write_run returned to the first rank.
        world: all ranks.

    Raises:
        ConfigError: on every rank, some don't: the directory is on a disk of each node's own.
    """
    hosts = world.gather(None if _is_seen(run.config, config_blake2b) else socket.gethostname())
    if apart := sorted({host for host in hosts if host}):
        raise ConfigError(
            f"{run.path}: {', '.join(apart)} can't read what the first rank wrote there; take an --output on a file "
            "system that all nodes share"
        )


def _is_seen(file: Path, blake2b: str) -> bool:
    """Whether a file with this checksum is there, or comes in time."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        with contextlib.suppress(OSError):
            if checksum(file) == blake2b:  # opened: NFS then looks what is new
                return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)


def why_not_fused(device: torch.device) -> str:
    """What keeps this machine from the kernels of trainer.fused, or ''."""
    if device.type != "cuda":
        return "its kernels are for GPUs; leave it out on a CPU"
    return "" if find_spec("triton") else "triton is not installed, which torch brings on Linux: pip install triton"


def take_over(run: RunDirectory, held: contextlib.ExitStack) -> None:
    """Make the run directory this trainer's alone, for as long as ``held`` holds it.

    How it ended is open again, but for what is done: it stays so until there is more to train.
    """
    try:
        held.enter_context(hold_run(run))
        if run.ending != "done":
            run.set_outcome(None)
    except OSError as error:
        raise _unwritable(run, error) from None


def find_beginning(run: RunDirectory, recipe: Recipe, shards: Corpus, init_from: Path | None) -> int:
    """Look again at a run directory that is taken over; returns the step to go on from."""
    _check_run(run, recipe, shards)  # another trainer may have begun it meanwhile
    remove_leftovers(run)
    step = _newest_good_step(run, recipe, shards)
    if not step and run.config.is_file():
        _check_same_beginning(run, init_from)
    return step


def write_run(
    run: RunDirectory, recipe: Recipe, shards: Corpus, deepspeed_config: Path, weights: dict[str, str] | None, step: int
) -> str:
    """Write down what this start of the run is made of, and make way for it.

    Args:
        run: the run, taken over.
        recipe: of the run.
        shards: that it is trained on.
        deepspeed_config: the file.
        weights: what check_initial_weights returned; None where the run goes on, or begins with new ones.
        step: to go on from.

    Returns:
        The checksum of config.toml.

    Raises:
        CheckpointError: the directory can't be written.
    """
    try:
        run.set_outcome(None)
        aside = set_aside(run, step)
        draws = other_draws(load_recipe(run.config), recipe) if run.config.is_file() else []
        _write_settings(run, recipe, shards, deepspeed_config, weights, step)
        written = checksum(run.config)
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
    return written


def warn_of_settings(recipe: Recipe) -> None:
    """Say so where one setting takes away what another one asks for, as may be where a recipe was changed."""
    _warn_of_the_warmup(recipe)
    for number, phase in enumerate(recipe.phases):
        taken, asked = recipe.predictions(phase), recipe.predictions(phase.unlimited)
        if taken < asked:
            _log.warning(
                "phases.%d.max_predictions is %d: of %d tokens so many are predicted, and not the %d that "
                "masking.probability=%g asks for; leave it out to have them",
                number, taken, phase.sequence_length, asked, recipe.masking.probability,
            )  # fmt: skip


def _warn_of_the_warmup(recipe: Recipe) -> None:
    """A schedule may end before its peak, as that of a recipe that was shortened."""
    schedules = [(phase.schedule, phase.steps) for phase in recipe.phases if phase.schedule]
    if len(schedules) < len(recipe.phases):  # one for all phases that have none of their own
        schedules.append((recipe.schedule, recipe.total_steps))
    for schedule, steps in dict.fromkeys(schedules):
        if schedule.warmup_steps >= steps:
            _log.warning(
                "the learning rate never reaches its peak: schedule.warmup_steps is %d, and there are %d steps",
                schedule.warmup_steps, steps,
            )  # fmt: skip


def _check_precision(recipe: Recipe, config: dict[str, Any]) -> None:
    if config.get("fp16", {}).get("enabled") and not fp16_is_supported():
        raise ConfigError("fp16: this machine's processor can't compute in it; use bf16, or train on GPUs")
    if recipe.train.fp8 and (reason := why_not_fp8(device_kind())):
        raise ConfigError(f"train.fp8: {reason}")
    if recipe.train.cuda_graphs and device_kind().type != "cuda":
        raise ConfigError("train.cuda_graphs: there is no GPU to have graphs; leave it out on a CPU")
    if recipe.train.fused and (reason := why_not_fused(device_kind())):
        raise ConfigError(f"train.fused: {reason}")


def _check_validation(recipe: Recipe, phase: Phase, shards: Corpus) -> None:
    if recipe.log.validate_every:
        try:
            validation_stream(shards.directories, phase.sequence_length, recipe.model.is_decoder)
        except ShardError as error:
            raise ConfigError(f"{error}, or set log.validate_every=0") from error


def _check_vocabulary(recipe: Recipe, shards: Corpus, given: BertConfig | None) -> None:
    """See that the model has as many words as the shards; ``given`` is the one whose weights it begins with."""
    found, wanted = shards.vocabulary.size, recipe.model.vocab_size
    if found != wanted:
        advice = f"set model.vocab_size={found}"
        if given and given.vocab_size != found:
            advice = "give the weights of --init-from these words by trainer.new_vocabulary"
        raise ConfigError(
            f"{shards.name}: made with a vocabulary of {found} entries, but model.vocab_size is {wanted}; "
            f"{advice} or make shards with the model's vocabulary"
        )


def _check_padding(recipe: Recipe, shards: Corpus) -> None:
    """See that the model's padding is that of the shards: fine-tuning never trains its row of the embeddings."""
    found, wanted = special_ids(load_vocabulary(shards.tokenizer / VOCABULARY_FILE)).pad, recipe.model.pad_token_id
    if found != wanted:
        raise ConfigError(
            f"{shards.name}: [PAD] is entry {found} of its vocabulary, but model.pad_token_id is {wanted}; "
            f"set model.pad_token_id={found}"
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


def _check_run(run: RunDirectory, recipe: Recipe, shards: Corpus) -> None:
    """See that the run directory is new, or was begun by this very command."""
    run.check()
    if run.is_new:
        return
    changed = differences(load_recipe(run.config), recipe)
    advice = advice_on(changed)
    if not run.step and not run.metrics.exists():
        advice = "choose another --output, or remove this one, in which nothing has been trained"
    if changed:
        raise CheckpointError(f"{run.path}: the run was started with other settings ({'; '.join(changed)}); {advice}")
    if run.manifest.is_file() and checksum(run.manifest) != shards.manifest_blake2b:
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


def _unwritable(run: RunDirectory, error: OSError) -> CheckpointError:
    advice = "make room, and give the same command" if is_full(error) else "choose another --output"
    return CheckpointError(f"{run.path}: can't be written ({error.strerror}); {advice}")


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
    """
    candidates = run.candidates()
    for checkpoint in candidates:
        try:
            _check_state(checkpoint, read_run_state(checkpoint), recipe, shards)
            verify_state(checkpoint)
            StateReader(checkpoint, parameter_shapes(recipe.model))
        except (CheckpointError, StateError) as error:
            _log.warning("skipped a checkpoint: %s", error)
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
    run: RunDirectory, recipe: Recipe, shards: Corpus, deepspeed_config: Path, weights: dict[str, str] | None, step: int
) -> None:
    run.tokenizer.mkdir(exist_ok=True)
    for file in filter(Path.is_file, shards.tokenizer.iterdir()):
        write_atomically(run.tokenizer / file.name, file.read_bytes())
    write_atomically(run.manifest, shards.manifest)
    write_atomically(run.deepspeed_config, deepspeed_config.read_text(encoding="utf-8"))
    write_atomically(run.code, json.dumps(code_version(), indent=2) + "\n")
    write_atomically(run.code_changes, uncommitted_changes())
    if weights:
        write_atomically(run.initial_weights, json.dumps(weights, indent=2) + "\n")
    elif not step:
        run.initial_weights.unlink(missing_ok=True)  # of a start that did not get as far as to make it a run
    write_atomically(run.config, to_toml(recipe))  # last: with it the directory is a run
