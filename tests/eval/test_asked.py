"""What of results that are there is not what is asked for."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from eval.asked import Asked, Difference
from eval.options import parse
from eval.results import read_results
from eval.run import main
from eval.tasks import select
from preprocessing.storage_errors import UnavailableError
from tests.eval.small_data import write_mrpc
from tests.failing import fail_at
from tests.trainer.shard_factory import write_shards

ONE_POINT = ("--epochs", "1", "--learning-rates", "1e-3")
Compare = Callable[..., Difference | None]


@pytest.fixture
def compare(export: Path, shards: Path, tmp_path: Path) -> Compare:
    """Evaluate a task, and ask for it again with options that are added, or with the results changed."""

    def evaluate_and_compare(
        task: str, *added: str, first: tuple[str, ...] = (), held_out: Path = shards, forget: tuple[str, ...] = (),
        config: str | None = None, **changed: object,
    ) -> Difference | None:  # fmt: skip
        data = tmp_path / "data"
        if not data.exists():
            write_mrpc(data)
        words = ["--checkpoint", str(export), "--tasks", task, "--output", str(tmp_path / "out"), "--no-tracking"]
        words += ["--data", str(data), *ONE_POINT]
        assert main([*words, "--shards", str(shards), *first]) == 0
        results = read_results(tmp_path / "out" / "results.json")
        results["tasks"][task] |= changed
        for name in forget:
            del results["tasks"][task]["details"][name]
        if config is not None:
            (export / "config.json").write_text(config)
        again = parse([*words, "--shards", str(held_out), *added])
        return Asked(again, select([task])).difference(task, results, export)

    return evaluate_and_compare


@pytest.mark.parametrize("task", ["mlm", "nsp", "fill_mask", "mrpc"])
def test_nothing_is_different_where_the_same_is_asked_for(compare: Compare, task: str) -> None:
    assert compare(task) is None


@pytest.mark.parametrize(
    ("added", "made"),
    [
        (("--limit", "20"), "without --limit"),
        (("--max-length", "16"), "with --max-length 48"),
        (("--optimizer", "adamw"), "with --optimizer bert_adam"),
        (("--precision", "bf16"), "with --precision float32"),
    ],
)
def test_settings_of_what_is_learned(compare: Compare, added: tuple[str, ...], made: str) -> None:
    assert compare("mrpc", *added) == Difference(made)


def test_which_part_of_a_text_is_read(compare: Compare) -> None:
    different = compare("mrpc", "--long-text", "tail")
    assert different is not None
    assert "long_text='head'" in different.made


@pytest.mark.parametrize(
    "added", [("--seeds", "3"), ("--epochs", "1,2"), ("--learning-rates", "2e-3"), ("--batch-sizes", "8")]
)
def test_other_points_which_may_be_gone_on_with(compare: Compare, added: tuple[str, ...]) -> None:
    assert compare("mrpc", *added) == Difference("with other points of the grid of mrpc", keeps_points=True)


@pytest.mark.parametrize("task", ["mlm", "mrpc"])
def test_a_task_whose_figures_have_changed_since(compare: Compare, task: str) -> None:
    assert compare(task, version=0) == Difference(f"by version 0 of {task}")


def test_test_sets_that_were_not_predicted(compare: Compare, tmp_path: Path) -> None:
    other = write_mrpc(tmp_path / "other", test=9)
    different = Difference("without these test sets of mrpc", keeps_points=True)
    assert compare("mrpc", "--test") == different
    assert compare("mrpc", "--test", first=("--test",)) is None
    assert compare("mrpc", "--test", "--data", str(other), first=("--test",)) == different


def test_other_data(compare: Compare, tmp_path: Path) -> None:
    other = write_mrpc(tmp_path / "other", dev=15)
    assert compare("mrpc", "--data", str(other)) == Difference("with other data of mrpc")
    copy = write_mrpc(tmp_path / "copy")
    assert compare("mrpc", "--data", str(copy)) is None


@pytest.mark.parametrize("task", ["mlm", "nsp"])
def test_other_held_out_samples(compare: Compare, tmp_path: Path, task: str) -> None:
    other = write_shards(tmp_path / "shards", sequence_lengths=(32, 40, 64), validation=(6, 6))
    assert compare(task, held_out=other) == Difference("with other shards")
    assert compare(task, "--sequence-length", "32") == Difference("with --sequence-length 40")
    assert compare(task, "--sequence-length", "40") is None
    assert compare(task, first=("--sequence-length", "32")) == Difference("with --sequence-length 32")
    assert compare(task, "--samples", "20") == Difference("with --samples 33")


def test_samples_of_shards_that_can_not_be_read_are_not_judged(compare: Compare, tmp_path: Path) -> None:
    assert compare("mlm", held_out=tmp_path) is None


@pytest.mark.parametrize("config", ["{", "[]", "[" * 100_000, '{"max_position_embeddings": "48"}'])
def test_lengths_are_not_judged_where_the_export_does_not_tell_its_own(compare: Compare, config: str) -> None:
    assert compare("mrpc", "--max-length", "16", config=config) is None


@pytest.mark.parametrize("file", ["shards/manifest.json", "config.json"])
def test_what_can_not_be_read_for_a_moment_is_not_taken_for_the_same(
    compare: Compare, export: Path, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    held_out = Path(shutil.copytree(shards, tmp_path / "shards"))
    assert compare("mlm", held_out=held_out) is None
    place = tmp_path / file if file.startswith("shards") else export / file
    fail_at(monkeypatch, place)
    monkeypatch.setattr("tests.eval.test_asked.main", lambda _: 0)  # the results are there
    with pytest.raises(UnavailableError, match=f"{place}: can't be read now"):
        compare("mlm", held_out=held_out)


def test_other_sentences(compare: Compare, tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("word1 [MASK]\n")
    assert compare("fill_mask", "--sentences", str(tmp_path / "own.txt")) == Difference("with other sentences")


def test_what_results_do_not_say_is_no_difference(compare: Compare) -> None:
    unknown = ("data_blake2b", "max_length", "kind", "points")
    assert compare("mrpc", "--long-text", "tail", "--seeds", "2", forget=unknown) is None
