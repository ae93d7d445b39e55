"""Exports in use: who reads one holds it, and the trainer's retention leaves it alone until it is let go.

A hold is a shared lock of the operating system (flock) on the export's config.json. It needs no permission to write,
ends with its process however that ends, and on NFS it reaches other nodes, unless the mount says local_lock or nolock.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from trainer.checkpoint import CheckpointError, remove_folder

_log = logging.getLogger("pretrain")
_FILE = "config.json"  # every export has it
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # what file systems without locks answer


@contextlib.contextmanager
def hold_export(export: Path) -> Iterator[None]:
    """Keep an export from being deleted while it is read. What has no config.json is no export, and nothing is held.

    Raises:
        CheckpointError: it was being deleted when it was asked for.
    """
    path = export / _FILE
    if not path.is_file():
        yield
        return
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CheckpointError(f"{export}: is being deleted; take a newer one") from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        if not path.exists():
            raise CheckpointError(f"{export}: was just deleted; take a newer one")
        yield


def remove_export(export: Path) -> None:
    """Delete an export unless somebody holds it; where the file system has no locks nobody can know, and it stays."""
    path = export / _FILE
    if not path.is_file():
        remove_folder(export)
        return
    with path.open("r+b") as file:  # NFS locks exclusively only what is open for writing
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            _log.warning("%s: stays, for this file system has no locks (%s)", export, os.strerror(error.errno))
            return
        remove_folder(export)
