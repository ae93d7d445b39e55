"""The report says what the files of a run say, beside what the paper says."""

import base64
import errno
import functools
import html
import io
import json
import math
import os
import re
import shutil
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies
from markdown_it import MarkdownIt
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import imread
from selenium import webdriver
from selenium.webdriver.common.by import By

from eval.comparison import exports_of, on_same_data
from eval.curves import Baselines, baselines, draw, draw_scores, smooth, visible
from eval.evaluated import find_results, read_evaluations, run_directory
from eval.histories import read_histories
from eval.paper import TABLES
from eval.report import main, page, report
from eval.results import FORMAT_VERSION, read_results, write_results
from eval.tasks import TASKS
from preprocessing.figures import COLOURS
from preprocessing.markdown import markdown_table, plain
from tests.eval.evaluations import results, task, write_evaluation
from tests.failing import LISTING, REASON, fail_at, fail_on, failures_in_turn
from tests.streams import FULL, stdout_to
from tests.trainer.mlflow_store import add_lines, metrics, write_run
from trainer.files import append_lines
from trainer.tracking.store import default_tracking_uri

INTRINSIC = {
    "mlm": {
        "version": 1,
        "metrics": {
            "perplexity": {"value": 1234.56, "half_width": 7.89, "baseline": 2345.67, "unit": ""},
            "loss": {"value": 7.118, "half_width": 0.0064, "baseline": 7.7603, "unit": ""},
            "accuracy": {"value": 0.125, "half_width": 0.003, "baseline": 0.0625, "unit": "share"},
        },
        "baselines": {"loss": "unigrams"},
        "details": {},
    },
    "nsp": {
        "version": 1,
        "metrics": {"accuracy": {"value": 0.75, "half_width": None, "baseline": 0.515, "unit": "share"}},
        "baselines": {},
        "details": {},
    },
    "fill_mask": {
        "version": 1,
        "metrics": {},
        "baselines": {},
        "details": {"sentences": [{"sentence": "a [MASK]", "masks": [[{"token": "|", "probability": 0.5}]]}]},
    },
}
SHARDS = {"path": "/data", "manifest_blake2b": "cd34", "sequence_length": 128, "samples": 2000}
RESULTS = results(Path("/elsewhere/demo"), 60, INTRINSIC) | {"shards": SHARDS}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "runs" / "demo", steps=60)


def lacking(*keys: str) -> dict[str, Any]:
    """The results without what lies at a place of them."""
    spoilt = json.loads(json.dumps(RESULTS))
    functools.reduce(dict.__getitem__, keys[:-1], spoilt).pop(keys[-1])
    return spoilt


def trained_by_nothing() -> dict[str, Any]:
    checkpoint = RESULTS["checkpoint"]
    return RESULTS | {"checkpoint": checkpoint | {"lineage": checkpoint["lineage"] | {"code": 7}}}


def of_export(**facts: Any) -> dict[str, Any]:
    return RESULTS | {"checkpoint": RESULTS["checkpoint"] | facts}


def judged_by(metric: str | None) -> dict[str, Any]:
    return RESULTS | {"tasks": {"mrpc": task({"selected_by": metric}, accuracy=0.5)}}


def valued(figure: float, name: str = "value") -> dict[str, Any]:
    spoilt = json.loads(json.dumps(RESULTS))
    spoilt["tasks"]["nsp"]["metrics"]["accuracy"][name] = figure
    return dict(spoilt)


def of_seeds(*figures: float) -> dict[str, Any]:
    return RESULTS | {"tasks": {"mrpc": task({"seeds": {"f1": list(figures)}}, f1=50.0)}}


def rows_of(text: str) -> dict[str, list[str]]:
    """The rows of all tables by their first cell."""
    rows = [[cell.strip() for cell in line[2:-2].split(" | ")] for line in text.splitlines() if line[:1] == "|"]
    return {row[0]: row[1:] for row in rows}


def test_report(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_results(tmp_path / "results.json", results(run, 60, INTRINSIC) | {"shards": SHARDS})
    write_evaluation(run, 60, rte=learned("accuracy", {}, accuracy=60.0))  # which was not asked for
    output = tmp_path / "new" / "report"
    assert main([str(run), "--output", str(output), "--results", str(tmp_path / "results.json")]) == 0
    names = ("curves.png", "scores.png", "report.md", "report.html")
    assert capsys.readouterr().out.split() == [str(output / name) for name in names]
    height, width, _ = imread(output / "curves.png").shape
    assert (width / height, width >= 1200) == (1.5, True)

    text = (output / "report.md").read_text(encoding="utf-8")
    rows = rows_of(text)
    assert rows["steps"] == ["60"]
    assert rows["samples"] == ["1,920"]
    assert rows["training MLM loss"] == [f"{9 - 59.5 / 3:.4f}"]
    assert rows["training loss: last steps averaged"] == ["2"]
    assert rows["tokens a second, median"] == ["1,030"]
    assert rows["hours"] == ["0.02"]
    assert rows["held out: perplexity"] == [f"{1e3 / 60:.1f}"]
    assert rows["mlm perplexity"] == ["1,234.6 ± 7.9", "2,345.7", ""]
    assert rows["mlm loss"] == ["7.1180 ± 0.0064", "7.7603", "unigrams"]
    assert rows["mlm accuracy"] == ["12.50 % ± 0.30 %", "6.25 %", ""]
    assert rows["nsp accuracy"] == ["75.00 %", "51.50 %", ""]
    assert rows["a [MASK]"] == ["\\| 50"]
    assert rows["demo"][2:] == ["new weights", "commit c0ffee", str(run)]
    assert "rte accuracy" not in rows
    assert "## Evaluation of demo step-000060" in text
    assert "mlm, nsp, fill_mask; 2,000 held-out samples of 128 tokens; weights ab60; shards /data, cd34" in text
    assert "evaluated by commit 0123456789ab with changes" in text
    assert "![" in text
    assert "(curves.png)" in text
    assert "Not drawn" not in text


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures take most of a report's time, for who looks at its text alone."""
    monkeypatch.setattr("eval.report.save_picture", lambda _, path: path.write_bytes(b""))


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    "place",
    [
        "output/results.json",
        "output/demo/results.json",
        "runs/demo/eval/results.json",
        "runs/demo/evaluations/step-000060/results.json",
    ],
)
def test_results_are_found(run: Path, tmp_path: Path, place: str) -> None:
    (tmp_path / place).parent.mkdir(parents=True)
    write_results(tmp_path / place, RESULTS if run in (tmp_path / place).parents else results(run, 60, INTRINSIC))
    assert main([str(run), "--output", str(tmp_path / "output")]) == 0
    assert "Evaluation of demo" in (tmp_path / "output" / "report.md").read_text()


def test_runs_side_by_side(run: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "runs" / "other", steps=30)
    (other / "validation.jsonl").unlink()
    assert main([str(run), str(other), "--output", str(tmp_path / "output")]) == 0
    rows = rows_of((tmp_path / "output" / "report.md").read_text())
    assert rows["steps"] == ["60", "30"]
    assert rows["held out: perplexity"] == [f"{1e3 / 60:.1f}", ""]
    assert "Evaluation" not in (tmp_path / "output" / "report.md").read_text()
    assert main([str(other), str(run)]) == 0
    assert [(folder / "report").is_dir() for folder in (other, run)] == [True, False], "in the first run"


def test_held_out_figures_on_different_shards_are_said_not_to_compare(run: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "runs" / "other", steps=30)
    note = "Held-out figures of these runs don't compare"
    assert note not in report_of(run, other)
    (other / "manifest.json").write_text("{}")
    (run / "manifest.json").write_text('{"other": 1}')
    assert note in report_of(run, other)
    (other / "validation.jsonl").unlink()
    assert note not in report_of(run, other)


def test_held_out_figures_at_different_lengths_are_said_not_to_compare(run: Path, tmp_path: Path) -> None:
    other, row = write_run(tmp_path / "runs" / "other", steps=60), "held out, tokens of a sample"
    phases = "[[phases]]\nsequence_length = 128\nsteps = {}\n[[phases]]\nsequence_length = 512\nsteps = 100\n"
    assert row not in rows_of(report_of(run, other))
    for path, steps in ((run, 60), (other, 59)):
        (path / "config.toml").write_text(phases.format(steps))
    add_lines(run / "metrics.jsonl", 61, 61)  # longer ones, with which nothing was validated yet
    report = report_of(run, other)
    assert rows_of(report)[row] == ["128", "512"]
    assert "don't compare: they are of sequences of different lengths.\n" in report
    (other / "manifest.json").write_text('{"other": 1}')
    both = "they are of sequences of different lengths and of different shards, see under Origin.\n"
    assert both in report_of(run, other)
    (other / "validation.jsonl").unlink()
    assert "don't compare" not in report_of(run, other)


def test_the_weights_that_a_run_began_with_are_named(run: Path) -> None:
    (run / "initial_weights.json").write_text('{"directory": "published/base", "blake2b": "ef56"}')
    assert rows_of(report_of(run))["demo"][2] == "published/base, ef56"
    (run / "initial_weights.json").write_text("[")
    assert rows_of(report_of(run))["demo"][2] == "unknown"


def test_a_run_without_validation_first(run: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "runs" / "other", steps=30)
    (other / "validation.jsonl").unlink()
    assert main([str(other), str(run), "--output", str(tmp_path / "output")]) == 0
    assert rows_of((tmp_path / "output" / "report.md").read_text())["held out: perplexity"][-1] == f"{1e3 / 60:.1f}"


def test_curves_show_what_was_logged(run: Path) -> None:
    figure = draw(read_histories([run])[0], Baselines(mlm_loss=7.5, nsp_accuracy=0.6))
    loss, accuracy, rate = figure.axes[:3]
    steps = np.arange(1, 61)
    raw, smoothed, held_out, baseline = loss.lines
    np.testing.assert_allclose(raw.get_xydata(), np.column_stack([steps, 9 - steps / 3]))
    np.testing.assert_allclose(smoothed.get_ydata(), smooth(9 - steps / 3, 2))
    np.testing.assert_allclose(held_out.get_xydata(), [[60, 9 - 20]])
    assert set(baseline.get_ydata()) == {7.5}
    assert set(accuracy.lines[-1].get_ydata()) == {0.6}
    np.testing.assert_allclose(accuracy.lines[0].get_xydata(), np.column_stack([steps, 0.5 + 0.01 * steps / 3]))
    np.testing.assert_allclose(rate.lines[0].get_ydata(), 1e-4 * steps / 3)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["training", "held out", "unigrams of the training text"]
    assert all(axes.get_title(loc="left") and axes.get_xlabel() == "step" for axes in (loss, accuracy, rate))
    assert (loss.get_ylabel(), accuracy.get_ylabel()) == ("MLM loss (nats a word)", "NSP accuracy")


