"""The probes against transformers, against literals, and against statistics with a known answer."""

import copy
import dataclasses
import math
import os
from collections import Counter
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import pytest
import torch
import transformers

from eval.errors import UsageError
from eval.pretrained import load_pretrained
from eval.probe import (
    SENTENCES,
    Baseline,
    Estimate,
    Outcomes,
    count_tokens,
    fill_masks,
    majority,
    masked_words,
    mean_over_samples,
    next_sentence,
    score,
    unigram,
)
from preprocessing.schema import ShardDirectory
from preprocessing.tokenization import MASK, load_tokenizer, load_vocabulary
from tests.eval.conftest import CONFIG, random_state
from trainer.data import Batch, evaluation_batches, validation_stream
from trainer.hugging_face import save_export
from trainer.model import EMPTY_SLOT, BertConfig, BertForPreTraining


@pytest.fixture(scope="module")
def model() -> BertForPreTraining:
    built = BertForPreTraining(CONFIG, seed=None)
    built.load_state_dict(random_state())
    return built.eval()


def batches(shards: Path, samples: int, size: int) -> list[Batch]:
    return list(evaluation_batches(validation_stream(ShardDirectory(shards), 40), np.arange(samples), size))


def theirs(export: Path, given: list[Batch]) -> dict[str, float]:
    """Losses and accuracies by transformers, prediction by prediction in float64."""
    hugging_face = transformers.BertForPreTraining.from_pretrained(export, attn_implementation="eager").double().eval()
    words, word_hits, pairs, pair_hits = [], [], [], []
    for batch in given:
        tokens = batch.tokens
        real = torch.arange(tokens.longest) < tokens.lengths[:, None]
        with torch.no_grad():
            out = hugging_face(
                input_ids=tokens.pad(tokens.input_ids),
                token_type_ids=tokens.pad(tokens.token_type_ids),
                attention_mask=real.long(),
            )
        at_masks = out.prediction_logits[real][batch.positions]
        for logits, label in zip(at_masks, batch.mlm_labels.tolist(), strict=True):
            if label != EMPTY_SLOT:
                words.append(-logits.log_softmax(-1)[label].item())
                word_hits.append(logits.argmax().item() == label)
        for logits, label in zip(out.seq_relationship_logits, batch.nsp_labels.tolist(), strict=True):
            if label != EMPTY_SLOT:
                pairs.append(-logits.log_softmax(-1)[label].item())
                pair_hits.append(logits.argmax().item() == label)
    return {
        "perplexity": math.exp(np.mean(words)), "mlm_loss": np.mean(words), "mlm_accuracy": np.mean(word_hits),
        "nsp_loss": np.mean(pairs), "nsp_accuracy": np.mean(pair_hits), "words": len(words), "samples": len(pairs),
    }  # fmt: skip


def test_as_transformers_has_it(export: Path, shards: Path, model: BertForPreTraining) -> None:
    given = batches(shards, samples=33, size=8)
    expected = theirs(export, given)
    outcomes = score(model, given)
    words, sentences = masked_words(outcomes), next_sentence(outcomes)
    assert words.perplexity.value == pytest.approx(expected["perplexity"], rel=1e-5)
    assert words.loss.value == pytest.approx(expected["mlm_loss"], rel=1e-5)
    assert words.accuracy.value == pytest.approx(expected["mlm_accuracy"], abs=1e-12)
    assert sentences.loss.value == pytest.approx(expected["nsp_loss"], rel=1e-5)
    assert sentences.accuracy.value == pytest.approx(expected["nsp_accuracy"], abs=1e-12)
    assert (outcomes.words.sum(), len(outcomes.nsp_loss)) == (expected["words"], expected["samples"])
    low, high = (words.loss.value + sign * words.loss.half_width for sign in (-1, 1))
    assert words.perplexity.half_width == pytest.approx((math.exp(high) - math.exp(low)) / 2, rel=0.05)
    assert expected["mlm_accuracy"] > 0  # or the comparison says little
    assert expected["nsp_accuracy"] not in (outcomes.nsp_labels.mean(), 1 - outcomes.nsp_labels.mean())


