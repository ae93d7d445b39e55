"""Validation: losses and accuracies on held-out samples while a run trains, in all and by shard directory."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from preprocessing.schema import ShardError
from preprocessing.storage_errors import UnavailableError
from trainer.config import Phase, Recipe
from trainer.corpus import Corpus
from trainer.data import Batch, evaluation_batches, validation_stream
from trainer.engine import Engine
from trainer.loading import DamagedShardError, LoaderError
from trainer.metrics import directories, of_directory, perplexity
from trainer.metrics_log import lines_after
from trainer.run_directory import RunDirectory, step_folders, step_number
from trainer.stopping import watch
from trainer.world import World

_log = logging.getLogger("pretrain")
_WITHOUT = "go on without validation: log.validate_every=0"
_RISE = 0.01  # nats of loss: less is no reason to take an earlier export
_BY_DIRECTORY = ("mlm_loss", "perplexity", "mlm_accuracy", "nsp_accuracy")


class Validation:
    """The validations of a phase, which all read the same held-out samples."""

    def __init__(self, corpus: Corpus, recipe: Recipe, phase: Phase, world: World):
        """Prepare; shards are mapped at the first validation, and stay so.

        Args:
            corpus: whose directories' held-out documents are read, those of all that have some.
            recipe: says of how many samples.
            phase: the one that is trained: its length and its micro-batches.
            world: of ranks.

        Raises:
            ShardError: there are none of this length.
        """
        self._corpus = corpus
        self._hang_seconds = recipe.train.hang_seconds
        self._micro_batch_size = phase.micro_batch_size
        self._world = world
        self._stream = validation_stream(corpus.directories, phase.sequence_length, recipe.model.is_decoder)
        self._parts = self._stream.by_directory(np.arange(min(self._stream.size, recipe.log.validation_samples)))
        self._error: DamagedShardError | LoaderError | None = None  # what keeps this rank from reading its part

    def figures(self, engine: Engine, is_asked_to_stop: Callable[[], bool]) -> dict[str, float] | None:
        """Compute the figures of a line of validation.jsonl; all ranks take part.

        Args:
            engine: with the weights.
            is_asked_to_stop: whether this rank is; then there are no figures.

        Returns:
            The figures of all samples together, and, where they come from several directories, some of each, named
            ``perplexity/wiki``. None where a rank was asked to stop.

        Raises:
            DamagedShardError: on every rank: what one of them needs is damaged, or nothing is to be predicted.
            LoaderError: on every rank: the storage of one fails.
        """
        evaluated = engine.evaluate([self._batches(indices) for _, indices in self._parts], is_asked_to_stop)
        if evaluated is None:
            if error := next(filter(None, self._world.gather(self._error)), None):
                raise error
            return None
        figures, *of_parts = [_with_perplexity(means) for means in evaluated]
        if "perplexity" not in figures:
            raise DamagedShardError(
                f"{self._corpus.name}: no token that is held out can be predicted; make the shards again, or {_WITHOUT}"
            )
        if len(self._parts) > 1:
            for (directory, _), of_part in zip(self._parts, of_parts, strict=True):
                name = self._corpus.short_name(directory)
                figures |= {
                    of_directory(figure, name): of_part[figure] for figure in _BY_DIRECTORY if figure in of_part
                }
        return figures

    def _batches(self, indices: np.ndarray) -> Iterator[Batch | None]:
        """This rank's, None for one that can't be read; each has as long as a step before it counts as a hang."""
        batches = evaluation_batches(self._stream, indices, self._micro_batch_size, self._world.rank, self._world.size)
        try:
            for batch in batches:
                watch(self._hang_seconds)
                yield batch
        except ShardError as error:
            self._error = DamagedShardError(f"rank {self._world.rank}: {error}, or {_WITHOUT} data.verify=false")
            yield None
        except UnavailableError as error:
            self._error = LoaderError(f"rank {self._world.rank}: {error}")
            yield None


def _with_perplexity(means: dict[str, float]) -> dict[str, float]:
    """The same, where anything was to be predicted with its perplexity."""
    return means | {"perplexity": perplexity(means["mlm_loss"])} if "mlm_loss" in means else means


def describe(figures: Mapping[str, float], next_sentence: bool) -> Iterator[str]:
    """Lines of the log for the figures of a validation; of next sentences nothing where they are not learned."""
    nsp = f", NSP accuracy {figures['nsp_accuracy']:.4f}" if next_sentence else ""
    yield (
        f"held out: loss {figures['loss']:.4f}, perplexity {figures['perplexity']:.1f}, "
        f"MLM accuracy {figures['mlm_accuracy']:.4f}{nsp}"
    )
    if names := directories("perplexity", figures):
        each = (f"{name} {figures[of_directory('perplexity', name)]:.1f}" for name in names)
        yield f"held out, perplexity by directory: {', '.join(each)}"


def warn_of_a_rise(run: RunDirectory, recipe: Recipe) -> None:
    """Say so where the held-out loss was lower in the last phase than at its end, and name the export of then.

    A model that reads few texts often may get worse at others. Phases before have other lengths or weights, whose
    losses don't compare.
    """
    begin = max(begin for begin, _, _ in recipe.phase_ranges() if begin < recipe.last_step)
    lines = lines_after(run.validation_metrics, begin)
    known = [line for line in lines if math.isfinite(line.get("mlm_loss", math.nan))]
    lowest = min(known, key=lambda line: line["mlm_loss"], default=None)
    if lowest is None or known[-1]["mlm_loss"] <= lowest["mlm_loss"] + _RISE:
        return
    exports = step_folders(run.exports)
    nearest = min(exports, key=lambda path: abs(step_number(path) - lowest["step"]), default=None)
    _log.warning(
        "the held-out loss of masked words was lowest after step %d: %.4f, and is %.4f now%s",
        lowest["step"], lowest["mlm_loss"], known[-1]["mlm_loss"],
        f"; the export that is nearest to that step is {nearest}" if nearest else "",
    )  # fmt: skip