def test_held_out_figures_of_single_shard_directories(run: Path, tmp_path: Path) -> None:
    """Where a validation has them, as those may that come after a directory was added."""
    for step, more in ((70, {}), (80, {"mlm_loss/wiki": 5.5, "perplexity/wiki": 244.7})):
        append_lines(run / "validation.jsonl", metrics(step) | more)
    others = {"mlm_loss/wiki": 5.25, "perplexity/wiki": 190.6, "mlm_loss/_notes": 6.0, "perplexity/_notes": 1403.4}
    append_lines(run / "validation.jsonl", metrics(90) | others)
    rows = rows_of(report_of(run))
    assert rows["held out, wiki: perplexity"] == ["190.6"]
    assert rows[r"held out, \_notes: perplexity"] == ["1,403.4"]
    figure = draw(read_histories([run])[0], Baselines(mlm_loss=7.5, nsp_accuracy=0.6))
    wiki, notes = figure.axes[0].lines[3:5]
    np.testing.assert_equal(wiki.get_xydata(), [[80, 5.5], [90, 5.25]])
    np.testing.assert_equal(notes.get_xydata(), [[90, 6.0]])
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["training", "held out", "held out, wiki", "held out, _notes", "unigrams of the training text"]
    assert_beside_its_panels(figure)
    append_lines(run / "validation.jsonl", metrics(100))
    assert "held out, wiki: perplexity" not in rows_of(report_of(run))
    other = write_run(tmp_path / "runs" / "other", steps=60)
    assert len(draw(read_histories([run, other])[0], Baselines(None, None)).axes[0].lines) == 2 * 3


def test_curves_of_many_runs_have_their_legend_beside_them_and_no_two_look_alike(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / f"run{number:02d}", steps=60) for number in range(14)]
    (tmp_path / "link").symlink_to(runs[3])  # a run that is there already
    figure = draw(read_histories([*runs, tmp_path / "link"])[0], Baselines(7.5, 0.5))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [run.name for run in runs]
    rates = figure.axes[2].lines
    assert len({(line.get_color(), line.get_linestyle()) for line in rates}) == len(rates) == 14
    assert_beside_its_panels(figure)


def assert_beside_its_panels(figure: Figure) -> None:
    """That the legend lies over no curve, and leaves room for them."""
    figure.draw_without_rendering()
    legend, panels = figure.legends[0].get_window_extent(), [axes.get_window_extent() for axes in figure.axes]
    assert all(legend.y1 <= panel.y0 for panel in panels)
    assert panels[0].height > 200
    assert 0 <= legend.x0 < legend.x1 <= figure.bbox.width


@pytest.mark.parametrize("count", [1, 2])
def test_the_legend_of_few_runs_lies_over_no_curve(tmp_path: Path, count: int) -> None:
    runs = [write_run(tmp_path / f"run{number}", steps=60) for number in range(count)]
    assert_beside_its_panels(draw(read_histories(runs)[0], Baselines(1.0, 0.5)))


def test_a_run_whose_name_begins_with_an_underscore_is_in_the_legends(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, steps=60) for name in ("_one", "_two", "three")]
    for run in runs:
        write_evaluation(run, 60, mrpc=learned("f1", {}, f1=50.0))
    histories = read_histories(runs)[0]
    figures = [draw(histories, Baselines(None, None)), draw_scores(exports_of(read_evaluations(find_results(runs))))]
    for figure in figures:
        assert {text.get_text().strip() for text in figure.legends[0].get_texts()} == {"_one", "_two", "three"}


@pytest.mark.parametrize(("manifest", "baseline"), [("cd34", 7.7603), ("of others", None)], ids=["same", "other"])
def test_a_baseline_is_drawn_where_all_runs_were_evaluated_on_the_same_shards(
    run: Path, tmp_path: Path, manifest: str, baseline: float | None
) -> None:
    other = write_run(tmp_path / "runs" / "other", steps=30)
    for of, step, on in ((run, 60, "cd34"), (other, 30, manifest)):
        mlm = INTRINSIC["mlm"] | {"details": {"samples": 2000}}
        file = write_evaluation(of, step, mlm=mlm)
        write_results(file, read_results(file) | {"shards": SHARDS | {"manifest_blake2b": on}})
    assert baselines(read_evaluations(find_results([run, other]))) == Baselines(baseline, None)


def test_of_several_baselines_that_over_the_most_samples_is_drawn(run: Path) -> None:
    for step, samples, baseline in ((20, 8, 7.1), (40, 2000, 7.2), (60, 9, 7.3)):
        mlm = task({"samples": samples}, loss=3.0)
        mlm["metrics"]["loss"]["baseline"] = baseline
        write_results(write_evaluation(run, step), results(run, step, {"mlm": mlm}) | {"shards": SHARDS})
    assert baselines(read_evaluations(find_results([run]))).mlm_loss == 7.2


def test_scores_tell_which_line_is_the_baseline_of_the_task(run: Path) -> None:
    write_evaluation(run, 60, **INTRINSIC)
    figure = draw_scores(exports_of(read_evaluations(find_results([run]))))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [run.name, "the task's baseline"]


def test_large_perplexities_are_written_out(run: Path) -> None:
    for step, perplexity in ((20, 11_000.0), (40, 12_500.0), (60, 7_500.0)):
        write_evaluation(run, step, mlm=task({"samples": 50}, perplexity=perplexity))
    figure = draw_scores(exports_of(read_evaluations(find_results([run]))))
    assert figure.legends == []  # of one run and nothing beside it
    axes = figure.axes[0]
    assert axes.get_yscale() == "linear"
    shown = axes.yaxis.get_major_formatter()
    assert [shown(value, 0) for value in (7500, 12500, 999.5, 2.5)] == ["7,500", "12,500", "999.5", "2.5"]


def test_perplexities_that_differ_by_orders_of_magnitude_have_a_logarithmic_axis(run: Path) -> None:
    for step, perplexity in ((20, 30_000.0), (60, 12.0)):
        write_evaluation(run, step, mlm=task({"samples": 50}, perplexity=perplexity))
    assert draw_scores(exports_of(read_evaluations(find_results([run])))).axes[0].get_yscale() == "log"


@pytest.mark.parametrize(("unit", "value"), [("share", 0.5), ("percent", 50.0)])
def test_scores_are_shown_in_per_cent(run: Path, unit: str, value: float) -> None:
    accuracy = {"value": value, "half_width": None, "baseline": None, "unit": unit}
    write_evaluation(run, 60, rte={**learned("accuracy", {}), "metrics": {"accuracy": accuracy}})
    axes = draw_scores(exports_of(read_evaluations(find_results([run])))).axes[0]
    assert axes.yaxis.get_major_formatter()(value, 0) == "50 %"


def marks(axis: Axis) -> list[str]:
    """What stands at the marks of an axis that are within the panel."""
    low, high = axis.get_view_interval()
    return [tick.label1.get_text() for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]


def test_few_steps_have_each_its_mark_and_no_other(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=4)
    write_evaluation(run, 4, **INTRINSIC)
    curves = draw(read_histories([run])[0], Baselines(None, None))
    scores = draw_scores(exports_of(read_evaluations(find_results([run]))))
    for figure in (curves, scores):
        figure.draw_without_rendering()
    assert [marks(axes.xaxis) for axes in curves.axes] == [["1", "2", "3", "4"]] * 3
    assert [marks(axes.xaxis) for axes in scores.axes] == [["4"]] * 3
    shares = marks(curves.axes[1].yaxis)
    assert len(set(shares)) == len(shares) > 2


def pixels(figure: Figure, axes: Axes, colour: str) -> int:
    """How many of a panel have a colour, or nearly so."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    picture = np.asarray(canvas.buffer_rgba())[::-1, :, :3]
    panel = axes.get_window_extent()
    inside = picture[int(panel.y0) : int(panel.y1), int(panel.x0) : int(panel.x1)]
    return int((abs(inside - 255 * np.array(to_rgb(colour))) < 30).all(axis=-1).sum())


def test_of_runs_with_equal_figures_all_are_seen(tmp_path: Path) -> None:
    """As of one that was interrupted and one that was not."""
    runs = [write_run(tmp_path / name, steps=60) for name in ("straight", "resumed")]
    for run in runs:
        for step in (20, 60):
            write_evaluation(run, step, mlm=task({"samples": 50}, perplexity=100.0 - step))
    curves = draw(read_histories(runs)[0], Baselines(None, None))
    scores = draw_scores(exports_of(read_evaluations(find_results(runs))))
    for figure, axes in [(curves, axes) for axes in curves.axes] + [(scores, scores.axes[0])]:
        assert all(pixels(figure, axes, colour) > 50 for colour in COLOURS[:2])
    held_out = [line for line in curves.axes[0].lines if line.get_marker() == "o"]
    assert held_out[0].get_markersize() > held_out[1].get_markersize()


def test_a_run_that_diverged_is_drawn(run: Path) -> None:
    """As far as the trainer goes on with it: its loss is a number."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    lines[30] = json.dumps(json.loads(lines[30]) | {"mlm_loss": 70_000.0})
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    draw(read_histories([run])[0], Baselines(7.5, 0.5)).savefig(io.BytesIO())


