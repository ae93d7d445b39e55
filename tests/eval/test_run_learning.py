"""The command on tasks that a model learns: what it leaves and goes on with, how processes share, what it refuses."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from mlflow.tracking import MlflowClient
from safetensors.torch import load_file, save_file

from eval import experiment, plan, workers
from eval import run as evaluation
from eval.errors import UsageError
from eval.evaluated import find_results, read_evaluations
from eval.grid import LOSSES, RESULT
from eval.kinds import Texts
from eval.locks import locked
from eval.metrics import score_labels
from eval.options import default_output, parse, without_effect
from eval.parts import read_parts
from eval.readers.examples import DatasetError
from eval.run import main
from eval.submission import tables_in
from eval.tasks import TASKS, select
from eval.tasks.datasets import READERS
from eval.workers import describe, run_side_by_side, share, worker_words
from preprocessing.tokenization import SPECIAL_TOKENS
from tests.conftest import ROOT
from tests.eval.conftest import CONFIG, STEP, random_state
from tests.eval.evaluations import results_of
from tests.eval.processes import assert_free, assert_interrupted
from tests.eval.small_data import (
    write_codah,
    write_conll,
    write_mnli,
    write_mrpc,
    write_squad,
    write_stsb,
    write_swag,
    write_table,
)
from tests.failing import REASON, fail_at, failures_in_turn
from tests.preprocessing.test_interruption import start
from tests.trainer.mlflow_store import empty_store
from tests.trainer.shard_factory import save_tokenizer
from tests.waiting import wait_for
from trainer import tracking
from trainer.hugging_face import save_export
from trainer.run_directory import RunDirectory

QUICK = ("--epochs", "1", "--learning-rates", "1e-3", "--batch-sizes", "8")


def run(
    export: Path, data: Path, output: Path, tasks: str, *options: str, quick: bool = True, track: bool = False
) -> int:
    argv = ["--checkpoint", str(export), "--data", str(data), "--output", str(output), "--tasks", tasks, *options]
    return main([*argv, *(QUICK if quick else ()), *(() if track else ("--no-tracking",))])


def points_of(output: Path, task: str) -> list[Path]:
    return sorted((output / task / "points").glob("lr*/result.json"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def test_results_of_a_task_of_pairs(
    export: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_mrpc(data)
    options = ("--learning-rates", "1e-3,2e-3", "--epochs", "2", "--batch-sizes", "16", "--seeds", "2")
    assert run(export, data, tmp_path / "out", "mrpc", *options, quick=False) == 0
    results = results_of(tmp_path / "out")
    task = results["tasks"]["mrpc"]
    assert (results["format_version"], results["failed"], results["shards"]) == (2, {}, None)
    assert results["data"] == {"path": str(data), "limit": None}
    assert results["fine_tuning"]["optimizer"] == "bert_adam"
    assert list(task["metrics"]) == ["accuracy", "f1"]
    assert {figure["unit"] for figure in task["metrics"].values()} == {"percent"}
    assert task["metrics"]["accuracy"]["baseline"] == pytest.approx(100 * 10 / 16)  # two of three are alike
    assert task["metrics"]["accuracy"]["half_width"] > 0
    details = task["details"]
    assert details["splits"] == {"train": ["MRPC", "train"], "dev": ["MRPC", "dev"]}
    assert details["examples"] == {"train": 48, "dev": 16}
    assert len(details["points"]) == 4
    best = details["best_point"]
    point = f"learning rate {best['learning_rate']:g}, 2 epochs, batches of 16, seed {best['seed']}, at most 48 tokens"
    seeds = details["seeds"]["f1"]
    over = f"f1 over seeds, 2: {statistics.fmean(seeds):.2f} ± {statistics.stdev(seeds):.2f}"
    shown = capsys.readouterr().out
    assert f"\nmrpc: the best of 4 points by f1: {point}, bert_adam, float32, on 16 dev examples; {over}\n" in shown

    # The best on dev, and all seeds of its other hyperparameters.
    figures = {(p["point"]["learning_rate"], p["point"]["seed"]): p["metrics"]["dev"]["f1"] for p in details["points"]}
    assert task["metrics"]["f1"]["value"] == max(figures.values())
    assert details["seeds"]["f1"] == [figures[best["learning_rate"], seed] for seed in (0, 1)]

    # The predictions beside it are those of the best point, and give its figures.
    lines = (tmp_path / "out" / "predictions" / "mrpc" / "dev_predictions.tsv").read_text().splitlines()[1:]
    predicted = [int(line.split("\t")[1]) for line in lines]
    labels = [example.label for example in READERS["MRPC"](data, "dev")]
    assert score_labels(["f1"], labels, predicted)["f1"] == task["metrics"]["f1"]["value"]
    confusion = (tmp_path / "out" / "predictions" / "mrpc" / "dev_confusion.tsv").read_text().splitlines()
    assert confusion[0] == "label\t0\t1"
    assert sum(int(cell) for line in confusion[1:] for cell in line.split("\t")[1:]) == 16

    [point] = [p for p in points_of(tmp_path / "out", "mrpc") if "lr0.001" in str(p) and "seed1" in str(p)]
    found = json.loads(point.read_text())
    assert [epoch["epoch"] for epoch in found["epochs"]] == [1, 2]
    assert found["epochs"][-1]["metrics"] == found["metrics"]
    losses = json.loads((point.parent / "losses.json").read_text())
    assert len(losses) == found["steps"] == 6
    assert [epoch["loss"] for epoch in found["epochs"]] == [
        pytest.approx(sum(of) / 3) for of in (losses[:3], losses[3:])
    ]
    assert "| mrpc f1 " in shown


def test_every_kind_of_task(long_export: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for write in (write_mnli, write_stsb, write_codah, write_swag, write_conll):
        write(data)
    for version in ("v1.1", "v2.0"):
        write_squad(data, version)
    tasks = "mnli,stsb,codah,swag,conll2003,conll2003_last,squad_v1,squad_v2"
    assert run(long_export, data, tmp_path / "out", tasks, "--test") == 0
    results = results_of(tmp_path / "out")
    metrics = {name: list(task["metrics"]) for name, task in results["tasks"].items()}
    tagged = ["precision", "recall", "f1"]
    assert metrics == {
        "mnli": ["accuracy", "mm_accuracy"],
        "stsb": ["pearson", "spearman"],
        "codah": ["accuracy"],
        "swag": ["accuracy"],
        "conll2003": [*tagged, *(f"test_{name}" for name in tagged)],
        "conll2003_last": tagged,
        "squad_v1": ["exact_match", "f1"],
        "squad_v2": ["exact", "f1", "HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1"],
    }
    files = {str(path.relative_to(tmp_path / "out" / "predictions")) for path in (tmp_path / "out").glob("pred*/*/*")}
    points = [path for path in (tmp_path / "out").glob("*/points/lr*/*") if path.name not in (RESULT, LOSSES)]
    assert files == {f"{path.parts[-4]}/{path.name}" for path in points}  # all that the kinds leave
    assert {
        *("mnli/dev_predictions.tsv", "mnli/dev_mm_predictions.tsv", "mnli/test_AX_predictions.tsv"),
        *("squad_v2/dev_predictions.json", "squad_v2/dev_nbest.json", "squad_v2/dev_null_odds.json"),
        *("conll2003/dev_predictions.txt", "conll2003/test_predictions.txt", "codah/dev_confusion.tsv"),
        "swag/test_predictions.tsv",
    } <= files
    assert "null_threshold" in results["tasks"]["squad_v2"]["details"]["dev"]
    [point] = points_of(tmp_path / "out", "conll2003")
    assert json.loads(point.read_text())["steps"] == 2  # of 16 sentences in 4 documents
    assert not (tmp_path / "out" / "states").exists()  # what the frozen encoder computed is of no more use
    with zipfile.ZipFile(tmp_path / "out" / "glue_submission.zip") as archive:
        assert archive.namelist() == ["STS-B.tsv", "MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv"]
        assert archive.read("AX.tsv").decode().splitlines()[0] == "index\tprediction"
        assert len(archive.read("AX.tsv").decode().splitlines()) == 5
    assert results["files"] == [*(f"predictions/{task}" for task in tasks.split(",")), "glue_submission.zip"]
    [note] = [line for line in capsys.readouterr().err.splitlines() if "GLUE will reject" in line]
    assert "CoLA: 0 predictions for 1,063 test examples; SST-2: 0 predictions" in note


def test_the_same_command_again_does_what_is_missing(
    export: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mrpc(data)
    assert run(export, data, tmp_path / "out", "mrpc", "--seeds", "2") == 0
    before, results = [p.read_bytes() for p in points_of(tmp_path / "out", "mrpc")], results_of(tmp_path / "out")
    lost = points_of(tmp_path / "out", "mrpc")[1].parent
    lost.rename(lost.with_name(f".{lost.name}.incomplete"))  # as if the process had been killed there
    learned = learned_points(monkeypatch)
    assert run(export, data, tmp_path / "out", "mrpc", "--seeds", "2") == 0
    assert [point["seed"] for point in learned] == [1]
    assert len(points_of(tmp_path / "out", "mrpc")) == 2
    assert points_of(tmp_path / "out", "mrpc")[0].read_bytes() == before[0]
    again = results_of(tmp_path / "out")
    assert again["tasks"]["mrpc"]["metrics"] == results["tasks"]["mrpc"]["metrics"]  # the same bits, learned anew
    assert run(export, data, tmp_path / "out", "mrpc", "--seeds", "3") == 0  # more of them
    assert [point["seed"] for point in learned] == [1, 2]


def model_of(output: Path, task: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The weights of the model that was kept, and the point of the grid that it says it is."""
    folder = output / "models" / task
    told = json.loads((folder / "lineage.json").read_text())["fine_tuned"]
    assert not list(folder.parent.glob(".*.incomplete"))
    assert told["metrics"]["dev"]["f1"] == results_of(output)["tasks"][task]["metrics"]["f1"]["value"]
    return load_file(folder / "model.safetensors"), told["origin"]["point"]


