"""BERT (Devlin et al., 2019) as google-research/bert has it: encoder, pooler, the heads of both tasks and their losses.

B sequences, T tokens of all of them laid end to end, R of them selected, D model, N heads, H head width,
F feed-forward, V vocabulary, P predictions.
"""

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from trainer.attention import attention, dropout, expect_compiler
from trainer.packing import PackedTokens, Selection
from trainer.products import Linear, linear

# Hugging Face's names. "gelu" is exact, by erf; google-research/bert computes its approximation by tanh, "gelu_new".
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}
_POSITIVE = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    *("max_position_embeddings", "type_vocab_size", "initializer_range", "layer_norm_eps"),
)
# Matrix kernels of GPUs want rows of such a multiple, and a vocabulary of 30,522 isn't one. Rows of zeros are added for
# the product and taken off its result, so that the parameters, and with them exports, know nothing of it.
VOCABULARY_MULTIPLES = {"cuda": 64}
# oneMKL chooses a function's kernel at its first call, and of several threads in that call some may get one of low
# accuracy (pytorch #188792): initial weights, or a step of LAMB, that differ from run to run. So the first is alone.
for _function in (torch.erfinv, torch.sqrt, torch.tanh):
    _function(torch.full((1,), 0.5, device="cpu"))
_LARGEST = 1 << 24  # of a size: the bytes of a tensor of two such sizes can be counted in 64 bits
EMPTY_SLOT = -100  # the label of a place where nothing is predicted, as in torch's cross entropy


@dataclass(frozen=True)
class BertConfig:
    """The shape of a BERT, in Hugging Face's names and with BERT-LARGE as the default.

    Off as in the paper:
        is_decoder: A token sees itself and those before it only: a left-to-right model, Hugging Face's name for it.
        pre_layer_norm: LayerNorm before each sublayer and once at the end, instead of after the embeddings and each
            residual (Shoeybi et al., 2019; Xiong et al., 2020): it trains at higher learning rates. Ours alone in name;
            Hugging Face has such a model as MegatronBert.
        activation_checkpointing: Recompute each layer in the backward pass: a third more work, far less memory. Ours.

    Raises:
        ValueError: A size that isn't positive or is above 2^24, heads that don't divide the hidden size, a dropout
            outside [0, 1), an activation that isn't in ACTIVATIONS, or padding outside the vocabulary.
    """

    vocab_size: int
    hidden_size: int = 1024
    num_hidden_layers: int = 24
    num_attention_heads: int = 16
    intermediate_size: int = 4096
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int = 0
    is_decoder: bool = False
    pre_layer_norm: bool = False
    activation_checkpointing: bool = False

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if not 0 < getattr(self, name) <= _LARGEST:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be positive, and at most {_LARGEST:,}")
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 0 and below 1")
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not divisible by num_attention_heads {self.num_attention_heads}"
            )
        if self.hidden_act not in ACTIVATIONS:
            raise ValueError(f"hidden_act {self.hidden_act!r} is unknown: choose one of {', '.join(ACTIVATIONS)}")
        if not 0 <= self.pad_token_id < self.vocab_size:
            raise ValueError(f"pad_token_id {self.pad_token_id} is outside the vocabulary of {self.vocab_size}")


def _layer_norm(config: BertConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)