@pytest.mark.parametrize("loss", [math.inf, 1e308])
def test_losses_without_end_are_told_and_leave_a_gap_in_their_curve(
    run: Path, loss: float, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [metrics(step) | ({"mlm_loss": loss} if step in (30, 60) else {}) for step in range(1, 61)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    validations = [metrics(30), metrics(60) | {"mlm_loss": loss}]
    validations = [line | {"mlm_loss/wiki": line["mlm_loss"], "perplexity/wiki": 1.0} for line in validations]
    (run / "validation.jsonl").write_text("".join(json.dumps(line) + "\n" for line in validations))
    with warnings.catch_warnings(action="error"):
        assert main([str(run)]) == 0
    assert capsys.readouterr().err == ""
    assert rows_of((run / "report" / "report.md").read_text())["held out: MLM loss"] == [f"{loss:.4f}"]
    lines_of = draw(read_histories([run])[0], Baselines(None, None)).axes[0].lines
    faint, smoothed, *held_out = (np.asarray(line.get_ydata()) for line in lines_of)
    assert list(np.flatnonzero(np.isnan(faint)) + 1) == [30, 60]
    assert list(np.flatnonzero(np.isnan(smoothed)) + 1) == [29, 30, 31, 59, 60]
    assert smoothed[40] == pytest.approx(9 - 41 / 3)
    for losses in held_out:  # in all, and of the one directory
        np.testing.assert_array_equal(losses, [-1.0, math.nan])


def test_curves_without_baselines(run: Path) -> None:
    loss, accuracy, _ = draw(read_histories([run])[0], Baselines(None, None)).axes[:3]
    assert (len(loss.lines), len(accuracy.lines)) == (3, 3)
    assert accuracy.get_legend() is None


def test_smoothing() -> None:
    values = np.array([8.0, 4.0, 2.0, 1.0, 1.0, 7.0])
    np.testing.assert_allclose(smooth(values, 3), [8, 14 / 3, 7 / 3, 4 / 3, 3, 4])
    np.testing.assert_array_equal(smooth(values, 0), values)
    np.testing.assert_allclose(smooth(values, 100)[[0, 1, -1]], [8, 14 / 3, 23 / 6])
    values[2] = math.nan
    np.testing.assert_allclose(smooth(values, 3), [8, math.nan, math.nan, math.nan, 3, 4])


def test_of_a_line_only_the_figures_that_are_shown_stay_in_memory(run: Path) -> None:
    lines = [json.dumps(json.loads(line) | {"more": "x" * 100_000}) for line in (run / "metrics.jsonl").open()]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    tracemalloc.start()
    (history,), _ = read_histories([run])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(history.training["step"]) == 60
    assert peak < 60 * 100_000 / 4


def test_of_many_steps_a_picture_shows_the_extremes_of_each_stretch() -> None:
    steps, values = np.arange(100_000) + 7, np.random.default_rng(0).normal(size=100_000)
    values[[0, 77_777, 99_999]] = -60.0, 50.0, -60.0
    shown_steps, shown = visible(steps, values)
    assert len(shown) <= 4000
    np.testing.assert_array_equal(shown, values[shown_steps - 7])
    assert (np.diff(shown_steps) > 0).all()
    for begin in range(0, 100_000, 50):
        inside = shown[(shown_steps >= begin + 7) & (shown_steps < begin + 57)]
        stretch = values[begin : begin + 50]
        assert (inside.min(), inside.max()) == (stretch.min(), stretch.max())


def test_steps_whose_samples_were_all_skipped_have_no_part_in_curves_and_last_figures(run: Path) -> None:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    for line in lines[20:]:
        for name in ("loss", "mlm_loss", "nsp_loss", "mlm_accuracy", "nsp_accuracy"):
            del line[name]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    histories, _ = read_histories([run])
    loss, accuracy, rate = draw(histories, Baselines(None, None)).axes[:3]
    for line in (*loss.lines[:2], *accuracy.lines[:2]):
        assert line.get_xdata().tolist() == list(range(1, 21))
        assert np.isfinite(line.get_ydata()).all()
    assert len(rate.lines[0].get_xdata()) == 60
    rows = rows_of("\n".join(report(histories, [], [], None)))
    assert rows["steps"] == ["60"]
    assert rows["training MLM loss"] == [f"{9 - 20 / 3:.4f}"]


def test_of_few_steps_a_picture_shows_all() -> None:
    steps = np.arange(4000)
    assert visible(steps, -steps) == (pytest.approx(steps), pytest.approx(-steps))


def test_curves_of_a_long_run_are_drawn_from_few_points_and_smoothed_over_all_steps(tmp_path: Path) -> None:
    run = write_run(tmp_path / "long", steps=9000)
    lines = [json.loads(line) | {"mlm_loss": 3 + n % 7} for n, line in enumerate((run / "metrics.jsonl").open())]
    lines[4321]["mlm_loss"] = 50.0
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    loss, accuracy, rate = draw(read_histories([run])[0], Baselines(None, None)).axes[:3]
    assert all(len(line.get_xdata()) <= 4000 for axes in (loss, accuracy, rate) for line in axes.lines)
    raw, smoothed, _ = loss.lines
    assert [4322.0, 50.0] in raw.get_xydata().tolist()
    expected = smooth(np.array([line["mlm_loss"] for line in lines]), 9000 // 25)
    np.testing.assert_array_equal(smoothed.get_ydata(), expected[smoothed.get_xdata().astype(int) - 1])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("metrics.jsonl", None, ": no steps; give a run directory"),
        ("metrics.jsonl", "", ": no steps; give a run directory"),
        ("metrics.jsonl", "{\n", "metrics.jsonl: line 1 is damaged"),
        ("metrics.jsonl", '{"step": 1}\n', "metrics.jsonl: a line is without a figure 'samples'; mend it"),
        ("metrics.jsonl", "3\n", "metrics.jsonl: a line is without a figure 'step'; mend it"),
        ("metrics.jsonl", f'{{"step": {10**400}}}\n', "metrics.jsonl: a line is without a figure 'step'; mend it"),
        ("metrics.jsonl", '{"step": null}\n', "metrics.jsonl: a line is without a figure 'step'; mend it"),
        ("validation.jsonl", '{"step": NaN}\n', "validation.jsonl: a line is without a figure 'step'; mend it"),
        ("validation.jsonl", '{"step": Infinity}\n', "validation.jsonl: a line is without a figure 'step'; mend it"),
        ("results.json", json.dumps({"format_version": FORMAT_VERSION}), "results.json: not the results of an eval"),
        ("results.json", None, "results.json: can't read the results"),
        ("results.json", "{}", "results.json: not the results of an evaluation"),
        ("results.json", "[1]", "results.json: not the results of an evaluation"),
        ("results.json", "x", "results.json: not the results of an evaluation"),
        ("results.json", "[" * 100_000, "results.json: not the results of an evaluation"),
        ("results.json", json.dumps(lacking("code", "commit")), "code.commit: Field required"),
        ("results.json", json.dumps(lacking("tasks", "nsp", "details")), "tasks.nsp.details: Field required"),
        (
            "results.json",
            json.dumps(lacking("tasks", "mlm", "metrics", "loss", "unit")),
            "metrics.loss.unit: Field req",
        ),
        ("results.json", json.dumps(trained_by_nothing()), "checkpoint.lineage.code: Input should be"),
        ("results.json", json.dumps(valued(math.nan)), "tasks.nsp.metrics.accuracy.value: Input should be a finite"),
        ("results.json", json.dumps(valued(-math.inf)), "tasks.nsp.metrics.accuracy.value: Input should be a finite"),
        ("results.json", json.dumps(valued(1e308)), "accuracy.value: Value error, 1e+308 is beyond 1e+307"),
        ("results.json", json.dumps(valued(-1e308)), "accuracy.value: Value error, -1e+308 is beyond 1e+307"),
        (
            "results.json",
            json.dumps(valued(-1, "half_width")),
            "half_width: Input should be greater than or equal to 0",
        ),
        (
            "results.json",
            json.dumps(of_seeds(1e308, -1e308)),
            "seeds.f1.0: Value error, 1e+308 is beyond 1e+30",
        ),
        ("results.json", json.dumps(of_export(weights_blake2b="\ud800")), "json: not the results of an evaluation"),
        ("results.json", json.dumps(of_seeds(1e200)), "seeds.f1.0: Value error, 1e+200 is beyond 1e+30"),
        ("results.json", json.dumps(of_export(path="a\0b")), "checkpoint.path: String should match"),
        (
            "results.json",
            json.dumps(of_export(lineage={"step": -1})),
            "lineage.step: Input should be greater than or equal to 0",
        ),
        (
            "results.json",
            json.dumps(of_export(lineage={"step": 1 << 63})),
            f"lineage.step: Input should be less than {1 << 63}",
        ),
        (
            "results.json",
            json.dumps(RESULTS | {"data": {"path": "x", "limit": 0}}),
            "data.limit: Input should be greater than or equal to 1",
        ),
        ("results.json", json.dumps(RESULTS | {"failed": {"\ud800": "x"}}), "json: not the results of an evaluation"),
        ("results.json", '{"format_version": 1, "shards": []}', "results.json: not the results of an evaluation"),
        ("results.json", json.dumps(judged_by("f1")), "selected by 'f1', which is none of its metrics"),
        ("results.json", json.dumps(judged_by(None)), "selected by None, which is none of its metrics"),
        (
            "results.json",
            json.dumps(RESULTS | {"data": {"path": {}}}),
            "results.json: not the results of an evaluation",
        ),
        (
            "results.json",
            json.dumps(RESULTS | {"format_version": 99}),
            f"format version 99, this program reads {FORMAT_VERSION}",
        ),
    ],
)
def test_mistakes_end_with_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str | None, message: str
) -> None:
    write_results(run / "results.json", RESULTS)
    (run / name).unlink()
    if text is not None:
        (run / name).write_text(text)
    output = tmp_path / "output"
    assert main([str(run), "--output", str(output), "--results", str(run / "results.json")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert message in error
    assert not output.exists()


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("damaged", ["{", "{}", "[]", "[" * 100_000])
def test_a_report_lies_in_the_run_and_needs_no_word_of_the_code(run: Path, damaged: str) -> None:
    (run / "code.json").write_text(damaged)
    assert main([str(run)]) == 0
    assert "| unknown |" in (run / "report" / "report.md").read_text()


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("named", [True, False], ids=["open", "read"])
@pytest.mark.parametrize(
    "name",
    ["metrics.jsonl", "validation.jsonl", "config.toml", "manifest.json", "code.json", "initial_weights.json",
     "results.json"],
)  # fmt: skip
def test_a_file_that_can_not_be_read_for_a_moment_is_left_out_by_nobody(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, named: bool
) -> None:
    """The report would lack what it says without a word."""
    for other in ("manifest.json", "initial_weights.json"):
        (run / other).write_text("{}")
    write_results(run / "results.json", RESULTS)
    fail_at(monkeypatch, run / name, named=named)
    assert main([str(run)]) == 1
    told = f"error: {run / name}: can't be read now ({REASON}); give the same command again\n"
    assert capsys.readouterr() == ("", told)
    assert not (run / "report" / "report.md").exists()


@pytest.mark.usefixtures("undrawn")
def test_storage_that_fails_for_a_moment_leaves_nothing_out(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An evaluation that can't be looked for is none that isn't there."""
    output = tmp_path / "output"
    write_evaluation(run, 60, rte=learned("accuracy", {}, accuracy=60.0))
    words = [str(run), "--output", str(output)]
    assert main(words) == 0
    whole = (output / "report.md").read_bytes()
    for path in failures_in_turn(monkeypatch, run, lambda: main(words)):
        shutil.rmtree(output, ignore_errors=True)
        capsys.readouterr()
        if main(words) == 0:  # which gets by without
            assert (output / "report.md").read_bytes() == whole
        else:
            error = capsys.readouterr().err
            assert f"{path}: can't be read now" in error or error.endswith(f"Stale file handle: '{path}'\n")
            assert error.count("\n") == 1


@pytest.mark.parametrize("name", [".", "evaluations"])
def test_a_folder_that_can_not_be_listed_for_a_moment_leaves_no_evaluation_out(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    write_evaluation(run, 60, rte=learned("accuracy", {}, accuracy=60.0))
    fail_on(monkeypatch, os, LISTING, run / name)
    assert main([str(run)]) == 1
    told = f"error: {run / name}: can't be read now ({REASON}); give the same command again\n"
    assert capsys.readouterr() == ("", told)


def test_folders_of_others_beside_evaluations_are_passed_over(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_evaluation(run, 60, rte=learned("accuracy", {}, accuracy=60.0))
    closed = run / "lost+found"
    closed.mkdir()
    fail_on(monkeypatch, os, "stat", closed / "results.json", errno.EACCES)  # root may look everywhere
    fail_on(monkeypatch, os, LISTING, tmp_path, errno.EACCES)
    assert [file.parent.name for file in find_results([closed, tmp_path, run, run / "gone"])] == ["step-000060"]


def test_what_else_lies_in_a_folder_of_runs_is_left_out(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    runs = run.parent
    default = default_tracking_uri(run)
    for of_mlflow in ("", "-wal", "-shm", "-journal", ".lock"):  # of which nothing is told
        Path(f"{default.removeprefix('sqlite:///')}{of_mlflow}").touch()
    (runs / "mlartifacts").mkdir()
    (runs / "another").mkdir()
    (write_run(runs / "begun") / "metrics.jsonl").unlink()
    assert main(list(map(str, sorted(runs.iterdir())))) == 0  # runs/*
    said = capsys.readouterr()
    assert [line.split()[1] for line in said.err.splitlines()] == [str(runs / name) for name in ("another", "begun")]
    assert str(run / "report" / "report.md") in said.out

    for name in ("mlflow.db.bak", "one more", "yet another"):
        (runs / name).touch()
    assert main(list(map(str, sorted(runs.iterdir())))) == 0
    assert capsys.readouterr().err.splitlines()[3:] == ["note: 2 more are left out for the same reason"]

    assert main([str(run), str(runs / "typo")]) == 2
    assert "typo: no such directory" in capsys.readouterr().err


def test_no_name_commands_the_terminal(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = run.rename(run.with_name("de\x1b[31mmo"))
    (run.parent / "another\n").mkdir()
    assert main([str(named), str(run.parent / "another\n")]) == 0
    told = capsys.readouterr()
    assert told.out.splitlines()[-1] == f"{run.parent}/de\\x1b[31mmo/report/report.html"
    assert told.err.startswith(f"note: {run.parent}/another\\n is left out: no run that has begun to train\n")
    assert "\x1b" not in told.out + told.err


def test_a_link_that_leads_to_itself_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run").symlink_to("run")
    assert main([str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err == f"error: {tmp_path / 'run'}: no such directory; give that of a run\n"


def test_a_folder_of_runs_is_told_from_a_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(run.parent)]) == 2
    assert capsys.readouterr().err.endswith(f"whose training has begun, such as those of {run.parent}/*\n")


def test_of_a_learned_task_the_report_says_which_point_is_the_best(run: Path) -> None:
    point = {"learning_rate": 3e-5, "epochs": 1, "batch_size": 16, "seed": 2}
    details = {"selected_by": "f1", "best_point": point, "max_length": 128, "points": [{}] * 4}
    file = write_evaluation(run, 60, mrpc=task(details, f1=88.9), rte=task({**details, "points": [{}]}, f1=50.0))
    write_results(file, read_results(file) | {"fine_tuning": {"optimizer": "adamw", "precision": "bf16"}})
    how = "learning rate 3e-05, 1 epoch, batches of 16, seed 2, at most 128 tokens, adamw, bf16"
    lines = report_of(run).partition("## Evaluation of")[2].splitlines()
    assert f"- mrpc: the best of 4 points by f1: {plain(how)}" in lines
    assert f"- rte: the only point: {plain(how)}" in lines


def test_seeds_that_diverged_are_counted(run: Path) -> None:
    point = {"learning_rate": 3e-5, "epochs": 3, "batch_size": 32}
    tried = [{"point": {**point, "seed": seed}, "error": "the loss is nan" if seed > 2 else None} for seed in range(5)]
    tried += [{"point": {**point, "epochs": 4, "seed": 0}, "error": "the loss is nan"}]  # with other hyperparameters
    details = {"selected_by": "f1", "best_point": tried[1]["point"], "max_length": 128, "points": tried}
    write_evaluation(run, 60, mrpc=task({**details, "seeds": {"f1": [88.0, 89.0, 87.0]}}, f1=89.0))
    text = report_of(run)
    assert rows_after(text, "GLUE")["MRPC"]["seeds"] == "3 of 5: 88.0 ± 1.0"
    line = next(line for line in text.splitlines() if line.startswith("- mrpc: the best of 6 points, of which 3 div"))
    assert line.endswith(plain("; f1 over seeds, 3 of 5: 88.00 ± 1.00"))
    diverged = [{**one, "error": "the loss is nan"} for one in tried]
    alone = task({**details, "points": [tried[1], *diverged[2:5]], "seeds": {"f1": [89.0]}}, f1=89.0)
    write_evaluation(run, 70, mrpc=alone)
    assert rows_after(report_of(run), "GLUE")["MRPC"]["seeds"] == "1 of 4"


def rows_after(text: str, heading: str) -> dict[str, dict[str, str]]:
    """The table of a section: row -> column -> cell."""
    section = text.partition(f"### {heading} (")[2].partition("\n#")[0]
    rows = [[cell.strip() for cell in line[2:-2].split(" | ")] for line in section.splitlines() if line[:1] == "|"]
    return {row[0]: dict(zip(rows[0][1:], row[1:], strict=True)) for row in rows[2:]}


def report_of(*runs: Path) -> str:
    """The text of report.md, without the pictures."""
    evaluations = read_evaluations(find_results(runs))
    return "\n".join(report(read_histories(runs)[0], evaluations, exports_of(evaluations), None))


def learned(by: str, seeds: dict[str, list[float]], **metrics: float) -> dict[str, Any]:
    """A task that was fine-tuned."""
    return task({"selected_by": by, "seeds": seeds}, **metrics)


def set_model(run: Path, layers: int, width: int, heads: int) -> None:
    """Give a run's recipe the size of a model."""
    sizes = f"num_hidden_layers = {layers}\nhidden_size = {width}\nnum_attention_heads = {heads}"
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(config.replace("[model]", f"[model]\n{sizes}"))


def test_beside_the_paper(run: Path, tmp_path: Path) -> None:
    mrpc = learned("f1", {"f1": [88.9, 87.0, 85.1], "accuracy": [84.0, 83.0, 82.0]}, f1=88.9, accuracy=84.0)
    cola = learned("matthews", {"matthews": [-1.25]}, matthews=-1.25)
    write_evaluation(run, 60, mrpc=mrpc, cola=cola, sst2=learned("accuracy", {}, accuracy=93.46))
    text = report_of(run)
    glue = rows_after(text, "GLUE")
    assert glue["MRPC"] == {
        "OpenAI GPT": "82.3", "BERT-BASE": "88.9", "BERT-LARGE": "89.3",
        "demo 60": "88.9", "minus BERT-BASE": "+0.0", "seeds": "3: 87.0 ± 1.9",
    }  # fmt: skip
    ours = ("demo 60", "minus BERT-BASE", "seeds")
    assert [glue["CoLA"][column] for column in ours] == ["-1.2", "-53.4", "1"]
    assert [glue["SST-2"][column] for column in ours] == ["93.5", "+0.0", ""]  # and no -0.0
    for name in ("RTE", "MNLI-m", "average"):
        assert [glue[name][column] for column in ours] == ["", "", ""]  # not measured is empty, never zero
    assert (glue["average"]["BERT-BASE"], glue["average"]["BERT-LARGE"]) == ("79.6", "82.1")
    assert rows_after(text, "Other published figures")["MRPC"]["minus published"] == "-0.56"
    assert "average" not in rows_after(text, "Other published figures")
    assert "the test set, ours of the dev set" in text
    assert "SQuAD v1.1 (table 2)" not in text


def test_a_run_without_next_sentences_has_no_accuracy_of_them(run: Path, tmp_path: Path) -> None:
    """Its metrics have one: of weights that nothing trains."""
    assert "| held out: NSP accuracy " in report_of(run)
    with (run / "config.toml").open("a") as file:
        file.write("[train]\nnext_sentence = false\n")
    assert "NSP accuracy" not in report_of(run)
    (history,), _ = read_histories([run])
    accuracy = draw([history], Baselines(None, 0.5)).axes[1]
    assert accuracy.get_ylabel() == "MLM accuracy"
    assert len(accuracy.lines) == 3  # steps, smoothed, held out; no baseline of another task
    np.testing.assert_allclose(accuracy.lines[0].get_ydata(), 0.01 * np.arange(1, 61) / 3)
    other = write_run(tmp_path / "runs" / "other", steps=60)
    accuracy = draw(read_histories([run, other])[0], Baselines(None, None)).axes[1]
    assert (accuracy.get_ylabel(), len(accuracy.lines)) == ("NSP accuracy", 3)  # of the other one alone


def test_what_a_head_that_was_never_trained_scores_is_no_score(run: Path) -> None:
    write_evaluation(run, 60, **INTRINSIC)
    assert rows_of(report_of(run))["nsp accuracy"][0] == "75.00 %"
    assert baselines(read_evaluations(find_results([run]))) == Baselines(7.7603, 0.515)
    (run / "config.toml").write_text("[train]\nnext_sentence = false\n")
    evaluations = read_evaluations(find_results([run]))
    assert "nsp accuracy" not in rows_of(report_of(run))
    assert [axes.get_title(loc="left") for axes in draw_scores(exports_of(evaluations)).axes][:2] == ["mlm", "mlm"]
    assert baselines(evaluations).nsp_accuracy is None


def test_next_words_are_no_masked_words(run: Path, tmp_path: Path) -> None:
    """Neither where the results say so, nor where the recipe of the run alone does, as with results of old."""
    mlm = {"tasks": {"mlm": INTRINSIC["mlm"] | {"details": {"samples": 2000}}}, "shards": SHARDS}
    said, of_old = (write_run(tmp_path / "runs" / name, steps=30) for name in ("said", "of-old"))
    (of_old / "config.toml").write_text("[model]\nis_decoder = true\n")
    for of, step in ((run, 60), (said, 30), (of_old, 30)):
        file = write_evaluation(of, step)
        write_results(file, read_results(file) | mlm)
    marked = json.loads((said / "evaluations" / "step-000030" / "results.json").read_text())
    marked["tasks"]["mlm"]["details"]["instead"] = "next words"
    write_results(said / "evaluations" / "step-000030" / "results.json", marked)

    text = report_of(run, said, of_old)
    sizes = rows_after(text, "Effect of model size")["perplexity"]
    assert [sizes[name] for name in ("demo 60", "said 30", "of-old 30")] == ["1,234.56", "", ""]
    shown = re.findall(r"^\| (mlm perplexity.*?) +\|", text, re.MULTILINE)
    assert sorted(shown) == ["mlm perplexity", *["mlm perplexity, next words"] * 3]  # those two beside each other too
    evaluations = read_evaluations(find_results([run, said, of_old]))
    assert baselines(evaluations) == Baselines(None, None)
    kept, left_out = on_same_data(exports_of(evaluations))
    assert left_out == ["mlm of of-old 30", "mlm of said 30"]
    alone = exports_of(read_evaluations(find_results([said, of_old])))
    assert draw_scores(kept).axes[0].get_title(loc="left") == "mlm"
    assert draw_scores(alone).axes[0].get_title(loc="left") == "mlm, next words"
    assert on_same_data(alone)[1] == []


def test_curves_and_last_figures_tell_next_words_from_masked_ones(run: Path, tmp_path: Path) -> None:
    causal = write_run(tmp_path / "runs" / "causal", steps=60)
    (causal / "config.toml").write_text("[model]\nis_decoder = true\n[train]\nnext_sentence = false\n")
    rows = rows_of(report_of(causal, run))
    for name in ("training {}loss", "held out: {}loss", "held out: perplexity", "held out: {}accuracy"):
        (figure, empty), (lacking, same) = rows[f"{name.format('')} of next words"], rows[name.format("MLM ")]
        assert (figure, empty, lacking) == (same, "", "")
    assert "training MLM loss" not in rows_of(report_of(causal))

    def drawn(*runs: Path) -> tuple[str, str, list[str]]:
        figure = draw(read_histories(runs)[0], Baselines(None, None))
        loss, names = figure.axes[0], [text.get_text() for text in figure.legends[0].get_texts()]
        return loss.get_title(loc="left"), loss.get_ylabel(), names

    assert drawn(causal) == ("Next words: causal", "loss (nats a word)", ["training", "held out"])
    names = [f"{name}, {part}" for name in ("causal, next words", "demo") for part in ("training", "held out")]
    assert drawn(causal, run) == ("Masked words, or next ones", "loss (nats a word)", names)
    again = Path(shutil.copytree(causal, tmp_path / "runs" / "again"))
    names = [f"{name}, {part}" for name in ("causal", "again") for part in ("training", "held out")]
    assert drawn(causal, again) == ("Next words", "loss (nats a word)", names)


def test_every_table_of_the_paper_is_there_of_which_anything_was_measured(run: Path, tmp_path: Path) -> None:
    write_evaluation(run, 60, **INTRINSIC)
    text = report_of(run)
    assert re.findall(r"^### (.*) \(", text, re.MULTILINE) == ["Effect of model size"]
    assert (
        "\nNot measured: GLUE; SQuAD v1.1; SQuAD v2.0; SWAG; CoNLL-2003, fine-tuned; CoNLL-2003, feature-based; Effect "
        "of the pre-training tasks; Effect of the masking; Other published figures.\n" in text
    )
    size = rows_after(text, "Effect of model size")["perplexity"]
    assert (size["24, 1024, 16"], size["demo 60"], size["minus 3, 768, 12"]) == ("3.23", "1,234.56", "+1,228.72")


def test_where_all_tables_have_figures_none_is_named_and_where_none_has_all_are(run: Path) -> None:
    figures: dict[str, dict[str, float]] = {}
    for measure in (measure for table in TABLES for measure in table.measures):
        figures.setdefault(measure.task, {})[measure.metric] = 50.0
    file = write_evaluation(run, 60, **{name: task(**metrics) for name, metrics in figures.items()})
    text = report_of(run)
    assert re.findall(r"^### (.*) \(", text, re.MULTILINE) == [table.title for table in TABLES]
    assert "Not measured" not in text
    shutil.rmtree(file.parent)
    write_evaluation(run, 60, tickets=task(accuracy=50.0))
    text = report_of(run)
    assert f"\n## Beside the paper\n\nNot measured: {'; '.join(table.title for table in TABLES)}.\n" in text
    assert "Devlin et al." not in text


def test_every_line_of_a_table_is_a_figure_of_its_own_that_all_models_may_have() -> None:
    for table in TABLES:
        figures = {(measure.task, measure.metric) for measure in table.measures}
        assert {task for task, _ in figures} <= TASKS.keys()
        assert {len(table.measures), *(len(model.figures) for model in table.models)} == {len(figures)}
        assert table.usual in [model.name for model in table.models]


@pytest.mark.parametrize(
    ("layers", "width", "heads", "expected"),
    [(24, 1024, 16, "BERT-LARGE"), (12, 768, 12, "BERT-BASE"), (4, 256, 4, "BERT-BASE")],
)
def test_a_run_is_compared_with_the_paper_s_model_of_its_size(
    run: Path, tmp_path: Path, layers: int, width: int, heads: int, expected: str
) -> None:
    set_model(run, layers, width, heads)
    write_evaluation(run, 60, rte=learned("accuracy", {}, accuracy=70.0))
    assert f"minus {expected}" in rows_after(report_of(run), "GLUE")["RTE"]


@pytest.mark.parametrize(
    ("settings", "table", "expected"),
    [
        ("[train]\nnext_sentence = true", "Effect of the pre-training tasks", "BERT-BASE"),
        ("is_decoder = false\n[train]\nnext_sentence = false", "Effect of the pre-training tasks", "No NSP"),
        ("is_decoder = true\n[train]\nnext_sentence = false", "Effect of the pre-training tasks", "LTR & No NSP"),
        ("[masking]\nmask = 0.8\nrandom = 0.0", "Effect of the masking", "80/20/0"),
        ("[masking]\nmask = 0.0\nrandom = 1.0", "Effect of the masking", "0/0/100"),
    ],
)
def test_an_ablation_is_compared_with_the_paper_s(
    run: Path, tmp_path: Path, settings: str, table: str, expected: str
) -> None:
    (run / "config.toml").write_text(f"[model]\n{settings}\n")
    write_evaluation(run, 60, mnli=learned("accuracy", {}, accuracy=70.0))
    rows = rows_after(report_of(run), table)
    assert f"minus {expected}" in rows[next(name for name in rows if name.startswith("MNLI"))]


def test_what_several_runs_have_on_the_same_data_stands_side_by_side(run: Path, tmp_path: Path) -> None:
    """Tasks of one's own too; of each run the newest export."""
    other = write_run(tmp_path / "runs" / "other", steps=30)
    for step, accuracy in ((10, 40.0), (20, 50.0)):
        write_evaluation(run, step, mlm=INTRINSIC["mlm"], tickets=measured_on("mine", accuracy))
    assert "Side by side" not in report_of(run)
    write_evaluation(other, 30, tickets=measured_on("mine", 60.0), rte=measured_on("d", 70.0), mlm=INTRINSIC["mlm"])
    section = report_of(run, other).partition("## Side by side\n")[2].partition("\n#")[0]
    rows = rows_of(section)
    assert rows.pop("----------------") == ["---------------:"] * 2
    assert rows == {
        "": ["demo 20", "other 30"],
        "mlm perplexity": ["1,234.6 ± 7.9"] * 2,
        "mlm loss": ["7.1180 ± 0.0064"] * 2,
        "mlm accuracy": ["12.50 % ± 0.30 %"] * 2,
        "tickets accuracy": ["50.0000", "60.0000"],
    }
    write_evaluation(run, 40, tickets=measured_on("others", 99.0))
    assert "Side by side" not in report_of(run, other)


def test_trials_stand_side_by_side_where_there_are_only_trials(run: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "runs" / "other", steps=30)
    for of, step, accuracy in ((run, 20, 50.0), (other, 30, 60.0)):
        write_evaluation(of, step, rte=measured_on("whole", accuracy))
        tried = {"rte": measured_on("part", 99.0), "wnli": measured_on("few", accuracy - 1)}
        with_limit(write_evaluation(of, step, "trial", **tried), 40)
    section = report_of(run, other).partition("## Side by side\n")[2].partition("\n#")[0]
    rows = {name: figures for name, figures in rows_of(section).items() if "accuracy" in name}
    assert rows == {"rte accuracy": ["50.0000", "60.0000"], "wnli accuracy": ["49.0000", "59.0000"]}


def test_a_trial_that_is_not_side_by_side_with_another_is_not_in_the_heading(run: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "runs" / "other", steps=30)
    write_evaluation(run, 20, mlm=INTRINSIC["mlm"])
    write_evaluation(other, 30, mlm=INTRINSIC["mlm"])
    with_limit(write_evaluation(other, 30, "trial", tickets=measured_on("mine", 60.0)), 40)
    section = report_of(run, other).partition("## Side by side\n")[2].partition("\n#")[0]
    assert rows_of(section)[""] == ["demo 20", "other 30"]


def test_of_each_run_its_newest_export_that_has_a_figure(run: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "runs" / "other", steps=30)
    write_evaluation(run, 20, rte=learned("accuracy", {}, accuracy=55.0))
    write_evaluation(run, 40, rte=learned("accuracy", {}, accuracy=60.0))
    write_evaluation(run, 60, mlm=INTRINSIC["mlm"])
    write_evaluation(other, 30, rte=learned("accuracy", {}, accuracy=50.0))
    text = report_of(run, other)
    assert {"demo 40", "other 30"} <= rows_after(text, "GLUE")["RTE"].keys()
    assert {"demo 60"} <= rows_after(text, "Effect of model size")["perplexity"].keys()
    assert "## Evaluation of demo step-000060" in text
    assert "## Evaluation of demo step-000040" not in text  # its figures are in the plot
    backwards = exports_of(read_evaluations(find_results([run]))[::-1])
    assert [export.step for export in backwards] == [20, 40, 60]


def test_what_was_evaluated_of_one_export_is_one_column(run: Path, tmp_path: Path) -> None:
    write_evaluation(run, 60, rte=learned("accuracy", {}, accuracy=60.0))
    write_evaluation(run, 60, "step-000060-final", wnli=learned("accuracy", {}, accuracy=56.3), cola=learned(
        "matthews", {}, matthews=10.0))  # fmt: skip
    text = report_of(run)
    glue = rows_after(text, "GLUE")
    assert (glue["RTE"]["demo 60"], glue["CoLA"]["demo 60"]) == ("60.0", "10.0")
    assert text.count("## Evaluation of") == 1


def test_a_trial_on_few_examples_says_so(run: Path) -> None:
    file = write_evaluation(run, 60, stsb=learned("spearman", {}, spearman=-0.04))
    write_results(file, json.loads(file.read_text()) | {"data": {"path": "/data", "limit": 1400}})
    text = report_of(run)
    assert rows_after(text, "GLUE")["STS-B"]["demo 60 (1,400 examples)"] == "0.0"  # and no -0.0
    assert "at most 1,400 examples of each data set, so of little weight" in text
    with_limit(write_evaluation(run, 60, "step-000060-wnli", wnli=learned("accuracy", {}, accuracy=50.0)), 30)
    assert "demo 60 (1,400 examples)" in rows_after(report_of(run), "GLUE")["STS-B"]  # WNLI is not in that table


def with_limit(file: Path, limit: int | None) -> None:
    write_results(file, json.loads(file.read_text()) | {"data": {"path": "/data", "limit": limit}})


def test_a_trial_leaves_figures_of_whole_data_sets_alone(run: Path) -> None:
    with_limit(write_evaluation(run, 60, mrpc=learned("f1", {}, f1=88.0)), None)
    trial = write_evaluation(run, 60, "step-000060-trial", mrpc=learned("f1", {}, f1=33.0), mlm=INTRINSIC["mlm"])
    with_limit(trial, 20)  # which lies behind the other, and is of no weight for mlm, which reads no data set
    text = report_of(run)
    assert rows_after(text, "GLUE")["MRPC"]["demo 60"] == "88.0"
    assert rows_of(text)["mrpc f1"][0] == "88.0000"
    assert rows_of(text)["mlm loss"][0].startswith("7.1180")
    assert "at most" not in text
    with_limit(write_evaluation(run, 60, "step-000060-wnli", wnli=learned("accuracy", {}, accuracy=50.0)), 30)
    text = report_of(run)
    assert rows_after(text, "GLUE")["MRPC"]["demo 60"] == "88.0"  # WNLI is not in that table
    assert "\nwnli; at most 30 examples of each data set, so of little weight; " in text


def test_of_two_trials_the_one_on_more_examples_counts(run: Path) -> None:
    for name, limit, f1 in (("a", 64, 78.0), ("b", 16, 66.0)):
        with_limit(write_evaluation(run, 60, name, mrpc=learned("f1", {}, f1=f1)), limit)
    assert rows_after(report_of(run), "GLUE")["MRPC"]["demo 60 (64 examples)"] == "78.0"
    with_limit(write_evaluation(run, 60, "c", rte=learned("accuracy", {}, accuracy=60.0)), 32)
    glue = rows_after(report_of(run), "GLUE")  # of the column's trials the smallest is told
    assert [glue[name]["demo 60 (32 examples)"] for name in ("MRPC", "RTE")] == ["78.0", "60.0"]


def test_results_of_a_model_of_another_program_have_a_report_without_a_run(tmp_path: Path) -> None:
    files = []
    for name, f1 in (("tiny", 81.0), ("other", 82.0)):
        file = write_evaluation(tmp_path / name, 1, mrpc=learned("f1", {}, f1=f1), mlm=INTRINSIC["mlm"])
        results = json.loads(file.read_text())
        checkpoint = {**results["checkpoint"], "path": f"/models/{name}", "lineage": {}}
        write_results(file, results | {"checkpoint": checkpoint})
        files += ["--results", str(file)]
    assert main([*files, "--output", str(tmp_path / "report")]) == 0
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == ["report.html", "report.md"]
    text = (tmp_path / "report" / "report.md").read_text()
    assert text.startswith("# other, tiny\n\n## Side by side\n")
    scores = rows_after(text, "GLUE")["MRPC"]
    assert (scores["tiny"], scores["other"]) == ("81.0", "82.0")
    assert "## Evaluation of tiny\n" in text
    assert main(files[2:]) == 0
    beside = Path(files[3]).parent / "report" / "report.md"
    of_file = beside.read_text()
    beside.unlink()
    assert main(["--results", str(Path(files[3]).parent)]) == 0
    assert beside.read_text() == of_file
    assert main(files) == 0
    assert (Path(files[1]).parent / "report" / "report.md").is_file(), "beside the first"


def test_a_report_of_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    assert "give a run directory, or the results.json of an export" in capsys.readouterr().err


def measured_on(data: str, accuracy: float) -> dict[str, Any]:
    """A task that was fine-tuned and judged on some data."""
    return task({"selected_by": "accuracy", "data_blake2b": data}, accuracy=accuracy)


def test_a_trial_of_a_newer_export_leaves_figures_of_whole_data_sets_alone(run: Path, tmp_path: Path) -> None:
    for step, rte, sst2 in ((10, 51.0, 81.0), (20, 52.0, 82.0)):
        write_evaluation(run, step, rte=measured_on("whole", rte), sst2=measured_on("all of it", sst2))
    with_limit(write_evaluation(run, 30, rte=measured_on("part", 99.0), wnli=measured_on("a few", 50.0)), 40)
    exports = exports_of(read_evaluations(find_results([run])))
    assert rows_after(report_of(run), "GLUE")["RTE"]["demo 20"] == "52.0"
    kept, left_out = on_same_data(exports)
    assert left_out == ["rte of demo 30 (40 examples)"]
    panels = {axes.get_title(loc="left"): axes.containers[0].lines[0] for axes in draw_scores(kept).axes}
    assert panels["rte"].get_xydata().tolist() == [[10, 51], [20, 52]]
    assert panels["wnli, 40 examples"].get_xydata().tolist() == [[30, 50]]  # there is nothing else
    whole_too = {axes.get_title(loc="left") for axes in draw_scores(exports).axes}
    assert {"rte", "wnli, 40 examples"} <= whole_too

    other = write_run(tmp_path / "runs" / "other", steps=30)
    with_limit(write_evaluation(other, 10, rte=measured_on("part", 60.0)), 40)
    glue = rows_after(report_of(run, other), "GLUE")["RTE"]
    assert (glue["demo 20"], glue["other 10 (40 examples)"]) == ("52.0", "60.0")


def test_what_is_left_out_is_no_trial_for_another_task_that_was_one(run: Path) -> None:
    write_evaluation(run, 20, rte=measured_on("old", 50.0))
    with_limit(write_evaluation(run, 20, "trial", wnli=measured_on("few", 50.0)), 40)
    write_evaluation(run, 30, rte=measured_on("new", 60.0))
    assert on_same_data(exports_of(read_evaluations(find_results([run]))))[1] == ["rte of demo 20"]


@pytest.mark.parametrize(
    ("present", "shown", "left_out"), [("a", "60.0", "b"), ("b", "50.0", "a"), (None, "50.0", "a")]
)
def test_of_a_step_that_was_trained_anew_the_weights_that_are_there_count(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], present: str | None, shown: str, left_out: str
) -> None:
    """Or, where retention has deleted them, those that were evaluated last; whatever their folders are called."""
    weights, files = run / "exports" / "step-000060" / "model.safetensors", {}
    weights.parent.mkdir(parents=True)
    for name, accuracy, written in (("a", 60.0, 10), ("b", 50.0, 20)):
        weights.write_text(name)
        files[name] = write_evaluation(run, 60, f"z-{name}" if name == "a" else name, rte=measured_on("d", accuracy))
        os.utime(files[name], (written, written))
    if present:
        weights.write_text(present)
    else:
        weights.unlink()
    assert main([str(run), "--output", str(tmp_path / "output")]) == 0
    told = f"note: {files[left_out]} is left out: of other weights than that step has now\n"
    assert capsys.readouterr().err == told
    text = (tmp_path / "output" / "report.md").read_text()
    assert rows_after(text, "GLUE")["RTE"]["demo 60"] == shown
    assert text.count("## Evaluation of") == 1


@pytest.mark.parametrize(("count", "others"), [(5, "1 more is"), (20, "16 more are")])
def test_of_many_evaluations_of_other_weights_a_few_are_named_and_the_others_counted(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], count: int, others: str
) -> None:
    names = [f"trial{number:02d}" for number in range(count)]
    for written, name in enumerate(names):
        file = write_evaluation(run, 60, name, rte=measured_on("d", 50.0))
        write_results(file, results(run, 60, read_results(file)["tasks"], weights=name))
        os.utime(file, (written, written))
    assert main([str(run), "--output", str(tmp_path / "output")]) == 0
    files = [run / "evaluations" / name / "results.json" for name in names[:3]]
    assert capsys.readouterr().err.splitlines() == [
        *(f"note: {file} is left out: of other weights than that step has now" for file in files),
        f"note: {others} left out for the same reason",
    ]


def test_a_trial_over_few_samples_leaves_figures_over_many_alone(run: Path) -> None:
    """Of as many, the newest count, whatever their folder is called."""
    files = {
        name: write_evaluation(run, 60, name, mlm=task({"samples": samples}, loss=loss))
        for name, samples, loss in (("a", 2000, 3.0), ("b", 2000, 2.0), ("c", 20, 1.0))
    }
    for name, written in (("a", 20), ("b", 10), ("c", 30)):
        os.utime(files[name], (written, written))
    assert rows_of(report_of(run))["mlm loss"][0] == "3.0000"


def held_out(step: int, samples: int, perplexity: float, manifest: str = "cd34") -> dict[str, Any]:
    """What results of masked words have of the samples that they were measured on."""
    mlm = task({"samples": samples}, perplexity=perplexity, accuracy=0.1)
    return {"tasks": {"mlm": mlm}, "shards": SHARDS | {"manifest_blake2b": manifest, "samples": samples}}


def test_a_trial_of_a_newer_export_over_few_samples_leaves_figures_over_many_alone(run: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "runs" / "other", steps=60)
    for of, step, samples, perplexity in (
        *((run, 20, 2000, 80.0), (run, 40, 2000, 70.0), (run, 60, 8, 9.0)),
        (other, 60, 500, 75.0),  # all that it was measured on
    ):
        file = write_evaluation(of, step)
        write_results(file, read_results(file) | held_out(step, samples, perplexity))
    sizes = rows_after(report_of(run, other), "Effect of model size")["perplexity"]
    assert (sizes["demo 40"], sizes["other 60"]) == ("70.00", "75.00")
    kept, left_out = on_same_data(exports_of(read_evaluations(find_results([run, other]))))
    assert left_out == ["mlm of demo 60 (8 examples)"]
    assert [list(export.tasks) for export in kept] == [["mlm"], ["mlm"], [], ["mlm"]]


def test_figures_on_several_shard_directories_stand_beside_each_other(run: Path, tmp_path: Path) -> None:
    """A row says on which they are; a trial over few samples of one of them is in no table."""
    other = write_run(tmp_path / "runs" / "other", steps=60)
    for of, name, shards, samples, perplexity in (
        *((run, "a", "wiki", 2000, 10.0), (run, "b", "notes", 2000, 20.0), (run, "c", "notes", 8, 1.0)),
        *((other, "a", "wiki", 2000, 30.0), (other, "b", "notes", 2000, 40.0), (other, "c", "mine", 2000, 50.0)),
    ):
        file = write_evaluation(of, 60, name)
        written = held_out(60, samples, perplexity, shards)
        write_results(file, read_results(file) | written | {"shards": written["shards"] | {"path": f"/data/{shards}"}})
    text = report_of(run, other)
    rows = rows_of(text.partition("## Side by side\n")[2].partition("\n#")[0])
    assert rows[""] == ["demo 60", "other 60"]
    assert rows["mlm perplexity, wiki at 128"] == ["10.0", "30.0"]
    assert rows["mlm perplexity, notes at 128"] == ["20.0", "40.0"]
    assert not any("mine" in name for name in rows)
    sections = text.partition("## Evaluation of other")[2].split("On other data:\n")
    assert [section.count("| mlm perplexity") for section in sections] == [1, 1, 1]
    assert [
        place for section in sections for place in ("wiki", "notes", "mine") if f"shards /data/{place}, " in section
    ] == ["mine", "notes", "wiki"]


def test_figures_on_shards_that_others_have_replaced_are_told_apart(run: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "runs" / "other", steps=60)
    for of, name, manifest, perplexity in (
        *((run, "a", "12345678-old", 10.0), (run, "b", "9abcdef0-new", 20.0)),
        *((other, "a", "12345678-old", 30.0), (other, "b", "9abcdef0-new", 40.0)),
    ):
        file = write_evaluation(of, 60, name)
        write_results(file, read_results(file) | held_out(60, 2000, perplexity, manifest))
    rows = rows_of(report_of(run, other).partition("## Side by side\n")[2].partition("\n#")[0])
    (directory,) = {name.partition(", ")[2].partition(" at ")[0] for name in rows if "perplexity" in name}
    assert rows[f"mlm perplexity, {directory} at 128 (12345678)"] == ["10.0", "30.0"]
    assert rows[f"mlm perplexity, {directory} at 128 (9abcdef0)"] == ["20.0", "40.0"]


def test_two_tasks_of_a_folder_have_data_of_their_own_and_it_was_not_replaced(run: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "runs" / "other", steps=60)
    for of in (run, other):
        for folder in ("one", "two"):
            file = write_evaluation(of, 60, folder)
            learned = {
                name: task({"data_blake2b": f"{name} in {folder}", "selected_by": "accuracy"}, accuracy=0.5)
                for name in ("rte", "mrpc")
            }
            written = {"tasks": learned, "data": {"path": f"/data/{folder}"}, "shards": None}
            write_results(file, read_results(file) | written)
    rows = rows_of(report_of(run, other).partition("## Side by side\n")[2].partition("\n#")[0])
    assert {name.partition(", ")[2] for name in rows if "accuracy" in name} == {"one", "two"}


def test_a_task_that_failed_beside_figures_on_two_directories_is_named_once(run: Path) -> None:
    for name, shards in (("a", "wiki"), ("b", "notes")):
        file = write_evaluation(run, 60, name)
        write_results(file, read_results(file) | held_out(60, 2000, 10.0, shards) | {"failed": {"rte": "no data"}})
    text = report_of(run)
    assert text.count("Failed: rte: no data") == text.count("rte (failed)") == 1


def test_as_many_samples_as_there_are_of_some_shards_are_no_trial(run: Path) -> None:
    """Though others have more."""
    for step, samples, manifest in ((20, 2000, "large"), (40, 800, "small"), (60, 800, "small")):
        file = write_evaluation(run, step)
        write_results(file, read_results(file) | held_out(step, samples, 100.0 - step, manifest))
    assert rows_after(report_of(run), "Effect of model size")["perplexity"]["demo 60"] == "40.00"


def test_evaluations_of_a_renamed_run_stay_its_own(run: Path, tmp_path: Path) -> None:
    """Another one was begun under the old name, which the lineages and paths of the results have."""
    set_model(run, 24, 1024, 16)
    write_evaluation(run, 60, rte=learned("accuracy", {}, accuracy=70.0))
    old = run.rename(run.with_name("demo-old"))
    set_model(write_run(run, steps=60), 12, 768, 12)
    write_evaluation(run, 60, rte=learned("accuracy", {}, accuracy=50.0))
    assert main([str(old), str(run), "--output", str(tmp_path / "output")]) == 0
    rte = rows_after((tmp_path / "output" / "report.md").read_text(), "GLUE")["RTE"]
    assert (rte["demo-old 60"], rte["minus BERT-LARGE"]) == ("70.0", "-0.1")
    assert (rte["demo 60"], rte["minus BERT-BASE"]) == ("50.0", "-16.4")


def test_the_run_of_an_evaluation(tmp_path: Path) -> None:
    """That of the results, of the export, of the lineage, in this order; a model of another program has none.

    Results that lie elsewhere in a run are of that where the one that the lineage has is gone.
    """
    run, other = write_run(tmp_path / "run"), write_run(tmp_path / "other")
    trained = {"path": str(run / "exports" / "step-7"), "lineage": {"run": "/gone"}}
    copied, foreign = trained | {"path": "/model"}, {"path": "/model", "lineage": {}}
    inside, outside = other / "evaluations" / "step-7" / "results.json", tmp_path / "results.json"
    assert run_directory(trained, inside) == other
    assert run_directory(trained, outside) == run
    assert run_directory(copied, outside) == Path("/gone")
    assert run_directory(copied, other / "results.json") == run_directory(copied, other / "tried" / "x.json") == other
    assert run_directory(copied | {"lineage": {"run": str(run)}}, other / "results.json") == run
    assert run_directory(foreign, outside) == run_directory(foreign, inside) == Path("/model")
    (tmp_path / "loop").symlink_to("loop")
    assert run_directory(copied | {"lineage": {"run": str(tmp_path / "loop")}}, outside) == tmp_path / "loop"


def test_a_report_is_written_whoever_reads_its_files_names(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with stdout_to(FULL):
        assert main([str(run)]) == 0
    assert capsys.readouterr().err == ""
    assert (run / "report" / "report.html").is_file()


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, steps=60) for name in ("seed1/large", "seed2/large", "base")]
    for run, f1 in zip(runs, (70.0, 90.0, 50.0), strict=True):
        write_evaluation(run, 60, mrpc=learned("f1", {}, f1=f1))
    assert main([*map(str, runs), "--output", str(tmp_path / "output")]) == 0
    text = (tmp_path / "output" / "report.md").read_text()
    assert text.startswith("# seed1/large, seed2/large, base\n")
    figures = rows_after(text, "GLUE")["MRPC"]
    assert [figures[f"{name} 60"] for name in ("seed1/large", "seed2/large", "base")] == ["70.0", "90.0", "50.0"]
    assert re.findall("## Evaluation of (.*)", text) == [
        "base step-000060", "seed1/large step-000060", "seed2/large step-000060",
    ]  # fmt: skip
    exports = exports_of(read_evaluations(find_results(runs)))
    [score] = [axes for axes in draw_scores(exports).axes if axes.get_title(loc="left") == "mrpc"]
    assert [line.get_ydata().tolist() for line in score.lines[::3]] == [[50.0], [70.0], [90.0]]


