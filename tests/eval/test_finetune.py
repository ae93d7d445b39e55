"""The loop: order, parts of a batch, precision, and what is no number."""

from __future__ import annotations

import copy
import dataclasses
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from eval.encoding import Encoder, Sample, Segments, collate
from eval.finetune import DivergedError, Hyperparameters, Settings, cut, epoch_batches, learn, predict
from eval.kinds import Tags, Texts
from eval.tasks.datasets import READERS
from preprocessing.tokenization import load_tokenizer
from tests.eval.conftest import CONFIG, random_state
from tests.eval.small_data import write_mrpc
from trainer.hugging_face import Export
from trainer.model import EMPTY_SLOT, BertForPreTraining
from trainer.optim import OptimizerConfig, build_optimizer
from trainer.philox import derive_seed

CPU = torch.device("cpu")
KIND = Texts(("0", "1"))
SETTINGS = Settings()
POINT = Hyperparameters(learning_rate=1e-3, epochs=2, batch_size=8, seed=0)


@pytest.fixture(scope="module")
def samples(tmp_path_factory, shards) -> dict[str, list[Sample]]:
    data = write_mrpc(tmp_path_factory.mktemp("data"))
    encoder = Encoder(load_tokenizer(shards / "tokenizer"), 24)
    return {split: KIND.encode(READERS["MRPC"](data, split), encoder, training=True) for split in ("train", "dev")}


def new_model(**changes) -> nn.Module:
    config = dataclasses.replace(CONFIG, **changes)
    return KIND.build(Export(config, random_state(), []), seed=0)


def train(model, samples, point=POINT, settings=SETTINGS) -> list[float]:
    losses: list[float] = []
    learn(model, samples, KIND.collate, point, settings, CPU, lambda _, of_epoch: losses.extend(of_epoch))
    return losses


def test_an_epoch_has_every_sample_once_in_an_order_of_its_own() -> None:
    epochs = [[i for batch in epoch_batches(21, 8, 0, epoch) for i in batch] for epoch in range(3)]
    assert all(sorted(epoch) == list(range(21)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert [len(batch) for batch in epoch_batches(21, 8, 0, 0)] == [8, 8, 5]
    assert list(epoch_batches(21, 8, 0, 1)) == list(epoch_batches(21, 8, 0, 1))
    assert list(epoch_batches(21, 8, 0, 1)) != list(epoch_batches(21, 8, 1, 1))


def test_what_the_documentation_says_of_the_settings() -> None:
    """The paper's and google-research/bert's."""
    assert dataclasses.astuple(Settings()) == ("bert_adam", 0.01, 0.1, "start", 1.0, "float32", 16384)


def test_parts_are_no_larger_than_asked() -> None:
    assert list(cut([3, 4, 5, 20, 1, 1], 8)) == [[0, 1], [2], [3], [4, 5]]
    assert list(cut([4, 4, 4, 4, 1], 8)) == [[0, 1], [2, 3], [4]]
    assert list(cut([], 8)) == []


def test_the_same_seed_gives_the_same_bits_and_another_one_others(samples) -> None:
    models = [new_model() for _ in range(3)]
    torch.manual_seed(1)
    losses = [train(models[0], samples["train"])]
    torch.manual_seed(2)  # what the generator was before does not matter
    losses += [
        train(models[1], samples["train"]),
        train(models[2], samples["train"], dataclasses.replace(POINT, seed=1)),
    ]
    assert losses[0] == losses[1]
    assert all(torch.equal(a, b) for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True))
    assert losses[0] != losses[2]


def test_without_dropout_parts_of_a_batch_learn_what_the_whole_does(samples) -> None:
    whole, parts = (new_model(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0) for _ in range(2))
    expected = train(whole, samples["train"])
    found = train(parts, samples["train"], settings=Settings(max_tokens=40))
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    for ours, theirs in zip(parts.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-4)


@pytest.mark.parametrize(
    "settings",
    [
        Settings(),
        Settings("adamw", weight_decay=0.5, warmup=0.25, decay_from="warmup", max_gradient_norm=0.05),
        Settings(max_gradient_norm=0.0),
    ],
    ids=["standard", "other", "unclipped"],
)
def test_it_is_the_plain_loop(samples, settings: Settings) -> None:
    """Each setting does what it says: decay by name, warm-up and decay, clipping or none, a seed for each dropout."""
    ours, plain, data, point = new_model(), new_model(), samples["train"], dataclasses.replace(POINT, seed=3)
    train(ours, data, point, settings)

    named = list(plain.named_parameters())
    decays = [settings.weight_decay * ("norm" not in name and not name.endswith("bias")) for name, _ in named]
    groups = [{"params": [p], "weight_decay": decay} for (_, p), decay in zip(named, decays, strict=True)]
    optimizer = build_optimizer(groups, OptimizerConfig(name=settings.optimizer))
    batches = [batch for epoch in range(2) for batch in epoch_batches(len(data), 8, 3, epoch)]
    total, warmup = len(batches), int(settings.warmup * len(batches))
    origin = warmup if settings.decay_from == "warmup" else 0
    for step, chosen in enumerate(batches):
        share = step / warmup if step < warmup else (total - step) / (total - origin)
        for group in optimizer.param_groups:
            group["lr"] = point.learning_rate * share
        torch.manual_seed(derive_seed(3, "dropout", step))
        batch = KIND.collate([data[i] for i in chosen])
        optimizer.zero_grad()
        plain.losses(plain(batch), batch).mean().backward()
        if settings.max_gradient_norm:
            nn.utils.clip_grad_norm_(plain.parameters(), settings.max_gradient_norm)
        optimizer.step()
    for (name, expected), found in zip(named, ours.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6, msg=name)


def test_a_last_step_with_fewer_samples_is_one_of_the_steps(samples, monkeypatch) -> None:
    """Or the learning rate would be at its end before the training is."""
    told: list[tuple[int, int]] = []
    monkeypatch.setattr("eval.finetune.learning_rate", lambda step, total, _: told.append((step, total)) or 0.0)
    train(new_model(), samples["train"][:21])
    assert list(dict.fromkeys(told)) == [(step, 6) for step in range(6)]


def test_predictions_after_an_epoch_change_nothing_in_the_next_one(samples) -> None:
    """They turn dropout off; the next epoch has it all the same."""
    plain, watched = new_model(), new_model()
    train(plain, samples["train"])
    learn(watched, samples["train"], KIND.collate, POINT, SETTINGS, CPU,
          lambda *_: predict(watched, samples["dev"], KIND.collate, SETTINGS, CPU))  # fmt: skip
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), watched.parameters(), strict=True))


