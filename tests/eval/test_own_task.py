"""A task of the user's own, described by a file: learned, predicted, followed, and refused where it is no such file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from eval.kinds import Texts
from eval.options import default_output
from eval.run import main
from eval.tasks import select
from eval.tasks.own import read_task
from tests.eval.small_data import MARK, write_mrpc, write_table

TICKETS = """
text = "body"
second_text = "subject"
label = "queue"
labels = ["billing", "delivery", "other"]
metrics = ["macro_f1", "accuracy"]
learning_rates = [1e-3, 2e-3]
epochs = [1]
batch_sizes = [8]
max_length = 20
"""
QUEUES = ("billing", "delivery", "other")


def write_task(folder: Path, text: str, name: str = "tickets.toml") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def write_tickets(folder: Path) -> Path:
    for split, count in (("train", 24), ("dev", 9)):
        rows = [[f"word{i} {MARK}", QUEUES[i % 3], f"word{i % 3}", "left alone"] for i in range(count)]
        write_table(folder / f"{split}.tsv", ["body", "queue", "subject", "agent"], rows)
    write_table(folder / "test.tsv", ["subject", "body"], [["word1", f"word{i}"] for i in range(5)])
    return folder


def evaluate(export: Path, task: Path, data: Path, output: Path, *more: str) -> int:
    argv = ["--checkpoint", str(export), "--tasks", str(task), "--data", str(data), "--output", str(output)]
    return main([*argv, "--no-tracking", *more])


def message(path: Path) -> str:
    with pytest.raises(ValueError, match=re.escape(str(path))) as caught:
        select([str(path)])
    return str(caught.value).removeprefix(str(path)).lstrip(": ")


def test_it_is_learned_and_new_texts_are_predicted(export: Path, tmp_path: Path) -> None:
    task, data = write_task(tmp_path / "mine", TICKETS), write_tickets(tmp_path / "data" / "tickets")
    assert evaluate(export, task, data.parent, tmp_path / "out", "--test") == 0
    found = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))["tasks"]["tickets"]
    assert list(found["metrics"]) == ["macro_f1", "accuracy"]
    assert found["details"]["selected_by"] == "macro_f1"
    assert found["details"]["examples"] == {"train": 24, "dev": 9, "test": 5}
    assert [point["point"]["learning_rate"] for point in found["details"]["points"]] == [1e-3, 2e-3]
    predictions = tmp_path / "out" / "predictions" / "tickets"
    header, *rows = (predictions / "test_predictions.tsv").read_text(encoding="utf-8").splitlines()
    assert header.split("\t") == ["id", "prediction", "score_billing", "score_delivery", "score_other"]
    assert [row.split("\t")[0] for row in rows] == ["0", "1", "2", "3", "4"]
    assert {row.split("\t")[1] for row in rows} <= set(QUEUES)
    assert not (tmp_path / "out" / "glue_submission.zip").exists()

    write_task(task.parent, TICKETS.replace('"other"]', '"other", "new"]'))
    assert evaluate(export, task, data.parent, tmp_path / "out", "--test") == 2  # points of another task are there


def test_another_test_set_leaves_nothing_of_the_one_before_and_the_dev_set_s_files_as_they_are(
    export: Path, tmp_path: Path
) -> None:
    task, data = write_task(tmp_path, 'id = "agent"\n' + TICKETS), write_tickets(tmp_path / "data")
    dev = data / "dev.tsv"
    dev.write_bytes(dev.read_bytes().replace(b"left alone", b"left\ralone"))  # no end of a line in these tables
    found: list[dict[str, bytes]] = []
    for columns in (["body", "subject", "agent", "queue"], ["body", "subject", "agent"]):
        write_table(data / "test.tsv", columns, [["word1", "word2", "3", "other"][: len(columns)]])
        assert evaluate(export, task, data, tmp_path / "out", "--test") == 0
        files = (tmp_path / "out" / "predictions" / "tickets").iterdir()
        found.append({file.name: file.read_bytes() for file in files})
    of_dev = {"dev_predictions.tsv", "dev_confusion.tsv"}
    assert found[0].keys() == of_dev | {"test_predictions.tsv", "test_confusion.tsv"}
    assert found[1].keys() == of_dev | {"test_predictions.tsv"}
    assert all(found[0][name] == found[1][name] for name in of_dev)


def test_it_goes_with_glue_in_one_command_from_one_folder(export: Path, tmp_path: Path) -> None:
    task, data = write_task(tmp_path, TICKETS), tmp_path / "data"
    write_tickets(data / "tickets")
    write_mrpc(data / "glue")
    more = ("--tasks", f"{task},mrpc", "--epochs", "1", "--learning-rates", "1e-3")
    assert evaluate(export, task, data, tmp_path / "out", *more) == 0
    found = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))["tasks"]
    assert {name: of["details"]["examples"]["train"] for name, of in found.items()} == {"tickets": 24, "mrpc": 48}


@pytest.mark.slow
def test_processes_share_it(export: Path, tmp_path: Path) -> None:
    task, data = write_task(tmp_path / "mine", TICKETS), write_tickets(tmp_path / "data")
    assert evaluate(export, task, data, tmp_path / "out", "--workers", "2") == 0


def test_figures_instead_of_classes(export: Path, tmp_path: Path) -> None:
    task = write_task(
        tmp_path, 'text = "review"\nlabel = "stars"\nepochs = [1]\nlearning_rates = [1e-3]\n', "stars.toml"
    )
    for split in ("train", "dev"):
        rows = [[f"word{i} word{2 * i}", i / 2 - 1] for i in range(8)]
        write_table(tmp_path / f"{split}.tsv", ["review", "stars"], rows)
    assert evaluate(export, task, tmp_path, tmp_path / "out") == 0
    found = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))["tasks"]["stars"]
    assert list(found["metrics"]) == ["spearman"]
    assert (found["metrics"]["spearman"]["baseline"], found["baselines"]) == (None, {})  # no class is most frequent


@pytest.mark.parametrize(
    ("text", "ours"),
    [
        ('text = "t"\nlabels = ["0", "1"]\n', "sst2"),
        ('kind = "tags"\n', "conll2003"),
        ('kind = "questions"\n', "squad_v1"),
    ],
)
def test_settings_that_it_leaves_out_are_those_of_our_task_of_its_kind(tmp_path: Path, text: str, ours: str) -> None:
    theirs, [our_task] = read_task(write_task(tmp_path, text)), select([ours])
    for name in ("best", "learning_rates", "epochs", "batch_sizes", "max_length"):
        assert getattr(theirs, name) == getattr(our_task, name)


def test_settings_that_it_gives_are_its_own(tmp_path: Path) -> None:
    tried = {"learning_rates": (0.5,), "epochs": (7, 8), "batch_sizes": (9,), "max_length": 77}
    given = "".join(f"{name} = {json.dumps(value)}\n" for name, value in tried.items())
    judged = 'text = "t"\nlabels = ["0", "1"]\nmetrics = ["f1", "accuracy"]\nlong_text = "tail"\n'
    task = read_task(write_task(tmp_path, judged + given))
    assert {name: getattr(task, name) for name in tried} == tried
    assert (task.best, task.kind) == ("f1", Texts(("0", "1"), ("f1", "accuracy"), "tail"))


def test_files_have_the_names_that_it_gives(tmp_path: Path) -> None:
    data = write_tickets(tmp_path / "data")
    (data / "dev.tsv").rename(data / "held_out.txt")
    task = read_task(write_task(tmp_path, TICKETS + 'kind = "texts"\ndev = "held_out.txt"\n'))
    assert [len(task.read("tickets.toml", split, data)) for split in ("train", "dev", "test")] == [24, 9, 5]


def test_beside_other_tasks(tmp_path: Path) -> None:
    task = str(write_task(tmp_path, TICKETS))
    assert [task.name for task in select(["pretraining", task, "mlm", task])] == ["mlm", "nsp", "tickets"]
    folder = default_output(tmp_path / "runs" / "r" / "exports" / "step-7", ["mlm", task])
    assert folder == tmp_path / "runs" / "r" / "evaluations" / "step-7-mlm-tickets"
    other = write_task(tmp_path / "other", TICKETS)
    with pytest.raises(ValueError, match=r"have one name; rename one$"):
        select([task, str(other)])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "text: Field required"),
        ('text = "t"\nlable = "l"\n', "unknown setting lable; did you mean label"),
        ('text = ""\n', "the name of a column is empty"),
        ('text = "t"\nsecond_text = ""\n', "the name of a column is empty"),
        ('text = "t"\nid = ""\n', "the name of a column is empty"),
        ('text = "label"\n', "text, second_text and label must be different columns"),
        ('text = "t"\nsecond_text = "t"\n', "text, second_text and label must be different columns"),
        ('text = "t"\nlabels = ["a"]\n', "labels must be two or more, each once"),
        ('text = "t"\nlabels = ["a", "a"]\n', "labels must be two or more, each once"),
        ('text = "t"\nlabels = ["a", "b", "a"]\n', "labels must be two or more, each once"),
        ('text = "t"\nlabels = ["a", "b", "c"]\nmetrics = ["f1"]\n', "metrics: 'f1' is none of accuracy, macro_f1"),
        ('text = "t"\nmetrics = ["accuracy"]\n', "metrics: 'accuracy' is none of spearman, pearson"),
        ('text = "t"\nepochs = []\n', "learning_rates, epochs and batch_sizes need a value each"),
        ('text = "t"\nlearning_rates = []\n', "learning_rates, epochs and batch_sizes need a value each"),
        ('text = "t"\nbatch_sizes = []\n', "learning_rates, epochs and batch_sizes need a value each"),
        ('text = "t"\nlearning_rates = [2]\n', "learning_rates must lie between 0 and 1"),
        ('text = "t"\nlearning_rates = [1.0]\n', "learning_rates must lie between 0 and 1"),
        ('text = "t"\nlearning_rates = [1e-3, 0]\n', "learning_rates must lie between 0 and 1"),
        ('text = "t"\nlearning_rates = [-1e-3]\n', "learning_rates must lie between 0 and 1"),
        ('text = "t"\nmax_length = 0\n', "max_length, epochs and batch_sizes must be 1 or more"),
        ('text = "t"\nepochs = [1, 0]\n', "max_length, epochs and batch_sizes must be 1 or more"),
        ('text = "t"\nbatch_sizes = [0]\n', "max_length, epochs and batch_sizes must be 1 or more"),
        ('text = "t"\nlabels = "billing"\n', "labels: Input should be a list, in square brackets"),
        ('text = "t"\nepochs = 3\n', "epochs: Input should be a list, in square brackets"),
        ("text = ", "not a TOML file"),
        ('kind = "ner"\n', "kind: 'ner' is none of texts, tags, questions"),
        ('kind = ["tags"]\n', "kind: ['tags'] is none of texts, tags, questions"),
        (
            'kind = "tags"\nlabels = ["a"]\n',
            'labels is a setting of kind = "texts", not of "tags"; write that kind, or leave it out',
        ),
        ('types = ["a"]\n', 'types is a setting of kind = "tags", not of "texts"; write that kind, or leave it out'),
        ('kind = "tags"\ncolumn = 2\n', "unknown setting column; known here: batch_sizes, dev, epochs, kind"),
        ('kind = "tags"\ntypes = ["A", "A"]\n', "types must be words, each once"),
        ('kind = "tags"\ntypes = ["A B"]\n', "types must be words, each once"),
        ('kind = "tags"\ntypes = [""]\n', "types must be words, each once"),
        ('kind = "tags"\ntypes = "A"\n', "types: Input should be a list, in square brackets"),
        ('kind = "tags"\ntag = 1\n', "tag: the column of the tag must be 2 or more; the first is the word's"),
        ('kind = "tags"\ntag = true\n', "tag is true; give a number"),
        ('kind = "tags"\ndev = "../dev.txt"\n', "dev: '../dev.txt' is no name of a file; --data names the folder"),
        ('kind = "tags"\ntest = "/test.txt"\n', "test: '/test.txt' is no name of a file; --data names the folder"),
        ('kind = "tags"\ndev = ".."\n', "dev: '..' is no name of a file; --data names the folder"),
        ('kind = "tags"\ndev = "a\\u0000"\n', "dev: 'a\\x00' is no name of a file; --data names the folder"),
        ('kind = "tags"\ntrain = ""\n', "train: '' is no name of a file; --data names the folder"),
        ('kind = "tags"\ndev = "TRAIN.txt"\n', "train, dev and test must be different files"),
        ('kind = "tags"\nepochs = []\n', "learning_rates, epochs and batch_sizes need a value each"),
        ('kind = "questions"\nversion = "2.0"\n', "unknown setting version; known here: batch_sizes, dev, epochs"),
        ('kind = "questions"\ntrain = "a/b.json"\n', "train: 'a/b.json' is no name of a file; --data names the folder"),
        ('kind = "questions"\nmax_length = 0\n', "max_length, epochs and batch_sizes must be 1 or more"),
    ],
)
def test_files_that_describe_no_task(tmp_path: Path, text: str, told: str) -> None:
    assert message(write_task(tmp_path, text)).startswith(told)


def test_names_that_will_not_do(tmp_path: Path) -> None:
    for name in ("mrpc", "glue", "states", "models", "Predictions", "final"):  # tasks, a group, and parts of folders
        told = message(write_task(tmp_path, TICKETS, f"{name}.toml"))
        assert told == f"{name} is a name of ours; give the file another one"
    assert message(write_task(tmp_path, TICKETS, "my tickets.toml")).startswith("a task is named like its file")
    assert message(tmp_path / "none.toml") == "can't read the task (No such file or directory)"


def test_a_column_that_is_there_twice_is_told(export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task, data = (
        write_task(tmp_path / "mine", "\ufeff" + TICKETS),
        write_tickets(tmp_path / "data"),
    )  # a mark, as some write
    (train,) = data.rglob("train.tsv")
    header, *rows = train.read_text().splitlines()
    train.write_text("\n".join([f"{header}\tqueue", *(f"{row}\tbilling" for row in rows)]) + "\n")
    assert evaluate(export, task, data, tmp_path / "out") == 2
    assert "train.tsv: line 1: 2 columns are called 'queue'; leave one" in capsys.readouterr().err


def test_ids_that_it_names_must_be_there(export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task, data = write_task(tmp_path / "mine", 'id = "tickt"\n' + TICKETS), write_tickets(tmp_path / "data")
    assert evaluate(export, task, data, tmp_path / "out") == 2
    assert "train.tsv: line 1: no column 'tickt'" in capsys.readouterr().err


def test_sequences_without_room_for_texts(export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = TICKETS.replace("max_length = 20", "max_length = 3")
    task, data = write_task(tmp_path / "mine", short), write_tickets(tmp_path / "data")
    assert evaluate(export, task, data, tmp_path / "out") == 2
    assert "sequences of 3 tokens have no room for texts; give 4 or more" in capsys.readouterr().err
    task = write_task(tmp_path / "mine", short.replace("= 3", "= 4").replace("1e-3, 2e-3", "1e-3"))
    assert evaluate(export, task, data, tmp_path / "out") == 0


def test_its_files_are_not_on_the_hub(export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = write_task(tmp_path, TICKETS)
    argv = ["--checkpoint", str(export), "--tasks", str(task), "--hub", "--output", str(tmp_path / "out")]
    assert main(argv) == 2
    assert "tickets.toml: files of your own are not on the hub" in capsys.readouterr().err


def test_a_label_that_the_file_does_not_name(export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task, data = write_task(tmp_path / "mine", TICKETS), write_tickets(tmp_path / "data")
    write_table(data / "dev.tsv", ["body", "queue", "subject"], [["word1", "sales", "word2"]])
    assert evaluate(export, task, data, tmp_path / "out") == 2
    told = capsys.readouterr().err
    assert "dev.tsv: line 2, column 'queue': 'sales' is not a label; expected billing or delivery or other" in told