def test_a_run_has_one_name_in_curves_and_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nothing was evaluated of the run that it is to be told from."""
    monkeypatch.chdir(tmp_path)
    runs = ["seed1/large", "seed2/large"]
    for run in runs:
        write_run(tmp_path / run, steps=60)
    write_evaluation(tmp_path / runs[0], 60, mrpc=learned("f1", {}, f1=70.0))
    assert main([*runs, "--output", "output"]) == 0
    text = (tmp_path / "output" / "report.md").read_text()
    assert rows_after(text, "GLUE")["MRPC"]["seed1/large 60"] == "70.0"


def test_a_run_is_told_from_others_of_its_name_that_only_results_are_of(tmp_path: Path) -> None:
    run, other = write_run(tmp_path / "a" / "large", steps=60), write_run(tmp_path / "b" / "large", steps=60)
    of_other = write_evaluation(other, 60, mrpc=learned("f1", {}, f1=70.0))
    of_foreign = write_evaluation(tmp_path / "foreign", 60, mrpc=learned("f1", {}, f1=50.0))
    foreign = {"path": str(tmp_path / "c" / "large"), "weights_blake2b": "c0de", "lineage": {}}
    write_results(of_foreign, {**read_results(of_foreign), "checkpoint": foreign})
    output = tmp_path / "output"
    given = ["--results", str(of_other), "--results", str(of_foreign)]
    assert main([str(run), *given, "--output", str(output)]) == 0
    text = (output / "report.md").read_text()
    assert text.startswith("# a/large\n")
    assert rows_of(text)["a/large"][-1] == str(run)  # its origin
    figures = rows_after(text, "GLUE")["MRPC"]
    assert (figures["b/large 60"], figures["c/large"]) == ("70.0", "50.0")
    assert not any(name.startswith("a/large") for name in figures)


def test_a_run_behind_a_link_is_one_run(run: Path, tmp_path: Path) -> None:
    """Of which the lineage has the path as it was when it was trained."""
    (tmp_path / "link").symlink_to(run.parent)
    output = tmp_path / "output"
    output.mkdir()
    write_results(output / "results.json", results(tmp_path / "link" / run.name, 60, {"mlm": INTRINSIC["mlm"]}))
    assert main([str(run), "--output", str(output)]) == 0
    assert f"## Evaluation of {run.name} step-000060\n" in (output / "report.md").read_text()


def test_results_are_found_once_whatever_leads_to_them(run: Path, tmp_path: Path) -> None:
    file = write_evaluation(run, 60, mlm=INTRINSIC["mlm"])
    (tmp_path / "link").symlink_to(run)
    assert list(find_results([run, tmp_path / "link", run / "evaluations"])) == [file]


def test_a_run_whose_name_looks_like_a_formula(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, steps=60) for name in ("a$b_{$", "$c$")]
    for run in runs:
        write_evaluation(run, 60, mrpc=learned("f1", {}, f1=50.0))
    assert main([*map(str, runs), "--output", str(tmp_path / "output")]) == 0
    figure = draw(read_histories(runs)[0], Baselines(None, None))
    labels = figure.legends[0].get_texts()
    assert [label.get_text() for label in labels[::2]] == ["a$b_{$, training", "$c$, training"]
    assert not any(label.get_parse_math() for label in labels)


def test_a_damaged_recipe(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_evaluation(run, 60, mrpc=learned("f1", {}, f1=50.0))
    (run / "config.toml").write_text("[model\n")
    assert main([str(run), "--output", str(tmp_path / "output")]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {run / 'config.toml'}: not TOML (")
    assert error.count("\n") == 1
    assert not (tmp_path / "output").exists()


@pytest.mark.parametrize("place", ["report", "report/curves.png"])
def test_an_output_that_takes_nothing(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    """A file for a folder and a folder for a file, which root is refused too."""
    if place == "report":
        (tmp_path / place).write_text("mine")
        output = tmp_path / "report" / "new"
    else:
        (tmp_path / place / "mine").mkdir(parents=True)
        output = tmp_path / "report"
    assert main([str(run), "--output", str(output)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert str(tmp_path / place) in error
    assert ("not a directory; choose another place" in error) == (place == "report")
    assert error.count("\n") == 1


def test_a_task_that_failed_is_named(run: Path, tmp_path: Path) -> None:
    file = write_evaluation(run, 60, **INTRINSIC)
    write_results(file, json.loads(file.read_text()) | {"failed": {"rte": "every point diverged"}})
    text = report_of(run)
    assert "Failed: rte: every point diverged" in text
    assert "mlm, nsp, fill_mask, rte (failed); weights " in text


def test_code_without_a_commit_is_told_by_its_version(run: Path) -> None:
    file = write_evaluation(run, 60, **INTRINSIC)
    code = {"version": "0.1.0", "commit": None, "modified": False}
    write_results(file, json.loads(file.read_text()) | {"code": code})
    assert "evaluated by version 0.1.0. " in report_of(run)


def test_of_few_steps_the_last_one_alone_is_told(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:10]))
    rows = rows_of(report_of(run))
    assert (rows["training loss: last steps averaged"], rows["training MLM loss"]) == (["1"], [f"{9 - 10 / 3:.4f}"])


def test_scores_over_the_steps(run: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "runs" / "other", steps=30)
    for step, mean, width in ((20, 70.0, 3.0), (40, 80.0, 2.0), (60, 85.0, 1.0)):
        mrpc = learned("f1", {"f1": [mean - width, mean + width]}, f1=mean + width, accuracy=1.0)
        write_evaluation(run, step, mrpc=mrpc, **INTRINSIC)
    write_evaluation(other, 30, mlm=INTRINSIC["mlm"])
    figure = draw_scores(exports_of(read_evaluations(find_results([run, other]))))
    panels = {(axes.get_title(loc="left"), axes.get_ylabel()): axes for axes in figure.axes if axes.get_visible()}
    assert list(panels) == [("mlm", "perplexity"), ("mlm", "accuracy"), ("nsp", "accuracy"), ("mrpc", "f1")]
    score = panels["mrpc", "f1"].containers[0]
    np.testing.assert_array_equal(score.lines[0].get_xydata(), [[20, 70], [40, 80], [60, 85]])  # not the best seed's
    bars = [segment[1, 1] - segment[0, 1] for segment in score.lines[2][0].get_segments()]
    np.testing.assert_allclose(bars, np.array([3, 2, 1]) * 2 * np.sqrt(2))  # the standard deviation on both sides
    bars = panels["mlm", "accuracy"].containers[0].lines[2][0].get_segments()
    np.testing.assert_allclose([segment[1, 1] - segment[0, 1] for segment in bars], [0.006] * 3)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["demo", "other", "the task's baseline"]
    assert set(panels["nsp", "accuracy"].lines[-1].get_ydata()) == {0.515}  # the baseline


def test_a_score_of_one_seed_has_the_interval_over_the_examples(run: Path) -> None:
    accuracy = {"value": 70.0, "half_width": 2.0, "baseline": None, "unit": "percent"}
    write_evaluation(run, 60, rte={**learned("accuracy", {"accuracy": [70.0]}), "metrics": {"accuracy": accuracy}})
    score = draw_scores(exports_of(read_evaluations(find_results([run])))).axes[0].containers[0]
    assert score.lines[2][0].get_segments()[0].tolist() == [[60, 68], [60, 72]]


@pytest.mark.parametrize("other", [{"manifest_blake2b": "easy"}, {"sequence_length": 64}])
def test_figures_on_other_data_are_not_joined_by_a_line(run: Path, tmp_path: Path, other: dict[str, Any]) -> None:
    for step, different in ((20, other), (40, {}), (60, {})):
        mlm = task({"samples": 50, "words": 400}, perplexity=100.0 - step, accuracy=0.1)
        file = write_evaluation(run, step, mlm=mlm, mrpc=learned("f1", {}, f1=80.0 + step))
        shards = {"path": "shards", "manifest_blake2b": "real", "sequence_length": 128, "samples": 50}
        write_results(file, json.loads(file.read_text()) | {"shards": shards | different})
    exports = exports_of(read_evaluations(find_results([run])))
    kept, left_out = on_same_data(exports)
    assert left_out == ["mlm of demo 20"]
    panels = {axes.get_title(loc="left"): axes for axes in draw_scores(kept).axes if axes.get_visible()}
    assert panels["mlm"].containers[0].lines[0].get_xdata().tolist() == [40, 60]
    assert panels["mrpc"].containers[0].lines[0].get_xdata().tolist() == [20, 40, 60]
    assert main([str(run), "--output", str(tmp_path / "output")]) == 0
    text = (tmp_path / "output" / "report.md").read_text()
    [told] = re.findall("Not drawn, as they were measured on other data, .* than those that are: (.*)", text)
    assert told == "mlm of demo 20."


def test_of_many_figures_on_other_data_a_few_are_named_and_the_others_counted(run: Path, tmp_path: Path) -> None:
    for step in range(1, 61):
        write_evaluation(run, step, rte=measured_on("new" if step == 60 else "old", 50.0), mrpc=measured_on("d", 50.0))
    assert main([str(run), "--output", str(tmp_path / "output")]) == 0
    [told] = re.findall("Not drawn, .*: (.*)", (tmp_path / "output" / "report.md").read_text())
    assert told == "rte of demo 1, rte of demo 2, rte of demo 3 and 56 more."


def test_an_export_of_another_program_has_no_step(run: Path, tmp_path: Path) -> None:
    content = results(tmp_path / "bert-base-uncased", 1, {"rte": learned("accuracy", {}, accuracy=66.4)})
    content["checkpoint"] |= {"lineage": {}, "path": str(tmp_path / "bert-base-uncased")}
    write_results(run / "results.json", content)
    assert main([str(run), "--output", str(tmp_path / "output")]) == 0
    text = (tmp_path / "output" / "report.md").read_text()
    assert rows_after(text, "GLUE")["RTE"]["bert-base-uncased"] == "66.4"
    assert "## Evaluation of bert-base-uncased\n" in text
    assert not (tmp_path / "output" / "scores.png").exists()


def test_the_page_holds_its_pictures(run: Path, tmp_path: Path) -> None:
    write_evaluation(run, 60, **INTRINSIC)
    assert main([str(run), "--output", str(tmp_path / "output")]) == 0
    html = (tmp_path / "output" / "report.html").read_text(encoding="utf-8")
    pictures = re.findall(r'src="data:image/png;base64,([^"]+)"', html)
    expected = [(tmp_path / "output" / name).read_bytes() for name in ("curves.png", "scores.png")]
    assert [base64.b64decode(picture) for picture in pictures] == expected
    assert not re.findall(r'(?:src|href)="(?!data:)', html)


@given(strategies.text(alphabet="a1 _*`\\[]()!<>/:&;#|~=.-+", min_size=1).map(str.strip).filter(bool))
def test_texts_show_as_they_are(shown: str) -> None:
    """In cells and, but for a closing #, in headings."""
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    [header, cell] = re.findall(r"<t[hd]>(.*)</t[hd]>", markdown.render(markdown_table([[shown], [shown]])))
    assert html.unescape(header) == html.unescape(cell) == shown
    heading = markdown.render(f"## Evaluation of {plain(shown)} step\n")
    assert html.unescape(heading) == f"<h2>Evaluation of {shown} step</h2>\n"