def test_a_minute_of_steps_is_told_within_an_epoch_and_changes_nothing(samples, monkeypatch) -> None:
    plain, watched = new_model(), new_model()
    expected = train(plain, samples["train"])
    of_epoch, steps = len(expected) // 2, len(expected)
    monkeypatch.setattr("eval.finetune.time", SimpleNamespace(monotonic=count(0.0, 25.0).__next__))
    told: list[tuple[int, int, float]] = []
    found: list[float] = []
    learn(watched, samples["train"], KIND.collate, POINT, SETTINGS, CPU,
          lambda _, losses: found.extend(losses), lambda *minute: told.append(minute))  # fmt: skip
    assert found == expected
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), watched.parameters(), strict=True))
    assert len(told) >= 2
    before = 0
    for step, of, loss in told:
        before = max(before, (step - 1) // of_epoch * of_epoch)
        assert step - before > 1, "a device is not waited for at every step"
        assert (step % of_epoch > 0, of, loss) == (True, steps, pytest.approx(np.mean(expected[before:step])))
        before = step


def test_a_loss_that_is_no_number_ends_its_epoch_within_a_minute(samples, monkeypatch) -> None:
    monkeypatch.setattr("eval.finetune._INTERVAL", 0.0)
    model, steps = new_model(), count(1)
    model.losses = lambda logits, batch: logits[:, 0] * (torch.nan if next(steps) == 2 else 1.0)
    with pytest.raises(DivergedError, match=r"^the loss of step 2 is nan$"):
        train(model, samples["train"])
    assert next(steps) == 3


@pytest.mark.parametrize("max_tokens", [16384, 1])
def test_the_loss_of_a_step_is_the_mean_over_its_targets_of_which_a_sample_may_have_several(max_tokens: int) -> None:
    sequence = Segments(np.array([2, 5, 6, 7, 3]), 5)
    one, three = (
        Sample((sequence,), (EMPTY_SLOT, *targets, EMPTY_SLOT)) for targets in ((1, EMPTY_SLOT, EMPTY_SLOT), (0, 1, 2))
    )
    config = dataclasses.replace(CONFIG, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = Tags(("PER",)).build(Export(config, random_state(), []), seed=0)
    expected = torch.cat([model.losses(model(batch), batch) for batch in (collate([one]), collate([three]))]).mean()
    [loss] = train(model, [one, three], dataclasses.replace(POINT, epochs=1), Settings(max_tokens=max_tokens))
    assert loss == pytest.approx(expected.item(), rel=1e-5)


class NoTargets(nn.Linear):
    """A model, a sample and a batch in one, of which nothing is to be learned."""

    size, count = 1, 0

    def to(self, _: torch.device) -> NoTargets:
        return self

    def forward(self, _: NoTargets) -> torch.Tensor:
        return super().forward(torch.zeros(0, 1))

    def losses(self, logits: torch.Tensor, _: NoTargets) -> torch.Tensor:
        return logits.flatten()


def test_a_step_without_targets_has_a_loss_of_0() -> None:
    model = NoTargets(1, 1)
    losses: list[float] = []
    learn(model, [model], lambda part: part[0], POINT, SETTINGS, CPU, lambda _, of_epoch: losses.extend(of_epoch))
    assert losses == [0.0, 0.0]


def test_learning_learns(samples) -> None:
    model = KIND.build(Export(CONFIG, BertForPreTraining(CONFIG, seed=0).state_dict(), []), seed=0)
    losses = train(model, samples["train"], dataclasses.replace(POINT, learning_rate=3e-3, epochs=12))
    assert np.mean(losses[-6:]) < 0.2 * np.mean(losses[:6])


def test_predictions_stand_in_the_order_of_the_samples(samples) -> None:
    """Though those of about one length are computed together."""
    model, sizes = new_model(), []
    whole = [sample.sequences[0] for sample in samples["dev"]]
    texts = [Segments(sequence.ids[: 15 - i * 7 % 10], sequence.second) for i, sequence in enumerate(whole)]
    varied = [Sample((text,), ()) for text in texts]
    together = predict(
        model, varied, lambda part: sizes.extend(sample.size for sample in part) or collate(part), Settings(), CPU
    )
    assert len(set(sizes)) == 10
    assert sizes == sorted(sizes)
    for sample, logits in zip(varied, together, strict=True):
        [alone] = predict(model, [sample], KIND.collate, Settings(), CPU)
        np.testing.assert_allclose(logits, alone, rtol=0, atol=1e-5)
    [*small] = predict(model, varied, KIND.collate, Settings(max_tokens=1), CPU)
    np.testing.assert_allclose(np.stack(small), np.stack(together), rtol=0, atol=1e-5)


def test_nothing_is_dropped_out_of_predictions_after_training(samples) -> None:
    model = new_model()
    train(model, samples["train"][:8], dataclasses.replace(POINT, epochs=1))
    first, second = (predict(model, samples["dev"], KIND.collate, Settings(), CPU) for _ in range(2))
    assert np.array_equal(np.stack(first), np.stack(second))


def test_bfloat16_on_a_cpu(samples) -> None:
    """Products in bfloat16; weights stay float32, and what is learned is nearly the same."""
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    exact, rounded = new_model(**still), new_model(**still)
    expected = train(exact, samples["train"])
    found = train(rounded, samples["train"], settings=Settings(precision="bf16"))
    assert {parameter.dtype for parameter in rounded.parameters()} == {torch.float32}
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.15)
    assert found != expected
    logits = predict(rounded, samples["dev"], KIND.collate, Settings(precision="bf16"), CPU)
    assert np.stack(logits).dtype == np.float32
    unrounded = predict(rounded, samples["dev"], KIND.collate, SETTINGS, CPU)
    assert not np.array_equal(np.stack(logits), np.stack(unrounded))


@pytest.mark.parametrize("optimizer", ["bert_adam", "adamw"])
def test_the_first_step_of_a_warm_up_changes_nothing(samples, optimizer: str) -> None:
    """Google's and Hugging Face's schedules begin at 0."""
    model = new_model()
    before = copy.deepcopy(model.state_dict())
    point = dataclasses.replace(POINT, epochs=1, batch_size=48)
    train(model, samples["train"], point, Settings(optimizer=optimizer, warmup=1.0))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    train(model, samples["train"], point, Settings(optimizer=optimizer, warmup=0.0))
    assert not all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_a_loss_that_is_no_number(samples) -> None:
    model = new_model()
    with torch.no_grad():
        model.bert.layers[0].feed_forward.up.bias[0] = torch.nan
    with pytest.raises(DivergedError, match=r"^the loss of step 1 is nan$"):
        train(model, samples["train"])
    with pytest.raises(DivergedError, match=r"^the trained model's scores contain NaN or infinity$"):
        predict(model, samples["dev"], KIND.collate, Settings(), CPU)


def test_what_is_infinite_is_no_number_either(samples) -> None:
    model = new_model()
    with torch.no_grad():
        model.head.output.bias[0] = torch.inf
    with pytest.raises(DivergedError, match=r"^the trained model's scores contain NaN or infinity$"):
        predict(model, samples["dev"], KIND.collate, Settings(), CPU)
    model.losses = lambda logits, batch: torch.full((batch.count,), torch.inf, requires_grad=True)
    with pytest.raises(DivergedError, match=r"^the loss of step 1 is inf$"):
        train(model, samples["train"])


def test_a_rate_that_is_far_too_high(samples) -> None:
    with pytest.raises(DivergedError, match=r"is nan|NaN or infinity"):
        train(new_model(), samples["train"], dataclasses.replace(POINT, learning_rate=1e30))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_gpu_learns_what_a_cpu_does(samples, precision) -> None:
    cuda = torch.device("cuda")
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    here, there = new_model(**still), new_model(**still).to(cuda)
    expected = train(here, samples["train"])
    found: list[float] = []
    settings = Settings(precision=precision)
    learn(there, samples["train"], KIND.collate, POINT, settings, cuda, lambda _, of_epoch: found.extend(of_epoch))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3 if precision == "float32" else 0.15)
    logits = predict(there, samples["dev"], KIND.collate, settings, cuda)
    assert np.stack(logits).shape == (len(samples["dev"]), 2)
