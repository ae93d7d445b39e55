"""What a forward pass of trainer.model keeps for the backward pass, operation by operation.

B sequences of S tokens, T tokens in all, R of them read after the last layer, D model, N heads, F feed-forward,
V vocabulary, P predictions. Besides products, whose inputs are kept, LayerNorm and the activation keep theirs, but relu
its result, and dropout keeps what it dropped.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Literal

from trainer.attention import fastest_on_gpu, groups_of_bits
from trainer.model import VOCABULARY_MULTIPLES, BertConfig

Kernel = Literal["grouped", "sdpa", "varlen", "fused"]  # of trainer.attention, and trainer.fused for whole layers
_FLOAT32, _INT64 = 4, 8


@dataclass(frozen=True)
class MicroBatch:
    """Shapes of a micro-batch.

    Attributes:
        sequences: B.
        length: S, of each.
        predictions: P.
    """

    sequences: int
    length: int
    predictions: int

    @property
    def tokens(self) -> int:
        """T."""
        return self.sequences * self.length

    @property
    def read(self) -> int:
        """R: tokens to predict, and the first of each sequence."""
        return min(self.tokens, self.predictions + self.sequences)


def fastest_kernel(config: BertConfig, width: int, fused: bool = False, is_modern: bool = True) -> Kernel:
    """The one that trainer.attention takes on a GPU, for elements of ``width`` bytes.

    ``fused`` is train.fused, whose layers have kernels of their own; ``is_modern``, whether the GPU is of Ampere's
    generation or later.
    """
    if fused:
        return "fused"
    head_width = config.hidden_size // config.num_attention_heads
    return fastest_on_gpu(width, config.attention_probs_dropout_prob, head_width, is_modern)


def kept_bytes(config: BertConfig, batch: MicroBatch, width: int, kernel: Kernel, checkpointing: bool) -> float:
    """Bytes that are kept from the end of the forward pass on.

    Args:
        config: of the model.
        batch: of a GPU.
        width: bytes of an element.
        kernel: of attention; "grouped" is that of CPUs, "fused" draws dropout of hidden states again backward.
        checkpointing: whether layers keep nothing but their input.
    """
    layers = config.num_hidden_layers - 1
    if checkpointing:
        encoder: float = (layers + 1) * batch.tokens * config.hidden_size * width
    else:
        encoder = layers * _layer(config, batch, batch.tokens, width, kernel)
        encoder += _layer(config, batch, batch.tokens if config.is_decoder else batch.read, width, kernel)
    return _embeddings(config, batch, width, kernel) + encoder + _heads(config, batch, width, kernel)


def peak_bytes(config: BertConfig, batch: MicroBatch, width: int, kernel: Kernel, checkpointing: bool) -> float:
    """Bytes at the most in a forward and backward pass, weights and their gradients aside.

    Three moments compete: the gradients of the words' scores, while everything is kept; the first whole layer on the
    way back, which recomputes under checkpointing; and the end, where the gradients of the word embeddings' two uses
    are added up. The first of them waits all the way. What a matrix kernel takes to work in is left out, some 32 MB.
    """
    words = config.vocab_size * config.hidden_size * width
    scores = batch.predictions * config.vocab_size
    kept = kept_bytes(config, batch, width, kernel, checkpointing)
    at_scores = kept + max(2 * scores * _FLOAT32, scores * (width - _FLOAT32) + words)
    beside = 5 if kernel == "fused" else 3  # [T, D] of gradients; kernels of our own let go of nothing before they end
    at_layer = kept - _heads(config, batch, width, kernel) + words + beside * batch.tokens * config.hidden_size * width
    if checkpointing:
        at_layer += _layer(config, batch, batch.tokens, width, kernel)
    elif not config.is_decoder:
        at_layer -= _layer(config, batch, batch.read, width, kernel)
    return max(at_scores, at_layer, 3 * words)


def _layer(config: BertConfig, batch: MicroBatch, queries: int, width: int, kernel: Kernel) -> float:
    """A layer whose output is wanted for some tokens.

    [T, D] in; of the queries the attention's result, both inputs of LayerNorm, one's output, [., F] before and after
    the activation, and two masks.
    """
    d, f = config.hidden_size, config.intermediate_size
    chosen = queries * d * width if queries < batch.tokens else 0  # rows of the input that ask
    dense = batch.tokens * d * width + chosen + queries * (4 * d + _around_activation(config) * f) * width
    statistics = 2 * 2 * queries * _FLOAT32
    masks = 0 if kernel == "fused" else 2 * _mask(config.hidden_dropout_prob, queries * d, width, kernel)
    return dense + statistics + masks + _attention(config, batch, queries, width, kernel)


def _attention(config: BertConfig, batch: MicroBatch, queries: int, width: int, kernel: Kernel) -> float:
    """Queries, keys and values, and what a kernel keeps beside them; its result counts as the input of a product."""
    keys = batch.tokens * config.hidden_size * width
    asked = queries * config.hidden_size * width
    sums = queries * config.num_attention_heads * _FLOAT32
    if kernel == "varlen":
        return asked + 2 * keys + sums
    if kernel == "fused":
        drawn = groups_of_bits(batch.length) if config.attention_probs_dropout_prob else 0
        return asked + 2 * keys + sums + queries * config.num_attention_heads * drawn
    if kernel == "sdpa":  # padded to the longest sequence: copies, the result too, and where their rows came from
        longest = batch.tokens * config.hidden_size * width
        return 2 * longest + 2 * keys + sums + 3 * batch.tokens * _INT64
    weights = config.num_attention_heads * queries * batch.length * width
    return 2 * asked + 2 * keys + weights * (2 if config.attention_probs_dropout_prob else 1)


def _embeddings(config: BertConfig, batch: MicroBatch, width: int, kernel: Kernel) -> float:
    """The input of LayerNorm and a mask; token ids, types and positions."""
    elements = batch.tokens * config.hidden_size
    norm = elements * width + 2 * batch.tokens * _FLOAT32
    return norm + _mask(config.hidden_dropout_prob, elements, width, kernel) + 3 * batch.tokens * _INT64


def _heads(config: BertConfig, batch: MicroBatch, width: int, kernel: Kernel) -> float:
    """[R, D] in; [P, D] before and after the activation and LayerNorm, and the logarithms of probabilities in float32.

    GPUs multiply by a copy of the word embeddings with rows of zeros at its end, where such are needed.
    """
    of_predictions = (_around_activation(config) + 1) * batch.predictions
    vectors = (batch.read + of_predictions + batch.sequences) * config.hidden_size * width
    missing = 0 if kernel == "grouped" else -config.vocab_size % VOCABULARY_MULTIPLES["cuda"]
    rows = config.vocab_size + missing if missing else 0
    return vectors + rows * config.hidden_size * width + batch.predictions * (config.vocab_size + 2) * _FLOAT32


def _around_activation(config: BertConfig) -> int:
    """How many tensors of an activation's size are kept: its input and its result, of relu this alone."""
    return 1 if config.hidden_act == "relu" else 2


def _mask(probability: float, elements: int, width: int, kernel: Kernel) -> float:
    if not probability:
        return 0
    return elements * (width if kernel == "grouped" else 1)


def largest_micro_batch(config: BertConfig, batch: MicroBatch, width: int, kernel: Kernel, room: float) -> int:
    """The most sequences whose activations fit.

    Args:
        config: of the model; its activation_checkpointing counts.
        batch: of one sequence.
        width: bytes of an element.
        kernel: of attention.
        room: bytes.
    """

    def taken(sequences: int) -> float:
        many = replace(batch, sequences=sequences, predictions=sequences * batch.predictions)
        return peak_bytes(config, many, width, kernel, config.activation_checkpointing)

    return bisect_right(range(1, sys.maxsize), room, key=taken)
