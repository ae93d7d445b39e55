"""Points on disk: whole or not there, of one origin, and whose turn it is."""

from __future__ import annotations

import errno
import fcntl
import json
import multiprocessing
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from eval.errors import UsageError
from eval.finetune import Hyperparameters
from eval.grid import LOSSES, RESULT, Points, Search, grid
from eval.locks import claimed, locked
from eval.tasks.finetuned import FINE_TUNED

POINT = Hyperparameters(5e-5, 3, 32, 0)
FOUND = {"metrics": {"dev": {"f1": 50.0}}, "details": {}, "error": None, "seconds": 1.0, "device": "cpu"}


def points(folder: Path, **origin) -> Points:
    return Points(folder / "points", {"export": "e0", "data": "d0", **origin})


def test_all_combinations() -> None:
    search = Search(learning_rates=(2e-5, 5e-5), epochs=(2, 3), seeds=(0, 1))
    found = grid(FINE_TUNED["mrpc"], search)
    assert len(found) == 8
    assert found[:3] == [
        Hyperparameters(2e-5, 2, 32, 0),
        Hyperparameters(2e-5, 2, 32, 1),
        Hyperparameters(2e-5, 3, 32, 0),
    ]
    assert len(grid(FINE_TUNED["mrpc"], Search())) == 4
    assert len(grid(FINE_TUNED["mrpc"], Search(batch_sizes=(16, 32)))) == 8


def test_what_is_asked_for_twice_is_one_point() -> None:
    """Else its figures would pass for those of two seeds."""
    once, twice = (
        Search(learning_rates=rates, seeds=seeds) for rates, seeds in (((5e-5,), (0,)), ((5e-5, 0.00005), (0, 0)))
    )
    assert grid(FINE_TUNED["mrpc"], twice) == grid(FINE_TUNED["mrpc"], once)


def test_a_point_that_was_written_is_read(tmp_path: Path) -> None:
    disk = points(tmp_path)
    assert disk.read(POINT) is None
    disk.write(POINT, FOUND, {"dev_predictions.tsv": "서울\n", LOSSES: "[]\n"})
    assert disk.path(POINT).name == "lr5e-05-epochs3-batch32-seed0"
    result = disk.read(POINT)
    assert result is not None
    assert result["metrics"] == FOUND["metrics"]
    assert result["point"] == {"learning_rate": 5e-5, "epochs": 3, "batch_size": 32, "seed": 0}
    [predictions, losses] = disk.beside(POINT)
    assert losses.name == LOSSES
    assert (predictions.name, predictions.read_text(encoding="utf-8")) == ("dev_predictions.tsv", "서울\n")
    assert sorted(path.name for path in disk.folder.iterdir()) == [disk.path(POINT).name]  # nothing else is left


def test_what_an_interruption_left_is_no_point_and_no_hindrance(tmp_path: Path) -> None:
    disk = points(tmp_path)
    left = disk.folder / f".{disk.path(POINT).name}.incomplete"
    left.mkdir(parents=True)
    (left / RESULT).write_text("{")
    assert disk.read(POINT) is None
    disk.write(POINT, FOUND, {})
    assert disk.read(POINT) is not None


