"""What a run directory says is in MLflow, once, whatever came between; and MLflow never holds up a training."""

import dataclasses
import errno
import io
import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
import uuid
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pynvml
import pytest
from mlflow.entities import Run
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from sqlalchemy.exc import OperationalError

from preprocessing.locks import wait_and_lock
from tests.conftest import ROOT
from tests.eval.processes import assert_interrupted
from tests.failing import fail_at, fail_on
from tests.limits import room_for
from tests.preprocessing.test_interruption import start
from tests.trainer.mlflow_store import CONFIG, add_lines, empty_store, metrics, write_run
from tests.waiting import wait_for
from trainer.files import append_lines, read_lines
from trainer.leases import hold_run
from trainer.metrics_log import STRETCH
from trainer.run_directory import RunDirectory
from trainer.tracking import (
    LostRunError,
    Store,
    Tracker,
    WaitingError,
    evaluation_store,
    log_evaluation,
    prepare,
    runs,
    sync,
)
from trainer.tracking import store as store_module
from trainer.tracking import tracker as tracker_module
from trainer.tracking.__main__ import main
from trainer.tracking.store import Cursor, database_of, first_line, one_writer, read_cursor, write_cursor

NOBODY = "http://127.0.0.1:1"


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A finished run of three steps."""
    return RunDirectory(write_run(tmp_path / "runs" / "demo"))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The default store of ``run``."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return empty_store(tmp_path / "runs" / "mlflow.db")


def all_runs(store: str, experiment: str = "tests") -> list[Run]:
    client = MlflowClient(store)
    return list(client.search_runs([client.get_experiment_by_name(experiment).experiment_id]))


def test_what_a_database_says_is_told_and_not_how_sqlalchemy_came_to_ask_it() -> None:
    asked = "(raised as a result of Query-invoked autoflush; consider using a session.no_autoflush block)"
    said = "(sqlite3.OperationalError) database or disk is full"
    assert first_line(MlflowException(f"{asked}\n{said}\n[SQL: INSERT]")) == said


def only_run(store: str, experiment: str = "tests") -> Run:
    (found,) = all_runs(store, experiment)
    return found


def history(store: str, run_id: str, metric: str) -> list[tuple[int, float]]:
    return [(entry.step, entry.value) for entry in MlflowClient(store).get_metric_history(run_id, metric)]


def assert_complete(run: RunDirectory, store: str, run_id: str) -> None:
    """Every value of every step is there once, to the last digit."""
    for file, prefix in ((run.metrics, ""), (run.validation_metrics, "validation_")):
        lines = list(read_lines(file))
        for key in lines[0].keys() - {"step", "time"}:
            assert history(store, run_id, prefix + key) == [(line["step"], line[key]) for line in lines], key


def test_everything_is_carried_over(run: RunDirectory, store: str) -> None:
    run.set_outcome("done")
    assert main(["sync", str(run.path)]) == 0
    found = only_run(store)
    assert_complete(run, store, found.info.run_id)
    assert found.info.run_name == "demo"
    assert found.info.status == "FINISHED"
    assert found.data.params == {
        "model.vocab_size": "64", "model.hidden_act": "gelu", "phases.0.steps": "3", "phases.1.steps": "5",
        "tracking.experiment": "tests",
    }  # fmt: skip
    tags = {"run_directory": str(run.path), "code_version": "0.1.0", "code_commit": "c0ffee", "code_modified": "False"}
    assert tags.items() <= found.data.tags.items()
    files = {Path(file.path).name for file in MlflowClient(store).list_artifacts(found.info.run_id, "run")}
    assert files == {"config.toml", "ds_config.json", "manifest.json", "code.json", "code.diff"}
    assert (run.path.parent / "mlartifacts").is_dir()  # beside the store, not in the current directory
    tags = MlflowClient(store).get_experiment_by_name("tests").tags
    assert tags["mlflow.experimentKind"] == "custom_model_development"  # the page shows runs, not chats


@pytest.mark.parametrize("content", [b"", b"\xff", b"tracking = 3"])
def test_the_settings_of_a_run_that_are_damaged(run, capsys, content):
    """Not MLflow's fault: to try again later would not help."""
    run.config.write_bytes(content)
    assert main(["sync", str(run.path)]) == 2
    assert "config.toml: damaged (" in capsys.readouterr().err


def test_times_are_those_of_the_steps(run: RunDirectory, store: str) -> None:
    main(["sync", str(run.path)])
    entries = MlflowClient(store).get_metric_history(only_run(store).info.run_id, "loss")
    assert [entry.timestamp for entry in entries] == [int(metrics(step)["time"] * 1000) for step in (1, 2, 3)]


def test_a_copy_that_goes_on_beside_the_original_has_a_run_of_its_own(
    run: RunDirectory, store: str, caplog: pytest.LogCaptureFixture
) -> None:
    main(["sync", str(run.path)])
    first = only_run(store).info.run_id
    copy = RunDirectory(Path(shutil.copytree(run.path, run.path.with_name("copy"))))
    add_lines(copy.metrics, 4, 5)
    with caplog.at_level(logging.INFO, "trainer.tracking"):
        second = sync(copy)
    assert second != first
    assert caplog.messages == [f"MLflow: a copy of {run.path}, which has a run there; this one begins another"]
    assert_complete(copy, store, second)
    assert MlflowClient(store).get_run(second).data.tags["run_directory"] == str(copy.path)
    assert sync(run) == first
    assert_complete(run, store, first)
    assert sync(copy) == second


def test_a_run_that_is_renamed_goes_on_in_its_own(run: RunDirectory, store: str) -> None:
    main(["sync", str(run.path)])
    renamed = RunDirectory(run.path.rename(run.path.with_name("renamed")))
    run.path.symlink_to(renamed.path)  # as people leave where they have moved one to a larger disk
    add_lines(renamed.metrics, 4, 5)
    assert sync(renamed) == only_run(store).info.run_id
    assert_complete(renamed, store, only_run(store).info.run_id)


def test_a_server_that_a_run_from_elsewhere_names_gets_nothing_until_it_is_named_here(
    run: RunDirectory,
    store: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Others may have written it, and it would get the password of this user's own server, and any file of theirs."""
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "secret")
    heard: list[str | None] = []

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(self.headers["Authorization"])
            self.send_error(404)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever).start()
        uri = f"http://127.0.0.1:{server.server_port}"
        for run_id in ("", "0" * 32):
            write_cursor(run, Cursor(uri, "tests", run_id, {}, directory="/home/other/demo"))
            assert main(["sync", str(run.path)]) == 2
            told = f"{run.tracking} names the server {uri}, but has come from elsewhere; set MLFLOW_TRACKING_URI to it"
            assert told in capsys.readouterr().err
            assert evaluation_store([run.path], run.path).tracking_uri == store
            assert told in caplog.messages[-1]
        assert not heard
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{uri}/")
        main(["sync", str(run.path)])
        server.shutdown()
    assert heard[0] == "Bearer secret"


