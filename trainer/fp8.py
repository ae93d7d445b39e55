"""Matrix products of the encoder layers in eight bits, by torchao: an option for GPUs from Ada and Hopper on."""

from __future__ import annotations

import logging
from importlib.util import find_spec

import torch
from torch import nn

_HARDWARE = (8, 9)  # compute capability of the first GPUs with such products


def why_not_fp8(device: torch.device) -> str:
    """What keeps this machine from it, or ''. A CPU emulates it, slowly, which is for tests."""
    if find_spec("torchao") is None:
        return "torchao is not installed: pip install 'bert-pretraining[fp8]'"
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < _HARDWARE:
        return f"{torch.cuda.get_device_name(device)} has no products in eight bits; an L40S, H100 or later has"
    return ""


def to_fp8(layers: nn.ModuleList, device: torch.device) -> None:
    """Have the linear layers of an encoder multiply in eight bits, forward and backward; parameters stay as they are.

    Activations and weights are rounded to e4m3, gradients to e5m2, each tensor scaled by its own largest value at every
    product (Micikevicius et al., 2022, FP8 formats for deep learning; torchao's "tensorwise"). Of the last layer the
    product for queries, keys and values keeps its bits where few tokens ask. Embeddings and heads keep theirs.

    Args:
        layers: of the encoder.
        device: that will compute.
    """
    log = logging.getLogger("torch.utils._pytree")  # of what torchao 0.18 registers in a way that torch calls old
    level = log.level
    log.setLevel(logging.ERROR)
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    log.setLevel(level)
    # The sum of a weight's gradient runs over tokens, whose number needs to be a multiple of 16 on the GPU.
    config = Float8LinearConfig(pad_inner_dim=True, emulate=device.type == "cpu")
    convert_to_float8_training(layers, config=config)
