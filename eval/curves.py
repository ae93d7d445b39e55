"""Runs as curves: what a training has logged, and what its exports score."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from eval.comparison import MeasuredExport, Score
from eval.evaluated import Evaluated
from eval.histories import History, predicting
from eval.results import NEXT_WORDS, is_learned
from preprocessing.figures import COLOURS, STYLE
from trainer.metrics import LARGEST_LOSS, of_directory

WINDOWS = 25  # a curve is smoothed over this part of its steps
_ENDLESS = 1e9  # a loss of a run that diverged, beside which the others would be a line at 0
_STRETCHES = 2000  # of a curve, each drawn by its extremes: there are more than a picture has columns
_INCHES = (12, 8)
_TOLD_APART = 2  # runs of which the legend has training and held out each
_COLUMNS = 4  # of the legend of more
_LINES = ("-", "--", "-.", ":")
_MARKS = (7, 5, 3.5, 2.5)  # sizes of circles
_WIDE = 8  # times the smallest perplexity: from there on an axis is logarithmic
_BASELINE, _OF_BASELINES = "#555555", "the task's baseline"
_WORDS = {  # what is predicted, by whether that is next words, and how axes name it
    (False,): ("Masked words", "MLM "),
    (True,): ("Next words", ""),
    (False, True): ("Masked words, or next ones", ""),
}
_INTRINSIC = (("mlm", "perplexity"), ("mlm", "accuracy"), ("nsp", "accuracy"))


@dataclass(frozen=True)
class Baselines:
    """What needs no model; None where no evaluation says it."""

    mlm_loss: float | None
    nsp_accuracy: float | None


def baselines(evaluations: Sequence[Evaluated]) -> Baselines:
    """The baselines on the data that all evaluations were measured on; None where that is not the same for all."""
    return Baselines(_baseline(evaluations, "mlm", "loss"), _baseline(evaluations, "nsp", "accuracy"))


def _baseline(evaluations: Sequence[Evaluated], task: str, metric: str) -> float | None:
    """Of those that are over the most samples, the first's."""
    measured = [evaluated for evaluated in evaluations if evaluated.figure(task, metric) is not None]
    if len({evaluated.data(task) for evaluated in measured}) != 1:
        return None
    most = max(measured, key=lambda evaluated: evaluated.samples(task))
    baseline: float | None = most.results["tasks"][task]["metrics"][metric]["baseline"]
    return baseline


