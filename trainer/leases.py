"""What is in use: an export by those who read it, a run by the one trainer that may write there.

Who reads an export holds it, and the trainer's retention leaves it alone until it is let go: by a shared lock (flock)
on the export's config.json, which needs no permission to write. A trainer holds its run directory by a lock on a file
of its own. Locks end with their process however that ends, and on NFS they reach other nodes, unless the mount says
local_lock or nolock.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

from preprocessing.locks import holder, lock_file, try_lock, wait_and_lock
from preprocessing.status import exists, is_file, make_folder
from preprocessing.storage_errors import is_passing, unavailable
from trainer.checkpoint import remove_folder
from trainer.run_directory import CheckpointError, RunDirectory

_log = logging.getLogger("pretrain")
_FILE = "config.json"  # every export has it
_PATIENCE = 90.0  # seconds: a trainer that was told to end may still be writing, or waiting for MLflow


class RunInUseError(RuntimeError):
    """Another trainer holds the run directory. The message names it."""


@contextlib.contextmanager
def hold_run(
    run: RunDirectory, patience: float = _PATIENCE, stop: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Be the only trainer in a run directory, which is made where there is none; an earlier one gets time to end.

    Args:
        run: the run directory.
        patience: seconds to wait for another trainer to end.
        stop: says that it is not to be waited for any more.

    Raises:
        RunInUseError: it did not.
        OSError: the directory can't be written.
    """
    make_folder(run.path, parents=True)
    with lock_file(run.lock) as file:
        waiting = "%s: in use by %s; waiting up to %.0f s for it to end"
        held = wait_and_lock(file, patience, lambda who: _log.warning(waiting, run.path, who, patience), stop)
        if held is False:
            raise RunInUseError(f"{run.path}: in use by {holder(file)}; end that trainer, or choose another --output")
        if held is None:
            _log.warning("%s: this file system has no locks; start no other trainer in this run directory", run.path)
        try:
            yield
        finally:
            if held:  # people signal the process that it names, whose number may soon be another's
                with contextlib.suppress(OSError):
                    file.truncate(0)


def is_held(run: RunDirectory) -> bool:
    """Whether a trainer holds a run directory; never where the file system has no locks, so that nobody can know."""
    try:
        with run.lock.open("rb") as file:
            return try_lock(file.fileno(), shared=True) is False
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def hold_export(export: Path) -> Iterator[None]:
    """Keep an export from being deleted while it is read. What has no config.json is no export, and nothing is held.

    Raises:
        CheckpointError: it was being deleted when it was asked for, or is not for this user to read.
        UnavailableError: it can't be read now.
    """
    path = export / _FILE
    with contextlib.ExitStack() as opened:
        try:
            file = opened.enter_context(path.open("rb")) if is_file(path) else None
            held = try_lock(file.fileno(), shared=True) if file else None
            gone = file is not None and not exists(path)
        except OSError as error:
            if is_passing(error):
                raise unavailable(path, error.strerror) from error
            told = f"{path}: can't be read ({error.strerror}); get permission, or take another"
            raise CheckpointError(told) from error
        if held is False:
            raise CheckpointError(f"{export}: is being deleted; take a newer one")
        if gone:
            raise CheckpointError(f"{export}: was just deleted; take a newer one")
        yield


def remove_export(export: Path) -> None:
    """Delete an export unless somebody holds it; where the file system has no locks nobody can know, and it stays."""
    path = export / _FILE
    if not is_file(path):
        remove_folder(export)
        return
    with path.open("r+b") as file:  # NFS locks exclusively only what is open for writing
        free = try_lock(file.fileno())
        if free:
            remove_folder(export)
        elif free is None:
            _log.warning("%s: stays, for this file system has no locks", export)
