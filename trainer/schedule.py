"""Learning rates as pure functions of the step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ScheduleConfig:
    """Warm-up from 0 to the peak, then decay to the floor at the end of the run.

    Attributes:
        peak: learning rate at the end of the warm-up.
        warmup_steps: steps of linear warm-up.
        shape: of the decay: a polynomial of what is left of it, or half a wave of the cosine (Loshchilov and Hutter,
            2017, SGDR).
        power: degree of the polynomial; 1 is linear, 0.5 NVIDIA's LAMB, 0 holds the peak.
        floor: where the decay ends, as a share of the peak.
        decay_from: where the decay's clock starts. "start" is google-research/bert (optimization.py,
            create_optimizer) and NVIDIA: it runs during the warm-up too, so the rate drops a little when the warm-up
            ends. "warmup" is Hugging Face's and fairseq's: the decay begins at the peak.
    """

    peak: float = 1e-4
    warmup_steps: int = 10_000
    shape: Literal["polynomial", "cosine"] = "polynomial"
    power: float = 1.0
    floor: float = 0.0
    decay_from: Literal["start", "warmup"] = "start"

    def __post_init__(self) -> None:
        if not (0 < self.peak < math.inf and 0 <= self.warmup_steps < 2**31 and 0 <= self.power < math.inf):
            raise ValueError(
                "schedule.peak must be positive, schedule.warmup_steps and schedule.power 0 or more, all of them "
                "finite and warmup_steps below 2^31"
            )
        if not 0 <= self.floor <= 1:
            raise ValueError("schedule.floor is a share of the peak and must be 0 to 1")
        if self.shape == "cosine" and self.power != 1:
            raise ValueError("schedule.power is the degree of a polynomial; leave it out with schedule.shape=cosine")


def learning_rate(step: int, total_steps: int, config: ScheduleConfig) -> float:
    """The rate of the update that follows ``step`` finished ones: 0 for the first where there is a warm-up."""
    if step < config.warmup_steps:
        return config.peak * step / config.warmup_steps
    origin = config.warmup_steps if config.decay_from == "warmup" else 0
    left = max(0.0, (total_steps - step) / max(1, total_steps - origin))
    height = (1 - math.cos(math.pi * left)) / 2 if config.shape == "cosine" else left**config.power
    return float(config.peak * (config.floor + (1 - config.floor) * height))
