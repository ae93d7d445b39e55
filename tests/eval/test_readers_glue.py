"""GLUE's tables: literals, and the real files against pandas."""

import csv
import logging
import tracemalloc
from pathlib import Path

import pandas as pd
import pytest

from eval.readers import tables
from eval.readers.examples import DatasetError, TextExample
from eval.readers.glue import GLUE


def write(path: Path, *lines: str, newline: str = "\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(line + newline for line in lines).encode())
    return path


MNLI_COLUMNS = (
    "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse\t"
    "sentence1\tsentence2\tlabel1\t"
)


@pytest.mark.parametrize(
    ("task", "file", "lines", "examples"),
    [
        ("CoLA", "CoLA/dev.tsv", ["gj04\t1\t\tHe ate.", "gj04\t0\t*\tHim ate."],
         [TextExample("0", "He ate.", None, 1), TextExample("1", "Him ate.", None, 0)]),
        ("CoLA", "CoLA/test.tsv", ["index\tsentence", "7\tHe ate."], [TextExample("7", "He ate.", None, None)]),
        ("SST-2", "SST-2/dev.tsv", ["sentence\tlabel", 'a " half-quoted line \t1'],
         [TextExample("0", 'a " half-quoted line ', None, 1)]),
        ("MRPC", "MRPC/dev.tsv", ["\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String", '1\t3\t4\t" a\tb " c'],
         [TextExample("0", '" a', 'b " c', 1)]),
        ("MRPC", "MRPC/test.tsv", ["index\t#1 ID\t#2 ID\t#1 String\t#2 String", "9\t3\t4\ta\tb"],
         [TextExample("9", "a", "b", None)]),
        ("STS-B", "STS-B/dev.tsv", ["index\tsentence1\tsentence2\tscore", "3\ta\tb\t4.750"],
         [TextExample("3", "a", "b", 4.75)]),
        ("QQP", "QQP/dev.tsv", ["id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "11\t1\t2\ta?\t\t0"],
         [TextExample("11", "a?", "", 0)]),
        ("MNLI", "MNLI/dev_matched.tsv",
         [MNLI_COLUMNS + "label2\tgold_label", "5" + 8 * "\ta" + "\tb\tneutral\tneutral\tcontradiction"],
         [TextExample("5", "a", "b", 2)]),
        ("MNLI-mm", "MNLI/dev_mismatched.tsv", ["index\tgold_label\tsentence2\tsentence1", "0\tneutral\tb\ta"],
         [TextExample("0", "a", "b", 1)]),
        ("MNLI-mm", "MNLI/test_mismatched.tsv", ["index\tsentence1\tsentence2", "0\ta\tb"],
         [TextExample("0", "a", "b", None)]),
        ("QNLI", "QNLI/train.tsv", ["index\tquestion\tsentence\tlabel", "0\ta?\tb\tnot_entailment"],
         [TextExample("0", "a?", "b", 1)]),
        ("RTE", "RTE/dev.tsv", ["index\tsentence1\tsentence2\tlabel", "0\ta\tb\tentailment"],
         [TextExample("0", "a", "b", 0)]),
        ("WNLI", "WNLI/dev.tsv", ["index\tsentence1\tsentence2\tlabel", "0\ta\tb\t1"], [TextExample("0", "a", "b", 1)]),
        ("AX", "diagnostic/diagnostic.tsv", ["index\tsentence1\tsentence2", "9\ta\tb"],
         [TextExample("9", "a", "b", None)]),
    ],
)  # fmt: skip
def test_every_task(tmp_path, task, file, lines, examples):
    write(tmp_path / file, *lines)
    split = next(name for name in ("train", "dev", "test", "diagnostic") if name in Path(file).stem)
    assert tables.read(GLUE[task], tmp_path, split.replace("diagnostic", "test")) == examples


RTE = ["index\tsentence1\tsentence2\tlabel", "0\ta\tb\tentailment"]


@pytest.mark.parametrize("place", ["RTE", "rte", "glue/RTE", "GLUE/Rte", "glue_data/RTE"])
def test_the_folder_is_found_whatever_its_case(tmp_path, monkeypatch, place):
    write(tmp_path / place / "dev.tsv", *RTE)
    write(tmp_path / "WNLI/dev.tsv", *RTE)  # another task's doesn't serve
    expected = [TextExample("0", "a", "b", 0)]
    assert tables.read(GLUE["RTE"], tmp_path, "dev") == expected
    assert tables.read(GLUE["RTE"], tmp_path / place, "dev") == expected
    assert tables.read(GLUE["RTE"], tmp_path / place / "dev.tsv", "dev") == expected
    monkeypatch.chdir(tmp_path / place)
    assert tables.read(GLUE["RTE"], Path(), "dev") == expected


def test_of_several_in_another_case_the_first_by_name_is_taken(tmp_path):
    for name in ("rte", "rtE", "rTe", "rTE", "Rte", "RtE", "RTe"):
        write(tmp_path / name / "dev.tsv", RTE[0], f"0\t{name}\tb\tentailment")
    assert tables.read(GLUE["RTE"], tmp_path, "dev")[0].a == "RTe"


def test_the_exact_name_comes_first(tmp_path):
    write(tmp_path / "rte/dev.tsv", *RTE)
    write(tmp_path / "RTE/DEV.tsv", *RTE)
    write(tmp_path / "RTE/dev.tsv", RTE[0], "0\tc\td\tentailment")
    assert tables.read(GLUE["RTE"], tmp_path, "dev")[0].a == "c"


def test_a_file_of_a_folder_s_name_is_not_in_the_way(tmp_path):
    write(tmp_path / "glue", "something else")
    write(tmp_path / "glue_data/RTE/dev.tsv", *RTE)
    assert len(tables.read(GLUE["RTE"], tmp_path, "dev")) == 1


def test_all_splits_are_taken_from_the_first_folder_that_has_any(tmp_path):
    first = write(tmp_path / "RTE/train.tsv", *RTE).parent
    write(tmp_path / "glue/RTE/train.tsv", RTE[0], "0\tc\td\tentailment")
    write(tmp_path / "glue/RTE/dev.tsv", *RTE)
    assert tables.read(GLUE["RTE"], tmp_path, "train")[0].a == "a"
    with pytest.raises(DatasetError) as raised:
        tables.read(GLUE["RTE"], tmp_path, "dev")
    assert str(raised.value) == f"{first}: no dev.tsv beside train.tsv; put all of the data set into one folder"
    (first / "train.tsv").rename(first / "dev_ids.tsv")  # a folder with other files is not in the way
    assert tables.read(GLUE["RTE"], tmp_path, "train")[0].a == "c"


def test_another_split_is_a_file(tmp_path):
    write(tmp_path / "RTE/dev_from_train.tsv", *RTE)
    assert len(tables.read(GLUE["RTE"], tmp_path, "dev_from_train")) == 1


def test_line_ends(tmp_path):
    """A row ends with LF or CR LF; what else Unicode takes for the end of a line belongs to the text."""
    write(tmp_path / "RTE/dev.tsv", RTE[0], "0\ta\u2028b\x85c\x0bd\re\tf\tentailment", "", "", newline="\r\n")
    assert tables.read(GLUE["RTE"], tmp_path, "dev") == [TextExample("0", "a\u2028b\x85c\x0bd\re", "f", 0)]


def test_microsofts_own_mrpc(tmp_path):
    file = write(
        tmp_path / "msr_paraphrase_test.txt",
        "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String",
        "0\t1\t2\ta\tb",
        newline="\r\n",
    )
    assert tables.read(GLUE["MRPC"], file, "test") == [TextExample("0", "a", "b", 0)]


def test_what_the_official_processing_leaves_out(tmp_path, caplog):
    columns = "index\tsentence1\tsentence2\tgold_label"
    mnli = write(tmp_path / "MNLI/dev_matched.tsv", columns, "0\ta\tb\t-", "1\tc\td\tneutral", "2\te\tf\t-")
    qqp = write(
        tmp_path / "QQP/train.tsv",
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
        "1\t1\t2\ta",
        "2\t1\t2\tc\td\t1",
    )
    with caplog.at_level(logging.WARNING):
        assert tables.read(GLUE["MNLI"], tmp_path, "dev") == [TextExample("1", "c", "d", 1)]
        assert tables.read(GLUE["QQP"], tmp_path, "train") == [TextExample("2", "c", "d", 1)]
    assert [record.message for record in caplog.records] == [
        f"{mnli}: left out 2 rows without a label ('-')",
        f"{qqp}: left out 1 rows with too few cells",
    ]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["index\tsentence1\tsentence2", "0\ta\tb"],
         "{file}: line 1: no column 'label' among 'index, sentence1, sentence2'; is it a file of this task?"),
        (["index\tquestion\tsentence\tlabel", "0\ta\tb\tentailment"],
         "{file}: line 1: no column 'sentence1' among 'index, question, sentence, label'; is it a file of this task?"),
        ([*RTE, "1\ta\tb"],
         "{file}: line 3: 3 cells instead of 4 (index, sentence1, sentence2, label); "
         "cells are separated by tabs and never quoted: mend the line"),
        ([*RTE, '1\t"a\tb"\tc\tentailment'],
         "{file}: line 3: 5 cells instead of 4 (index, sentence1, sentence2, label); "
         "cells are separated by tabs and never quoted: mend the line"),
        ([*RTE, "", "1\ta\tb\tentailment"],
         "{file}: line 3: 1 cells instead of 4 (index, sentence1, sentence2, label); "
         "cells are separated by tabs and never quoted: mend the line"),
        ([*RTE, "1\ta\tb\tneutral"],
         "{file}: line 3, column 'label': 'neutral' is not a label; expected entailment or not_entailment"),
        ([RTE[0]], "{file}: no rows; give a file with examples"),
        ([], "{file}: no rows; give a file with examples"),
    ],
)  # fmt: skip
def test_malformed_files(tmp_path, lines, message):
    file = write(tmp_path / "RTE/dev.tsv", *lines)
    with pytest.raises(DatasetError) as raised:
        tables.read(GLUE["RTE"], tmp_path, "dev")
    assert str(raised.value) == message.format(file=file)