def assert_equal(some: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> None:
    assert some.keys() == others.keys()
    for name, tensor in some.items():
        torch.testing.assert_close(tensor, others[name], rtol=0, atol=0)


def change_weights(export: Path) -> None:
    file = export / "model.safetensors"
    state = load_file(file)
    save_file({**state, "cls.predictions.bias": state["cls.predictions.bias"] + 1}, file, metadata={"format": "pt"})


def learned_points(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The points that are learned from now on."""
    learned: list[dict[str, Any]] = []
    learn = experiment.learn
    monkeypatch.setattr(experiment, "learn", lambda *args: learned.append(dataclasses.asdict(args[3])) or learn(*args))
    return learned


THREE_POINTS = ("--epochs", "1", "--batch-sizes", "8", "--learning-rates", "2e-3,1e-5,1e-3")


def test_the_best_model_is_kept_whoever_learned_it_and_whenever(
    export: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mrpc(data)
    keep, learned = (*THREE_POINTS, "--save-models"), learned_points(monkeypatch)
    assert run(export, data, tmp_path / "out", "mrpc", *keep, quick=False) == 0
    assert len(learned) == 3, "a worse point that is learned later leaves the model of the best one"
    weights, point = model_of(tmp_path / "out", "mrpc")
    assert point == results_of(tmp_path / "out")["tasks"]["mrpc"]["details"]["best_point"]
    assert {file.name for file in (tmp_path / "out" / "models" / "mrpc").iterdir()} >= {"config.json", "vocab.txt"}

    for index in range(3):  # processes that share the grid
        sharing = ("--grid-index", str(index), "--grid-count", "3")
        assert run(export, data, tmp_path / "shared", "mrpc", *keep, *sharing, quick=False) == 0
    assert_equal(model_of(tmp_path / "shared", "mrpc")[0], weights)
    assert len(learned) == 3 + 3

    # Points that were finished without: the best one is learned again, and no other.
    assert run(export, data, tmp_path / "later", "mrpc", *THREE_POINTS, quick=False) == 0
    assert not (tmp_path / "later" / "models").exists()
    learned.clear()
    assert run(export, data, tmp_path / "later", "mrpc", *keep, quick=False) == 0
    assert learned == [point]
    assert_equal(model_of(tmp_path / "later", "mrpc")[0], weights)

    assert run(export, data, tmp_path / "later", "mrpc", *keep, quick=False) == 0  # nothing is missing
    assert len(learned) == 1


def test_a_model_of_which_nobody_can_tell_whose_it_is_just_now_is_not_learned_again(
    export: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """That may take hours, and it is the best point's own."""
    write_mrpc(data)
    out, keep = tmp_path / "out", (*THREE_POINTS, "--save-models")
    assert run(export, data, out, "mrpc", *keep, quick=False) == 0
    (weights, _), figures = model_of(out, "mrpc"), results_of(out)["tasks"]["mrpc"]
    lineage, learned = out / "models" / "mrpc" / "lineage.json", learned_points(monkeypatch)
    for options in (keep, THREE_POINTS):
        with monkeypatch.context() as patch:
            fail_at(patch, lineage)
            capsys.readouterr()
            assert run(export, data, out, "mrpc", *options, quick=False) == 1
        told = f"failed: mrpc: {lineage}: can't be read now ({REASON}); give the same command again\n"
        assert capsys.readouterr().err == told
        assert results_of(out)["tasks"]["mrpc"] == figures
    assert run(export, data, out, "mrpc", *keep, quick=False) == 0
    assert learned == []
    assert_equal(model_of(out, "mrpc")[0], weights)


def test_damaged_predictions_of_another_task_cost_no_results(
    export: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """GLUE's submission is of all tasks that were ever predicted into a folder."""
    write_mrpc(data)
    write_stsb(data)
    out = tmp_path / "out"
    assert run(export, data, out, "mrpc", "--test") == 0
    table = out / "predictions" / "mrpc" / "test_predictions.tsv"
    for damage in ("0", "0\tother", ""):
        lines = table.read_text().splitlines()
        table.write_text("\n".join([lines[0], damage, *lines[2:]]) + "\n")
        assert run(export, data, out, "stsb", "--test") == 0
        assert f"glue_submission.zip goes without MRPC: {table} is damaged" in capsys.readouterr().err
        with zipfile.ZipFile(out / "glue_submission.zip") as archive:
            assert archive.namelist() == ["STS-B.tsv"]
        assert "stsb" in results_of(out)["tasks"]
    table = out / "predictions" / "stsb" / "test_predictions.tsv"
    table.write_text("id\tprediction\n0\tnan\n")
    assert run(export, data, out, "mrpc", "--test") == 0
    assert f"glue_submission.zip goes without STS-B: {table} is damaged (nan is not" in capsys.readouterr().err


def test_test_sets_that_are_asked_for_later_cost_the_best_point_alone(
    export: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write_mrpc(data)
    predicted, learned = Path("predictions/mrpc/test_predictions.tsv"), learned_points(monkeypatch)
    assert run(export, data, tmp_path / "whole", "mrpc", *THREE_POINTS, "--test", quick=False) == 0
    out = tmp_path / "out"
    assert run(export, data, out, "mrpc", *THREE_POINTS, quick=False) == 0
    task = results_of(out)["tasks"]["mrpc"]

    assert len(learned) == 3 + 3
    learned.clear()
    both = (*THREE_POINTS, "--test", "--save-models")
    assert run(export, data, out, "mrpc", *both, quick=False) == 0
    best = task["details"]["best_point"]
    assert learned == [best]  # once for both
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    assert (out / predicted).read_bytes() == (tmp_path / "whole" / predicted).read_bytes()
    assert results_of(out)["files"] == ["predictions/mrpc", "glue_submission.zip"]
    found, at_once = (results_of(output)["tasks"]["mrpc"] for output in (out, tmp_path / "whole"))
    assert found["metrics"] == at_once["metrics"]
    assert found["details"] | {"points": []} == at_once["details"] | {"points": []}  # which say how long they took
    assert model_of(out, "mrpc")[1] == best
    assert run(export, data, out, "mrpc", *both, quick=False) == 0  # nothing is missing
    assert len(learned) == 1

    kept = [(out / name).read_bytes() for name in (predicted, "glue_submission.zip")]
    assert run(export, data, out, "mrpc", *THREE_POINTS, quick=False) == 0  # without, as at first
    assert results_of(out)["tasks"]["mrpc"] == task
    assert [(out / name).read_bytes() for name in (predicted, "glue_submission.zip")] == kept

    write_mrpc(tmp_path / "other", test=9)  # another test set, the same otherwise
    assert run(export, tmp_path / "other", out, "mrpc", *THREE_POINTS, "--test", quick=False) == 0
    assert learned == [best, best]
    assert len((out / predicted).read_text().splitlines()) == 1 + 9
    assert results_of(out)["tasks"]["mrpc"]["metrics"] == task["metrics"]


def test_a_submission_that_loses_a_task_is_told(
    export: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where another point is the best by now, of which nobody has asked for test sets."""
    write_mrpc(write_stsb(data))
    out, gone = tmp_path / "out", "note: glue_submission.zip has no MRPC.tsv any more; --test brings it back\n"
    assert run(export, data, out, "mrpc,stsb", "--test") == 0
    monkeypatch.setattr(experiment, "best_of", lambda results, _: results[-1])
    assert run(export, data, out, "mrpc", "--seeds", "2") == 0
    assert gone in capsys.readouterr().err
    assert not list((out / "predictions" / "mrpc").glob("test_*"))
    with zipfile.ZipFile(out / "glue_submission.zip") as archive:
        assert archive.namelist() == ["STS-B.tsv"]
    assert run(export, data, out, "mrpc", "--seeds", "2", "--test") == 0
    assert gone not in capsys.readouterr().err
    with zipfile.ZipFile(out / "glue_submission.zip") as archive:
        assert archive.namelist() == ["MRPC.tsv", "STS-B.tsv"]


def test_test_sets_with_labels_that_are_asked_for_later_have_the_figures_of_the_best_point(
    long_export: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_conll(data)
    assert run(long_export, data, tmp_path / "out", "conll2003", "--seeds", "2") == 0
    assert run(long_export, data, tmp_path / "out", "conll2003", "--seeds", "2", "--test") == 0
    task = results_of(tmp_path / "out")["tasks"]["conll2003"]
    assert {"f1", "test_f1"} <= set(task["metrics"])
    assert len(task["details"]["seeds"]["f1"]) == 2
    assert task["details"]["seeds"]["test_f1"] == [task["metrics"]["test_f1"]["value"]]
    capsys.readouterr()
    for told in (True, False):  # once: then they are not there to be lost
        assert run(long_export, data, tmp_path / "out", "conll2003", "--seeds", "2") == 0
        lost = "results.json has no test_precision, test_recall, test_f1 of conll2003 any more; --test brings them back"
        assert (f"note: {lost}\n" in capsys.readouterr().err) == told


def test_what_is_measured_on_the_same_dev_set_is_on_the_same_data_whether_or_not_there_is_a_test_set(
    export: Path, data: Path, tmp_path: Path
) -> None:
    write_mrpc(data)
    for output, options in (("without", ()), ("with", ("--test",))):
        assert run(export, data, tmp_path / output, "mrpc", *options) == 0
    first, second = read_evaluations(tmp_path / output / "results.json" for output in ("without", "with"))
    assert first.data("mrpc") == second.data("mrpc") != ""


def test_test_sets_that_can_not_be_predicted_cost_no_figures(
    export: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_mrpc(data)
    out = tmp_path / "out"
    assert run(export, data, out, "mrpc") == 0
    metrics = results_of(out)["tasks"]["mrpc"]["metrics"]
    with monkeypatch.context() as patched:
        patched.setattr(experiment, "learn", mock.Mock(side_effect=torch.OutOfMemoryError()))
        assert run(export, data, out, "mrpc", "--test") == 1
    told = "without its test predictions: out of memory; lower --max-tokens"
    assert f"failed: mrpc: {told}\n" in capsys.readouterr().err
    assert results_of(out)["failed"] == {"mrpc": told}
    assert results_of(out)["tasks"]["mrpc"]["metrics"] == metrics
    capsys.readouterr()
    assert run(export, data, out, "mrpc", "--test") == 0
    assert not (out / "models").exists()
    assert "models/" not in capsys.readouterr().err


def test_a_best_point_that_is_not_the_same_when_it_is_learned_again_is_told(
    export: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As another device may compute other last digits; the figures and predictions of dev stay those of the point."""
    write_mrpc(data)
    out, told = tmp_path / "out", "the best point was learned again for its test predictions, and its figures are not"
    assert run(export, data, out, "mrpc") == 0
    task = results_of(out)["tasks"]["mrpc"]
    of_dev = {file: file.read_bytes() for file in (out / "predictions" / "mrpc").iterdir()}
    with monkeypatch.context() as patched:
        patched.setattr(
            experiment, "learn", mock.Mock(side_effect=experiment.DivergedError("the loss of step 3 is nan"))
        )
        assert run(export, data, out, "mrpc", "--test", "--save-models") == 1
    assert "the best point, learned again, diverged (the loss of step 3 is nan)" in capsys.readouterr().err
    assert not (out / "models" / "mrpc").exists()

    def learn_otherwise(model: Any, *args: Any) -> None:
        model.head.output.bias.data = torch.tensor([1e3, 0.0])  # always the rarer class
        args[-2](1, [0.0])

    with monkeypatch.context() as patched:
        patched.setattr(experiment, "learn", learn_otherwise)
        assert run(export, data, out, "mrpc", "--test") == 0
    assert sum(told in message for message in caplog.messages) == 1
    again = results_of(out)["tasks"]["mrpc"]
    assert again["metrics"] == task["metrics"]
    assert all(file.read_bytes() == content for file, content in of_dev.items())


def test_a_point_that_can_not_be_read_where_a_model_is_compared_with_it_costs_no_figures(
    export: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The model is kept once all points are there."""
    write_mrpc(data)
    out = tmp_path / "out"
    first = out / "mrpc" / "points" / "lr0.002-epochs1-batch8-seed0" / "result.json"
    with monkeypatch.context() as patch:
        fail_at(patch, first, 1)
        assert run(export, data, out, "mrpc", *THREE_POINTS, "--save-models", quick=False) == 0
    why = f"{first}: can't be read now ({REASON}); give the same command again"
    assert f"mrpc: the model can't be written ({why}); it will be tried again" in caplog.messages
    assert len(points_of(out, "mrpc")) == 3
    assert not list((out / "mrpc" / "points").glob(".*.failed"))
    model_of(out, "mrpc")


def test_models_that_can_not_be_written_cost_no_figures(
    export: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_mrpc(data)
    out = tmp_path / "out"

    def full(path: Path, *_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with monkeypatch.context() as patched:
        patched.setattr("trainer.hugging_face.write_tensors", full)
        assert run(export, data, out, "mrpc", *THREE_POINTS, "--save-models", quick=False) == 1
    model = tmp_path / "out" / "models" / ".mrpc.incomplete" / "model.safetensors"
    told = f"without its model: {model}: No space left on device; mend that, and run the same command again"
    assert f"failed: mrpc: {told}\n" in capsys.readouterr().err
    assert len(points_of(out, "mrpc")) == 3
    assert not list((out / "mrpc" / "points").glob(".*.failed"))
    assert not (out / "models" / "mrpc").exists()
    figures = results_of(out)["tasks"]["mrpc"]
    assert run(export, data, out, "mrpc", *THREE_POINTS, "--save-models", quick=False) == 0
    model_of(out, "mrpc")
    assert results_of(out)["tasks"]["mrpc"] == figures
    assert results_of(out)["failed"] == {}


def test_a_task_that_transformers_has_no_class_for_is_refused_before_anything(
    long_export: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_conll(data)
    assert run(long_export, data, tmp_path / "out", "conll2003,conll2003_last", "--save-models") == 2
    assert "--save-models: conll2003_last: transformers has no class" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_processes_share_a_grid_and_the_last_one_gathers(
    export: Path, data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    write_mrpc(data)
    write_stsb(data)
    for index in range(3):
        assert not (tmp_path / "out" / "results.json").exists()
        sharing = ("--grid-index", str(index), "--grid-count", "3")
        assert run(export, data, tmp_path / "out", "mrpc,stsb", "--seeds", "2", *sharing) == 0
    assert [len(points_of(tmp_path / "out", task)) for task in ("mrpc", "stsb")] == [2, 2]
    assert re.findall(r"(\d) points of the grid are not finished", caplog.text) == ["2", "1"]
    shared = results_of(tmp_path / "out")
    assert run(export, data, tmp_path / "alone", "mrpc,stsb", "--seeds", "2") == 0
    for task in ("mrpc", "stsb"):
        assert shared["tasks"][task]["metrics"] == results_of(tmp_path / "alone")["tasks"][task]["metrics"]
    gathered = (tmp_path / "out" / "results.json").read_bytes()
    assert run(export, data, tmp_path / "out", "mrpc,stsb", "--seeds", "2", *sharing) == 0  # a job that came again
    assert (tmp_path / "out" / "results.json").read_bytes() == gathered
    for index in range(3):
        sharing = ("--grid-index", str(index), "--grid-count", "3")
        assert run(export, data, tmp_path / "out", "mrpc,stsb", "--seeds", "3", *sharing) == 0
    assert len(results_of(tmp_path / "out")["tasks"]["mrpc"]["details"]["points"]) == 3
    assert run(export, data, tmp_path / "only", "mrpc", "--points-only") == 0
    assert points_of(tmp_path / "only", "mrpc")
    assert not (tmp_path / "only" / "results.json").exists()


def test_what_a_process_that_is_gone_has_left_the_command_without_a_share_does(
    export: Path, data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    write_mrpc(data)
    sharing = ("--grid-index", "0", "--grid-count", "2")
    for _ in range(2):
        assert run(export, data, tmp_path / "out", "mrpc", "--seeds", "2", *sharing) == 0
        assert not (tmp_path / "out" / "results.json").exists()
    assert caplog.text.count("the command without --grid-index and --grid-count does the rest") == 2
    assert run(export, data, tmp_path / "out", "mrpc", "--seeds", "2") == 0
    assert (tmp_path / "out" / "results.json").exists()


class FiveInTwo:
    points = ("a", "b", "c", "d", "e")


def test_shares_are_all_of_it_and_no_point_twice() -> None:
    experiments = [FiveInTwo(), FiveInTwo()]
    shares = [share(experiments, index, 3) for index in range(3)]
    assert [len(of_one) for of_one in shares] == [4, 3, 3]
    assert share(experiments, 1, 10**30) == [(experiments[0], "b")]  # of more processes than a machine can count
    assert len({(id(e), point) for of_one in shares for e, point in of_one}) == 10


@pytest.mark.parametrize("count", [1, 3])
def test_workers_divide_what_is_their_process_s(export: Path, count: int) -> None:
    experiments = [FiveInTwo(), FiveInTwo()]
    words = ["--checkpoint", str(export), "--tasks", "mrpc", "--workers", "2", "--grid-count", "3"]
    for index in range(count):
        of_workers = []
        for worker in range(2):
            parsed = parse(worker_words(words, worker, 2, index, count))
            assert (parsed.workers, parsed.points_only, parsed.effects_told) == (1, True, True)
            of_workers += share(experiments, parsed.grid_index, parsed.grid_count)
        whole = share(experiments, index, count)
        assert len(of_workers) == len(whole)
        assert all(work in of_workers for work in whole)


@pytest.mark.parametrize(
    "change",
    [
        ("--samples", "20"),
        ("--sequence-length", "32"),
        ("--sentences", "own.txt"),
        ("--limit", "48"),
        ("--data", "copy"),
    ],
)
def test_results_of_something_else_are_gathered_anew(
    export: Path, shards: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str]
) -> None:
    """Though a process of a shared grid leaves results alone that are there already."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.txt").write_text("word1 [MASK]\n")
    shutil.copytree(write_mrpc(data), tmp_path / "copy")
    tasks = "mlm,fill_mask,mrpc"
    sharing = ("--grid-index", "0", "--grid-count", "2", "--seeds", "1", "--shards", str(shards))
    assert run(export, data, tmp_path / "out", tasks, *sharing) == 0
    before = (tmp_path / "out" / "results.json").read_bytes()
    assert run(export, data, tmp_path / "out", tasks, *sharing) == 0
    assert (tmp_path / "out" / "results.json").read_bytes() == before
    changed = tmp_path / "copy" if change == ("--data", "copy") else data
    assert run(export, changed, tmp_path / "out", tasks, *sharing, *(() if changed != data else change)) == 0
    again = results_of(tmp_path / "out")
    found = {
        "--samples": str(again["shards"]["samples"]),
        "--sequence-length": str(again["shards"]["sequence_length"]),
        "--sentences": "own.txt" if len(again["tasks"]["fill_mask"]["details"]["sentences"]) == 1 else "",
        "--limit": str(again["data"]["limit"]),
        "--data": Path(again["data"]["path"]).name,
    }
    assert found[change[0]] == change[1]


def test_a_model_that_is_asked_for_later_is_learned_where_processes_share_a_grid_too(
    export: Path, data: Path, tmp_path: Path
) -> None:
    write_mrpc(data)
    sharing = ("--grid-index", "0", "--grid-count", "2")
    assert run(export, data, tmp_path / "out", "mrpc", *sharing) == 0
    assert run(export, data, tmp_path / "out", "mrpc", *sharing, "--save-models") == 0
    model_of(tmp_path / "out", "mrpc")


def test_figures_of_a_task_that_has_changed_since_are_gathered_anew(export: Path, data: Path, tmp_path: Path) -> None:
    write_mrpc(data)
    words = ("fill_mask,mrpc", "--grid-index", "0", "--grid-count", "2")
    assert run(export, data, tmp_path / "out", *words) == 0
    results = results_of(tmp_path / "out")
    results["tasks"]["fill_mask"]["version"] = 0
    (tmp_path / "out" / "results.json").write_text(json.dumps(results))
    assert run(export, data, tmp_path / "out", *words) == 0
    assert results_of(tmp_path / "out")["tasks"]["fill_mask"]["version"] == 1


def test_a_task_that_failed_is_gathered_anew(
    export: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mrpc(data)
    sharing = ("--grid-index", "0", "--grid-count", "2")
    with monkeypatch.context() as broken:
        broken.setattr("eval.probe.fill_masks", lambda *_: 1 / 0)
        assert run(export, data, tmp_path / "out", "fill_mask,mrpc", *sharing) == 1
    assert list(results_of(tmp_path / "out")["failed"]) == ["fill_mask"]
    assert run(export, data, tmp_path / "out", "fill_mask,mrpc", *sharing) == 0
    assert list(results_of(tmp_path / "out")["tasks"]) == ["fill_mask", "mrpc"]


def test_what_another_process_gathered_meanwhile_is_not_gathered_twice(
    export: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command twice at once: the second one learns while the first one gathers."""
    write_mrpc(data)
    prepare, collect = evaluation.prepare, mock.Mock(wraps=evaluation.collect)
    others: list[int] = []

    def let_another_go_first(arguments: Any) -> Any:
        plan = prepare(arguments)
        if not others:
            others.append(-1)
            others[0] = run(export, data, tmp_path / "out", "fill_mask,mrpc")
        return plan

    monkeypatch.setattr(evaluation, "prepare", let_another_go_first)
    monkeypatch.setattr(evaluation, "collect", collect)
    assert run(export, data, tmp_path / "out", "fill_mask,mrpc") == 0
    assert others == [0]
    assert collect.call_count == 1
    assert run(export, data, tmp_path / "out", "fill_mask,mrpc") == 0  # once more, later, is once more
    assert collect.call_count == 2


def test_a_point_that_another_process_works_on_is_left_to_it(export: Path, data: Path, tmp_path: Path) -> None:
    write_mrpc(data)
    options = ("--seeds", "2", "--points-only", "--grid-count", "2", "--grid-index", "0")
    lock = tmp_path / "out" / "mrpc" / "points" / ".lr0.001-epochs1-batch8-seed0.lock"
    lock.parent.mkdir(parents=True)
    with locked(lock):
        assert run(export, data, tmp_path / "out", "mrpc", *options) == 0
        assert points_of(tmp_path / "out", "mrpc") == []
    assert run(export, data, tmp_path / "out", "mrpc", *options) == 0
    assert len(points_of(tmp_path / "out", "mrpc")) == 1


@pytest.mark.parametrize("finished", [True, False])
def test_a_point_that_another_process_works_on_is_waited_for_and_learned_if_that_one_fails(
    export: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: bool
) -> None:
    write_mrpc(data)
    learned, lock, waited_for = learned_points(monkeypatch), tmp_path / "out" / LOCK, list[Path]()
    lock.parent.mkdir(parents=True)
    with contextlib.ExitStack() as other:

        def end_and_wait(path: Path) -> contextlib.AbstractContextManager[None]:
            waited_for.append(path)
            monkeypatch.setattr(workers, "locked", locked)
            other.close()
            if finished:
                assert run(export, data, tmp_path / "out", "mrpc", "--points-only") == 0
            return locked(path)

        other.enter_context(locked(lock))
        monkeypatch.setattr(workers, "locked", end_and_wait)
        assert run(export, data, tmp_path / "out", "mrpc") == 0
    assert waited_for == [lock]
    assert len(learned) == 1
    assert list(results_of(tmp_path / "out")["tasks"]) == ["mrpc"]


def test_workers_are_given_the_export_that_a_link_led_to_at_the_start(
    export: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(export, export.with_name("step-000009"))
    link = export.with_name("latest")
    link.symlink_to(export.name)
    given: list[Path] = []

    def move_and_parse(words: Sequence[str], workers: int, index: int, count: int, _device: torch.device) -> bool:
        link.unlink()
        link.symlink_to("step-000009")
        given.append(parse(worker_words(words, 0, workers, index, count)).checkpoint)
        return True

    monkeypatch.setattr(evaluation, "run_side_by_side", move_and_parse)
    run(link, write_mrpc(data), tmp_path / "out", "mrpc", "--workers", "2", "--points-only")
    assert given == [export]


def workers_here(words: Sequence[str], workers: int, index: int, count: int, _device: torch.device) -> bool:
    """One after the other in this process, which has imported torch already."""
    codes = [main(worker_words(words, worker, workers, index, count)) for worker in range(workers)]
    return not any(codes)


@pytest.mark.parametrize("sharing", [("--points-only",), ("--grid-index", "0", "--grid-count", "2")])
def test_what_workers_fail_at_is_told_by_their_process_too(
    export: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    sharing: tuple[str, ...],
) -> None:
    write_mrpc(data)
    words = ("--seeds", "4", "--workers", "2", *sharing)
    with monkeypatch.context() as patched:
        patched.setattr(evaluation, "run_side_by_side", workers_here)
        patched.setattr(experiment, "learn", mock.Mock(side_effect=torch.OutOfMemoryError()))
        assert run(export, data, tmp_path / "out", "mrpc", *words) == 1
    told = "failed: mrpc: out of memory; lower --max-tokens"
    assert capsys.readouterr().err.splitlines()[-1] == told
    monkeypatch.setattr(evaluation, "run_side_by_side", workers_here)
    assert run(export, data, tmp_path / "out", "mrpc", *words) == 0
    assert not list(tmp_path.rglob(".*.failed"))  # no word of a failure stays


def test_a_worker_that_is_killed_is_a_failure_where_a_point_is_missing(
    export: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_mrpc(data)
    monkeypatch.setattr(evaluation, "run_side_by_side", lambda *_: False)
    words = ("--workers", "2", "--points-only")
    assert run(export, data, tmp_path / "out", "mrpc", *words) == 1
    assert "failed: mrpc: a process that worked on it ended; run the command again\n" in capsys.readouterr().err
    assert run(export, data, tmp_path / "out", "mrpc") == 0
    assert run(export, data, tmp_path / "out", "mrpc", *words) == 0  # nothing is missing


@pytest.fixture
def replace_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let a command of the shell stand for each worker; its number is $7."""

    def replace(command: str) -> None:
        program = tmp_path / "worker"
        program.write_text(f"#!/bin/sh\n{command}\n")
        program.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(program))

    return replace


@pytest.mark.parametrize(("command", "well"), [("exit 0", True), ("exit $7", False)], ids=["all", "the first alone"])
def test_whether_workers_end_well_is_known(command: str, well: bool, replace_workers: Callable[[str], None]) -> None:
    replace_workers(command)
    assert run_side_by_side([], 2, 0, 1, torch.device("cpu")) is well


@pytest.mark.parametrize(
    ("device", "visible", "places"),
    [("cuda", None, ["0", "1", "0"]), ("cuda", "4,GPU-7", ["4", "GPU-7", "4"]), ("cpu", None, ["", "", ""])],
)
def test_each_worker_has_a_gpu_of_its_own_or_its_part_of_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replace_workers: Callable[[str], None], device: str,
    visible: str | None, places: list[str],
) -> None:  # fmt: skip
    """Of the cores too where there are GPUs that something else has, such as a training."""
    for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    replace_workers(f'echo "$CUDA_VISIBLE_DEVICES,$OMP_NUM_THREADS" > {tmp_path}/$7')
    assert run_side_by_side([], 3, 0, 1, torch.device(device))
    threads = "2" if device == "cpu" else ""
    assert [(tmp_path / str(worker)).read_text() for worker in range(3)] == [f"{place},{threads}\n" for place in places]


@pytest.mark.parametrize(
    ("error", "line"), [(ValueError("one line\nand more"), "one line"), (AssertionError(), "AssertionError")]
)
def test_an_error_in_a_line(error: Exception, line: str) -> None:
    assert describe(error) == line


@pytest.mark.slow
def test_workers_side_by_side(export: Path, data: Path, tmp_path: Path) -> None:
    write_mrpc(data)
    argv = ["--checkpoint", export, "--data", data, "--output", tmp_path / "out", "--tasks", "mrpc", "--seeds", "4"]
    command = [sys.executable, "-m", "eval.run", *map(str, argv), "--workers", "2", "--no-tracking", *QUICK]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "2"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(points_of(tmp_path / "out", "mrpc")) == 4
    assert len(results_of(tmp_path / "out")["tasks"]["mrpc"]["details"]["seeds"]["f1"]) == 4


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_workers_end_with_their_process(export: Path, data: Path, tmp_path: Path, number: signal.Signals) -> None:
    write_mrpc(data)
    argv = ["--checkpoint", export, "--data", data, "--output", tmp_path / "out", "--tasks", "mrpc", "--seeds", "2"]
    options = ("--workers", "2", "--no-tracking", "--epochs", "100000", "--learning-rates", "1e-3")
    process = start(sys.executable, "-m", "eval.run", *argv, *options)
    points = tmp_path / "out" / "mrpc" / "points"
    wait_for(lambda: len(list(points.glob(".lr*.lock"))) == 2)
    assert_interrupted(process, number, "eval.run: interrupted; the same command goes on")
    assert_free(points.glob(".lr*.lock"))


def failing_at_two_classes(learn: Callable[..., None]) -> Callable[..., None]:
    def fail_or_learn(model: Any, *args: Any) -> None:
        if model.head.output.out_features == 2:
            raise torch.OutOfMemoryError("of 80 GiB\nnothing is left")
        learn(model, *args)

    return fail_or_learn


def test_one_failed_task_does_not_lose_the_others(
    export: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_mrpc(data)
    write_stsb(data)
    learn = experiment.learn
    monkeypatch.setattr(experiment, "learn", failing_at_two_classes(learn))
    assert run(export, data, tmp_path / "out", "mrpc,stsb") == 1
    results = results_of(tmp_path / "out")
    assert results["failed"] == {"mrpc": "out of memory; lower --max-tokens"}
    assert list(results["tasks"]) == ["stsb"]
    assert "failed: mrpc: out of memory; lower --max-tokens\n" in capsys.readouterr().err
    monkeypatch.setattr(experiment, "learn", learn)
    assert run(export, data, tmp_path / "out", "mrpc,stsb") == 0  # mended, the rest is done
    assert list(results_of(tmp_path / "out")["tasks"]) == ["mrpc", "stsb"]


def test_predictions_that_can_not_be_written_lose_no_results(
    export: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_mrpc(write_stsb(data))
    assert run(export, data, tmp_path / "out", "mrpc,stsb", "--test") == 0
    publish = experiment.Experiment.publish

    def deny(published: experiment.Experiment) -> None:
        if published.task.name == "mrpc":
            raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "out" / "predictions" / "mrpc"))
        publish(published)

    monkeypatch.setattr(experiment.Experiment, "publish", deny)
    assert run(export, data, tmp_path / "out", "mrpc,stsb", "--test") == 1
    results = results_of(tmp_path / "out")
    assert list(results["tasks"]) == ["mrpc", "stsb"]
    assert results["files"] == ["predictions/stsb", "glue_submission.zip"]
    assert tables_in(tmp_path / "out" / "glue_submission.zip") == ["STS-B.tsv"]  # and none that may be another point's
    refused = f"{tmp_path}/out/predictions/mrpc: Permission denied"
    told = f"without its predictions: {refused}; mend that, and run the same command again"
    assert results["failed"] == {"mrpc": told}
    assert f"failed: mrpc: {told}\n" in capsys.readouterr().err


def test_what_others_put_beside_predictions_stays_and_is_in_nobody_s_way(
    export: Path, data: Path, tmp_path: Path
) -> None:
    write_mrpc(data)
    out, seeds = tmp_path / "out", ("--seeds", "2")
    assert run(export, data, out, "mrpc", *seeds) == 0
    [first, second], predicted = points_of(out, "mrpc"), out / "predictions" / "mrpc"
    theirs = [folder / "test_notes" / "page.txt" for folder in (first.parent, second.parent, predicted)]
    theirs += [predicted / "test_look.txt", predicted / "train_predictions.tsv"]
    for file in theirs:
        file.parent.mkdir(exist_ok=True)
        file.write_text("theirs")
    (predicted / "test_confusion.tsv").write_text("ours, of another point")
    assert run(export, data, out, "mrpc", *seeds) == 0
    assert {path.name for path in predicted.iterdir()} == {
        *("dev_predictions.tsv", "dev_confusion.tsv"),
        *("test_notes", "test_look.txt", "train_predictions.tsv"),
    }
    assert run(export, data, out, "mrpc", *seeds, "--test") == 0
    assert (predicted / "test_predictions.tsv").is_file()
    assert [file.read_text() for file in theirs] == ["theirs"] * len(theirs)


def test_a_task_that_fails_in_one_of_several_processes_does_not_lose_the_others(
    export: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mrpc(data)
    write_stsb(data)
    learn = experiment.learn
    sharing = [("--grid-index", str(index), "--grid-count", "2") for index in range(2)]
    monkeypatch.setattr(experiment, "learn", failing_at_two_classes(learn))
    assert run(export, data, tmp_path / "out", "mrpc,stsb", *sharing[0]) == 1  # mrpc is its
    assert run(export, data, tmp_path / "out", "mrpc,stsb", *sharing[1]) == 1
    results = results_of(tmp_path / "out")
    assert (list(results["tasks"]), list(results["failed"])) == (["stsb"], ["mrpc"])
    assert results["failed"]["mrpc"] == "out of memory; lower --max-tokens"
    monkeypatch.setattr(experiment, "learn", learn)
    assert run(export, data, tmp_path / "out", "mrpc,stsb", *sharing[0]) == 0  # the array again
    assert list(results_of(tmp_path / "out")["tasks"]) == ["mrpc", "stsb"]


def test_a_process_that_gathers_nothing_says_what_failed_and_shows_no_traceback_of_the_user_s_mistake(
    export: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    write_mrpc(data)
    learn = mock.Mock(side_effect=UsageError("a prediction is not a finite number"))
    monkeypatch.setattr(experiment, "learn", learn)
    assert run(export, data, tmp_path / "out", "mrpc", "--points-only", "--seeds", "2") == 1
    assert learn.call_count == 1  # the other point would fail as well
    assert capsys.readouterr().err == "failed: mrpc: a prediction is not a finite number\n"
    assert not any(record.exc_info for record in caplog.records)


def test_what_another_command_leaves_in_the_output_meanwhile_costs_its_task_alone(
    export: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mrpc(data)
    write_stsb(data)
    learn, output = experiment.learn, tmp_path / "out"

    def meanwhile(*arguments: Any) -> None:
        monkeypatch.setattr(experiment, "learn", learn)
        assert run(export, data, output, "stsb", "--limit", "20") == 0
        learn(*arguments)

    monkeypatch.setattr(experiment, "learn", meanwhile)
    assert run(export, data, output, "mrpc,stsb") == 1
    results = results_of(output)
    assert (list(results["tasks"]), list(results["failed"])) == (["mrpc"], ["stsb"])
    assert "choose another --output" in results["failed"]["stsb"]


def test_what_a_frozen_encoder_computed_stays_while_another_command_with_the_output_uses_it(
    long_export: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mrpc(write_conll(data))
    learn, output, seen = experiment.learn, tmp_path / "out", []

    def meanwhile(*arguments: Any) -> None:
        monkeypatch.setattr(experiment, "learn", learn)
        for task in ("mrpc", "conll2003_embeddings"):
            assert run(long_export, data, output, task) == 0
            seen.append(sorted(file.suffix for file in (output / "states").iterdir()))
        learn(*arguments)

    monkeypatch.setattr(experiment, "learn", meanwhile)
    assert run(long_export, data, output, "conll2003_last") == 0
    assert seen == [[".lock", ".lock", ".npy", ".npy"]] * 2  # of train and dev
    assert not (output / "states").exists()


@pytest.mark.parametrize("changed", [("--precision", "bf16"), ("--max-length", "32"), ("--limit", "9"), ()])
def test_what_a_frozen_encoder_computed_for_a_command_that_was_killed_is_of_use_to_the_same_alone(
    long_export: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: tuple[str, ...]
) -> None:
    write_conll(data)
    monkeypatch.setattr(experiment, "learn", mock.Mock(side_effect=KeyboardInterrupt))

    def states(*options: str) -> int:
        with pytest.raises(KeyboardInterrupt):
            run(long_export, data, tmp_path / "out", "conll2003_last", *options)
        return len(list((tmp_path / "out" / "states").glob("*.npy")))

    assert [states(), states()] == [2, 2]  # train and dev
    if not changed:
        change_weights(long_export)
    assert states(*changed) == 4
    task = TASKS["conll2003_last"]
    monkeypatch.setitem(TASKS, task.name, dataclasses.replace(task, version=task.version + 1))
    assert states(*changed) == 6


def test_a_full_disk_that_takes_no_word_of_a_failure_changes_nothing_about_it(
    export: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mrpc(write_stsb(data))
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(experiment, "learn", failing_at_two_classes(experiment.learn))
    monkeypatch.setattr("eval.grid.write_atomically", mock.Mock(side_effect=full))
    assert run(export, data, tmp_path / "out", "mrpc,stsb") == 1
    results = results_of(tmp_path / "out")
    assert (list(results["tasks"]), results["failed"]) == (["stsb"], {"mrpc": "out of memory; lower --max-tokens"})


@pytest.mark.parametrize("named", [True, False])
def test_storage_that_fails_costs_its_task_alone_and_is_told_without_a_traceback(
    export: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture, named: bool,
) -> None:  # fmt: skip
    write_mrpc(data)
    place = tmp_path / "out" / "mrpc" / "points"
    error = OSError(errno.EIO, REASON, str(place)) if named else OSError(errno.EIO, REASON)
    with monkeypatch.context() as patch:
        patch.setattr("eval.grid.publish", mock.Mock(side_effect=error))
        assert run(export, data, tmp_path / "out", "mrpc,fill_mask") == 1
    where = f"{place}: " if named else ""
    told = f"failed: mrpc: {where}{REASON}; mend that, and run the same command again\n"
    assert capsys.readouterr().err == told
    assert not any(record.exc_info for record in caplog.records)
    assert list(results_of(tmp_path / "out")["tasks"]) == ["fill_mask"]
    assert run(export, data, tmp_path / "out", "mrpc,fill_mask") == 0


def test_an_error_of_a_file_that_is_no_word_of_the_operating_system_is_told_as_it_is(
    export: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Nobody knows what to mend then; the log has where it was raised."""
    write_mrpc(data)
    monkeypatch.setattr(experiment, "learn", mock.Mock(side_effect=OSError("the library's own")))
    assert run(export, data, tmp_path / "out", "mrpc") == 1
    assert capsys.readouterr().err == "failed: mrpc: the library's own\n"
    assert [record.message for record in caplog.records if record.exc_info] == ["mrpc failed"]


def test_a_finished_point_that_can_not_be_read_for_a_moment(
    export: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_mrpc(data)
    assert run(export, data, tmp_path / "out", "mrpc") == 0
    [point] = points_of(tmp_path / "out", "mrpc")
    capsys.readouterr()
    with monkeypatch.context() as patch:
        fail_at(patch, point, named=False)
        assert run(export, data, tmp_path / "out", "mrpc") == 1
    told = f"error: {point}: can't be read now ({REASON}); give the same command again\n"
    assert capsys.readouterr() == ("", told)
    monkeypatch.setattr(experiment, "learn", None)  # would fail if it were called again
    assert run(export, data, tmp_path / "out", "mrpc") == 0


def test_points_that_can_not_be_read_any_more_cost_no_other_task(
    export: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whenever that is, but before anything is computed."""
    write_mrpc(data)
    out, told = tmp_path / "out", list[str]()
    assert run(export, data, out, "mrpc") == 0
    [point] = points_of(out, "mrpc")
    for _ in failures_in_turn(monkeypatch, point, lambda: run(export, data, out, "mrpc,fill_mask")):
        capsys.readouterr()
        (out / "results.json").unlink(missing_ok=True)
        assert run(export, data, out, "mrpc,fill_mask") == 1
        begin, mark, end = capsys.readouterr().err.partition(str(point))
        assert mark + end == f"{point}: can't be read now ({os.strerror(errno.ESTALE)}); give the same command again\n"
        assert begin == "error: " or "fill_mask" in results_of(out)["tasks"]
        told.append(begin)
    assert told == ["error: ", "error: ", *["failed: mrpc: "] * (len(told) - 2)]  # it is looked for, and read
    assert len(told) > 2


def test_a_point_of_another_process_whose_lock_can_not_be_had_costs_no_other_task(
    export: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_mrpc(data)
    out = tmp_path / "out"
    lock = out / "mrpc" / "points" / ".lr0.001-epochs1-batch8-seed0.lock"
    lock.parent.mkdir(parents=True)
    with lock.open("a") as file, monkeypatch.context() as patch:
        fcntl.flock(file, fcntl.LOCK_EX)
        fail_at(patch, lock, 2)  # where it is waited for
        assert run(export, data, out, "mrpc,fill_mask") == 1
    told = f"failed: mrpc: {lock}: {REASON}; mend that, and run the same command again\n"
    assert capsys.readouterr().err == told
    assert list(results_of(out)["tasks"]) == ["fill_mask"]
    assert run(export, data, out, "mrpc,fill_mask") == 0


def test_a_full_disk_loses_nothing_that_was_learned(
    export: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_mrpc(data)
    full = OSError(errno.ENOSPC, "No space left on device")
    with monkeypatch.context() as patch:
        patch.setattr("eval.run.write_results", mock.Mock(side_effect=full))
        assert run(export, data, tmp_path / "out", "mrpc") == 1
    assert "out: no room left there; make some, and run the same command again" in capsys.readouterr().err
    monkeypatch.setattr(experiment, "learn", None)  # would fail if it were called again
    assert run(export, data, tmp_path / "out", "mrpc") == 0


def test_a_point_that_diverges_is_a_result_and_the_others_decide(
    export: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mrpc(data)
    learn = experiment.learn

    def diverge_when_fast(*args):
        learn(*args)  # so that there are figures of an epoch before
        if args[3].learning_rate > 0.01:
            raise experiment.DivergedError("the loss of step 3 is nan")

    monkeypatch.setattr(experiment, "learn", diverge_when_fast)
    rates = ("--learning-rates", "0.9,1e-3", "--epochs", "1", "--batch-sizes", "8")
    assert run(export, data, tmp_path / "out", "mrpc", *rates, "--save-models", quick=False) == 0
    details = results_of(tmp_path / "out")["tasks"]["mrpc"]["details"]
    assert [point["error"] for point in details["points"]] == ["the loss of step 3 is nan", None]
    assert [list(point["metrics"]) for point in details["points"]] == [[], ["dev"]]
    assert details["best_point"]["learning_rate"] == 1e-3


def test_all_points_diverge(
    export: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_mrpc(data)

    def diverge(*_):
        raise experiment.DivergedError("the loss of step 3 is nan")

    monkeypatch.setattr(experiment, "learn", diverge)
    assert run(export, data, tmp_path / "out", "mrpc", "--seeds", "2") == 1
    reason = "every point diverged (the loss of step 3 is nan); try lower learning rates"
    assert results_of(tmp_path / "out")["failed"] == {"mrpc": reason}
    assert f"failed: mrpc: {reason}\n" in capsys.readouterr().err
    [first, _] = points_of(tmp_path / "out", "mrpc")
    assert json.loads(first.read_text())["error"] == "the loss of step 3 is nan"


def test_a_limit_on_the_examples(export: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_mrpc(data)
    assert run(export, data, tmp_path / "out", "mrpc", "--limit", "10") == 0
    shown = capsys.readouterr().out
    assert "\nat most 10 examples of each data set, so of little weight\n" in shown
    assert "float32, on 10 dev examples" in shown
    assert results_of(tmp_path / "out")["tasks"]["mrpc"]["details"]["examples"] == {"train": 10, "dev": 10}
    parts = read_parts(TASKS["mrpc"], data, with_test=False, limit=10)
    whole = READERS["MRPC"](data, "train")
    places = [whole.index(example) for example in parts["train"]]
    assert places == sorted(places)
    assert places != list(range(10))


def test_settings_of_the_command_go_before_the_tasks_own(export: Path, data: Path, tmp_path: Path) -> None:
    write_mrpc(data)
    options = ("--max-length", "12", "--long-text", "tail", "--optimizer", "adamw", "--precision", "bf16")
    assert run(export, data, tmp_path / "out", "mrpc", *options) == 0
    origin = json.loads(points_of(tmp_path / "out", "mrpc")[0].read_text())["origin"]
    assert (origin["max_length"], origin["optimizer"], origin["precision"]) == (12, "adamw", "bf16")
    assert "long_text='tail'" in origin["kind"]
    again = ("--max-tokens", "64", "--seeds", "2")  # the first point stays as it is
    assert run(export, data, tmp_path / "out", "mrpc", *options, *again) == 0
    points = [json.loads(file.read_text()) for file in points_of(tmp_path / "out", "mrpc")]
    assert [point["max_tokens"] for point in points] == [16384, 64]
    as_it_was = Texts(("0", "1"), ("accuracy", "f1"), names=("not_equivalent", "equivalent"))
    assert TASKS["mrpc"].kind == as_it_was


LEARNED = "--test, --seeds: for tasks that the model learns only, without effect on "


@pytest.mark.parametrize(
    ("tasks", "options", "told"),
    [
        (
            "mrpc",
            "--batch-size 16 --samples 9",
            "--batch-size, --samples: for tasks that read held-out samples only, without effect on mrpc",
        ),
        (
            "fill_mask",
            "--sequence-length 32",
            "--sequence-length: for tasks that read held-out samples only, without effect on fill_mask",
        ),
        ("mrpc, mlm,", "--sentences own.txt", "--sentences: for fill_mask only, without effect on mrpc, mlm"),
        ("mlm,fill_mask", "--test --seeds 2", f"{LEARNED}mlm, fill_mask"),
        (
            "nsp",
            "--save-models --learning-rates 1e-5 --epochs 2 --batch-sizes 8 --max-length 9 --optimizer adamw "
            "--precision bf16 --max-tokens 9 --limit 3",
            "--save-models, --learning-rates, --epochs, --batch-sizes, --max-length, --optimizer, --precision, "
            "--max-tokens, --limit: for tasks that the model learns only, without effect on nsp",
        ),
        ("squad", "--long-text tail", "--long-text: for tasks of texts only, without effect on squad_v1, squad_v2"),
        (
            "glue,codah,imdb",
            "--test",
            "--test: without effect on codah, imdb: no test set besides what is judged on",
        ),
        ("glue,mlm", "--batch-size 16 --samples 9 --seeds 3 --test --long-text tail", ""),
        ("mlm", "--data data --device cpu --threads 1 --seeds 1 --workers 1", ""),  # of all evaluations, or as it is
        ("mrpc", "--shards shards", ""),  # which a chain of jobs gives always
    ],
)
def test_options_that_no_task_heeds_are_told(tasks: str, options: str, told: str) -> None:
    asked = parse(["--checkpoint", "export", "--tasks", tasks, *options.split()])
    assert list(without_effect(asked, select(asked.tasks))) == ([told] if told else [])


def test_options_without_effect_refuse_nothing(
    export: Path, data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert run(export, write_codah(data), tmp_path / "out", "codah", "--batch-size", "8", "--long-text", "tail") == 0
    assert "--batch-size: for tasks that read held-out samples only, without effect on codah" in caplog.messages
    assert "--long-text: for tasks of texts only, without effect on codah" in caplog.messages
    assert run(export, data / "nowhere", tmp_path / "out", "fill_mask", "--max-length", "4096") == 0
    assert "--max-length: for tasks that the model learns only, without effect on fill_mask" in caplog.text
    caplog.clear()
    assert run(export, data, tmp_path / "out", "fill_mask", "--max-length", "4096", "--effects-told") == 0
    assert "without effect" not in caplog.text, "which the process has told that started this one"


def test_a_child_run_with_predictions(
    export: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    uri = empty_store(tmp_path / "runs" / "mlflow.db")
    write_mrpc(data)
    assert run(export, data, tmp_path / "runs" / "out", "mrpc", "--seeds", "2", track=True) == 0
    client = MlflowClient(uri)
    [found] = client.search_runs([client.get_experiment_by_name("bert-pretraining").experiment_id])
    task = results_of(tmp_path / "runs" / "out")["tasks"]["mrpc"]
    assert found.data.metrics == {f"mrpc_{name}": figure["value"] for name, figure in task["metrics"].items()}
    assert found.data.tags["step"] == str(STEP)
    folder = Path(client.download_artifacts(found.info.run_id, "predictions", str(tmp_path)))
    assert sorted(path.name for path in (folder / "mrpc").iterdir()) == ["dev_confusion.tsv", "dev_predictions.tsv"]


def test_the_same_command_again_is_nothing_new_in_mlflow(
    export: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    client = MlflowClient(empty_store(tmp_path / "runs" / "mlflow.db"))
    write_mrpc(data)
    for _ in range(2):
        assert run(export, data, tmp_path / "runs" / "out", "fill_mask,mrpc", track=True) == 0
    [experiment_id] = [client.get_experiment_by_name("bert-pretraining").experiment_id]
    [found] = client.search_runs([experiment_id])
    assert len(client.get_metric_history(found.info.run_id, "mrpc_f1")) == 1
    (tmp_path / "own.txt").write_text("word1 [MASK]\n")  # other results, though all figures are the same
    own = ("--sentences", str(tmp_path / "own.txt"))
    assert run(export, data, tmp_path / "runs" / "out", "fill_mask,mrpc", *own, track=True) == 0
    assert len(client.search_runs([experiment_id])) == 2


def test_the_same_command_with_another_output_is_nothing_new_in_mlflow(
    export: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    client = MlflowClient(empty_store(tmp_path / "runs" / "mlflow.db"))
    write_mrpc(data)
    took = []
    for name in ("first", "second"):
        assert run(export, data, tmp_path / "runs" / name, "mrpc", track=True) == 0
        took += [
            point["seconds"] for point in results_of(tmp_path / "runs" / name)["tasks"]["mrpc"]["details"]["points"]
        ]
    assert took[0] != took[1]
    assert len(client.search_runs([client.get_experiment_by_name("bert-pretraining").experiment_id])) == 1


def test_what_is_learned_on_from_a_task_s_model_belongs_to_the_run(
    export: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    store = empty_store(tmp_path / "runs" / "mlflow.db")
    trained = RunDirectory(export.parents[1])
    trained.set_outcome("done")
    tracking.prepare(trained, "tests")
    parent = tracking.sync(trained, status="FINISHED")
    write_mrpc(write_stsb(data))

    def evaluate(checkpoint: Path, task: str) -> Path:
        output = default_output(checkpoint, [task])
        words = ["--checkpoint", str(checkpoint), "--tasks", task, "--data", str(data), "--save-models", *QUICK]
        assert main(words) == 0
        assert results_of(output)["tasks"].keys() == {task}
        return output / "models" / task

    learned_on = evaluate(evaluate(evaluate(export, "stsb"), "mrpc"), "stsb")
    names = [f"{export.name}-stsb"]
    names += [f"{names[0]}-models-stsb-mrpc"]
    names += [f"{names[1]}-models-mrpc-stsb"]
    assert learned_on.parents[1] == trained.path / "evaluations" / names[-1]
    assert {file.parent.name for file in find_results([trained.path])} == set(names)
    client = MlflowClient(store)
    experiment = client.get_experiment_by_name("tests").experiment_id
    children = client.search_runs([experiment], f"tags.mlflow.parentRunId = '{parent}'")
    assert sorted(child.info.run_name for child in children) == ["eval mrpc", f"eval {export.name}", "eval stsb"]
    assert list(trained.path.rglob("mlflow.db")) == []


LOCK = "mrpc/points/.lr0.001-epochs1-batch8-seed0.lock"


def test_of_points_that_are_finished_no_lock_is_taken(export: Path, data: Path, tmp_path: Path) -> None:
    """Whoever gathers what another user learned may not be able to."""
    write_mrpc(data)
    assert run(export, data, tmp_path / "out", "mrpc") == 0
    (tmp_path / "out" / LOCK).unlink()
    (tmp_path / "out" / LOCK).mkdir()  # which nobody can open for writing
    assert run(export, data, tmp_path / "out", "mrpc") == 0


# ---- what is refused, before anything is computed -------------------------------------------------------------------


def refused(capsys: pytest.CaptureFixture[str], output: Path, code: int) -> str:
    """The line that says why."""
    captured = capsys.readouterr()
    assert (code, captured.out) == (2, "")
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert not (output / "results.json").exists()
    assert not list(output.glob("*/points/lr*"))
    return captured.err.removeprefix("error: ").rstrip("\n")


def test_no_data(export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--checkpoint", str(export), "--tasks", "mrpc", "--output", str(tmp_path / "out")])
    message = "mrpc reads a data set; give the folder of its files with --data, or --hub"
    assert refused(capsys, tmp_path / "out", code) == message


def test_a_file_for_a_folder(export: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It would be train and dev in one."""
    write_mrpc(data)
    file = next(data.rglob("dev.tsv"))
    assert run(export, file, tmp_path / "out", "mrpc") == 2
    assert capsys.readouterr().err == (
        f"error: {file}: no such directory; give the folder of the data sets with --data\n"
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there(export: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_mrpc(data)
    assert run(export, data, tmp_path / "out", "mrpc", "--device", "cuda") == 2
    assert capsys.readouterr().err.startswith("error: --device cuda: torch finds no GPU here; ")


@pytest.mark.parametrize(("gpu", "asked", "taken"), [(True, "cpu", "cpu"), (True, None, "cuda"), (False, None, "cpu")])
def test_what_computes_is_a_gpu_unless_the_command_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, gpu: bool, asked: str | None, taken: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    words = ["--checkpoint", "export", "--tasks", "mrpc", *(["--device", asked] if asked else [])]
    assert plan._device(parse(words)).type == taken


def test_more_tokens_than_positions(
    export: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_mrpc(data)
    assert run(export, data, tmp_path / "out", "mrpc", "--max-length", "49") == 2
    told = "--max-length 49: the export has 48 positions; give as many, or make one with more by trainer.new_positions"
    assert capsys.readouterr().err == f"error: {told}\n"
    assert run(export, data, tmp_path / "out", "mrpc", "--max-length", "48") == 0


def test_without_an_output_results_lie_where_the_report_looks(export: Path, data: Path, tmp_path: Path) -> None:
    write_mrpc(data)
    argv = ["--checkpoint", str(export), "--data", str(data), "--tasks", "mrpc", *QUICK, "--no-tracking"]
    assert main(argv) == 0
    assert results_of(export.parent.parent / "evaluations" / f"{export.name}-mrpc")["tasks"]["mrpc"]
    alone = shutil.copytree(export, tmp_path / "model")
    assert default_output(alone, ["glue", "mlm"]) == tmp_path / "model-evaluations" / "model-glue-mlm"
    others = tmp_path / "models"  # a folder of models that no evaluation of ours has saved
    assert default_output(others / "bert", ["mlm"]) == others / "bert-evaluations" / "bert-mlm"
    disk, run = tmp_path / "disk", tmp_path / "run"  # whose exports lie there
    shutil.copytree(export, disk / "step-000004")
    run.mkdir()
    (run / "exports").symlink_to(disk)
    asked = parse(["--checkpoint", str(run / "exports" / "step-000004"), "--tasks", "mlm"])
    assert (asked.checkpoint, asked.output) == (disk / "step-000004", run / "evaluations" / "step-000004-mlm")


def test_a_home_directory_that_no_shell_puts_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    asked = parse(["--checkpoint=~/model", "--tasks=glue", "--data=./~data"])
    assert (asked.checkpoint, asked.output.parent) == (tmp_path / "model", tmp_path / "model-evaluations")
    assert asked.data == Path("~data")
    with pytest.raises(SystemExit, match="2"):
        parse(["--checkpoint=~nobody-of-that-name/model", "--tasks=glue"])


def test_a_name_that_is_not_utf_8_is_refused_before_results_would_have_to_tell_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, link = tmp_path / os.fsdecode(b"\xb5\xa5\xc0\xcc\xc5\xcd"), tmp_path / "link"  # EUC-KR
    folder.mkdir()
    link.symlink_to(folder)
    for data in (folder, folder / "new", link):
        with pytest.raises(SystemExit, match="2"):
            parse(["--checkpoint=model", "--tasks=glue", f"--data={data}"])
        assert "has a name that is not UTF-8; rename that" in capsys.readouterr().err


def test_many_tasks_have_a_folder_of_their_own_whose_name_a_file_system_takes(tmp_path: Path) -> None:
    tasks = [f"aufgabe-über-{number}" for number in range(60)]
    names = {default_output(tmp_path / "model", of).name for of in (tasks, tasks[:-1], tasks[::-1])}
    assert len(names) == 3
    for name in names:
        assert name.startswith("model-aufgabe-über-")
        (tmp_path / name).mkdir()
    cut = {default_output(tmp_path / model, ["학" * 60]).name.rpartition("-")[0] for model in ("m", "mm", "mmm")}
    assert {name.partition("-")[2].strip("학") for name in cut} == {""}, "and no part of a letter"


def test_an_unknown_task(export: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(capsys, tmp_path / "out", run(export, data, tmp_path / "out", "mrpc,glew"))
    assert message.startswith("no task is named 'glew'; did you mean glue?")


def test_a_missing_file(export: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_mrpc(data)
    (data / "MRPC" / "dev.tsv").unlink()
    message = refused(capsys, tmp_path / "out", run(export, data, tmp_path / "out", "mrpc"))
    assert message == f"{data}/MRPC: no dev.tsv beside train.tsv; put all of the data set into one folder"


def test_all_data_sets_that_are_missing_are_told_at_once(
    export: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_mrpc(data)
    message = refused(capsys, tmp_path / "out", run(export, data, tmp_path / "out", "cola,mrpc,rte"))
    assert message.count("; ") >= 1
    assert "CoLA" in message
    assert "RTE" in message
    assert "MRPC" not in message


def test_files_of_two_copies_of_a_data_set_are_not_taken_together(
    export: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_mrpc(data)
    write_mrpc(data / "glue", dev=9)
    (data / "MRPC" / "dev.tsv").unlink()
    message = refused(capsys, tmp_path / "out", run(export, data, tmp_path / "out", "mrpc"))
    assert message.startswith(f"{data}/MRPC: no dev.tsv beside train.tsv; ")
    shutil.rmtree(data / "MRPC")
    assert run(export, data, tmp_path / "out", "mrpc") == 0
    assert results_of(tmp_path / "out")["tasks"]["mrpc"]["details"]["examples"] == {"train": 48, "dev": 9}


FOLDER = "a directory, where a file belongs; remove it, or choose another place"


@pytest.mark.parametrize(
    ("file", "folder", "problem"),
    [
        ("mrpc", "", "out/mrpc: not a directory; choose another place"),
        ("predictions", "", "out/predictions: not a directory; choose another place"),
        ("models", "", "out/models: not a directory; choose another place"),
        ("", "results.json", f"out/results.json: {FOLDER}"),
        ("", "glue_submission.zip", f"out/glue_submission.zip: {FOLDER}"),
        ("", "predictions/mrpc/dev_confusion.tsv", f"out/predictions/mrpc/dev_confusion.tsv: {FOLDER}"),
        ("", ".collect.lock", f"out/.collect.lock: {FOLDER}"),
        ("", LOCK, f"out/{LOCK}: {FOLDER}"),
    ],
)
def test_something_else_in_the_place_of_what_is_to_be_written(
    export: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, folder: str, problem: str
) -> None:
    out = tmp_path / "out"
    (out / folder).mkdir(parents=True)
    if file:
        (out / file).touch()
    assert run(export, write_mrpc(data), out, "mrpc", "--save-models") == 2
    assert capsys.readouterr().err == f"error: {tmp_path}/{problem}\n"
    assert not list(out.rglob("losses.json"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_points_in_a_folder_of_another_user(
    export: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_mrpc(data)
    assert run(export, data, tmp_path / "out", "mrpc") == 0
    points = tmp_path / "out" / "mrpc" / "points"
    points.chmod(0o500)
    assert run(export, data, tmp_path / "out", "mrpc") == 0  # nothing is missing
    capsys.readouterr()
    assert run(export, data, tmp_path / "out", "mrpc", "--seeds", "2") == 2
    told = f"error: {points}: no permission to write there; get it, or choose another place\n"
    assert capsys.readouterr().err == told


def test_an_output_that_can_not_be_written_in_the_end_is_a_line_too(
    export: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out" / "results.json"

    def deny(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(file))

    monkeypatch.setattr("eval.run.write_results", deny)
    assert run(export, write_mrpc(data), tmp_path / "out", "mrpc") == 2
    told = f"error: {file}: Permission denied; mend that, or choose another --output\n"
    assert capsys.readouterr().err == told
    file = tmp_path / "elsewhere"
    with pytest.raises(PermissionError):  # of what we don't know, the traceback says more
        run(export, data, tmp_path / "out", "mrpc")


def test_an_empty_dev_set(export: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_mrpc(data, dev=0)
    message = refused(capsys, tmp_path / "out", run(export, data, tmp_path / "out", "mrpc"))
    assert message == f"{data}/MRPC/dev.tsv: no rows; give a file with examples"


def test_a_label_that_the_task_does_not_have(
    export: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header = ["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"]
    write_table(write_mrpc(data) / "MRPC" / "train.tsv", header, [[1, 1, 1, "a", "b"], [2, 1, 1, "a", "b"]])
    message = refused(capsys, tmp_path / "out", run(export, data, tmp_path / "out", "mrpc"))
    where = f"{data}/MRPC/train.tsv: line 3, column 'Quality'"
    assert message == f"{where}: '2' is not a label; expected 0 or 1"


def test_a_test_set_that_is_asked_for_and_missing(
    export: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_stsb(data, test=0)
    message = refused(capsys, tmp_path / "out", run(export, data, tmp_path / "out", "stsb", "--test"))
    assert message.startswith(f"{data}/STS-B: no test.tsv beside train.tsv; ")


def change_dropout(export: Path) -> None:
    config = json.loads((export / "config.json").read_text())
    (export / "config.json").write_text(json.dumps(config | {"hidden_dropout_prob": 0.3}))


def change_tokenizer(export: Path) -> None:
    content = json.loads((export / "tokenizer.json").read_text())
    content["normalizer"]["clean_text"] = not content["normalizer"]["clean_text"]
    (export / "tokenizer.json").write_text(json.dumps(content))


@pytest.mark.parametrize("change", [change_weights, change_dropout, change_tokenizer])
def test_points_of_another_checkpoint(
    export: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Path], None]
) -> None:
    write_mrpc(data)
    assert run(export, data, tmp_path / "out", "mrpc") == 0
    (tmp_path / "out" / "results.json").unlink()
    before = json.loads(points_of(tmp_path / "out", "mrpc")[0].read_text())["origin"]["export"]
    change(export)
    capsys.readouterr()
    assert run(export, data, tmp_path / "out", "mrpc") == 2
    message = capsys.readouterr().err
    point = f"{tmp_path}/out/mrpc/points/lr0.001-epochs1-batch8-seed0/result.json"
    assert message.startswith(f"error: {point}: made with export {before} instead of ")
    assert message.endswith("; choose another --output\n")


@pytest.mark.parametrize("changed", ["version", "data"])
def test_points_of_another_version_or_of_other_texts(
    export: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    changed: str,
) -> None:
    """Though there are as many of them."""
    write_mrpc(data)
    assert run(export, data, tmp_path / "out", "mrpc") == 0
    if changed == "version":
        monkeypatch.setitem(TASKS, "mrpc", dataclasses.replace(TASKS["mrpc"], version=2))
    else:
        train = data / "MRPC" / "train.tsv"
        train.write_text(train.read_text().replace("word", "Word", 1))
    capsys.readouterr()
    assert run(export, data, tmp_path / "out", "mrpc") == 2
    [point] = points_of(tmp_path / "out", "mrpc")
    assert capsys.readouterr().err.startswith(f"error: {point}: made with {changed} ")


def test_points_of_windows_that_did_not_overlap(
    long_export: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As they were once made of sequences as short as these."""
    write_squad(data, "v1.1")
    assert run(long_export, data, tmp_path / "out", "squad_v1") == 0
    [point] = points_of(tmp_path / "out", "squad_v1")
    result = json.loads(point.read_text())
    del result["origin"]["stride"]
    point.write_text(json.dumps(result))
    capsys.readouterr()
    assert run(long_export, data, tmp_path / "out", "squad_v1") == 2
    assert capsys.readouterr().err == f"error: {point}: made with stride None instead of 15; choose another --output\n"


def test_texts_of_another_language(
    export: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header = ["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"]
    foreign, known = [1, 1, 1, "가다", "오다"], [0, 1, 1, "word1 word2", "word3"]
    advice = "unknown to the export's vocabulary; give an export for its language and alphabet"
    write_table(data / "MRPC" / "train.tsv", header, [known] * 3)
    write_table(data / "MRPC" / "dev.tsv", header, [foreign] * 3)
    message = refused(capsys, tmp_path / "out", run(export, data, tmp_path / "out", "mrpc"))
    assert message == f"mrpc: 100% of the text of dev is {advice}"
    write_table(data / "MRPC" / "dev.tsv", header, [foreign, *[known] * 9])  # one of ten may be
    assert run(export, data, tmp_path / "out", "mrpc") == 0
    write_table(data / "MRPC" / "train.tsv", header, [foreign] * 3)
    capsys.readouterr()
    assert run(export, data, tmp_path / "other", "mrpc") == 2
    assert capsys.readouterr().err == f"error: mrpc: 100% of the text of train is {advice}\n"


def test_texts_of_which_no_piece_is_left(
    export: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_conll(write_mrpc(data))
    header = ["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"]
    write_table(data / "MRPC" / "train.tsv", header, [[i % 2, 1, 1, "\x01", "\x02"] for i in range(4)])
    file = data / "conll2003" / "eng.train"
    file.write_text(re.sub(r"word\d+", "\x01", file.read_text()))
    message = refused(capsys, tmp_path / "out", run(export, data, tmp_path / "out", "mrpc,conll2003"))
    assert message.startswith("mrpc: 100% of the text of train is unknown")
    assert "; conll2003: 100% of the text of train is unknown" in message


LOWER = [*SPECIAL_TOKENS, *(f"word{i}" for i in range(59))]
CASED = [*SPECIAL_TOKENS, *(f"Word{i}" for i in range(59))]
CYRILLIC = [*SPECIAL_TOKENS, *(f"\u0416{i}" for i in range(59))]


@pytest.mark.parametrize(
    ("vocabulary", "lowercase", "message"),
    [
        (CASED, True, "lowers the case of words, but its vocabulary is cased; set lowercase to false there"),
        (CYRILLIC, True, "lowers the case of words, but its vocabulary is cased; set lowercase to false there"),
        (LOWER, False, "keeps the case of words, but its vocabulary has no upper case; set lowercase to true there"),
        (
            [*LOWER, "more"], True,
            "has the id 64, but the model's vocabulary 64 entries; take tokenizer and weights of one model",
        ),
    ],
)  # fmt: skip
def test_a_tokenizer_of_another_model(
    export: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], vocabulary: list[str],
    lowercase: bool, message: str,
) -> None:  # fmt: skip
    write_mrpc(data)
    save_tokenizer(vocabulary, lowercase, export)
    found = refused(capsys, tmp_path / "out", run(export, data, tmp_path / "out", "mrpc"))
    assert found == f"{export}/tokenizer.json: {message}"


def test_what_the_settings_of_a_cased_tokenizer_leave_out_is_no_contradiction(
    export: Path, data: Path, tmp_path: Path
) -> None:
    save_tokenizer(CASED, False, export)
    (export / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert run(export, data, tmp_path / "out", "fill_mask") == 0


@pytest.mark.parametrize("lowercase", [True, False])
def test_a_vocabulary_without_case_goes_with_either_tokenizer(
    export: Path, data: Path, tmp_path: Path, lowercase: bool
) -> None:
    save_tokenizer([*SPECIAL_TOKENS, *(f"단어{i}" for i in range(59))], lowercase, export)
    assert run(export, data, tmp_path / "out", "fill_mask") == 0


def test_another_vocabulary_beside_the_tokenizer(
    export: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_mrpc(data)
    (export / "vocab.txt").write_text("\n".join([*LOWER[:-2], LOWER[-1], LOWER[-2]]) + "\n")
    found = refused(capsys, tmp_path / "out", run(export, data, tmp_path / "out", "mrpc"))
    assert found == f"{export}/tokenizer.json: has another vocabulary than vocab.txt beside it; copy the folder anew"


def test_a_tokenizer_that_is_no_berts(
    export: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_mrpc(data)
    text = (export / "tokenizer.json").read_text().replace("[MASK]", "[MASC]")
    (export / "tokenizer.json").write_text(text)
    found = refused(capsys, tmp_path / "out", run(export, data, tmp_path / "out", "mrpc"))
    assert found == f"{export}/tokenizer.json: lacks the token [MASK]; give the tokenizer of a BERT"


@pytest.mark.parametrize(
    ("file", "left", "told"),
    [
        (
            "model.safetensors",
            None,
            "missing; weights in another format become this one by transformers: "
            "BertForPreTraining.from_pretrained(X).save_pretrained(X), where X is the folder",
        ),
        # Which the results alone would need, when all is learned.
        ("lineage.json", "x", "not JSON (Expecting value: line 1 column 1 (char 0)); copy the export anew"),
    ],
)
def test_an_incomplete_checkpoint(
    export: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, left: str | None, told: str
) -> None:
    write_mrpc(data)
    (export / file).unlink()
    if left:
        (export / file).write_text(left)
    found = refused(capsys, tmp_path / "out", run(export, data, tmp_path / "out", "mrpc"))
    assert found == f"{export}/{file}: {told}"


@pytest.mark.parametrize(("word", "told"), [("word", 1), ("Word", 0)], ids=["uncased", "cased"])
def test_a_vocabulary_without_upper_case_is_told_once_where_names_are_tagged(
    long_export: Path, data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, word: str, told: int
) -> None:
    write_conll(data)
    for file in data.rglob("eng.*"):
        file.write_text(file.read_text().replace("word", word))
    save_tokenizer([*SPECIAL_TOKENS, *(f"{word}{i}" for i in range(59))], word == "word", long_export)
    assert run(long_export, data, tmp_path / "out", "conll2003,conll2003_last") == 0
    warnings = [message for message in caplog.messages if "no upper case" in message]
    assert [message.partition(":")[0] for message in warnings] == ["conll2003, conll2003_last"] * told


def test_a_model_too_short_for_questions(
    export: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_squad(data, "v1.1")
    found = refused(capsys, tmp_path / "out", run(export, data, tmp_path / "out", "squad_v1"))
    assert found == (
        "sequences of 48 tokens have no room for a text beside a question of 64 tokens; give 68 or more by "
        "--max-length, to a model with as many positions"
    )


def test_a_model_too_shallow_for_features(
    export: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_conll(data)
    found = refused(capsys, tmp_path / "out", run(export, data, tmp_path / "out", "conll2003_concat_last_four"))
    assert found == (
        "conll2003_concat_last_four: 4 states of a token are read, and a model of 2 layers has 3; leave this task out"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--learning-rates", "5"], "'5' is not a learning rate, such as 5e-5"),
        (["--learning-rates", "0"], "'0' is not a learning rate, such as 5e-5"),
        (["--learning-rates", "1e-5,1"], "'1' is not a learning rate, such as 5e-5"),
        (["--learning-rates", " , "], "argument --learning-rates: there is no value in it"),
        (["--epochs", "0"], "'0' is not a whole number of 1 or more"),
        (["--seeds", "0"], "'0' is not a whole number of 1 or more"),
        (["--grid-index", "2", "--grid-count", "2"], "--grid-index 2 is not from 0 to 1"),
        (["--grid-index", "1"], "--grid-index 1 is not from 0 to 0, as --grid-count is 1"),
        (["--grid-count", "2"], "--grid-count 2 needs --grid-index"),
        (["--precision", "fp8"], "invalid choice: 'fp8'"),
        (["--hub"], "not allowed with argument --data"),
    ],
)
def test_options_that_cannot_be(
    export: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(export, data, tmp_path / "out", "mrpc", *options)
    assert message in capsys.readouterr().err


def test_the_hub_instead_of_files(
    export: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_mrpc(data)
    asked = []

    def read_hub(name: str, split: str):
        asked.append((name, split))
        return READERS[name](data, split)

    monkeypatch.setattr("eval.tasks.datasets.read_hub", read_hub)
    argv = ["--checkpoint", str(export), "--hub", "--output", str(tmp_path / "out"), "--tasks", "mrpc", "--no-tracking"]
    assert main([*argv, *QUICK]) == 0
    assert asked == [("MRPC", "train"), ("MRPC", "dev")]
    assert results_of(tmp_path / "out")["data"] == {"path": "hub", "limit": None}

    def refuse(name: str, split: str):
        raise DatasetError("no network")

    monkeypatch.setattr("eval.tasks.datasets.read_hub", refuse)
    capsys.readouterr()
    assert main(argv) == 2
    assert capsys.readouterr().err == "error: no network\n"


@pytest.fixture
def long_export(tmp_path: Path, shards: Path) -> Path:
    """One with positions enough for a question and a text, and layers enough for all features."""
    config = dataclasses.replace(CONFIG, max_position_embeddings=96)
    path = tmp_path / "long"
    save_export(path, random_state(config), config, shards / "tokenizer", {})
    return path
