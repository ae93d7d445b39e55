"""What make does, with a stand-in for the trainer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT

TRAINER = """#!/bin/bash
echo "$ENDS" >> calls
mkdir -p demo/runs/demo
echo "$ENDS" > demo/runs/demo/outcome
"""


def test_a_training_that_was_stopped_is_gone_on_with_and_one_that_is_done_is_not_begun_again(tmp_path: Path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    made = ("pyproject.toml", ".venv/texts", ".venv/.demo", "demo/vocab.txt", "demo/shards/manifest.json")
    for name in made:  # each newer than the one before
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".venv" / "bin").mkdir()
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / ".venv" / "bin" / "deepspeed").write_text(TRAINER)
    (tmp_path / ".venv" / "bin" / "deepspeed").chmod(0o755)

    def make(ends: str) -> int:
        environment = {**os.environ, "ENDS": ends, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
        return subprocess.run(["make", "demo/runs/demo/.done"], cwd=tmp_path, env=environment).returncode

    assert make("requeue: SIGTERM") != 0
    assert make("done") == 0
    assert make("done") == 0
    assert (tmp_path / "calls").read_text() == "requeue: SIGTERM\ndone\n"
