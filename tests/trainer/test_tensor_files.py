import os

import pytest
import torch
from safetensors.torch import load_file

from tests.limits import room_for
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
    with room_for(1000), pytest.raises(OSError, match=r"tensors: .*File too large"):
        write_tensors(tmp_path / "tensors", {"a": torch.zeros(1000)}, {})
