"""On a GPU torch is asked for kernels that give the same bits at every run."""

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import ROOT
from tests.ranks import launched
from trainer.determinism import use_deterministic_kernels
from trainer.run_directory import RunDirectory

GPU = torch.device("cuda")


@pytest.fixture
def _as_it_was(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    yield
    torch.use_deterministic_algorithms(False)
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


@pytest.mark.usefixtures("_as_it_was")
class TestKernels:
    def test_those_of_a_gpu_and_torch_compile_s_are_chosen_and_left(self):
        use_deterministic_kernels(True, GPU)
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()  # attention's backward pass would only warn
        assert torch._inductor.config.deterministic
        assert not torch.utils.deterministic.fill_uninitialized_memory
        use_deterministic_kernels(False, GPU)
        assert not torch.are_deterministic_algorithms_enabled()
        assert not torch._inductor.config.deterministic

    @pytest.mark.parametrize(("before", "after"), [
        (None, ":4096:8"), (":16:8", ":16:8"), (":4096:2:16:8", ":4096:8"),
    ])  # fmt: skip
    def test_cublas_has_memory_that_torch_takes_for_fixed(self, monkeypatch, before, after):
        """With any other the first product would be refused."""
        if before:
            monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", before)
        use_deterministic_kernels(True, GPU)
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == after

    def test_what_is_fastest_leaves_cublas_its_memory(self):
        use_deterministic_kernels(False, GPU)
        assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ

    def test_a_cpu_is_left_as_it_is(self):
        use_deterministic_kernels(True, torch.device("cpu"))
        assert not torch.are_deterministic_algorithms_enabled()
        assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="a resume on a GPU")
@pytest.mark.parametrize("settings", [
    [], ["model.attention_probs_dropout_prob=0"], ["model.attention_probs_dropout_prob=0", "train.compile=true"],
    ["model.attention_probs_dropout_prob=0", "train.compile=true", "train.fused=true"],
    *(["train.cuda_graphs=true", "data.token_multiple=64", *way] for way in (
        [],
        ["model.attention_probs_dropout_prob=0", "train.compile=true"],
        ["model.attention_probs_dropout_prob=0", "train.compile=true", "train.fused=true"],
    )),
], ids=["dropout everywhere", "packed sequences", "compiled", "kernels of our own", "CUDA graphs, dropout everywhere",
        "CUDA graphs, compiled", "CUDA graphs with kernels of our own"])  # fmt: skip
def test_a_run_that_was_stopped_has_the_bits_of_one_that_was_not(recipe, shards, tmp_path, settings):
    def start(run, *more):
        command = [sys.executable, "trainer/pretrain.py", "--config", str(recipe), "--shards", str(shards),
                   "--output", str(run), *settings, *more]  # fmt: skip
        subprocess.run(command, cwd=ROOT, env={**os.environ, **launched(), "DS_ACCELERATOR": GPU.type}, check=True)

    start(tmp_path / "whole")
    start(tmp_path / "stopped", "train.max_steps=4")
    start(tmp_path / "stopped")
    lines = [(tmp_path / run / "metrics.jsonl").read_text().splitlines() for run in ("whole", "stopped")]
    for one, other in zip(*(map(json.loads, each) for each in lines), strict=True):
        assert (one["loss"], one["grad_norm"]) == (other["loss"], other["grad_norm"])
    exports = [RunDirectory(tmp_path / run).export(8) for run in ("whole", "stopped")]
    weights = [load_file(export / "model.safetensors") for export in exports]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
