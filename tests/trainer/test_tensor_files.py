import os
import resource
import signal

import pytest
import torch
from safetensors.torch import load_file

from trainer.tensor_files import write_tensors


@pytest.fixture
def umask():
    """Set the umask for a test."""
    before = os.umask(0)
    yield os.umask
    os.umask(before)


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077])
def test_the_mode_is_that_of_any_other_file(tmp_path, umask, mask):
    umask(mask)
    (tmp_path / "other").write_text("")
    write_tensors(tmp_path / "tensors", {"a": torch.ones(3)}, {"format": "pt"})
    assert (tmp_path / "tensors").stat().st_mode == (tmp_path / "other").stat().st_mode
    assert torch.equal(load_file(tmp_path / "tensors")["a"], torch.ones(3))


def test_a_full_disk_is_an_error_of_the_operating_system(tmp_path):
    """A limit on the size of files stands for it."""
    before, limits = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        with pytest.raises(OSError, match=r"tensors: .*File too large"):
            write_tensors(tmp_path / "tensors", {"a": torch.zeros(1000)}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
