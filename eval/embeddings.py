"""Sentences as vectors: the hidden states of a layer, pooled.

T tokens of B sentences laid end to end, D model.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from tokenizers import Encoding, Tokenizer
from torch import Tensor

from eval.errors import UsageError
from eval.pretrained import Pretrained, check_lengths, device_of, pack
from preprocessing.tokenization import encode_sentences
from trainer.files import write_atomically
from trainer.packing import PackedTokens

Pooling = Literal["cls", "mean", "max", "bm25"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
K1, B = 1.2, 0.75  # Lucene's defaults
_CHUNK = 1024  # documents that are tokenized at once


@dataclass(frozen=True)
class TermStatistics:
    """What BM25 knows of a corpus; its terms are the model's own tokens.

    Attributes:
        documents: how many there are.
        mean_length: tokens a document.
        frequencies: token id -> number of documents that hold it; a token that none holds is left out.
        k1: how soon further occurrences of a term stop to count.
        b: how much a long text is held against its terms, from 0 to 1.
    """

    documents: int
    mean_length: float
    frequencies: dict[int, int]
    k1: float = K1
    b: float = B

    def weights(self, ids: Sequence[int]) -> list[float]:
        """The weight of each token of a text: BM25's weight of its term there, shared among the term's occurrences.

        idf tf (k1 + 1) / (tf + k1 (1 - b + b length / mean length)), with idf = ln(1 + (n - df + 1/2) / (df + 1/2)):
        Robertson and Zaragoza (2009), section 3.4, with Lucene's idf, which is never negative.
        """
        counts = Counter(ids)
        norm = self.k1 * (1 - self.b + self.b * len(ids) / self.mean_length)
        return [self._idf(term) * (self.k1 + 1) / (counts[term] + norm) for term in ids]

    def _idf(self, term: int) -> float:
        frequency = self.frequencies.get(term, 0)
        return math.log(1 + (self.documents - frequency + 0.5) / (frequency + 0.5))


def count_terms(tokenizer: Tokenizer, texts: Iterable[str], k1: float = K1, b: float = B) -> TermStatistics:
    """Read a corpus, a few documents at a time.

    Raises:
        UsageError: it holds no words, or k1 or b is out of range.
    """
    if not (0 <= k1 < math.inf and 0 <= b <= 1):
        raise UsageError(f"BM25 with k1 = {k1} and b = {b}: give k1 of 0 or more and b from 0 to 1")
    frequencies: Counter[int] = Counter()
    documents = length = 0
    unread = iter(texts)
    while chunk := list(islice(unread, _CHUNK)):
        documents += len(chunk)
        for ids in encode_sentences(tokenizer, chunk):
            frequencies.update(set(ids))
            length += len(ids)
    if not length:
        raise UsageError("the corpus for BM25 holds no words; give a text file with one document a line")
    return TermStatistics(documents, length / documents, dict(sorted(frequencies.items())), k1, b)


def save_terms(terms: TermStatistics, path: Path) -> None:
    """Write statistics as JSON."""
    write_atomically(path, json.dumps(asdict(terms)) + "\n")


def load_terms(path: Path) -> TermStatistics:
    """Read what save_terms wrote."""
    content = json.loads(path.read_text(encoding="utf-8"))
    content["frequencies"] = {int(term): count for term, count in content["frequencies"].items()}
    return TermStatistics(**content)


def embed(
    pretrained: Pretrained,
    texts: Sequence[str],
    layer: int = -1,
    pooling: Pooling = "mean",
    terms: TermStatistics | None = None,
    batch_size: int = 32,
) -> np.ndarray:
    """One vector a text.

    Args:
        pretrained: the model.
        texts: each not longer than the model has positions.
        layer: of BertModel.hidden_states: 0 the embeddings, then the layers from 1; from the end, -1 is the last one.
        pooling: ``cls`` takes the first token; ``mean`` and ``max`` take all, [CLS] and [SEP] among them (Reimers and
            Gurevych, 2019); ``bm25`` weighs the tokens of the text by ``terms``, and those two not at all.
        terms: for ``bm25``.
        batch_size: texts that are computed at once.

    Returns:
        float32 [texts, D].

    Raises:
        UsageError: a layer or pooling that there is not, no ``terms``, a text that is too long, or no list of texts.
    """
    if isinstance(texts, str):  # whose letters are texts too
        raise UsageError("one text by itself: give a list of texts, [text]")
    config = pretrained.model.config
    _check(config.num_hidden_layers, layer, pooling, terms)
    encodings = pretrained.tokenizer.encode_batch(list(texts))
    check_lengths(pretrained.model, encodings)
    # Texts of about one length together: a batch costs as much as its longest.
    order = sorted(range(len(encodings)), key=lambda i: len(encodings[i].ids))
    embedded = np.empty((len(encodings), config.hidden_size), dtype=np.float32)
    for begin in range(0, len(order), batch_size):
        places = order[begin : begin + batch_size]
        chosen = [encodings[i] for i in places]
        embedded[places] = _embed_batch(pretrained, chosen, layer, pooling, terms).cpu().numpy()
    return embedded


def _check(layers: int, layer: int, pooling: str, terms: TermStatistics | None) -> None:
    if not -layers - 1 <= layer <= layers:
        raise UsageError(
            f"there is no layer {layer}: the model has 0 (the embeddings) to {layers}, "
            f"or from the end -1 to {-layers - 1}"
        )
    if pooling not in POOLINGS:
        raise UsageError(f"pooling {pooling!r} is unknown; choose one of {', '.join(POOLINGS)}")
    if pooling == "bm25" and terms is None:
        raise UsageError("pooling 'bm25' needs the statistics of a corpus; register the model with --corpus")


@torch.inference_mode()
def _embed_batch(
    pretrained: Pretrained, encodings: Sequence[Encoding], layer: int, pooling: Pooling, terms: TermStatistics | None
) -> Tensor:
    device = device_of(pretrained.model)
    tokens = pack(encodings, device)
    hidden = pretrained.model.bert.hidden_states(tokens)[layer].float()  # [T, D]
    match pooling:
        case "cls":
            return hidden.index_select(0, tokens.firsts)
        case "max":
            return tokens.pad(hidden, -torch.inf).amax(dim=1)  # [T, D] -> [B, S, D] -> [B, D]
        case "mean":
            return _weighted_mean(hidden, tokens, torch.ones_like(hidden[:, 0]))
        case "bm25":
            assert terms is not None
            weights = [weight for encoding in encodings for weight in _token_weights(encoding, terms)]
            return _weighted_mean(hidden, tokens, torch.tensor(weights, device=device))


def _token_weights(encoding: Encoding, terms: TermStatistics) -> list[float]:
    """BM25 for the text's tokens and 0 for [CLS] and [SEP], unless they are all there is."""
    special = encoding.special_tokens_mask
    if all(special):
        return [1.0] * len(special)
    weights = iter(terms.weights([i for i, is_special in zip(encoding.ids, special, strict=True) if not is_special]))
    return [0.0 if is_special else next(weights) for is_special in special]


def _weighted_mean(hidden: Tensor, tokens: PackedTokens, weights: Tensor) -> Tensor:
    """[T, D] and [T] -> [B, D]."""
    lengths = tokens.lengths.long()
    sentence = torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)  # [T]
    sums = hidden.new_zeros(len(lengths), hidden.shape[1]).index_add_(0, sentence, hidden * weights[:, None])
    return sums / hidden.new_zeros(len(lengths)).index_add_(0, sentence, weights)[:, None]
