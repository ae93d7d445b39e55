"""Questions of the user's own, in SQuAD's format: learned, and judged by the rules of the version that they are of."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from torchmetrics.functional.text import squad as torchmetrics_squad

from eval import significance
from eval.asked import Asked
from eval.kinds import Questions
from eval.options import parse
from eval.readers import squad
from eval.readers.examples import DatasetError
from eval.results import read_results
from eval.tasks import select
from eval.tasks.own import read_task
from tests.eval.conftest import CONFIG, random_state
from tests.eval.small_data import write_squad
from tests.eval.test_own_task import evaluate, write_task
from trainer.hugging_face import save_export

Change = Callable[[dict], None]
UNSHOWN = (
    "test.json has questions without an answer and dev.json, which shows when to give none, has not; leave them "
    "out, or add some to dev.json"
)
LAW = 'kind = "questions"\nlearning_rates = [3e-4]\nepochs = [15]\nbatch_sizes = [4]\n'


@pytest.fixture
def export(tmp_path: Path, shards: Path) -> Path:
    """With room for a text beside a question."""
    config = dataclasses.replace(CONFIG, max_position_embeddings=96)
    save_export(tmp_path / "export", random_state(config), config, shards / "tokenizer", {})
    return tmp_path / "export"


def write_law(folder: Path, version: str) -> Path:
    """The test set has the questions of the dev set, without their answers."""
    write_squad(folder, version)
    for split in ("train", "dev"):
        (folder / "squad" / f"{split}-{version}.json").rename(folder / f"{split}.json")
    return change(folder, "test", without_answers, source="dev")


def change(folder: Path, split: str, how: Change, source: str | None = None) -> Path:
    """Change each question of a file."""
    content = json.loads((folder / f"{source or split}.json").read_text())
    for paragraph in content["data"][0]["paragraphs"]:
        for question in paragraph["qas"]:
            how(question)
    (folder / f"{split}.json").write_text(json.dumps(content))
    return folder


def without_answers(question: dict) -> None:
    question.pop("is_impossible", None)
    del question["answers"]


def references_of(path: Path) -> dict[str, list[str]]:
    paragraphs = json.loads(path.read_text())["data"][0]["paragraphs"]
    questions = [question for paragraph in paragraphs for question in paragraph["qas"]]
    return {question["id"]: [answer["text"] for answer in question["answers"]] for question in questions}


def official(answers: dict[str, str], references: dict[str, list[str]]) -> dict[str, float]:
    """By torchmetrics; where there is no answer the right one is empty."""
    targets = [
        {"answers": {"text": golds or [""], "answer_start": [0]}, "id": key} for key, golds in references.items()
    ]
    found = torchmetrics_squad([{"prediction_text": text, "id": key} for key, text in answers.items()], targets)
    return {name: value.item() for name, value in found.items()}


@pytest.mark.parametrize(("version", "exact"), [("v1.1", "exact_match"), ("v2.0", "exact")])
def test_it_is_learned_and_judged_by_the_official_rules(export: Path, tmp_path: Path, version: str, exact: str) -> None:
    task, data = write_task(tmp_path, LAW, "law.toml"), write_law(tmp_path / "data" / "law", version)
    assert evaluate(export, task, data.parent, tmp_path / "out", "--test") == 0
    found = json.loads((tmp_path / "out" / "results.json").read_text())["tasks"]["law"]
    assert found["details"]["examples"] == {"train": 12, "dev": 6, "test": 6}
    assert (found["details"]["selected_by"], found["details"]["kind"]) == ("f1", f"Questions(version='{version}')")
    folder = tmp_path / "out" / "predictions" / "law"
    of_dev, of_test = (json.loads((folder / f"{part}_predictions.json").read_text()) for part in ("dev", "test"))
    assert of_dev == of_test  # by the threshold of the dev set, whose questions these are
    expected = official(of_dev, references_of(data / "dev.json"))
    assert found["metrics"][exact]["value"] == pytest.approx(expected["exact_match"], abs=1e-4)
    assert found["metrics"]["f1"]["value"] == pytest.approx(expected["f1"], abs=1e-4)
    assert expected["f1"] > 50
    assert not any(name.startswith("test_") for name in found["metrics"])
    assert ("dev_null_odds.json" in {file.name for file in folder.iterdir()}) == (version == "v2.0")


def test_a_test_set_with_answers_has_figures(export: Path, tmp_path: Path) -> None:
    task, data = write_task(tmp_path, LAW, "law.toml"), write_law(tmp_path / "data", "v2.0")
    (data / "test.json").write_text((data / "dev.json").read_text())
    assert evaluate(export, task, data, tmp_path / "out", "--test", "--epochs", "2") == 0
    metrics = json.loads((tmp_path / "out" / "results.json").read_text())["tasks"]["law"]["metrics"]
    assert {name: metrics[f"test_{name}"]["value"] for name in ("exact", "f1", "NoAns_f1")} == {
        name: metrics[name]["value"] for name in ("exact", "f1", "NoAns_f1")
    }


def test_the_dev_set_decides_the_version(tmp_path: Path) -> None:
    task, data = read_task(write_task(tmp_path, LAW)), write_law(tmp_path / "data", "v2.0")
    assert task.on(data).kind == Questions("v2.0")
    write_law(data, "v1.1")  # another state of the same file
    assert task.on(data).kind == Questions("v1.1")
    assert [len(task.read("tickets.toml", split, data)) for split in ("train", "dev", "test")] == [12, 6, 6]


def test_real_files_are_read_as_squad_s(real_data: Path, tmp_path: Path) -> None:
    content = json.loads((real_data / "squad" / "dev-v2.0.cs224n.json").read_text(encoding="utf-8"))
    for split, article in zip(("train", "dev"), content["data"], strict=False):
        (tmp_path / f"{split}.json").write_text(json.dumps({"data": [article]}))
    task = read_task(write_task(tmp_path, LAW)).on(tmp_path)
    assert task.kind == Questions("v2.0")
    both = [question for split in ("train", "dev") for question in task.read("tickets.toml", split, tmp_path)]
    assert both == squad.read(real_data, "dev-v2.0.cs224n", squad.FILES["v2.0"])[: len(both)]
    assert len(both) > 100


def no_answers(question: dict) -> None:
    question["answers"] = []


def one_id(question: dict) -> None:
    question["id"] = "q"


def other_place(question: dict) -> None:
    for answer in question["answers"]:
        answer["answer_start"] += 1


def some_answers(question: dict) -> None:
    if question["id"] == "dev0":
        question["answers"] = []


def one_impossible(question: dict) -> None:
    some_answers(question)
    question["is_impossible"] = not question["answers"]


def all_impossible(question: dict) -> None:
    question.update(answers=[], is_impossible=True)


@pytest.mark.parametrize(
    ("split", "how", "told"),
    [
        ("dev", no_answers, "dev.json: question dev0: no answers; give some, or mark it as is_impossible"),
        ("train", one_id, "train.json: question q: there 12 times; ids must be unique"),
        ("dev", other_place, "; count answer_start in characters from 0"),
        ("test", some_answers, "test.json: question dev0: no answers; give some, or mark it as is_impossible"),
        ("test", one_impossible, UNSHOWN),
        ("test", all_impossible, UNSHOWN),
    ],
)
def test_questions_that_are_not_as_they_should_be(tmp_path: Path, split: str, how: Change, told: str) -> None:
    task, data = read_task(write_task(tmp_path, LAW)), write_law(tmp_path / "data", "v1.1")
    change(data, split, how, source="dev" if split == "test" else None)
    with pytest.raises(DatasetError) as raised:
        task.read("law.toml", split, data)
    assert str(raised.value).endswith(told)
    assert "\n" not in str(raised.value)


def test_files_that_are_missing_or_no_json_are_told_before_anything_is_learned(
    export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task, data = write_task(tmp_path, LAW, "law.toml"), write_law(tmp_path / "data", "v1.1")
    (data / "train.json").write_text("{")
    assert evaluate(export, task, data, tmp_path / "out") == 2
    told = capsys.readouterr().err
    assert f"error: {data / 'train.json'}: Invalid JSON: " in told
    assert told.endswith("; give a file in SQuAD's format\n")
    (data / "dev.json").unlink()
    assert evaluate(export, task, data, tmp_path / "out") == 2
    told = capsys.readouterr().err
    assert told.endswith(f"error: {data}: no dev.json beside train.json; put all of the data set into one folder\n")
    assert not (tmp_path / "out" / "law").exists()


def test_other_data_are_told_and_two_evaluations_compared(
    export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task, data = write_task(tmp_path, LAW, "law.toml"), write_law(tmp_path / "data", "v2.0")
    folders = [tmp_path / name for name in ("fast", "slow")]
    for folder, rate in zip(folders, ("1e-3", "1e-6"), strict=True):
        assert evaluate(export, task, data, folder, "--learning-rates", rate, "--epochs", "1") == 0
    capsys.readouterr()
    assert significance.main([*map(str, folders), "--tasks", str(task), "--resamples", "200", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["metric"] for row in rows] == ["exact", "f1"]  # by the rules of the dev set
    words = [
        "--checkpoint",
        str(export),
        "--tasks",
        str(task),
        "--data",
        str(data),
        "--learning-rates",
        "1e-3",
        "--epochs",
        "1",
    ]
    results = read_results(folders[0] / "results.json")
    assert Asked(parse(words), select([str(task)])).difference("law", results, export) is None
    write_law(data, "v1.1")
    assert evaluate(export, task, data, folders[0], "--learning-rates", "1e-3", "--epochs", "1") == 2
    assert capsys.readouterr().err.endswith("choose another --output\n")
    difference = Asked(parse(words), select([str(task)])).difference("law", results, export)
    assert difference is not None
    assert difference.made == "with other data of law"