@pytest.mark.parametrize("task", ["RTE", "STS-B"])
def test_labels_of_a_test_set_that_are_all_empty_are_missing(tmp_path, task):
    """As pandas writes a column of none."""
    header = f"index\tsentence1\tsentence2\t{GLUE[task].label}"
    for split in ("dev", "test"):
        write(tmp_path / f"{task}/{split}.tsv", header, "0\ta\tb\t", "1\tc\td\t")
    assert [example.label for example in tables.read(GLUE[task], tmp_path, "test")] == [None, None]
    with pytest.raises(DatasetError, match=f"line 2, column '{GLUE[task].label}': '' is not a "):
        tables.read(GLUE[task], tmp_path, "dev")
    write(tmp_path / f"{task}/test.tsv", header, "0\ta\tb\t", f"1\tc\td\t{(*GLUE[task].labels, '5')[0]}")
    with pytest.raises(DatasetError, match=f"line 2, column '{GLUE[task].label}': '' is not a "):
        tables.read(GLUE[task], tmp_path, "test")


def test_the_scale_has_both_of_its_ends(tmp_path):
    write(tmp_path / "STS-B/dev.tsv", "index\tsentence1\tsentence2\tscore", "0\ta\tb\t0.000", "1\ta\tb\t5")
    assert [example.label for example in tables.read(GLUE["STS-B"], tmp_path, "dev")] == [0.0, 5.0]


