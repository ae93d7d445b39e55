"""The lock by which a job has its output directory to itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TextIO

from preprocessing import files
from preprocessing.locks import holder, is_open_at, lock_file, wait_and_lock
from preprocessing.output import JobFailedError, cannot_be
from preprocessing.status import exists, make_folder
from preprocessing.storage_errors import is_full, reason
from preprocessing.work_files import LOCK

PATIENCE = 90.0  # seconds to wait for another job's end
_ATTEMPTS = 100  # to make the lock's file


@contextmanager
def alone(output: str, note: Callable[[str], None]) -> Iterator[None]:
    """Hold a directory: two jobs at a time would each take the other's files for its own, and mix their shards.

    Remote ones have no locks. Nor is there one where nothing can be written, which is for others to tell, or where the
    storage fails, of which a note tells.

    Args:
        output: the directory, absolute or a URL.
        note: told what is waited for, and why there is no lock.

    Raises:
        JobFailedError: another job holds it, and did not end.
    """
    with ExitStack() as held:
        if not files.is_remote(output):
            try:
                held.enter_context(_locked(Path(output), note))
            except OSError as error:
                if not (cannot_be(error) or is_full(error)):
                    note(_without(output, error))
        yield


def _without(output: Path | str, error: OSError) -> str:
    return f"{output}: can't be locked ({reason(error)}); make sure that no other job works there"


@contextmanager
def _locked(output: Path, note: Callable[[str], None]) -> Iterator[None]:
    path = output / LOCK
    with ExitStack() as undo:  # the last first: a file that is still open would keep its folder on NFS
        undo.callback(_remove_empty, path.parent, *([] if exists(output) else [output]))
        undo.enter_context(_lock(path, note))
        undo.callback(_remove, output)
        yield


def _lock(path: Path, note: Callable[[str], None]) -> ExitStack:
    """The open file, which holds the lock if it can; an earlier job gets time to end, or NFS to see that its node has.

    Raises:
        JobFailedError: another job holds it, or did when the storage began to fail.
        OSError: it can't be opened.
    """
    output, waited_for = path.parent.parent, list[str]()

    def in_use(who: str) -> str:
        return f"{output}: another job is at work there, {who}; "

    def wait(who: str) -> None:
        waited_for.append(who)
        note(f"{in_use(who)}waiting up to {PATIENCE:.0f} s for it to end")

    def refused(who: str) -> JobFailedError:
        return JobFailedError(f"{in_use(who)}end that job, or choose another --output")

    while True:
        with ExitStack() as opened:
            file = _open(path, opened)
            try:
                held = wait_and_lock(file, PATIENCE, wait)
                is_there = is_open_at(path, file)
            except OSError as error:
                if waited_for:  # and nobody can tell whether that has ended
                    raise refused(waited_for[-1]) from error
                note(_without(output, error))
                return opened.pop_all()
            if held is False:
                raise refused(holder(file))
            if held is None:
                note(f"{output}: the file system has no locks; make sure that no other job works there")
            if is_there:
                return opened.pop_all()
            # Else it is that of a job that has just ended, and removed it.


def _open(path: Path, opened: ExitStack) -> TextIO:
    attempts = 0
    while True:
        try:
            make_folder(path.parent, parents=True)
            return opened.enter_context(lock_file(path))
        except (FileNotFoundError, FileExistsError):  # another job that has just ended may be removing the folder
            attempts += 1
            if attempts == _ATTEMPTS:
                raise


def _remove(output: Path) -> None:
    with suppress(OSError):  # one that stays is no lock
        files.remove(str(output), [LOCK])


def _remove_empty(*folders: Path) -> None:
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()