@pytest.mark.parametrize("size", [1, 5, 33, 40])
def test_the_batch_size_changes_nothing(shards: Path, model: BertForPreTraining, size: int) -> None:
    once, again = (score(model, batches(shards, 21, s)) for s in (21, size))
    assert len(again.words) == 21
    np.testing.assert_array_equal(once.mlm_labels, again.mlm_labels)
    np.testing.assert_array_equal(once.nsp_labels, again.nsp_labels)
    np.testing.assert_allclose(once.mlm_loss, again.mlm_loss, rtol=1e-5)
    np.testing.assert_allclose(once.nsp_loss, again.nsp_loss, rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_scores_as_a_cpu_does(shards: Path, model: BertForPreTraining) -> None:
    given, tokenizer = batches(shards, samples=33, size=8), load_tokenizer(shards / "tokenizer")
    here, there = score(model, given), score(copy.deepcopy(model).cuda(), given)
    for field in dataclasses.fields(Outcomes):
        expected, found = getattr(here, field.name), getattr(there, field.name)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4, err_msg=field.name)
    [filled] = fill_masks(copy.deepcopy(model).cuda(), tokenizer, [f"word3 {MASK} word10"])
    [expected] = fill_masks(model, tokenizer, [f"word3 {MASK} word10"])
    assert [c.token for c in filled.masks[0]] == [c.token for c in expected.masks[0]]


@pytest.mark.parametrize("parameter", ["mlm.dense.weight", "nsp.weight"])
def test_one_head_without_numbers_is_refused(shards: Path, model: BertForPreTraining, parameter: str) -> None:
    spoiled = copy.deepcopy(model)
    with torch.no_grad():
        spoiled.get_parameter(parameter).fill_(3e38)
    with pytest.raises(UsageError, match=r"^the model computes NaN or infinity"):
        score(spoiled, batches(shards, 4, 4))


def test_means_and_intervals() -> None:
    # Three of four: 0.75, and sqrt(0.75 * 0.25 / 3) = 0.25 of error.
    assert mean_over_samples(np.array([1.0, 0, 1, 1]), np.ones(4)) == Estimate(0.75, pytest.approx(1.96 * 0.25))
    # 2 of one thing and 6 of two: mean 8/3, residuals -2/3 and 2/3.
    assert mean_over_samples(np.array([2.0, 6]), np.array([1.0, 2])) == Estimate(8 / 3, pytest.approx(1.96 * 4 / 9))


def test_the_interval_holds_the_truth_95_times_of_100() -> None:
    """Words that stand and fall together within a sample: as if independent, 60 % would be held."""
    rng = np.random.default_rng(0)
    held = []
    for _ in range(1000):
        counts = rng.integers(1, 20, size=200).astype(float)
        sums = counts * (3 + rng.normal(size=200)) + np.sqrt(counts) * rng.normal(size=200)
        found = mean_over_samples(sums, counts)
        held.append(abs(found.value - 3) <= found.half_width)
    assert np.mean(held) == pytest.approx(0.95, abs=0.02)


def test_unigrams() -> None:
    found = unigram(np.array([0, 2, 1, 0]), np.array([3, 1, 0, 0]), 3)  # with one more each: 4/8, 2/8, 1/8
    loss = -(2 * math.log(4 / 8) + math.log(2 / 8) + math.log(1 / 8)) / 4
    assert found == Baseline(pytest.approx(loss), 0.5, 0)
    nothing = np.zeros(8, dtype=np.int64)
    assert unigram(np.array([1, 0]), nothing, 3).loss == pytest.approx(math.log(8))


def test_separators_are_as_frequent_as_among_the_labels() -> None:
    """They stand in no text: counted there, each would cost the logarithm of the text's length."""
    labels, counts = np.array([0, 0, 1, 3] * 25), np.array([2_000_000, 1_000_000, 0, 0])
    loss = -(2 * math.log(3 / 4 * 2 / 3) + math.log(3 / 4 * 1 / 3) + math.log(1 / 4)) / 4
    assert unigram(labels, counts, 3) == Baseline(pytest.approx(loss, rel=1e-5), 0.5, 0)
    assert counts[3] == 0


def test_majority() -> None:
    assert majority(np.array([1, 0, 1, 1])) == Baseline(pytest.approx(0.5623351446), 0.75, 1)
    assert majority(np.array([0, 0])) == Baseline(0.0, 1.0, 0)


