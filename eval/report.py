"""Curves and tables of runs.

    python -m eval.report runs/large [RUN...] --output report/ [--results results/results.json]

OUTPUT/curves.png shows losses, next-sentence accuracy and learning rate over the steps; OUTPUT/report.md the last
figures, the evaluations beside their baselines, and which data, settings and code they are of. Both are made from the
files of the run directories alone. Results are those given, or any results.json in OUTPUT or in a run directory.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator, PercentFormatter

from eval.results import RESULTS, figures_table, filled_table, markdown, read_results
from preprocessing.schema import checksum
from trainer.checkpoint import RunDirectory, read_lines, write_atomically

CURVES, REPORT = "curves.png", "report.md"
_WINDOWS = 25  # a curve is smoothed over this part of its steps
_INCHES, _DPI = (12, 8), 150
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe and Ito: for all eyes
_BASELINE = "#555555"
_STYLE = {
    "font.size": 12,
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "legend.edgecolor": "none",
    "legend.framealpha": 0.9,
}


@dataclass(frozen=True)
class History:
    """What a run has logged.

    Attributes:
        name: of the run.
        run: its directory.
        training: a dictionary for every step.
        validation: one for every validation; may be empty.
    """

    name: str
    run: RunDirectory
    training: list[dict[str, Any]]
    validation: list[dict[str, Any]]


def main(argv: Sequence[str] | None = None) -> int:
    """Write the report; the exit code is 0, or 2 for a mistake in what was asked for."""
    arguments = _parse(argv)
    try:
        histories = [read_history(path) for path in arguments.runs]
        files = arguments.results or list(find_results(arguments.runs, arguments.output))
        results = [read_results(file) for file in files]
        arguments.output.mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    draw(histories, baselines(results)).savefig(arguments.output / CURVES, dpi=_DPI)
    write_atomically(arguments.output / REPORT, "\n".join(report(histories, results)) + "\n")
    print(f"{arguments.output / CURVES}\n{arguments.output / REPORT}")
    return 0


def read_history(path: Path) -> History:
    """Read the metrics of a run.

    Raises:
        ValueError: no metrics, or a line that isn't one.
    """
    run = RunDirectory(path)
    try:
        training, validation = list(read_lines(run.metrics)), list(read_lines(run.validation_metrics))
    except ValueError as error:
        raise ValueError(f"{path}: its metrics are damaged ({error})") from error
    if not training:
        raise ValueError(f"{run.metrics}: no steps; give a run directory whose training has begun")
    return History(path.resolve().name, run, training, validation)


def find_results(runs: Sequence[Path], output: Path) -> Iterator[Path]:
    """Every results.json in the output, in a run, or one folder below."""
    found = (file for folder in (output, *runs) for file in (folder / RESULTS, *sorted(folder.glob(f"*/{RESULTS}"))))
    return (file for file in dict.fromkeys(file.resolve() for file in found) if file.is_file())


@dataclass(frozen=True)
class Baselines:
    """What needs no model; None where no evaluation says it."""

    mlm_loss: float | None
    nsp_accuracy: float | None


def baselines(results: Sequence[dict[str, Any]]) -> Baselines:
    """The baselines of the first results that have them."""
    return Baselines(_baseline(results, "mlm", "loss"), _baseline(results, "nsp", "accuracy"))


def _baseline(results: Sequence[dict[str, Any]], task: str, metric: str) -> float | None:
    found = (result["tasks"][task]["metrics"][metric]["baseline"] for result in results if task in result["tasks"])
    return next(found, None)


def smooth(values: np.ndarray, window: int) -> np.ndarray:
    """The centred running mean of values [n].

    The window shrinks on both sides at the beginning, where a loss falls steeply and a lopsided mean would be too low;
    at the end only on the side that is missing, as a lone last value would say little.
    """
    places = np.arange(len(values))
    before = np.minimum(window // 2, places)
    after = np.minimum(before, places[::-1])
    sums = np.concatenate([[0.0], np.cumsum(values)])
    return np.asarray((sums[places + after + 1] - sums[places - before]) / (before + after + 1))


def draw(histories: Sequence[History], known: Baselines) -> Figure:
    """The figure of all curves."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=_INCHES, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1))
        FigureCanvasAgg(figure)
        grid = figure.add_gridspec(2, 2, height_ratios=[3, 2], width_ratios=[2, 1])
        loss = figure.add_subplot(grid[0, :])
        accuracy, rate = figure.add_subplot(grid[1, 0], sharex=loss), figure.add_subplot(grid[1, 1])
        for history, colour in zip(histories, _colours(len(histories)), strict=True):
            prefix = "" if len(histories) == 1 else f"{history.name}, "
            _draw_curve(loss, history, "mlm_loss", colour, f"{prefix}training", f"{prefix}held out")
            _draw_curve(accuracy, history, "nsp_accuracy", colour)
            rate.plot(_steps(history.training), _column(history.training, "learning_rate"), color=colour)
        _draw_baseline(loss, known.mlm_loss, "unigrams of the training text")
        _draw_baseline(accuracy, known.nsp_accuracy, "always the larger class")
        _finish_loss(loss, histories)
        _finish_accuracy(accuracy)
        rate.set(title="Learning rate", xlabel="step")
        rate.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        for axes in (loss, accuracy, rate):
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        rate.xaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 5, 10], integer=True))
        rate.yaxis.set_major_locator(MaxNLocator(nbins=5))
        figure.align_ylabels([loss, accuracy])
    return figure


