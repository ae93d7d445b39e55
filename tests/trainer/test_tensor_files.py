import errno
import os
import re
from unittest import mock

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from preprocessing.storage_errors import is_full, is_passing
from tests.limits import room_for
from trainer.files import DamagedFileError
from trainer.tensor_files import open_tensors, read_tensors, write_tensors


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
    with room_for(1000), pytest.raises(OSError, match=r"File too large") as raised:
        write_tensors(tmp_path / "tensors", {"a": torch.zeros(1000)}, {})
    assert raised.value.filename == str(tmp_path / "tensors")
    assert is_full(raised.value)


def test_tensors_that_can_not_be_written_by_the_library_s_own_words(tmp_path, monkeypatch):
    monkeypatch.setattr("trainer.tensor_files.save_file", mock.Mock(side_effect=SafetensorError("no such dtype")))
    with pytest.raises(OSError, match=r"tensors: no such dtype$"):
        write_tensors(tmp_path / "tensors", {"a": torch.ones(3)}, {})


@pytest.fixture
def file(tmp_path):
    write_tensors(tmp_path / "tensors", {"a": torch.ones(3), "b": torch.zeros(2, 2)}, {"format": "pt"})
    return tmp_path / "tensors"


def test_what_was_written_is_read(file):
    found = read_tensors(file)
    assert found.keys() == {"a", "b"}
    assert torch.equal(found["a"], torch.ones(3))
    assert torch.equal(found["b"], torch.zeros(2, 2))
    assert open_tensors(file).metadata() == {"format": "pt"}


@pytest.mark.parametrize("read", [open_tensors, read_tensors])
@pytest.mark.parametrize("left", [0, 7, 40, -1], ids=["nothing", "no length", "no header", "a byte too few"])
def test_a_file_that_is_cut_is_damaged(file, read, left):
    file.write_bytes(file.read_bytes()[:left])
    with pytest.raises(DamagedFileError):
        read(file)


@pytest.mark.parametrize("read", [open_tensors, read_tensors])
def test_a_file_that_can_not_be_opened_is_told_as_the_operating_system_does(file, read):
    """The library would call it missing."""
    for path, number in ((file.with_name("nothing"), errno.ENOENT), (file.parent, errno.EISDIR)):
        with pytest.raises(OSError, match=os.strerror(number)) as raised:
            read(path)
        assert (raised.value.errno, raised.value.filename) == (number, str(path))


@pytest.mark.parametrize("error", [
    OSError("No such device (os error 19)"),  # the library's, which has no number
    RuntimeError("unable to mmap 28 bytes from file <x>: Cannot allocate memory (12)"),  # torch's
])  # fmt: skip
def test_a_file_that_is_open_and_can_not_be_mapped_may_be_later(file, monkeypatch, error):
    monkeypatch.setattr("trainer.tensor_files.safe_open", mock.Mock(side_effect=error))
    with pytest.raises(OSError, match=re.escape(str(error))) as raised:
        open_tensors(file)
    assert raised.value.filename == str(file)
    assert is_passing(raised.value)
