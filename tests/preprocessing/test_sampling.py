"""A job that trains its own vocabulary: the one that the command trains, and the shards that it would give."""

from __future__ import annotations

import errno
import json
import random
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
from hypothesis import example, given, strategies

from preprocessing import files, launch, sampling
from preprocessing.inputs import Input, Unit, text_bytes
from preprocessing.job import BYTES_PER_TOKEN, SHARD_BYTES, Job, choose_layout
from preprocessing.layout import Layout
from preprocessing.make_shards import main
from preprocessing.options import parse
from preprocessing.output import JobFailedError
from preprocessing.reading import read_inputs
from preprocessing.sampling import draw_sample, lowest, sample_texts, sample_unit
from preprocessing.schema import ShardDirectory, Vocabulary
from preprocessing.shared_options import SAMPLE_BYTES
from preprocessing.sources import Document, Skipped, StorageError
from preprocessing.text import clean
from preprocessing.train_vocab import main as train_vocab
from preprocessing.work_files import WorkFile
from tests.preprocessing.maker import TWO_PROCESSES, contents
from tests.preprocessing.test_wikipedia import SITEINFO, dump, page
from tests.preprocessing.watchdog import noting

DOCUMENTS = [Document(f"d{n}", "books", None, f"text {n} " + "x" * n) for n in range(50)]


def make(output: Path, *arguments: object) -> None:
    shared = ("--sequence-lengths", 32, "--duplicates", 2, "--output", output)
    main([str(argument) for argument in (*shared, *arguments)])