def _colours(n: int) -> list[str]:
    return [_COLOURS[i % len(_COLOURS)] for i in range(n)]


def _draw_curve(axes: Any, history: History, metric: str, colour: str, *labels: str) -> None:
    """Training faint as it is and strong as it is smoothed, validation as points; labels for a legend, or none."""
    training, held_out = labels or (None, None)
    steps, values = _steps(history.training), _column(history.training, metric)
    axes.plot(steps, values, color=colour, alpha=0.2, linewidth=0.8)
    axes.plot(steps, smooth(values, len(values) // _WINDOWS), color=colour, linewidth=1.8, label=training)
    if history.validation:
        steps, values = _steps(history.validation), _column(history.validation, metric)
        style = {
            "marker": "o",
            "markersize": 7,
            "markerfacecolor": "white",
            "markeredgewidth": 1.8,
            "linestyle": "none",
        }
        axes.plot(steps, values, color=colour, zorder=3, label=held_out, **style)


def _draw_baseline(axes: Any, value: float | None, label: str) -> None:
    if value is not None:
        axes.axhline(value, color=_BASELINE, linestyle=(0, (5, 3)), linewidth=1.3, label=label)


def _finish_loss(axes: Any, histories: Sequence[History]) -> None:
    run = f": {histories[0].name}" if len(histories) == 1 else ""
    axes.set(title=f"Masked words{run}", xlabel="step", ylabel="MLM loss (nats a word)")
    axes.legend(loc="upper right")
    axes.margins(x=0.015)
    # The same axis once more, as perplexity.
    right = axes.secondary_yaxis("right", functions=(np.exp, _log))
    right.set_ylabel("perplexity")
    right.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    right.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    right.yaxis.set_minor_locator(NullLocator())
    right.yaxis.set_minor_formatter(NullFormatter())


def _log(values: np.ndarray) -> np.ndarray:
    return np.asarray(np.log(np.maximum(values, np.finfo(float).tiny)))  # matplotlib tries 0, too


def _finish_accuracy(axes: Any) -> None:
    axes.set(title="Next sentence", xlabel="step", ylabel="NSP accuracy")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.2)  # beside the title, off the curves


def _steps(lines: Sequence[dict[str, Any]]) -> np.ndarray:
    return np.array([line["step"] for line in lines])


def _column(lines: Sequence[dict[str, Any]], name: str) -> np.ndarray:
    return np.array([line[name] for line in lines], dtype=float)


def report(histories: Sequence[History], results: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The paragraphs of report.md."""
    yield f"# {', '.join(history.name for history in histories)}\n"
    yield f"![Losses, accuracy and learning rate over the steps]({CURVES})\n"
    yield "## Last figures\n"
    rows = [["", *(history.name for history in histories)]]
    columns = [_last_figures(history) for history in histories]
    names = dict.fromkeys(name for column in columns for name in column)  # a run may lack validations
    rows += [[name, *(column.get(name, "") for column in columns)] for name in names]
    yield markdown(rows, numbers=range(1, len(rows[0])))
    for result in results:
        yield from _evaluation(result)
    yield "## Origin\n"
    yield markdown([["run", "configuration", "shards", "commit", "directory"], *(_origin(h) for h in histories)])


def _last_figures(history: History) -> dict[str, str]:
    window = max(1, len(history.training) // _WINDOWS)
    recent, last = history.training[-window:], history.training[-1]
    figures = {
        "steps": f"{last['step']:,}",
        "samples": f"{last['samples']:,}",
        "training MLM loss": f"{_column(recent, 'mlm_loss').mean():.4f}",
        "which is the mean of steps": str(window),
        "tokens a second, median": f"{np.median(_column(history.training, 'tokens_per_second')):,.0f}",
        "hours": f"{_hours(history.training):.2f}",
    }
    if history.validation:
        held_out = history.validation[-1]
        figures |= {
            "held out, at step": f"{held_out['step']:,}",
            "held out: MLM loss": f"{held_out['mlm_loss']:.4f}",
            "held out: perplexity": f"{held_out['perplexity']:,.1f}",
            "held out: MLM accuracy": f"{100 * held_out['mlm_accuracy']:.2f} %",
            "held out: NSP accuracy": f"{100 * held_out['nsp_accuracy']:.2f} %",
        }
    return figures


def _hours(training: Sequence[dict[str, Any]]) -> float:
    """Time spent on steps, without validations, checkpoints and interruptions."""
    return float(sum(line["data_seconds"] + line["compute_seconds"] for line in training)) / 3600


def _evaluation(result: dict[str, Any]) -> Iterator[str]:
    """A section of one results.json."""
    checkpoint, shards = result["checkpoint"], result["shards"]
    lineage = checkpoint["lineage"]
    run = Path(lineage["run"]).name if "run" in lineage else ""
    yield f"## Evaluation of {run} {Path(checkpoint['path']).name}".replace("  ", " ") + "\n"
    facts = [f"weights {checkpoint['weights_blake2b']}"]
    if shards:
        facts.insert(0, f"{shards['samples']:,} held-out samples of {shards['sequence_length']} tokens")
        facts.append(f"shards {shards['manifest_blake2b']}")
    facts.append(f"evaluated by {_commit(result['code'])}")
    yield "; ".join(facts) + ". ± is half of the 95 % confidence interval.\n"
    yield from filter(None, (figures_table(result), filled_table(result)))


def _origin(history: History) -> list[str]:
    """Name, hashes of configuration and data, commit and place of a run."""
    run = history.run
    hashes = [checksum(path) if path.is_file() else "" for path in (run.config, run.manifest)]
    code = run.path / "code.json"
    commit = _commit(json.loads(code.read_text(encoding="utf-8"))) if code.is_file() else ""
    return [history.name, *hashes, commit, str(run.path)]


def _commit(code: dict[str, Any]) -> str:
    commit = f"commit {code['commit'][:12]}" if code["commit"] else f"version {code['version']}"
    return commit + (" with changes" if code["modified"] else "")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m eval.report", description="Curves and tables of runs.")
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a run directory")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help=f"for {CURVES} and {REPORT}")
    parser.add_argument(
        "--results", type=Path, action="append", metavar="FILE",
        help=f"a {RESULTS} of eval.run, once or several times (default: those found in the output and the runs)",
    )  # fmt: skip
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
