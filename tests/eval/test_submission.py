"""GLUE's zip: what is in it, the same bytes each time, and what GLUE would refuse."""

import zipfile

import pytest

from eval.readers import tables
from eval.readers.glue import GLUE
from eval.submission import tables_in, write_glue_submission

ROWS = {
    "CoLA": 1063, "SST-2": 1821, "MRPC": 1725, "STS-B": 1379, "QQP": 390965, "MNLI": 9796, "MNLI-mm": 9847,
    "QNLI": 5463, "RTE": 3000, "WNLI": 146, "AX": 1104,
}  # fmt: skip


def contents(path):
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name).decode() for name in archive.namelist()}


def test_labels_are_words(tmp_path):
    path = tmp_path / "glue.zip"
    write_glue_submission(
        {
            "MNLI-mm": [("0", 0), ("1", 1), ("2", 2)],
            "CoLA": [("0", 1), ("1", 0)],
            "STS-B": [("0", 5.2), ("1", -0.01), ("2", 2.71828), ("3", 3)],
            "RTE": [("0", 1), ("1", 0)],
        },
        path,
    )
    assert contents(path) == {
        "CoLA.tsv": "index\tprediction\n0\t1\n1\t0\n",
        "STS-B.tsv": "index\tprediction\n0\t5.000\n1\t0.000\n2\t2.718\n3\t3.000\n",
        "MNLI-mm.tsv": "index\tprediction\n0\tentailment\n1\tneutral\n2\tcontradiction\n",
        "RTE.tsv": "index\tprediction\n0\tnot_entailment\n1\tentailment\n",
    }


def test_a_whole_submission(tmp_path):
    predictions = {task: [(str(i), 0) for i in range(count)] for task, count in ROWS.items()}
    first, second = tmp_path / "first.zip", tmp_path / "second.zip"
    assert write_glue_submission(predictions, first) == ()
    assert list(contents(first)) == [
        "CoLA.tsv", "SST-2.tsv", "MRPC.tsv", "STS-B.tsv", "QQP.tsv", "MNLI-m.tsv", "MNLI-mm.tsv", "QNLI.tsv",
        "RTE.tsv", "WNLI.tsv", "AX.tsv",
    ]  # fmt: skip
    assert write_glue_submission(dict(reversed(predictions.items())), second) == ()
    assert first.read_bytes() == second.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first.zip", "second.zip"]


def test_the_bytes_do_not_tell_when_they_were_written(tmp_path):
    """Two that are written within a second would be alike in any case."""
    write_glue_submission({"RTE": [("0", 1)]}, tmp_path / "glue.zip")
    with zipfile.ZipFile(tmp_path / "glue.zip") as archive:
        assert [file.date_time for file in archive.infolist()] == [(1980, 1, 1, 0, 0, 0)]


def test_a_zip_that_finds_no_room_leaves_the_one_before(tmp_path, monkeypatch):
    path = tmp_path / "glue.zip"
    write_glue_submission({"RTE": [("0", 1)]}, path)
    before = path.read_bytes()
    monkeypatch.setattr("pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(OSError("no space left")))
    with pytest.raises(OSError, match="no space"):
        write_glue_submission({"RTE": [("0", 0)]}, path)
    assert path.read_bytes() == before


def test_the_tables_in_a_zip_that_may_be_none(tmp_path):
    path = tmp_path / "glue.zip"
    assert tables_in(path) == []
    write_glue_submission({"RTE": [("0", 1)], "MNLI": [("0", 1)]}, path)
    assert tables_in(path) == ["MNLI-m.tsv", "RTE.tsv"]
    path.write_bytes(path.read_bytes()[:50])
    assert tables_in(path) == []


def test_what_glue_would_refuse_is_named(tmp_path):
    predictions = {task: [(str(i), 0) for i in range(count)] for task, count in ROWS.items() if task != "QQP"}
    predictions["WNLI"].pop()
    assert write_glue_submission(predictions, tmp_path / "glue.zip") == (
        "QQP: 0 predictions for 390,965 test examples",
        "WNLI: 145 predictions for 146 test examples",
    )
    assert "QQP.tsv" not in contents(tmp_path / "glue.zip")


@pytest.mark.parametrize(
    ("predictions", "message"),
    [
        ({"MNLI-m": []}, f"GLUE has no task 'MNLI-m'; it has {', '.join(ROWS)}"),
        ({"RTE": [("0", 2)]}, "RTE: 2 is not the index of a label, 0 to 1"),
        ({"RTE": [("0", 0.5)]}, "RTE: 0.5 is not the index of a label, 0 to 1"),
        ({"STS-B": [("0", float("nan"))]}, "STS-B: a prediction is not a number"),
    ],
)
def test_mistakes_leave_no_file(tmp_path, predictions, message):
    with pytest.raises(ValueError, match=r"is not|GLUE has no task") as raised:
        write_glue_submission(predictions, tmp_path / "glue.zip")
    assert str(raised.value) == message
    assert list(tmp_path.iterdir()) == []


def test_the_sizes_are_those_of_the_real_test_sets(real_data):
    for task in GLUE:
        if task not in ("QQP", "MNLI", "MNLI-mm", "QNLI"):  # not at hand
            assert len(tables.read(GLUE[task], real_data, "test")) == ROWS[task]
