"""An export, ready to compute with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import Encoding, Tokenizer
from torch import Tensor

from eval.errors import UsageError
from eval.inputs import open_checkpoint
from trainer.hugging_face import Export
from trainer.model import BertForPreTraining
from trainer.packing import PackedTokens


class Pretrained(NamedTuple):
    """A model in evaluation mode and float32, and its tokenizer, which neither truncates nor pads."""

    model: BertForPreTraining
    tokenizer: Tokenizer


def load_pretrained(path: Path | str) -> Pretrained:
    """Read an export.

    Args:
        path: a directory that trainer.hugging_face.save_export or transformers wrote; heads that it lacks are new.

    Raises:
        UsageError, UnavailableError: see eval.inputs.open_checkpoint.
    """
    checkpoint = open_checkpoint(Path(path))
    return Pretrained(build(checkpoint.export), checkpoint.tokenizer)


def build(export: Export) -> BertForPreTraining:
    """The model of an export, in evaluation mode and float32."""
    model = BertForPreTraining(export.config, seed=None)
    model.load_state_dict(export.state)
    return model.float().eval()


def device_of(model: BertForPreTraining) -> torch.device:
    """Where a model computes."""
    return model.bert.embeddings.word.weight.device


def check_finite(*computed: Tensor) -> None:
    """See that what a model has computed, and a CPU has by now, are numbers: of finite weights they need not be.

    Raises:
        UsageError: they are not.
    """
    if not all(bool(values.isfinite().all()) for values in computed):
        raise UsageError("the model computes NaN or infinity, for its weights are too large; take another export")


def check_lengths(model: BertForPreTraining, encodings: Sequence[Encoding]) -> None:
    """See that encoded texts are not longer than a model reads.

    Raises:
        UsageError: one is.
    """
    positions = model.config.max_position_embeddings
    for i, encoding in enumerate(encodings, start=1):
        if len(encoding) > positions:
            raise UsageError(f"text {i} has {len(encoding)} tokens, but the model {positions} positions; shorten it")


def pack(encodings: Sequence[Encoding], device: torch.device | None = None) -> PackedTokens:
    """Encoded texts end to end, on a device; each has [CLS] and [SEP], so none is empty."""
    tokens = PackedTokens.from_sequences([e.ids for e in encodings], [e.type_ids for e in encodings])
    return tokens if device is None else tokens.to(device)
