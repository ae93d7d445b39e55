"""NSMC, KorNLI and KorSTS: literals, and the real files against what is known of them."""

from collections import Counter

import pytest

from eval.readers import tables
from eval.readers.examples import DatasetError, TextExample
from eval.readers.korean import KOREAN


def test_nsmc(tmp_path):
    (tmp_path / "ratings_test.txt").write_text("id\tdocument\tlabel\n6270596\t굳 ㅋ\t1\n42\t\t0\n", encoding="utf-8")
    expected = [TextExample("6270596", "굳 ㅋ", None, 1), TextExample("42", "", None, 0)]  # some reviews are empty
    assert tables.read(KOREAN["NSMC"], tmp_path, "test") == expected
    assert tables.read(KOREAN["NSMC"], tmp_path / "ratings_test.txt", "test") == expected
    (tmp_path / "ratings_train.txt").write_text("id\tdocument\tlabel\n7\t좋다\t1\n", encoding="utf-8")
    assert tables.read(KOREAN["NSMC"], tmp_path, "train") == [TextExample("7", "좋다", None, 1)]


@pytest.mark.parametrize(
    ("content", "problem"),
    [("id\tdocument\n7\t굳\n", "line 1: no column 'label'"), ("id\tdocument\tlabel\n7\t굳\t\n", "'' is not a label")],
)
def test_nsmc_is_judged_by_its_test_set_which_has_labels(tmp_path, content, problem):
    (tmp_path / "ratings_test.txt").write_text(content, encoding="utf-8")
    with pytest.raises(DatasetError, match=problem):
        tables.read(KOREAN["NSMC"], tmp_path, "test")


@pytest.mark.parametrize("place", ["KorNLI", "korean/KorNLI"])
def test_kornli_trains_on_two_files(tmp_path, place):
    folder = tmp_path / place
    folder.mkdir(parents=True)
    header = "sentence1\tsentence2\tgold_label\n"
    (folder / "multinli.train.ko.tsv").write_text(f'{header}가\t"나\tneutral\n', encoding="utf-8")
    (folder / "snli_1.0_train.ko.tsv").write_text(f"{header}다\t라\tcontradiction\n", encoding="utf-8")
    assert tables.read(KOREAN["KorNLI"], tmp_path, "train") == [
        TextExample("0", "가", '"나', 1),
        TextExample("1", "다", "라", 2),
    ]
    assert tables.read(KOREAN["KorNLI"], folder / "snli_1.0_train.ko.tsv", "train") == [TextExample("0", "다", "라", 2)]
    (folder / "xnli.test.ko.tsv").write_text(f"{header}마\t바\tentailment\n", encoding="utf-8")
    assert tables.read(KOREAN["KorNLI"], tmp_path, "test") == [TextExample("0", "마", "바", 0)]
    (folder / "snli_1.0_train.ko.tsv").unlink()
    with pytest.raises(DatasetError) as raised:
        tables.read(KOREAN["KorNLI"], tmp_path, "train")
    assert str(raised.value) == (
        f"{folder}: no snli_1.0_train.ko.tsv beside multinli.train.ko.tsv; put all of the data set into one folder"
    )


def test_korsts(tmp_path):
    columns = "genre\tfilename\tyear\tid\tscore\tsentence1\tsentence2"
    row = "main-captions\tMSRvid\t2012test\t0001\t3.800\t가\t나"
    (tmp_path / "sts-dev.tsv").write_text(f"{columns}\n{row}\n{row}\n", encoding="utf-8")
    # The column id is that of the source file, and not unique.
    assert tables.read(KOREAN["KorSTS"], tmp_path, "dev") == [
        TextExample("0", "가", "나", 3.8),
        TextExample("1", "가", "나", 3.8),
    ]
    (tmp_path / "sts-dev.tsv").write_text(f"{columns}\n{row.replace('3.800', '5.200')}\n", encoding="utf-8")
    with pytest.raises(DatasetError, match=r"5\.200.* from 0 to 5"):
        tables.read(KOREAN["KorSTS"], tmp_path, "dev")


@pytest.mark.parametrize(
    ("task", "split", "labels"),
    [
        ("NSMC", "test", {0: 24827, 1: 25173}),  # as e9t/nsmc's README has them
        ("KorNLI", "dev", {0: 830, 1: 830, 2: 830}),  # XNLI is balanced
    ],
)
def test_real_files(real_data, task, split, labels):
    assert Counter(example.label for example in tables.read(KOREAN[task], real_data, split)) == labels


def test_real_korsts_has_the_scores_of_sts_b(real_data):
    """It is a translation of it, row by row."""
    for split in ("train", "dev"):
        lines = (real_data / "glue" / "STS-B" / f"{split}.tsv").read_text(encoding="utf-8").splitlines()[1:]
        english = Counter(float(line.split("\t")[-1]) for line in lines)
        assert Counter(example.label for example in tables.read(KOREAN["KorSTS"], real_data, split)) == english
