import errno

import pytest

from preprocessing.locks import try_lock


@pytest.fixture
def two(tmp_path):
    """Descriptors of one file that was opened twice, as by two processes."""
    (tmp_path / "lock").touch()
    with (tmp_path / "lock").open("r+") as one, (tmp_path / "lock").open("r+") as other:
        yield one.fileno(), other.fileno()


def test_one_holds_it_alone(two):
    assert try_lock(two[0]) is True
    assert try_lock(two[1]) is False
    assert try_lock(two[1], shared=True) is False


def test_several_share_it(two):
    assert try_lock(two[0], shared=True) is True
    assert try_lock(two[1], shared=True, wait=True) is True
    assert try_lock(two[0]) is False


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks(two, monkeypatch, code):
    def refuse(*_):
        raise OSError(code, "no locks")

    monkeypatch.setattr("preprocessing.locks.fcntl.flock", refuse)
    assert try_lock(two[0]) is None


def test_another_error_is_one(two, monkeypatch):
    def fail(*_):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr("preprocessing.locks.fcntl.flock", fail)
    with pytest.raises(OSError, match="broken"):
        try_lock(two[0])
