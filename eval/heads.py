"""What stands on the encoder: a head for each kind of task (paper, section 4 and figure 4).

B samples of a batch, T tokens of all of them, R of them read, D model, C classes or choices, K tags. The last layer of
the encoder works for the tokens that a head reads, and for no others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from eval.encoding import Batch
from trainer.attention import dropout
from trainer.hugging_face import Export
from trainer.model import BertConfig, BertModel, Pooler, initialize

_ENCODER, _POOLER = "bert.", "pooler."


class Head(nn.Module, ABC):
    """Scores of hidden states, some of which are dropped out with the encoder's own probability in training.

    Google-research/bert and Hugging Face's BertFor... classes have it so.
    """

    def __init__(self, config: BertConfig, outputs: int) -> None:
        super().__init__()
        self.probability = config.hidden_dropout_prob
        self.output = nn.Linear(config.hidden_size, outputs)

    @abstractmethod
    def rows(self, batch: Batch) -> Tensor | None:
        """Which of the T tokens are read: int64 [R], ascending; None for all."""

    def forward(self, hidden: Tensor) -> Tensor:
        """[R, D] -> logits."""
        logits: Tensor = self.output(dropout(hidden, self.probability if self.training else 0.0))
        return logits

    @abstractmethod
    def losses(self, logits: Tensor, batch: Batch) -> Tensor:
        """The loss of every target that counts, from float32 logits."""

    @abstractmethod
    def split(self, logits: Tensor, batch: Batch) -> list[Tensor]:
        """The logits of each sample."""


class _SequenceHead(Head):
    """Reads one token of each sequence, through the pooler: [CLS], or of a left-to-right model the last one."""

    def __init__(self, config: BertConfig, outputs: int) -> None:
        super().__init__(config, outputs)
        self.pooler = Pooler(config)
        self.reads_last = config.is_decoder  # which alone has seen the others

    @override
    def rows(self, batch: Batch) -> Tensor:
        bounds = batch.tokens.bounds.long()
        return bounds[1:] - 1 if self.reads_last else bounds[:-1]

    @override
    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(self.pooler(hidden))

    @override
    def split(self, logits: Tensor, batch: Batch) -> list[Tensor]:
        return list(logits)


class ClassificationHead(_SequenceHead):
    """A class of the whole sequence, or with one output a figure (google-research/bert, run_classifier.create_model).

    Logits are [B, C], targets [B].
    """

    @override
    def losses(self, logits: Tensor, batch: Batch) -> Tensor:
        """Cross entropies, or squared errors of figures: [B]."""
        if logits.shape[1] == 1:
            return (logits.squeeze(1) - batch.targets).square()
        return F.cross_entropy(logits, batch.targets, reduction="none")


class ChoiceHead(_SequenceHead):
    """The most fitting of the C sequences that a sample has (paper, section 4.4). Logits are [B, C], targets [B]."""

    def __init__(self, config: BertConfig, choices: int) -> None:
        super().__init__(config, 1)
        self.choices = choices

    @override
    def forward(self, hidden: Tensor) -> Tensor:
        """[B * C, D] -> [B, C]."""
        return super().forward(hidden).view(-1, self.choices)

    @override
    def losses(self, logits: Tensor, batch: Batch) -> Tensor:
        """Cross entropies [B]."""
        return F.cross_entropy(logits, batch.targets, reduction="none")


class SpanHead(Head):
    """Where an answer begins and ends (google-research/bert, run_squad.create_model); without dropout, as there.

    Logits are [T, 2], targets [2B]: first and last token of each answer, counted within its sequence. Google's and
    Hugging Face's softmax runs over padding too; here is none.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config, 2)
        self.probability = 0.0

    @override
    def rows(self, batch: Batch) -> None:
        return None

    @override
    def losses(self, logits: Tensor, batch: Batch) -> Tensor:
        """Cross entropies of begin and end: [2B]."""
        by_sequence = batch.tokens.pad(logits, -torch.inf).transpose(1, 2)  # [T, 2] -> [B, S, 2] -> [B, 2, S]
        return F.cross_entropy(by_sequence.flatten(0, 1), batch.targets, reduction="none")

    @override
    def split(self, logits: Tensor, batch: Batch) -> list[Tensor]:
        """[T, 2] -> B x [S, 2]."""
        return list(logits.split(batch.tokens.lengths.tolist()))


class TagHead(Head):
    """A tag for every token that has a target: the first piece of each word (paper, section 5.3).

    Logits are [R, K], targets [T].
    """

    @override
    def rows(self, batch: Batch) -> Tensor:
        return batch.counted

    @override
    def losses(self, logits: Tensor, batch: Batch) -> Tensor:
        """Cross entropies [R]."""
        return F.cross_entropy(logits, batch.targets[batch.counted], reduction="none")

    @override
    def split(self, logits: Tensor, batch: Batch) -> list[Tensor]:
        """[R, K] -> a table for each sequence, with a row for each of its tokens that are read."""
        ends = torch.searchsorted(batch.counted, batch.tokens.bounds.long())
        return list(logits.split(ends.diff().tolist()))


class FineTunedBert(nn.Module):
    """An encoder with a head."""

    def __init__(self, bert: BertModel, head: Head) -> None:
        super().__init__()
        self.bert = bert
        self.head = head

    def forward(self, batch: Batch) -> Tensor:
        """Logits, of the head's shape."""
        rows = self.head.rows(batch)
        hidden = self.bert(batch.tokens, None if rows is None else batch.tokens.select(rows))
        logits: Tensor = self.head(hidden)
        return logits

    def losses(self, logits: Tensor, batch: Batch) -> Tensor:
        """The loss of each of ``batch.count`` targets."""
        return self.head.losses(logits.float(), batch)

    def split(self, logits: Tensor, batch: Batch) -> list[Tensor]:
        """The logits of each sample."""
        return self.head.split(logits, batch)


def load_encoder(export: Export) -> BertModel:
    """An export's encoder in float32."""
    bert = BertModel(export.config)
    bert.load_state_dict({n.removeprefix(_ENCODER): t for n, t in export.state.items() if n.startswith(_ENCODER)})
    return bert


def fine_tuned(export: Export, head: Head, seed: int) -> FineTunedBert:
    """Put a new head on an export's encoder.

    Args:
        export: a pretrained model.
        head: gets new weights, truncated N(0, 0.02) as google-research/bert has them. A pooler is the export's, though,
            if that has one.
        seed: of these weights.
    """
    initialize(head, export.config.initializer_range, seed)
    if not any(name.startswith(_POOLER) for name in export.initialized):
        pooler = {name: tensor for name, tensor in export.state.items() if name.startswith(_POOLER)}
        head.load_state_dict(pooler, strict=False)
    return FineTunedBert(load_encoder(export), head)
