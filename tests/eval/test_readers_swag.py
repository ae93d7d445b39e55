"""SWAG's CSV and CODAH's table: literals, and the real files."""

import csv
from collections import Counter

import pytest

from eval.readers.examples import ChoiceExample, DatasetError
from eval.readers.swag import read, read_codah

HEADER = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label"
ROW = '17,anetv_1,2,"He runs, fast. He",He runs. Fast.,He,gold,"says ""stop"", then sits",b,"c\nd",,1'
EXAMPLE = ChoiceExample("17", "He runs. Fast.", "He", ('says "stop", then sits', "b", "c\nd", ""), 1)


def write(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("place", ["", "swag", "swag/data", "SWAG/data"])
def test_swag(tmp_path, place):
    file = write(tmp_path / place / "val.csv", HEADER, ROW)
    assert read(tmp_path, "dev") == read(file, "dev") == [EXAMPLE]


def test_empty_lines_are_passed_over(tmp_path):
    """As some programs leave them at the end."""
    file = write(tmp_path / "val.csv", HEADER, ROW, "", "")
    assert read(file, "dev") == [EXAMPLE]


def test_a_test_set_has_no_labels(tmp_path):
    write(tmp_path / "test.csv", HEADER.removesuffix(",label"), ROW.removesuffix(",1"))
    assert [example.label for example in read(tmp_path, "test")] == [None]
    write(tmp_path / "test.csv", HEADER, ROW.removesuffix("1"))
    assert [example.label for example in read(tmp_path, "test")] == [None]


def test_a_test_set_with_labels_has_one_in_each_row(tmp_path):
    file = write(tmp_path / "test.csv", HEADER, ROW)
    assert read(file, "test") == [EXAMPLE]
    write(file, HEADER, ROW, ROW.removesuffix("1"))
    with pytest.raises(DatasetError, match="line 5, column 'label': '' is not the number of an ending"):
        read(file, "test")


def test_rows_without_ids_are_numbered_from_0(tmp_path):
    file = write(tmp_path / "val.csv", HEADER.removeprefix(","), *2 * [ROW.removeprefix("17,")])
    assert [example.id for example in read(file, "dev")] == ["0", "1"]


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([HEADER.replace("sent2", "sent_2"), ROW], "line 1: no column 'sent2'; is it a file of SWAG?"),
        ([HEADER.removesuffix(",label"), ROW], "line 1: no column 'label'; is it a file of SWAG?"),
        ([HEADER, ROW, "18,a,b"], "line 4: 3 cells instead of 12; mend the line"),
        ([HEADER, ROW + ",1"], "line 3: 13 cells instead of 12; mend the line"),
        ([HEADER, ROW.removesuffix("1") + "4"], "line 3, column 'label': '4' is not the number of an ending, 0 to 3"),
        ([HEADER, ROW.removesuffix("1")], "line 3, column 'label': '' is not the number of an ending, 0 to 3"),
        (
            [HEADER, ROW.replace("17", '"1\t7"')],
            "line 3, column '': '1\\t7' holds a tab or a line's end, which no id may; mend the line",
        ),
        (
            [HEADER, ROW.replace("17", '"1\n7"')],
            "line 4, column '': '1\\n7' holds a tab or a line's end, which no id may; mend the line",
        ),
        ([HEADER, ROW.replace('"c', 'c"')], "line 2: 10 cells instead of 12; mend the line"),
        ([HEADER, ROW.replace('d"', "d")], "line 3: not CSV (unexpected end of data); mend the line"),
        ([HEADER], "no rows; give a file with examples"),
        ([], "line 1: no column 'sent1'; is it a file of SWAG?"),
    ],
)
def test_malformed_files(tmp_path, lines, problem):
    file = write(tmp_path / "val.csv", *lines)
    with pytest.raises(DatasetError) as raised:
        read(tmp_path, "dev")
    assert str(raised.value) == f"{file}: {problem}"


@pytest.mark.parametrize("place", ["codah/full_data.tsv", "swag/full_data.tsv", "swag/codah.full_data.tsv"])
def test_codah(tmp_path, place):
    lines = [f'o\tprompt {i}\ta\tb\t"c\td\t{i % 4}' for i in range(10)]
    file = write(tmp_path / place, *lines)
    assert read_codah(tmp_path, "train")[3] == ChoiceExample("3", "prompt 3", "", ("a", "b", '"c', "d"), 3)
    assert [example.id for example in read_codah(tmp_path, "dev")] == ["4", "9"]
    assert [example.id for example in read_codah(file, "train")] == ["0", "1", "2", "3", "5", "6", "7", "8"]


@pytest.mark.parametrize(
    ("line", "split", "message"),
    [
        ("o\tprompt\ta\tb\tc\td", "train", "{file}: line 1: 6 cells instead of 7; mend the line"),
        ("o\tprompt\ta\tb\tc\td\te\t1", "train", "{file}: line 1: 8 cells instead of 7; mend the line"),
        (
            "o\tprompt\ta\tb\tc\td\t4",
            "train",
            "{file}: line 1, column 'label': '4' is not the number of an ending, 0 to 3",
        ),
        ("", "train", "{file}: no rows; give a file with examples"),
        ("", "test", "CODAH has no split 'test'; known here: train, dev"),
    ],
)
def test_malformed_codah(tmp_path, line, split, message):
    file = write(tmp_path / "full_data.tsv", line)
    with pytest.raises(DatasetError) as raised:
        read_codah(tmp_path, split)
    assert str(raised.value) == message.format(file=file)


def test_missing_files(tmp_path):
    for reader, name, places in (
        (read, "val.csv", "swag/, swag/data/, SWAG/data/, ./"),
        (read_codah, "codah.full_data.tsv", "codah/, swag/, ./"),
    ):
        with pytest.raises(DatasetError) as raised:
            reader(tmp_path, "dev")
        expected = f"{tmp_path}: no {name} in {places}; put it there, or give the folder that holds it"
        assert str(raised.value) == expected


@pytest.mark.parametrize(("split", "rows"), [("train.sample", 91), ("test.sample", 7)])
def test_real_swag(real_data, split, rows):
    examples = read(real_data, split)
    with (real_data / "swag" / f"{split}.csv").open(encoding="utf-8", newline="") as file:
        expected = list(csv.DictReader(file))
    assert len(examples) == len(expected) == rows
    for example, row in zip(examples, expected, strict=True):
        assert (example.context, example.start, str(example.label)) == (row["sent1"], row["sent2"], row["label"])
        assert f"{example.context} {example.start}" == row["startphrase"]
        assert example.endings == tuple(row[f"ending{i}"] for i in range(4))


def test_real_codah(real_data):
    train, dev = read_codah(real_data, "train"), read_codah(real_data, "dev")
    assert (len(train), len(dev)) == (2221, 555)
    assert Counter(e.label for e in train + dev) == {0: 689, 1: 684, 2: 697, 3: 706}
    assert not {e.id for e in train} & {e.id for e in dev}
