import math
from unittest import mock

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from trainer import metrics
from trainer.metrics import (
    LARGEST_LOSS,
    Laps,
    directories,
    measure_ceiling,
    memory_share,
    of_directory,
    peak_memory,
    perplexity,
    roomiest_micro_batch,
    training_flops,
)
from trainer.model import BertConfig, BertForPreTraining
from trainer.packing import PackedTokens


@pytest.mark.parametrize(
    ("length", "predictions", "teraflops"),
    # BERT-LARGE; the published figures of 272 and 52 sequences/s at 64 and 53 TFLOP/s follow from these
    [(128, 20, 0.2406), (512, 77, 1.020)],
)
def test_flops_of_a_full_sequence_of_bert_large(length, predictions, teraflops):
    config = BertConfig(vocab_size=30522)
    assert training_flops(config, torch.tensor([length]), predictions) / 1e12 == pytest.approx(teraflops, rel=1e-3)


def test_operations_are_those_that_torch_counts_forward_and_backward():
    config = BertConfig(vocab_size=50, hidden_size=32, num_hidden_layers=3, num_attention_heads=2, intermediate_size=96)
    model, lengths, positions = BertForPreTraining(config), torch.tensor([7, 12, 3]), torch.tensor([1, 9, 20])
    ids = torch.arange(int(lengths.sum()))
    tokens = PackedTokens.from_flat(ids, torch.zeros_like(ids), lengths)
    with mock.patch("trainer.attention._fastest", return_value="reference"), FlopCounterMode(display=False) as counter:
        hidden = model.bert(tokens)  # of all tokens: trained is the last layer only where it is read
        model.mlm(hidden[positions], model.bert.embeddings.word.weight).sum().backward()
    assert counter.get_total_flops() == training_flops(config, lengths, len(positions))


def test_padding_counts_as_nothing():
    config = BertConfig(vocab_size=30522)
    short = training_flops(config, torch.tensor([64, 128]), 30)
    assert short < training_flops(config, torch.tensor([128, 128]), 30)


def test_a_ceiling_is_of_the_size_that_a_core_can_reach():
    ceiling = measure_ceiling(torch.device("cpu"), torch.float32)
    assert 1e8 < ceiling < 1e15


def test_a_ceiling_counts_two_operations_for_each_product_and_not_the_first_time(monkeypatch):
    """By a clock on which that takes ten seconds and every other one two."""
    monkeypatch.setattr(metrics, "_SIZE", {"cpu": 8})
    monkeypatch.setattr(metrics.time, "perf_counter", iter([0.0, 10.0, 10.0, 20.0, 22.0, 22.0]).__next__)
    assert measure_ceiling(torch.device("cpu"), torch.float32) == 2 * 8**3 / 2.0


def test_laps_of_one_name_add_up(monkeypatch):
    monkeypatch.setattr(metrics.time, "perf_counter", iter([0.0, 1.0, 3.0, 7.0]).__next__)
    laps = Laps(torch.device("cpu"))
    for name in ("data", "compute", "data"):
        laps.lap(name)
    assert laps.seconds() == {"data": 5.0, "compute": 2.0}


def test_a_loss_of_any_height_has_a_perplexity():
    assert perplexity(math.log(7.0)) == pytest.approx(7.0)
    assert perplexity(1e9) == perplexity(LARGEST_LOSS) < math.inf


def test_figures_of_directories_are_found_by_their_names():
    names = ["perplexity", of_directory("perplexity", "a/wiki"), of_directory("mlm_loss", "books"), "perplexity_of_all"]
    assert directories("perplexity", names) == ["a/wiki"]


def test_peak_memory_is_that_of_the_process_in_bytes():
    before = peak_memory(torch.device("cpu"))
    block = torch.ones(64 << 20, dtype=torch.uint8)
    assert before > 50e6
    assert peak_memory(torch.device("cpu")) >= before
    assert len(block)


@pytest.mark.parametrize(
    ("accumulated", "share", "size"),
    [
        (1, 0.1, 32),
        (8, 0.1, 256),
        (8, 0.2, 128),
        (8, 0.46, 32),
        (8, 0.45, 64),
        (6, 0.1, 64),
        (3, 0.1, 32),
        (8, 1.0, 32),
    ],
)
def test_the_largest_micro_batch_that_divides_the_batch_and_fits(accumulated, share, size):
    assert roomiest_micro_batch(32, accumulated, share) == size


def test_a_cpu_has_no_memory_of_its_own_to_fill():
    assert memory_share(torch.device("cpu")) == 1.0
