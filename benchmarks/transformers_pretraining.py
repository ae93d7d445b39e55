"""transformers' BertForPreTraining as the peer in pretraining: the model of a recipe, and its inputs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers.initialization import no_init_weights

from trainer.data import Batch
from trainer.hugging_face import from_hugging_face, to_hugging_face
from trainer.loading import Steps
from trainer.model import EMPTY_SLOT, BertConfig, BertForPreTraining


@cache
def initial_weights(config: BertConfig, seed: int) -> dict[str, Tensor]:
    """Those that ours has from the seed: to draw BERT-LARGE's takes seconds, for which a GPU would wait in each row."""
    return BertForPreTraining(config, seed).state_dict()


def build(config: BertConfig, seed: int) -> Any:
    """Transformers' model with SDPA and the initial weights."""
    settings, weights = to_hugging_face(initial_weights(config, seed), config)
    with no_init_weights():  # which takes longer than all else
        model = transformers.BertForPreTraining._from_config(
            transformers.BertConfig(**settings), attn_implementation="sdpa"
        )
    model.tie_weights()
    model.load_state_dict(weights, strict=False)  # the tied decoder comes with the embeddings
    return model


def as_ours(model: Any) -> BertForPreTraining:
    """Transformers' weights in our model and in float32, to evaluate both by the same code."""
    config, state = from_hugging_face(model.config.to_dict(), model.state_dict())
    ours = BertForPreTraining(config, seed=None)
    ours.load_state_dict(state)
    return ours.eval()


def inputs(batch: Batch, width: int) -> dict[str, Tensor]:
    """What transformers' model takes: [B, width], padded, with labels of -100 where nothing is predicted."""
    tokens = batch.tokens
    labels = torch.full_like(tokens.input_ids, EMPTY_SLOT).index_copy_(0, batch.positions, batch.mlm_labels)
    padded = {
        "input_ids": tokens.pad(tokens.input_ids),
        "token_type_ids": tokens.pad(tokens.token_type_ids),
        "attention_mask": (torch.arange(tokens.longest) < tokens.lengths[:, None]).long(),
        "labels": tokens.pad(labels, EMPTY_SLOT),
    }
    # Its loss wants labels that lie in one piece.
    narrow = {name: x[:, :width].contiguous() for name, x in padded.items()}
    return {**narrow, "next_sentence_label": batch.nsp_labels}


@dataclass(frozen=True)
class PaddedBatch(Batch):
    """A micro-batch that has transformers' inputs too, as wide as its longest sequence."""

    inputs: dict[str, Tensor]

    def inputs_on(self, device: torch.device) -> dict[str, Tensor]:
        """The inputs on a device."""
        return {name: tensor.to(device, non_blocking=True) for name, tensor in self.inputs.items()}


class PaddedSteps(Steps):
    """The same steps; the loader's processes pad them, so that the peer does not wait for that."""

    def __getitem__(self, step: int) -> list[Batch]:
        return [_pad(batch) for batch in super().__getitem__(step)]


def _pad(batch: Batch) -> PaddedBatch:
    parts = {field.name: getattr(batch, field.name) for field in fields(Batch)}
    return PaddedBatch(**parts, inputs=inputs(batch, int(batch.lengths.max())))