def smooth(values: np.ndarray, window: int) -> np.ndarray:
    """The centred running mean of values [n].

    The window shrinks on both sides at the beginning, where a loss falls steeply and a lopsided mean would be too low;
    at the end only on the side that is missing, as a lone last value would say little. What has a NaN in its window is
    NaN.
    """
    places = np.arange(len(values))
    before = np.minimum(window // 2, places)
    after = np.minimum(before, places[::-1])

    def sums(of: np.ndarray) -> np.ndarray:
        running = np.concatenate([[0.0], np.cumsum(of)])
        return np.asarray(running[places + after + 1] - running[places - before])

    lacking = np.isnan(values)
    means = sums(np.where(lacking, 0.0, values)) / (before + after + 1)
    return np.where(sums(lacking) > 0, np.nan, means)


def visible(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Those points of a curve, both [n], that a picture has room for; of few all.

    Of each stretch these are the least and the greatest value, so the line through them covers what that through all
    covers, and a lone spike stays.
    """
    if len(values) <= 2 * _STRETCHES:
        return steps, values
    ends = np.linspace(0, len(values), _STRETCHES + 1).astype(int)
    stretches = [(begin, values[begin:end]) for begin, end in itertools.pairwise(ends)]
    places = np.unique([begin + place for begin, of_it in stretches for place in (of_it.argmin(), of_it.argmax())])
    return steps[places], values[places]


def draw(histories: Sequence[History], known: Baselines) -> Figure:
    """The figure of all curves: loss, learning rate, accuracy in next sentences, or in words where none has those."""
    with_pairs, many = any(history.next_sentence for history in histories), len(histories) > _TOLD_APART
    next_words = {history.next_words for history in histories}
    words, of = _WORDS[tuple(sorted(next_words))]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=_INCHES, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1))
        grid = figure.add_gridspec(2, 2, height_ratios=[3, 2], width_ratios=[2, 1])
        loss = figure.add_subplot(grid[0, :])
        accuracy, rate = figure.add_subplot(grid[1, 0], sharex=loss), figure.add_subplot(grid[1, 1])
        for history, style in zip(histories, _styles(), strict=False):
            name = f"{history.name}, {NEXT_WORDS}" if history.next_words and len(next_words) > 1 else history.name
            prefix = "" if len(histories) == 1 else f"{name}, "
            labels = (name, None) if many else (f"{prefix}training", f"{prefix}held out")
            _draw_curve(loss, history, "mlm_loss", style, *map(_label, labels))
            if history.next_sentence or not with_pairs:
                _draw_curve(accuracy, history, "nsp_accuracy" if with_pairs else "mlm_accuracy", style)
            rate.plot(*visible(history.training["step"], history.training["learning_rate"]), **style)
        if len(histories) == 1:
            _draw_directories(loss, histories[0])
        _draw_baseline(loss, known.mlm_loss, None if many else "unigrams of the training text")
        lines, names = loss.get_legend_handles_labels()
        a_row = len(lines) if many else -(-len(lines) // len(histories))  # of training, or of held out
        columns = min(_COLUMNS, a_row)
        figure.legend(lines, names, loc="outside lower center", ncols=columns)  # off the curves, which are anywhere
        if with_pairs:
            _draw_baseline(accuracy, known.nsp_accuracy, "always the larger class")
        _finish_loss(loss, words if len(histories) > 1 else f"{words}: {histories[0].name}", of)
        _finish_accuracy(accuracy, *(("Next sentence", "NSP accuracy") if with_pairs else ("Hits", f"{of}accuracy")))
        rate.set(title="Learning rate", xlabel="step")
        rate.ticklabel_format(axis="y", scilimits=(-2, 4))  # one power of ten for all marks
        for axes in (loss, accuracy):
            _mark_steps(axes, "auto")
        _mark_steps(rate, 4)
        rate.yaxis.set_major_locator(MaxNLocator(nbins=5))
        figure.align_ylabels([loss, accuracy])
    return figure


def _label(name: str | None) -> str | None:
    """A name for a legend, from which matplotlib leaves those out that begin with an underscore."""
    return f" {name}" if name and name.startswith("_") else name


def _styles() -> Iterator[dict[str, Any]]:
    """How the line of each run looks, one after the other.

    Runs may have the same figures, as one that was interrupted and one that was not: the gaps of a line, and what is
    around its smaller marks, show those of the run before.
    """
    around = math.lcm(len(COLOURS), len(_LINES))  # from here on each colour has another line
    for number in itertools.count():
        line = (number + number // around) % len(_LINES)
        yield {"color": COLOURS[number % len(COLOURS)], "linestyle": _LINES[line], "markersize": _MARKS[line]}


def _draw_curve(axes: Any, history: History, metric: str, style: Mapping[str, Any], *labels: str | None) -> None:
    """Training faint as it is and strong as it is smoothed, validation as points; labels for a legend, or none."""
    training, held_out = labels or (None, None)
    steps, values = predicting(history.training, metric)
    values = _with_gaps(values)
    axes.plot(*visible(steps, values), color=style["color"], alpha=0.2, linewidth=0.8)
    axes.plot(*visible(steps, smooth(values, len(values) // WINDOWS)), linewidth=1.8, label=training, **style)
    if len(history.validation["step"]):
        circles = {
            "marker": "o",
            "markersize": style["markersize"],
            "markerfacecolor": "white",
            "markeredgewidth": 1.8,
            "linestyle": "none",
        }
        points = visible(history.validation["step"], _with_gaps(history.validation[metric]))
        axes.plot(*points, color=style["color"], zorder=3, label=held_out, **circles)


def _draw_directories(axes: Any, history: History) -> None:
    """Held-out losses of single shard directories, as thin lines."""
    for name, colour in zip(history.directories, itertools.cycle(COLOURS[1:]), strict=False):
        steps, values = predicting(history.validation, of_directory("mlm_loss", name))
        points = visible(steps, _with_gaps(values))
        axes.plot(*points, color=colour, marker=".", linestyle=":", linewidth=1.2, label=f"held out, {name}")


def _with_gaps(values: np.ndarray) -> np.ndarray:
    """NaN, which is not drawn, for values without end."""
    return np.where(np.abs(values) < _ENDLESS, values, np.nan)


def _draw_baseline(axes: Any, value: float | None, label: str | None) -> None:
    if value is not None:
        axes.axhline(value, color=_BASELINE, linestyle=(0, (5, 3)), linewidth=1.3, label=label)


def _mark_steps(axes: Any, most: int | Literal["auto"]) -> None:
    """Marks at whole steps alone, of which a panel may have a single one; ``most``: as many, or "auto" by the width."""
    axes.xaxis.set_major_locator(MaxNLocator(most, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _finish_loss(axes: Any, title: str, of: str) -> None:
    axes.set(title=title, xlabel="step", ylabel=f"{of}loss (nats a word)")
    axes.margins(x=0.015)
    # The same axis once more, as perplexity.
    right = axes.secondary_yaxis("right", functions=(_exp, _log))
    right.set_ylabel("perplexity")
    right.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    right.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    right.yaxis.set_minor_locator(NullLocator())
    right.yaxis.set_minor_formatter(NullFormatter())


def _exp(values: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(np.minimum(values, LARGEST_LOSS)))  # of a run that diverged, too


def _log(values: np.ndarray) -> np.ndarray:
    return np.asarray(np.log(np.maximum(values, np.finfo(float).tiny)))  # matplotlib tries 0, too


def _finish_accuracy(axes: Any, title: str, label: str) -> None:
    axes.set(title=title, xlabel="step", ylabel=label)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g} %"))
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.2)  # beside the title, off the curves


def measured_scores(exports: Sequence[MeasuredExport]) -> list[tuple[str, str]]:
    """The task and metric of each panel: what pretraining learns, then each task by the metric that it is judged by."""
    judged = {
        (name, content["details"]["selected_by"])
        for export in exports
        for name, content in export.tasks.items()
        if is_learned(content["details"])
    }
    intrinsic = [pair for pair in _INTRINSIC if any(export.score(*pair) for export in exports)]
    return [*intrinsic, *sorted(judged)]


def draw_scores(exports: Sequence[MeasuredExport]) -> Figure:
    """A panel for each score, over the steps of the training; a line for each run.

    A bar is half of the 95 % interval over the examples, or the standard deviation around the mean of several seeds.

    Args:
        exports: with steps; one score at least.
    """
    scores = measured_scores(exports)
    runs = list(dict.fromkeys(export.run for export in exports))
    columns = min(3, len(scores))
    rows = -(-len(scores) // columns)
    with mpl.rc_context(STYLE):
        figure = Figure(
            figsize=(4.2 * columns, 3.0 * rows + 0.5), layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.12)
        )
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True)
        for axes, (task, metric) in zip(grid.flat, scores, strict=False):
            for run, style in zip(runs, _styles(), strict=False):
                _draw_score(axes, [export for export in exports if export.run == run], task, metric, style)
            _finish_score(axes, exports, task, metric)
        for axes in grid.flat[len(scores) :]:
            axes.set_visible(False)
        known = {name: line for axes in grid.flat for line, name in zip(*axes.get_legend_handles_labels(), strict=True)}
        if len(known) > 1:
            names = sorted(known, key=_OF_BASELINES.__eq__)  # last; the runs in their order
            figure.legend([known[name] for name in names], names, loc="outside upper center", ncols=min(4, len(names)))
    return figure


def _draw_score(axes: Any, exports: Sequence[MeasuredExport], task: str, metric: str, style: Mapping[str, Any]) -> None:
    figures = [(export.step, *_drawn(figure)) for export in exports if (figure := export.score(task, metric))]
    steps, values, bars = ([figure[i] for figure in figures] for i in range(3))
    # Also without a point, so that the legend has the runs in their order.
    axes.errorbar(steps, values, bars, label=_label(exports[0].run), marker="o", linewidth=1.6, capsize=3, **style)


def _drawn(score: Score) -> tuple[float, float]:
    """Where a point lies, and its bar: of several seeds that is the mean, as the best isn't in their middle."""
    if len(score.seeds) > 1:
        return statistics.fmean(score.seeds), statistics.stdev(score.seeds)
    return score.value, score.half_width or 0.0


def _finish_score(axes: Any, exports: Sequence[MeasuredExport], task: str, metric: str) -> None:
    measured = [export for export in exports if export.score(task, metric)]
    trials = [export.limits[task] for export in measured if task in export.limits]
    of_trials = f", {min(trials):,} examples" if len(trials) == len(measured) else ""
    instead = measured[0].instead(task)
    of_others = f", {instead}" if instead else ""
    axes.set(title=f"{task}{of_others}{of_trials}", ylabel=metric.replace("_", " "))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6))
    content = measured[0].tasks[task]["metrics"][metric]
    _draw_baseline(axes, content["baseline"], _OF_BASELINES)
    if content["unit"]:
        scale = 1.0 if content["unit"] == "share" else 100.0
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value / scale:.3g} %"))
    if metric == "perplexity":
        _mark_perplexity(axes, [export.tasks[task]["metrics"][metric]["value"] for export in measured])
    _mark_steps(axes, 4)
    axes.set_xlabel("step")
    axes.tick_params(labelbottom=True)


def _mark_perplexity(axes: Any, values: Sequence[float]) -> None:
    """Logarithmic where values differ by orders of magnitude; else such an axis would hardly have a mark."""
    if max(values) > _WIDE * min(values):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"))