def test_names_and_texts_from_outside_are_no_markdown(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "*b*", steps=60)
    picture = {"sentence": "![q](http://x/y.png) [MASK]", "masks": [[{"token": "`", "probability": 0.5}]]}
    file = write_evaluation(run, 60, fill_mask=task({"sentences": [picture]}))
    write_results(file, read_results(file) | {"failed": {"rte": "no file\n\n# A heading"}})
    assert main([str(run), "--output", str(tmp_path / "output")]) == 0
    page = (tmp_path / "output" / "report.html").read_text(encoding="utf-8")
    assert "<title>*b*</title>" in page
    assert "<h1>*b*</h1>" in page
    assert "<h2>Evaluation of *b* step-000060</h2>" in page
    assert "<td>![q](http://x/y.png) [MASK]</td>" in page
    assert "<td>` 50</td>" in page
    assert page.count("<img") == 1  # the curves
    assert page.count("<h1") == 1
    assert "Failed: rte: no file\\n\\n# A heading</p>" in page


@pytest.mark.browser
def test_no_text_becomes_markup_and_nothing_is_fetched(browser: webdriver.Chrome, tmp_path: Path) -> None:
    hostile = '<script>window.hacked = 1</script><img src="https://example.org/a.png" onerror="window.hacked = 1">'
    text = f"# {hostile}\n\n{hostile}\n\n{markdown_table([['a', 'b'], [hostile, '![x](https://example.org/b.png)']])}"
    (tmp_path / "page.html").write_text(page(text, tmp_path, []), encoding="utf-8")
    browser.get_log("performance")
    browser.get((tmp_path / "page.html").as_uri())
    assert browser.find_element(By.TAG_NAME, "td").text == hostile
    assert browser.execute_script("return [window.hacked, document.scripts.length]") == [None, 0]
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    fetched = [e["params"]["response"]["url"] for e in events if e["method"] == "Network.responseReceived"]
    assert [url for url in fetched if url.startswith("http")] == []


