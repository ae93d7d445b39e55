"""An MLflow server that is away: from the start, or from the middle of a training on."""

import json
import os
import subprocess
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from mlflow.tracking import MlflowClient

from tests.conftest import ROOT
from tests.integration.launching import lines
from tests.ranks import free_port, run_ranks
from tests.trainer.conftest import TINY
from tests.trainer.rank_tasks import run_pretrain_tracked
from tests.trainer.shard_factory import write_shards
from tests.waiting import wait_for
from trainer.run_directory import RunDirectory
from trainer.tracking.__main__ import main


@pytest.fixture
def train(tmp_path):
    """A tracked training in one rank; returns its run and what it printed."""
    write_shards(tmp_path / "shards")
    recipe = TINY.replace("enabled = false", "enabled = true\nsystem_metrics = false").replace("keep = 2", "")
    (tmp_path / "recipe.toml").write_text(recipe.replace("validate_every = 4", "validate_every = 0"))

    def run(tracking_uri, *settings):
        arguments = ["--config", str(tmp_path / "recipe.toml"), "--deepspeed_config", str(ROOT / "ds_config.json"),
                     "--shards", str(tmp_path / "shards"), "--output", str(tmp_path / "run"), *settings]  # fmt: skip
        assert run_ranks(1, run_pretrain_tracked, arguments, tracking_uri, log=tmp_path / "log") == [0]
        return RunDirectory(tmp_path / "run"), (tmp_path / "log").read_text()

    return run


def assert_complete(run, store, steps):
    """The run ended well, and every step of it is in its file and in MLflow, once."""
    assert run.outcome == ("done", "")
    of_run = [(line["step"], line["loss"]) for line in lines(run.path)]
    assert [step for step, _ in of_run] == list(range(1, steps + 1))
    client, run_id = MlflowClient(store), json.loads(run.tracking.read_text())["run_id"]
    assert [(entry.step, entry.value) for entry in client.get_metric_history(run_id, "loss")] == of_run


def test_a_server_that_is_away_from_the_start(train, tmp_path, monkeypatch):
    run, log = train("http://127.0.0.1:1")
    assert "MLflow: " in log
    assert f"to catch up later, run python -m trainer.tracking sync {run.path}" in log
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    assert main(["sync", str(run.path)]) == 0
    assert_complete(run, f"sqlite:///{tmp_path / 'mlflow.db'}", steps=8)


@pytest.fixture
def server(tmp_path):
    """Start a real server, as often as it is called; returns its process."""
    uri, started = f"http://127.0.0.1:{free_port()}", []

    def start():
        command = ["mlflow", "server", "--workers", "1", "--host", "127.0.0.1", "--port", uri.rpartition(":")[2],
                   "--backend-store-uri", f"sqlite:///{tmp_path / 'server.db'}",
                   "--artifacts-destination", str(tmp_path / "artifacts")]  # fmt: skip
        with (tmp_path / "server.log").open("ab") as log:
            started.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True))
        wait_for(lambda: _answers(uri), 120)
        return started[-1]

    start.uri = uri
    yield start
    for process in started:
        _kill(process)


def _answers(uri):
    try:
        return urllib.request.urlopen(f"{uri}/health", timeout=5).status == 200
    except (urllib.error.URLError, OSError):
        return False


def _kill(process):
    if process.poll() is None:
        os.killpg(process.pid, 9)
        process.wait()


@pytest.mark.slow
def test_a_server_that_dies_in_the_middle_and_comes_back(train, server, tmp_path, monkeypatch, capfd):
    """And whose address has a password, which nobody prints."""
    process, address = server(), server.uri.replace("://", "://user:secret@")
    with ThreadPoolExecutor(1) as pool:
        training = pool.submit(train, address, "phases.0.steps=300", "checkpoint.every=300")
        carried_over = tmp_path / "run" / "mlflow.json"
        wait_for(lambda: carried_over.exists() and json.loads(carried_over.read_text())["steps"], 200)
        assert not training.done(), "the run was over before the server could die"
        _kill(process)
        run, log = training.result(240)
    assert "will try again" in log
    assert 0 < json.loads(carried_over.read_text())["steps"]["metrics.jsonl"] < 300
    server()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    assert main(["sync", str(run.path)]) == 0
    assert_complete(run, server.uri, steps=300)
    assert "secret" not in log + "".join(capfd.readouterr())
