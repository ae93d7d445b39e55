import errno
import fcntl
import io
import os
import socket
import threading
from pathlib import Path

import pytest

from preprocessing.locks import holder, lock_file, try_lock, wait_and_lock
from tests.failing import fail_on


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


def test_one_that_waits_has_it_alone_once_the_other_has_let_go(tmp_path):
    with (tmp_path / "lock").open("a+") as one, (tmp_path / "lock").open("a+") as other:
        assert try_lock(one.fileno()) is True
        threading.Timer(0.1, one.close).start()
        assert try_lock(other.fileno(), wait=True) is True
        with (tmp_path / "lock").open() as third:
            assert try_lock(third.fileno(), shared=True) is False


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks(two, monkeypatch, code):
    fail_on(monkeypatch, fcntl, "flock", number=code)
    assert try_lock(two[0]) is None


def test_another_error_is_one(two, monkeypatch):
    fail_on(monkeypatch, fcntl, "flock")
    with pytest.raises(OSError, match="Input/output error"):
        try_lock(two[0])


def test_who_is_waited_for_is_told_once_and_the_next_one_is_named(tmp_path):
    told = []
    with (tmp_path / "lock").open("a+") as one, (tmp_path / "lock").open("a+") as other:
        assert holder(one) == "another process"
        assert wait_and_lock(one, 0, told.append) is True
        me = f"process {os.getpid()} on {socket.gethostname()}"
        assert holder(other) == me
        assert wait_and_lock(other, 0, told.append) is False
        assert told == []
        threading.Timer(1.0, one.close).start()
        assert wait_and_lock(other, 60, told.append) is True
        assert told == [me]
        assert holder(other) == me


def test_a_wait_that_nobody_wants_any_more_ends_before_its_patience(tmp_path, monkeypatch):
    monkeypatch.setattr("preprocessing.locks._INTERVAL", 0.0)
    wanted = iter([True, True])
    with lock_file(tmp_path / "lock") as one, lock_file(tmp_path / "lock") as other:
        assert wait_and_lock(one, 0, print) is True
        assert wait_and_lock(other, 60, print, stop=lambda: not next(wanted, False)) is False
        assert next(wanted, None) is None


def test_what_stands_in_a_lock_s_file_need_not_be_text(tmp_path):
    """As where it was a file of somebody else's, or a crash has left any bytes there."""
    (tmp_path / "lock").write_bytes(b"caf\xe9\n")
    with lock_file(tmp_path / "lock") as one, lock_file(tmp_path / "lock") as other:
        assert holder(one) == "caf\ufffd"
        assert wait_and_lock(one, 0, print) is True
        assert holder(other) == f"process {os.getpid()} on {socket.gethostname()}"


def test_what_is_told_only_where_the_file_is_closed_is_no_error_and_the_lock_has_ended(tmp_path, monkeypatch):
    class Told(io.TextIOWrapper):
        def close(self):
            super().close()
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    really_open = Path.open
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda path, *_, **__: Told(really_open(path, "ab+")))
        with lock_file(tmp_path / "lock") as one:
            assert wait_and_lock(one, 0, print) is True
    with lock_file(tmp_path / "lock") as other:  # though somebody still has the one
        assert try_lock(other.fileno()) is True
    with pytest.raises(OSError, match="Input/output"):
        Told(really_open(tmp_path / "lock", "ab+")).close()


def test_what_a_link_leads_to_is_not_taken_for_a_lock(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "lock").symlink_to("file")
    told = r"a link, where a file of its own belongs: '.*/lock'"
    with pytest.raises(OSError, match=told), lock_file(tmp_path / "lock"):
        pytest.fail("it is open")
    assert (tmp_path / "file").read_text() == "mine"
