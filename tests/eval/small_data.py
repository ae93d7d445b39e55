"""Data sets in their original formats, of a few words each, that a model of two layers can learn."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

WORDS = [f"word{i}" for i in range(40)]
MARK = "word50"  # what the label of a text depends on


def _sentence(generator: np.random.Generator, marked: bool, length: int = 6) -> str:
    words = list(generator.choice(WORDS, length))
    if marked:
        words[generator.integers(length)] = MARK
    return " ".join(words)


def write_table(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in (header, *rows)), encoding="utf-8")


def write_mrpc(data: Path, dev: int = 16, test: int = 6) -> Path:
    """Pairs are alike where the second one is marked; two of three are."""
    generator = np.random.default_rng(1)
    for split, count in (("train", 48), ("dev", dev), ("test", test)):
        rows = []
        for i in range(count):
            label = int(i % 3 != 0)
            row = [i, i, _sentence(generator, False), _sentence(generator, bool(label))]
            rows.append([i if split == "test" else label, *row])
        first = "index" if split == "test" else "Quality"
        write_table(data / "MRPC" / f"{split}.tsv", [first, "#1 ID", "#2 ID", "#1 String", "#2 String"], rows)
    return data


def write_stsb(data: Path, test: int = 4) -> Path:
    """Pairs are alike where the second one is marked; a test set of no examples is not written."""
    generator = np.random.default_rng(2)
    for split, count in (("train", 48), ("dev", 16), ("test", test)):
        rows = [[i, _sentence(generator, False), _sentence(generator, i % 2 > 0), 5.0 * (i % 2)] for i in range(count)]
        header = ["index", "sentence1", "sentence2", "score"]
        width = 3 if split == "test" else 4
        if rows:
            write_table(data / "STS-B" / f"{split}.tsv", header[:width], [row[:width] for row in rows])
    return data


def write_mnli(data: Path) -> Path:
    """With both dev sets, both test sets, and the diagnostic set."""
    generator = np.random.default_rng(3)
    labels = ("entailment", "neutral", "contradiction")
    for name in ("train", "dev_matched", "dev_mismatched", "test_matched", "test_mismatched"):
        rows = [
            [i, _sentence(generator, False), _sentence(generator, i % 3 == 0), labels[i % 3]]
            for i in range(30 if name == "train" else 9)
        ]
        header = ["index", "sentence1", "sentence2", "gold_label"]
        width = 3 if name.startswith("test") else 4
        write_table(data / "MNLI" / f"{name}.tsv", header[:width], [row[:width] for row in rows])
    rows = [[i, _sentence(generator, False), _sentence(generator, False)] for i in range(4)]
    write_table(data / "diagnostic" / "diagnostic.tsv", ["index", "sentence1", "sentence2"], rows)
    return data


def write_squad(data: Path, version: str) -> Path:
    """The answer is the word after the mark; in version 2.0 every third question has none."""
    generator = np.random.default_rng(4)
    for split, count in (("train", 12), ("dev", 6)):
        paragraphs = []
        for i in range(count):
            impossible = version == "v2.0" and i % 3 == 0
            words = list(generator.choice(WORDS, 10))
            words[4:6] = [WORDS[0], WORDS[1]] if impossible else [MARK, WORDS[i]]
            context = " ".join(words)
            answers = [] if impossible else [{"text": words[5], "answer_start": len(" ".join(words[:5])) + 1}]
            question = {"id": f"{split}{i}", "question": "word7 word8", "answers": answers}
            if version == "v2.0":
                question["is_impossible"] = impossible
            paragraphs.append({"context": context, "qas": [question]})
        path = data / "squad" / f"{split}-{version}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}), encoding="utf-8")
    return data


def write_codah(data: Path) -> Path:
    generator = np.random.default_rng(5)
    lines = []
    for i in range(30):
        endings = [_sentence(generator, ending == i % 4, 3) for ending in range(4)]
        lines.append("\t".join(["c", _sentence(generator, False), *endings, str(i % 4)]))
    (data / "codah").mkdir(parents=True)
    (data / "codah" / "full_data.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return data


def write_swag(data: Path) -> Path:
    generator = np.random.default_rng(6)
    (data / "swag").mkdir(parents=True, exist_ok=True)
    for name in ("train.csv", "val.csv", "test.csv"):
        with (data / "swag" / name).open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            endings = [f"ending{i}" for i in range(4)]
            header = ["", "video-id", "fold-ind", "startphrase", "sent1", "sent2", "gold-source", *endings, "label"]
            width = len(header) - (name == "test.csv")
            writer.writerow(header[:width])
            for i in range(12):
                texts = [_sentence(generator, ending == i % 4, 3) for ending in range(4)]
                row = [i, "v", i, "", _sentence(generator, False), "word3", "gold", *texts, i % 4]
                writer.writerow(row[:width])
    return data


def write_conll(data: Path, documents: int = 4) -> Path:
    """The mark is a person."""
    generator = np.random.default_rng(7)
    for name in ("eng.train", "eng.testa", "eng.testb"):
        lines = []
        for _ in range(documents):
            lines += ["-DOCSTART- -X- O O", ""]
            for _ in range(4):
                words = _sentence(generator, True).split()
                lines += [f"{word} NN O {'I-PER' if word == MARK else 'O'}" for word in words] + [""]
        path = data / "conll2003" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines), encoding="utf-8")
    return data