@pytest.mark.parametrize("figure", ["5.001", "-0.1", "nan", "good", ""])
def test_figures_off_the_scale(tmp_path, figure):
    file = write(tmp_path / "STS-B/dev.tsv", "index\tsentence1\tsentence2\tscore", f"0\ta\tb\t{figure}")
    with pytest.raises(DatasetError) as raised:
        tables.read(GLUE["STS-B"], tmp_path, "dev")
    assert str(raised.value) == (
        f"{file}: line 2, column 'score': {figure!r} is not a figure; expected one from 0 to 5"
    )


def test_files_that_are_not_there_or_not_text(tmp_path):
    file = write(tmp_path / "RTE/dev.tsv", *RTE)
    file.write_bytes(file.read_bytes() + "1\t굳\tb\tentailment\n".encode("cp949"))
    (tmp_path / "RTE/folder.tsv").mkdir()
    for split, message in (
        ("dev", f"{file}: line 3: not UTF-8 (byte 0xb1); convert the file with iconv"),
        ("train", f"{tmp_path}/RTE: no train.tsv beside dev.tsv; put all of the data set into one folder"),
        ("folder", f"{tmp_path}/RTE/folder.tsv: can't read it (Is a directory)"),
    ):  # fmt: skip
        with pytest.raises(DatasetError) as raised:
            tables.read(GLUE["RTE"], tmp_path, split)
        assert str(raised.value) == message
    with pytest.raises(DatasetError) as raised:
        tables.read(GLUE["RTE"], tmp_path / "nowhere", "dev")
    assert str(raised.value) == f"{tmp_path}/nowhere: no such file or folder; give the folder that holds the data"


def test_columns_that_nobody_reads_take_no_memory(tmp_path):
    """Of MNLI's 400 MB nine tenths are parse trees; a letter beyond Latin-1 would double them again."""
    row = "1" + 7 * ("\t" + 1000 * "x") + "\ta’\tb\tneutral\tneutral"
    file = write(tmp_path / "MNLI/train.tsv", MNLI_COLUMNS + "gold_label", *[row] * 1000)
    tracemalloc.start()
    examples = tables.read(GLUE["MNLI"], tmp_path, "train")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert examples == [TextExample("1", "a’", "b", 1)] * 1000
    assert most < file.stat().st_size / 5


