import math

import pytest

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


@pytest.mark.parametrize(
    "bad",
    [
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
