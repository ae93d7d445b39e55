"""What several commands leave in one results.json, and what lies beside it."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import zipfile
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest
import torch

from eval import experiment
from eval.evaluated import find_results, read_evaluations
from eval.run import main
from eval.showing import filled_table
from tests.eval.evaluations import results_of
from tests.eval.small_data import write_mrpc, write_stsb, write_swag
from tests.failing import LISTING, REASON, fail_at, fail_on
from trainer.hugging_face import WEIGHTS

ONE_POINT = ("--epochs", "1", "--learning-rates", "1e-3", "--batch-sizes", "8")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_mrpc(write_stsb(tmp_path / "data"))


def run(export: Path, output: Path, tasks: str, *options: object) -> int:
    words = ("--checkpoint", export, "--output", output, "--tasks", tasks, "--no-tracking", *options)
    return main(list(map(str, words)))


def test_what_an_earlier_command_found_stays_with_what_it_is_of(
    export: Path, shards: Path, data: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(export, out, "mlm,fill_mask", "--shards", shards, "--samples", "9") == 0
    first = results_of(out)
    assert first["earlier"] == []
    assert run(export, out, "mrpc", "--data", data, "--limit", "20", *ONE_POINT) == 0
    assert "kept as they were: mlm, fill_mask\n" in capsys.readouterr().out
    assert run(export, out, "nsp", "--shards", shards) == 0
    last = results_of(out)
    assert list(last["tasks"]) == ["nsp"]
    assert [list(found["tasks"]) for found in last["earlier"]] == [["mrpc"], ["mlm", "fill_mask"]]
    for name in ("shards", "data", "settings", "fine_tuning", "tasks", "code"):
        assert last["earlier"][1][name] == first[name]

    by_task = {task: e for e in read_evaluations(find_results([out])) for task in e.results["tasks"]}
    assert {task: e.limit(task) for task, e in by_task.items()} == {
        "nsp": None,
        "mrpc": 20,
        "mlm": None,
        "fill_mask": None,
    }
    assert (by_task["mlm"].samples("mlm"), by_task["nsp"].samples("nsp")) == (9, 33)

    assert run(export, out, "mlm,fill_mask,nsp", "--shards", shards) == 0
    assert [list(found["tasks"]) for found in results_of(out)["earlier"]] == [["mrpc"]]


def test_a_task_that_fails_when_more_of_it_is_asked_for_keeps_its_figures(
    export: Path, data: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("mrpc,fill_mask", "--data", data, *ONE_POINT)
    assert run(export, out, *words) == 0
    found = results_of(out)["tasks"]["mrpc"]
    monkeypatch.setattr(experiment, "learn", mock.Mock(side_effect=torch.OutOfMemoryError()))
    assert run(export, out, *words, "--seeds", "2") == 1
    results = results_of(out)
    assert (list(results["tasks"]), list(results["failed"])) == (["fill_mask"], ["mrpc"])
    assert [of_command["tasks"] for of_command in results["earlier"]] == [{"mrpc": found}]
    assert results["files"] == []
    assert (out / "predictions" / "mrpc" / "dev_predictions.tsv").is_file()


def test_results_of_other_weights_are_not_written_over(
    export: Path, data: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(export, out, "fill_mask") == 0
    before = (out / "results.json").read_bytes()
    other = shutil.copytree(export, export.with_name("step-000009"))
    content = bytearray((other / WEIGHTS).read_bytes())
    content[-1] ^= 1
    (other / WEIGHTS).write_bytes(content)
    capsys.readouterr()
    assert run(other, out, "fill_mask,mrpc", "--data", data, *ONE_POINT) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {out / 'results.json'}: of other weights, ")
    assert error.endswith(f", that lay in {export}; choose another --output, or delete that folder\n")
    assert (out / "results.json").read_bytes() == before
    assert not (out / "mrpc").exists()  # before anything was learned


@pytest.mark.parametrize("named", [True, False], ids=["open", "read"])
@pytest.mark.parametrize("opened", [1, 2], ids=["at the start", "at the end"])
def test_results_that_can_not_be_read_for_a_moment_are_not_written_over(
    export: Path,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    opened: int,
    named: bool,
) -> None:
    """Whatever they are of: nobody knows whether they hold figures that would be lost."""
    assert run(export, out, "fill_mask") == 0
    file = out / "results.json"
    before = file.read_bytes()
    capsys.readouterr()
    with monkeypatch.context() as patch:
        fail_at(patch, file, opened, named=named)
        assert run(export, out, "fill_mask") == 1
    told = f"error: {file}: can't be read now ({REASON}); give the same command again\n"
    assert capsys.readouterr() == ("", told)
    assert file.read_bytes() == before
    assert run(export, out, "fill_mask") == 0


def test_results_that_are_for_another_user_to_read_are_not_written_over(
    export: Path, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(export, out, "fill_mask") == 0
    file = out / "results.json"
    before = file.read_bytes()
    capsys.readouterr()
    read_bytes = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path == file:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return read_bytes(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", refuse)
        assert run(export, out, "fill_mask") == 2
    assert capsys.readouterr().err == f"error: {file}: this user may not read it; ask its owner for that\n"
    assert file.read_bytes() == before


def test_the_submission_has_the_test_sets_that_are_predicted_beside_it(export: Path, data: Path, out: Path) -> None:
    def submitted() -> list[str]:
        with zipfile.ZipFile(out / "glue_submission.zip") as archive:
            return archive.namelist()

    learning = ("--data", data, *ONE_POINT)
    assert run(export, out, "mrpc", *learning, "--test") == 0
    assert submitted() == ["MRPC.tsv"]
    assert run(export, out, "stsb", *learning, "--test") == 0
    assert submitted() == ["MRPC.tsv", "STS-B.tsv"]
    assert results_of(out)["files"] == ["predictions/stsb", "glue_submission.zip"]
    (out / "predictions" / "mrpc" / "test_predictions.tsv").unlink()
    assert run(export, out, "stsb", *learning) == 0  # whose predictions of the test set stay
    assert submitted() == ["STS-B.tsv"]
    assert results_of(out)["files"] == ["predictions/stsb", "glue_submission.zip"]


def test_predictions_that_can_not_be_read_for_a_moment_cost_no_submission(
    export: Path, data: Path, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are not damaged, so the submission stays as it was until they can be read."""
    words = ("mrpc,stsb", "--data", data, *ONE_POINT, "--test")
    assert run(export, out, *words) == 0
    submission, table = out / "glue_submission.zip", out / "predictions" / "mrpc" / "test_predictions.tsv"
    before = submission.read_bytes()
    for named in (True, False):
        capsys.readouterr()
        with monkeypatch.context() as patch:
            fail_at(patch, table, named=named)
            assert run(export, out, *words) == 1
        stays = "glue_submission.zip stays as it was: predictions of mrpc can't be written or read now"
        told = f"{table}: can't be read now ({REASON}); give the same command again"
        assert capsys.readouterr().err == f"note: {stays}; run the same command again\nfailed: mrpc: {told}\n"
        assert submission.read_bytes() == before
        results = results_of(out)
        assert (list(results["tasks"]), results["failed"]) == (["mrpc", "stsb"], {"mrpc": told})
        assert results["files"] == ["predictions/mrpc", "predictions/stsb"]
    assert run(export, out, *words) == 0
    assert submission.read_bytes() == before


