"""The table of tasks: the paper's settings, data sets that exist, and how little one more takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from eval import tasks
from eval.encoding import Encoder
from eval.features import FeatureTags
from eval.grid import Search, grid
from eval.kinds import Questions, Tags, Texts
from eval.options import parse
from eval.paper import TABLES
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
    assert len(GROUPS["korean"]) == 4


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("mprc", "did you mean mrpc?"),
        ("SST-2", "did you mean sst2?"),
        ("squad1", "did you mean squad or squad_v1 or squad_v2?"),
        ("wiki", f"there are mlm, nsp, fill_mask, the groups {', '.join(GROUPS)} and what python -m eval.run --help "
         "lists; a task of your own is a file, such as wiki.toml"),
        ("tickets.tml", "a task of your own is a file, such as tickets.toml"),
        ("mine/my.toml.orig", "a task of your own is a file, such as mine/my.toml"),
        ("films", "a task of your own is named by its file, films.toml"),  # and not fill_mask, which is spelled alike
        ("films.tml", "a task of your own is named by its file, films.toml"),
        ("mine/films", "a task of your own is named by its file, mine/films.toml"),
        ("x" * 999, None),  # no file's name
        ("a\0b", None),
    ],
)  # fmt: skip
def test_an_unknown_name_is_told_with_what_may_be_meant(
    name: str, advice: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in (tmp_path, tmp_path / "mine"):
        folder.mkdir(exist_ok=True)
        (folder / "films.toml").touch()
    with pytest.raises(ValueError, match=r"^no task is named ") as told:
        select(["mlm", name])
    assert advice is None or str(told.value) == f"no task is named {name!r}; {advice}"


def test_no_names() -> None:
    with pytest.raises(ValueError, match=r"^no tasks; name some of mlm, nsp, "):
        select([])


def test_the_help_lists_all_tasks_and_groups(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        parse(["--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert f"Tasks: {', '.join(TASKS)}; groups: pretraining (mlm + nsp), glue (cola + sst2" in told


@pytest.mark.parametrize("task", FINE_TUNED.values(), ids=FINE_TUNED.keys())
def test_every_row_is_sound(task: FineTuned) -> None:
    splits = [task.train, *task.dev.values(), *task.test]
    assert {name for name, _ in splits} <= datasets.READERS.keys()
    assert next(iter(task.dev)) == ""
    assert task.train not in splits[1:]  # what is learned is not judged by
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
    assert {FINE_TUNED[name].max_length for name in GROUPS["glue"]} == {128}
    assert {FINE_TUNED[name].max_length for name in GROUPS["squad"]} == {384}
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


def test_what_others_tried() -> None:
    """Sun et al. (2019) for IMDB; KorQuAD as SQuAD v1.1."""
    points = [(p.learning_rate, p.epochs, p.batch_size) for p in grid(FINE_TUNED["imdb"], Search())]
    assert points == [(2e-5, 4, 24)]
    assert FINE_TUNED["imdb"].kind == Texts(("neg", "pos"), long_text="head+tail")
    assert grid(FINE_TUNED["korquad"], Search()) == grid(FINE_TUNED["squad_v1"], Search())


def test_of_several_metrics_that_of_the_paper_s_table_decides() -> None:
    (glue,) = (table for table in TABLES if table.title == "GLUE")
    compared = {measure.task: measure.metric for measure in glue.measures if measure.name != "MNLI-mm"}
    assert {name: FINE_TUNED[name].best for name in compared} == compared


def test_parts_of_several_data_sets_have_names() -> None:
    assert FINE_TUNED["mnli"].splits == {
        "train": ("MNLI", "train"), "dev": ("MNLI", "dev"), "dev_mm": ("MNLI-mm", "dev"),
        "test_MNLI": ("MNLI", "test"), "test_MNLI-mm": ("MNLI-mm", "test"), "test_AX": ("AX", "test"),
    }  # fmt: skip
    assert FINE_TUNED["kornli"].splits == {part: ("KorNLI", part) for part in ("train", "dev", "test")}


def test_which_data_sets_have_a_test_set_besides_what_is_judged_by() -> None:
    others = {name for name, task in FINE_TUNED.items() if task.test} - set(GROUPS["glue"])
    assert others == {"swag", "conll2003", "kornli", "korsts"}


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
