"""Intrinsic evaluation: how well a pretrained model does, on held-out text, what it was pretrained to do.

Masked words and next sentences over the very samples and masks that the trainer validates on, beside what can be had
without a model; and sentences with [MASK], filled.

An estimate comes with half of its 95 % confidence interval. The words of one sample stand and fall together, so what
varies independently is the sample, not the word: an accuracy of 38,000 words in 2,000 samples is known as 2,000 allow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from operator import itemgetter

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

from eval.encoding import mask_places
from eval.pretrained import check_finite, device_of, pack
from preprocessing.schema import ShardDirectory
from trainer.data import Batch
from trainer.metrics import perplexity
from trainer.model import EMPTY_SLOT, BertForPreTraining
from trainer.philox import derive_key, permute

_QUANTILE = 1.96  # of the normal distribution: 95 % lie within so many standard errors
_CHUNK = 1 << 20  # tokens that are counted at once, which numpy widens to eight bytes each: as many as a cache holds
_MOST_CHUNKS = 256  # that are counted of a training text, 268 million tokens

# What an encyclopedia says often enough for a small model to have a chance; own sentences are better.
SENTENCES = (
    "The United [MASK] of America declared war in 1917.",
    "She was one [MASK] the first women to win the prize.",
    "The film was directed [MASK] an American director.",
    "He was born in New [MASK] City.",
    "The First World [MASK] began in 1914.",
    "He studied law at the [MASK] of Oxford.",
    "The album received positive reviews from [MASK].",
    "The river flows through the [MASK] and into the sea.",
    "The king died and was succeeded by his [MASK].",
    "Paris is the capital [MASK] of France.",
)


@dataclass(frozen=True)
class Outcomes:
    """What a model made of N samples with P masked words in all, both in the order of the stream.

    Attributes:
        words: float64 [N], masked words of each sample.
        mlm_loss: float64 [N], cross entropies in nats, summed over the words of a sample.
        mlm_correct: float64 [N], words of the sample that the model ranks first.
        nsp_loss: float64 [N].
        nsp_correct: float64 [N], 1 or 0.
        mlm_labels: int64 [P].
        nsp_labels: int64 [N], 0 where the second segment is the true next one, 1 where it is random.
    """

    words: np.ndarray
    mlm_loss: np.ndarray
    mlm_correct: np.ndarray
    nsp_loss: np.ndarray
    nsp_correct: np.ndarray
    mlm_labels: np.ndarray
    nsp_labels: np.ndarray


@dataclass(frozen=True)
class Estimate:
    """A mean, and half of its 95 % confidence interval."""

    value: float
    half_width: float


@dataclass(frozen=True)
class MaskedWords:
    """How well masked words are predicted; the loss is in nats a word, the perplexity its exponential."""

    loss: Estimate
    perplexity: Estimate
    accuracy: Estimate


@dataclass(frozen=True)
class NextSentence:
    """How well true next sentences are told from random ones; the loss is in nats."""

    loss: Estimate
    accuracy: Estimate


@dataclass(frozen=True)
class Baseline:
    """What can be had without a model, by one distribution for all.

    Attributes:
        loss: in nats.
        accuracy: of always its most probable token or class.
        most_probable: that token or class.
    """

    loss: float
    accuracy: float
    most_probable: int


@dataclass(frozen=True)
class Candidate:
    """A token for a [MASK]."""

    token: str
    probability: float


@dataclass(frozen=True)
class FilledSentence:
    """A sentence, and for each [MASK] of it in order the most probable tokens, the best first."""

    sentence: str
    masks: list[list[Candidate]]


def score(model: BertForPreTraining, batches: Iterable[Batch]) -> Outcomes:
    """Run a model over batches; samples and words with empty labels are left out.

    Args:
        model: in evaluation mode, on any device.
        batches: one at least, in the machine's memory.
    """
    assert not model.training
    outcomes = [_score_batch(model, batch) for batch in batches]
    return Outcomes(*(np.concatenate([getattr(o, field.name) for o in outcomes]) for field in fields(Outcomes)))


@torch.inference_mode()
def _score_batch(model: BertForPreTraining, batch: Batch) -> Outcomes:
    sent = batch.to(device_of(model))
    word_logits, nsp_logits = model(sent.tokens, sent.positions)
    words = _losses_and_hits(word_logits, sent.mlm_labels).cpu()  # [P, V] -> [3, P]
    by_sample = words.new_zeros(3, len(batch.nsp_labels)).index_add_(1, batch.sequences, words)  # [3, P] -> [3, B]
    sentences = _losses_and_hits(nsp_logits, sent.nsp_labels).cpu()  # [B, 2] -> [3, B]
    check_finite(words, sentences)
    samples = batch.nsp_labels != EMPTY_SLOT
    columns = torch.cat([by_sample, sentences[1:]])[:, samples]  # [5, real samples]
    labels = batch.mlm_labels[batch.mlm_labels != EMPTY_SLOT]
    return Outcomes(*(part.numpy() for part in (*columns, labels, batch.nsp_labels[samples])))


def _losses_and_hits(logits: Tensor, labels: Tensor) -> Tensor:
    """[n, classes] and [n] -> float64 [3, n]: whether a label counts, its cross entropy, whether it comes first."""
    losses = F.cross_entropy(logits.float(), labels, ignore_index=EMPTY_SLOT, reduction="none")
    return torch.stack([labels != EMPTY_SLOT, losses, logits.argmax(dim=-1) == labels]).double()


def mean_over_samples(sums: np.ndarray, counts: np.ndarray) -> Estimate:
    """The mean of things that come in samples of unequal size, with the error of a ratio estimate.

    Where every sample is one thing that is true or false, this is the binomial interval.

    Args:
        sums: [N], over each sample; N is 2 or more.
        counts: [N], things in each sample.
    """
    n, mean = len(sums), sums.sum() / counts.sum()
    residuals = sums - mean * counts
    error = math.sqrt(n / (n - 1) * (residuals**2).sum()) / counts.sum()
    return Estimate(float(mean), float(_QUANTILE * error))


def masked_words(outcomes: Outcomes) -> MaskedWords:
    """Loss, perplexity and accuracy of masked words."""
    loss = mean_over_samples(outcomes.mlm_loss, outcomes.words)
    value = perplexity(loss.value)
    return MaskedWords(
        loss=loss,
        perplexity=Estimate(value, value * loss.half_width),  # the slope of exp is exp
        accuracy=mean_over_samples(outcomes.mlm_correct, outcomes.words),
    )


def next_sentence(outcomes: Outcomes) -> NextSentence:
    """Loss and accuracy of next sentences."""
    ones = np.ones_like(outcomes.nsp_loss)
    return NextSentence(mean_over_samples(outcomes.nsp_loss, ones), mean_over_samples(outcomes.nsp_correct, ones))


def count_tokens(shards: ShardDirectory) -> np.ndarray:
    """How often each token occurs in the training documents, int64 [V].

    Of more than 268 million so many are counted, in stretches drawn from all: a terabyte of text would take hours at
    each evaluation, and a baseline is hardly another (one million of six, drawn so: a loss of 6.83 instead of 6.81). A
    shard has its documents in the order of the inputs, so that its beginning alone would not do.
    """
    vocab_size = shards.manifest.vocabulary.size
    chunks = [(entry, at) for entry in shards.manifest.split("train") for at in range(0, entry.tokens, _CHUNK)]
    drawn = permute(np.arange(min(_MOST_CHUNKS, len(chunks))), len(chunks), derive_key("unigrams"))
    counts = np.zeros(vocab_size, dtype=np.int64)
    for entry, counted in groupby((chunks[i] for i in sorted(drawn)), key=itemgetter(0)):
        shard = shards.shard(entry)
        tokens = shard.tokens[shard.token_offsets[0] : shard.token_offsets[-1]]
        for _, at in counted:
            counts += np.bincount(tokens[at : at + _CHUNK], minlength=vocab_size)
    return counts


def unigram(labels: np.ndarray, counts: np.ndarray, separator: int) -> Baseline:
    """Masked words, or next ones, by the frequencies of tokens in the training text.

    Args:
        labels: int64 [P], the words that were masked; of a left-to-right model all that come next, [SEP] among them.
        counts: int64 [V], of every token in the training text; each gets one more, so that none is impossible.
        separator: the id of [SEP]. No text holds it, so it is as frequent as among the labels.
    """
    separators = np.count_nonzero(labels == separator)
    counts = counts.copy()
    counts[separator] = round(counts.sum() * separators / max(1, len(labels) - separators))
    losses = math.log(counts.sum() + len(counts)) - np.log(counts[labels] + 1)
    token = int(counts.argmax())
    return Baseline(float(losses.mean()), float((labels == token).mean()), token)


def majority(labels: np.ndarray) -> Baseline:
    """Next sentences by the shares of their labels, int64 [N], without a look at them."""
    shares = np.bincount(labels, minlength=2) / len(labels)
    loss = -sum(share * math.log(share) for share in shares if share)
    return Baseline(float(loss), float(shares.max()), int(shares.argmax()))


@torch.inference_mode()
def fill_masks(
    model: BertForPreTraining, tokenizer: Tokenizer, sentences: Sequence[str], top: int = 5
) -> list[FilledSentence]:
    """The most probable tokens for every [MASK], by the whole sentence or, from left to right, by what is before it.

    Args:
        model: in evaluation mode, with a head for masked words.
        tokenizer: of its vocabulary; without truncation or padding.
        sentences: each not longer than the model has positions.
        top: how many tokens.
    """
    return [_fill(model, tokenizer, sentence, top) for sentence in sentences]


def _fill(model: BertForPreTraining, tokenizer: Tokenizer, sentence: str, top: int) -> FilledSentence:
    encoding = tokenizer.encode(sentence)
    device = device_of(model)
    tokens = pack([encoding], device)
    positions = torch.tensor(mask_places(tokenizer, encoding), device=device)
    # From left to right the token before says what comes next; the first one is [CLS].
    logits, _ = model(tokens, positions - 1 if model.config.is_decoder else positions)
    words = logits[:, : tokenizer.get_vocab_size()]  # a model may have more rows than the vocabulary has tokens
    best = words.float().softmax(dim=-1).topk(min(top, words.shape[1]))
    probabilities = best.values.cpu()
    check_finite(probabilities)
    masks = zip(best.indices.tolist(), probabilities.tolist(), strict=True)
    return FilledSentence(sentence, [_candidates(tokenizer, *mask) for mask in masks])


def _candidates(tokenizer: Tokenizer, tokens: list[int], probabilities: list[float]) -> list[Candidate]:
    return [Candidate(str(tokenizer.id_to_token(i)), p) for i, p in zip(tokens, probabilities, strict=True)]
