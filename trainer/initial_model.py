"""What --init-from names: the weights that a run begins with, and with a checkpoint its optimizer's moments too."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import logging
import os
from abc import ABC, abstractmethod
from pathlib import Path

from typing_extensions import override

from preprocessing.schema import checksum, checksum_of
from preprocessing.status import entries, exists, is_file, looking, sees
from preprocessing.storage_errors import UnavailableError, comes_of_passing
from preprocessing.tokenization import TOKENIZER_FILE, VOCABULARY_FILE, VocabularyError, load_vocabulary, load_words
from trainer.checkpoint import RUN_STATE, RunState, read_run_state
from trainer.config import Recipe, load_recipe
from trainer.corpus import Corpus
from trainer.hugging_face import CONFIG, Export, load_config, load_export, weights_file
from trainer.model import BertConfig, parameter_count, parameter_shapes
from trainer.run_directory import CheckpointError, RunDirectory, newest_around
from trainer.settings import ConfigError, parse
from trainer.sharded_state import StateError, StateReader, check_count, stored_checksums, verify_state

_log = logging.getLogger("pretrain")

_COPY = "; copy it again, or take another checkpoint"  # of what is damaged or missing
# All else of a recipe's model is what the weights' model has, for else they are another one's.
_FREE = ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range", "pad_token_id",
         "activation_checkpointing")  # fmt: skip


def initial_model(init_from: Path | None, run: RunDirectory) -> BertConfig | None:
    """What load_recipe takes for all that a recipe does not say of its model.

    Args:
        init_from: directory whose weights a new run begins with.
        run: new, or to go on with: this one's own model counts then, as the directory may be gone.

    Returns:
        None where the weights are new ones.

    Raises:
        ConfigError: a configuration can't be read, or is of no model that we have.
        UnavailableError: storage fails, maybe for a moment only.
    """
    if sees(run.config, os.R_OK):
        return load_recipe(run.config).model if sees(run.initial_weights) else None
    return given_model(init_from) if init_from else None


def check_is_export(directory: Path) -> None:
    """See that a directory is no run, checkpoint or folder of exports, as is often given instead of an export.

    Raises:
        ConfigError: it has no configuration and lies in a run; the message names the newest export there.
        OSError: that can't be told.
    """
    if not exists(directory / CONFIG) and (newest := newest_around(directory, "exports")):
        raise ConfigError(f"{directory / CONFIG}: missing, so it is no export; the newest one is {newest}")


def tells_its_model(directory: Path) -> bool:
    """Whether this user can read there which model the weights are of; an UnavailableError where storage fails."""
    return any(sees(directory / name, os.R_OK) for name in (CONFIG, RUN_STATE))


def given_model(directory: Path) -> BertConfig:
    """The model of the weights in a Hugging Face directory or in a checkpoint.

    Raises:
        ConfigError: there is no such directory, it is neither, or what it says of its model can't be read or is of no
            model that we have.
        UnavailableError: storage fails, maybe for a moment only.
    """
    if not sees(directory):
        hub = "a model of the Hugging Face hub comes into one by `hf download NAME --local-dir DIR`"
        raise ConfigError(f"--init-from: {directory}: no such folder; {_newest_around(directory) or hub}")
    return find_given(directory).model


class Given(ABC):
    """What a run begins with, of one kind; whatever is wrong with it is a ConfigError, or maybe an UnavailableError.

    Attributes:
        directory: that --init-from names.
    """

    def __init__(self, directory: Path):
        """Read nothing yet."""
        self.directory = directory

    @property
    @abstractmethod
    def model(self) -> BertConfig:
        """That the weights are of."""

    @abstractmethod
    def check(self, recipe: Recipe) -> None:
        """See that it is of the recipe's model, and whole as far as that shows before all of a checkpoint is read."""

    @abstractmethod
    def check_vocabulary(self, shards: Corpus) -> None:
        """See that its words, where it tells them, are those of the shards."""

    @abstractmethod
    def checksum(self) -> str:
        """What tells it from others, wherever it lies."""

    def verify(self) -> dict[str, str]:
        """Read once all that a run begins with; returns what RunDirectory.read_initial_weights tells of it later."""
        return {"directory": str(self.directory.resolve()), "blake2b": self.checksum()}

    def check_sizes(self, model: BertConfig, recipe: Recipe) -> None:
        """See that a recipe's model is the one that the weights are of, but for dropout."""
        names = [each.name for each in dataclasses.fields(BertConfig) if each.name not in _FREE]
        values = {name: (getattr(model, name), getattr(recipe.model, name)) for name in names}
        if differing := {name: (found, wanted) for name, (found, wanted) in values.items() if found != wanted}:
            told = "; ".join(f"{name} {found}, the recipe {wanted}" for name, (found, wanted) in differing.items())
            settings = [f"model.{name}={json.dumps(found)}" for name, (found, _) in differing.items()]  # as TOML has it
            advice = f"set {' '.join(settings)}, or take a recipe that leaves it open, such as continued.toml"
            if "max_position_embeddings" in differing:
                advice += "; trainer.new_positions gives an export as many"
            if "vocab_size" in differing:  # that of the shards, as has been seen
                advice = "give it the shards' words by trainer.new_vocabulary, or make shards with its own"
            raise ConfigError(f"--init-from: {self.directory} has {told}; {advice}")


