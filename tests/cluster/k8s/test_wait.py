"""An init container that waits for the job before."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from cluster.k8s import wait
from trainer.run_directory import RunDirectory


def test_shards_are_there_when_their_manifest_is(tmp_path):
    (tmp_path / "shard-00000-of-00001.arrow").touch()
    assert not wait.shards_are_complete(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    assert wait.main(["--shards", str(tmp_path), "--minutes", "0"]) == 0


def test_waits_until_they_come(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(wait, "SECONDS", 0.05)
    threading.Timer(0.3, (tmp_path / "manifest.json").touch).start()
    assert wait.main(["--shards", str(tmp_path), "--minutes", "1"]) == 0
    assert capsys.readouterr().err == f"waiting for {tmp_path}\n"


def test_gives_up_in_a_line(tmp_path, capsys):
    assert wait.main(["--shards", str(tmp_path), "--minutes", "0"]) == 2
    assert capsys.readouterr().err == f"error: {tmp_path}: not there after 0 minutes; see the job that makes it\n"


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_file_system_that_can_not_be_read_may_be_back_in_a_minute(tmp_path, monkeypatch, capsys, comes_back):
    """An end in a traceback would fail the Pod, and with a JobSet all of them."""
    looks = iter([False, OSError(116, "Stale file handle"), OSError(116, "Stale file handle"), comes_back])

    def ready(path):
        found = next(looks, OSError(116, "Stale file handle"))
        if isinstance(found, OSError):
            raise found
        return found

    monkeypatch.setattr(wait, "shards_are_complete", ready)
    monkeypatch.setattr(wait, "SECONDS", 0.01)
    assert wait.main(["--shards", str(tmp_path), "--minutes", "0.002"]) == (0 if comes_back else 2)
    told = [f"waiting for {tmp_path}", f"waiting for {tmp_path} ({tmp_path}: Stale file handle)"]
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == told
    if not comes_back:
        assert lines[-1].startswith(f"error: {tmp_path}: can't be read ({tmp_path}: Stale file handle) after 0.002 min")


def test_shards_that_can_not_be_looked_at_are_not_called_missing(tmp_path, monkeypatch):
    """On any version of Python: from 3.14 on pathlib's own look says no."""
    monkeypatch.setattr(Path, "is_file", os.path.isfile)

    def fail(path: object, **_: object) -> os.stat_result:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))

    monkeypatch.setattr(os, "stat", fail)
    with pytest.raises(OSError, match="Stale file handle"):
        wait.shards_are_complete(tmp_path)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--shards=", "--minutes=1"], "argument --shards: the path is empty"),
        (["--run=", "--minutes=1"], "argument --run: the path is empty"),
        (["--run=run", "--minutes=nan"], "argument --minutes: 'nan' is not a number of minutes"),
        (["--run=run", "--minutes=soon"], "argument --minutes: 'soon' is not a number of minutes"),
    ],
)
def test_words_that_say_nothing_exit_with_2(words, told, capsys):
    """As variables that an overlay leaves empty."""
    with pytest.raises(SystemExit) as ended:
        wait.main(words)
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


def test_what_lies_behind_a_url_is_not_waited_for():
    """In an overlay SHARDS is the init container's too."""
    assert wait.main(["--shards", "s3://bucket/shards", "--minutes", "0"]) == 0


def test_minutes_are_those_of_a_clock(tmp_path, monkeypatch, capsys):
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    clock.sleep = lambda seconds: setattr(clock, "now", clock.now + seconds)
    monkeypatch.setattr(wait, "time", clock)
    assert wait.main(["--shards", str(tmp_path), "--minutes", "1.75"]) == 2
    assert "not there after 1.75 minutes" in capsys.readouterr().err
    assert clock.now == 105


def test_a_run_is_waited_for_until_it_is_done(tmp_path):
    assert not wait.run_is_done(tmp_path / "not yet")
    RunDirectory(tmp_path).set_outcome("requeue")
    assert not wait.run_is_done(tmp_path)
    RunDirectory(tmp_path).set_outcome("done")
    assert wait.run_is_done(tmp_path)


def test_a_run_that_failed_is_not_waited_for(tmp_path, capsys):
    RunDirectory(tmp_path).set_outcome("failed")
    assert wait.main(["--run", str(tmp_path), "--minutes", "0.1"]) == 2
    assert "the run failed" in capsys.readouterr().err


def test_one_thing_is_waited_for():
    with pytest.raises(SystemExit):
        wait.main(["--minutes", "1"])
