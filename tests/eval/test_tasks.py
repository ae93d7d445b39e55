"""The table of tasks: the paper's settings, data sets that exist, and how little one more takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from eval import tasks
from eval.encoding import Encoder
from eval.features import FeatureTags
from eval.grid import Search, grid
from eval.kinds import Questions, Tags, Texts
from eval.readers import tables
from eval.readers.hub import HUB
from eval.readers.tables import TextTable
from eval.submission import write_glue_submission
from eval.tasks import GROUPS, TASKS, datasets, select
from eval.tasks.finetuned import FINE_TUNED, FineTuned
from preprocessing.tokenization import load_tokenizer
from tests.eval.small_data import write_table


def test_groups() -> None:
    assert [task.name for task in select(["fill_mask", "pretraining", "mlm"])] == ["fill_mask", "mlm", "nsp"]
    assert all(set(members) <= TASKS.keys() for members in GROUPS.values())
    assert len(GROUPS["glue"]) == 9
    assert len(GROUPS["conll2003_features"]) == 6


def test_unknown_names() -> None:
    with pytest.raises(
        ValueError, match=r"^no task is named 'glu'; there are mlm, nsp, .*, pretraining \(mlm \+ nsp\)"
    ):
        select(["mlm", "glu"])
    with pytest.raises(ValueError, match=r"^no tasks; name some of mlm, nsp, "):
        select([])


@pytest.mark.parametrize("task", FINE_TUNED.values(), ids=FINE_TUNED.keys())
def test_every_row_is_sound(task: FineTuned) -> None:
    splits = [task.train, *task.dev.values(), *task.test]
    assert {name for name, _ in splits} <= datasets.READERS.keys()
    assert next(iter(task.dev)) == ""
    for name, split in splits:  # CODAH is not on the hub in this form, KorQuAD's and others' test sets not at all
        if name in HUB and name != "SWAG":
            assert split in HUB[name].splits
    if isinstance(task.kind, Texts):
        assert task.best in task.kind.metrics
    else:
        assert task.best in ("f1", "accuracy")


def test_what_the_paper_tried() -> None:
    points = {name: grid(FINE_TUNED[name], Search()) for name in ("mrpc", "squad_v1", "squad_v2", "swag", "conll2003")}
    assert [(p.learning_rate, p.epochs, p.batch_size) for p in points["mrpc"]] == [
        (5e-5, 3, 32), (4e-5, 3, 32), (3e-5, 3, 32), (2e-5, 3, 32),
    ]  # fmt: skip
    assert [(p.learning_rate, p.epochs, p.batch_size) for p in points["squad_v1"]] == [(5e-5, 3, 32)]
    assert [(p.learning_rate, p.epochs, p.batch_size) for p in points["squad_v2"]] == [(5e-5, 2, 48)]
    assert [(p.learning_rate, p.epochs, p.batch_size) for p in points["swag"]] == [(2e-5, 3, 16)]
    assert len(points["conll2003"]) == 18
    assert FINE_TUNED["squad_v2"].kind == Questions("v2.0")
    assert FINE_TUNED["conll2003"].kind == Tags(context=True)
    layers = {name: (k.first, k.last, k.combine) for name in GROUPS["conll2003_features"]
              if isinstance(k := FINE_TUNED[name].kind, FeatureTags)}  # fmt: skip
    assert layers == {
        "conll2003_embeddings": (0, 0, "concatenated"),
        "conll2003_second_to_last": (-2, -2, "concatenated"),
        "conll2003_last": (-1, -1, "concatenated"),
        "conll2003_sum_last_four": (-4, -1, "weighted"),
        "conll2003_concat_last_four": (-4, -1, "concatenated"),
        "conll2003_sum_all": (1, -1, "weighted"),
    }


def test_glue_has_all_tests_for_a_submission(tmp_path: Path) -> None:
    names = {name for task in GROUPS["glue"] for name, _ in FINE_TUNED[task].test}
    problems = write_glue_submission({name: [] for name in names}, tmp_path / "s.zip")
    assert len(names) == len(problems) == 11  # all tasks, and none whole


def test_one_more_task_takes_two_rows(tmp_path: Path, shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As docs/evaluation.md shows it."""
    boolq = TextTable(folders=("BoolQ",), a="question", b="passage", label="answer", labels=("false", "true"))
    monkeypatch.setitem(datasets.READERS, "BoolQ", lambda data, split: tables.read(boolq, data, split))
    task = FineTuned(
        name="boolq",
        version=1,
        kind=Texts(("false", "true")),
        best="accuracy",
        train=("BoolQ", "train"),
        dev={"": ("BoolQ", "dev")},
        max_length=256,
    )
    monkeypatch.setitem(tasks.TASKS, "boolq", task)

    rows = [["word1 word2", "word3", "true"], ["word4", "word5 word6", "false"]]
    write_table(tmp_path / "BoolQ" / "train.tsv", ["question", "passage", "answer"], rows)
    assert select(["boolq"]) == [task]
    examples = datasets.read(*task.train, tmp_path)
    encoder = Encoder(load_tokenizer(shards / "tokenizer"), 16)
    samples = task.kind.encode(examples, encoder, training=True)
    assert [(sample.size, sample.targets) for sample in samples] == [(6, (1,)), (6, (0,))]