class GivenExport(Given):
    """A Hugging Face directory: weights alone."""

    @property
    @override
    def model(self) -> BertConfig:
        if not sees(self.directory / CONFIG) and (newest := _newest_around(self.directory)):
            raise ConfigError(f"--init-from: {self.directory}: neither a checkpoint nor an export; {newest}")
        try:
            return load_config(self.directory)
        except (OSError, ValueError) as error:
            raise _problem(error) from error

    def weights(self, recipe: Recipe) -> Export:
        """The recipe's model, heads included where the directory has them."""
        try:
            export = load_export(self.directory, recipe.train.seed)
        except (OSError, ValueError) as error:
            raise _problem(error) from error
        self.check_sizes(export.config, recipe)
        return export

    @override
    def check(self, recipe: Recipe) -> None:
        self.weights(recipe)

    @override
    def check_vocabulary(self, shards: Corpus) -> None:
        wanted = load_vocabulary(shards.tokenizer / VOCABULARY_FILE)
        try:
            if not any(is_file(self.directory / name) for name in (VOCABULARY_FILE, TOKENIZER_FILE)):
                return
            found = load_words(self.directory)
        except (OSError, VocabularyError) as error:
            raise _problem(error) from error
        if found != wanted:
            pairs = itertools.zip_longest(found, wanted)
            i, (theirs, ours) = next((i, pair) for i, pair in enumerate(pairs) if pair[0] != pair[1])
            raise ConfigError(
                f"--init-from: {self.directory} has another vocabulary than {shards.name}: id {i} is {theirs!r} there "
                f"and {ours!r} here; make shards with its vocabulary, or give it that of the shards by "
                "trainer.new_vocabulary"
            )

    @override
    def checksum(self) -> str:
        try:
            return checksum(weights_file(self.directory))
        except OSError as error:
            raise _problem(error, _COPY) from error


class GivenCheckpoint(Given):
    """A checkpoint, or what is left of one: weights and moments."""

    @property
    @override
    def model(self) -> BertConfig:
        return parse(self.state.learner.model, BertConfig, f"--init-from: {self.directory / RUN_STATE}")

    @property
    def state(self) -> RunState:
        """What it says of its run."""
        try:
            return read_run_state(self.directory)
        except CheckpointError as error:
            raise _problem(error, _COPY) from error

    def tell(self, updates: int, recipe: Recipe, shards: Corpus) -> None:
        """Say what a run takes over from it, with the moments of so many updates, and what it does again."""
        state, ours = self.state, recipe.optimizer.name
        learner = state.learner
        if recipe.phases[0].reset_moments:
            moments = "; phases.0.reset_moments leaves its moments out"
        else:
            other = "" if learner.optimizer == ours else f", with which {ours} goes on"
            moments = f" and the moments of {updates} updates by {learner.optimizer}{other}"
        _log.info("begins with the weights of %s%s", self.directory, moments)
        if (state.manifest_blake2b, learner.seed) == (shards.manifest_blake2b, recipe.train.seed):
            _log.warning(
                "shards and train.seed are those of %s: this run has the same samples and masks again, of a length "
                "from the first one on; train.seed=%d draws others",
                self.directory, learner.seed + 1,
            )  # fmt: skip

    @override
    def check(self, recipe: Recipe) -> None:
        self.check_sizes(self.model, recipe)
        try:
            check_count(self.directory, parameter_count(recipe.model))
            StateReader(self.directory, parameter_shapes(recipe.model))
        except (OSError, StateError) as error:
            raise _problem(error, _COPY) from error

    @override
    def check_vocabulary(self, shards: Corpus) -> None:
        if self.state.learner.vocabulary_blake2b != shards.vocabulary.blake2b:
            raise ConfigError(
                f"--init-from: {self.directory} is of another vocabulary than {shards.name}; make shards with the "
                "tokenizer/vocab.txt of its run, or begin with its export, which trainer.new_vocabulary can change"
            )

    @override
    def checksum(self) -> str:
        """Of those that it has of its files."""
        try:
            told = [checksum(self.directory / RUN_STATE), *stored_checksums(self.directory)]
        except (OSError, StateError) as error:
            raise _problem(error, _COPY) from error
        return checksum_of("\n".join(told).encode())

    @override
    def verify(self) -> dict[str, str]:
        told = super().verify()
        try:
            verify_state(self.directory)
        except StateError as error:
            raise _problem(error, _COPY) from error
        return {**told, "step": str(self.state.step)}


def find_given(directory: Path) -> GivenExport | GivenCheckpoint:
    """What --init-from names, by what lies there.

    Raises:
        UnavailableError: storage fails, maybe for a moment only.
    """
    is_checkpoint = sees(directory / RUN_STATE) or any(_parts(directory))
    return GivenCheckpoint(directory) if is_checkpoint else GivenExport(directory)


def _parts(directory: Path) -> list[Path]:
    """What seems to be a checkpoint's tensors."""
    with looking(directory):
        return [path for path in entries(directory) if path.match("state-*-of-*")]
    return []


def _newest_around(path: Path) -> str:
    """What of the run that a path is, or lies in, can be begun with; '' where none is seen."""
    newest: dict[str, Path | None] = {}
    with contextlib.suppress(OSError):  # of a path that can't be
        newest = {
            "with the moments too": newest_around(path, "checkpoints"),
            "weights alone": newest_around(path, "exports"),
        }
    there = [f"{folder} ({what})" for what, folder in newest.items() if folder]
    return f"the newest of its run: {', '.join(there)}" if there else ""


def _problem(error: Exception, advice: str = "") -> ConfigError | UnavailableError:
    """What to raise of a file that can't be used, by what is wrong with it."""
    if comes_of_passing(error):
        return UnavailableError(
            f"--init-from: {error}; give the same command again, or, if that doesn't help, take another copy"
        )
    return ConfigError(f"--init-from: {error}{advice}")
