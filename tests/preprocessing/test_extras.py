"""Commands on a machine without the packages that they need, as a GPU node has no Beam."""

import subprocess
import sys

import pytest

from tests.conftest import ROOT

RUN = """
import runpy, sys
sys.modules[sys.argv.pop(1)] = None  # as if it were not installed
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    ("missing", "extra", "command"),
    [
        ("apache_beam", "preprocess", ["preprocessing.beam_cli", "run", str(ROOT / "preprocessing/make_shards.py")]),
        ("sentencex", "preprocess", ["preprocessing.train_vocab"]),
        ("scipy", "eval", ["eval.run"]),
        ("seqeval", "eval", ["eval.watch"]),
        ("markdown_it", "eval", ["eval.report"]),
        ("matplotlib", "eval", ["eval.attention"]),
    ],
)
def test_what_is_not_installed_is_named(missing: str, extra: str, command: list[str]) -> None:
    words = [sys.executable, "-c", RUN, missing, *command, "--help"]
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=100)
    told = f"error: {missing} is not installed: pip install 'bert-pretraining[{extra}]'\n"
    assert (run.returncode, run.stdout, run.stderr) == (2, "", told)