@pytest.mark.parametrize("chunk", [7, 1 << 24])
def test_tokens_are_counted_in_the_training_part(shards: Path, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eval.probe._CHUNK", chunk)
    directory = ShardDirectory(shards)
    expected: Counter[int] = Counter()
    for entry in directory.manifest.split("train"):
        shard = directory.shard(entry)
        for row in range(len(shard)):
            expected.update(shard.document(row).tolist())
    assert count_tokens(directory).tolist() == [expected[token] for token in range(64)]


def test_of_a_large_text_stretches_from_here_and_there_are_counted(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same ones each time, of all shards, and not their beginnings alone."""
    directory = ShardDirectory(shards)
    whole = count_tokens(directory)
    monkeypatch.setattr("eval.probe._CHUNK", 4)
    monkeypatch.setattr("eval.probe._MOST_CHUNKS", 64)
    part = count_tokens(directory)
    assert 60 * 4 < part.sum() <= 64 * 4 < whole.sum() / 4
    assert (part <= whole).all()
    assert (count_tokens(directory) == part).all()
    first = directory.shard(directory.manifest.split("train")[0])
    assert (part != np.bincount(first.tokens[: part.sum()], minlength=64)).any()


def test_masks_are_filled_as_transformers_would(export: Path, shards: Path, model: BertForPreTraining) -> None:
    tokenizer = load_tokenizer(shards / "tokenizer")
    sentences = [f"word3 {MASK} word10 word11", f"{MASK} word1 {MASK}."]
    found = fill_masks(model, tokenizer, sentences)
    hugging_face = transformers.BertForPreTraining.from_pretrained(export).eval()
    vocabulary = load_vocabulary(shards / "tokenizer" / "vocab.txt")
    assert [filled.sentence for filled in found] == sentences
    for filled, places in zip(found, ([2], [1, 3]), strict=True):
        ids = torch.tensor([tokenizer.encode(filled.sentence).ids])
        with torch.no_grad():
            probabilities = hugging_face(input_ids=ids).prediction_logits[0, places].softmax(-1)
        best = probabilities.topk(5)
        assert [[c.token for c in mask] for mask in filled.masks] == [[vocabulary[i] for i in m] for m in best.indices]
        for mask, values in zip(filled.masks, best.values.tolist(), strict=True):
            assert [c.probability for c in mask] == pytest.approx(values, abs=1e-5)


def test_a_left_to_right_model_fills_a_mask_by_the_words_before_it(export: Path, shards: Path) -> None:
    """As transformers continues a text that ends there."""
    config = dataclasses.replace(CONFIG, is_decoder=True)
    save_export(export.with_name("ltr"), random_state(config), config, shards / "tokenizer", {})
    reader, tokenizer = load_pretrained(export.with_name("ltr"))
    [filled] = fill_masks(reader, tokenizer, [f"word3 word7 {MASK} word10 {MASK}"])
    hugging_face = transformers.BertLMHeadModel.from_pretrained(export.with_name("ltr")).eval()
    ids = torch.tensor([tokenizer.encode(filled.sentence).ids])
    for mask, place in zip(filled.masks, (3, 5), strict=True):
        with torch.no_grad():
            best = hugging_face(input_ids=ids[:, :place]).logits[0, -1].softmax(-1).topk(5)
        assert [c.token for c in mask] == [tokenizer.id_to_token(i) for i in best.indices]
        assert [c.probability for c in mask] == pytest.approx(best.values.tolist(), abs=1e-5)


def test_rows_beyond_the_vocabulary_fill_nothing(shards: Path) -> None:
    config = BertConfig(**{**CONFIG.__dict__, "vocab_size": 72})  # as padded for a kernel's sake
    padded = BertForPreTraining(config, seed=1).eval()
    with torch.no_grad():
        padded.mlm.bias[64:] = 100.0
    [filled] = fill_masks(padded, load_tokenizer(shards / "tokenizer"), [f"word1 {MASK}"], top=100)
    assert len(filled.masks[0]) == 64
    assert sum(candidate.probability for candidate in filled.masks[0]) == pytest.approx(1, abs=1e-5)


def test_own_sentences_have_one_mask_each() -> None:
    assert len(SENTENCES) == 10
    assert all(sentence.count(MASK) == 1 for sentence in SENTENCES)


def test_a_model_that_diverged_has_a_perplexity() -> None:
    losses = np.array([69_000.0, 71_000.0])
    ones, labels = np.ones(2), np.zeros(2, np.int64)
    outcomes = Outcomes(ones, losses, ones, ones, ones, labels, labels)
    assert masked_words(outcomes).loss.value == 70_000.0
    assert 1e300 < masked_words(outcomes).perplexity.value < math.inf
