"""What stands on the encoder: which hidden states it reads, and its losses by their formulas."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from eval.encoding import Batch, Sample, Segments, collate
from eval.heads import ChoiceHead, ClassificationHead, FineTunedBert, Head, SpanHead, TagHead, fine_tuned
from tests.eval.conftest import CONFIG, random_state
from trainer.hugging_face import Export
from trainer.model import EMPTY_SLOT, BertConfig

LENGTHS = (7, 3, 12, 5)


def batch_of(targets: list[tuple[float, ...]]) -> Batch:
    generator = np.random.default_rng(0)
    sequences = [Segments(generator.integers(5, 64, length).astype(np.int32), length // 2) for length in LENGTHS]
    each = len(sequences) // len(targets)
    groups = [tuple(sequences[each * i : each * i + each]) for i in range(len(targets))]
    return collate([Sample(group, target) for group, target in zip(groups, targets, strict=True)])


def build(kind: type[Head], *arguments: int, config: BertConfig = CONFIG, new: tuple[str, ...] = ()) -> FineTunedBert:
    export = Export(config, random_state(), list(new))
    model = fine_tuned(export, kind(config, *arguments), seed=1).double().eval()
    with torch.no_grad():
        model.head.output.weight.normal_()  # larger than at a start
    return model


def whole_states(model: FineTunedBert, batch: Batch) -> list[torch.Tensor]:
    """Hidden states of each sequence, all computed."""
    return list(model.bert(batch.tokens).split(list(LENGTHS)))


def pooled(model: FineTunedBert, states: torch.Tensor) -> torch.Tensor:
    return model.head.output(torch.tanh(model.head.pooler.dense(states)))


def test_classes() -> None:
    batch = batch_of([(0,), (2,), (1,), (2,)])
    model = build(ClassificationHead, 3)
    expected = torch.stack([pooled(model, states[0]) for states in whole_states(model, batch)])
    logits = model(batch)
    torch.testing.assert_close(logits, expected)
    losses = F.cross_entropy(expected.float(), torch.tensor([0, 2, 1, 2]), reduction="none")
    torch.testing.assert_close(model.losses(logits, batch), losses)
    assert [row.shape for row in model.split(logits, batch)] == [(3,)] * 4


def test_figures() -> None:
    batch = batch_of([(0.5,), (5.0,), (2.25,), (1.0,)])
    model = build(ClassificationHead, 1)
    logits = model(batch)
    expected = (logits[:, 0].float() - torch.tensor([0.5, 5.0, 2.25, 1.0])) ** 2
    torch.testing.assert_close(model.losses(logits, batch), expected)


def test_choices() -> None:
    batch = batch_of([(1,), (0,)])
    model = build(ChoiceHead, 2)
    expected = torch.cat([pooled(model, states[0]) for states in whole_states(model, batch)]).view(2, 2)
    logits = model(batch)
    torch.testing.assert_close(logits, expected)
    losses = F.cross_entropy(expected.float(), torch.tensor([1, 0]), reduction="none")
    torch.testing.assert_close(model.losses(logits, batch), losses)


def test_spans() -> None:
    targets = [(1, 5), (0, 0), (11, 11), (2, 3)]
    batch = batch_of(targets)
    model = build(SpanHead)
    logits = model(batch)
    expected = [model.head.output(states) for states in whole_states(model, batch)]
    losses = [
        F.cross_entropy(s.T.float(), torch.tensor(t), reduction="none") for s, t in zip(expected, targets, strict=True)
    ]
    torch.testing.assert_close(model.losses(logits, batch), torch.cat(losses))
    for found, wanted in zip(model.split(logits, batch), expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_tags() -> None:
    _ = EMPTY_SLOT
    targets = [(_, 1, _, 0, 2, _, _), (_, _, _), (*[_] * 10, 1, _), (_, 2, 2, 2, _)]
    batch = batch_of(targets)
    model = build(TagHead, 3)
    logits = model(batch)
    chosen = [torch.tensor(t) != _ for t in targets]
    expected = [model.head.output(s[c]) for s, c in zip(whole_states(model, batch), chosen, strict=True)]
    for found, wanted in zip(model.split(logits, batch), expected, strict=True):
        torch.testing.assert_close(found, wanted)
    flat = torch.tensor([t for target in targets for t in target])
    losses = F.cross_entropy(torch.cat(expected).float(), flat[flat != _], reduction="none")
    torch.testing.assert_close(model.losses(logits, batch), losses)
    assert batch.count == len(losses) == 7


def test_a_left_to_right_model_is_read_at_its_last_token() -> None:
    config = dataclasses.replace(CONFIG, is_decoder=True)
    batch = batch_of([(0,)] * 4)
    model = build(ClassificationHead, 2, config=config)
    expected = torch.stack([pooled(model, states[-1]) for states in whole_states(model, batch)])
    torch.testing.assert_close(model(batch), expected)


def test_a_new_head_depends_on_its_seed_alone() -> None:
    export = Export(CONFIG, random_state(), [])
    torch.manual_seed(5)
    one, same, other = (fine_tuned(export, ClassificationHead(CONFIG, 3), seed).head for seed in (1, 1, 2))
    assert torch.equal(one.output.weight, same.output.weight)
    assert not torch.equal(one.output.weight, other.output.weight)
    assert one.output.weight.std().item() == pytest.approx(0.88 * 0.02, rel=0.3)  # a normal cut at two deviations
    assert one.output.bias.abs().max() == 0


def test_the_pooler_is_the_exports_if_that_has_one() -> None:
    state = random_state()
    kept = fine_tuned(Export(CONFIG, state, []), ClassificationHead(CONFIG, 2), 1)
    assert torch.equal(kept.head.pooler.dense.weight, state["pooler.dense.weight"])
    new = fine_tuned(
        Export(CONFIG, state, ["pooler.dense.weight", "pooler.dense.bias"]), ClassificationHead(CONFIG, 2), 1
    )
    assert new.head.pooler.dense.weight.abs().max() <= 0.04


def test_dropout_before_all_heads_but_that_of_spans() -> None:
    torch.manual_seed(0)
    rates = {}
    for kind, arguments in ((ClassificationHead, (3,)), (ChoiceHead, (2,)), (SpanHead, ()), (TagHead, (3,))):
        head = kind(CONFIG, *arguments).train()
        with torch.no_grad():
            head.output.weight.fill_(1.0)
            head.output.bias.zero_()
        rates[kind] = head.probability
    assert rates == {ClassificationHead: 0.1, ChoiceHead: 0.1, SpanHead: 0.0, TagHead: 0.1}
    head = TagHead(CONFIG, 1).train()
    with torch.no_grad():
        head.output.weight.fill_(1 / CONFIG.hidden_size)
        head.output.bias.zero_()
        means = head(torch.ones(2000, CONFIG.hidden_size))
    assert means.mean() == pytest.approx(1.0, abs=0.02)  # what is kept is scaled up
    assert means.std() > 0.01
    assert head.eval()(torch.ones(1, CONFIG.hidden_size)).item() == pytest.approx(1.0)
