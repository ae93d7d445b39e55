from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from matplotlib.figure import Figure

from preprocessing import inspect
from preprocessing.histograms import (
    DOCUMENTS,
    LENGTH_BINS,
    PAIR_BINS,
    PAIRS,
    UNKNOWN,
    UNKNOWN_BINS,
    Histograms,
    count_all,
    draw,
    in_pair_bins,
)
from preprocessing.inspect import Sampled, describe, sample, tell_pairs
from preprocessing.make_shards import main as make_shards
from preprocessing.schema import Manifest, ShardDirectory, ShardEntry, Vocabulary
from preprocessing.tokenization import load_tokenizer
from tests.conftest import ROOT
from tests.failing import fail_on
from tests.rewriting import read_column, rewrite_shard
from tests.streams import FULL, stdout_to

Said = Callable[..., str]


@pytest.fixture(scope="module")
def shards(books: Path, vocabulary_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("inspected") / "shards"
    arguments = ["--books", books / "*.txt", "--vocab", vocabulary_file, "--output", output, "--num-shards", 2,
                 "--sequence-lengths", 32, 64, "--duplicates", 2, "--deduplicate", "documents"]  # fmt: skip
    make_shards([str(argument) for argument in arguments])
    return output


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    def run(*arguments: object) -> str:
        inspect.main([str(argument) for argument in arguments])
        return capsys.readouterr().out

    return run


def test_the_tables_tell_what_the_manifest_says(shards: Path, said: Said) -> None:
    manifest = ShardDirectory(shards).manifest
    out = said(shards)
    assert re.search(r"^documents +12$", out, re.M)
    assert re.search(rf"^\| books +\| +12 \|.* {manifest.statistics['tokens']:,} \| 100.0% ", out, re.M)
    unreached = manifest.statistics["pairs"]["64"]["train"]["unreached_tokens"]
    assert re.search(
        rf"^\| 64 +\| +train \| +{manifest.pairs('train', 64):,} \| +5.\.\d% \| +{unreached:,} \|", out, re.M
    )
    assert re.search(r"^\| train +\| +2 \| +10 \|", out, re.M)
    tables = [line for line in out.split("\n") if line.startswith("|")]
    assert all(line.endswith("|") for line in tables)


def test_sampled_pairs_are_those_of_the_shards(shards: Path, said: Said) -> None:
    directory = ShardDirectory(shards)
    pairs = list(sample(directory, 50, "train", seed=3))
    assert [pair.sequence_length for pair in pairs] == [32] * 50 + [64] * 50
    assert {pair.shard for pair in pairs} == {entry.file for entry in directory.manifest.split("train")}
    assert {pair.is_next for pair in pairs} == {True, False}
    assert all(len(pair.a) + len(pair.b) + 3 <= pair.sequence_length for pair in pairs)
    assert len(list(sample(directory, 10**6, "validation", seed=3))) == sum(
        directory.manifest.pairs("validation", length) for length in (32, 64)
    )
    out = said(shards, "--sample", 2, "--split", "validation")
    assert len(re.findall(r"^(is next|random), \d+ \+ \d+ tokens for (32|64): book-\d\d\.txt in valid", out, re.M)) == 4
    assert len(re.findall(r"^  [AB]: [a-z]", out, re.M)) == 8
    assert said(shards, "--sample", 2) == said(shards, "--sample", 2)
    assert said(shards, "--sample", 2) != said(shards, "--sample", 2, "--seed", 1)


def test_so_many_pairs_that_none_is_left_are_all_of_them_once(shards: Path) -> None:
    directory = ShardDirectory(shards)
    everything: Counter[tuple[str, str, int, bool, bytes, bytes]] = Counter()
    for entry in directory.manifest.split("train"):
        shard = directory.shard(entry)
        doc_ids = shard.text("doc_id").to_pylist()
        for length in (32, 64):
            pairs = shard.pairs(length)
            for row, is_next, (a, b) in zip(pairs.row, pairs.is_next, shard.segments(pairs, length), strict=True):
                everything[entry.file, doc_ids[row], length, bool(is_next), a.tobytes(), b.tobytes()] += 1
    drawn = sample(directory, 10**6, "train", seed=3)
    assert Counter((*pair[:4], pair.a.tobytes(), pair.b.tobytes()) for pair in drawn) == everything


def test_a_split_without_shards_has_no_pairs_and_that_is_said(shards: Path, tmp_path: Path, said: Said) -> None:
    copy = shutil.copytree(shards, tmp_path / "copy")
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["shards"] = [entry for entry in manifest["shards"] if entry["split"] == "train"]
    (copy / "manifest.json").write_text(json.dumps(manifest))
    assert list(sample(ShardDirectory(copy), 5, "validation", seed=0)) == []
    told = "\nNo pair of validation to show: these shards have none.\n"
    assert said(copy, "--sample", 5, "--split", "validation").endswith(told)
    assert told not in said(copy, "--sample", 5)


def test_single_segments_have_no_share_of_true_nexts(books: Path, vocabulary_file: Path, tmp_path: Path) -> None:
    arguments = ["--books", books / "*.txt", "--vocab", vocabulary_file, "--output", tmp_path / "shards", "--no-nsp",
                 "--sequence-lengths", 32, "--duplicates", 1]  # fmt: skip
    make_shards([str(argument) for argument in arguments])
    told = "\n".join(describe(ShardDirectory(tmp_path / "shards").manifest))
    assert [line.split("|")[4].strip() for line in told.split("\n") if line.startswith("| 32 ")] == ["no B", "no B"]


def test_pairs_are_told_by_what_they_are(shards: Path) -> None:
    tokenizer = load_tokenizer(ShardDirectory(shards).tokenizer)
    a, b, nothing = (tokenizer.encode(text, add_special_tokens=False).ids for text in ("the whale", "[UNK] home", ""))
    ways = [(True, b), (False, b), (True, nothing)]
    pairs = [Sampled("s.arrow", "d", 32, is_next, np.array(a), np.array(second)) for is_next, second in ways]
    assert list(tell_pairs(pairs, tokenizer)) == [
        "is next, 2 + 2 tokens for 32: d in s.arrow", "  A: the whale", "  B: [UNK] home", "",
        "random, 2 + 2 tokens for 32: d in s.arrow", "  A: the whale", "  B: [UNK] home", "",
        "single, 2 + 0 tokens for 32: d in s.arrow", "  A: the whale", "",
    ]  # fmt: skip


def source_of(documents: int, sentences: int, tokens: int, **others: object) -> dict[str, object]:
    counts = {"documents": documents, "sentences": sentences, "tokens": tokens, "characters": 9 * tokens, "unknown": 0}
    return {**counts, "skipped": {}, "collisions": 0, **others}


def test_the_tables_of_several_sources_tell_them_apart() -> None:
    """And what was passed over, lengths in the order of numbers, and what earlier versions did not count."""
    books = source_of(4, 40, 3000, unknown=3, skipped={"empty": 2}, repeated={"lines": 5, "sentences": 0})
    wikipedia = source_of(2, 30, 1000, collisions=1)
    counts = {"pairs": 1000, "is_next_rate": 0.25}
    statistics = {
        "sentences": 70, "words": 2000, "tokens": 4000, "unknown_rate": 0.00075,
        "sources": {"books": books, "wikipedia": wikipedia},
        "pairs": {"128": {"train": counts | {"unreached_tokens": 12}}, "64": {"train": counts}},
    }  # fmt: skip
    entries = [
        ShardEntry("shard", "train", rows=3, tokens=2500, pairs={}, bytes=6000, blake2b=""),
        ShardEntry("validation-shard", "validation", rows=2, tokens=1500, pairs={}, bytes=4000, blake2b=""),
    ]
    told = "\n".join(describe(Manifest(7, [64, 128], Vocabulary(9000, "", True), entries, statistics=statistics)))
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in told.split("\n") if line[:1] == "|"]
    assert [row for row in rows if not set(row[0]) <= {"-", ":"}] == [
        ["source", "documents", "sentences", "tokens", "share", "tokens a document", "characters read", "unknown"],
        ["books", "4", "40", "3,000", "75.0%", "750", "27,000", "0.1000%"],
        ["wikipedia", "2", "30", "1,000", "25.0%", "500", "9,000", "0.0000%"],
        ["passed over", "reason", "number"],
        ["books", "empty", "2"],
        ["books", "repeated lines", "5"],
        ["wikipedia", "older version of a document (same id)", "1"],
        ["pairs of", "split", "pairs", "B is next", "tokens in no pair"],
        ["64", "train", "1,000", "25.0%", "?"],
        ["128", "train", "1,000", "25.0%", "12"],
        ["split", "shards", "documents", "tokens", "bytes"],
        ["train", "1", "3", "2,500", "6,000"],
        ["validation", "1", "2", "1,500", "4,000"],
    ]
    assert {
        "vocabulary      9,000 entries, uncased",
        "seed            7",
        "documents       5",
        "tokens a word   2.000",
        "unknown tokens  0.0750%",
        "bytes           10,000 (2.50 a token)",
    } <= set(told.split("\n"))
    del statistics["words"], books["repeated"]
    cased = "\n".join(describe(Manifest(7, [64, 128], Vocabulary(9000, "", False), entries, statistics=statistics)))
    assert "9,000 entries, cased\n" in cased
    assert "a word" not in cased


