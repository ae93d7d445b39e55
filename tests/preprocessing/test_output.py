from __future__ import annotations

import errno
import json
import os
import shutil
import tracemalloc
import uuid
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

from preprocessing import files, launch
from preprocessing.inputs import find_inputs
from preprocessing.make_shards import main
from preprocessing.output import clear, clear_work, difference, other_benchmark, other_vocabulary
from preprocessing.schema import ShardDirectory
from preprocessing.sources import StorageError
from preprocessing.work_files import WorkFile
from tests.failing import fail_on
from tests.preprocessing.conftest import write_books
from tests.preprocessing.maker import Maker, contents, job_at, rows


def test_another_jobs_output_is_refused_and_replaced_when_asked(make: Maker, books: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    make(output, "--books", books / "*.txt", "--num-shards", 2)
    for argument, told in [
        (("--seed", 2), "seed was 1 there and is 2 here"),
        (("--min-tokens", 2), "min_tokens was 1 there and is 2 here"),
    ]:
        said = make.error(output, "--books", books / "*.txt", "--num-shards", 2, *argument)
        assert "another job's output" in said
        assert told in said
        assert "--overwrite" in said
    assert "its inputs differ, first in book-09.txt" in make.error(
        output, "--books", books / "*[0-8].txt", "--num-shards", 2
    )
    (output / "notes.txt").write_text("mine")
    make(output, "--books", books / "*.txt", "--overwrite")
    assert [entry.file for entry in ShardDirectory(output).manifest.split("train")] == ["shard-00000-of-00001.arrow"]
    assert (output / "notes.txt").read_text() == "mine"
    assert len(list(output.glob("shard-*"))) == 1
    (output / "shard-00000-of-00001.arrow").unlink()
    assert "is not there" in make.error(output, "--books", books / "*.txt")


@pytest.mark.parametrize(
    ("state", "whose"), [("finished", "another job's output"), ("begun", "another job, interrupted")]
)
def test_another_vocabulary_is_told_in_words(
    make: Maker, books: Path, tmp_path: Path, vocabulary: list[str], state: str, whose: str
) -> None:
    output, other = tmp_path / "out", tmp_path / "other.txt"
    make(output, "--books", books / "*.txt")
    if state == "begun":
        (output / "manifest.json").unlink()
    other.write_text("\n".join(reversed(vocabulary)) + "\n")
    said = make.error(output, "--books", books / "*.txt", "--vocab", other)
    assert f"{output}: holds {whose}: made with another vocabulary, not with {other}; use --overwrite" in said


def test_a_glob_that_matches_the_output_too_reads_none_of_it(make: Maker, tmp_path: Path) -> None:
    docs = write_books(tmp_path / "docs", 4)
    output = docs / "out"
    make(output, "--books", docs / "**")
    made = contents(output)
    for asked in ((), ("--overwrite",)):
        make(output, "--books", docs / "**", *asked)
        assert contents(output) == made
    said = make.error(output, "--books", output / "tokenizer" / "*.txt", "--overwrite")
    assert said.endswith(
        f"nothing but files below --output, such as {output}/tokenizer/vocab.txt; choose another output"
    )
    assert contents(output) == made


def test_a_glob_that_matches_the_output_of_another_job_reads_none_of_it_and_all_that_lies_beside_it(
    make: Maker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    docs = write_books(tmp_path / "docs", 4)
    make(docs / "first", "--books", docs / "**")
    notes: list[str] = []
    assert len(find_inputs({"books": [f"{docs}/**"]}, notes.append)) == 4
    assert notes == [f"7 files of finished shards passed over, such as {docs}/first/job.json"]
    (docs / "first" / "notes.txt").write_text("The old captain spoke of his first long voyage home.")
    (docs / "tokenizer").mkdir()
    (docs / "tokenizer" / "manifest.json").write_text("The whale sailed under the ship.")
    make(docs / "second", "--books", docs / "**", "--seed", 2)
    books = [f"book-0{number}.txt" for number in range(4)]
    assert [row["doc_id"] for row in rows(docs / "second")] == [*books, "first/notes.txt", "tokenizer/manifest.json"]
    with pytest.raises(SystemExit):
        make(tmp_path / "third", "--books", docs / "*" / "tokenizer" / "vocab.txt")
    *_, error = capsys.readouterr().err.splitlines()
    assert error.endswith(
        f"nothing but files of finished shards, such as {docs}/first/tokenizer/vocab.txt; give the text itself"
    )


def test_foreign_files_are_never_touched(make: Maker, books: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    (output / "tokenizer").mkdir(parents=True)
    (output / "tokenizer" / "notes").write_text("mine")
    for asked in ((), ("--overwrite",)):
        assert "'tokenizer/notes'; use another directory" in make.error(output, "--books", books / "*.txt", *asked)
    (output / "manifest.json").write_text("{}")
    said = make.error(output, "--books", books / "*.txt", "--overwrite")
    assert "'manifest.json' was not written by a job of this program" in said
    assert sorted(path.name for path in output.rglob("*")) == ["manifest.json", "notes", "tokenizer"]


def test_a_work_folder_among_foreign_files_is_foreign_too(make: Maker, books: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    (output / ".work").mkdir(parents=True)
    for mine in (output / "notes", output / ".work" / "vocab.txt"):
        mine.write_text("mine")
    for asked in ((), ("--overwrite",)):
        said = make.error(output, "--books", books / "*.txt", *asked)
        assert "contains files that are not from this program" in said
    assert (output / ".work" / "vocab.txt").read_text() == "mine"


def test_a_foreign_manifest_need_not_even_be_text(make: Maker, books: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()
    (output / "manifest.json").write_bytes(b"caf\xe9")
    assert "'manifest.json'; use another directory" in make.error(output, "--books", books / "*.txt")
    said = make.error(output, "--books", books / "*.txt", "--overwrite")
    assert "'manifest.json' was not written by a job of this program" in said
    assert (output / "manifest.json").read_bytes() == b"caf\xe9"


def test_another_benchmark_is_told_in_words(make: Maker, books: Path, tmp_path: Path) -> None:
    output, folder = tmp_path / "out", tmp_path / "benchmark"
    asked, beside = ("--books", books / "*.txt"), ("--contamination", folder)
    folder.mkdir()
    text = folder / "dev.txt"
    text.write_text("One line of more than eight words that are not in any of the books\n")
    make(output, *asked)
    assert "another job's output: made without --contamination; " in make.error(output, *asked, *beside)
    make(output, *asked, *beside, "--overwrite")
    assert "another job's output: made with --contamination; " in make.error(output, *asked)
    text.write_text("Another line of more than eight words that are not in any of the books\n")
    assert "made with other texts in the folder of --contamination; " in make.error(output, *asked, *beside)


def test_a_later_version_of_a_library_does_not_unmake_a_finished_job(make: Maker, books: Path, tmp_path: Path) -> None:
    """One that is not finished would go on with shards of which some are as the earlier version made them."""
    output = tmp_path / "out"
    make(output, "--books", books / "*.txt")
    job = json.loads((output / "job.json").read_text())
    del job["versions"]["lxml"]  # of a version of this program that did not name it
    job["versions"]["tokenizers"] = "0.0.1"
    (output / "job.json").write_text(json.dumps(job))
    assert "nothing to do" in make(output, "--books", books / "*.txt")
    (output / "manifest.json").unlink()
    said = make.error(output, "--books", books / "*.txt")
    assert "another job, interrupted: versions.lxml was None there and is " in said
    job["versions"]["lxml"] = version("lxml")
    (output / "job.json").write_text(json.dumps(job))
    said = make.error(output, "--books", books / "*.txt")
    assert "another job, interrupted: versions.tokenizers was 0.0.1 there and is " in said


def test_who_would_cut_the_inputs_elsewhere_does_not_unmake_a_finished_job_and_does_not_go_on_with_another(
    make: Maker, books: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A document would be in two units, or in none."""
    output = tmp_path / "out"
    make(output, "--books", books / "*.txt")
    job = json.loads((output / "job.json").read_text())
    with monkeypatch.context() as patched:
        patched.setattr("preprocessing.inputs.UNIT_BYTES", 1)
        assert "nothing to do" in make(output, "--books", books / "*.txt")
        (output / "manifest.json").unlink()
        cut = "another job, interrupted: its inputs were cut in other places, as another version of this program does"
        assert cut in make.error(output, "--books", books / "*.txt")
        assert "another job, interrupted: options.seed was 1 there" in make.error(
            output, "--books", books / "*.txt", "--seed", 2
        )
    earlier = job | {"units": job["units"]["number"]}  # as earlier versions wrote it
    (output / "job.json").write_text(json.dumps(earlier))
    assert cut in make.error(output, "--books", books / "*.txt")
    (output / "job.json").write_text(json.dumps(job))
    assert "done in" in make(output, "--books", books / "*.txt")


def test_finished_shards_whose_inputs_are_gone_are_told_to_be_finished(make: Maker, tmp_path: Path) -> None:
    output, books = tmp_path / "out", write_books(tmp_path / "books", 4)
    make(output, "--books", books / "*.txt")
    shutil.rmtree(books)
    said = make.error(output, "--books", books / "*.txt")
    assert f"{books}/*.txt: no input file matches; " in said
    assert said.endswith(f"; the shards in {output} are finished, and need their inputs no more")
    (output / "manifest.json").unlink()
    assert "the shards in" not in make.error(output, "--books", books / "*.txt")


@pytest.mark.parametrize(
    ("cause", "code"), [(PermissionError(errno.EACCES, "not for you"), 2), (OSError(errno.EIO, "not now"), 1)]
)
def test_finished_shards_whose_inputs_can_not_be_opened_are_told_to_be_finished(
    make: Maker, books: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: OSError, code: int
) -> None:
    output = tmp_path / "out"
    make(output, "--books", books / "*.txt")

    def fail(path: str) -> None:
        raise StorageError(f"{path}: can't be read") from cause

    monkeypatch.setattr("preprocessing.inputs.PART_BYTES", 1)
    monkeypatch.setattr("preprocessing.files.open_raw", fail)
    said = make.error(output, "--books", books / "*.txt", code=code)
    assert said.endswith(f": can't be read; the shards in {output} are finished, and need their inputs no more")


def test_inputs_that_are_gone_are_told_where_nobody_can_tell_whether_shards_are_finished(
    make: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_on(monkeypatch, files, "exists")
    said = make.error(tmp_path / "out", "--books", tmp_path / "*.txt")
    assert f"{tmp_path}/*.txt: no input file matches; " in said
    assert "the shards in" not in said


def test_inputs_that_are_gone_are_told_where_beam_does_not_even_know_the_output(make: Maker, tmp_path: Path) -> None:
    said = make.error("nowhere://out", "--books", tmp_path / "*.txt")
    assert f"{tmp_path}/*.txt: no input file matches; " in said
    assert "the shards in" not in said


def test_shards_without_their_job_are_replaced_when_asked(make: Maker, books: Path, tmp_path: Path) -> None:
    """As they are where somebody has copied what a training needs."""
    output = tmp_path / "out"
    make(output, "--books", books / "*.txt")
    made = contents(output)
    (output / "job.json").unlink()
    said = make.error(output, "--books", books / "*.txt")
    assert "holds shards without their job.json; use --overwrite to replace it, or another directory" in said
    make(output, "--books", books / "*.txt", "--overwrite")
    assert contents(output) == made


@pytest.mark.parametrize("manifest", [b'{"format_version": 0}', b'{"format_ver', b"\xff"])
def test_shards_whose_manifest_is_damaged_or_of_another_version_are_replaced_when_asked(
    make: Maker, books: Path, tmp_path: Path, manifest: bytes
) -> None:
    output = tmp_path / "out"
    make(output, "--books", books / "*.txt")
    made = contents(output)
    (output / "manifest.json").write_bytes(manifest)
    assert "make the shards again with --overwrite" in make.error(output, "--books", books / "*.txt")
    make(output, "--books", books / "*.txt", "--overwrite")
    assert contents(output) == made


def test_a_foreign_tokenizer_is_never_written_over(make: Maker, books: Path, tmp_path: Path) -> None:
    mine = tmp_path / "out" / "tokenizer" / "vocab.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    said = make.error(tmp_path / "out", "--books", books / "*.txt", "--overwrite")
    assert "'tokenizer/vocab.txt' was not written by a job of this program" in said
    assert mine.read_text() == "mine"


@pytest.mark.parametrize(
    "name",
    ["manifest.json", "tokenizer/vocab.txt", "shard-00000-of-00001.arrow", "validation-shard-00000-of-00001.arrow"],
)
def test_a_folder_in_the_way_of_a_file_is_told_before_anything_is_removed(
    make: Maker, books: Path, tmp_path: Path, name: str
) -> None:
    output = tmp_path / "out"
    make(output, "--books", books / "*.txt")
    (output / name).unlink()
    (output / name).mkdir()
    made = sorted(output.rglob("*"))
    for asked in ((), ("--overwrite",)):
        said = make.error(output, "--books", books / "*.txt", *asked)
        assert said.endswith(f"{output}: {name!r} is a folder; remove it, or use another directory")
        assert [path for path in sorted(output.rglob("*")) if ".work" not in path.parts] == made


@pytest.mark.parametrize(("number", "code"), [(errno.EACCES, 2), (errno.EIO, 1)])
def test_whether_a_file_is_of_shards_whose_manifest_can_not_be_read_is_not_guessed(
    make: Maker, books: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: int
) -> None:
    make(tmp_path / "first", "--books", books / "*.txt")
    fail_on(monkeypatch, files, "read_text", tmp_path / "first" / "manifest.json", number)
    said = make.error(tmp_path / "second", "--books", tmp_path / "first" / "**", code=code)
    assert f"{tmp_path}/first/manifest.json: can't be read ({os.strerror(number)}), so it can't be told" in said


def test_a_vocabulary_among_what_would_be_removed_is_kept(make: Maker, books: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    make(output, "--books", books / "*.txt")
    vocabulary, made = output / "tokenizer" / "vocab.txt", contents(output)
    (tmp_path / "link").symlink_to(output)
    for path in (vocabulary, tmp_path / "link" / "tokenizer" / "vocab.txt"):
        said = make.error(output, "--books", books / "*.txt", "--vocab", path, "--seed", 2, "--overwrite")
        assert f"{path}: would be removed with the shards that it lies among" in said
    assert contents(output) == made
    shutil.copy(vocabulary, tmp_path / "vocab.txt")
    make(output, "--books", books / "*.txt", "--vocab", tmp_path / "vocab.txt", "--seed", 2, "--overwrite")


def test_a_directory_is_cleared_manifest_first_notes_before_their_data_and_job_last(
    make: Maker, books: Path, tmp_path: Path, one_book_a_unit: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    monkeypatch.setattr(launch, "clear_work", lambda _output: None)
    make(output, "--books", books / "*.txt")
    removed: list[str] = []
    monkeypatch.setattr(files, "_remove", lambda path: removed.append(path.removeprefix(f"{output}/")))
    clear(str(output))
    assert (removed[0], removed[-1]) == ("manifest.json", "job.json")
    assert len([name for name in removed if name.startswith(".work/tokens-")]) == 24
    notes = [name.endswith(".json") for name in removed[:-1]]
    assert notes == sorted(notes, reverse=True)


@pytest.mark.parametrize("name", ["manifest.json", "shard-00000-of-00001.arrow", "job.json"])
@pytest.mark.parametrize(
    ("number", "code", "told"),
    [
        (errno.EIO, 1, "can't be written or read (Input/output error); once it can, the same command goes on"),
        (errno.EACCES, 2, "can't write there (Permission denied); use another directory"),
    ],
)
def test_an_old_file_that_can_not_be_removed_is_told_before_anything_new_is_written(
    make: Maker, books: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    name: str, number: int, code: int, told: str,
) -> None:  # fmt: skip
    """A manifest that stayed would tell of shards that are gone; what it tells of goes after it."""
    output = tmp_path / "out"
    make(output, "--books", books / "*.txt")
    before = {path.name: path.read_bytes() for path in output.glob("*.*")}

    with monkeypatch.context() as patch:
        fail_on(patch, Path, "unlink", output / name, number)
        with pytest.raises(SystemExit) as caught:
            make(output, "--books", books / "*.txt", "--seed", 2, "--overwrite")
    assert caught.value.code == code
    assert capsys.readouterr().err == f"make_shards: error: {output}: {told}\n"
    left = {path.name: path.read_bytes() for path in output.glob("*.*")}
    assert left.items() <= before.items()
    assert left == before if name == "manifest.json" else "manifest.json" not in left
    make(output, "--books", books / "*.txt", "--seed", 2, "--overwrite")
    assert ShardDirectory(output).manifest.seed == 2


def test_a_work_folder_that_can_not_be_removed_is_a_note_and_goes_with_the_next_command(
    make: Maker, books: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    arguments = [str(argument) for argument in ("--books", books / "*.txt", "--vocab", make.vocabulary)]
    for told in ("done in", "nothing to do"):
        with monkeypatch.context() as patch:
            fail_on(patch, files, "_remove")
            main([*arguments, "--output", str(output)])
        said = capsys.readouterr()
        assert told in said.out
        assert said.err == (
            f"make_shards: {output}: .work can't be removed (Input/output error); "
            "the shards are finished, and the same command removes it later\n"
        )
        assert list(output.glob(".work/*.arrow"))
    main([*arguments, "--output", str(output)])
    assert capsys.readouterr().err == ""
    assert not (output / ".work").exists()


def test_all_that_a_job_may_leave_in_its_work_folder_goes_with_it_and_nothing_else(tmp_path: Path) -> None:
    job = replace(job_at(tmp_path), units=100_001)
    shards = [*job.layout.names("train"), *job.layout.names("validation")]
    places = ["drops", "settle", "unit-00003", *shards]
    of_units = [WorkFile.FOUND, WorkFile.SAMPLE, WorkFile.UNIT_NOTE, WorkFile.READING_NOTE]
    units = [job.path(kind, unit=unit) for kind in of_units for unit in (3, 100_000)]
    units += [path for unit in (3, 100_000) for path in job.unit_files(unit)]
    corpus = [WorkFile.VOCABULARY, WorkFile.BENCHMARK_SEQUENCES, WorkFile.BENCHMARK_TEXTS, WorkFile.LOST,
              WorkFile.REPEATS_BY_HASH, WorkFile.REPEATS, WorkFile.DROPS_NOTE]  # fmt: skip
    of_places = [
        WorkFile.ERROR,
        WorkFile.DAMAGE_ERROR,
        WorkFile.STORAGE_ERROR,
        WorkFile.PASSING_ERROR,
        WorkFile.STUCK_ERROR,
    ]
    errors = [job.path(kind, place=place) for kind in of_places for place in places]
    notes = [job.path(WorkFile.SHARD_NOTE, shard=shard) for shard in shards]
    for path in (*units, *map(job.path, corpus), *errors, *notes):
        files.write_text(path, "{}", job.work)
    Path(job.work, f"tmp-{uuid.uuid4().hex}").write_text("half")
    Path(job.work, "notes").write_text("mine")
    clear_work(job.output)
    assert [path.name for path in Path(job.work).iterdir()] == ["notes"]


@pytest.mark.parametrize("name", ["shard-00000-of-00001.arrow", "validation-shard-00000-of-00001.arrow"])
def test_a_file_of_somebody_elses_with_the_name_of_a_new_shard_is_never_written_over(
    make: Maker, books: Path, tmp_path: Path, name: str
) -> None:
    output = tmp_path / "out"
    make(output, "--books", books / "*.txt", "--num-shards", 2, "--validation-fraction", 0)
    (output / name).write_text("mine")
    said = make.error(output, "--books", books / "*.txt", "--num-shards", 1, "--overwrite")
    assert f"'{name}' was not written by a job of this program" in said
    assert (output / name).read_text() == "mine"
    assert len(ShardDirectory(output).manifest.split("train")) == 2


def test_the_manifest_is_the_last_of_all_files_to_get_its_name(
    make: Maker, books: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever sees it may read all the others."""
    output, named, rename = tmp_path / "out", [], files._rename

    def watched(unfinished: str, path: str) -> None:
        rename(unfinished, path)
        named.append(path.removeprefix(f"{output}/"))

    monkeypatch.setattr(files, "_rename", watched)
    make(output, "--books", books / "*.txt")
    assert named[-1] == "manifest.json"
    assert {"tokenizer/vocab.txt", "shard-00000-of-00001.arrow"} < set(named)


def test_differences_are_told_in_words() -> None:
    assert difference({"a": 1}, {"a": 1}) is None
    assert difference({"a": {"b": 1}}, {"a": {"b": 2}}) == "a.b was 1 there and is 2 here"
    assert difference({"a": [1]}, {"a": [2]}) == "a was [1] there and is [2] here"
    files = [{"name": "b", "bytes": size} for size in (1, 2)]
    assert difference({"a": [{"name": "a"}, files[0]]}, {"a": [{"name": "a"}, files[1]]}) == "its a differ, first in b"
    assert difference({"a": files[:1]}, {"a": files}) == "its a differ, first in b"
    assert json.dumps(difference({}, {"a": 1})) == '"a was None there and is 1 here"'


def test_vocabularies_that_are_given_and_trained_ones_are_told_apart() -> None:
    trained, one, two = ({"vocabulary": {"size": 70, "blake2b": blake2b}} for blake2b in ("", "1", "2"))
    assert other_vocabulary(one, two, "v.txt") == "made with another vocabulary, not with v.txt"
    assert other_vocabulary(trained, one, "v.txt") == "made with one that it trained, not with v.txt"
    assert other_vocabulary(one, trained, None) == "made with another vocabulary, not with one that is trained"
    assert other_vocabulary(one, one, "v.txt") is other_vocabulary(trained, trained, None) is None
    assert other_vocabulary({}, one, "v.txt") == "made with one that it trained, not with v.txt"


def test_what_is_looked_for_in_a_corpus_is_told_apart() -> None:
    none, one, two = ({"benchmark": identity} for identity in ("", "1", "2"))
    assert other_benchmark(none, one) == "made without --contamination"
    assert other_benchmark(one, none) == "made with --contamination"
    assert other_benchmark(one, two) == "made with other texts in the folder of --contamination"
    assert other_benchmark(one, one) is other_benchmark(none, none) is other_benchmark({}, none) is None


def test_a_job_json_that_no_job_wrote_is_left_alone(make: Maker, books: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()
    partial = '{"format_version": 1, "shards": {"train": 1}}'
    other = '{"format_version": 1, "shards": {"train": 1, "validation": 1}, "vocabulary": "x"}'
    for text in (partial, other, '{"format_version": 1, "shards": 3}', "[]", "{", "3", "[" * 100_000):
        (output / "job.json").write_text(text)
        said = make.error(output, "--books", books / "*.txt", "--overwrite")
        assert "'job.json' was not written by a job of this program" in said
        assert (output / "job.json").read_text() == text


def test_of_however_many_shards_a_job_json_tells_only_those_that_are_there_take_memory(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text('{"format_version": 1, "shards": {"train": 1000000, "validation": 1}}')
    foreign = ["shard-00007-of-00008.arrow", "shard-0000007-of-1000000.arrow", "shard-1000000-of-1000000.arrow",
               "validation-shard-00001-of-00001.arrow"]  # fmt: skip
    for name in ("shard-00007-of-1000000.arrow", "validation-shard-00000-of-00001.arrow", *foreign):
        (tmp_path / name).touch()
    tracemalloc.start()
    clear(str(tmp_path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10_000_000
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(foreign)


@pytest.mark.parametrize("name", [".work", ".work/lock", "tokenizer"])
@pytest.mark.parametrize("asked", [(), ("--overwrite",)])
def test_what_a_link_leads_to_is_neither_written_to_nor_emptied(
    make: Maker, books: Path, tmp_path: Path, name: str, asked: tuple[str, ...]
) -> None:
    output, elsewhere, mine = tmp_path / "out", tmp_path / "elsewhere", ("vocab.txt", "lock", "tokens-00000.json")
    elsewhere.mkdir()
    for file in mine:
        (elsewhere / file).write_text("mine")
    (output / name).parent.mkdir(parents=True)
    (output / name).symlink_to(elsewhere / "lock" if name == ".work/lock" else elsewhere)
    kind = "file" if name == ".work/lock" else "folder"
    said = make.error(output, "--books", books / "*.txt", *asked)
    assert said.endswith(f"{output}: {name!r} is no {kind} of its own; remove it, or use another directory")
    assert {path.name: path.read_text() for path in elsewhere.iterdir()} == dict.fromkeys(mine, "mine")


@pytest.mark.parametrize("name", [".work", "tokenizer"])
def test_a_file_in_the_way_of_a_folder_is_told_before_any_work(
    make: Maker, books: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    output = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(launch, "clear_work", lambda _output: None)
        make(output, "--books", books / "*.txt")
    (output / "manifest.json").unlink()
    shutil.rmtree(output / name)
    (output / name).write_text("mine")
    said = make.error(output, "--books", books / "*.txt")
    assert said.endswith(f"{output}: {name!r} is no folder of its own; remove it, or use another directory")
    assert (output / name).read_text() == "mine"
