"""How much work a step is, and how fast it went."""

from __future__ import annotations

from torch import Tensor

from trainer.model import BertConfig


def training_flops(config: BertConfig, lengths: Tensor, predictions: int) -> float:
    """Floating-point operations of a forward and backward pass over real tokens.

    The field's count: backward is twice the forward pass, nothing is recomputed, the MLM head works on predicted
    positions only, and dropout, layer norm and softmax count as nothing. Forward per token and layer:
    2 (4 D^2 + 2 D F) for the products and 4 S D for attention; per prediction 2 D^2 + 2 D V.

    Args:
        config: of the model.
        lengths: [samples], real tokens of each.
        predictions: over all samples.
    """
    d, f, v = config.hidden_size, config.intermediate_size, config.vocab_size
    lengths = lengths.double()
    per_layer = 2 * (4 * d * d + 2 * d * f) * lengths.sum() + 4 * d * (lengths**2).sum()
    return 3 * (config.num_hidden_layers * float(per_layer) + predictions * (2 * d * d + 2 * d * v))