@pytest.mark.browser
def test_paper_has_all_columns_of_a_table(browser: webdriver.Chrome, tmp_path: Path) -> None:
    """A block that scrolls would be cut at the edge."""
    (tmp_path / "page.html").write_text(page(markdown_table([["12, 1024, 16"] * 13] * 2), tmp_path, []), "utf-8")
    browser.get((tmp_path / "page.html").as_uri())
    table, found = browser.find_element(By.TAG_NAME, "table"), []
    for medium in ("screen", "print"):
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": medium})
        found.append((table.value_of_css_property("display"), table.value_of_css_property("overflow-x")))
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert found == [("block", "auto"), ("table", "visible")]


@pytest.mark.browser
def test_the_page_fits_the_window(browser: webdriver.Chrome, run: Path, tmp_path: Path) -> None:
    write_evaluation(run, 60, **INTRINSIC, rte=learned("accuracy", {}, accuracy=60.0))
    assert main([str(run), "--output", str(tmp_path / "output")]) == 0
    browser.get((tmp_path / "output" / "report.html").as_uri())
    width, window = browser.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
    assert width <= window  # wide tables scroll by themselves
    in_markdown = re.findall(r"^\|[ :|-]+\|$", (tmp_path / "output" / "report.md").read_text(encoding="utf-8"), re.M)
    assert len(browser.find_elements(By.TAG_NAME, "table")) == len(in_markdown) > 1