def test_histograms_are_of_every_source_by_its_own_documents(shards: Path, tmp_path: Path) -> None:
    """Of one the first token of each is unknown."""
    copy = shutil.copytree(shards, tmp_path / "copy")
    expected: dict[str, list[int]] = {"books": [], "notes": []}
    for shard in copy.glob("*shard-*.arrow"):
        tokens = read_column(shard, "tokens")
        sources = ["notes" if row % 2 else "books" for row in range(len(tokens))]
        for source, row in zip(sources, tokens, strict=True):
            expected[source].append(len(row))
        known = [[1, *row[1:]] if source == "notes" else row for source, row in zip(sources, tokens, strict=True)]
        rewrite_shard(shard, source=sources, tokens=known)
    counted = count_all(ShardDirectory(copy))
    for source, lengths in expected.items():
        assert counted.document_lengths[source].tolist() == np.histogram(lengths, LENGTH_BINS)[0].tolist()
        assert counted.sums[f"tokens/{source}"] == sum(lengths)
        unknown = int(source == "notes")
        assert counted.sums[f"unknown/{source}"] == unknown * len(lengths)
        shares = [unknown / length for length in lengths]
        assert counted.unknown_shares[source].tolist() == np.histogram(shares, UNKNOWN_BINS)[0].tolist()
    assert [path.name for path in draw(counted, tmp_path / "new" / "figures")] == [DOCUMENTS, PAIRS, UNKNOWN]