@pytest.fixture
def sampled(books: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[object, ...]:
    """Inputs of several units, and a sample of some of their documents."""
    monkeypatch.setattr("preprocessing.inputs.UNIT_BYTES", 1)
    return ("--books", books / "*.txt", "--seed", 3)


@pytest.fixture
def cutoffs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Those of each time that inputs are read for a sample."""
    found: list[int] = []
    build = sampling.build_sampling

    def noting(*arguments: object, cutoff: int, **others: object) -> None:
        found.append(cutoff)
        build(*arguments, cutoff=cutoff, **others)  # type: ignore[arg-type]

    monkeypatch.setattr(sampling, "build_sampling", noting)
    return found


@pytest.mark.parametrize(
    ("bytes_", "case", "mode"),
    [
        (20_000, (), ()),
        pytest.param(20_000, (), TWO_PROCESSES, marks=pytest.mark.slow),
        (1, (), ()),
        (10**8, (), ()),
        (20_000, ("--cased",), ()),
    ],
    ids=["some", "two", "one", "all", "cased"],
)
def test_the_vocabulary_of_the_command_and_its_shards(
    sampled: tuple[object, ...], tmp_path: Path, bytes_: int, case: tuple[str, ...], mode: tuple[str, ...]
) -> None:
    vocabulary, sampled = tmp_path / "vocab.txt", (*sampled, *case)
    train_vocab([*map(str, sampled), "--size", "70", "--sample-bytes", str(bytes_), "--output", str(vocabulary)])
    make(tmp_path / "job", *sampled, "--train-vocab", 70, "--vocab-sample-bytes", bytes_, *mode)
    assert (tmp_path / "job" / "tokenizer" / "vocab.txt").read_bytes() == vocabulary.read_bytes()
    make(tmp_path / "given", *sampled, "--vocab", vocabulary)
    assert contents(tmp_path / "job") == contents(tmp_path / "given")
    assert not (tmp_path / "job" / ".work").exists()
    assert ShardDirectory(tmp_path / "job").manifest.options["train_vocabulary"] == {
        "size": 70,
        "sample_bytes": bytes_,
    }


@pytest.mark.parametrize("rows", [1, 5, 12])
def test_a_sample_has_every_document_whatever_the_batches_that_it_is_written_in(
    books: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cutoffs: list[int], rows: int
) -> None:
    samples: list[list[str]] = []
    train = launch.train_vocabulary

    def watched(texts: list[str], size: int, lowercase: bool) -> list[str]:
        samples.append(texts)
        return train(texts, size, lowercase)

    monkeypatch.setattr(sampling, "ROWS", rows)
    monkeypatch.setattr(launch, "train_vocabulary", watched)
    make(tmp_path / "out", "--books", books / "*.txt", "--train-vocab", 70)
    assert cutoffs == [sampling.ALL]
    assert len(set(samples[0])) == len(samples[0]) == len(list(books.glob("*.txt"))) == 12


def test_the_time_that_is_told_has_the_vocabulary_s(
    books: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hours: list[int] = []
    train = launch.train_vocabulary

    def slow(texts: list[str], size: int, lowercase: bool) -> list[str]:
        hours.append(3600)
        return train(texts, size, lowercase)

    monkeypatch.setattr(launch, "train_vocabulary", slow)
    monkeypatch.setattr("preprocessing.make_shards.time", SimpleNamespace(monotonic=lambda: sum(hours)))
    make(tmp_path / "out", "--books", books / "*.txt", "--train-vocab", 70)
    assert f"{tmp_path / 'out'}: done in 3600.0 s\n" in capsys.readouterr().out


def test_inputs_that_hold_less_than_it_seemed_are_read_again(
    sampled: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cutoffs: list[int]
) -> None:
    make(tmp_path / "right", *sampled, "--train-vocab", 70, "--vocab-sample-bytes", 20_000)
    cutoffs.clear()
    monkeypatch.setattr("preprocessing.sampling.text_bytes", lambda file: 100 * file.bytes)
    make(tmp_path / "wrong", *sampled, "--train-vocab", 70, "--vocab-sample-bytes", 20_000)
    assert contents(tmp_path / "wrong") == contents(tmp_path / "right")
    assert len(cutoffs) == 2
    assert cutoffs[0] < cutoffs[1] == sampling.ALL


def test_a_corpus_in_one_unit_is_read_once_where_it_holds_enough(
    books: Path, tmp_path: Path, cutoffs: list[int]
) -> None:
    words = (books / "book-11.txt").read_text().split()
    lines = (json.dumps({"body": " ".join(words[at : at + 20])}) for at in range(len(words) - 20))
    (tmp_path / "texts.jsonl").write_text("\n".join(lines))
    sample = ("--jsonl", tmp_path / "texts.jsonl", "--jsonl-text-field", "body", "--seed", 3)
    vocabulary = tmp_path / "vocab.txt"
    train_vocab([*map(str, sample), "--size", "70", "--sample-bytes", "5000", "--output", str(vocabulary)])
    make(tmp_path / "job", *sample, "--train-vocab", 70, "--vocab-sample-bytes", 5000)
    assert len(cutoffs) == 1
    assert (tmp_path / "job" / "tokenizer" / "vocab.txt").read_bytes() == vocabulary.read_bytes()


def test_an_interrupted_job_keeps_its_vocabulary(
    sampled: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (*sampled, "--train-vocab", 70)
    with monkeypatch.context() as patch:
        patch.setattr(launch, "execute", lambda *_: (_ for _ in ()).throw(MemoryError))
        with pytest.raises(MemoryError):
            make(tmp_path / "out", *arguments)
    assert not list(tmp_path.glob("out/.work/sample-*")), "which are as large as the sample"
    with monkeypatch.context() as patch:
        patch.setattr(launch, "train_vocabulary", None)  # would fail if it were called again
        make(tmp_path / "out", *arguments)
    capsys.readouterr()
    make(tmp_path / "out", *arguments)
    assert "nothing to do" in capsys.readouterr().out
    for other in (("--train-vocab", 71), ("--train-vocab", 70, "--vocab-sample-bytes", 5)):
        with pytest.raises(SystemExit):
            make(tmp_path / "out", *sampled, *other)
        assert "train_vocabulary" in capsys.readouterr().err


def test_a_corpus_with_fewer_entries_than_wanted_is_told(
    sampled: tuple[object, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "out", *sampled, "--train-vocab", 5000)
    manifest, told = ShardDirectory(tmp_path / "out").manifest, capsys.readouterr().out
    assert manifest.vocabulary.size < 5000
    assert f"vocabulary {manifest.vocabulary.size:,} entries (5,000 wanted; the corpus has no more)" in told
    written = sum(entry.bytes for entry in manifest.shards)
    assert f"{written / manifest.statistics['tokens']:.2f} bytes a token" in told, "of the shards"


def test_unusable_requests_are_told_in_a_line(
    sampled: tuple[object, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str], vocabulary_file: Path
) -> None:
    for arguments, told in [
        ((), "one of the arguments --vocab --train-vocab is required"),
        (("--train-vocab", 70, "--vocab", vocabulary_file), "not allowed with argument"),
        (("--train-vocab", 9), "leaves no room"),
    ]:
        with pytest.raises(SystemExit) as caught:
            make(tmp_path / "out", *sampled, *arguments)
        assert caught.value.code == 2
        assert told in capsys.readouterr().err
        assert not list(tmp_path.glob("out/*"))


def test_a_sample_depends_on_documents_and_seed_only() -> None:
    whole = sample_texts(DOCUMENTS, 10_000, seed=1)
    assert len(whole) == 50
    sample = sample_texts(DOCUMENTS, 500, seed=1)
    assert sample == whole[: len(sample)]
    assert sum(map(len, sample)) <= 500 < sum(map(len, whole[: len(sample) + 1]))
    for seed in range(5):
        shuffled = random.Random(seed).sample(DOCUMENTS, 50)
        assert sample_texts([Skipped("s", "books", "empty"), *shuffled], 500, seed=1) == sample
    assert sample_texts(DOCUMENTS, 500, seed=2) != sample
    assert len(sample_texts(DOCUMENTS, 1, seed=1)) == 1


def test_a_budget_is_of_bytes_and_filled_to_the_last() -> None:
    entries = [(3, "é"), (1, "ü"), (2, "ß")]
    assert lowest(entries, 6) == ([(1, "ü"), (2, "ß"), (3, "é")], [])
    assert lowest(entries, 4) == ([(1, "ü"), (2, "ß")], [(3, "é")])
    assert lowest(entries, 3) == ([(1, "ü")], [(2, "ß")])


@given(
    entries=strategies.lists(
        strategies.tuples(strategies.integers(0, 20), strategies.text("ab", max_size=40)), min_size=1, max_size=40
    ),
    ends=strategies.sets(strategies.integers(1, 39), max_size=5),
    budget=strategies.integers(0, 400),
)
@example(entries=[(0, "a" * 10), (1, "a" * 95), (2, "a" * 5)], ends={2}, budget=100)  # the last one has no room either
@example(entries=[(0, "a" * 6), (0, "b" * 6)], ends={1}, budget=11)  # two revisions of a page
def test_a_sample_of_samples_is_the_sample_of_the_whole(
    entries: list[tuple[int, str]], ends: set[int], budget: int
) -> None:
    cuts = [0, *sorted(ends), len(entries)]
    parts = [lowest(entries[begin:end], budget) for begin, end in pairwise(cuts)]
    drawn = [entry for part in parts for entry in part.taken + part.next]
    assert lowest(drawn, budget) == lowest(entries, budget)


def test_a_job_of_many_units_draws_what_the_command_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two dumps of a wiki too, whose pages have the same names. What ends the sample may be in one unit alone."""
    monkeypatch.setattr("preprocessing.inputs.UNIT_BYTES", 1)
    for name, numbers in (("even", range(0, 40, 2)), ("odd", range(1, 40, 2)), ("old", range(0, 40, 3))):
        texts = {number: f"{name} {'word ' * (400 if number % 2 else 1)}." for number in numbers}
        pages = [page(text, number=number) for number, text in texts.items()]
        (tmp_path / f"{name}.xml").write_bytes(dump(SITEINFO, *pages))

    def run(job: Job, _options: object, build: partial[None]) -> None:
        for unit in build.keywords["units"]:
            sample_unit(unit, job, build.keywords["budget"], build.keywords["cutoff"])

    monkeypatch.setattr(sampling, "run_pipeline", run)
    asked = ["--wikipedia", str(tmp_path / "*.xml"), "--train-vocab", "70", "--output", str(tmp_path / "out")]
    for seed in range(8):
        job, inputs, units, _ = launch.prepare(parse([*asked, "--seed", str(seed)]), str(tmp_path / "out"))
        assert len(units) == 3
        documents = list(read_inputs(inputs))
        for budget in range(1, 9000, 400):
            assert draw_sample(job, units, budget, []) == sample_texts(documents, budget, seed)


def test_a_sample_that_can_not_be_read_is_of_storage_that_fails(
    three: tuple[Job, Unit], monkeypatch: pytest.MonkeyPatch
) -> None:
    job, unit = three

    def unreadable(path: str) -> NoReturn:
        raise OSError(errno.ESTALE, f"Failed to open local file '{path}'")

    monkeypatch.setattr(sampling, "run_pipeline", lambda *_: sample_unit(unit, job, 3, sampling.ALL))
    assert len(draw_sample(job, [unit], 3, [])) == 1
    monkeypatch.setattr(files.pa, "memory_map", unreadable)
    with pytest.raises(JobFailedError, match=r"out: can't be written or read \(Stale file handle\); once it can"):
        draw_sample(job, [unit], 3, [])


def test_a_sample_is_of_texts_as_they_are_encoded() -> None:
    document = Document("d", "books", None, "one\u00a0 two\r\n\ufeffthree")
    assert sample_texts([document], 100, seed=1) == [clean(document.text)] != [document.text]


@pytest.fixture
def three(tmp_path: Path) -> tuple[Job, Unit]:
    """A unit of three documents."""
    path = tmp_path / "three.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in ("one", "two", "six")))
    options = parse(["--jsonl", str(path), "--train-vocab", "70", "--output", "o"]).options
    job = Job(str(tmp_path / "out"), options, Vocabulary(70, "", True), Layout(1, 1, 0, 0.0), units=1)
    return job, Unit(0, (Input("jsonl", path.name, path.stat().st_size, str(path)),))


def test_the_file_of_a_unit_has_what_fits_and_one_more_and_tells_how_much_there_is(three: tuple[Job, Unit]) -> None:
    job, unit = three
    sample_unit(unit, job, budget=3, cutoff=sampling.ALL)
    with files.open_arrow(job.path(WorkFile.SAMPLE, unit=0)) as sample:
        assert sample.get_batch(0).num_rows == 2
        assert sample.schema.metadata[sampling.FOUND] == b"3"


def test_an_input_that_changes_while_it_is_sampled_is_told(three: tuple[Job, Unit]) -> None:
    """When it is read again it may be whole, and the vocabulary another one than its own."""
    job, unit = three
    file = unit.inputs[0]
    with pytest.raises(StorageError, match="has changed since the job began"):
        sample_unit(Unit(0, (file._replace(bytes=file.bytes - 1),)), job, 100, sampling.ALL)
    assert not Path(job.path(WorkFile.SAMPLE, unit=0)).exists()
    assert "has changed since the job began" in (job.left_error(WorkFile.STORAGE_ERROR) or "")


def test_a_document_is_watched_until_it_is_cleaned(three: tuple[Job, Unit], monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []

    monkeypatch.setattr(sampling, "watching", noting(happened))
    monkeypatch.setattr(sampling, "clean", lambda text: (happened.append("clean"), text)[1])
    sample_unit(three[1], three[0], 100, sampling.ALL)
    assert happened == [step for row in range(3) for step in (f"three.jsonl#{row}", "clean", "rest")]


def test_a_cutoff_leaves_room_to_be_wrong() -> None:
    assert sampling.first_cutoff(100, 50) == sampling.ALL
    assert sampling.first_cutoff(100, 0) == sampling.ALL
    assert sampling.first_cutoff(100, 1000) == pytest.approx(sampling.ALL / 5)


@pytest.mark.parametrize(
    ("name", "times"), [("a.txt", 1), ("gz", 1), ("a.gz.txt", 1), ("a.txt.gz", 3), (".gz", 3), ("in/.bz2", 4.5)]
)
def test_how_much_text_a_file_holds_is_told_by_its_ending(name: str, times: float) -> None:
    assert text_bytes(Input("books", name, 100, "")) == pytest.approx(100 * times)


def test_all_of_wikipedia_is_read_once_for_a_sample_and_its_shards_have_about_their_size() -> None:
    """By the figures of docs/data.md: 25 GB of bzip2 hold 17 GB of text."""
    dump = Input("wikipedia", "enwiki-pages-articles-multistream.xml.bz2", 25 * 10**9, "")
    assert sampling.first_cutoff(SAMPLE_BYTES, text_bytes(dump)) / sampling.ALL * 17e9 > SAMPLE_BYTES
    options = parse(["--wikipedia", "x", "--vocab", "v", "--output", "o"]).options
    tokens = 2 * 17e9 / BYTES_PER_TOKEN
    assert 0.5 * SHARD_BYTES < tokens / choose_layout([dump], options, 30522).train_shards < 2 * SHARD_BYTES


def test_a_real_korean_vocabulary(real_data: Path, tmp_path: Path) -> None:
    korean = ("--books", real_data / "korean" / "kowiki" / "*", "--cased", "--language", "ko")
    main(
        [
            *map(str, korean),
            *("--train-vocab", "8000", "--output", str(tmp_path / "out"), "--sequence-lengths", "128"),
        ]
    )
    manifest = ShardDirectory(tmp_path / "out").manifest
    assert manifest.vocabulary.size == 8000
    assert manifest.statistics["unknown_rate"] < 0.03
