"""The model with its losses: what DeepSpeed is handed, and what a CUDA graph records."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from trainer.data import Batch
from trainer.model import BertForPreTraining, Losses, pretraining_losses


class Objective(nn.Module):
    """A micro-batch in, wherever it lies, and the sums of its losses out."""

    def __init__(
        self,
        model: BertForPreTraining,
        device: torch.device,
        losses_of: Callable[..., Losses] = pretraining_losses,
    ) -> None:
        super().__init__()
        self.model = model
        self.device = device  # on which DeepSpeed puts the model
        self._losses_of = losses_of

    def forward(self, batch: Batch) -> Losses:
        """See pretraining_losses."""
        batch = batch.to(self.device)
        mlm_logits, nsp_logits = self.model(batch.tokens, batch.positions)
        return self._losses_of(mlm_logits, batch.mlm_labels, nsp_logits, batch.nsp_labels)