def test_nothing_but_rows_that_are_left_out(tmp_path):
    mnli = write(tmp_path / "MNLI/train.tsv", "index\tsentence1\tsentence2\tgold_label", "0\ta\tb\t-")
    qqp = write(tmp_path / "QQP/train.tsv", "id\tquestion1\tquestion2\tis_duplicate", "0\ta")
    for task, file in (("MNLI", mnli), ("QQP", qqp)):
        with pytest.raises(DatasetError) as raised:
            tables.read(GLUE[task], tmp_path, "train")
        assert str(raised.value) == f"{file}: no row is left; give a file with whole and labelled rows"


def test_a_row_has_its_number_whatever_is_left_out_before_it(tmp_path):
    write(tmp_path / "MNLI/train.tsv", "sentence1\tsentence2\tgold_label", "a\tb\t-", "c\td\tneutral")
    assert [example.id for example in tables.read(GLUE["MNLI"], tmp_path, "train")] == ["1"]


def test_rows_with_too_many_cells_are_never_left_out(tmp_path):
    qqp = write(tmp_path / "QQP/train.tsv", "id\tquestion1\tquestion2\tis_duplicate", "0\ta\tb\tc\t1")
    with pytest.raises(DatasetError, match=f"^{qqp}: line 2: 5 cells instead of 4 "):
        tables.read(GLUE["QQP"], tmp_path, "train")


def test_an_empty_file_of_a_task_whose_files_name_no_columns(tmp_path):
    file = write(tmp_path / "CoLA/dev.tsv")
    with pytest.raises(DatasetError, match=f"^{file}: no rows; give a file with examples$"):
        tables.read(GLUE["CoLA"], tmp_path, "dev")


# The counts are those of the hub's data cards where a file is whole.
@pytest.mark.parametrize(
    ("task", "split", "rows", "text", "label"),
    [
        ("CoLA", "train", 8551, 3, 1),
        ("CoLA", "test", 1063, "sentence", None),
        ("SST-2", "train", 67349, "sentence", "label"),
        ("SST-2", "dev", 872, "sentence", "label"),
        ("MRPC", "train", 3668, "#2 String", "Quality"),
        ("MRPC", "dev", 408, "#2 String", "Quality"),
        ("MRPC", "test", 1725, "#2 String", None),
        ("STS-B", "train", 5749, "sentence2", "score"),
        ("STS-B", "dev", 1500, "sentence2", "score"),
        ("STS-B", "test", 1379, "sentence2", None),
        ("QNLI", "dev", 5463, "sentence", "label"),
        ("RTE", "train", 2490, "sentence2", "label"),
        ("RTE", "dev", 277, "sentence2", "label"),
        ("WNLI", "train", 635, "sentence2", "label"),
        ("WNLI", "test", 146, "sentence2", None),
        ("AX", "test", 1104, "sentence2", None),
        ("QQP", "train", 8999, "question2", "is_duplicate"),
        ("MNLI", "train", 8999, "sentence2", "gold_label"),
        ("MNLI", "dev", 1000, "sentence2", "gold_label"),
        ("MNLI-mm", "dev", 1000, "sentence2", "gold_label"),
    ],
)
def test_real_files_as_pandas_reads_them(real_data, task, split, rows, text, label):
    data = real_data / ("glue_subset" if task[:3] in ("QQP", "MNL") else "glue")
    table = GLUE[task]
    folder = data / Path(table.folders[0])
    path = folder / table.files.get(split, (f"{split}.tsv",))[0]
    frame = pd.read_csv(
        path, sep="\t", quoting=csv.QUOTE_NONE, dtype=str, keep_default_na=False, encoding="utf-8-sig",
        header=None if isinstance(text, int) else 0,
    )  # fmt: skip
    examples = tables.read(GLUE[task], data, split)
    assert len(examples) == len(frame) == rows
    assert [example.b or example.a for example in examples] == frame[text].tolist()
    if label is None:
        assert {example.label for example in examples} == {None}
    elif task == "STS-B":
        assert [example.label for example in examples] == frame[label].astype(float).tolist()
    else:
        assert [table.labels[example.label] for example in examples] == frame[label].tolist()
    if "index" in frame:
        assert [example.id for example in examples] == frame["index"].tolist()
