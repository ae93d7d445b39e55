"""aclImdb's folders: literals, and the real archive."""

import shutil
from collections import Counter

import pytest

from eval.readers.examples import DatasetError, TextExample
from eval.readers.imdb import read


def write(folder, *names):
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_text(f"review {name}<br />", encoding="utf-8")


def test_reviews(tmp_path):
    others = ("._2_7.txt", "1x_2.txt", "urls_pos.txt", "3_8.txt~")
    write(tmp_path / "imdb" / "aclImdb" / "test" / "pos", "2_10.txt", "10_7.txt", *others)
    write(tmp_path / "imdb" / "aclImdb" / "test" / "neg", "1_1.txt")
    expected = [
        TextExample("1_1", "review 1_1.txt<br />", None, 0),
        TextExample("2_10", "review 2_10.txt<br />", None, 1),
        TextExample("10_7", "review 10_7.txt<br />", None, 1),
    ]
    assert read(tmp_path, "test") == read(tmp_path / "imdb" / "aclImdb", "test") == expected


def test_mistakes(tmp_path):
    root = tmp_path / "aclImdb"
    write(root / "train" / "neg", "1_1.txt")
    (root / "train" / "pos").mkdir()
    (root / "test" / "neg").mkdir(parents=True)
    (root / "test" / "neg" / "3_2.txt").write_bytes(b"caf\xe9")
    for data, split, message in (
        (tmp_path, "train", f"{root}/train/pos: no reviews (ID_RATING.txt) in it; unpack the archive anew"),
        (tmp_path, "test", f"{root}/test/neg/3_2.txt: line 1: not UTF-8 (byte 0xe9); convert the file with iconv"),
        (root / "train", "train", f"{root}/train: no train in aclImdb/, imdb/aclImdb/; "
                                  "put it there, or give the folder that holds it"),
        (root / "test" / "neg" / "3_2.txt", "test", f"{root}/test/neg/3_2.txt: no such folder; "
                                                    "give the one that holds aclImdb/"),
        (tmp_path / "x", "train", f"{tmp_path}/x: no such folder; give the one that holds aclImdb/"),
    ):  # fmt: skip
        with pytest.raises(DatasetError) as raised:
            read(data, split)
        assert str(raised.value) == message


def test_the_real_archive(real_data, tmp_path):
    shutil.unpack_archive(real_data / "imdb" / "aclImdb_subset.tar.gz", tmp_path)
    for split, size in (("train", 2500), ("test", 1500)):
        examples = read(tmp_path, split)
        assert len({example.id for example in examples}) == len(examples) == size
        ratings = Counter((example.label, int(example.id.split("_")[1])) for example in examples)
        assert all(rating <= 4 if label == 0 else rating >= 7 for label, rating in ratings)
        assert all(example.a.strip() for example in examples)
