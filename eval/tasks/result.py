"""What a task finds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Unit = Literal["", "share", "percent"]  # a share is from 0 to 1


@dataclass(frozen=True)
class Measurement:
    """A figure of the model's, half of its 95 % confidence interval, and what the task's baseline has."""

    value: float
    half_width: float | None = None
    baseline: float | None = None
    unit: Unit = ""


@dataclass(frozen=True)
class Result:
    """What a task found.

    Attributes:
        metrics: name -> figure.
        baselines: name of a metric -> what its baseline is.
        details: whatever else is worth keeping, as JSON can hold it.
    """

    metrics: dict[str, Measurement]
    baselines: dict[str, str] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
