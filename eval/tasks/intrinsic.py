"""Tasks that a model was pretrained for: nothing is learned, and held-out samples of the shards are read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from tokenizers import Tokenizer

from eval import probe
from eval.results import NEXT_WORDS, ONE_SEGMENT, UNTRAINED
from eval.tasks.result import Measurement, Result, Unit
from preprocessing.tokenization import SEP
from trainer.data import SampleStream, evaluation_batches
from trainer.metrics import perplexity
from trainer.model import BertForPreTraining


@dataclass(frozen=True)
class Subject:
    """What is evaluated, and on what.

    Attributes:
        model: in evaluation mode.
        tokenizer: of the export.
        stream: the held-out samples; None where no shards were given.
        samples: the first so many of them.
        batch_size: samples that are computed at once.
        sentences: with [MASK].
        judges_sentences: whether the model was trained to tell true next sentences.
    """

    model: BertForPreTraining
    tokenizer: Tokenizer
    stream: SampleStream | None
    samples: int
    batch_size: int
    sentences: Sequence[str]
    judges_sentences: bool

    @property
    def held_out(self) -> SampleStream:
        """The stream, for a task that has it among its needs."""
        assert self.stream is not None
        return self.stream

    @cached_property
    def outcomes(self) -> probe.Outcomes:
        """One pass over the held-out samples, which serves all tasks that want it."""
        size = min(self.batch_size, self.samples)  # a batch is filled up, which costs as much as samples do
        return probe.score(self.model, evaluation_batches(self.held_out, np.arange(self.samples), size))


@dataclass(frozen=True)
class Intrinsic:
    """A way to evaluate a model as it is.

    Attributes:
        name: what it is asked for by.
        version: raised with every change that changes its figures.
        heads: prefixes of the parameters, beyond the encoder's, that an export must hold.
        needs_shards: whether it reads held-out samples.
        evaluate: does it.
    """

    name: str
    version: int
    heads: tuple[str, ...]
    needs_shards: bool
    evaluate: Callable[[Subject], Result]


def _evaluate_mlm(subject: Subject) -> Result:
    model = probe.masked_words(subject.outcomes)
    counts = probe.count_tokens(subject.held_out.directory)
    baseline = probe.unigram(subject.outcomes.mlm_labels, counts, subject.tokenizer.get_vocab()[SEP])
    token = subject.tokenizer.id_to_token(baseline.most_probable)
    return Result(
        metrics={
            "perplexity": _measure(model.perplexity, perplexity(baseline.loss)),
            "loss": _measure(model.loss, baseline.loss),
            "accuracy": _measure(model.accuracy, baseline.accuracy, "share"),
        },
        baselines={
            "perplexity": "unigrams of the training text",
            "loss": "unigrams of the training text",
            "accuracy": f"always {token!r}, the most frequent token",
        },
        details={
            "samples": subject.samples,
            "words": len(subject.outcomes.mlm_labels),
            **({"instead": NEXT_WORDS} if subject.model.config.is_decoder else {}),
        },
    )


def _evaluate_nsp(subject: Subject) -> Result:
    model, baseline = probe.next_sentence(subject.outcomes), probe.majority(subject.outcomes.nsp_labels)
    label = ("next", "random")[baseline.most_probable]
    instead = "" if subject.judges_sentences else UNTRAINED
    if not subject.held_out.directory.manifest.next_sentence:
        instead = ONE_SEGMENT
    return Result(
        metrics={
            "accuracy": _measure(model.accuracy, baseline.accuracy, "share"),
            "loss": _measure(model.loss, baseline.loss),
        },
        baselines={"accuracy": f"always {label!r}, the larger class", "loss": "shares of the classes"},
        details={"samples": subject.samples, **({"instead": instead} if instead else {})},
    )


def _evaluate_fill_mask(subject: Subject) -> Result:
    filled = probe.fill_masks(subject.model, subject.tokenizer, subject.sentences)
    return Result(metrics={}, details={"sentences": [dataclasses.asdict(sentence) for sentence in filled]})


def _measure(estimate: probe.Estimate, baseline: float, unit: Unit = "") -> Measurement:
    return Measurement(estimate.value, estimate.half_width, baseline, unit)


INTRINSIC = {
    task.name: task
    for task in (
        Intrinsic("mlm", 1, heads=("mlm.",), needs_shards=True, evaluate=_evaluate_mlm),
        Intrinsic("nsp", 1, heads=("pooler.", "nsp."), needs_shards=True, evaluate=_evaluate_nsp),
        Intrinsic("fill_mask", 1, heads=("mlm.",), needs_shards=False, evaluate=_evaluate_fill_mask),
    )
}
