"""The command lines of the Flink manifests on a real Flink: a worker pool beside a TaskManager, our code in its image.

Needs the laboratory of tests/integration/test_flink.py. One TaskManager, since all of them are on this machine, and two
may not share a pool; in a cluster each has its own as a sidecar.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from preprocessing.schema import ShardDirectory
from tests.conftest import LAB, ROOT
from tests.labs import to_itself

FLINK = Path(os.environ.get("FLINK_LAB_DIR", "/tmp/flink-lab"))
JOB_PORT = os.environ.get("FLINK_LAB_JOB_PORT", "18099")
BASE = ROOT / "cluster" / "k8s" / "base" / "preprocess"

pytestmark = [
    pytest.mark.flink,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not (LAB / "beam" / "flink-up").exists(), reason="no Flink laboratory at ../shared/beam"),
    pytest.mark.skipif(not (LAB / "data" / "books").exists(), reason="no books at ../shared/data"),
    pytest.mark.skipif(
        not all(map(shutil.which, ("java", "mvn", "go"))), reason="the laboratory needs java, mvn and go"
    ),
]


def container(file: str, name: str) -> dict:
    """A container as the manifests have it."""
    pod = yaml.safe_load((BASE / file).read_text(encoding="utf-8"))["template"]["spec"]
    return next(box for box in pod["containers"] if box["name"] == name)


@pytest.fixture
def flink(tmp_path: Path) -> Iterator[None]:
    """Flink with one TaskManager, Beam's job server, and the sidecar."""
    with to_itself("flink"):
        environment = {**os.environ, "FLINK_LAB_DIR": str(FLINK), "FLINK_LAB_PYTHON": sys.executable,
                       "FLINK_LAB_TASKMANAGERS": "1"}  # fmt: skip
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "start_new_session": True}
        up = subprocess.run([LAB / "beam" / "flink-up"], env=environment, timeout=900, text=True, **quiet)
        if up.returncode == 2:
            pytest.skip(up.stderr.strip())
        assert up.returncode == 0, up.stderr
        worker = container("taskmanager.yaml", "worker")
        command = [
            word.replace("/opt/apache/beam/boot", str(FLINK / "bin" / "container")) for word in worker["command"]
        ]
        variables = {item["name"]: item["value"] for item in worker["env"]}
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background ignores it
        pool = subprocess.Popen(
            [sys.executable, *command[1:]], cwd=tmp_path, env={**os.environ, **variables}, stderr=subprocess.DEVNULL
        )
        signal.signal(signal.SIGINT, before)
        yield
        pool.send_signal(signal.SIGINT)  # it ends its workers then
        pool.wait(120)
        subprocess.run([LAB / "beam" / "flink-down"], env=environment, capture_output=True, check=True)


def make_shards(output: Path, *runner: str) -> dict[str, str]:
    """Shards of two books; returns their checksums."""
    command = [
        sys.executable, "-m", "preprocessing.beam_cli", "run", "preprocessing/make_shards.py", *runner,
        "--books", LAB / "data" / "books" / "pg10*.txt", "--sequence-lengths", "128", "--duplicates", "1",
        "--vocab", LAB / "data" / "vocab" / "bert-base-uncased-vocab.txt", "--output", output,
    ]  # fmt: skip
    made = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert made.returncode == 0, made.stderr[-3000:]
    return {entry.file: entry.blake2b for entry in ShardDirectory(output).manifest.shards}


def test_the_manifests_command_lines_make_the_bytes_of_one_process(flink, tmp_path):
    submit = container("flink/submit.yaml", "beam")["command"]
    runner = [word for word in submit if word.startswith("--")]
    assert submit[: len(submit) - len(runner)] == container("pod.yaml", "beam")["command"]
    here = {"localhost:8099": f"localhost:{JOB_PORT}", "$(TASKMANAGERS)": "1"}
    for theirs, ours in here.items():
        assert any(theirs in word for word in runner)
        runner = [word.replace(theirs, ours) for word in runner]
    assert make_shards(tmp_path / "flink", *runner) == make_shards(tmp_path / "one")
