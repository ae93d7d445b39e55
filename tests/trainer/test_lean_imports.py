"""What a rank imports, and what not."""

import importlib
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from trainer.lean_imports import without


def test_what_a_library_would_import_for_nobody_is_not_there_meanwhile_and_is_again(monkeypatch):
    monkeypatch.delitem(sys.modules, "this", raising=False)
    with without("this"), pytest.raises(ImportError):
        importlib.import_module("this")
    assert importlib.import_module("this")
    with without("this"):
        assert importlib.import_module("this"), "what is imported already stays"


def test_a_rank_imports_no_mlflow_before_it_tracks():
    """DeepSpeed's autotuner would; a file system that many nodes share has better to do."""
    program = "import sys, trainer.pretrain; print(sorted({'mlflow', 'pandas', 'sqlalchemy'} & {*sys.modules}))"
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "[]"