def test_a_run_whose_store_has_moved_with_it_is_told_how_to_go_on(
    run: RunDirectory, store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """MLflow has the whole paths of its artifacts, too."""
    old, new = tmp_path / "runs", tmp_path / "elsewhere"
    main(["sync", str(run.path)])
    old.rename(new)
    moved = RunDirectory(new / "demo")
    add_lines(moved.metrics, 4, 5)
    assert main(["sync", str(moved.path)]) == 1
    assert f"{old} is not there; mount it; or, where it has moved, make a link there to" in capsys.readouterr().err
    old.symlink_to(new)
    assert main(["sync", str(moved.path)]) == 0
    assert_complete(moved, store, only_run(store).info.run_id)


def test_a_copy_of_a_run_that_was_renamed_has_a_run_of_its_own(run: RunDirectory, store: str) -> None:
    main(["sync", str(run.path)])
    renamed = RunDirectory(run.path.rename(run.path.with_name("renamed")))
    add_lines(renamed.metrics, 4, 5)
    first = sync(renamed)
    copy = RunDirectory(Path(shutil.copytree(renamed.path, run.path.with_name("copy"))))
    assert sync(copy) != first
    assert sync(renamed) == first


def test_a_run_goes_on_in_its_own_though_another_has_its_old_place(run: RunDirectory, store: str) -> None:
    main(["sync", str(run.path)])
    first = only_run(store).info.run_id
    renamed = RunDirectory(run.path.rename(run.path.with_name("renamed")))
    other = RunDirectory(write_run(run.path))
    prepare(other, "tests")
    assert sync(other) != first
    assert sync(renamed) == first


def test_again_adds_nothing(run: RunDirectory, store: str, capsys: pytest.CaptureFixture[str]) -> None:
    for told in ("has steps up to 3\n", "has steps up to 3 as before\n"):
        assert main(["sync", str(run.path)]) == 0
        assert capsys.readouterr().out.endswith(told)
    add_lines(run.metrics, 4, 9)
    assert main(["sync", str(run.path)]) == 0
    assert capsys.readouterr().out.endswith("has steps up to 9, up to 3 as before\n")
    assert_complete(run, store, only_run(store).info.run_id)


def test_a_run_without_steps_has_none_in_mlflow(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    run.metrics.unlink()
    run.validation_metrics.unlink()
    assert main(["sync", str(run.path)]) == 0
    assert capsys.readouterr().out.endswith("has no steps yet\n")


def test_what_is_there_is_not_sent_again(run: RunDirectory, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million steps would take hours."""
    prepare(run, "tests")
    sync(run)
    monkeypatch.setattr(MlflowClient, "log_batch", lambda *_, **__: pytest.fail("sent again"))
    sync(run)


def test_every_setting_is_a_parameter_however_many_and_long_they_are(
    run: RunDirectory, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow takes a hundred a request, of at most 6,000 characters, and not every store cuts them off by itself."""
    monkeypatch.setenv("MLFLOW_TRUNCATE_LONG_VALUES", "false")
    with run.config.open("a", encoding="utf-8") as file:
        file.write("\n[data]\n" + "".join(f"key{i} = {i}\n" for i in range(250)) + f'skip = "{"x" * 7000}"\n')
    prepare(run, "tests")
    sync(run)
    params = only_run(store).data.params
    assert {key: value for key, value in params.items() if "key" in key} == {f"data.key{i}": str(i) for i in range(250)}
    assert params["data.skip"] == "x" * 6000


def test_a_store_that_refuses_a_new_run_has_not_lost_one(
    run: RunDirectory, store: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise MlflowException("read only")

    monkeypatch.setattr(MlflowClient, "create_run", refuse)
    assert main(["sync", str(run.path)]) == 1
    elsewhere = "or name another store by MLFLOW_TRACKING_URI: it is in none yet"
    assert capsys.readouterr().err == f"error: {store}: read only; try again later, {elsewhere}\n"


def test_a_store_whose_library_is_lacking_is_told_with_what_to_do_and_no_more(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for library in ("psycopg", "psycopg2"):
        monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://me:secret@host/name")
    assert main(["sync", str(run.path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: postgresql://host/name: ")
    assert error.endswith("; install that, or choose another MLFLOW_TRACKING_URI\n")


def test_no_message_has_the_credentials_of_a_store(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cursor = {"experiment": "tests", "run_id": "0" * 32, "steps": {}, "described": True, "directory": str(run.path)}
    run.tracking.write_text(json.dumps(cursor | {"tracking_uri": "http://me:secret@127.0.0.1:1"}))
    assert main(["sync", str(run.path)]) == 1
    monkeypatch.setattr(runs, "is_lost", lambda *_: True)
    assert main(["sync", str(run.path)]) == 2
    monkeypatch.setattr(main.__globals__["__name__"] + ".sync", lambda *_: "0" * 32)
    assert main(["sync", str(run.path)]) == 0
    told = capsys.readouterr()
    assert "127.0.0.1:1: run 0000" in told.err
    assert f"MLflow run {'0' * 32} at http://" in told.out
    assert "secret" not in told.out + told.err
    assert "in none yet" not in told.err, "it is in that one"


def test_goes_on_where_it_was(run: RunDirectory, store: str) -> None:
    main(["sync", str(run.path)])
    add_lines(run.metrics, 4, 200)  # 2,400 values: more than a request takes
    main(["sync", str(run.path)])
    assert_complete(run, store, only_run(store).info.run_id)


def test_a_cut_before_it_was_written_down(run: RunDirectory, store: str) -> None:
    main(["sync", str(run.path)])
    cursor = json.loads(run.tracking.read_text())
    run.tracking.write_text(json.dumps(cursor | {"steps": {}, "described": False}))
    main(["sync", str(run.path)])
    assert_complete(run, store, only_run(store).info.run_id)


def test_a_cut_before_the_parameters(run: RunDirectory, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(runs, "_describe", lambda *_: 1 / 0)
        assert main(["sync", str(run.path)]) == 1
    assert only_run(store).data.params == {}
    assert main(["sync", str(run.path)]) == 0
    assert len(only_run(store).data.params) == 5


def test_a_cut_after_the_parameters_and_then_another_setting(run: RunDirectory, store: str) -> None:
    """One that may change when a run goes on; in MLflow no parameter may."""
    main(["sync", str(run.path)])
    params = only_run(store).data.params
    cursor = json.loads(run.tracking.read_text())
    run.tracking.write_text(json.dumps(cursor | {"described": False}))
    run.config.write_text(run.config.read_text().replace("gelu", "relu") + "\n[log]\nevery = 7\n")
    add_lines(run.metrics, 4, 9)
    assert main(["sync", str(run.path)]) == 0
    assert only_run(store).data.params == params | {"log.every": "7"}
    assert_complete(run, store, only_run(store).info.run_id)


def test_a_cut_between_two_requests(run: RunDirectory, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    add_lines(run.metrics, 4, 200)
    log_batch, calls = MlflowClient.log_batch, []

    def fails_at_fourth(self, *arguments, **keywords):
        calls.append(None)
        if len(calls) == 4:
            raise ConnectionError("away")
        return log_batch(self, *arguments, **keywords)

    monkeypatch.setattr(MlflowClient, "log_batch", fails_at_fourth)
    assert main(["sync", str(run.path)]) == 1
    assert 0 < json.loads(run.tracking.read_text())["steps"]["metrics.jsonl"] < 200
    assert main(["sync", str(run.path)]) == 0
    assert_complete(run, store, only_run(store).info.run_id)


def test_a_line_that_is_being_written_waits(run: RunDirectory, store: str) -> None:
    line = json.dumps(metrics(4))
    with run.metrics.open("a") as file:
        file.write(line[:20])
    main(["sync", str(run.path)])
    run_id = only_run(store).info.run_id
    assert len(history(store, run_id, "loss")) == 3
    with run.metrics.open("a") as file:
        file.write(line[20:] + "\n")
    main(["sync", str(run.path)])
    assert_complete(run, store, run_id)


def test_new_lines_are_those_after_a_step_that_have_an_end(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert list(runs._lines_after(path, 0)) == []
    add_lines(path, 1, 40)
    with path.open("a") as file:
        file.write('{"step": 41')
    for after in range(41):
        assert [line.step for line in runs._lines_after(path, after)] == list(range(after + 1, 41))


@pytest.mark.parametrize("after", [0, 5_000, 9_990])
def test_of_long_metrics_what_is_carried_over_is_read_as_it_goes(
    tmp_path: Path, bytes_read: list[int], after: int
) -> None:
    path = tmp_path / "metrics.jsonl"
    add_lines(path, 1, 10_000)
    lines = runs._lines_after(path, after)
    assert next(lines).step == after + 1
    assert sum(bytes_read) < 10 * STRETCH < path.stat().st_size / 4
    assert sum(1 for _ in lines) == 10_000 - after - 1


@pytest.mark.parametrize(
    "line",
    [
        b"\0" * 100,
        b'{"step": 4, "time": 1.0, "loss": null}',
        b'{"step": 4, "time": 1.0, "loss": "x"}',
        b'{"step": 4, "time": 1.0, "loss": []}',
        b'{"step": 4, "loss": 1.0}',
        b'{"step": 4, "time": "x", "loss": 1.0}',
        b'{"step": 4, "time": 1e300, "loss": 1.0}',
        b'{"step": 4, "time": NaN, "loss": 1.0}',
    ],
)
def test_a_damaged_line_is_not_carried_over_and_those_behind_it_are(run: RunDirectory, store: str, line: bytes) -> None:
    with run.metrics.open("ab") as file:
        file.write(line + b"\n")
    add_lines(run.metrics, 5, 6)
    assert main(["sync", str(run.path)]) == 0
    assert [step for step, _ in history(store, only_run(store).info.run_id, "loss")] == [1, 2, 3, 5, 6]


def test_of_the_steps_every_nth_is_carried_over_and_of_the_validations_all(run: RunDirectory, store: str) -> None:
    set_every(run, 10)
    add_lines(run.metrics, 4, 1205)
    add_lines(run.validation_metrics, 1205, 1205)
    assert main(["sync", str(run.path)]) == 0
    run_id = only_run(store).info.run_id
    assert history(store, run_id, "loss") == [(step, metrics(step)["loss"]) for step in range(10, 1201, 10)]
    assert [step for step, _ in history(store, run_id, "validation_loss")] == [3, 1205]


@pytest.mark.parametrize(("directory", "name"), [
    ("wiki", r"wiki"),
    ("wiki/en", r"wiki\.en [0-9a-f]{8}"),  # and not the metric of wiki.en
    (".wiki", r"wiki [0-9a-f]{8}"),
    ("wiki.en", r"wiki\.en"),
    ("корпус 1", r"корпус 1"),
    ("a+b=c", r"a_b_c [0-9a-f]{8}"),
    ("/shards", r"shards [0-9a-f]{8}"),
    ("x" * 300, r"x{150} [0-9a-f]{8}"),
])  # fmt: skip
def test_figures_of_a_shard_directory_have_a_name_that_mlflow_takes(
    run: RunDirectory, store: str, directory: str, name: str
) -> None:
    line = {"step": 4, "time": 1.0, "loss": 2.5, f"perplexity/{directory}": 1.5}
    append_lines(run.validation_metrics, line)
    assert main(["sync", str(run.path)]) == 0
    found = only_run(store)
    run_id, beginning = found.info.run_id, "validation_by_directory/perplexity/"
    (metric,) = (metric for metric in found.data.metrics if metric.startswith(beginning))
    assert re.fullmatch(name, metric.removeprefix(beginning))
    assert history(store, run_id, metric) == [(4, 1.5)]
    assert (4, 2.5) in history(store, run_id, "validation_loss")


def test_a_store_of_files_has_room_for_them_beside_those_of_all(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There a metric is a file, and what is before a slash a folder."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store := f"file://{tmp_path / 'files'}")
    for step, directory in ((4, "wiki"), (5, "wiki/en")):
        append_lines(run.validation_metrics, metrics(step) | {f"perplexity/{directory}": 1.5})
    assert main(["sync", str(run.path)]) == 0
    found = only_run(store).data.metrics
    assert found["validation_perplexity"] == metrics(5)["perplexity"]
    names = [name for name in found if name.startswith("validation_by_directory/perplexity/wiki")]
    assert [found[name] for name in names] == [1.5, 1.5]


def test_who_lacks_a_letter_of_a_store_s_path_is_told_of_it_without(tmp_path, monkeypatch) -> None:
    """For it is there: trying again, as another exit code would have it, adds nothing."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    empty_store(tmp_path / "Läufe" / "mlflow.db")
    run = write_run(tmp_path / "Läufe" / "demo")
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(shown := io.BytesIO(), encoding="ascii"))
    assert main(["sync", str(run)]) == 0
    assert shown.getvalue().endswith(b"/L?ufe/mlflow.db has steps up to 3\n")


def test_lines_that_are_left_out_take_no_memory(run: RunDirectory) -> None:
    """A million of them would take gigabytes, beside a training."""
    add_lines(run.metrics, 4, 5000)
    tracemalloc.start()
    chunks = list(runs._chunks(run.metrics, 0, every=2500))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [([line.step for line in lines], last) for lines, last in chunks] == [([2500, 5000], 5000)]
    assert peak < 1 << 20


def test_another_every_holds_for_the_steps_that_come_then(run: RunDirectory, store: str) -> None:
    for every, last in ((10, 15), (1, 18), (10, 31)):
        set_every(run, every)
        add_lines(run.metrics, len(run.metrics.read_text().splitlines()) + 1, last)
        main(["sync", str(run.path)])
    assert [step for step, _ in history(store, only_run(store).info.run_id, "loss")] == [10, 16, 17, 18, 20, 30]


def test_where_no_step_is_due_nothing_is_asked_of_mlflow(
    run: RunDirectory, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_every(run, 10)
    main(["sync", str(run.path)])
    add_lines(run.metrics, 4, 9)
    monkeypatch.setattr(MlflowClient, "log_batch", lambda *_, **__: 1 / 0)
    assert main(["sync", str(run.path)]) == 0
    assert json.loads(run.tracking.read_text())["steps"]["metrics.jsonl"] == 9


def set_every(run: RunDirectory, every: int) -> None:
    run.config.write_text(CONFIG + f"every = {every}\n")  # of [tracking], which comes last


def test_a_training_is_followed(
    run: RunDirectory, store: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracker_module, "_INTERVAL", 0.05)
    with Tracker(run, "tests", system_metrics=False):
        wait_for(lambda: json.loads(run.tracking.read_text())["steps"].get("validation.jsonl") == 3)
        assert only_run(store).info.status == "RUNNING"
        add_lines(run.metrics, 4, 6)
        run.set_outcome("done")
    found = only_run(store)
    assert found.info.status == "FINISHED"
    assert_complete(run, store, found.info.run_id)
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


def test_how_a_training_ended_that_can_not_be_read_for_a_moment_is_carried_over_by_a_sync(
    run: RunDirectory, store: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And what is done does not end as a crash."""
    run.set_outcome("done")
    with monkeypatch.context() as patch:
        fail_on(patch, Path, "read_text", run.outcome_file, errno.ESTALE)
        with Tracker(run, "tests", system_metrics=False):
            pass
    assert_complete(run, store, only_run(store).info.run_id)
    (told,) = caplog.messages
    assert told.startswith("MLflow has not received everything; to catch up later, run ")
    assert main(["sync", str(run.path)]) == 0
    assert only_run(store).info.status == "FINISHED"


def test_no_system_metrics_is_no_reason_to_stop(
    run: RunDirectory, store: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracker_module, "_INTERVAL", 0.05)
    monkeypatch.setattr(tracker_module, "_monitor", lambda *_: 1 / 0)
    with Tracker(run, "tests", system_metrics=True):
        for step in (4, 5, 6):
            add_lines(run.metrics, step, step)
            wait_for(lambda: json.loads(run.tracking.read_text())["steps"].get("metrics.jsonl") == step)  # noqa: B023
    assert caplog.text.count("no system metrics") == 1
    assert_complete(run, store, only_run(store).info.run_id)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """As NVIDIA's library has them, without which MLflow leaves GPUs out and says nothing; looked at all the time."""
    memory, utilization = SimpleNamespace(used=3 * 10**9, total=4 * 10**9), SimpleNamespace(gpu=97)
    figures = {
        "Init": None, "DeviceGetCount": 2, "DeviceGetHandleByIndex": None,
        "DeviceGetMemoryInfo": memory, "DeviceGetUtilizationRates": utilization,
        "DeviceGetPowerUsage": 500_000, "DeviceGetEnforcedPowerLimit": 700_000,
    }  # fmt: skip
    for name, figure in figures.items():
        monkeypatch.setattr(pynvml, f"nvml{name}", lambda *_, figure=figure: figure)
    monkeypatch.setattr(tracker_module, "_INTERVAL", 0.05)
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.05")


def test_the_use_of_each_gpu_is_told(run: RunDirectory, store: str, two_gpus: None) -> None:
    with Tracker(run, "tests", system_metrics=True):
        wait_for(lambda: read_cursor(run).run_id is not None)
        wait_for(lambda: history(store, read_cursor(run).run_id, "system/gpu_1_power_usage_watts"))
        run.set_outcome("done")
    run_id = only_run(store).info.run_id
    assert history(store, run_id, "system/gpu_0_utilization_percentage")[0][1] == 97
    assert history(store, run_id, "system/gpu_1_memory_usage_percentage")[0][1] == 75


def test_what_a_gpu_does_not_tell_is_left_out_and_no_word_said_of_it(
    run: RunDirectory, store: str, two_gpus: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """One that MIG divides has no utilization; MLflow says so of each GPU at every look, a line in 30 seconds."""
    not_supported = mock.Mock(side_effect=pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", not_supported)
    with Tracker(run, "tests", system_metrics=True):
        wait_for(lambda: read_cursor(run).run_id is not None)
        wait_for(lambda: history(store, read_cursor(run).run_id, "system/gpu_1_power_usage_watts"))
        run.set_outcome("done")
    assert not_supported.called
    assert "Encountered error" not in "".join(capfd.readouterr())


def test_system_metrics_go_on_when_a_store_that_was_away_is_back(
    run: RunDirectory, store: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """MLflow's monitor ends for good, with a line that has the store's URI, and its password."""
    monkeypatch.setattr(tracker_module, "_INTERVAL", 0.05)
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.05")
    libraries = logging.getLogger("mlflow")
    monkeypatch.setattr(libraries, "handlers", [caplog.handler])
    get_run, is_away = MlflowClient.get_run, threading.Event()

    def get_run_or_fail(client, run_id):
        if is_away.is_set():
            raise MlflowException("API request to http://me:secret@127.0.0.1:1 failed")
        return get_run(client, run_id)

    def steps() -> list[int]:
        run_id = read_cursor(run).run_id
        return [step for step, _ in history(store, run_id, "system/cpu_utilization_percentage")] if run_id else []

    def measures() -> bool:
        return any(thread.name == "SystemMetricsMonitor" for thread in threading.enumerate())

    monkeypatch.setattr(MlflowClient, "get_run", get_run_or_fail)
    with Tracker(run, "tests", system_metrics=True):
        wait_for(lambda: len(steps()) > 1)
        is_away.set()
        wait_for(lambda: not measures())
        before = steps()
        is_away.clear()
        wait_for(lambda: len(steps()) > len(before) + 1)
        run.set_outcome("done")
    found = steps()
    assert len({*found}) == len(found), "none is told twice"
    assert "secret" not in caplog.text
    assert "no system metrics" not in caplog.text


def test_a_server_that_is_away_fails_nothing_and_gets_all_later(
    run: RunDirectory, store: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracker_module, "_INTERVAL", 0.05)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", NOBODY)
    began = time.monotonic()
    with Tracker(run, "tests", system_metrics=True):
        wait_for(lambda: "will try again" in caplog.text)
    assert time.monotonic() - began < 60
    assert f"python -m trainer.tracking sync {run.path}" in caplog.text
    assert {record.name.split(".")[0] for record in caplog.records} == {"trainer"}, "a library tells of every try"

    assert main(["sync", str(run.path)]) == 1  # still away
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)  # nothing lies anywhere yet: another store will do
    assert main(["sync", str(run.path)]) == 0
    assert "the run stays in" not in caplog.text
    assert_complete(run, store, only_run(store).info.run_id)


def test_a_store_that_is_locked_for_days_is_told_of_once(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracker_module, "_INTERVAL", 0.01)
    others = [OSError("damaged")] * 2 + [OSError(), OSError("http://me:secret@host is away\nsince noon")]
    others += [OSError(f"403: Invalid access token. [ReqId: {uuid.uuid4()}]") for _ in range(3)] + [OSError("500")]
    answers = iter([OSError("locked")] * 3 + ["id"] + [OSError("locked")] * 2 + others)
    tries: list[object] = []

    def sync(*_: object) -> object:
        tries.append(answer := next(answers, "id"))
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(tracker_module, "sync", sync)
    watched: list[str] = []
    monkeypatch.setattr(tracker_module, "_monitor", lambda _, run_id: watched.append(run_id) or mock.Mock())
    with Tracker(run, "tests", system_metrics=True):
        wait_for(lambda: len(tries) > 15)
    assert watched == ["id"], "once there is a run, and once"
    assert [line.partition(". [ReqId: ")[0] for line in caplog.messages if "try again" in line] == [
        *(f"MLflow: {words}; will try again" for words in ("locked", "locked", "damaged", "OSError")),
        *("MLflow: http://host is away; will try again", "MLflow: 403: Invalid access token"),
        "MLflow: 500; will try again",
    ]
    assert not logging.getLogger("mlflow.store.db.utils").isEnabledFor(logging.ERROR), "it prints tracebacks"


def test_an_evaluation_that_waits_is_told_of_once_and_costs_a_training_nothing(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracker_module, "_INTERVAL", 0.01)
    asked: list[tuple[object, ...]] = []
    watched: list[str] = []

    def sync(*arguments: object) -> str:
        asked.append(arguments)
        raise WaitingError("1.json waits: no permission", "id")

    monkeypatch.setattr(tracker_module, "sync", sync)
    monitor = SimpleNamespace(finish=lambda: watched.append("no more"), _process=threading.current_thread())
    monkeypatch.setattr(tracker_module, "_monitor", lambda _, run_id: watched.append(run_id) or monitor)
    with Tracker(run, "tests", system_metrics=True):
        wait_for(lambda: len(asked) > 4)
        assert watched == ["id"]
    assert watched == ["id", "no more"]
    assert [status for _, status in asked[:4]] == ["RUNNING", None, None, None]
    assert caplog.messages[0] == "MLflow: 1.json waits: no permission; will try again"
    assert len(caplog.messages) == 2
    assert "MLflow has not received everything" in caplog.messages[1]


def test_a_training_goes_on_where_it_can_not_be_written_down_where_it_is_tracked(
    run: RunDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    run.tracking.mkdir()
    with Tracker(run, "tests", system_metrics=False):
        pass
    assert "Is a directory" in caplog.messages[0]


def test_a_training_is_tracked_though_that_can_not_be_written_down_at_its_start(
    run: RunDirectory, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        fail_on(patch, os, "stat", run.tracking, errno.ESTALE)
        tracker = Tracker(run, "tests", system_metrics=False)
    tracker.__exit__()
    assert_complete(run, store, only_run(store).info.run_id)


def test_a_process_ends_though_its_tracker_waits_for_a_server_that_says_nothing(run: RunDirectory) -> None:
    program = (
        "import sys; from pathlib import Path; from trainer.run_directory import RunDirectory\n"
        "from trainer.tracking import Tracker, tracker; tracker._INTERVAL, tracker._PATIENCE = 0, 1\n"
        "with Tracker(RunDirectory(Path(sys.argv[1])), 'tests', False): pass\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        uri = f"http://127.0.0.1:{server.getsockname()[1]}"
        environment = {**os.environ, "MLFLOW_TRACKING_URI": uri, "MLFLOW_HTTP_REQUEST_TIMEOUT": "3600"}
        command = [sys.executable, "-c", program, str(run.path)]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert (done.returncode, "MLflow has not received everything" in done.stderr) == (0, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_sync_is_interrupted_with_a_line(
    run: RunDirectory, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of a million steps takes an hour, in which somebody may think better of it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "3600")
        process = start(sys.executable, "-m", "trainer.tracking", "sync", run.path)
        with server.accept()[0]:  # which it waits for to answer
            assert_interrupted(process, number, "trainer.tracking: interrupted; the same command goes on")


def test_a_server_that_says_nothing_stalls_nothing(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracker_module, "_INTERVAL", 0.05)
    monkeypatch.setattr(tracker_module, "_PATIENCE", 0.2)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "100")
    with socket.create_server(("127.0.0.1", 0)) as server:  # connects, and never answers
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{server.getsockname()[1]}")
        began = time.monotonic()
        tracker = Tracker(run, "tests", system_metrics=False)
        time.sleep(0.3)  # a training
        tracker.__exit__()
        assert time.monotonic() - began < 50
    assert "MLflow has not received everything" in caplog.text


def test_mlflow_is_not_as_patient_as_it_would_be() -> None:
    from mlflow.environment_variables import MLFLOW_HTTP_REQUEST_MAX_RETRIES, MLFLOW_HTTP_REQUEST_TIMEOUT

    assert MLFLOW_HTTP_REQUEST_MAX_RETRIES.get() == 1  # 7 with doubling pauses, if nobody says otherwise
    assert MLFLOW_HTTP_REQUEST_TIMEOUT.get() == 20


def test_mlflow_reports_to_nobody_else() -> None:
    from mlflow.environment_variables import MLFLOW_DISABLE_TELEMETRY

    assert MLFLOW_DISABLE_TELEMETRY.get()


def test_a_store_given_by_a_path_stays_where_it_is_wherever_commands_start(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///here.db")
    prepare(run, "tests")
    assert json.loads(run.tracking.read_text())["tracking_uri"] == f"sqlite:///{tmp_path / 'here.db'}"


def test_a_run_that_is_named_from_within_has_its_store_beside_it_all_the_same(
    run: RunDirectory, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.path)
    prepare(RunDirectory(Path()), "tests")
    assert read_cursor(run).tracking_uri == store


@pytest.mark.parametrize("name", ["w?x", "a%20b", "50 % ñ", "a#b@c"])
def test_a_store_lies_beside_its_run_whatever_the_folder_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = RunDirectory(write_run(tmp_path / name / "demo"))
    empty_store(run.path.parent / "mlflow.db")
    run.set_outcome("done")
    assert main(["sync", str(run.path)]) == 0
    shown = re.search(r" at (.*) has steps", capsys.readouterr().out)[1]
    assert_complete(run, shown, only_run(shown).info.run_id)
    assert {path.name for path in run.path.parent.iterdir()} == {"demo", "mlflow.db", "mlflow.db.lock", "mlartifacts"}
    assert [path.name for path in tmp_path.iterdir()] == [name]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{shown}?timeout=30")
    assert evaluation_store([tmp_path], tmp_path).tracking_uri == f"{shown}?timeout=30"


def test_a_store_is_made_at_the_path_of_a_uri_with_a_query(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///a%3Fb.db?timeout=30")
    prepare(run, "tests")
    uri = json.loads(run.tracking.read_text())["tracking_uri"]
    assert uri.endswith("%2Fa%3Fb.db?timeout=30")
    assert_complete(run, uri, sync(run))
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {"a?b.db", "a?b.db.lock"}


def test_a_store_is_there_whole_or_not_at_all(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow makes its tables one after the other, and can't go on where it was killed among them."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    database = run.path.parent / "mlflow.db"
    make = store_module.MlflowClient
    prepare(run, "tests")

    class Killed:
        def __init__(self, uri: str) -> None:
            Path(uri.removeprefix("sqlite:///")).write_bytes(b"half a table")
            Path(f"{uri.removeprefix('sqlite:///')}-journal").write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7 half")
            raise KeyboardInterrupt

    monkeypatch.setattr(store_module, "MlflowClient", Killed)
    with pytest.raises(KeyboardInterrupt):
        sync(run)
    assert not database.exists()
    monkeypatch.setattr(store_module, "MlflowClient", make)
    assert_complete(run, f"sqlite:///{database}", sync(run))
    assert sorted(path.name for path in database.parent.glob("*mlflow.db*")) == ["mlflow.db", "mlflow.db.lock"]


def test_what_a_link_leads_to_is_not_emptied_for_a_store(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    prepare(run, "tests")
    mine = run.path.parent / "mine"
    mine.write_text("mine")
    (run.path.parent / ".mlflow.db.unfinished").symlink_to(mine)
    with pytest.raises(OSError, match="a link, where a file of its own belongs"):
        sync(run)
    assert mine.read_text() == "mine"


def test_a_store_that_found_no_room_is_made_when_there_is_some(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the same process: MLflow keeps a connection to the file that it could not fill."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    prepare(run, "tests")
    for _ in range(2):
        with room_for(200_000), pytest.raises(OperationalError):
            sync(run)
    assert_complete(run, f"sqlite:///{run.path.parent / 'mlflow.db'}", sync(run))


@pytest.mark.parametrize("opened", [1, 2, 3])
def test_a_cursor_that_can_not_be_read_for_a_moment_is_told_in_a_line(
    run: RunDirectory, store: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], opened: int
) -> None:
    run.set_outcome("done")
    prepare(run, "tests")
    with monkeypatch.context() as patch:
        fail_at(patch, run.tracking, opened)
        assert main(["sync", str(run.path)]) == 1
    told = capsys.readouterr().err
    assert "Input/output error" in told
    assert told.count("\n") == 1
    assert main(["sync", str(run.path)]) == 0


def test_mistakes_end_with_one_line(
    run: RunDirectory, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sync", str(tmp_path / "nothing")]) == 2
    assert capsys.readouterr().err == f"error: {tmp_path / 'nothing'}: not a run directory (no config.toml)\n"
    long = tmp_path / ("long" * 100)  # not to be looked at, as what others may not enter
    assert main(["sync", str(long)]) == 2
    assert capsys.readouterr().err == f"error: {long / 'config.toml'}: File name too long\n"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", mock.Mock(side_effect=OSError(errno.ESTALE, os.strerror(errno.ESTALE))))
        assert main(["sync", str(run.path)]) == 1
    told = f"error: {run.config}: can't be read now (Stale file handle); give the same command again\n"
    assert capsys.readouterr().err == told
    with room_for(0):
        assert main(["sync", str(run.path)]) == 1
    told = f"error: {run.tracking}: can't be read or written (File too large); try again later\n"
    assert capsys.readouterr().err == told
    monkeypatch.setenv("MLFLOW_TRACKING_URI", NOBODY)
    assert main(["sync", str(run.path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {NOBODY}: ")
    assert error.count("\n") == 1


def test_an_experiment_that_mlflow_refuses_is_a_mistake_and_not_to_be_tried_again(
    run: RunDirectory, store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run.config.write_text(CONFIG.replace('"tests"', f'"{"long" * 126}"'), encoding="utf-8")
    assert main(["sync", str(run.path)]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"error: {store}: ")
    assert "exceeds the maximum length" in told
    assert "try again" not in told


def test_a_run_is_a_run_when_another_process_is_in_the_way(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as one that writes mlflow.json at the same moment."""

    def write(*_: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(runs, "write_cursor", write)
    assert main(["sync", str(run.path)]) == 1
    told = f"error: {run.tracking}: can't be read or written (No such file or directory); try again later\n"
    assert capsys.readouterr().err == told


def test_a_line_that_mlflow_refuses_is_told_with_its_file(
    run: RunDirectory, store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    append_lines(run.metrics, metrics(4) | {"a+b": 1.0})
    assert main(["sync", str(run.path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {run.metrics}: of steps 1 to 4 MLflow refuses a line (")
    assert "a+b" in error
    assert error.endswith("); mend or delete it\n")
    assert error.count("\n") == 1
    MlflowClient(store).delete_run(only_run(store).info.run_id)
    assert main(["sync", str(run.path)]) == 2
    assert "was deleted there" in capsys.readouterr().err


CURSOR = {"tracking_uri": NOBODY, "experiment": "tests", "run_id": "0" * 32, "steps": {}}


@pytest.mark.parametrize(
    "content",
    [
        '{"tracking_',
        "{}",
        "[" * 100_000,
        json.dumps(CURSOR | {"tracking_uri": None}),
        json.dumps(CURSOR | {"run_id": 5}),
        json.dumps(CURSOR | {"steps": None}),
        json.dumps(CURSOR | {"steps": {"metrics.jsonl": "3"}}),
    ],
    ids=["cut", "emptied", "deep", "no store", "run is a number", "no steps", "step is text"],
)
def test_a_damaged_cursor_is_told_once_and_with_what_to_do(
    run: RunDirectory, store: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str], content: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(tracker_module, "_INTERVAL", 0.01)
    told = f"{run.tracking} is damaged ("
    run.tracking.write_text(content)
    with Tracker(run, "tests", system_metrics=False):
        wait_for(lambda: told in caplog.text)
        time.sleep(0.1)  # time to try again
    assert caplog.text.count(told) == 1
    assert main(["sync", str(run.path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {told}")
    assert error.endswith("; delete it to have everything carried over to a new run\n")
    run.tracking.unlink()
    assert main(["sync", str(run.path)]) == 0
    assert_complete(run, store, only_run(store).info.run_id)


def write_files(folder: Path) -> list[Path]:
    """What an evaluation leaves: results, and a folder of predictions."""
    (folder / "predictions").mkdir(parents=True)
    (folder / "predictions" / "MRPC.tsv").write_text("index\tprediction\n")
    (folder / "results.json").write_text("{}")
    return [folder / "results.json", folder / "predictions"]


def children(store: str, parent: str) -> list[Run]:
    client = MlflowClient(store)
    experiment = client.get_experiment_by_name("tests").experiment_id
    return list(client.search_runs([experiment], f"tags.mlflow.parentRunId = '{parent}'"))


def assert_evaluation(store: str, found: Run) -> None:
    assert history(store, found.info.run_id, "mlm_perplexity") == [(7, 0.1 + 0.2)]
    assert found.data.tags["step"] == "7"
    artifacts = MlflowClient(store).list_artifacts
    assert [file.path for file in artifacts(found.info.run_id)] == ["predictions", "results.json"]
    assert [file.path for file in artifacts(found.info.run_id, "predictions")] == ["predictions/MRPC.tsv"]
    assert (found.info.run_name, found.info.status) == ("eval", "FINISHED")


EVALUATION = ("eval", {"mlm_perplexity": 0.1 + 0.2}, {"step": "7"})


def test_an_evaluation_is_a_child_of_the_training(run: RunDirectory, store: str, tmp_path: Path) -> None:
    run.set_outcome("done")
    prepare(run, "tests")
    parent = sync(run)
    where = evaluation_store([tmp_path / "elsewhere", run.path], tmp_path / "results")
    assert where == Store(store, "tests", parent, run.pending_evaluations)
    child = log_evaluation(where, *EVALUATION, write_files(tmp_path / "results"))
    (found,) = children(store, parent)
    assert found.info.run_id == child
    assert_evaluation(store, found)


@pytest.mark.parametrize("fails", ["create_run", "log_batch", "log_artifact", "set_terminated"])
def test_an_evaluation_whose_store_fails_midway_waits_and_becomes_one_run(
    run: RunDirectory, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    run.set_outcome("done")
    prepare(run, "tests")
    parent = sync(run)
    files = write_files(tmp_path / "results")

    def fail(*_: object, **__: object) -> None:
        raise MlflowException("too many 503 error responses")

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, fails, fail)
        assert log_evaluation(evaluation_store([run.path], tmp_path), *EVALUATION, files) is None
    sync(run)
    (found,) = children(store, parent)
    assert_evaluation(store, found)
    assert found.info.status == "FINISHED"
    assert list(run.pending_evaluations.iterdir()) == []


def test_what_a_server_made_without_an_answer_is_found_again_or_deleted(
    run: RunDirectory, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that takes longer than it is waited for is made again; the server may carry out both."""
    create, of_training = MlflowClient.create_run, run.path.name

    def create_unheard(*arguments: object, **named: object) -> None:
        create(*arguments, **named)  # type: ignore[arg-type]
        raise TimeoutError("Read timed out")

    prepare(run, "tests")
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "create_run", create_unheard)
        with pytest.raises(TimeoutError):
            sync(run)
    (begun,) = all_runs(store)
    cursor = read_cursor(run)
    late = create(MlflowClient(store), begun.info.experiment_id, run_name=of_training, tags={"run_key": cursor.key})
    run.set_outcome("done")
    parent = sync(run, "FINISHED")
    assert [found.info.run_id for found in all_runs(store)] == [parent]
    assert parent in (begun.info.run_id, late.info.run_id)

    where, files = evaluation_store([run.path], tmp_path), write_files(tmp_path / "results")
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "create_run", create_unheard)
        assert log_evaluation(where, *EVALUATION, files) is None
    (unheard,) = children(store, parent)
    named = {"run_name": unheard.info.run_name, "tags": unheard.data.tags}
    create(MlflowClient(store), begun.info.experiment_id, **named)
    sync(run)
    (found,) = children(store, parent)
    assert_evaluation(store, found)


def test_a_copy_of_a_run_that_mlflow_has_not_heard_of_is_another_run(run: RunDirectory, store: str) -> None:
    prepare(run, "tests")
    write_cursor(run, dataclasses.replace(read_cursor(run), key="of the first"))
    copy = RunDirectory(run.path.with_name("copy"))
    shutil.copytree(run.path, copy.path)
    assert sync(copy) != sync(run)
    assert read_cursor(copy).key not in ("", "of the first")


def test_a_writer_that_others_wait_for_long_is_named(
    run: RunDirectory, store: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("trainer.tracking.store._SOON", 0.2)
    prepare(run, "tests")
    lock = Path(f"{database_of(store)}.lock")
    with lock.open("a+") as file:
        assert wait_and_lock(file, 0, print)
        waits = threading.Thread(target=sync, args=(run,))
        waits.start()
        wait_for(lambda: any("waiting for that" in message for message in caplog.messages))
        waits.join(1)  # time to go on without the lock
        assert waits.is_alive()
    waits.join(60)
    (told,) = caplog.messages
    assert told.startswith(f"{lock}: process {os.getpid()} on ")
    assert len(all_runs(store)) == 1


def test_while_a_run_trains_its_own_writer_carries_evaluations_over(
    run: RunDirectory, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker_module, "_INTERVAL", 0.05)
    with Tracker(run, "tests", system_metrics=False):
        wait_for(lambda: json.loads(run.tracking.read_text())["run_id"])
        where = evaluation_store([run.path], tmp_path / "results")
        assert where.pending is not None
        before = children(store, where.parent)
        assert log_evaluation(where, *EVALUATION, write_files(tmp_path / "results")) is None
        wait_for(lambda: not list(where.pending.iterdir()))
    (found,) = children(store, where.parent)
    assert before == []
    assert_evaluation(store, found)


def test_a_repeat_of_an_evaluation_that_waited_adds_nothing_though_a_figure_is_whole(
    run: RunDirectory, store: str, tmp_path: Path
) -> None:
    prepare(run, "tests")
    parent = sync(run)
    evaluation = ("eval", {"examples": 408}, {"step": "7"}, write_files(tmp_path / "results"))
    assert log_evaluation(evaluation_store([run.path], tmp_path / "results"), *evaluation) is None
    sync(run)
    run.set_outcome("done")
    again = log_evaluation(evaluation_store([run.path], tmp_path / "results"), *evaluation)
    assert [child.info.run_id for child in children(store, parent)] == [again]


def test_an_evaluation_that_the_store_refuses_or_that_can_not_wait_is_an_error(
    run: RunDirectory, store: str, tmp_path: Path
) -> None:
    run.set_outcome("done")
    prepare(run, "tests")
    sync(run)
    files = write_files(tmp_path / "results")
    with pytest.raises(MlflowException, match=r"a\+b"):
        log_evaluation(evaluation_store([run.path], tmp_path / "results"), "eval", {"a+b": 1.0}, {}, files)
    assert not run.waiting_evaluations
    with pytest.raises(MlflowException, match=r"127\.0\.0\.1"):
        log_evaluation(Store(NOBODY, "tests", None), *EVALUATION, files)


@pytest.mark.parametrize("cut", ["create_run", "log_batch", "log_artifact", "set_terminated"])
def test_an_evaluation_that_was_cut_becomes_one_run(
    run: RunDirectory, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: str
) -> None:
    prepare(run, "tests")
    parent = sync(run)
    log_evaluation(evaluation_store([run.path], tmp_path), *EVALUATION, write_files(tmp_path / "results"))
    with monkeypatch.context() as patch:
        whole = getattr(MlflowClient, cut)

        def done_and_then_gone(self, *arguments, **keywords):
            whole(self, *arguments, **keywords)
            raise ConnectionError("away")

        patch.setattr(MlflowClient, cut, done_and_then_gone)
        assert main(["sync", str(run.path)]) == 1
    for _ in range(2):
        assert main(["sync", str(run.path)]) == 0
    (found,) = children(store, parent)
    assert_evaluation(store, found)


@pytest.mark.parametrize("lost", ["deleted", "gone"])
def test_an_evaluation_of_a_run_that_was_deleted_is_no_child_of_it(
    run: RunDirectory, store: str, tmp_path: Path, lost: str
) -> None:
    prepare(run, "tests")
    run_id = sync(run)
    run.set_outcome("done")
    assert evaluation_store([run.path], tmp_path).parent == run_id
    if lost == "deleted":
        MlflowClient(store).delete_run(run_id)
    else:
        empty_store(run.path.parent / "mlflow.db")
    assert evaluation_store([run.path], tmp_path).parent is None


def test_the_same_evaluation_again_is_a_child_of_the_run_in_the_place_of_one_that_was_deleted(
    run: RunDirectory, store: str, tmp_path: Path
) -> None:
    run.set_outcome("done")
    files = write_files(tmp_path / "results")
    for _ in range(2):
        prepare(run, "tests")
        parent = sync(run)
        first, again = (log_evaluation(evaluation_store([run.path], tmp_path), *EVALUATION, files) for _ in range(2))
        assert [child.info.run_id for child in children(store, parent)] == [first] == [again]
        MlflowClient(store).delete_run(parent)
        run.tracking.unlink()


def test_a_server_that_is_away_gets_evaluations_later(
    run: RunDirectory, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cursor = CURSOR | {"directory": str(run.path)}
    run.tracking.write_text(json.dumps(cursor))
    run.set_outcome("done")
    where = evaluation_store([run.path], tmp_path)
    assert "not reached" in caplog.text
    assert log_evaluation(where, *EVALUATION, write_files(tmp_path / "results")) is None
    run.tracking.write_text(json.dumps(cursor | {"tracking_uri": store, "run_id": ""}))  # it is back
    assert main(["sync", str(run.path)]) == 0
    (found,) = children(store, json.loads(run.tracking.read_text())["run_id"])
    assert_evaluation(store, found)


WAITING = {"name": "eval", "metrics": {"loss": 1.0}, "tags": {"step": "7"}, "files": [], "milliseconds": 1}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "Invalid JSON"),
        ("{}", "name: Field required"),
        ("[" * 100_000, "Invalid JSON: recursion limit exceeded"),
        (json.dumps(WAITING | {"metrics": None}), "metrics: Input should be an object"),
        (json.dumps(WAITING | {"metrics": {"loss": None}}), "metrics.loss"),
        (json.dumps(WAITING | {"metrics": {"loss?": 1.0}}), "loss?"),
        (json.dumps(WAITING | {"files": None}), "files: Input should be a valid array"),
        (json.dumps(WAITING | {"tags": {"step": "x"}}), "step: Input should be a valid integer"),
        (json.dumps(WAITING | {"tags": {"step": str(10**30)}}), "step: Input should be less than 9223372036854775808"),
        (json.dumps(WAITING | {"milliseconds": 10**30}), "milliseconds: Input should be less than"),
        (json.dumps(WAITING | {"files": ["/usr/lib", "/etc"]}), "'/etc' is not in the subpath of '/usr'"),
    ],
    ids=["cut", "emptied", "deep", "no metrics", "no value", "a name that MLflow refuses", "no files", "step is text",
         "step too large", "time too large", "files of two folders"],
)  # fmt: skip
def test_an_evaluation_that_mlflow_can_not_have_is_put_aside_and_told_once(
    run: RunDirectory, store: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str, told: str
) -> None:
    prepare(run, "tests")
    log_evaluation(evaluation_store([run.path], tmp_path), *EVALUATION, write_files(tmp_path / "results"))
    damaged = run.pending_evaluations / "0.json"
    damaged.write_text(content)
    for _ in range(2):
        assert main(["sync", str(run.path)]) == 0
    (message,) = caplog.messages
    assert message.startswith(f"{damaged.with_suffix('.refused')} is not carried over: ")
    assert told in message
    assert message.endswith("; mend it and name it 0.json")
    (left,) = run.pending_evaluations.iterdir()
    assert left.read_text() == content
    assert_evaluation(store, *(each for each in children(store, sync(run)) if each.info.status == "FINISHED"))


def test_an_evaluation_that_has_no_way_now_stops_no_other(
    run: RunDirectory, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As one whose files nobody may read for now: it waits, and the next sync tries it again."""
    prepare(run, "tests")
    log_evaluation(evaluation_store([run.path], tmp_path), *EVALUATION, write_files(tmp_path / "results"))
    (locked := tmp_path / "locked").mkdir()
    (run.pending_evaluations / "0.json").write_text(json.dumps(WAITING | {"files": [str(locked)]}))
    log_artifacts = MlflowClient.log_artifacts

    def log_what_is_open(client: MlflowClient, run_id: str, folder: str, path: str) -> None:
        if folder == str(locked):
            raise PermissionError(13, "Permission denied", folder)
        log_artifacts(client, run_id, folder, path)

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "log_artifacts", log_what_is_open)
        assert main(["sync", str(run.path)]) == 1
    waiting = run.pending_evaluations / "0.json"
    assert f"error: {waiting} waits: [Errno 13] Permission denied: '{locked}'; try again" in capsys.readouterr().err
    assert [path.name for path in run.pending_evaluations.iterdir()] == ["0.json"]
    assert main(["sync", str(run.path)]) == 0
    assert list(run.pending_evaluations.iterdir()) == []


class DamagedAnswerError(OSError, ValueError):
    """As an HTTP client's is."""


@pytest.mark.parametrize("error", [MlflowException("too many 503 error responses"), DamagedAnswerError("no JSON")])
def test_an_evaluation_whose_store_fails_while_it_is_carried_over_goes_on_waiting(
    run: RunDirectory, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    prepare(run, "tests")
    parent = sync(run)
    log_evaluation(evaluation_store([run.path], tmp_path), *EVALUATION, write_files(tmp_path / "results"))
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "log_artifact", mock.Mock(side_effect=error))
        with pytest.raises((MlflowException, WaitingError), match=str(error)):
            sync(run)
    assert len(run.waiting_evaluations) == 1
    sync(run)
    (found,) = children(store, parent)
    assert_evaluation(store, found)


def test_a_twin_that_a_server_made_late_goes_and_the_whole_evaluation_stays(
    run: RunDirectory, store: str, tmp_path: Path
) -> None:
    run.set_outcome("done")
    prepare(run, "tests")
    parent = sync(run)
    where, files = evaluation_store([run.path], tmp_path), write_files(tmp_path / "results")
    whole = log_evaluation(where, *EVALUATION, files)
    (found,) = children(store, parent)
    MlflowClient(store).create_run(found.info.experiment_id, run_name="eval", tags=found.data.tags)
    assert log_evaluation(where, *EVALUATION, files) == whole
    assert [child.info.run_id for child in children(store, parent)] == [whole]


def test_evaluations_that_can_not_be_looked_for_wait(
    run: RunDirectory, store: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """For a moment, on a network's disk; everything else is carried over."""
    run.pending_evaluations.mkdir()
    (run.pending_evaluations / "0.json").write_text(json.dumps(WAITING))
    run.set_outcome("done")
    with monkeypatch.context() as patch:
        fail_on(patch, Path, "iterdir", run.pending_evaluations, errno.ESTALE)
        assert main(["sync", str(run.path)]) == 1
    told = f"error: {run.pending_evaluations}: can't be looked through for evaluations that wait (Stale file handle)"
    assert capsys.readouterr().err == f"{told}; try again later\n"
    assert_complete(run, store, only_run(store).info.run_id)
    assert main(["sync", str(run.path)]) == 0
    assert len(all_runs(store)) == 2


def test_an_evaluation_that_was_put_aside_and_mended_is_carried_over(run: RunDirectory, store: str) -> None:
    prepare(run, "tests")
    run.pending_evaluations.mkdir()
    waiting = run.pending_evaluations / "1.json"
    waiting.write_text(json.dumps(WAITING | {"metrics": {"loss?": 1.0}}))
    parent = sync(run)
    waiting.with_suffix(".refused").unlink()
    waiting.write_text(json.dumps(WAITING))
    assert main(["sync", str(run.path)]) == 0
    assert sorted(history(store, each.info.run_id, "loss") for each in children(store, parent)) == [[], [(7, 1.0)]]
    assert list(run.pending_evaluations.iterdir()) == []


def test_a_file_of_an_evaluation_that_is_gone_stops_nothing(
    run: RunDirectory, store: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prepare(run, "tests")
    where = evaluation_store([run.path], tmp_path)
    log_evaluation(where, *EVALUATION, [*write_files(tmp_path / "results"), tmp_path / "gone.txt"])
    assert main(["sync", str(run.path)]) == 0
    assert f"{tmp_path / 'gone.txt'} is gone" in caplog.text
    (found,) = children(store, json.loads(run.tracking.read_text())["run_id"])
    assert_evaluation(store, found)


def test_evaluations_of_several_processes_take_turns(run: RunDirectory, store: str, tmp_path: Path) -> None:
    run.set_outcome("done")
    prepare(run, "tests")
    parent = sync(run)
    where = evaluation_store([run.path], tmp_path)
    folders = [tmp_path / str(i) for i in range(6)]
    files = [write_files(folder) for folder in folders]
    with ThreadPoolExecutor(6) as pool:
        identities = list(pool.map(lambda i: log_evaluation(where, f"eval {i}", {}, {}, files[i]), range(6)))
    assert sorted(found.info.run_id for found in children(store, parent)) == sorted(identities)


@pytest.mark.parametrize(
    ("outcome", "status"),
    [("done", "FINISHED"), ("requeue", "FINISHED"), ("failed", "FAILED"), (None, "FAILED")],
    ids=["done", "to go on", "failed", "crashed"],
)
def test_the_status_in_mlflow_is_the_outcome(run: RunDirectory, store: str, outcome: str | None, status: str) -> None:
    run.set_outcome(outcome)
    run.lock.write_text("process 1 on a host\n")  # which holds it no more
    main(["sync", str(run.path)])
    assert only_run(store).info.status == status


def test_a_training_that_runs_is_running_whoever_carries_it_over(run: RunDirectory, store: str) -> None:
    with hold_run(run):
        assert main(["sync", str(run.path)]) == 0
        assert_complete(run, store, only_run(store).info.run_id)
        assert only_run(store).info.status == "RUNNING"
    assert main(["sync", str(run.path)]) == 0  # it was killed
    assert only_run(store).info.status == "FAILED"
    with hold_run(run):  # and goes on
        assert main(["sync", str(run.path)]) == 0
        assert only_run(store).info.status == "RUNNING"


def test_a_training_that_fails_has_failed_in_mlflow(run: RunDirectory, store: str) -> None:
    with pytest.raises(ArithmeticError), Tracker(run, "tests", system_metrics=False):
        raise ArithmeticError
    assert only_run(store).info.status == "FAILED"


@pytest.mark.parametrize("outcome", ["requeue", "failed"])
def test_a_training_that_goes_on_is_running_again(
    run: RunDirectory, store: str, monkeypatch: pytest.MonkeyPatch, outcome: str
) -> None:
    monkeypatch.setattr(tracker_module, "_INTERVAL", 0.05)
    run.set_outcome(outcome)
    main(["sync", str(run.path)])
    assert only_run(store).info.status == {"requeue": "FINISHED", "failed": "FAILED"}[outcome]
    with Tracker(run, "tests", system_metrics=False):
        wait_for(lambda: only_run(store).info.status == "RUNNING")
        run.set_outcome("done")
    assert only_run(store).info.status == "FINISHED"


def test_system_metrics_go_on_where_they_were(run: RunDirectory, store: str) -> None:
    prepare(run, "tests")
    run_id = sync(run)
    MlflowClient(store).log_metric(run_id, "system/cpu_utilization_percentage", 1.0, step=41)
    before = {*threading.enumerate()}
    monitor = tracker_module._monitor(run, run_id)
    assert monitor._logging_step == 42
    assert {*threading.enumerate()} - before, "it measures"
    monitor.finish()


@pytest.mark.parametrize("lost", ["deleted", "gone"])
def test_a_run_that_was_deleted_is_not_tried_again(
    run: RunDirectory, store: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str], lost: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(tracker_module, "_INTERVAL", 0.05)
    prepare(run, "tests")
    run_id = sync(run)
    if lost == "deleted":
        MlflowClient(store).delete_run(run_id)
    else:
        empty_store(run.path.parent / "mlflow.db")
    add_lines(run.metrics, 4, 6)
    advice = f"run {run_id} was deleted there; delete {run.tracking} to have everything carried over to a new one"
    with Tracker(run, "tests", system_metrics=False):
        wait_for(lambda: advice in caplog.text)
        time.sleep(0.3)  # time to try again
    assert caplog.text.count(advice) == 1
    capsys.readouterr()
    assert main(["sync", str(run.path)]) == 2
    assert capsys.readouterr().err == f"error: {store}: {advice}\n"
    run.tracking.unlink()
    assert main(["sync", str(run.path)]) == 0
    assert_complete(run, store, only_run(store).info.run_id)


def test_until_a_run_is_there_the_newest_experiment_counts(
    run: RunDirectory, store: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = MlflowClient(store)
    client.delete_experiment(client.create_experiment("gone"))
    prepare(run, "gone")
    with pytest.raises(LostRunError, match=r"experiment 'gone' was deleted there; restore it, or set tracking\.exp"):
        sync(run)
    prepare(run, "tests")
    sync(run)
    assert caplog.messages == []
    prepare(run, "other")  # too late
    (told,) = caplog.messages
    assert told.startswith("tracking.experiment is other, but the run stays in tests, where it was first; delete ")
    sync(run)
    found = client.get_experiment(only_run(store).info.experiment_id)
    assert found.name == "tests"
    assert evaluation_store([run.path], tmp_path).experiment == "tests"


def test_another_store_than_the_one_that_a_run_is_in_is_told_of_once(
    run: RunDirectory, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    prepare(run, "tests")
    sync(run)
    run.set_outcome("done")
    for chosen in (store, ""):  # the same one, or none
        monkeypatch.setenv("MLFLOW_TRACKING_URI", chosen)
        assert main(["sync", str(run.path)]) == 0
        assert caplog.messages == []
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@127.0.0.1:1")
    for carry_over in (lambda: main(["sync", str(run.path)]), lambda: evaluation_store([run.path], tmp_path)):
        carry_over()
        (told,) = caplog.messages
        assert told.startswith("MLFLOW_TRACKING_URI is http://")
        assert f"stays in {store}, where it was first; delete {run.tracking} to have it" in told
        assert "secret" not in told
        caplog.clear()


def test_an_evaluation_is_known_again_wherever_its_files_lie(run: RunDirectory, store: str, tmp_path: Path) -> None:
    run.set_outcome("done")
    prepare(run, "tests")
    parent = sync(run)
    where = evaluation_store([run.path], tmp_path)
    first = log_evaluation(where, *EVALUATION, write_files(tmp_path / "a"))
    files = write_files(tmp_path / "b")
    files[0].write_text("another time")
    assert log_evaluation(where, *EVALUATION, files) == first
    assert len(children(store, parent)) == 1
    assert Path(MlflowClient(store).download_artifacts(first, "results.json")).read_text() == "{}", "it stays as it is"


def test_evaluations_with_another_name_metric_or_tag_are_others(
    run: RunDirectory, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though they wait since the same millisecond."""
    where = Store(store, "tests", None, run.pending_evaluations, at_once=False)
    name, metrics_, tags = EVALUATION
    others = [("other", metrics_, tags), (name, {"mlm_perplexity": 1.0}, tags), (name, metrics_, {"step": "8"})]
    files = write_files(tmp_path / "results")
    with monkeypatch.context() as patch:
        patch.setattr("trainer.tracking.evaluations.time", SimpleNamespace(time=lambda: 1.7e9))
        for evaluation in (EVALUATION, *others):
            log_evaluation(where, *evaluation, files)
    prepare(run, "tests")
    found = children(store, sync(run))
    assert len(found) == 4
    assert {each.info.start_time for each in found} == {1_700_000_000_000}, "when it was, and not when it came here"


def test_an_evaluation_that_waits_has_its_files_wherever_commands_start(
    run: RunDirectory, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = write_files(tmp_path / "results")
    monkeypatch.chdir(tmp_path / "results")
    where = Store(store, "tests", None, run.pending_evaluations, at_once=False)
    log_evaluation(where, *EVALUATION, [Path(file.name) for file in files])
    monkeypatch.chdir(tmp_path)
    prepare(run, "tests")
    (found,) = children(store, sync(run))
    assert_evaluation(store, found)


def test_a_server_takes_evaluations_at_once_while_a_run_trains(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has many writers, as SQLite has not."""
    monkeypatch.setattr("trainer.tracking.evaluations.is_lost", lambda *_: False)
    cursor = CURSOR | {"directory": str(run.path)}
    run.tracking.write_text(json.dumps(cursor))
    assert evaluation_store([run.path], tmp_path) == Store(NOBODY, "tests", "0" * 32, run.pending_evaluations)


def test_an_evaluation_waits_for_who_writes_into_its_store(run: RunDirectory, store: str, tmp_path: Path) -> None:
    files = write_files(tmp_path / "results")
    with ThreadPoolExecutor(1) as pool:
        with one_writer(store, run.path):
            written = pool.submit(log_evaluation, Store(store, "tests", None), *EVALUATION, files)
            with pytest.raises(TimeoutError):
                written.result(3)
        found = written.result()
    assert only_run(store).info.run_id == found


def test_the_weights_that_a_run_began_with_are_tags(run: RunDirectory, store: str) -> None:
    run.initial_weights.write_text(json.dumps({"directory": "/models/bert", "blake2b": "c0ffee", "step": "4"}))
    main(["sync", str(run.path)])
    found = only_run(store)
    files = {Path(file.path).name for file in MlflowClient(store).list_artifacts(found.info.run_id, "run")}
    assert "initial_weights.json" in files
    tags = found.data.tags
    assert (tags["initial_weights_directory"], tags["initial_weights_blake2b"]) == ("/models/bert", "c0ffee")
    assert tags["initial_weights_step"] == "4"


@pytest.mark.parametrize("mistake", ["untracked", "store gone", "run gone", "cut", "emptied"])
def test_an_evaluation_without_a_training_in_reach(run: RunDirectory, store: str, tmp_path: Path, mistake: str) -> None:
    cursor = {"tracking_uri": store, "experiment": "tests", "run_id": "0" * 32, "steps": {}}
    cursor |= {"store gone": {"tracking_uri": f"sqlite:///{tmp_path / 'gone.db'}"}}.get(mistake, {})
    run.set_outcome("done")
    if mistake != "untracked":
        run.tracking.write_text({"cut": "{", "emptied": "{}"}.get(mistake, json.dumps(cursor)))
    expected = Store(f"sqlite:///{tmp_path / 'mlflow.db'}", "bert-pretraining", None)
    assert evaluation_store([run.path], tmp_path / "results") == expected
    assert not (tmp_path / "gone.db").exists()


def test_an_evaluation_before_the_training_reached_mlflow(run: RunDirectory, store: str, tmp_path: Path) -> None:
    (run.path.parent / "mlflow.db").unlink()  # which nobody has made by then
    prepare(run, "tests")
    where = evaluation_store([run.path], tmp_path)
    assert (where.parent, where.pending) == (None, run.path / "mlflow.pending")
    assert log_evaluation(where, *EVALUATION, write_files(tmp_path / "results")) is None
    assert main(["sync", str(run.path)]) == 0
    (found,) = children(store, json.loads(run.tracking.read_text())["run_id"])
    assert_evaluation(store, found)
