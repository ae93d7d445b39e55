import errno
import fcntl
import io
import os
import re
from collections import OrderedDict
from pathlib import Path
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file, save_file

from preprocessing.schema import checksum
from preprocessing.storage_errors import is_full, is_passing
from tests.limits import room_for
from trainer.files import DamagedFileError
from trainer.tensor_files import open_tensors, read_pickled_tensors, read_tensors, write_tensors


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


@pytest.mark.parametrize("tensors", [
    {"b": torch.arange(5.0), "a": torch.ones(3, 2), "ü": torch.tensor(2.0), "none": torch.empty(0)},
    {"of a model": torch.nn.Parameter(torch.ones(2))},
    {},
])  # fmt: skip
@pytest.mark.parametrize("metadata", [{"format": "pt"}, {}])
def test_the_bytes_are_those_of_safetensors(tmp_path, tensors, metadata):
    written = write_tensors(tmp_path / "tensors", tensors, metadata)
    save_file({name: tensor.detach() for name, tensor in tensors.items()}, tmp_path / "theirs", metadata or None)
    assert (tmp_path / "tensors").read_bytes() == (tmp_path / "theirs").read_bytes()
    assert written == checksum(tmp_path / "tensors")


def test_the_checksum_is_of_what_was_to_be_written(tmp_path, monkeypatch):
    """A network's disk that has lost a write shows zeros where it was."""
    path = tmp_path / "tensors"
    whole = write_tensors(path, {"a": torch.ones(3)}, {})
    monkeypatch.setattr("trainer.tensor_files.os.fsync", lambda _: os.truncate(path, 100))
    assert write_tensors(path, {"a": torch.ones(3)}, {}) == whole != checksum(path)


@pytest.mark.parametrize("operation", ["fsync", "close"])
def test_a_write_that_has_failed_is_told_by_the_file_that_was_written(tmp_path, monkeypatch, operation):
    """Lustre tells it once, where that one is put on disk or closed; who opens the file anew hears nothing."""
    path, failing = tmp_path / "tensors", OSError(errno.EIO, os.strerror(errno.EIO))

    class File(io.FileIO):
        def close(self):
            super().close()
            if operation == "close":
                raise failing

    def fsync(descriptor):
        assert Path(f"/proc/self/fd/{descriptor}").readlink() == path
        assert fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_WRONLY
        if operation == "fsync":
            raise failing

    monkeypatch.setattr("trainer.tensor_files.os.fsync", fsync)
    monkeypatch.setattr("pathlib.Path.open", lambda self, mode: io.BufferedWriter(File(self, mode)))
    with pytest.raises(OSError, match=os.strerror(errno.EIO)) as raised:
        write_tensors(path, {"a": torch.ones(3)}, {})
    assert raised.value.filename == str(path)
    assert is_passing(raised.value)


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


class TestPickled:
    """Files of torch.save, of strangers."""

    @pytest.fixture(params=[True, False], ids=["zip", "before torch 1.6"])
    def save(self, tmp_path, request):
        """Write something as torch.save does."""

        def write(content):
            torch.save(content, tmp_path / "tensors", _use_new_zipfile_serialization=request.param)
            return tmp_path / "tensors"

        return write

    def test_what_was_written_is_read(self, save):
        rows = torch.arange(6.0).view(2, 3)
        learned = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
        found = read_pickled_tensors(save(OrderedDict(rows=rows, columns=rows.T, learned=learned)))

        assert list(found) == ["rows", "columns", "learned"]
        assert torch.equal(found["rows"], rows)
        assert torch.equal(found["columns"], rows.T)
        assert torch.equal(found["learned"], learned)
        assert not found["learned"].requires_grad

    def test_nothing_that_a_file_says_is_run(self, save, tmp_path):
        class Hostile:
            def __reduce__(self):
                return os.mkdir, (str(tmp_path / "was here"),)

        with pytest.raises(DamagedFileError, match="no weights alone: UnpicklingError"):
            read_pickled_tensors(save({"a": Hostile()}))
        assert not (tmp_path / "was here").exists()

    @pytest.mark.filterwarnings("ignore:Validating sparse tensor invariants:UserWarning")
    @pytest.mark.parametrize("content", [
        [torch.ones(2)], torch.ones(2), {"a": 7}, {"a": {"b": torch.ones(2)}},
        {"a": torch.zeros(1).expand(10**12)},  # of one number
        {"a": torch.zeros(10, device="meta")},  # of none
        {"a": torch.ones(2).to_sparse()},
    ], ids=["a list", "a tensor", "a number", "a model within", "one for many", "no numbers", "sparse"])  # fmt: skip
    def test_other_things_than_tensors_by_name(self, save, content):
        with pytest.raises(DamagedFileError, match="it holds other things than tensors by name"):
            read_pickled_tensors(save(content))

    @pytest.mark.parametrize("left", [0, 7, 300, -1], ids=["nothing", "a few bytes", "no numbers", "a byte too few"])
    def test_a_file_that_is_cut_is_damaged(self, save, left):
        file = save({"a": torch.ones(100)})
        file.write_bytes(file.read_bytes()[:left])
        with pytest.raises(DamagedFileError, match="not whole"):
            read_pickled_tensors(file)

    def test_a_file_that_can_t_be_read_is_told_as_the_operating_system_does(self, save, monkeypatch):
        file = save({"a": torch.ones(3)})
        for path, number in ((file.with_name("nothing"), errno.ENOENT), (file.parent, errno.EISDIR)):
            with pytest.raises(OSError, match=os.strerror(number)):
                read_pickled_tensors(path)
        monkeypatch.setattr("torch.load", mock.Mock(side_effect=OSError(errno.EIO, os.strerror(errno.EIO))))
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            read_pickled_tensors(file)
