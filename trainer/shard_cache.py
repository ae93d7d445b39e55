"""Copies of shard directories on a node's own disk.

    CACHE/<checksum of the manifest>/     a shard directory; its manifest.json is written last
    CACHE/<checksum of the manifest>.lock held by the one process of the node that copies, while the others wait

A copy is recognised by the checksums that its manifest names: what is there and right stays, what is missing or damaged
is copied again. A file gets its name when all of it is on disk and its checksum is right, so a process may be killed at
any moment. The only importer of fsspec.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import logging
import math
import os
import shutil
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from string import Template

from fsspec.core import url_to_fs

from preprocessing.command_line import parse_path
from preprocessing.locks import lock_file, wait_and_lock
from preprocessing.schema import (
    MANIFEST,
    TOKENIZER,
    Manifest,
    ShardDirectory,
    ShardEntry,
    ShardError,
    checksum,
    checksum_of,
    new_checksum,
)
from preprocessing.status import is_file, make_folder, status
from preprocessing.storage_errors import reason, unavailable
from preprocessing.tokenization import CONFIG_FILE, TOKENIZER_FILE, VOCABULARY_FILE
from trainer.credentials import without_credentials
from trainer.files import in_threads, sync, write_atomically
from trainer.settings import ConfigError

_BLOCK = 8 << 20  # bytes read at a time
_PART = ".part"  # ends the names of files that are not whole yet
_LASTING = (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError, ImportError, ValueError)
_PASSING = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS)
_log = logging.getLogger("pretrain")


def cache_folder(cache_dir: str) -> Path | None:
    """Where this node keeps its copies; a disk of a job's own may have a name that only the job knows.

    Args:
        cache_dir: data.cache_dir of a recipe. A leading ~ and variables, as $NAME or ${NAME}, are replaced by what they
            are in this process; $$ is a $.

    Returns:
        The folder; None where no copies are wanted.

    Raises:
        ConfigError: a variable is not set, or is empty; or it is no path, by preprocessing.command_line.parse_path.
    """
    if not cache_dir:
        return None
    try:
        written_out = Template(cache_dir).substitute({name: value for name, value in os.environ.items() if value})
    except KeyError as error:
        raise ConfigError(
            f"data.cache_dir {cache_dir}: {error.args[0]} is not set where the trainer runs; set it there, "
            "or write the path out"
        ) from error
    except ValueError as error:
        raise ConfigError(f"data.cache_dir {cache_dir}: no variable's name follows a $; write $$ for a $") from error
    try:
        return parse_path(written_out)
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"data.cache_dir {error}") from error


def cached(source: str, cache: Path, verify: bool) -> ShardDirectory:
    """A copy of a shard directory in a cache that the processes of a node share.

    Args:
        source: a directory, or a URL of one that fsspec can open.
        cache: on the node's own disk.
        verify: compare the checksums of shards that are there from before; their sizes are compared in any case. Of
            a node's ranks the first one does, so before ranks map any shard all must have met.

    Raises:
        ShardError: the source can't be read or differs from its manifest, or the cache has no room or can't be written.
        UnavailableError: the source can't be read now.
    """
    remote = _Source(source)
    text = remote.read(MANIFEST)
    manifest = Manifest.from_json(text.decode(errors="replace"), where=f"{remote.url}/{MANIFEST}")
    directory = cache / checksum_of(text)
    try:
        with _locked(directory.with_suffix(".lock")):
            _complete(directory, remote, manifest, verify and os.environ.get("LOCAL_RANK", "0") == "0")
            _write(directory / MANIFEST, text)
    except OSError as error:
        where = error.filename2 or error.filename or directory
        raise ShardError(f"{where}: can't be used as a cache ({reason(error)})") from error
    return ShardDirectory(directory)


class _Source:
    """A shard directory somewhere; whatever its file system raises becomes a ShardError or an UnavailableError.

    Attributes:
        url: for people's eyes, without user and password.
    """

    def __init__(self, url: str):
        self.url = without_credentials(url.rstrip("/"))
        with self._errors(self.url):
            self._files, self._root = url_to_fs(url.rstrip("/"))

    def read(self, name: str) -> bytes:
        with self._errors(f"{self.url}/{name}"):
            content: bytes = self._files.cat_file(f"{self._root}/{name}")
            return content

    def blocks(self, name: str) -> Iterator[bytes]:
        with self._errors(f"{self.url}/{name}"), self._files.open(f"{self._root}/{name}", "rb") as file:
            while block := file.read(_BLOCK):
                yield block

    @contextlib.contextmanager
    def _errors(self, url: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # each file system has exceptions of its own
            reason = without_credentials(str(error).partition("\n")[0]) or type(error).__name__
            if _is_lasting(error):
                raise ShardError(f"{url}: can't be read ({reason})") from error
            raise unavailable(url, reason) from error


def _is_lasting(error: Exception) -> bool:
    """Whether the same error is to be expected at the next try: a wrong name, no permission, a library that lacks."""
    # Of HTTP, as libraries for it call it; fsspec makes a file that is not found of whatever a server answers.
    told = error.__cause__ if isinstance(error, FileNotFoundError) else error
    code = getattr(told, "status", getattr(told, "code", None))
    if isinstance(code, int) and code:
        return 400 <= code < 500 and code not in _PASSING
    return isinstance(error, _LASTING)


def _complete(directory: Path, remote: _Source, manifest: Manifest, verify: bool) -> None:
    """Copy what is missing or damaged; what a killed process left goes first."""
    make_folder(directory / TOKENIZER, parents=True)
    for part in directory.glob(f"*{_PART}"):
        part.unlink()
    for name in (VOCABULARY_FILE, TOKENIZER_FILE, CONFIG_FILE):
        _write(directory / TOKENIZER / name, remote.read(f"{TOKENIZER}/{name}"))
    right = in_threads(lambda entry: _is_right(directory / entry.file, entry, verify), manifest.shards)
    missing = [entry for entry, is_right in zip(manifest.shards, right, strict=True) if not is_right]
    size = sum(entry.bytes for entry in missing)
    free = shutil.disk_usage(directory).free
    if size > free:
        raise ShardError(
            f"{directory}: {free / 1e9:.2f} GB free where {size / 1e9:.2f} GB of shards are to be copied; make room "
            "or set data.cache_dir to another disk"
        )
    if missing:
        _log.info("copying %d shard(s), %.2f GB, from %s to %s", len(missing), size / 1e9, remote.url, directory)
        in_threads(lambda entry: _copy(remote, directory / entry.file, entry), missing)


def _copy(remote: _Source, target: Path, entry: ShardEntry) -> None:
    """Copy one shard; it gets its name when its checksum is right."""
    part = target.with_name(target.name + _PART)
    digest = new_checksum()
    try:
        with part.open("wb") as file:
            for block in remote.blocks(entry.file):
                digest.update(block)
                file.write(block)
        if digest.hexdigest() != entry.blake2b:
            raise ShardError(f"{remote.url}/{entry.file}: checksum differs from its manifest; make the shards again")
        sync(part)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _is_right(path: Path, entry: ShardEntry, verify: bool) -> bool:
    found = status(path)
    is_whole = found is not None and found.st_size == entry.bytes
    return is_whole and (not verify or checksum(path) == entry.blake2b)


def _write(path: Path, content: bytes) -> None:
    """Write a small file, whole or not at all, unless it is there already."""
    if is_file(path) and path.read_bytes() == content:
        return
    write_atomically(path, content)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that ends with its process, however that ends."""
    make_folder(path.parent, parents=True)
    with lock_file(path) as lock:
        held = wait_and_lock(lock, math.inf, lambda who: _log.info("%s: %s copies shards; waiting for it", path, who))
        if held is None:  # two that write into one file would damage it
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        yield
