"""The directory that all ranks share: space, writing, adding, putting on disk, renaming."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from pathlib import Path

from cluster.checkup.findings import Finding, judge

_SYNCS, _SYNC_SECONDS = 50, 2.0  # at most so many, for at most so long
_SLOW_SYNCS = 10  # a second
_BLOCK = b"\0" * 4096
_UNMOUNTED = "Make it, or mount the shared file system on this node."


def check_space(directory: Path, needed: float) -> Finding:
    """Room for what a run writes.

    Args:
        directory: on the file system in question.
        needed: bytes.
    """
    try:
        space = shutil.disk_usage(directory)
    except OSError as error:
        return Finding("disk space", "wrong", f"{directory}: {error.strerror}", _UNMOUNTED)
    return judge(
        "disk space",
        f"{space.free / 1e9:,.1f} GB free of {space.total / 1e9:,.1f} in {directory}",
        f"A run needs some {needed / 1e9:,.0f} GB of checkpoints and exports: make room, or set checkpoint.keep lower.",
        wrong=space.free < needed / 10,
        warning=space.free < needed,
    )


def check_writing(directory: Path) -> Finding:
    """Do what a run does to files and folders there, and see how often a second a block gets onto the disk."""
    target = directory / f".doctor-{os.uname().nodename}-{os.getpid()}"
    beside = target.with_name(f"{target.name}.new")  # a node's name may have dots in it
    folder = target.with_name(f"{target.name}.folder")
    try:
        target.write_bytes(b"old")
        write_synced(beside, b"new")
        beside.replace(target)
        if target.read_bytes() != b"new":
            return Finding(
                "writing", "wrong", f"{directory}: a renamed file is still the old one",
                "This file system breaks renames, on which checkpoints rest: take another one.",
            )  # fmt: skip
        rate = _sync_rate(beside)
        try:
            _add_and_rename(target, folder)
        except OSError as error:
            return Finding(
                "writing", "wrong", f"{directory}: no file can be added to, or no folder renamed ({error.strerror})",
                "Metrics and checkpoints need both, which mounts of object storage may lack: take another file system.",
            )  # fmt: skip
    except OSError as error:
        return Finding("writing", "wrong", f"{directory}: {error.strerror}", advice_for(error))
    finally:
        for path in (target, beside):
            remove(path)
        for path in (folder, _renamed(folder)):
            shutil.rmtree(path, ignore_errors=True)
    return judge(
        "writing",
        f"write, fsync and rename work in {directory}; {rate:,.0f} fsyncs a second",
        "Slow: checkpoints wait for their files to reach the disk. A parallel file system or a local disk is faster.",
        warning=rate < _SLOW_SYNCS,
    )


def _add_and_rename(file: Path, folder: Path) -> None:
    """Add to a file, as metrics are, and rename a folder that is not empty, as a checkpoint is."""
    with file.open("ab") as opened:
        opened.write(b"er")
    folder.mkdir()
    (folder / "file").touch()
    folder.rename(_renamed(folder))


def _renamed(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.renamed")


def write_synced(path: Path, content: bytes) -> None:
    """Write a file and put it on disk.

    Raises:
        OSError: it can't be.
    """
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def remove(path: Path) -> None:
    """Take a file away that may not be there, on a file system that may not let it go."""
    with contextlib.suppress(OSError):
        path.unlink()


def advice_for(error: OSError) -> str:
    """What to do where writing fails."""
    if isinstance(error, FileNotFoundError):
        return _UNMOUNTED
    if error.errno in _ADVICE:
        return _ADVICE[error.errno]
    return "See that this user can write here, on every node."


_ADVICE = {
    errno.ENOSPC: "The disk is full: make room.",
    errno.EDQUOT: "Your quota is full: make room.",
    errno.EROFS: "It is mounted read-only here: mount it writable, or take another directory.",
}


def _sync_rate(path: Path) -> float:
    count, began = 0, time.monotonic()
    with path.open("wb") as file:
        while count < _SYNCS and time.monotonic() - began < _SYNC_SECONDS:
            file.write(_BLOCK)
            file.flush()
            os.fsync(file.fileno())
            count += 1
    return count / max(time.monotonic() - began, 1e-9)
