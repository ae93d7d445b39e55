"""Freed memory is used again: Linux has no new pages to fill, which a process counts as faults."""

import platform
import subprocess
import sys

import pytest

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
