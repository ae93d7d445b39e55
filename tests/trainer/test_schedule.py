import math

import pytest
import torch
from transformers.optimization import (
    get_cosine_with_min_lr_schedule_with_warmup,
    get_polynomial_decay_schedule_with_warmup,
)

from trainer.schedule import ScheduleConfig, learning_rate

PAPER = ScheduleConfig(peak=1e-4, warmup_steps=10_000)
LAMB = ScheduleConfig(peak=6e-3, warmup_steps=2000, power=0.5)
AFTER_WARMUP = ScheduleConfig(peak=1e-3, warmup_steps=1000, decay_from="warmup")


@pytest.mark.parametrize(
    ("config", "total", "step", "rate"),
    [
        (PAPER, 1_000_000, 0, 0.0),
        (PAPER, 1_000_000, 1, 1e-8),
        (PAPER, 1_000_000, 9_999, 9.999e-5),
        (PAPER, 1_000_000, 10_000, 0.99e-4),  # google's decay has run since step 0
        (PAPER, 1_000_000, 500_000, 0.5e-4),
        (PAPER, 1_000_000, 1_000_000, 0.0),
        (LAMB, 7038, 2000, 6e-3 * (5038 / 7038) ** 0.5),
        (LAMB, 7038, 7037, 6e-3 * (1 / 7038) ** 0.5),
        (AFTER_WARMUP, 11_000, 1000, 1e-3),
        (AFTER_WARMUP, 11_000, 6000, 0.5e-3),
        (AFTER_WARMUP, 11_000, 12_000, 0.0),
        (ScheduleConfig(peak=1.0, warmup_steps=0, power=0), 10, 5, 1.0),
        (ScheduleConfig(peak=1.0, warmup_steps=0, power=2), 10, 12, 0.0),
        (ScheduleConfig(peak=1.0, warmup_steps=10, decay_from="warmup"), 10, 10, 0.0),
    ],
)
def test_learning_rates(config, total, step, rate):
    assert learning_rate(step, total, config) == pytest.approx(rate, rel=1e-12, abs=0)


@pytest.mark.parametrize("floor", [0.0, 0.02])
def test_a_cosine_is_hugging_face_s(floor):
    """get_cosine_with_min_lr_schedule_with_warmup, whose clock starts after the warm-up."""
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    theirs = get_cosine_with_min_lr_schedule_with_warmup(optimizer, 10, 100, min_lr_rate=floor)
    ours = ScheduleConfig(peak=0.5, warmup_steps=10, shape="cosine", floor=floor, decay_from="warmup")
    for step in range(101):
        assert learning_rate(step, 100, ours) == pytest.approx(theirs.get_last_lr()[0], rel=1e-12, abs=1e-16), step
        optimizer.step()
        theirs.step()


def test_a_polynomial_may_end_at_a_floor():
    """transformers' get_polynomial_decay_schedule_with_warmup with lr_end, and so google's end_learning_rate."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    theirs = get_polynomial_decay_schedule_with_warmup(optimizer, 10, 100, lr_end=0.05, power=2.0)
    ours = ScheduleConfig(peak=0.5, warmup_steps=10, power=2.0, floor=0.1, decay_from="warmup")
    for step in range(105):
        assert learning_rate(step, 100, ours) == pytest.approx(theirs.get_last_lr()[0], rel=1e-12), step
        optimizer.step()
        theirs.step()


@pytest.mark.parametrize(
    "bad",
    [
        {"floor": -0.1},
        {"floor": 1.1},
        {"floor": math.nan},
        {"shape": "cosine", "power": 2.0},
        {"peak": 0},
        {"warmup_steps": -1},
        {"power": -1},
        {"peak": math.nan},
        {"peak": math.inf},
        {"power": math.inf},
    ],
)
def test_impossible_schedules_are_refused(bad):
    with pytest.raises(ValueError, match="schedule"):
        ScheduleConfig(**bad)
