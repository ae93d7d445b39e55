import pytest
import torch

from trainer.metrics import training_flops
from trainer.model import BertConfig


@pytest.mark.parametrize(
    ("length", "predictions", "teraflops"),
    # BERT-LARGE; the published figures of 272 and 52 sequences/s at 64 and 53 TFLOP/s follow from these
    [(128, 20, 0.2406), (512, 77, 1.020)],
)
def test_flops_of_a_full_sequence_of_bert_large(length, predictions, teraflops):
    config = BertConfig(vocab_size=30522)
    assert training_flops(config, torch.tensor([length]), predictions) / 1e12 == pytest.approx(teraflops, rel=1e-3)


def test_padding_counts_as_nothing():
    config = BertConfig(vocab_size=30522)
    short = training_flops(config, torch.tensor([64, 128]), 30)
    assert short < training_flops(config, torch.tensor([128, 128]), 30)
