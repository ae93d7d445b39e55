"""Graphs of one micro-batch, emulated on the CPU; tests/trainer/test_engine.py trains in such ones."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer.emulated_graphs import EmulatedRecorder
from trainer.data import Batch
from trainer.graphs import InGraphs
from trainer.model import EMPTY_SLOT, BertConfig, BertForPreTraining, Losses
from trainer.objective import Objective
from trainer.packing import PackedTokens

CONFIG = BertConfig(64, 32, 2, 2, 64, max_position_embeddings=16)


@pytest.fixture(autouse=True)
def _on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.graphs.Recorder", EmulatedRecorder)
    monkeypatch.setattr("trainer.attention._fastest", lambda *_: "sdpa")


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def both(request: pytest.FixtureRequest) -> tuple[InGraphs, Objective]:
    """One in graphs and one without, of the same weights."""
    models = [BertForPreTraining(CONFIG, seed=3).to(request.param) for _ in range(2)]
    objectives = [Objective(model, torch.device("cpu")) for model in models]
    return InGraphs(objectives[0]), objectives[1]


def batch(lengths: list[int], predictions: int, seed: int = 0, longest: int = 16) -> Batch:
    """Sequences of random words."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(64, (sum(lengths),), generator=generator)
    tokens = PackedTokens.from_flat(words, words % 2, torch.tensor(lengths))
    return Batch(
        dataclasses.replace(tokens, longest=longest),
        positions=torch.randperm(sum(lengths), generator=generator)[:predictions],
        mlm_labels=torch.randint(64, (predictions,), generator=generator).index_fill(0, torch.tensor(0), EMPTY_SLOT),
        nsp_labels=torch.randint(2, (len(lengths),), generator=generator),
        indices=torch.arange(len(lengths)),
    )


def gradients(module: torch.nn.Module, losses: Losses, scale: float = 1.0) -> list[Tensor]:
    """New ones, of a loss in which the two have unequal parts."""
    module.zero_grad()
    (scale * (losses.mlm_loss / 3 + losses.nsp_loss)).backward()
    found = [parameter.grad for parameter in module.parameters()]
    assert None not in found
    return found  # type: ignore[return-value]


def results(module: torch.nn.Module, given: Batch, seed: int, scale: float = 1.0) -> list[Tensor]:
    """Losses and gradients."""
    torch.manual_seed(seed)
    losses = module(given)
    return [*(loss.detach().clone() for loss in losses), *gradients(module, losses, scale)]


# Lengths of sequences and numbers of predictions: none has the shape of another in all three.
SHAPES: list[tuple[list[int], int]] = [([8, 4, 8], 6), ([9, 4, 3], 6), ([9, 4, 3], 5), ([9, 3, 3, 1], 6)]


def test_each_shape_is_recorded_once_and_every_micro_batch_has_the_bits_of_one_without(both: Any):
    """With dropout: other words and seeds at each turn, and other lengths with as many tokens."""
    in_graphs, without = both
    for turn in range(3):
        for lengths, predictions in SHAPES:
            given = batch(lengths[turn % 2 :] + lengths[: turn % 2], predictions, seed=turn)
            pairs = [results(module, given, seed=turn, scale=1.0 + turn) for module in (in_graphs, without)]
            assert all(torch.equal(*pair) for pair in zip(*pairs, strict=True))
    assert in_graphs.recorded == len(SHAPES)


def test_what_is_known_is_not_recorded_again_but_for_room_where_there_are_more_tokens_than_ever(
    both: Any, monkeypatch: pytest.MonkeyPatch
):
    """A GPU's memory is cut into the pieces that graphs asked for, and a larger one would be taken beside all of it."""
    recorded, record = [], EmulatedRecorder.record

    def count(self: EmulatedRecorder, compute: Any) -> Any:
        recorded.append(len(given.tokens.input_ids))
        return record(self, compute)

    monkeypatch.setattr(EmulatedRecorder, "record", count)
    for tokens in (8, 12, 8, 12, 10, 8, 10, 14, 14, 8):
        given = batch([tokens], 3)
        results(both[0], given, seed=0)
    assert recorded[::2] == [8, 12, 8, 10, 14, 8]


def test_how_long_a_sequence_may_be_is_part_of_the_shape(both: Any):
    in_graphs, _ = both
    for longest in (16, 12, 16):
        results(in_graphs, batch([9, 4, 3], 6, longest=longest), seed=0)
    assert in_graphs.recorded == 2


def test_gradients_stay_as_they_are_while_others_are_computed(both: Any):
    in_graphs, _ = both
    first = results(in_graphs, batch([9, 4, 3], 6), seed=0)
    copies = [tensor.clone() for tensor in first]
    for lengths, predictions in SHAPES:
        results(in_graphs, batch(lengths, predictions, seed=1), seed=1)
    assert all(torch.equal(*pair) for pair in zip(first, copies, strict=True))


def test_gradients_add_up(both: Any):
    for module in both:
        for turn in range(3):
            torch.manual_seed(turn)
            losses = module(batch([9, 4, 3], 6, seed=turn))
            (losses.mlm_loss + losses.nsp_loss).backward()
    sums = [[parameter.grad for parameter in module.parameters()] for module in both]
    torch.testing.assert_close(sums[0], sums[1], rtol=0, atol=0)


def test_who_looks_after_a_gradient_sees_each_once_and_none_of_what_is_recorded(both: Any):
    in_graphs, seen = both[0], []
    for parameter in in_graphs.parameters():
        parameter.register_hook(seen.append)
        parameter.register_post_accumulate_grad_hook(seen.append)
    results(in_graphs, batch([9, 4, 3], 6), seed=0)
    assert len(seen) == 2 * len(list(in_graphs.parameters()))
    assert all(torch.isfinite(each).all() for each in seen)


def test_no_gradient_is_copied_once_more(both: Any):
    """Autograd would do so with one that somebody else holds."""
    found = results(both[0], batch([9, 4, 3], 6), seed=0)[4:]
    assert len({gradient.untyped_storage().data_ptr() for gradient in found}) == 1


def test_weights_are_read_anew(both: Any):
    for turn in range(2):
        pairs = [results(module, batch([9, 4, 3], 6), seed=0) for module in both]
        assert all(torch.equal(*pair) for pair in zip(*pairs, strict=True)), turn
        for module in both:
            with torch.no_grad():
                torch._foreach_mul_(list(module.parameters()), 0.5)


def test_the_seed_of_what_follows_is_not_the_recording_s(both: Any):
    """A run that goes on records where the one that was not stopped replays."""
    draws = []
    for _ in range(2):
        torch.manual_seed(5)
        both[0](batch([9, 4, 3], 6))
        draws.append(torch.rand(1))
    assert torch.equal(*draws)


def test_what_is_not_to_be_learned_from_has_no_graph(both: Any):
    in_graphs, without = both
    given = batch([9, 4, 3], 6)
    with torch.no_grad():
        assert all(torch.equal(*pair) for pair in zip(in_graphs.eval()(given), without.eval()(given), strict=True))
    assert in_graphs.recorded == 0


@pytest.mark.parametrize("wait", [lambda x: x.sum().item(), lambda x: x[x > 0], lambda x: x.nonzero()])
def test_no_graph_can_wait_for_a_value(wait: Any):
    with pytest.raises(RuntimeError, match="a graph can't wait for a value"):
        EmulatedRecorder().record(lambda: wait(torch.ones(3)))
