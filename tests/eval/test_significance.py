"""Two evaluations of real runs of the command, compared by what they have left."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest

from eval import run as evaluation
from eval.paired import holm
from eval.parts import read_dev
from eval.significance import _p, main
from eval.tasks.finetuned import FineTuned
from tests.eval.conftest import CONFIG, random_state
from tests.eval.small_data import (
    MARK,
    write_codah,
    write_conll,
    write_mnli,
    write_mrpc,
    write_squad,
    write_stsb,
    write_table,
)
from tests.failing import fail_on, failures_in_turn
from tests.streams import FULL, stdout_to
from trainer.hugging_face import save_export

TASKS = "mrpc,stsb,mnli,codah,squad_v1,squad_v2,conll2003,conll2003_last"
METRICS = [
    "mrpc accuracy", "mrpc f1", "stsb pearson", "stsb spearman", "mnli accuracy", "mnli mm_accuracy",
    "squad_v1 exact_match", "squad_v1 f1", "squad_v2 exact", "squad_v2 f1", "codah accuracy", "conll2003 f1",
    "conll2003_last f1",
]  # fmt: skip
FEW = ("--resamples", "200")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("significance") / "data"
    write_mrpc(folder)
    write_stsb(folder)
    write_mnli(folder)
    write_squad(folder, "v1.1")
    write_squad(folder, "v2.0")
    write_codah(folder)
    return write_conll(folder)


@pytest.fixture(scope="module")
def evaluated(data: Path, shards: Path) -> tuple[Path, Path]:
    """What eval.run leaves of one export, learned fast, with two seeds, and slowly."""
    export = data.parent / "export"
    config = dataclasses.replace(CONFIG, max_position_embeddings=96)  # room for a text beside a question
    save_export(export, random_state(config), config, shards / "tokenizer", {})
    return evaluate(export, data, TASKS, "fast", "slow")


def evaluate(export: Path, data: Path, tasks: str, *names: str, options: tuple[str, ...] = ()) -> tuple[Path, Path]:
    first, second = (data.parent / name for name in names)
    for folder, rate in ((first, "1e-3"), (second, "1e-6")):
        words = ["--checkpoint", str(export), "--data", str(data), "--output", str(folder), "--tasks", tasks, *options]
        words += ["--epochs", "1", "--batch-sizes", "8", "--learning-rates", rate, "--seeds", "2", "--no-tracking"]
        assert evaluation.main(words) == 0
    return first, second


@pytest.fixture
def copies(evaluated: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    """That a test may spoil."""
    copied = tmp_path / "a", tmp_path / "b"
    for folder, copy in zip(evaluated, copied, strict=True):
        shutil.copytree(folder / "predictions", copy / "predictions")
        shutil.copy(folder / "results.json", copy)
    return copied


def compared(capsys: pytest.CaptureFixture[str], *words: object) -> dict:
    assert main([*map(str, words), *FEW, "--json"]) == 0
    captured = capsys.readouterr()
    assert not captured.err
    found: dict = json.loads(captured.out)
    return found


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main([*map(str, words), *FEW]) == 2
    captured = capsys.readouterr()
    assert not captured.out
    return captured.err


def change_results(folder: Path, edit: Callable[[dict], object]) -> None:
    results = json.loads((folder / "results.json").read_text())
    edit(results)
    (folder / "results.json").write_text(json.dumps(results))


def change(path: Path, edit: Callable[[str], str]) -> None:
    text = path.read_bytes().decode()
    assert edit(text) != text
    path.write_bytes(edit(text).encode())


def test_every_metric_of_all_tasks_is_compared_and_its_figures_are_those_of_the_results(
    evaluated: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    found = compared(capsys, *evaluated)
    assert [f"{row['task']} {row['metric']}" for row in found["rows"]] == METRICS
    results = [json.loads((folder / "results.json").read_text()) for folder in evaluated]
    for row in found["rows"]:
        known = [of["tasks"][row["task"]] for of in results]
        figures = [of["metrics"][row["metric"]]["value"] for of in known]
        assert (row["a"], row["b"]) == pytest.approx(figures, abs=1e-6)
        assert row["low"] <= row["high"]
        assert 0 < row["p"] <= row["p_of_all"] <= 1
        assert list(row["seeds"].values()) == [of["details"]["seeds"][row["metric"]] for of in known]
    assert [row["p_of_all"] for row in found["rows"]] == holm([row["p"] for row in found["rows"]])
    assert {row["test"] for row in found["rows"] if row["metric"].endswith("accuracy")} == {"McNemar"}
    assert found == compared(capsys, *(folder / "results.json" for folder in evaluated)), "as eval.run names them"
    largest = compared(capsys, *evaluated, "--tasks", "mrpc", "--seed", (1 << 64) - 1)
    assert [row["a"] for row in largest["rows"]] == [row["a"] for row in found["rows"] if row["task"] == "mrpc"]


def test_the_table_has_a_row_for_each_and_says_what_it_can_not_tell(
    copies: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    change_results(copies[1], lambda of: of["tasks"]["mrpc"]["details"]["seeds"].update(f1=[60.0]))  # without a spread
    for folder in copies:  # nor do these vary
        change_results(folder, lambda of: of["tasks"]["stsb"]["details"]["seeds"].update(pearson=[50.0, 50.0]))
    found = compared(capsys, *copies, "--tasks", "stsb,mrpc")["rows"]
    named = copies[1].rename(copies[1].with_name("b\x1b[31m"))
    assert main([str(copies[0]), str(named), "--tasks", "stsb,mrpc", *FEW]) == 0
    told = capsys.readouterr().out
    assert f"B: {named.parent}/b\\x1b[31m\n" in told  # and commands no terminal
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in told.splitlines() if line.startswith("|")]
    names = [["stsb", "pearson"], ["stsb", "spearman"], ["mrpc", "accuracy"], ["mrpc", "f1"]]
    of_examples, of_seeds = ([row for row in rows if len(row) == n and row[:2] in names] for n in (10, 6))
    assert ([row[:2] for row in of_examples], [row[:2] for row in of_seeds]) == (names, names[:3])
    assert rows[0] == ["task", "metric", "A", "B", "B - A", "interval", "p", "p of all", "units", "test"]
    assert of_seeds[0][2:] == ["50.00, 2", "50.00, 2", "+0.00", ""]
    for row, of in zip(of_examples, found, strict=True):
        interval = f"{of['low']:+.2f} to {of['high']:+.2f}"
        assert row[2:6] == [f"{of['a']:.2f}", f"{of['b']:.2f}", f"{of['b'] - of['a']:+.2f}", interval]
        assert row[6:] == [_p(of["p"]), _p(of["p_of_all"]), str(of["units"]), of["test"]]
    for row, of in zip(of_seeds, found[:3], strict=True):
        a, b = (statistics.fmean(of["seeds"][name]) for name in "ab")
        p = of["p_of_seeds"]
        assert row[2:] == [f"{a:.2f}, 2", f"{b:.2f}, 2", f"{b - a:+.2f}", "" if p is None else _p(p)]
    assert "say nothing of what another seed would" in told
    assert "Holm" in told
    assert [_p(p) for p in (0.25, 0.005, 0.001, 0.00042)] == ["0.250", "0.005", "0.001", "4.2e-04"]


def test_a_comparison_that_finds_no_room_is_a_failure(
    evaluated: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    with stdout_to(FULL):
        assert main([*map(str, evaluated), "--tasks", "mrpc", *FEW]) == 2
    assert capsys.readouterr().err == "error: standard output: No space left on device; send it elsewhere\n"


def test_a_task_of_the_user_s_own_is_compared_where_its_file_is_given(
    evaluated: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = ["matthews", "f1", "accuracy", "macro_f1"]
    for split in ("train", "dev"):
        rows = [[f"word{i} {MARK if i % 3 else ''}", "no" if i % 3 else "yes"] for i in range(9)]
        write_table(tmp_path / "data" / f"{split}.tsv", ["body", "label"], rows)
    file = tmp_path / "own.toml"
    file.write_text(f'text = "body"\nlabels = ["yes", "no"]\nmetrics = {metrics}')
    folders = evaluate(evaluated[0].parent / "export", tmp_path / "data", str(file), "own", "other")
    capsys.readouterr()
    found = compared(capsys, *folders, "--tasks", file)
    assert [(row["task"], row["metric"]) for row in found["rows"]] == [("own", metric) for metric in metrics]
    but = "have no task in common that a model learns but own, of your own; name the file by --tasks own.toml\n"
    assert refused(capsys, *folders).endswith(but)
    assert "mrpc was not evaluated there" in refused(capsys, *folders, "--tasks", f"{file},mrpc")


@pytest.mark.parametrize(
    ("own", "told"),
    [
        (["films"], "films is in both and left out; name the file by --tasks films.toml"),
        (["films", "b\x1b"], r"films, b\x1b are in both and left out; name the files by --tasks films.toml,b\x1b.toml"),
    ],
)
def test_a_task_of_the_user_s_own_that_is_left_out_is_told(
    copies: tuple[Path, Path], capsys: pytest.CaptureFixture[str], own: list[str], told: str
) -> None:
    """Where only results have its name, and so its file is not known; of what no model learns there is no file."""
    for folder, name in zip(copies, ("only_here", "only_there"), strict=True):
        results = json.loads((folder / "results.json").read_text())
        mrpc = results["tasks"]["mrpc"]
        others = {"mlm": {**mrpc, "details": {"samples": 9}}, **dict.fromkeys([*own, name], mrpc)}
        results["tasks"] = {**others, "mrpc": mrpc, "stsb": results["tasks"]["stsb"]}
        (folder / "results.json").write_text(json.dumps(results))
    assert main([*map(str, copies), *FEW, "--json"]) == 0
    captured = capsys.readouterr()
    assert {row["task"] for row in json.loads(captured.out)["rows"]} == {"mrpc", "stsb"}
    assert captured.err == f"note: {told},mrpc,stsb\n"
    error = "error: films: a task of your own, which its file describes; name that by --tasks films.toml,mrpc\n"
    assert refused(capsys, *copies, "--tasks", "films,mrpc") == error
    assert main([*map(str, copies), *FEW, "--tasks", "mrpc"]) == 0
    assert not capsys.readouterr().err, "what is not asked for is not left out"


@pytest.mark.parametrize("lacking", [0, 1])
def test_what_one_alone_was_evaluated_on_is_not_compared(
    copies: tuple[Path, Path], capsys: pytest.CaptureFixture[str], lacking: int
) -> None:
    for task in TASKS.split(",")[2:]:
        change_results(copies[lacking], lambda of, task=task: of["tasks"].pop(task))
    change_results(copies[1 - lacking], lambda of: of["tasks"].pop("mrpc"))
    assert {row["task"] for row in compared(capsys, *copies)["rows"]} == {"stsb"}


def test_results_without_figures_of_seeds_are_compared_by_their_examples(
    copies: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """As an earlier version has left them."""
    change_results(copies[0], lambda of: of["tasks"]["mrpc"]["details"].pop("seeds"))
    change_results(copies[1], lambda of: of["tasks"]["mrpc"]["details"]["seeds"].pop("f1"))
    accuracy, f1 = compared(capsys, *copies, "--tasks", "mrpc")["rows"]
    assert (accuracy["seeds"]["a"], f1["seeds"]) == ([], {"a": [], "b": []})
    assert (accuracy["p_of_seeds"], f1["p_of_seeds"]) == (None, None)
    assert main([*map(str, copies), "--tasks", "mrpc", *FEW]) == 0
    assert "A, seeds" not in capsys.readouterr().out


def test_a_folder_is_that_of_an_evaluation_whatever_its_name_and_a_file_none_but_its_results(
    copies: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = compared(capsys, *copies, "--tasks", "mrpc")["rows"]
    named = copies[1].rename(tmp_path / "results.json")
    assert compared(capsys, copies[0], named, "--tasks", "mrpc")["rows"] == found
    copy = Path(shutil.copy(named / "results.json", named / "copy.json"))
    assert f"{copy}/results.json: can't read the results" in refused(capsys, copies[0], copy)


def test_other_places_of_the_data_set_may_be_given(
    copies: tuple[Path, Path], data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = compared(capsys, *copies, "--tasks", "mrpc")
    shutil.copytree(data, tmp_path / "moved")
    for folder in copies:
        change(folder / "results.json", lambda text: text.replace(str(data), "/nowhere"))
    assert "/nowhere: no such file" in refused(capsys, *copies, "--tasks", "mrpc")
    assert compared(capsys, *copies, "--tasks", "mrpc", "--data", tmp_path / "moved") == before


def test_the_questions_of_one_text_are_one_unit(
    copies: tuple[Path, Path], data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*copies, "--tasks", "squad_v1,squad_v2", "--data", shutil.copytree(data, tmp_path / "data"))
    assert [row["units"] for row in compared(capsys, *words)["rows"]] == [6] * 4
    for file in (tmp_path / "data" / "squad").glob("dev-*.json"):
        content = json.loads(file.read_text())
        first, second, *others = content["data"][0]["paragraphs"]
        for question in second["qas"]:
            for answer in question["answers"]:
                answer["answer_start"] += len(first["context"]) + 1
        whole = {"context": f"{first['context']} {second['context']}", "qas": [*first["qas"], *second["qas"]]}
        content["data"][0]["paragraphs"] = [whole, *others]
        file.write_text(json.dumps(content))
    assert [row["units"] for row in compared(capsys, *words)["rows"]] == [5] * 4


def test_the_data_set_may_be_that_of_the_hub(
    copies: tuple[Path, Path], data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, places = compared(capsys, *copies, "--tasks", "mrpc"), []

    def read(task: FineTuned, place: Path | None, limit: int | None) -> dict:
        places.append(place)
        return read_dev(task, data, limit)

    monkeypatch.setattr("eval.significance.read_dev", read)
    assert compared(capsys, *copies, "--tasks", "mrpc", "--hub") == before
    for folder in copies:
        change(folder / "results.json", lambda text: text.replace(str(data), "hub"))
    assert compared(capsys, *copies, "--tasks", "mrpc") == before
    assert places == [None, None], "which is how readers are asked for the hub"


def test_what_does_not_compare_is_told_in_a_line(
    copies: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = copies
    (tmp_path / "link").symlink_to(a)
    assert "twice the same evaluation" in refused(capsys, a, tmp_path / "link")
    assert "none of the tasks that can be compared" in refused(capsys, a, b, "--tasks", "mlm")
    assert f"{a}: rte was not evaluated there" in refused(capsys, a, b, "--tasks", "mrpc,rte")
    assert "can't read the results" in refused(capsys, a, tmp_path)
    for option, wanted in (("--resamples", "0"), ("--resamples", "x"), ("--seed", "-1"), ("--seed", str(1 << 64))):
        with pytest.raises(SystemExit, match="2"):
            main([str(a), str(b), option, wanted])
    results = json.loads((b / "results.json").read_text())
    accuracy = results["tasks"]["mrpc"]["metrics"].pop("accuracy")
    (b / "results.json").write_text(json.dumps(results))
    assert "on this data set, and its results say none; give --data" in refused(capsys, a, b, "--tasks", "mrpc")
    for other in (1.0, -1.0):
        figure = accuracy["value"] + other
        results["tasks"]["mrpc"]["metrics"]["accuracy"] = {**accuracy, "value": figure}
        (b / "results.json").write_text(json.dumps(results))
        assert f"on this data set, and its results say {figure:.4f}; " in refused(capsys, a, b, "--tasks", "mrpc")
    results["tasks"]["mrpc"]["metrics"]["accuracy"] = accuracy
    results["data"]["limit"] = 5
    (b / "results.json").write_text(json.dumps(results))
    assert "are of another --limit (None and 5)" in refused(capsys, a, b)
    del results["data"]["limit"]
    results["tasks"]["mrpc"]["version"] = 2
    (b / "results.json").write_text(json.dumps(results))
    assert "are of another version of the task (1 and 2)" in refused(capsys, a, b)
    results["tasks"]["mrpc"]["version"] = 1
    known = results["tasks"]["mrpc"]["details"]["data_blake2b"]
    results["tasks"]["mrpc"]["details"]["data_blake2b"] = "of others"
    (b / "results.json").write_text(json.dumps(results))
    assert f"are of another data ({known} and of others)" in refused(capsys, a, b)
    results["tasks"]["mrpc"]["details"]["data_blake2b"] = known
    results["data"]["limit"] = -5
    (b / "results.json").write_text(json.dumps(results))
    assert "data.limit: Input should be greater than" in refused(capsys, a, b)
    del results["data"]
    (b / "results.json").write_text(json.dumps(results))
    shutil.copy(b / "results.json", a)
    assert "does not say where its data lie; give --data" in refused(capsys, a, b)
    results["tasks"] = {}
    (b / "results.json").write_text(json.dumps(results))
    assert refused(capsys, a, b) == f"error: {a} and {b} have no task in common that a model learns\n"


def test_one_example_tells_nothing(
    evaluated: tuple[Path, Path], data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = evaluate(evaluated[0].parent / "export", data, "codah", "one", "other", options=("--limit", "1"))
    capsys.readouterr()
    assert "codah: dev has one unit, which tells nothing" in refused(capsys, *folders)
    folders = evaluate(evaluated[0].parent / "export", data, "codah", "two", "others", options=("--limit", "2"))
    capsys.readouterr()
    assert [row["units"] for row in compared(capsys, *folders)["rows"]] == [2]


@pytest.mark.parametrize(
    ("task", "name", "edit", "told"),
    [
        ("mrpc", "dev_predictions.tsv", lambda text: text[: len(text) // 2], "are not of the examples"),
        ("mrpc", "dev_predictions.tsv", lambda text: text.replace("\t1\t", "\tone\t"), "damaged; evaluate mrpc again"),
        ("mrpc", "dev_predictions.tsv", lambda text: text.replace("\t1\t", "\t"), "damaged; evaluate mrpc again"),
        ("mrpc", "dev_predictions.tsv", lambda _: "id\tprediction\n0\n", "damaged; evaluate mrpc again"),
        ("mrpc", "dev_predictions.tsv", lambda text: text.replace("\n0\t", "\n99\t"), "are not of the examples"),
        ("stsb", "dev_predictions.tsv", lambda _: "id\tprediction\n0\tnan\n", "damaged; evaluate stsb again"),
        ("codah", "dev_predictions.tsv", lambda _: "\udcff", "damaged"),
        ("squad_v1", "dev_predictions.json", lambda text: text[:9], "evaluate squad_v1 again"),
        ("squad_v2", "dev_predictions.json", lambda _: "{}", "are not of the examples"),
        ("squad_v1", "dev_predictions.json", lambda text: text.replace('"dev0"', '"dev9"'), "are not of the examples"),
        ("squad_v1", "dev_predictions.json", lambda text: text.replace('": "', '": "not '), "its results say"),
        ("conll2003", "dev_predictions.txt", lambda text: text.replace(" ", "", 1), "damaged"),
        ("conll2003", "dev_predictions.txt", lambda text: f"new O O\n{text}", "are not of the examples"),
    ],
)
def test_predictions_that_are_damaged_or_of_others_are_told_in_a_line(
    copies: tuple[Path, Path], capsys: pytest.CaptureFixture[str], task: str, name: str, edit: Callable, told: str
) -> None:
    path = copies[1] / "predictions" / task / name
    path.write_bytes(edit(path.read_bytes().decode()).encode(errors="surrogateescape"))
    error = refused(capsys, *copies, "--tasks", task)
    assert told in error
    assert error.count("\n") == 1
    path.unlink()
    assert "can't" in refused(capsys, *copies, "--tasks", task)


def test_storage_that_fails_for_a_moment_is_no_mistake(
    copies: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is damaged then, and nothing to be evaluated again."""
    words = [str(copies[0] / "results.json"), str(copies[1]), "--tasks", "mrpc,squad_v1,conll2003", *FEW]
    failing = set()
    for path in failures_in_turn(monkeypatch, copies[0], lambda: main(words)):
        capsys.readouterr()
        assert main(words) == 1
        told = f"error: {path}: can't be read now ({os.strerror(errno.ESTALE)}); give the same command again\n"
        assert capsys.readouterr() == ("", told)
        failing.add(path.name)
    assert failing == {"results.json", "dev_predictions.tsv", "dev_predictions.json", "dev_predictions.txt"}


@pytest.mark.parametrize(
    "name",
    ["results.json", *(f"predictions/{kind}" for kind in (
        "mrpc/dev_predictions.tsv", "squad_v1/dev_predictions.json", "conll2003/dev_predictions.txt",
    ))],
)  # fmt: skip
def test_what_is_for_another_user_to_read_is_not_to_be_evaluated_again(
    copies: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    fail_on(monkeypatch, Path, "open", copies[0] / name, errno.EACCES)
    told = f"error: {copies[0] / name}: this user may not read it; ask its owner for that\n"
    assert refused(capsys, *copies, "--tasks", "mrpc,squad_v1,conll2003") == told
