"""A plan as a figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.settings import ConfigError

_INCHES, _DPI = (11, 4.5), 150


def draw(title: str, scaling: Sequence[tuple[int, float]], path: Path) -> None:
    """Save hours and GPU-hours against the number of GPUs.

    Args:
        title: what is planned, on which GPUs.
        scaling: (GPUs, hours), see estimate.scaling.
        path: of the file; its ending says the format.

    Raises:
        ConfigError: matplotlib is not installed, or the file can't be written.
    """
    if not path.suffix:
        raise ConfigError(f"--plot {path}: not the name of a picture; give one such as plan.png")
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import LogLocator, NullFormatter
    except ImportError as error:
        raise ConfigError("a figure needs matplotlib: pip install 'bert-pretraining[eval]'") from error
    figure = Figure(figsize=_INCHES, layout="constrained")
    time, work = figure.subplots(1, 2)
    gpus, hours = [n for n, _ in scaling], [h for _, h in scaling]
    time.plot(gpus, hours, "o-", color="#0072B2", label="predicted")
    time.plot(gpus, [hours[0] * gpus[0] / n for n in gpus], "--", color="#555555", label="ideal")
    work.plot(gpus, [n * h for n, h in scaling], "o-", color="#D55E00")
    _finish(time, f"{title}: time", "hours")
    time.legend()
    _finish(work, f"{title}: work", "GPU-hours")
    for axes in (time, work):
        axes.set_xlabel("GPUs")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_formatter(NullFormatter())
    try:
        figure.savefig(path, dpi=_DPI)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: can't write the figure ({error})") from error


def _finish(axes: Any, title: str, label: str) -> None:
    axes.set(title=title, ylabel=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.grid(visible=True, which="major", color="#E4E4E4")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,.10g}")
