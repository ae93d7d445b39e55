"""Validation: losses and accuracies on held-out samples while a run trains, in all and by shard directory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from trainer.config import Phase, Recipe
from trainer.corpus import Corpus
from trainer.data import Batch, evaluation_batches, validation_stream
from trainer.engine import Engine
from trainer.metrics import directories, of_directory, perplexity
from trainer.stopping import watch
from trainer.world import World

_BY_DIRECTORY = ("mlm_loss", "perplexity", "mlm_accuracy", "nsp_accuracy")


def validate(
    engine: Engine, corpus: Corpus, recipe: Recipe, phase: Phase, world: World, is_asked_to_stop: Callable[[], bool]
) -> dict[str, float] | None:
    """Compute the figures of a line of validation.jsonl; all ranks take part.

    Args:
        engine: with the weights.
        corpus: whose directories' held-out documents are read, those of all that have some.
        recipe: says of how many samples.
        phase: the one that is trained: its length and its micro-batches.
        world: of ranks.
        is_asked_to_stop: whether this rank is; then there are no figures.

    Returns:
        The figures of all samples together, and, where they come from several directories, some of each, named
        ``perplexity/wiki``. None where a rank was asked to stop.
    """
    stream = validation_stream(corpus.directories, phase.sequence_length, recipe.model.is_decoder)
    parts = stream.by_directory(np.arange(min(stream.size, recipe.log.validation_samples)))
    batches = [
        _watched(
            evaluation_batches(stream, indices, phase.micro_batch_size, world.rank, world.size),
            recipe.train.hang_seconds,
        )
        for _, indices in parts
    ]
    evaluated = engine.evaluate(batches, is_asked_to_stop)
    if evaluated is None:
        return None
    figures, *of_parts = [means | {"perplexity": perplexity(means["mlm_loss"])} for means in evaluated]
    if len(parts) > 1:
        for (directory, _), of_part in zip(parts, of_parts, strict=True):
            name = corpus.short_name(directory)
            figures |= {of_directory(figure, name): of_part[figure] for figure in _BY_DIRECTORY}
    return figures


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


def _watched(batches: Iterable[Batch], seconds: int) -> Iterator[Batch]:
    """The batches; each has as long as a step before it counts as a hang."""
    for batch in batches:
        watch(seconds)
        yield batch
