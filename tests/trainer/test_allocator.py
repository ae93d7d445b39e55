"""Freed memory is used again, so that Linux has no new pages to fill; kernels of shapes long gone are forgotten."""

import os
import platform
import subprocess
import sys

import pytest
import torch

from trainer.allocator import bound_kernel_caches

PROGRAM = """
import resource, sys, torch
from trainer.allocator import keep_freed_memory

if sys.argv[1] == "keep":
    keep_freed_memory()

def step():
    layers = [torch.ones(4 << 20) for _ in range(20)]  # 16 MB each

step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's malloc alone is told")
def test_steps_after_the_first_need_no_new_memory():
    faults = {
        word: int(subprocess.run([sys.executable, "-c", PROGRAM, word], capture_output=True, check=True).stdout)
        for word in ("keep", "return")
    }
    assert faults["keep"] < 0.5 * faults["return"]


PRODUCTS = """
import sys, psutil, torch
from trainer.allocator import bound_kernel_caches

if sys.argv[1] == "bound":
    bound_kernel_caches()
torch.set_num_threads(1)
tokens, *weights = (torch.ones(n, 256, dtype=torch.bfloat16) for n in (1200, 256, 192))
for weight in weights:
    tokens @ weight.T
before = psutil.Process().memory_info().rss
for i in range(1, 1200):  # more shapes than torch keeps by itself
    for weight in weights:
        tokens[:i] @ weight.T
print(psutil.Process().memory_info().rss - before)
"""


@pytest.mark.skipif(not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN has no kernels in bfloat16 here")
def test_kernels_of_earlier_shapes_are_forgotten(monkeypatch):
    for name in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        monkeypatch.delenv(name, raising=False)
    grown = {
        word: int(subprocess.run([sys.executable, "-c", PRODUCTS, word], capture_output=True, check=True).stdout)
        for word in ("bound", "free")
    }
    assert grown["bound"] < 0.6 * grown["free"]


def test_what_the_environment_says_of_kernels_stands(monkeypatch):
    monkeypatch.setenv("LRU_CACHE_CAPACITY", "7")
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "0")  # set, so that it is restored
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY")
    bound_kernel_caches()
    assert os.environ["LRU_CACHE_CAPACITY"] == "7"
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "256"
