"""When a loss has left its best for good."""

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.loss_trend import LossTrend, follow

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


@pytest.mark.parametrize(("height", "earliest", "latest"), [
    (1.05, 5400, 5900), (1.5, 5190, 5260), (2.5, 5125, 5150), (1e4, 5125, 5150)
])  # fmt: skip
@pytest.mark.parametrize("limit", [0.5, 2.0, 8.0])
def test_a_loss_that_stays_high_ends_the_run_and_a_step_shortly_before_its_rise_is_known(
    height, earliest, latest, limit
):
    """So many limits above its best; later, whatever the height, the best checkpoints would be gone."""
    before = learning(5000)
    step, trend = end(before + [1.8 + height * limit] * 1000, limit)
    assert earliest <= step <= latest
    assert 4960 <= trend.good_step <= 5000


@pytest.mark.parametrize("seed", range(5))
def test_the_step_before_the_rise_is_known_though_losses_are_noisy_and_fall_no_more(seed):
    """From the first step on, as where a run goes on that has learned."""
    plateau = 1.8 + np.random.default_rng(seed).normal(0, 0.16, 5000)
    _, trend = end([*plateau, *[7.0] * 1000])
    assert 4900 <= trend.good_step <= 5000


def test_before_the_first_step_all_is_good():
    assert follow(None, 7, 3.0, LIMIT) == LossTrend(mean=3.0, lowest=3.0, good_step=6, steps=1)


def test_losses_on_other_data_begin_a_mean_of_their_own_and_what_was_good_stays_until_they_have_one():
    trend = None
    for step in range(1, 1001):
        trend = follow(trend, step, 2.0, LIMIT)
    assert trend.good_step == 975
    trend = trend.begin_anew()
    for step in range(1001, 3001):
        trend = follow(trend, step, 9.0, LIMIT)
        assert not trend.has_left(LIMIT)
        assert trend.good_step == (975 if step < 1050 else step - 25)
    for step in range(3001, 3140):
        trend = follow(trend, step, 20.0, LIMIT)
    assert trend.has_left(LIMIT)
    assert trend.rise == trend.mean - trend.lowest


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("height", [1.5, 2.65, 1e4])
@pytest.mark.parametrize("rise_after", [1, 3, 10, 20, 25, 30, 40, 60, 150])
def test_a_rise_soon_after_a_beginning_is_found_too(rise_after, height, goes_on):
    """Of a run, or of a phase on other data, as its new schedule may bring one; 250 steps are waited for."""
    first = 1000 if goes_on else 0
    trend = LossTrend(mean=1.0, lowest=1.0, good_step=975).begin_anew() if goes_on else None
    noise = np.random.default_rng(5).normal(0, 0.16, 2000)
    for step in range(1, 2000):
        trend = follow(trend, first + step, 2.0 + height * LIMIT * (step > rise_after) + noise[step], LIMIT)
        assert step >= 250 or not trend.has_left(LIMIT)
        if trend.has_left(LIMIT):
            break
    assert step < rise_after + 500
    assert trend.good_step <= first + rise_after


def test_a_jump_soon_after_a_beginning_that_comes_back_ends_nothing():
    for jump_after in (1, 10, 50, 100):
        assert end([2.0] * jump_after + [12.0] * 99 + [2.0] * 1000) is None


def test_a_trend_from_before_its_steps_were_counted_is_one_of_many():
    told = {"mean": 2.0, "lowest": 2.0, "good_step": 900}
    assert follow(LossTrend(**told), 1000, 2.0, LIMIT).good_step == 975


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
