"""What of results that are there is not what is asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from eval.asked import Asked, Difference
from eval.options import parse
from eval.results import read_results
from eval.run import main
from eval.tasks import select
from tests.eval.small_data import write_mrpc
from tests.trainer.shard_factory import write_shards

ONE_POINT = ("--epochs", "1", "--learning-rates", "1e-3")
Compare = Callable[..., Difference | None]


@pytest.fixture
def compare(export: Path, shards: Path, tmp_path: Path) -> Compare:
    """Evaluate a task, and ask for it again with options that are added, or with the results changed."""

    def evaluate_and_compare(task: str, *added: str, forget: tuple[str, ...] = ()) -> Difference | None:
        data = tmp_path / "data"
        if not data.exists():
            write_mrpc(data)
        words = ["--checkpoint", str(export), "--tasks", task, "--output", str(tmp_path / "out"), "--no-tracking"]
        words += ["--shards", str(shards), "--data", str(data), *ONE_POINT]
        assert main(words) == 0
        results = read_results(tmp_path / "out" / "results.json")
        for name in forget:
            del results["tasks"][task]["details"][name]
        return Asked(parse([*words, *added]), select([task])).difference(task, results, export)

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


def test_test_sets_that_were_not_predicted(compare: Compare) -> None:
    assert compare("mrpc", "--test") == Difference("without these test sets of mrpc", keeps_points=True)


def test_other_data(compare: Compare, tmp_path: Path) -> None:
    other = write_mrpc(tmp_path / "other", dev=15)
    assert compare("mrpc", "--data", str(other)) == Difference("with other data of mrpc")
    copy = write_mrpc(tmp_path / "copy")
    assert compare("mrpc", "--data", str(copy)) is None


@pytest.mark.parametrize("task", ["mlm", "nsp"])
def test_other_held_out_samples(compare: Compare, tmp_path: Path, task: str) -> None:
    other = write_shards(tmp_path / "shards", sequence_lengths=(32, 40, 64), validation=(6, 6))
    assert compare(task, "--shards", str(other)) == Difference("with other shards")
    assert compare(task, "--sequence-length", "32") == Difference("with --sequence-length 40")
    assert compare(task, "--sequence-length", "40") is None
    assert compare(task, "--samples", "20") == Difference("with --samples 33")


def test_other_sentences(compare: Compare, tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("word1 [MASK]\n")
    assert compare("fill_mask", "--sentences", str(tmp_path / "own.txt")) == Difference("with other sentences")


def test_what_results_do_not_say_is_no_difference(compare: Compare) -> None:
    unknown = ("data_blake2b", "max_length", "kind", "points")
    assert compare("mrpc", "--long-text", "tail", "--seeds", "2", forget=unknown) is None
