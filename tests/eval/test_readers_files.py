"""Where data sets are looked for: what holds for all readers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from eval.readers.examples import DatasetError
from eval.readers.files import read_lines, read_text
from eval.tasks import datasets
from preprocessing.storage_errors import UnavailableError
from tests.failing import REASON, fail_at


@pytest.mark.parametrize(
    ("name", "first", "second", "split"),
    [
        ("RTE", "RTE/train.tsv", "glue/RTE/dev.tsv", "dev"),
        ("MNLI-mm", "MNLI/train.tsv", "glue/MNLI/dev_mismatched.tsv", "dev"),
        ("NSMC", "nsmc/ratings_train.txt", "korean/nsmc/ratings_test.txt", "test"),
        ("SQuAD v1.1", "squad/train-v1.1.json", "dev-v1.1.json", "dev"),
        ("SQuAD v2.0", "squad/train-v2.0.json", "dev-v2.0.json", "dev"),
        ("KorQuAD", "korquad/KorQuAD_v1.0_train.json", "korean/KorQuAD_v1.0_dev.json", "dev"),
        ("SWAG", "swag/train.csv", "swag/data/val.csv", "dev"),
        ("CoNLL-2003", "conll2003/eng.train", "conll/eng.testa", "dev"),
        ("IMDB", "aclImdb/train/neg", "imdb/aclImdb/test/neg", "test"),
    ],
)
def test_no_data_set_is_put_together_from_two_folders(
    tmp_path: Path, name: str, first: str, second: str, split: str
) -> None:
    """What is trained on and what is judged by might be of two copies."""
    for file in (first, second):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    with pytest.raises(DatasetError, match=r": no \S+ beside \S+; put all of the data set into one folder$") as raised:
        datasets.READERS[name](tmp_path, split)
    assert str(raised.value).startswith(f"{tmp_path / first.split('/')[0]}")


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"a", ["a"]),
        (b"a\n", ["a"]),
        (b"\xef\xbb\xbfa\r\n\r\nb\x0bc\xe2\x80\xa8d\r\n", ["a", "", "b\x0bc\u2028d"]),
        (b"\n\na\rb\r", ["", "", "a\rb"]),
        (b" a \t\r\n\xef\xbb\xbfb\n", [" a \t", "\ufeffb"]),
    ],
)
def test_lines_end_with_lf_or_cr_lf_alone(tmp_path: Path, content: bytes, lines: list[str]) -> None:
    (tmp_path / "file").write_bytes(content)
    assert list(read_lines(tmp_path / "file")) == lines


def test_lines_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a\nb\xff\n")
    with pytest.raises(DatasetError, match=r"file: line 2: not UTF-8 \(byte 0xff\)"):
        list(read_lines(tmp_path / "file"))
    with pytest.raises(DatasetError, match="can't read it"):
        list(read_lines(tmp_path / "gone"))


@pytest.mark.parametrize("read", [read_text, lambda path: list(read_lines(path))], ids=["whole", "lines"])
def test_a_file_that_cannot_be_read_for_a_moment_is_no_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[Path], object]
) -> None:
    (file := tmp_path / "file").write_text("a\n")
    fail_at(monkeypatch, file, named=False)
    with pytest.raises(UnavailableError, match=f"file: can't be read now \\({REASON}\\)"):
        read(file)