class Embeddings(nn.Module):
    """The sum of word, position and token type (google-research/bert, modeling.embedding_postprocessor).

    Without the norm where each layer begins with one: they would be two in a row.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.word = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.norm = nn.Identity() if config.pre_layer_norm else _layer_norm(config)
        self.dropout = config.hidden_dropout_prob

    def forward(self, tokens: PackedTokens) -> Tensor:
        """T tokens -> [T, D]."""
        longest = self.position.num_embeddings
        if tokens.longest > longest:
            raise ValueError(
                f"a sequence of {tokens.longest} tokens, but max_position_embeddings is {longest}: shorten it"
            )
        known = self.token_type.num_embeddings > 1  # with one type, as RoBERTa's, [SEP] alone tells segments apart
        types = tokens.token_type_ids if known else torch.zeros_like(tokens.token_type_ids)
        embedded = self.word(tokens.input_ids) + self.token_type(types)  # [T] -> [T, D]
        embedded = self.norm(embedded + self.position(tokens.position_ids))
        return dropout(embedded, self.dropout if self.training else 0.0)


def project(hidden: Tensor, selected: Selection | None, qkv: nn.Linear) -> tuple[Tensor, Tensor, Tensor]:
    """One product for all three, rows in the order Q, K, V; two where only some tokens ask.

    [T, D] -> [T, D] or, of selected tokens, [R, D]; [T, D]; [T, D].
    """
    if selected is None:
        query, key, value = qkv(hidden).chunk(3, dim=-1)  # [T, D] -> [T, 3D]
        return query, key, value
    width = qkv.in_features
    query = linear(hidden.index_select(0, selected.rows), qkv.weight[:width], qkv.bias[:width])
    key, value = linear(hidden, qkv.weight[width:], qkv.bias[width:]).chunk(2, dim=-1)
    return query, key, value


class SelfAttention(nn.Module):
    """Multi-head attention of the tokens of each sequence to each other."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        self.qkv = Linear(config.hidden_size, 3 * config.hidden_size)
        self.out = Linear(config.hidden_size, config.hidden_size)
        self.attention_dropout = config.attention_probs_dropout_prob
        self.hidden_dropout = config.hidden_dropout_prob
        self.causal = config.is_decoder

    def forward(self, hidden: Tensor, tokens: PackedTokens, selected: Selection | None) -> Tensor:
        """[T, D] -> [T, D], or [R, D] where only some tokens are selected."""
        hidden = self.out(self.gather(project(hidden, selected, self.qkv), tokens, selected))
        return dropout(hidden, self.hidden_dropout if self.training else 0.0)

    def gather(self, projected: Iterable[Tensor], tokens: PackedTokens, selected: Selection | None) -> Tensor:
        """Queries, keys and values, as ``project`` gives them -> [T, D], or [R, D] where only some are selected."""
        query, key, value = (x.unflatten(-1, (self.heads, -1)) for x in projected)  # [T, D] -> [T, N, H]
        probability = self.attention_dropout if self.training else 0.0
        return attention(query, key, value, tokens, selected, probability, self.causal).flatten(-2)