def test_histograms_count_everything_and_are_drawn(shards: Path, said: Said, tmp_path: Path) -> None:
    directory = ShardDirectory(shards)
    counted = count_all(directory)
    lengths = [len(directory.shard(e).document(row)) for e in directory.manifest.shards for row in range(e.rows)]
    assert counted.document_lengths["books"].tolist() == np.histogram(lengths, LENGTH_BINS)[0].tolist()
    assert counted.unknown_shares["books"].sum() == 12
    for length in (32, 64):
        pairs = sum(directory.manifest.pairs(split, length) for split in ("train", "validation"))
        assert counted.pair_lengths[length].sum() == pairs
        assert len(counted.pair_lengths[length]) == length + 1
    said(shards, "--histograms", tmp_path / "figures")
    for name in (DOCUMENTS, PAIRS, UNKNOWN):
        assert (tmp_path / "figures" / name).read_bytes().startswith(b"\x89PNG")


def test_figures_show_what_was_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Figure] = []

    def keep(figure: Figure, file: Path, **_: object) -> None:
        figures.append(figure)
        Path(file).touch()

    lengths = np.histogram([2] * 6 + [40] * 4, LENGTH_BINS)[0]
    sums = Counter({"tokens/books": 172, "unknown/books": 43})
    pair_lengths = np.bincount([40] * 4 + [64] * 12)
    counted = Histograms({"books": lengths}, {"books": np.array([6, 0, 3, 1, 0, 0])}, {64: pair_lengths}, sums)
    monkeypatch.setattr(Figure, "savefig", keep)
    draw(counted, tmp_path)
    documents, pairs, unknown = (figure.axes[0] for figure in figures)
    shares, edges, _ = documents.patches[0].get_data()  # type: ignore[attr-defined]
    assert shares[[0, -1]].tolist() == [0.6, 0.4]
    assert edges[0] <= 2 < edges[1] < edges[-2] <= 40 < edges[-1]
    shares, edges, _ = pairs.patches[0].get_data()  # type: ignore[attr-defined]
    assert {edges[at]: shares[at] for at in np.flatnonzero(shares)} == {19 / 32: 0.25, 31 / 32: 0.75}
    assert [bar.get_height() for bar in unknown.patches] == [0.6, 0, 0.3, 0.1, 0, 0]  # type: ignore[attr-defined]
    assert [text.get_text() for text in unknown.texts] == ["", "", "3", "1", "", ""]
    assert [axes.get_legend_handles_labels()[1] for axes in (documents, pairs, unknown)] == [
        ["books\n10 documents,\n17 tokens each"],
        ["for 64\n16 pairs,\n75% of full length"],
        ["books\n25.0000% of all tokens"],
    ]


