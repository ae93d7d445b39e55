"""The report says what the files of a run say."""

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from eval.report import Baselines, draw, main, read_history, smooth
from eval.results import markdown, write_results
from tests.trainer.mlflow_store import write_run

LINEAGE = {"run": "/elsewhere/demo", "step": 60}
RESULTS = {
    "format_version": 1,
    "checkpoint": {"path": "/elsewhere/demo/exports/step-000060", "weights_blake2b": "ab12", "lineage": LINEAGE},
    "shards": {"path": "/data", "manifest_blake2b": "cd34", "sequence_length": 128, "samples": 2000},
    "settings": {"dtype": "float32", "batch_size": 32, "threads": 2},
    "tasks": {
        "mlm": {
            "version": 1,
            "metrics": {
                "perplexity": {"value": 1234.56, "half_width": 7.89, "baseline": 2345.67},
                "loss": {"value": 7.118, "half_width": 0.0064, "baseline": 7.7603},
                "accuracy": {"value": 0.125, "half_width": 0.003, "baseline": 0.0625},
            },
            "baselines": {"loss": "unigrams"},
            "details": {},
        },
        "nsp": {
            "version": 1,
            "metrics": {"accuracy": {"value": 0.75, "half_width": None, "baseline": 0.515}},
            "baselines": {},
            "details": {},
        },
        "fill_mask": {
            "version": 1,
            "metrics": {},
            "baselines": {},
            "details": {
                "sentences": [{"sentence": "a [MASK]", "masks": [[{"token": "|", "probability": 0.5}]]}],
            },
        },
    },
    "code": {"version": "0.1.0", "commit": "0123456789abcdef", "modified": True},
    "seconds": 1.0,
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "runs" / "demo", steps=60)


def rows_of(text: str) -> dict[str, list[str]]:
    """The rows of all tables by their first cell."""
    rows = [[cell.strip() for cell in line[2:-2].split(" | ")] for line in text.splitlines() if line[:1] == "|"]
    return {row[0]: row[1:] for row in rows}


def test_report(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_results(tmp_path / "results.json", RESULTS)
    output = tmp_path / "new" / "report"
    assert main([str(run), "--output", str(output), "--results", str(tmp_path / "results.json")]) == 0
    assert capsys.readouterr().out.split() == [str(output / "curves.png"), str(output / "report.md")]
    height, width, _ = imread(output / "curves.png").shape
    assert (width / height, width >= 1200) == (1.5, True)

    text = (output / "report.md").read_text(encoding="utf-8")
    rows = rows_of(text)
    assert rows["steps"] == ["60"]
    assert rows["samples"] == ["1,920"]
    assert rows["training MLM loss"] == [f"{9 - 59.5 / 3:.4f}"]
    assert rows["which is the mean of steps"] == ["2"]
    assert rows["tokens a second, median"] == ["1,030"]
    assert rows["hours"] == ["0.02"]
    assert rows["held out: perplexity"] == [f"{1e3 / 60:.1f}"]
    assert rows["mlm perplexity"] == ["1,234.6 ± 7.9", "2,345.7", ""]
    assert rows["mlm loss"] == ["7.1180 ± 0.0064", "7.7603", "unigrams"]
    assert rows["mlm accuracy"] == ["12.50 % ± 0.30 %", "6.25 %", ""]
    assert rows["nsp accuracy"] == ["75.00 %", "51.50 %", ""]
    assert rows["a [MASK]"] == ["\\| 50.0"]
    assert rows["demo"][2:] == ["commit c0ffee", str(run)]
    assert "## Evaluation of demo step-000060" in text
    assert "2,000 held-out samples of 128 tokens; weights ab12; shards cd34" in text
    assert "evaluated by commit 0123456789ab with changes" in text
    assert "![" in text
    assert "(curves.png)" in text


@pytest.mark.parametrize("place", ["output/results.json", "output/demo/results.json", "runs/demo/eval/results.json"])
def test_results_are_found(run: Path, tmp_path: Path, place: str) -> None:
    (tmp_path / place).parent.mkdir(parents=True)
    write_results(tmp_path / place, RESULTS)
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


def test_a_run_without_validation_first(run: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "runs" / "other", steps=30)
    (other / "validation.jsonl").unlink()
    assert main([str(other), str(run), "--output", str(tmp_path / "output")]) == 0
    assert rows_of((tmp_path / "output" / "report.md").read_text())["held out: perplexity"][-1] == f"{1e3 / 60:.1f}"


def test_curves_show_what_was_logged(run: Path) -> None:
    history = read_history(run)
    loss, accuracy, rate = draw([history], Baselines(mlm_loss=7.5, nsp_accuracy=0.6)).axes[:3]
    steps = np.arange(1, 61)
    raw, smoothed, held_out, baseline = loss.lines
    np.testing.assert_allclose(raw.get_xydata(), np.column_stack([steps, 9 - steps / 3]))
    np.testing.assert_allclose(smoothed.get_ydata(), smooth(9 - steps / 3, 2))
    np.testing.assert_allclose(held_out.get_xydata(), [[60, 9 - 20]])
    assert set(baseline.get_ydata()) == {7.5}
    assert set(accuracy.lines[-1].get_ydata()) == {0.6}
    np.testing.assert_allclose(rate.lines[0].get_ydata(), 1e-4 * steps / 3)
    labels = [text.get_text() for text in loss.get_legend().get_texts()]
    assert labels == ["training", "held out", "unigrams of the training text"]
    assert all(axes.get_title(loc="left") and axes.get_xlabel() == "step" for axes in (loss, accuracy, rate))
    assert (loss.get_ylabel(), accuracy.get_ylabel()) == ("MLM loss (nats a word)", "NSP accuracy")


def test_curves_without_baselines(run: Path) -> None:
    loss, accuracy, _ = draw([read_history(run)], Baselines(None, None)).axes[:3]
    assert (len(loss.lines), len(accuracy.lines)) == (3, 3)
    assert accuracy.get_legend() is None


def test_smoothing() -> None:
    values = np.array([8.0, 4.0, 2.0, 1.0, 1.0, 7.0])
    np.testing.assert_allclose(smooth(values, 3), [8, 14 / 3, 7 / 3, 4 / 3, 3, 4])
    np.testing.assert_array_equal(smooth(values, 0), values)
    np.testing.assert_allclose(smooth(values, 100)[[0, 1, -1]], [8, 14 / 3, 23 / 6])


def test_a_table() -> None:
    assert markdown([["", "n"], ["a|b", "1"], ["c", "1,000"]], numbers=(1,)) == (
        "|      |     n |\n| ---- | ----: |\n| a\\|b |     1 |\n| c    | 1,000 |\n"
    )


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("metrics.jsonl", None, "metrics.jsonl: no steps"),
        ("metrics.jsonl", "", "metrics.jsonl: no steps"),
        ("metrics.jsonl", "{\n", "its metrics are damaged"),
        ("results.json", None, "results.json: can't read the results"),
        ("results.json", "{}", "results.json: not the results of an evaluation"),
        ("results.json", "[1]", "results.json: not the results of an evaluation"),
        ("results.json", "x", "results.json: not the results of an evaluation"),
        ("results.json", json.dumps(RESULTS | {"format_version": 2}), "format version 2, this program reads 1"),
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