class FeedForward(nn.Module):
    """Two products with the activation between, on each token by itself."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.up = Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.down = Linear(config.intermediate_size, config.hidden_size)
        self.dropout = config.hidden_dropout_prob

    def forward(self, hidden: Tensor) -> Tensor:
        """[T, D] -> [T, D]."""
        hidden = self.down(self.activation(self.up(hidden)))  # [T, D] -> [T, F] -> [T, D]
        return dropout(hidden, self.dropout if self.training else 0.0)


class Layer(nn.Module):
    """Attention and feed-forward, each with its residual and LayerNorm."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config)
        self.attention_norm = _layer_norm(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = _layer_norm(config)
        self.pre_layer_norm = config.pre_layer_norm

    def forward(self, hidden: Tensor, tokens: PackedTokens, selected: Selection | None = None) -> Tensor:
        """[T, D] -> [T, D], or [R, D] where only some tokens are selected."""
        residual = hidden if selected is None else hidden.index_select(0, selected.rows)
        if self.pre_layer_norm:
            hidden = residual + self.attention(self.attention_norm(hidden), tokens, selected)
            hidden = hidden + self.feed_forward(self.feed_forward_norm(hidden))
        else:
            hidden = self.attention_norm(residual + self.attention(hidden, tokens, selected))
            hidden = self.feed_forward_norm(hidden + self.feed_forward(hidden))
        return hidden


class BertModel(nn.Module):
    """The encoder: embeddings and layers. Used by itself, it wants weights: load them, or call ``initialize``."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.final_norm = _layer_norm(config) if config.pre_layer_norm else nn.Identity()
        self.activation_checkpointing = config.activation_checkpointing
        self.causal = config.is_decoder

    def forward(self, tokens: PackedTokens, selected: Selection | None = None) -> Tensor:
        """Encode a batch.

        Args:
            tokens: T tokens of B sequences.
            selected: R of them, whose last hidden states are wanted: the last layer does no other work than for these,
                but for all in a left-to-right model.

        Returns:
            The last hidden states, [T, D] or [R, D].

        Raises:
            ValueError: a sequence has more tokens than the model has positions.
        """
        if selected is not None and self.causal:
            return self.forward(tokens).index_select(0, selected.rows)
        return deque(self._states(tokens, selected), maxlen=1).pop()

    def hidden_states(self, tokens: PackedTokens) -> list[Tensor]:
        """Encode a batch and keep every state, as feature-based use does (paper, section 5.3).

        Returns:
            One [T, D] more than layers: the embeddings, then what each layer gives; ``forward`` returns the last.
        """
        return list(self._states(tokens, None))

    def compile_layers(self, **options: Any) -> None:
        """Have torch.compile make the code of the layers: one graph for all of them. Its options are ``options``."""
        expect_compiler()
        for layer in self.layers:
            layer.compile(**options)

    def _states(self, tokens: PackedTokens, selected: Selection | None) -> Iterator[Tensor]:
        hidden = self.embeddings(tokens)
        for layer in self.layers:
            yield hidden
            wanted = selected if layer is self.layers[-1] else None
            if self.activation_checkpointing and torch.is_grad_enabled():
                hidden = checkpoint(layer, hidden, tokens, wanted, use_reentrant=False)  # same dropout, it sees to that
            else:
                hidden = layer(hidden, tokens, wanted)
        yield self.final_norm(hidden)


class Pooler(nn.Module):
    """The sequence in one vector: its first token, [CLS], through a tanh layer."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden states of first tokens, [B, D] -> [B, D]."""
        return torch.tanh(self.dense(hidden))


class MaskedLanguageModel(nn.Module):
    """Scores of every word at the positions asked for (google-research/bert, run_pretraining.get_masked_lm_output).

    The decoder is the matrix of the word embeddings, handed over at every call: one parameter, and nothing to tie.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.norm = _layer_norm(config)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, hidden: Tensor, words: Tensor) -> Tensor:
        """Hidden states where something is predicted, [P, D], and word embeddings [V, D] -> [P, V]."""
        hidden = self.norm(self.activation(self.dense(hidden)))
        missing = -len(words) % VOCABULARY_MULTIPLES.get(hidden.device.type, 1)
        if not missing:
            return linear(hidden, words, self.bias)  # [P, D] x [V, D] -> [P, V]
        return linear(hidden, F.pad(words, (0, 0, 0, missing)), F.pad(self.bias, (0, missing)))[:, : len(words)]


class BertForPreTraining(nn.Module):
    """BERT with the heads of its two tasks, masked words and next sentence.

    Args:
        config: Its shape.
        seed: Of the weights, see ``initialize``. None leaves them to a caller who loads others.
    """

    def __init__(self, config: BertConfig, seed: int | None = 0) -> None:
        super().__init__()
        self.config = config
        with _Undrawn():
            self.bert = BertModel(config)
            self.pooler = Pooler(config)
            self.mlm = MaskedLanguageModel(config)
            self.nsp = Linear(config.hidden_size, 2)
        if seed is not None:
            initialize(self, config.initializer_range, seed)

    def forward(self, tokens: PackedTokens, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Score words and next sentences.

        Args:
            tokens: T tokens of B sequences, each with [CLS] at its beginning.
            positions: [P] int64, where to predict, among the T tokens.

        Returns:
            Word scores [P, V] and next sentence scores [B, 2] (0: the true next one, 1: a random one).

        Raises:
            ValueError: a sequence has more tokens than the model has positions, or ``positions`` is a mask.
        """
        if positions.dtype == torch.bool:  # which would pass for places 0 and 1
            raise ValueError("positions is a mask: give the places that it has, mask.nonzero().squeeze(1)")
        read = torch.cat([positions, tokens.firsts])  # of T tokens, only these are read after the last layer
        rows, order = read.sort(stable=True)
        hidden = self.bert(tokens, tokens.select(rows)).index_select(0, order.argsort())
        predicted, first = hidden.split([len(positions), len(tokens.firsts)])  # [P, D], [B, D]
        return self.mlm(predicted, self.bert.embeddings.word.weight), self.nsp(self.pooler(first))


_DRAWS = (nn.init.kaiming_uniform_, nn.init.uniform_, nn.init.normal_, Tensor.uniform_, Tensor.normal_)


class _Undrawn(TorchFunctionMode):
    """Leave new weights as memory has them: torch draws some of its own, for BERT-LARGE 6 seconds, for nobody."""

    def __torch_function__(
        self, function: Callable[..., Any], _: Any, arguments: tuple[Any, ...] = (), named: dict[str, Any] | None = None
    ) -> Any:
        named = named or {}
        if function in _DRAWS:
            return arguments[0] if arguments else named["tensor"]
        return function(*arguments, **named)


class Losses(NamedTuple):
    """Sums over a batch, scalars: the caller divides by the number of predictions of the GLOBAL batch."""

    mlm_loss: Tensor
    nsp_loss: Tensor
    mlm_correct: Tensor
    nsp_correct: Tensor


def pretraining_losses(mlm_logits: Tensor, mlm_labels: Tensor, nsp_logits: Tensor, nsp_labels: Tensor) -> Losses:
    """Cross entropies and hits of both tasks.

    Args:
        mlm_logits: [P, V].
        mlm_labels: [P] int64, word ids; EMPTY_SLOT where there is nothing to predict.
        nsp_logits: [B, 2].
        nsp_labels: [B] int64, Hugging Face's: 0 is the true next sentence, 1 a random one, EMPTY_SLOT an empty sample.

    Returns:
        Sums, to which empty slots contribute nothing, computed and returned in float32 whatever the logits are; only
        float64 logits keep their precision in the losses.
    """
    return Losses(
        _cross_entropy_sum(mlm_logits, mlm_labels),
        _cross_entropy_sum(nsp_logits, nsp_labels),
        _correct_sum(mlm_logits, mlm_labels),
        _correct_sum(nsp_logits, nsp_labels),
    )


def _cross_entropy_sum(logits: Tensor, labels: Tensor) -> Tensor:
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(wide, labels, ignore_index=EMPTY_SLOT, reduction="sum")


def _correct_sum(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits.detach().argmax(dim=-1) == labels).sum(dtype=torch.float32)  # no class is EMPTY_SLOT


@torch.no_grad()
def initialize(module: nn.Module, std: float, seed: int) -> None:
    """Set every parameter of ``module``, to the same values on any device.

        parameter                       value
        biases                          0
        LayerNorm weights               1
        matrices, embeddings included   N(0, std^2) cut at two standard deviations: tf.truncated_normal_initializer(std)

    ``std`` is that of the normal before it is cut; that of the values is 0.88 of it. Padding has a row like others.

    Args:
        module: Any of this file.
        std: BertConfig.initializer_range, 0.02 in the paper.
        seed: Of a generator of its own, drawn from in the order of ``named_parameters``. The encoder comes first there:
            one seed gives one encoder, with heads and without.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            parameter.zero_()
        elif parameter.ndim == 1:
            parameter.fill_(1.0)
        else:
            parameter.copy_(_truncated_normal(parameter.shape, std, generator))


def _truncated_normal(shape: torch.Size, std: float, generator: torch.Generator) -> Tensor:
    """Invert the distribution function: eight times as fast as torch's trunc_normal_, which draws and rejects."""
    share = math.erf(2 / math.sqrt(2))  # of a normal within two standard deviations, 0.954
    values = torch.empty(shape, dtype=torch.float32, device="cpu").uniform_(-share, share, generator=generator)
    return values.erfinv_().mul_(math.sqrt(2) * std).clamp_(-2 * std, 2 * std)  # the last for rounding


def parameter_shapes(config: BertConfig) -> dict[str, torch.Size]:
    """Name -> shape of every parameter of BertForPreTraining in its order, without memory for them.

    One layer is built, as all are like it: a plan asks for shapes hundreds of times.
    """
    with torch.device("meta"):
        model = BertForPreTraining(replace(config, num_hidden_layers=1), seed=None)
    shapes: dict[str, torch.Size] = {}
    first = "bert.layers.0."
    named = ((name, parameter.shape) for name, parameter in model.named_parameters())
    for of_layer, group in itertools.groupby(named, key=lambda item: item[0].startswith(first)):
        parameters = list(group)
        for index in range(config.num_hidden_layers if of_layer else 1):
            shapes |= {name.replace(first, f"bert.layers.{index}."): shape for name, shape in parameters}
    return shapes


def joined_sizes(shapes: Mapping[str, torch.Size]) -> dict[str, list[int]]:
    """Sizes of queries, keys and values within the parameters that hold all three, in elements."""
    return {name: 3 * [shape.numel() // 3] for name, shape in shapes.items() if name.split(".")[-2] == "qkv"}


def parameter_count(config: BertConfig) -> int:
    """Number of parameters of BertForPreTraining, the tied decoder counted once: 336,226,108 for BERT-LARGE.

    A formula, which no size from outside can keep busy, as building the model could.
    """
    d, f, v = config.hidden_size, config.intermediate_size, config.vocab_size
    norm = 2 * d
    embeddings = (v + config.max_position_embeddings + config.type_vocab_size) * d + norm  # which may stand at the end
    layer = 4 * (d * d + d) + (2 * d * f + f + d) + 2 * norm
    heads = (d * d + d) + (d * d + d + norm + v) + (2 * d + 2)  # pooler, masked words, next sentence
    return embeddings + config.num_hidden_layers * layer + heads