@pytest.mark.parametrize(
    ("number", "code", "told"),
    [
        (errno.ENOSPC, 2, "can't write there (No space left on device); name a folder"),
        (errno.EIO, 1, "can't write there (Input/output error); give the same command again"),
    ],
)
def test_a_histogram_is_whole_or_the_one_before(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    number: int, code: int, told: str,
) -> None:  # fmt: skip
    def fail_half_way(figure: Figure, file: Path, **_: object) -> None:
        Path(file).write_bytes(b"\x89PNG")
        raise OSError(number, os.strerror(number))

    (tmp_path / DOCUMENTS).write_text("before")
    monkeypatch.setattr(Figure, "savefig", fail_half_way)
    with pytest.raises(SystemExit) as caught:
        inspect.main([str(shards), "--histograms", str(tmp_path)])
    assert caught.value.code == code
    assert f"--histograms {tmp_path}: {told}" in capsys.readouterr().err
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(DOCUMENTS, "before")]


def test_a_histogram_that_is_drawn_needs_nothing_removed(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_on(monkeypatch, Path, "unlink")
    inspect.main([str(shards), "--histograms", str(tmp_path)])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted((DOCUMENTS, PAIRS, UNKNOWN))


@pytest.mark.skipif(not FULL.exists(), reason="a disk that is always full is Linux's")
def test_what_can_not_be_written_is_told_in_a_line(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with stdout_to(FULL), pytest.raises(SystemExit, match="2"):
        inspect.main([str(shards)])
    assert capsys.readouterr().err == "error: standard output: No space left on device; send it elsewhere\n"


@pytest.mark.parametrize("length", [8, 31, 32, 128])
def test_every_pair_is_in_one_bin(length: int) -> None:
    """Sequences shorter than there are bins leave some empty."""
    counts = np.arange(1, length + 2)
    bins = in_pair_bins(counts)
    assert len(bins) == PAIR_BINS
    assert bins.sum() == counts.sum()
    assert bins[0] == counts[: max(1, -(-(length + 1) // PAIR_BINS))].sum()
    assert np.count_nonzero(bins) == min(length + 1, PAIR_BINS)


def test_histograms_without_matplotlib_say_how_to_get_it(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "preprocessing.histograms")
    inspect.main([str(shards)])
    with pytest.raises(SystemExit) as caught:
        inspect.main([str(shards), "--histograms", str(tmp_path)])
    assert caught.value.code == 2
    assert "matplotlib is not installed: pip install 'bert-pretraining[preprocess]'" in capsys.readouterr().err


def test_verify_names_a_shard_that_was_changed(
    shards: Path, said: Said, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "checksums of 3 shards are those" in said(shards, "--verify")
    copy = tmp_path / "copy"
    for path in shards.rglob("*"):
        if path.is_file():
            (copy / path.relative_to(shards)).parent.mkdir(parents=True, exist_ok=True)
            (copy / path.relative_to(shards)).write_bytes(path.read_bytes())
    damaged = copy / "shard-00001-of-00002.arrow"
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    with pytest.raises(SystemExit) as caught:
        inspect.main([str(copy), "--verify"])
    assert caught.value.code == 2
    assert "shard-00001-of-00002.arrow: checksum differs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "gone"), [("tokenizer.json", False), ("tokenizer_config.json", False), ("tokenizer.json", True)]
)
def test_verify_names_a_tokenizer_that_was_changed_or_is_gone(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, gone: bool
) -> None:
    copy = shutil.copytree(shards, tmp_path / "copy")
    path = copy / "tokenizer" / file
    path.write_text(path.read_text().replace("[UNK]", "[UNX]", 1))
    if gone:
        path.unlink()
    with pytest.raises(SystemExit, match="2"):
        inspect.main([str(copy), "--verify"])
    assert f"tokenizer/{file}: not what the shards were made with" in capsys.readouterr().err


def test_verify_does_not_ask_another_version_for_the_same_tokenizer(shards: Path, tmp_path: Path, said: Said) -> None:
    copy = shutil.copytree(shards, tmp_path / "copy")
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["created_by"]["tokenizers"] = "0.0.1"
    (copy / "manifest.json").write_text(json.dumps(manifest))
    (copy / "tokenizer" / "tokenizer_config.json").write_text("{}")
    assert "Verified" in said(copy, "--verify")


def test_verify_names_a_tokenizer_that_this_user_may_not_read(
    shards: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_on(monkeypatch, Path, "read_bytes", shards / "tokenizer" / "tokenizer.json", errno.EACCES)
    with pytest.raises(SystemExit, match="2"):
        inspect.main([str(shards), "--verify"])
    assert "tokenizer/tokenizer.json: this user may not read it; ask its owner for that" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("asked", "reader", "file"),
    [
        (("--sample", "1"), "read_bytes", "tokenizer.json"),
        (("--histograms", "figures"), "read_text", "vocab.txt"),
        (("--verify",), "read_text", "vocab.txt"),
    ],
    ids=lambda asked: asked[0],
)
def test_a_tokenizer_that_can_not_be_read_for_a_while_is_nobodys_mistake(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    asked: tuple[str, ...], reader: str, file: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    fail_on(monkeypatch, Path, reader, shards / "tokenizer" / file, errno.ESTALE)
    with pytest.raises(SystemExit, match="1"):
        inspect.main([str(shards), *asked])
    told = f"{shards}/tokenizer/{file}: can't be read now (Stale file handle); give the same command again"
    assert capsys.readouterr().err == f"inspect: error: {told}\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--sample", -1), "'-1' is not a whole number of 0 or more"),
        (("--seed", -1), "'-1' is not a whole number of 0 or more"),
        (("--seed", 0), "--split and --seed say which pairs --sample decodes; give --sample N too, or leave them out"),
        (("--split", "train"), "--split and --seed say which pairs --sample decodes"),
        (("--histograms", __file__), "can't write there (File exists); name a folder"),
        (("--histograms", ""), "the path is empty; write . for the current folder"),
    ],
)
def test_mistakes_are_told_in_a_line(
    shards: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[object, ...], told: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        inspect.main([str(each) for each in (shards, *arguments)])
    assert caught.value.code == 2
    assert told in capsys.readouterr().err.strip().split("\n")[-1]


def test_a_path_is_not_empty_and_may_begin_with_the_users_home(
    shards: Path, said: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(shards)  # which an empty path would be
    with pytest.raises(SystemExit, match="2"):
        inspect.main([""])
    assert "the path is empty; write . for the current folder" in capsys.readouterr().err
    monkeypatch.setenv("HOME", str(shards.parent))
    assert "documents" in said(f"~/{shards.name}")
    monkeypatch.setenv("HOME", str(tmp_path))
    said(".", "--histograms=~/figures")
    assert (tmp_path / "figures" / PAIRS).is_file()


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: {},
        lambda _: {"sentences": "many"},
        lambda told: told | {"tokens": 10**400},
        lambda told: told | {"sources": []},
        lambda told: told | {"pairs": {"long": {}}},
        lambda told: told | {"sources": {"books": None}},
    ],
)
def test_damaged_statistics_are_told_in_a_line(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    damage: Callable[[dict[str, object]], dict[str, object]],
) -> None:  # fmt: skip
    shutil.copytree(shards, tmp_path / "copy")
    manifest = tmp_path / "copy" / "manifest.json"
    found = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(found | {"statistics": damage(found["statistics"])}))
    with pytest.raises(SystemExit) as caught:
        inspect.main([str(tmp_path / "copy")])
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.strip().split("\n")
    assert f"{manifest}: its statistics are not those of a job" in line


def test_what_a_manifest_holds_commands_no_terminal(shards: Path, said: Said, tmp_path: Path) -> None:
    shutil.copytree(shards, tmp_path / "copy")
    path = tmp_path / "copy" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["created_by"]["\x1b[2J"] = "1\r\u202e"
    sources = manifest["statistics"]["sources"]
    sources["\x1b]0;books\x07"] = sources.pop(next(iter(sources)))
    path.write_text(json.dumps(manifest))
    told = said(tmp_path / "copy")
    assert r"\x1b[2J 1\r\u202e" in told.replace("\\\\", "\\")
    assert r"\x1b]0;books\x07" in told.replace("\\\\", "\\").replace("\\]", "]")
    assert told.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"b_row": 1 << 30}, "a pair names a row that the shard does not have"),
        ({"a_begin": -2}, "a pair has an empty segment, or one that reaches beyond its document"),
    ],
)
@pytest.mark.parametrize("asked", [("--sample", 9), ("--histograms", "figures")], ids=lambda asked: asked[0])
def test_pairs_that_point_elsewhere_are_told_in_a_line_and_not_shown(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    change: dict[str, int], told: str, asked: tuple[object, ...],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    copy = shutil.copytree(shards, tmp_path / "copy")
    for shard in copy.glob("shard-*.arrow"):
        pairs = read_column(shard, "pairs_64")
        rewrite_shard(shard, pairs_64=[[pair | change for pair in row] for row in pairs])
    with pytest.raises(SystemExit, match="2"):
        inspect.main([str(each) for each in (copy, *asked)])
    assert re.fullmatch(rf"inspect: error: \S+/shard-0000\d-of-00002\.arrow: {told}; .*\n", capsys.readouterr().err)


def test_tokens_that_the_vocabulary_does_not_have_are_told_in_a_line(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(shards, tmp_path / "copy")
    size = ShardDirectory(copy).manifest.vocabulary.size
    for shard in copy.glob("shard-*.arrow"):
        rewrite_shard(shard, tokens=[[size] * len(row) for row in read_column(shard, "tokens")])
    with pytest.raises(SystemExit, match="2"):
        inspect.main([str(copy), "--sample", "1"])
    assert "arrow: a token that the vocabulary does not have; make the shards again" in capsys.readouterr().err


def test_what_is_no_text_is_told_in_a_line(shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = shutil.copytree(shards, tmp_path / "copy")
    for shard in copy.glob("shard-*.arrow"):
        rows = len(read_column(shard, "doc_id"))
        rewrite_shard(shard, doc_id=pa.array([b"\xff"] * rows, pa.binary()).view(pa.string()))
    with pytest.raises(SystemExit, match="2"):
        inspect.main([str(copy), "--sample", "1"])
    assert "its column doc_id is not text" in capsys.readouterr().err


def test_a_reader_that_has_seen_enough_is_no_error(shards: Path) -> None:
    command = [sys.executable, "-m", "preprocessing.inspect", str(shards), "--sample", "2000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_the_characters_are_those_read_whatever_is_dropped(
    books: Path, vocabulary_file: Path, said: Said, tmp_path: Path
) -> None:
    shutil.copytree(books, tmp_path / "books")
    shutil.copy(books / "book-11.txt", tmp_path / "books" / "copy.txt")
    arguments = ("--books", tmp_path / "books" / "*.txt", "--vocab", vocabulary_file, "--output", tmp_path / "out")
    make_shards([str(argument) for argument in arguments])
    source = ShardDirectory(tmp_path / "out").manifest.statistics["sources"]["books"]
    assert source["skipped"]["duplicate_document"] == 1
    out = said(tmp_path / "out")
    assert re.search(r"^\| source .* \| characters read \|", out, re.M)
    assert re.search(rf"^\| books .* \| +{source['characters']:,} \|", out, re.M)


def test_a_directory_without_shards_is_an_error_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        inspect.main([str(tmp_path)])
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("inspect: error: ")
