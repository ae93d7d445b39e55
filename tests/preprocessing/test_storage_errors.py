"""What an error of the operating system's says of a file, by real errors where a machine gives them."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from preprocessing.storage_errors import (
    UnavailableError,
    comes_of_passing,
    exit_code,
    is_full,
    is_no_file,
    is_passing,
    is_refused,
    reason,
    unavailable,
)
from tests.limits import room_for


def make_loop(folder: Path) -> Path:
    (folder / "loop").symlink_to("loop")
    return folder / "loop"


@pytest.mark.parametrize(
    "path_in",
    [
        lambda folder: folder / "nothing",
        lambda folder: folder,
        lambda folder: folder / "file" / "below",
        lambda folder: folder / ("x" * 256),
        make_loop,
    ],
    ids=["nothing", "a folder", "below a file", "a name too long", "a link to itself"],
)
def test_where_there_is_no_file(tmp_path: Path, path_in: Callable[[Path], Path]) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="Errno") as raised:
        path_in(tmp_path).read_bytes()
    assert is_no_file(raised.value)
    assert is_refused(raised.value)
    assert not is_passing(raised.value)
    assert not is_full(raised.value)


def test_a_file_s_limit_is_no_room(tmp_path: Path) -> None:
    with room_for(10), pytest.raises(OSError, match="File too large") as raised:
        (tmp_path / "file").write_bytes(b"x" * 1000)
    assert is_full(raised.value)
    assert not is_refused(raised.value)
    assert not is_passing(raised.value)


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (OSError(errno.EIO, "of a disk, or of a network's"), True),
        (OSError(errno.ESTALE, "of a network's"), True),
        (OSError(errno.ENOSPC, "somebody must make room"), False),
        (PermissionError(errno.EACCES, "somebody must give it"), False),
        (FileNotFoundError(errno.ENOENT, "it is not there"), False),
        (OSError(errno.EMFILE, "of this program"), False),
        (OSError("of a library"), False),
        (ValueError("of no storage"), False),
        (None, False),
    ],
)
def test_which_failures_of_storage_may_pass_by_themselves(error: Exception | None, passes: bool) -> None:
    assert is_passing(error) is passes
    assert comes_of_passing(error) is passes


FULL = [errno.ENOSPC, errno.EDQUOT, errno.EFBIG]
REFUSED = [errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.EINVAL]  # beside those of no file
PASSING = [
    *(errno.EIO, errno.EREMOTEIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.ESHUTDOWN, errno.ECONNREFUSED),
    *(errno.ECONNRESET, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH),
]  # fmt: skip
OTHERS = [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EBUSY]


@pytest.mark.parametrize("number", [*FULL, *REFUSED, *PASSING, *OTHERS], ids=errno.errorcode.__getitem__)
def test_no_error_is_of_two_kinds_and_only_those_that_pass_have_another_exit_code(number: int) -> None:
    error = OSError(number, os.strerror(number))
    assert (is_full(error), is_refused(error), is_passing(error)) == (
        number in FULL,
        number in REFUSED,
        number in PASSING,
    )
    assert exit_code(error) == (1 if number in PASSING else 2)
    assert not is_no_file(error)


def raise_in_turn(*errors: Exception) -> Exception:
    """The last one, raised from the one before, and so on."""
    for cause, error in itertools.pairwise(errors):
        error.__cause__ = cause
    return errors[-1]


def test_what_is_raised_of_one_that_may_pass_comes_of_it(tmp_path: Path) -> None:
    passing, lasting = OSError(errno.EIO, "of a disk"), PermissionError(errno.EACCES, "somebody must give it")
    assert comes_of_passing(raise_in_turn(passing, ValueError("a file"), ValueError("a checkpoint")))
    assert not comes_of_passing(raise_in_turn(lasting, ValueError("a file"), ValueError("a checkpoint")))
    met = ValueError("of what was read, while something else failed")
    met.__context__ = passing
    assert not comes_of_passing(met)


def test_an_exit_code_says_whether_the_same_command_may_do() -> None:
    unavailable_now = raise_in_turn(PermissionError(errno.EACCES, "of another file"), UnavailableError("not now"))
    assert exit_code(unavailable_now) == 1
    assert exit_code(raise_in_turn(unavailable_now, ValueError("a mistake, as it seems"))) == 1
    assert exit_code(raise_in_turn(OSError(errno.EIO, "of a disk"), ValueError("a mistake, as it seems"))) == 1
    assert exit_code(raise_in_turn(OSError(errno.ENOSPC, "no room"), ValueError("a mistake"))) == 2


def test_a_reason_is_the_operating_system_s_or_a_library_s() -> None:
    assert reason(OSError(errno.EIO, "in words of pyarrow's")) == os.strerror(errno.EIO)
    assert reason(OSError("a library's own")) == "a library's own"


def test_what_can_not_be_read_now_is_told_in_one_way(tmp_path: Path) -> None:
    error = unavailable(tmp_path, "Stale file handle")
    assert isinstance(error, UnavailableError)
    assert str(error) == f"{tmp_path}: can't be read now (Stale file handle); give the same command again"
