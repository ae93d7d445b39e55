"""Kernels of our own, as the doctor looks at them: right or named, whatever becomes of the process that has them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cluster.checkup import kernels
from cluster.checkup.kernels import check_kernels
from tests.conftest import ROOT
from tests.trainer.conftest import need_interpreter

PROGRAM = """
import dataclasses, json
from unittest import mock
import torch
from tests.trainer import triton_interpreter
from cluster.checkup.kernels import _judge, errors
from trainer.fused_attention import How
from trainer.model import BertConfig

triton_interpreter.mend()
ways = {
    "right": ("trainer.fused_attention.How", "scales", How.scales),
    "scores": ("trainer.fused_attention.How", "scales", lambda how, x: tuple(1.1 * y for y in scales(how, x))),
    "dropout": ("trainer.fused_attention", "dropped_of_65536", lambda probability: 2**16 // 8),
}
scales = How.scales
config, found = BertConfig(64, hidden_size=32, num_attention_heads=2, intermediate_size=48), {}
for way, (place, name, value) in ways.items():
    with mock.patch(f"{place}.{name}", value):
        off = [error for lengths in ((20, 128), (130,)) for error in errors(config, lengths, torch.device("cpu"))]
    found[way] = dataclasses.asdict(_judge(off))
print(json.dumps(found))
"""


def test_they_agree_with_the_formula_or_what_is_off_is_named():
    need_interpreter()
    environment = {**os.environ, "TRITON_INTERPRET": "1", "DS_ACCELERATOR": "cpu"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    right = found.pop("right")
    assert (right["state"], right["found"]) == ("ok", "kernels of our own agree with the formula")
    for mistake, named in {
        "scores": "attention.qkv", "dropout": "the share of weights with dropout, up to 128 tokens",
    }.items():  # fmt: skip
        assert found[mistake]["state"] == "wrong"
        assert named in found[mistake]["found"]
        assert "Leave train.fused out" in found[mistake]["advice"]


@pytest.fixture
def on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a shell script in the place of the process that has the kernels."""

    def put(script: str) -> None:
        program = tmp_path / "python"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(kernels, "find_spec", lambda name: object())
        monkeypatch.setattr(sys, "executable", str(program))
        monkeypatch.setattr(kernels, "_PATIENCE", 2)

    return put


@pytest.mark.parametrize(
    ("script", "state", "words"),
    [
        ("echo '[[\"values\", 0.003, 0.01]]'", "ok", "agree with the formula"),
        ('echo \'[["values", 0.01, 0.01], ["keys", 0.5, 0.01]]\'', "wrong", "(keys: 5.0e-01 off, where 1.0e-02 is"),
        ("echo '[[\"values\", NaN, 0.01]]'", "wrong", "(values: nan off"),
        ("echo loading >&2; echo 'CUDA error: an illegal memory access' >&2; exit 1", "wrong", "fail (CUDA error: an"),
        ("exit 9", "wrong", "fail (exit code 9)"),
        ("exec sleep 600", "wrong", "take more than 2 s"),
    ],
)
def test_what_becomes_of_their_process_is_told(script: str, state: str, words: str, on_a_gpu):
    on_a_gpu(script)
    (found,) = check_kernels()
    assert (found.check, found.state) == ("kernels", state)
    assert words in found.found


def test_nothing_is_told_where_they_are_not_for(on_a_gpu, monkeypatch: pytest.MonkeyPatch):
    on_a_gpu("echo '[]'")  # of a GPU before Ampere
    assert not list(check_kernels())
    on_a_gpu("exit 9")
    monkeypatch.setattr(kernels, "find_spec", lambda name: None)
    assert not list(check_kernels())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert not list(check_kernels())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="kernels as a GPU runs them")
def test_on_this_gpu_they_are_right():
    found = list(check_kernels())
    assert all(finding.state == "ok" for finding in found), found
