"""Encoder layers by kernels of our own: what they compute, and where they are refused."""

import os
import subprocess
import sys

import pytest
import torch

from tests.conftest import ROOT
from tests.trainer.conftest import need_interpreter
from trainer import preflight, pretrain
from trainer.config import load_recipe
from trainer.preflight import why_not_fused
from trainer.settings import ConfigError


def run_cases(which: str, **environment: str) -> None:
    """Run tests/trainer/fused*_cases.py in a process of its own, where kernels are interpreted or not."""
    files = [f"tests/trainer/{of}_cases.py" for of in ("fused_attention", "fused")]
    cases = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", which, *files]
    run = subprocess.run(cases, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout


@pytest.mark.parametrize("which", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_kernels_compute_the_formulas(which):
    need_interpreter()
    run_cases(which, TRITON_INTERPRET="1", DS_ACCELERATOR="cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="kernels as a GPU runs them")
def test_kernels_compute_the_formulas_on_a_gpu():
    run_cases("", TRITON_INTERPRET="0", DS_ACCELERATOR="cuda")


def test_what_a_machine_lacks_is_named(monkeypatch):
    assert why_not_fused(torch.device("cpu")) == "its kernels are for GPUs; leave it out on a CPU"
    for found, reason in ((object(), ""), (None, "triton is not installed, which torch brings on Linux")):
        monkeypatch.setattr(preflight, "find_spec", lambda name, found=found: found)
        assert why_not_fused(torch.device("cuda")).partition(":")[0] == reason
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert why_not_fused(torch.device("cuda")).endswith(
        "from Ampere on (compute capability 8.0), and this one is older"
    )


def test_on_a_cpu_nothing_is_written(capsys, recipe, shards, deepspeed_config, tmp_path):
    given = {"config": recipe, "deepspeed_config": deepspeed_config(), "shards": shards, "output": tmp_path / "run"}
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    assert pretrain.main([*words, "train.fused=true"]) == 2
    assert "error: train.fused: its kernels are for GPUs" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("other", ["train.fp8=true", "model.pre_layer_norm=true", "model.hidden_act=relu"])
def test_what_there_are_no_kernels_for_is_refused(recipe, other):
    load_recipe(recipe, [other])
    with pytest.raises(ConfigError, match=r"train\.fused has kernels for layers that end in LayerNorm, with gelu"):
        load_recipe(recipe, [other, "train.fused=true"])
