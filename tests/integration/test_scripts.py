"""The commands as files."""

import ast
import itertools
import os
import subprocess
import sys
import sysconfig

import pytest

from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("script", "option"),
    [
        ("trainer/pretrain.py", "--output"),
        ("preprocessing/make_shards.py", "--output"),
        ("preprocessing/train_vocab.py", "--output"),
        ("preprocessing/inspect.py", "--verify"),
    ],
)
def test_a_checkout_need_not_be_installed_where_its_libraries_are(script, option, tmp_path):
    """As in an image: -S leaves out what installs the project itself."""
    command = [sys.executable, "-S", str(ROOT / script), "--help"]
    environment = {**os.environ, "PYTHONPATH": sysconfig.get_path("purelib")}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert option in ran.stdout


@pytest.mark.parametrize("script", ["make_shards.py", "train_vocab.py", "inspect.py"])
def test_what_is_imported_beside_our_inspect_py_does_not_want_the_standard_library_s(script):
    """As logging does from Python 3.14 on: only when the module path has been set may other things be imported."""
    tree = ast.parse((ROOT / "preprocessing" / script).read_text(encoding="utf-8"))
    before = itertools.takewhile(lambda statement: not isinstance(statement, ast.If), tree.body)
    assert [ast.unparse(found) for found in before if isinstance(found, ast.Import | ast.ImportFrom)] == [
        "from __future__ import annotations",
        "import sys",
        "from pathlib import Path",
    ]
