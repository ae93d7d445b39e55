"""Embeddings are transformers' hidden states pooled by hand; BM25's weights are those of another implementation."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import bm25s
import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer

from eval.embeddings import TermStatistics, count_terms, embed, load_terms, save_terms
from eval.pretrained import Pretrained, load_pretrained
from preprocessing.tokenization import SPECIAL_TOKENS, build_tokenizer
from tests.eval.minilm import MINILM

TEXTS = [
    "The committee voted against the plan because it cost too much.",
    "Rain.",
    "",
    "The river, the bridge and the old mill: all of the valley was under water, and the road as well.",
]


@pytest.fixture(scope="module")
def pretrained() -> Pretrained:
    return load_pretrained(MINILM)


@pytest.fixture(scope="module")
def terms(pretrained: Pretrained) -> TermStatistics:
    return count_terms(pretrained.tokenizer, ["the river and the road", "the plan", "water under the bridge"])


@pytest.fixture(scope="module")
def hidden_states() -> list[list[torch.Tensor]]:
    """Every state of transformers' model, [S, D], for each text by itself."""
    model = transformers.BertModel.from_pretrained(MINILM, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(MINILM)
    with torch.inference_mode():
        states = [
            model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True).hidden_states for text in TEXTS
        ]
    return [[state[0] for state in text] for text in states]


@pytest.mark.parametrize("layer", [0, 1, 6, -1, -2, -7])
def test_pooled_by_hand(pretrained: Pretrained, hidden_states: list[list[torch.Tensor]], layer: int) -> None:
    chosen = [states[layer] for states in hidden_states]
    pooled = {
        "cls": [state[0] for state in chosen],
        "mean": [state.mean(dim=0) for state in chosen],
        "max": [state.max(dim=0).values for state in chosen],
    }
    for pooling, expected in pooled.items():
        ours = embed(pretrained, TEXTS, layer, pooling, batch_size=3)
        assert ours.dtype == np.float32
        np.testing.assert_allclose(ours, torch.stack(expected).numpy(), rtol=0, atol=1e-5, err_msg=pooling)


def test_weighted_by_bm25(
    pretrained: Pretrained, terms: TermStatistics, hidden_states: list[list[torch.Tensor]]
) -> None:
    ours = embed(pretrained, TEXTS, -2, "bm25", terms)
    for text, states, embedding in zip(TEXTS, hidden_states, ours, strict=True):
        words = pretrained.tokenizer.encode(text, add_special_tokens=False).ids
        state, weights = states[-2][1:-1], torch.tensor(terms.weights(words))  # without [CLS] and [SEP]
        expected = states[-2].mean(dim=0) if not words else (weights[:, None] * state).sum(dim=0) / weights.sum()
        np.testing.assert_allclose(embedding, expected.numpy(), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("k1", "b"), [(1.2, 0.75), (2.0, 0.0), (0.5, 1.0)])
def test_weights_of_terms_are_those_of_another_implementation(k1: float, b: float) -> None:
    words = ["river", "the", "mill", "water", "a", "road"]
    tokenizer = build_tokenizer([*SPECIAL_TOKENS, *words], lowercase=True)
    documents = ["the river the mill", "the road", "a a a water the", "mill", "the water of the the river a"]
    ours = count_terms(tokenizer, documents, k1, b)
    ids = [tokenizer.encode(document, add_special_tokens=False).ids for document in documents]
    index = bm25s.BM25(method="lucene", k1=k1, b=b, dtype="float64")  # Lucene leaves out the constant k1 + 1
    index.index([[str(i) for i in document] for document in ids], show_progress=False)
    for place, document in enumerate(ids):
        weights = np.array(ours.weights(document))
        for term in set(document):
            of_term = weights[np.array(document) == term]
            assert len(set(of_term)) == 1  # shared in equal parts
            expected = index.get_scores([str(term)])[place] * (k1 + 1)
            np.testing.assert_allclose(of_term.sum(), expected, rtol=1e-6)


def test_rare_words_weigh_more() -> None:
    tokenizer = build_tokenizer([*SPECIAL_TOKENS, "the", "river", "mill"], lowercase=True)
    terms = count_terms(tokenizer, ["the river", "the", "the river"])
    the, river, mill = terms.weights(tokenizer.encode("the river mill", add_special_tokens=False).ids)
    assert mill / river == pytest.approx(np.log(1 + 3.5 / 0.5) / np.log(1 + 1.5 / 2.5))  # no document holds a mill
    assert 0 < the < river < mill  # a word that the corpus lacks is the rarest


def test_a_corpus_is_not_kept_in_memory() -> None:
    """It may be all that the model was pretrained on."""
    tokenizer, documents = build_tokenizer([*SPECIAL_TOKENS, "the"], lowercase=True), 20_000
    tracemalloc.start()
    terms = count_terms(tokenizer, ("the " * 250 for _ in range(documents)))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (terms.documents, terms.mean_length) == (documents, 250)
    assert most < documents * 1000 / 2


def test_terms_survive_the_disk(terms: TermStatistics, tmp_path: Path) -> None:
    save_terms(terms, tmp_path / "terms.json")
    assert load_terms(tmp_path / "terms.json") == terms


def test_texts_of_any_length_in_their_order(pretrained: Pretrained) -> None:
    texts = ["word " * n for n in (30, 1, 12, 2, 25)]
    together = embed(pretrained, texts, batch_size=2)
    alone = np.concatenate([embed(pretrained, [text]) for text in texts])
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-5)
    assert embed(pretrained, []).shape == (0, 384)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layer": 7}, r"there is no layer 7: the model has 0 \(the embeddings\) to 6, or from the end -1 to -7"),
        ({"layer": -8}, "there is no layer -8"),
        ({"pooling": "sum"}, "pooling 'sum' is unknown; choose one of cls, mean, max, bm25"),
        ({"pooling": "bm25"}, "needs the statistics of a corpus; register the model with --corpus"),
        ({"texts": "word"}, r"one text by itself: give a list of texts, \[text\]"),
        ({"texts": ["short", "word " * 600]}, "text 2 has 602 tokens, but the model 512 positions; shorten it"),
    ],
)
def test_mistakes(pretrained: Pretrained, arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        embed(pretrained, **({"texts": ["word"]} | arguments))


def test_a_model_whose_path_is_a_string(pretrained: Pretrained) -> None:
    """As one writes it in a notebook."""
    again = load_pretrained(str(MINILM))
    np.testing.assert_array_equal(embed(again, ["word"]), embed(pretrained, ["word"]))


@pytest.mark.parametrize(
    ("texts", "k1", "b", "message"),
    [([], 1.2, 0.75, "no words"), (["", " "], 1.2, 0.75, "no words"), (["the"], -1, 0.75, "k1"), (["the"], 1, 2, "b")],
)
def test_a_corpus_that_says_nothing(
    pretrained: Pretrained, texts: list[str], k1: float, b: float, message: str
) -> None:
    tokenizer: Tokenizer = pretrained.tokenizer
    with pytest.raises(ValueError, match=message):
        count_terms(tokenizer, texts, k1, b)