def test_a_point_that_finds_no_room_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its result alone would count as finished, without its predictions."""
    disk, write_text = points(tmp_path), Path.write_text

    def full(path: Path, *arguments, **options) -> int:
        if path.name == "dev_predictions.tsv":
            raise OSError("no space left")
        return write_text(path, *arguments, **options)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="no space"):
        disk.write(POINT, FOUND, {"dev_predictions.tsv": "x\n"})
    assert disk.read(POINT) is None


def test_points_that_differ_in_anything_lie_in_different_places(tmp_path: Path) -> None:
    others = [replace(POINT, learning_rate=rate) for rate in (1e-5, 1.5e-5, 2e-5, 2.25e-5, 2.2500001e-5, 1e-4)]
    others += [POINT, replace(POINT, epochs=4), replace(POINT, batch_size=3), replace(POINT, seed=3)]
    disk = points(tmp_path)
    for place in (disk.path, disk.lock):
        assert len(set(map(place, others))) == len(others)
    for point in others:
        disk.set_failure(point, str(point))
    assert [disk.failure(point) for point in others] == list(map(str, others))


def test_word_of_a_failure_is_there_until_it_is_taken_away(tmp_path: Path) -> None:
    disk = points(tmp_path)
    disk.lock(POINT)  # makes the folder
    disk.set_failure(POINT, None)
    assert disk.failure(POINT) is None
    disk.set_failure(POINT, "no memory")
    assert disk.failure(POINT) == "no memory"
    disk.set_failure(POINT, None)
    assert disk.failure(POINT) is None


@pytest.mark.parametrize("changed", ["export", "data"])
def test_a_point_of_another_origin(tmp_path: Path, changed: str) -> None:
    points(tmp_path).write(POINT, FOUND, {})
    other = points(tmp_path, **{changed: "other"})
    with pytest.raises(ValueError, match="made with") as error:
        other.read(POINT)
    path = other.path(POINT) / RESULT
    was = {"export": "e0", "data": "d0"}[changed]
    assert str(error.value) == f"{path}: made with {changed} {was} instead of other; choose another --output"


def test_a_point_that_does_not_say_all_of_its_origin_is_of_another(tmp_path: Path) -> None:
    replace(points(tmp_path), origin={"export": "e0"}).write(POINT, FOUND, {})
    with pytest.raises(ValueError, match="made with data None instead of d0"):
        points(tmp_path).read(POINT)


def test_a_place_where_a_point_can_not_be_written_is_refused_unless_it_is_there(tmp_path: Path) -> None:
    disk, other = points(tmp_path), replace(POINT, seed=1)
    disk.write(POINT, FOUND, {})
    for point in (POINT, other):
        disk.lock(point).mkdir()
    disk.check([POINT])
    with pytest.raises(UsageError, match=f"{disk.lock(other)}: a directory, where a file belongs"):
        disk.check([POINT, other])
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file: not a directory"):
        points(tmp_path / "file").check([POINT])


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        '{"origin": 3}',
        '{"origin": {"export": "e0", "data": "d0"}}',
        json.dumps({"point": asdict(POINT), "origin": {"export": "e0", "data": "d0"}, **FOUND, "seconds": "1"}),
        "[" * 100_000,
    ],
    ids=["list", "number", "origin alone", "text for a number", "deep"],
)
def test_a_damaged_point(tmp_path: Path, content: str) -> None:
    disk = points(tmp_path)
    disk.write(POINT, FOUND, {})
    (disk.path(POINT) / RESULT).write_text(content)
    with pytest.raises(ValueError, match=r"not the result of a grid point; remove .*lr5e-05-epochs3-batch32-seed0$"):
        disk.read(POINT)


def test_a_point_that_lost_its_result_is_learned_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = points(tmp_path)
    disk.write(POINT, FOUND, {"dev_predictions.tsv": "x\n"})
    (disk.path(POINT) / RESULT).unlink()
    assert disk.read(POINT) is None
    disk.write(POINT, FOUND, {})
    assert disk.read(POINT) is not None
    assert disk.beside(POINT) == []
    disk.write(POINT, FOUND, {})  # of a whole one nothing is said
    told = f"{disk.path(POINT)}: was damaged, without its result.json; it has been learned again"
    assert caplog.messages == [told]


def _hold(path: Path, begun, done) -> None:
    with locked(path):
        begun.set()
        done.wait()


def test_a_lock_is_one_processs_and_ends_with_it(tmp_path: Path) -> None:
    path = points(tmp_path).lock(POINT)
    context = multiprocessing.get_context("spawn")
    begun, done = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(path, begun, done))
    process.start()
    begun.wait()
    with claimed(path) as mine:
        assert mine is None
    process.kill()
    process.join()
    with claimed(path) as mine:
        assert mine is not None


def test_without_locks_everything_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with claimed(tmp_path / "lock") as mine:
        assert mine is not None
    assert f"{tmp_path}: the file system has no locks; make sure no other process uses it" in caplog.text
