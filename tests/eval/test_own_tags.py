"""Entities of the user's own: learned from columns of words and tags, and judged as seqeval does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from seqeval.metrics import f1_score, precision_score, recall_score
from seqeval.scheme import IOB2, IOBES, Entities, Token

from eval import significance
from eval.asked import Asked
from eval.kinds import Tags
from eval.options import parse
from eval.parts import read_parts
from eval.readers import conll
from eval.readers.examples import DatasetError
from eval.results import read_results
from eval.tasks import select
from eval.tasks.finetuned import FineTuned
from eval.tasks.own import read_task
from tests.eval import evaluations
from tests.eval.small_data import WORDS
from tests.eval.test_own_task import evaluate, write_task

GENES = """
kind = "tags"
learning_rates = [3e-4]
epochs = [20]
batch_sizes = [4]
"""
QUICK = ("--epochs", "1", "--learning-rates", "1e-3")
Sentence = list[tuple[str, str]]


def draw(seed: int, count: int) -> list[Sentence]:
    """Sentences in BIOES: word50 and the word behind it are a gene, word51 is a drug."""
    generator, sentences = np.random.default_rng(seed), []
    for number in range(count):
        words = [(str(word), "O") for word in generator.choice(WORDS, 8)]
        words[1:3] = [("word50", "B-Gene"), (words[2][0], "E-Gene")]
        if number % 2:
            words[5] = ("word51", "S-Drug")
        sentences.append(words)
    return sentences


def write(path: Path, sentences: Sequence[Sentence], columns: str = "{word}\t{tag}") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["\n".join(columns.format(word=word, tag=tag) for word, tag in sentence) for sentence in sentences]
    path.write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_genes(folder: Path) -> Path:
    for split, seed, count in (("train", 1, 40), ("dev", 2, 12), ("test", 3, 5)):
        write(folder / f"{split}.txt", draw(seed, count))
    return folder


def results_of(output: Path, task: str = "genes") -> dict:
    return evaluations.results_of(output)["tasks"][task]


def read_columns(path: Path) -> list[list[list[str]]]:
    blocks = path.read_text(encoding="utf-8").strip().split("\n\n")
    return [[line.split() for line in block.splitlines()] for block in blocks]


def test_it_is_learned_and_judged_as_by_seqeval(export: Path, tmp_path: Path) -> None:
    task, data = write_task(tmp_path, GENES, "genes.toml"), write_genes(tmp_path / "data" / "genes")
    assert evaluate(export, task, data.parent, tmp_path / "out", "--test", "--save-models") == 0
    found = results_of(tmp_path / "out")
    assert list(found["metrics"]) == [
        f"{part}{name}" for part in ("", "test_") for name in ("precision", "recall", "f1")
    ]
    assert found["details"]["examples"] == {"train": 40, "dev": 12, "test": 5}
    assert found["details"]["selected_by"] == "f1"
    for part, prefix in (("dev", ""), ("test", "test_")):
        given = read_columns(data / f"{part}.txt")
        listed = read_columns(tmp_path / "out" / "predictions" / "genes" / f"{part}_predictions.txt")
        assert [[row[0] for row in rows] for rows in listed] == [[row[0] for row in rows] for rows in given]
        gold, predicted = ([[row[column] for row in rows] for rows in listed] for column in (1, 2))
        bioes = [[row[1] for row in rows] for rows in given]
        assert chunks(bioes, IOBES) == chunks(gold, IOB2)
        for name, score in (("precision", precision_score), ("recall", recall_score), ("f1", f1_score)):
            value = found["metrics"][prefix + name]["value"]
            assert value == pytest.approx(100 * score(gold, predicted), abs=1e-9)
            assert value > 20
    config = json.loads((tmp_path / "out" / "models" / "genes" / "config.json").read_text())
    assert list(config["id2label"].values()) == ["O", "B-Drug", "I-Drug", "B-Gene", "I-Gene"]


def chunks(sentences: list[list[str]], scheme: type[Token]) -> list[list[tuple]]:
    """Entities as seqeval finds them, of tags that keep to a scheme."""
    return [[entity.to_tuple() for entity in found] for found in Entities(sentences, scheme).entities]


def test_types_are_those_of_the_whole_training_file_or_as_named(tmp_path: Path) -> None:
    data = write_genes(tmp_path / "data")
    found = read_task(write_task(tmp_path, GENES)).on(data)
    assert found.kind == Tags(("Drug", "Gene"))
    named = read_task(write_task(tmp_path, GENES + 'types = ["Gene", "Cell", "Drug"]\n'))
    assert named.on(data).kind == named.kind == Tags(("Gene", "Cell", "Drug"))
    write(data / "dev.txt", [[("word1", "B-Cell")]])
    assert [sentence.tags for sentence in named.read("tickets.toml", "dev", data)] == [("B-Cell",)]


def test_the_training_file_is_read_for_its_types_once_unless_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, task, read = write_genes(tmp_path / "data"), read_task(write_task(tmp_path, GENES)), []
    lines = conll.read_lines
    monkeypatch.setattr(conll, "read_lines", lambda path: read.append(path.stem) or lines(path))
    read_parts(task.on(data), data, with_test=True, limit=None)
    assert sorted(read) == ["dev", "test", "train", "train"]  # for its types, and for its sentences
    write(data / "train.txt", [[("word1", "B-Cell")]])
    assert task.on(data).kind == Tags(("Cell",))


def test_a_few_examples_are_of_all_types(export: Path, tmp_path: Path) -> None:
    task, data = write_task(tmp_path, GENES, "genes.toml"), write_genes(tmp_path / "data")
    write(data / "train.txt", [[("word1", "O")]] * 50 + draw(1, 2))
    assert evaluate(export, task, data, tmp_path / "out", "--limit", "3", *QUICK) == 0
    found = results_of(tmp_path / "out")["details"]
    assert (found["examples"], found["kind"]) == ({"train": 3, "dev": 3}, repr(Tags(("Drug", "Gene"))))


def test_files_and_columns_have_the_names_that_it_gives(tmp_path: Path) -> None:
    write(tmp_path / "train.bio", [[("p53", "B")], [("is", "O")]], "{word} {tag} NN")
    task = read_task(write_task(tmp_path, 'kind = "tags"\ntag = 2\ntrain = "train.bio"\ndev = "Dev.bio"\n'))
    assert task.on(tmp_path).kind == Tags(("ENTITY",))
    assert [sentence.tags for sentence in task.read("tickets.toml", "train", tmp_path)] == [("B-ENTITY",), ("O",)]
    write(tmp_path / "dev.bio", [[("p53", "I")]], "{word} {tag} NN")
    assert [sentence.tags for sentence in task.read("tickets.toml", "dev", tmp_path)] == [("I-ENTITY",)]


def test_real_columns_are_read_as_those_of_conll2003(real_data: Path, tmp_path: Path) -> None:
    lines = (real_data / "conll2003" / "eng.train").read_text(encoding="utf-8").splitlines()[:3000]
    for name in ("train.txt", "dev.txt"):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    task = read_task(write_task(tmp_path, 'kind = "tags"\n')).on(tmp_path)
    assert task.kind == Tags(("LOC", "MISC", "ORG", "PER"))
    ours = task.read("tickets.toml", "train", tmp_path)
    theirs = conll.read(real_data, "train")[: len(ours) - 1]
    assert (ours[:-1], len(theirs) > 100) == (theirs, True)


def read_all(task: FineTuned, data: Path) -> None:
    task.on(data)
    for split in task.splits.values():
        task.read(*split, data)


MISSING = "'B-Cell' is not a tag; expected B-Drug, B-Gene, I-Drug, I-Gene, O"


@pytest.mark.parametrize(
    ("more", "file", "text", "told"),
    [
        ("", "train.txt", "p53\n", "train.txt: line 1: 1 column; expected a word and, last, its tag"),
        ("tag = 4\n", "train.txt", "p53 NN\n",
         "train.txt: line 1: 2 columns; expected a word and, in column 4, its tag"),
        ("", "train.txt", "p53 O\nis VBZ\n",
         "train.txt: line 2, column 2: 'VBZ' is not a tag; expected O, or B- or I- and the type of an entity"),
        ("", "train.txt", "p53 B-\n",
         "train.txt: line 1, column 2: 'B-' is not a tag; expected O, or B- or I- and the type of an entity"),
        ("", "train.txt", "p53 O\n", "every tag in train.txt is O; say by tag = N which column has the tags"),
        ("", "train.txt", "", "train.txt: no sentences; give a file with a word and its tag on each line"),
        ("", "dev.txt", "\n", "dev.txt: no sentences; give a file with a word and its tag on each line"),
        ("", "dev.txt", "p53 B-Gene\n\nit B-Cell\n", f"dev.txt: line 3, column 2: {MISSING}, as train.txt has no "
         "others; add some there, or name all types by types = [...] in genes.toml"),
        ("", "test.txt", "it B-Cell\n", f"test.txt: line 1, column 2: {MISSING}, as train.txt has no others; add some "
         "there, or name all types by types = [...] in genes.toml"),
        ('types = ["Gene", "Drug"]\n', "dev.txt", "it B-Cell\n", "dev.txt: line 1, column 2: 'B-Cell' is not a tag; "
         "expected B-Drug, B-Gene, I-Drug, I-Gene, O; mend the line, or add its type to types in genes.toml"),
        ("", "dev.txt", None, "no dev.txt beside train.txt; put all of the data set into one folder"),
        ("", "test.txt", None, "no test.txt beside train.txt; put all of the data set into one folder"),
    ],
)  # fmt: skip
def test_files_that_are_not_as_they_should_be(
    tmp_path: Path, more: str, file: str, text: str | None, told: str
) -> None:
    task, data = read_task(write_task(tmp_path, GENES + more, "genes.toml")), write_genes(tmp_path / "data")
    (data / file).unlink()
    if text is not None:
        (data / file).write_text(text)
    with pytest.raises(DatasetError) as raised:
        read_all(task, data)
    assert str(raised.value).endswith(told)
    assert "\n" not in str(raised.value)


def test_what_is_wrong_is_told_before_anything_is_learned(
    export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task, data = write_task(tmp_path, GENES, "genes.toml"), write_genes(tmp_path / "data")
    write(data / "dev.txt", [[("word1", "B-Cell")]])
    assert evaluate(export, task, data, tmp_path / "out") == 2
    assert f"error: {data / 'dev.txt'}: line 1, column 2: {MISSING}" in capsys.readouterr().err
    assert not (tmp_path / "out" / "genes").exists()


def test_results_of_other_data_are_not_gone_on_with(
    export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task, data = write_task(tmp_path, GENES, "genes.toml"), write_genes(tmp_path / "data")
    assert evaluate(export, task, data, tmp_path / "out", *QUICK) == 0
    words = ["--checkpoint", str(export), "--tasks", str(task), "--data", str(data), *QUICK]
    results = read_results(tmp_path / "out" / "results.json")
    assert Asked(parse(words), select([str(task)])).difference("genes", results, export) is None
    write(data / "train.txt", [*draw(1, 40), [("word1", "S-Cell")]])
    assert evaluate(export, task, data, tmp_path / "out", *QUICK) == 2
    told = capsys.readouterr().err
    assert "made with examples " in told
    assert told.endswith("choose another --output\n")
    difference = Asked(parse(words), select([str(task)])).difference("genes", results, export)
    assert difference is not None
    assert difference.made == "with other data of genes"


def test_two_evaluations_are_compared(export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task, data = write_task(tmp_path, GENES, "genes.toml"), write_genes(tmp_path / "data")
    folders = [tmp_path / name for name in ("fast", "slow")]
    for folder, options in zip(folders, ((), QUICK), strict=True):
        assert evaluate(export, task, data, folder, *options) == 0
    capsys.readouterr()
    assert significance.main([*map(str, folders), "--tasks", str(task), "--resamples", "200", "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)["rows"]
    assert (row["task"], row["metric"], row["units"]) == ("genes", "f1", 12)
    figures = [results_of(folder)["metrics"]["f1"]["value"] for folder in folders]
    assert [row["a"], row["b"]] == pytest.approx(figures)
    assert figures[0] > figures[1]
