"""An export, ready to compute with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from tokenizers import Encoding, Tokenizer

from preprocessing.tokenization import load_tokenizer
from trainer.hugging_face import WEIGHTS, load_export
from trainer.model import BertForPreTraining
from trainer.packing import PackedTokens


class Pretrained(NamedTuple):
    """A model in evaluation mode and float32, and its tokenizer, which neither truncates nor pads."""

    model: BertForPreTraining
    tokenizer: Tokenizer


def load_pretrained(export: Path, heads: tuple[str, ...] = ()) -> Pretrained:
    """Read an export.

    Args:
        export: a directory that trainer.hugging_face.save_export or transformers wrote.
        heads: prefixes of the parameters that it must hold besides the encoder's, such as ``mlm.``; others may be new.

    Raises:
        ValueError: a file is missing or damaged, or lacks one of the heads; the message names it and what to do.
    """
    config, state, initialized = load_export(export)
    if missing := [name for name in initialized if name.startswith(heads)]:
        raise ValueError(f"{export / WEIGHTS}: lacks {missing[0]}; give an export with the heads of pretraining")
    model = BertForPreTraining(config, seed=None)
    model.load_state_dict(state)
    tokenizer = load_tokenizer(export)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return Pretrained(model.float().eval(), tokenizer)


def pack(encodings: Sequence[Encoding], device: torch.device | None = None) -> PackedTokens:
    """Encoded texts end to end, on a device; each has [CLS] and [SEP], so none is empty."""
    tokens = PackedTokens.from_sequences([e.ids for e in encodings], [e.type_ids for e in encodings])
    return tokens if device is None else tokens.to(device)
