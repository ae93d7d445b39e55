"""Files of metrics: searched by step, cut back to a checkpoint's, whatever a crash has left in them."""

import json
import os
import time
from pathlib import Path

import pytest

from tests.trainer.test_files import DAMAGED_LINES
from trainer import metrics_log
from trainer.files import append_lines, incomplete, read_lines
from trainer.metrics_log import MetricsLog, cut_metrics, end_of_step, has_line, lines_after


@pytest.mark.parametrize(("name", "other"), [("metrics", "validation_metrics"), ("validation_metrics", "metrics")])
def test_metrics_are_cut_back_to_the_step_of_the_checkpoint(run, name, other):
    path = getattr(run, name)
    for step in range(1, 7):
        append_lines(path, {"step": step, "loss": 0.1 * step})
    with path.open("a") as file:
        file.write('{"step": 7, "lo')  # the writer was killed here
    before = path.read_text().splitlines()
    cut_metrics(run, 4)
    assert path.read_text().splitlines() == before[:4]
    assert not getattr(run, other).exists()


def test_a_last_line_of_metrics_that_lacks_its_end_alone_is_half_written_too(run):
    """The next one would be written behind it."""
    run.metrics.write_bytes(b'{"step": 1}\n{"step": 2}')
    cut_metrics(run, 4)
    append_lines(run.metrics, {"step": 3})
    assert list(read_lines(run.metrics)) == [{"step": 1}, {"step": 3}]


@pytest.fixture
def long_run(run):
    """A run of 20,000 steps, whose metrics are ten megabytes."""
    run.metrics.write_bytes(b"".join(b'{"step": %d, "words": "%0500d"}\n' % (step, 0) for step in range(1, 20_001)))
    return run


@pytest.mark.parametrize("step", [0, 1, 10_000, 19_999, 20_000, 30_000])
def test_of_long_metrics_little_is_read_and_nothing_written_again(long_run, bytes_read, step):
    before = long_run.metrics.read_bytes().splitlines(keepends=True)
    file = long_run.metrics.stat().st_ino
    bytes_read.clear()
    cut_metrics(long_run, step)
    assert sum(bytes_read) < 2_000_000 < sum(map(len, before)) / 5
    assert long_run.metrics.stat().st_ino == file
    assert long_run.metrics.read_bytes() == b"".join(before[:step])


def test_metrics_of_which_nothing_goes_are_left_alone(long_run):
    before = long_run.metrics.stat()
    cut_metrics(long_run, 20_000)
    after = long_run.metrics.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_damaged_line_in_long_metrics_is_dropped_where_they_are_cut(long_run, caplog):
    lines = long_run.metrics.read_bytes().splitlines(keepends=True)
    lines[9_989] = b"\0" * 230 + b"\n"
    long_run.metrics.write_bytes(b"".join(lines))
    cut_metrics(long_run, 10_000)
    assert [line["step"] for line in read_lines(long_run.metrics)] == [*range(1, 9_990), *range(9_991, 10_001)]
    assert caplog.messages == [f"{long_run.metrics}: line 9990 is damaged and left out"]


def test_a_half_written_last_line_of_long_metrics_is_cut_off_and_nothing_written_again(long_run, caplog):
    before, file = long_run.metrics.read_bytes(), long_run.metrics.stat().st_ino
    long_run.metrics.write_bytes(before + b'{"step": 20001, "wo')
    cut_metrics(long_run, 20_000)
    assert long_run.metrics.stat().st_ino == file
    assert long_run.metrics.read_bytes() == before
    assert caplog.messages == []


def test_beside_a_damaged_first_line_a_half_written_last_one_goes_without_a_word(run, caplog):
    run.metrics.write_bytes(b'{\n{"step": 1}\n{"step": 2')
    cut_metrics(run, 1)
    assert run.metrics.read_bytes() == b'{"step": 1}\n'
    assert caplog.messages == [f"{run.metrics}: line 1 is damaged and left out"]


@pytest.mark.parametrize("line", [*DAMAGED_LINES, b'{"stfp": 2}', b"[2]", b'{"step": "2"}', b'{"step": null}'])
@pytest.mark.parametrize("rest", [(3, 4), (4, 5), ()], ids=["among them", "behind them", "last"])
def test_a_damaged_line_of_metrics_is_no_reason_not_to_go_on(run, caplog, line, rest):
    """A power cut may leave zeros."""
    lines = [json.dumps({"step": step}).encode() for step in rest]
    run.metrics.write_bytes(b"".join(text + b"\n" for text in (b'{"step": 1}', line, *lines)))
    cut_metrics(run, 3)
    assert list(read_lines(run.metrics)) == [{"step": step} for step in (1, *rest) if step <= 3]
    assert caplog.messages == [f"{run.metrics}: line 2 is damaged and left out"]


def test_what_a_link_leads_to_is_not_emptied_for_metrics_without_a_damaged_line(run, tmp_path):
    (tmp_path / "mine").write_text("mine")
    run.metrics.write_bytes(b'{"step": 1}\n[2]\n')
    incomplete(run.metrics).symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match="a link, where a file of its own belongs"):
        cut_metrics(run, 3)
    assert (tmp_path / "mine").read_text() == "mine"


