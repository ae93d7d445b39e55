"""The ways whose time is measured compute the same, on batches of which the said share is tokens."""

import pytest
import torch

from attention import SHAPES, WAYS, batch_of, forward_and_backward, least_seconds, random_inputs


@pytest.mark.parametrize("way", [way for way in WAYS if way != "grouped"])
def test_all_ways_compute_the_same_without_dropout(way):
    tokens = batch_of(5, 24, 0.7)
    inputs = random_inputs(tokens, 2, 8, torch.float64)
    expected = forward_and_backward(WAYS["grouped"], inputs, tokens, 0.0)
    for ours, theirs in zip(expected, forward_and_backward(WAYS[way], inputs, tokens, 0.0), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("batch", "longest", "heads", "width", "share"), SHAPES)
def test_batches_have_their_share_of_tokens(batch, longest, heads, width, share):
    tokens = batch_of(batch, longest, share)
    assert tokens.longest == longest
    assert len(tokens.input_ids) / (batch * longest) == pytest.approx(share, abs=0.002)


def test_the_ways_take_turns():
    order = []
    assert len(least_seconds([lambda: order.append("a"), lambda: order.append("b")], runs=2)) == 2
    assert order == ["a", "b"] * 3