def test_predictions_that_can_not_be_read_for_a_moment_keep_no_submission_of_others_from_being_made(
    export: Path, data: Path, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("mrpc,stsb", "--data", data, *ONE_POINT, "--test")
    assert run(export, out, *words) == 0
    submission, table = out / "glue_submission.zip", out / "predictions" / "mrpc" / "test_predictions.tsv"
    submission.unlink()
    capsys.readouterr()
    fail_at(monkeypatch, table)
    assert run(export, out, *words) == 1
    assert "stays as it was" not in capsys.readouterr().err
    with zipfile.ZipFile(submission) as archive:
        assert archive.namelist() == ["STS-B.tsv"]
    assert results_of(out)["files"] == ["predictions/mrpc", "predictions/stsb", "glue_submission.zip"]


def test_a_submission_that_can_not_be_written_costs_no_results(
    export: Path, data: Path, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_swag(data)
    words = ("mrpc,swag,stsb", "--data", data, *ONE_POINT, "--test")
    incomplete = out / ".glue_submission.zip.incomplete"
    with monkeypatch.context() as patch:
        fail_at(patch, incomplete)
        assert run(export, out, *words) == 1
    told = f"without glue_submission.zip: {incomplete}: {REASON}; mend that, and run the same command again"
    assert capsys.readouterr().err == f"failed: mrpc: {told}\nfailed: stsb: {told}\n"
    results = results_of(out)
    assert (list(results["tasks"]), list(results["failed"])) == (["mrpc", "swag", "stsb"], ["mrpc", "stsb"])
    assert results["files"] == ["predictions/mrpc", "predictions/swag", "predictions/stsb"]
    assert run(export, out, *words) == 0
    assert results_of(out)["files"][-1] == "glue_submission.zip"


def test_a_submission_of_predictions_that_are_gone_goes_too(
    export: Path, data: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing of it is of the results that lie beside it."""
    assert run(export, out, "mrpc", "--data", data, *ONE_POINT, "--test") == 0
    (out / "predictions" / "mrpc" / "test_predictions.tsv").unlink()
    capsys.readouterr()
    assert run(export, out, "fill_mask") == 0
    told = "note: glue_submission.zip has no MRPC.tsv any more; --test brings it back\n"
    assert capsys.readouterr().err == told
    assert not (out / "glue_submission.zip").exists()


def test_predictions_that_can_not_be_written_cost_no_submission_that_is_of_them_alone(
    export: Path, data: Path, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("mrpc,fill_mask", "--data", data, *ONE_POINT, "--test")
    assert run(export, out, *words) == 0
    submission = out / "glue_submission.zip"
    before = submission.read_bytes()
    capsys.readouterr()
    with monkeypatch.context() as patch:
        fail_at(patch, out / "predictions" / "mrpc" / ".dev_predictions.tsv.incomplete")
        assert run(export, out, *words) == 1
    told, *_ = capsys.readouterr().err.splitlines()
    stays = "glue_submission.zip stays as it was: predictions of mrpc can't be written or read now"
    assert told == f"note: {stays}; run the same command again"
    assert submission.read_bytes() == before
    assert run(export, out, *words) == 0
    assert submission.read_bytes() == before


@pytest.mark.parametrize(
    ("module", "call", "name"),
    [
        (os, "stat", "."),
        (os, LISTING, "."),
        (os, LISTING, "MRPC"),
        (io, "open", "MRPC/train.tsv"),
        (io, "open", "MRPC/dev.tsv"),
    ],
)
def test_data_sets_that_can_not_be_read_for_a_moment(
    export: Path, data: Path, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    module: ModuleType, call: str, name: str,
) -> None:  # fmt: skip
    """Whatever is asked of them."""
    fail_on(monkeypatch, module, call, data / name)
    assert run(export, out, "mrpc", "--data", data, *ONE_POINT) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"error: {data / name}: ")
    assert REASON in told


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (errno.EIO, f"{REASON}; mend that, and run the same command again"),
        (errno.ENOSPC, "no room left there; make some, and run the same command again"),
    ],
)
def test_an_output_that_can_not_be_made_for_a_moment(
    export: Path, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    number: int, told: str,
) -> None:  # fmt: skip
    fail_on(monkeypatch, os, "mkdir", out, number)
    assert run(export, out, "fill_mask") == 1
    assert capsys.readouterr().err == f"error: {out}: {told}\n"


def test_a_model_of_another_point_than_the_results_is_told(
    export: Path, data: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = "note: models/mrpc is of another point than results.json has; --save-models replaces it\n"
    learning = ("mrpc", "--data", data, "--epochs", "1")
    assert run(export, out, *learning, "--learning-rates", "1e-3", "--save-models") == 0
    assert run(export, out, *learning, "--learning-rates", "1e-3") == 0
    assert told not in capsys.readouterr().err
    assert run(export, out, *learning, "--learning-rates", "2e-3") == 0
    assert told in capsys.readouterr().err
    assert run(export, out, *learning, "--learning-rates", "2e-3", "--save-models") == 0
    assert told not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"model": "theirs", "score": 0.9}, "not the results of an evaluation; run `python -m eval.run` again"),
        ([0.9], "not the results of an evaluation; run `python -m eval.run` again"),
        ({"format_version": 1, "checkpoint": {}}, "format version 1, this program reads 2; evaluate again"),
        ({"format_version": 3, "checkpoint": {}}, "format version 3, this program reads 2; evaluate again"),
    ],
)
def test_results_of_another_program_or_version_are_not_written_over(
    export: Path, out: Path, capsys: pytest.CaptureFixture[str], content: object, told: str
) -> None:
    out.mkdir()
    (out / "results.json").write_text(json.dumps(content))
    assert run(export, out, "fill_mask") == 2
    file = out / "results.json"
    assert capsys.readouterr().err == f"error: {file}: {told}, with another --output or without that file\n"
    assert json.loads(file.read_text()) == content


@pytest.mark.parametrize("damaged", ["", '{"format_version": 2, "checkpoint": {}}', '{"format_version": 2, "chec'])
def test_results_of_ours_that_are_damaged_are_made_anew(export: Path, out: Path, damaged: str) -> None:
    out.mkdir()
    (out / "results.json").write_text(damaged)
    assert run(export, out, "fill_mask") == 0
    assert list(results_of(out)["tasks"]) == ["fill_mask"]


def test_of_filled_masks_a_cell_is_one_token_and_its_share_whatever_the_token_is() -> None:
    """A token may be a comma or a number, and its share far below a tenth of a per cent."""
    found = [("12", 0.9983), (",", 0.0003), (".", 0.000021)]
    masks = [[{"token": token, "probability": share} for token, share in found], [{"token": "a", "probability": 1.0}]]
    table = filled_table({"tasks": {"fill_mask": {"details": {"sentences": [{"sentence": "s", "masks": masks}]}}}})
    header, _, *rows = ([cell.strip() for cell in line.strip("| \n").split(" | ")] for line in table.splitlines())
    assert header[:2] == ["sentence", "most probable, %"]
    assert rows[0] == ["s", "12 99.8", ", 0.03", ". 0.0021"]
    assert rows[1][:2] == ["... [MASK] 2", "a 100"]