def test_lines_of_metrics_that_two_trainers_wrote_are_dropped_wherever_they_are(run):
    """As on a file system without locks."""
    for step in (1, 2, 3, 4, 2, 3, 4):
        append_lines(run.metrics, {"step": step})
    cut_metrics(run, 3)
    assert [line["step"] for line in read_lines(run.metrics)] == [1, 2, 3, 2, 3]


@pytest.fixture
def full_disk(monkeypatch):
    """No file can be put in the place of another."""
    monkeypatch.setattr("pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(OSError("no space left")))


def test_metrics_that_can_not_be_written_without_a_damaged_line_are_still_there(run, full_disk):
    run.metrics.write_text('{"step": 1}\n{\n{"step": 2}\n')
    before = run.metrics.read_text()
    with pytest.raises(OSError, match="no space"):
        cut_metrics(run, 1)
    assert run.metrics.read_text() == before


@pytest.mark.parametrize("stretch", [1, 30, 100, 1000, 1 << 20])
@pytest.mark.parametrize("damage", [b"", b"\n", b"\0" * 300 + b"\n"])
def test_the_end_of_a_step_is_that_of_its_line_whatever_lies_between(tmp_path, monkeypatch, stretch, damage):
    monkeypatch.setattr(metrics_log, "STRETCH", stretch)
    lines = [b'{"step": %d, "words": "%s"}\n' % (step, b"x" * (step * 7 % 40)) for step in range(2, 81, 2)]
    ends = {}  # step -> end
    path = tmp_path / "metrics.jsonl"
    with path.open("wb") as file:
        for step, line in zip(range(2, 81, 2), lines, strict=True):
            file.write(line)
            ends[step] = file.tell()
            file.write(damage if step % 3 == 0 else b"")
        file.write(b'{"step": 82')
    with path.open("rb") as file:
        assert [end_of_step(file, step) for step in ends] == list(ends.values())
        assert [end_of_step(file, step + 1) for step in ends] == list(ends.values())
        assert (end_of_step(file, 0), end_of_step(file, 1)) == (0, 0)


def test_a_file_without_a_good_line_ends_where_it_begins(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for content in (b"", b'{"step": 1', b"\0" * 200_000, b"\n" * 200_000):
        path.write_bytes(content)
        with path.open("rb") as file:
            assert end_of_step(file, 1) == 0


def test_metrics_without_a_damaged_line_are_on_disk_before_they_take_the_others_place(run, monkeypatch):
    """Or a power cut could leave none at all."""
    run.metrics.write_text('{"step": 1}\n{\n{"step": 2}\n')
    done, replace = [], Path.replace

    def replace_and_note(path, target):
        done.append(f"{path.name} takes the place of {target.name}")
        return replace(path, target)

    def sync_and_note(descriptor):
        done.append(f"{Path(f'/proc/self/fd/{descriptor}').readlink().name} is on disk")

    monkeypatch.setattr(os, "fsync", sync_and_note)
    monkeypatch.setattr(Path, "replace", replace_and_note)
    cut_metrics(run, 1)
    new = incomplete(run.metrics).name
    assert done == [f"{new} is on disk", f"{new} takes the place of metrics.jsonl"]


def test_lines_of_a_second_are_written_together(tmp_path, monkeypatch):
    """A network's disk takes milliseconds each time, and a GPU that has done its step would have no other one."""
    now, opened, path_open = [0.0], [], Path.open
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    log, path, other = MetricsLog(), tmp_path / "metrics.jsonl", tmp_path / "validation.jsonl"
    log.add(path, {"step": 1})
    assert list(read_lines(path)) == [{"step": 1}]
    monkeypatch.setattr(Path, "open", lambda path, *mode, **more: opened.append(path) or path_open(path, *mode, **more))
    for step in range(2, 9):
        now[0] += 0.1
        log.add(path, {"step": step})
    log.add(other, {"step": 8})
    assert not opened
    now[0] += 0.5
    log.add(path, {"step": 9})
    assert opened == [path, other, path]
    assert [line["step"] for line in read_lines(path)] == list(range(1, 10))
    assert list(read_lines(other)) == [{"step": 8}]
    log.add(path, {"step": 10})
    log.close()
    assert [line["step"] for line in read_lines(path)] == list(range(1, 11))


def test_lines_that_find_no_room_wait_in_their_order_and_are_told_of_once(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(metrics_log, "INTERVAL", 0.0)
    log, path = MetricsLog(), tmp_path / "away" / "metrics.jsonl"
    for step in (1, 2):
        log.add(path, {"step": step})
    assert [message.partition(" (")[0] for message in caplog.messages] == [f"{path}: can't be written"]
    path.parent.mkdir()
    log.add(path, {"step": 3})
    assert list(read_lines(path)) == [{"step": step} for step in (1, 2, 3)]
    log.close()
    assert len(caplog.messages) == 1


def test_lines_after_a_step_are_the_whole_ones_of_later_steps(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\nnothing\n{"step": 4}\n{"step": 5}', encoding="utf-8")
    assert [line["step"] for line in lines_after(path, 2)] == [4]
    assert [has_line(path, step) for step in (1, 2, 3, 4, 5)] == [True, True, False, True, False]
