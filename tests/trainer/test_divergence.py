"""When a loss has left its best for good, and what is told then."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.divergence import LossTrend, diverged, follow

LIMIT = 2.0


def end(losses, limit=LIMIT):
    """The step at which a run with these losses would end, and the trend after it; None where it would go on."""
    trend = None
    for step, loss in enumerate(losses, start=1):
        trend = follow(trend, step, loss, limit)
        if trend.has_left(limit):
            return step, trend
    return None


def learning(steps, seed=1):
    """Losses as of BERT: from 10.4 to 1.8 nats, with noise."""
    noise = np.random.default_rng(seed).normal(0, 0.3, steps)
    return [1.8 + 8.6 * math.exp(-step / 500) + float(noise[step]) for step in range(steps)]


def test_a_run_that_learns_goes_on():
    assert end(learning(5000)) is None


def test_a_loss_that_stays_high_ends_the_run_and_the_step_before_its_rise_is_known():
    rise = [7.0] * 1000
    step, trend = end(learning(5000) + rise)
    assert 5139 <= step < 5200
    assert 4990 <= trend.good_step <= 5006


@pytest.mark.parametrize("height", [3.0, 7.0, 1e4, 1e300, math.inf])
def test_a_jump_that_comes_back_within_a_hundred_steps_does_not_however_high_it_is(height):
    assert end(learning(3000) + [height] * 100 + [1.8 + 3 * math.exp(-step / 50) for step in range(2000)]) is None


def test_a_rise_below_the_limit_does_not():
    assert end(learning(3000) + [3.5] * 5000) is None
    assert end(learning(3000) + [3.5] * 5000, limit=1.0) is not None


def test_a_training_that_never_learns_has_nothing_to_leave():
    assert end([10.4 + 0.1 * math.sin(step) for step in range(5000)]) is None


def test_weights_that_are_given_may_lose_a_little_while_they_warm_up():
    assert end([1.6 + 1.5 * math.sin(math.pi * min(1, step / 2000)) for step in range(4000)]) is None


@given(st.lists(st.floats(0, 50), min_size=1, max_size=60), st.integers(0, 59))
def test_a_trend_that_went_through_a_checkpoint_goes_on_with_the_same_bits(losses, place):
    straight = broken = None
    for step, loss in enumerate(losses, start=1):
        straight, broken = (follow(trend, step, loss, LIMIT) for trend in (straight, broken))
        if step == place:
            broken = LossTrend(**json.loads(json.dumps(dataclasses.asdict(broken))))
    assert straight == broken


def test_what_is_told_names_the_checkpoint_from_before_and_the_samples_since():
    trend = LossTrend(mean=3.9, lowest=1.8, good_step=45_031)
    told = str(diverged(45_170, trend, Path("run/checkpoints/latest"), "step-045000", (100, 900)))
    assert told.startswith("step 45170: the loss rose after step 45031 and stays 2.1 nats above its lowest mean")
    assert "write step-045000 into run/checkpoints/latest and give data.skip=[[100,900]]" in told
    told = str(diverged(45_170, trend, Path("run/checkpoints/latest"), None, (100, 900)))
    assert "there is no checkpoint from before: begin anew with a lower schedule.peak" in told
    assert "data.skip" not in told
