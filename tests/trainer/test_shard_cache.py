"""A node's copy of the shards: made once, recognised by checksums, never half, whatever happens to who makes it."""

import base64
import errno
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections import namedtuple
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from preprocessing.schema import ShardDirectory, ShardError
from preprocessing.storage_errors import UnavailableError
from tests.trainer.shard_factory import write_shards
from tests.waiting import wait_for
from trainer import shard_cache
from trainer.settings import ConfigError
from trainer.shard_cache import cache_folder, cached

FILES = [
    "manifest.json", "shard-00000-of-00003.arrow", "shard-00001-of-00003.arrow", "shard-00002-of-00003.arrow",
    "tokenizer/tokenizer.json", "tokenizer/tokenizer_config.json", "tokenizer/vocab.txt",
    "validation-shard-00000-of-00001.arrow",
]  # fmt: skip


@pytest.mark.parametrize(
    ("cache_dir", "folder"),
    [
        ("~/cache", "/home/ada/cache"),  # a recipe passes through no shell
        ("$SLURM_TMPDIR/shards", "/local/12/shards"),
        ("/local/${USER_NAME}_$SLURM_JOB_ID", "/local/ada_12"),
        ("/local/$$x", "/local/$x"),
        ("cache", "cache"),
        ("./~/cache", "~/cache"),
    ],
)
def test_a_cache_is_named_by_what_the_node_s_variables_are(monkeypatch, cache_dir, folder):
    node = {"HOME": "/home/ada", "USER_NAME": "ada", "SLURM_JOB_ID": "12", "SLURM_TMPDIR": "/local/12"}
    for name, value in node.items():
        monkeypatch.setenv(name, value)
    assert cache_folder(cache_dir) == Path(folder)


def test_without_a_name_there_is_no_cache():
    assert cache_folder("") is None


@pytest.mark.parametrize(
    ("cache_dir", "message"),
    [
        (
            "$SCRATCH_OF_NOBODY/x",
            r"data.cache_dir \$SCRATCH_OF_NOBODY/x: SCRATCH_OF_NOBODY is not set where the trainer",
        ),
        ("$EMPTY/x", "EMPTY is not set where the trainer runs"),  # /x would be another folder than is meant
        ("/x/$/y", r"no variable's name follows a \$; write \$\$ for a \$"),
        ("~nobody-of-that-name/x", "data.cache_dir '~nobody-of-that-name/x': there is no such home directory"),
        ("/x\0y", "it holds a NUL character, which no path can"),
    ],
)
def test_a_cache_by_a_variable_that_is_not_set_is_refused(monkeypatch, cache_dir, message):
    monkeypatch.setenv("EMPTY", "")
    with pytest.raises(ConfigError, match=message):
        cache_folder(cache_dir)


# Copies in blocks of 1,000 bytes, the next one when a file `go` is there, and says so in a file `begun`.
SLOWLY = """
import sys, time, logging
from pathlib import Path
from trainer import shard_cache
logging.basicConfig(level=logging.INFO, format="%(message)s")
shard_cache._BLOCK = 1000
blocks = shard_cache._Source.blocks
def slowly(self, name):
    for block in blocks(self, name):
        yield block
        Path(sys.argv[3], "begun").touch()
        while not Path(sys.argv[3], "go").exists():
            time.sleep(0.01)
shard_cache._Source.blocks = slowly
print(shard_cache.cached(sys.argv[1], Path(sys.argv[2]), True).path)
"""


def start(source, cache, where):
    command = [sys.executable, "-c", SLOWLY, str(source), str(cache), str(where)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def files_of(directory):
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def ages(directory):
    """What tells a file that was written again from one that was left."""
    return {path.name: path.stat().st_ino for path in directory.rglob("*") if path.is_file()}


def same(directory, shards):
    return all((directory / name).read_bytes() == (shards / name).read_bytes() for name in FILES)


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.mark.parametrize("form", ["{}", "{}/", "file://{}", "memory://bucket/shards"])
def test_a_copy_has_what_a_run_reads_under_the_name_of_the_manifests_checksum(shards, cache, tmp_path, form):
    source = tmp_path / "source"
    shutil.copytree(shards, source)
    (source / "job.json").touch()  # what the trainer does not read stays where it is
    if form.startswith("memory"):
        fsspec.filesystem("memory").put(str(source), "/bucket/shards", recursive=True)
    copy = cached(form.format(source), cache, verify=True)
    assert copy.path == cache / ShardDirectory(shards).manifest_blake2b
    assert files_of(copy.path) == FILES
    assert same(copy.path, shards)


def test_the_next_start_uses_it_as_it_is(shards, cache):
    copy = cached(str(shards), cache, verify=True).path
    before = ages(copy)
    assert cached(str(shards), cache, verify=True).path == copy
    assert ages(copy) == before


@pytest.mark.parametrize("damage", ["evicted", "cut", "changed", "other words"])
def test_what_is_missing_or_damaged_is_copied_again_and_nothing_else(shards, cache, damage):
    copy = cached(str(shards), cache, verify=True).path
    before = ages(copy)
    victim = copy / ("tokenizer/vocab.txt" if damage == "other words" else "shard-00001-of-00003.arrow")
    content = victim.read_bytes()
    if damage == "evicted":
        victim.unlink()
    else:
        victim.write_bytes({"cut": content[:-1], "changed": content[:-9] + b"x" + content[-8:]}.get(damage, b"[PAD]\n"))
    cached(str(shards), cache, verify=True)
    assert same(copy, shards)
    assert {name for name, age in ages(copy).items() if age != before[name]} <= {victim.name}


def test_without_verify_sizes_are_compared_and_contents_are_not(shards, cache):
    copy = cached(str(shards), cache, verify=True).path
    changed, cut = copy / "shard-00001-of-00003.arrow", copy / "shard-00002-of-00003.arrow"
    content = changed.read_bytes()
    changed.write_bytes(content[:-9] + b"x" + content[-8:])
    os.truncate(cut, 10)
    cached(str(shards), cache, verify=False)
    assert cut.stat().st_size > 10
    assert changed.read_bytes() != content


def test_of_a_nodes_ranks_the_first_compares_checksums(shards, cache, monkeypatch):
    copy = cached(str(shards), cache, verify=True).path
    changed, cut = copy / "shard-00001-of-00003.arrow", copy / "shard-00002-of-00003.arrow"
    content = changed.read_bytes()
    changed.write_bytes(content[:-9] + b"x" + content[-8:])
    os.truncate(cut, 10)
    hashed = []
    real = shard_cache.checksum
    monkeypatch.setattr(shard_cache, "checksum", lambda path: hashed.append(path.name) or real(path))
    for rank in ("3", "0", "1"):  # in the order in which they happen to come
        monkeypatch.setenv("LOCAL_RANK", rank)
        assert cached(str(shards), cache, verify=True).path == copy
        assert (changed.read_bytes() == content) is (rank != "3")
        assert cut.stat().st_size > 10
    assert sorted(hashed) == [name for name in FILES if name.endswith(".arrow")]
    assert same(copy, shards)


def test_two_processes_at_once_copy_once(shards, cache, tmp_path):
    first = start(shards, cache, tmp_path)
    wait_for((tmp_path / "begun").exists)
    second = start(shards, cache, tmp_path)
    assert f"process {first.pid} on {socket.gethostname()} copies shards; waiting for it" in second.stderr.readline()
    (tmp_path / "go").touch()
    told = [process.communicate(timeout=60) for process in (first, second)]
    assert first.returncode == second.returncode == 0
    assert told[0][0] == told[1][0]
    assert "copying 4 shard(s)" in told[0][1]
    assert "copying" not in told[1][1]
    assert same(cache / ShardDirectory(shards).manifest_blake2b, shards)


def test_a_killed_process_leaves_nothing_that_is_taken(shards, cache, tmp_path):
    process = start(shards, cache, tmp_path)
    wait_for((tmp_path / "begun").exists)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    copy = cache / ShardDirectory(shards).manifest_blake2b
    assert list(copy.glob("*.part"))
    assert not list(copy.glob("*.arrow"))
    with pytest.raises(ShardError, match=r"no manifest\.json"):
        ShardDirectory(copy)
    assert cached(str(shards), cache, verify=True).path == copy
    assert files_of(copy) == FILES
    assert same(copy, shards)


def test_a_source_that_differs_from_its_manifest(tmp_path, cache):
    shards = write_shards(tmp_path / "shards")
    shard = shards / "shard-00002-of-00003.arrow"
    content = shard.read_bytes()
    shard.write_bytes(content[:-9] + b"x" + content[-8:])
    with pytest.raises(ShardError, match=r"shards/shard-00002-of-00003\.arrow: checksum differs from its manifest"):
        cached(str(shards), cache, verify=True)
    (copy,) = (path for path in cache.iterdir() if path.is_dir())
    assert "shard-00002-of-00003.arrow" not in files_of(copy)
    assert "manifest.json" not in files_of(copy)
    shard.write_bytes(content)
    assert same(cached(str(shards), cache, verify=True).path, shards)


def test_a_disk_without_room(shards, cache, monkeypatch):
    usage = namedtuple("Usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10_000_000, 9_990_000, 10_000))
    message = r"cache/\w{32}: 0\.00 GB free where 0\.00 GB of shards are to be copied; make room or set data\.cache_dir"
    with pytest.raises(ShardError, match=message):
        cached(str(shards), cache, verify=True)
    assert not list(cache.rglob("*.arrow*"))


def test_room_is_needed_for_what_is_missing_alone(shards, cache, monkeypatch, caplog):
    copy = cached(str(shards), cache, verify=True).path
    missing = copy / "shard-00001-of-00003.arrow"
    size = missing.stat().st_size
    missing.unlink()
    usage = namedtuple("Usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10_000_000, 10_000_000 - size, size))
    caplog.set_level("INFO")
    cached(str(shards), cache, verify=True)
    assert missing.stat().st_size == size
    assert caplog.messages == [f"copying 1 shard(s), {size / 1e9:.2f} GB, from {shards} to {copy}"]


def test_a_disk_that_others_fill_meanwhile(shards, cache, monkeypatch):
    def full(path):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(shard_cache, "sync", full)
        with pytest.raises(ShardError, match=r"cache/\w{32}: can't be used as a cache \(No space left on device\)"):
            cached(str(shards), cache, verify=True)
    assert same(cached(str(shards), cache, verify=True).path, shards)


def test_sources_that_can_not_be_read(tmp_path, cache, shards):
    for source, message in {
        str(tmp_path / "nowhere"): r"nowhere/manifest\.json: can't be read",
        "memory://no-such-bucket": r"^memory://no-such-bucket/manifest\.json: can't be read",
        "telepathy://shards": r"^telepathy://shards: can't be read \(Protocol not known: telepathy",
    }.items():
        with pytest.raises(ShardError, match=message):
            cached(source, cache, verify=True)
    lacking = tmp_path / "lacking"
    shutil.copytree(shards, lacking)
    (lacking / "shard-00000-of-00003.arrow").unlink()
    with pytest.raises(ShardError, match=r"lacking/shard-00000-of-00003\.arrow: can't be read"):
        cached(str(lacking), cache, verify=True)


@pytest.mark.parametrize("failing", ["manifest.json", "shard-00001-of-00003.arrow"])
def test_a_source_that_fails_for_a_while_is_no_mistake_and_read_by_the_next_start(shards, cache, monkeypatch, failing):
    """A network does so; what has been copied by then stays."""
    with monkeypatch.context() as patch:
        read = LocalFileSystem._open

        def fail(files, path, *arguments, **options):
            if path.endswith(failing):
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            return read(files, path, *arguments, **options)

        patch.setattr(LocalFileSystem, "_open", fail)
        with pytest.raises(UnavailableError, match=rf"/{failing}: can't be read now \(.*Input/output error"):
            cached(str(shards), cache, verify=True)
    assert same(cached(str(shards), cache, verify=True).path, shards)


class Shelf(BaseHTTPRequestHandler):
    """Files of a folder by HTTP, or an error."""

    def do_GET(self):
        content = (self.server.folder / self.path.lstrip("/")).read_bytes()
        self.server.asked.append(self.headers["Authorization"])
        is_shard = self.path.endswith(".arrow")
        self.send_response(self.server.status if is_shard else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[:100] if is_shard and self.server.cuts else content)

    do_HEAD = do_GET

    def log_message(self, *_):
        pass


@pytest.fixture
def shelf(shards):
    with ThreadingHTTPServer(("127.0.0.1", 0), Shelf) as server:
        server.folder, server.status, server.cuts, server.asked = shards, 200, False, []
        server.url = f"http://ada:hunter2@127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize(("status", "cuts", "error"), [
    (503, False, UnavailableError), (429, False, UnavailableError), (200, True, UnavailableError),
    (403, False, ShardError), (410, False, ShardError),
])  # fmt: skip
def test_what_passes_on_a_network_is_told_from_what_lasts(shelf, cache, shards, status, cuts, error):
    """And who asks gives a password, which nobody reads."""
    shelf.status, shelf.cuts = status, cuts
    with pytest.raises(error, match=r"^http://127\.0\.0\.1:\d+/(validation-)?shard-\S+: can't be read") as caught:
        cached(shelf.url, cache, verify=True)
    assert "hunter2" not in str(caught.value)
    assert "hunter2" in base64.b64decode(shelf.asked[0].removeprefix("Basic ")).decode()
    shelf.status, shelf.cuts = 200, False
    assert same(cached(shelf.url, cache, verify=True).path, shards)


def test_a_folder_where_a_shard_belongs_is_named(shards, cache):
    name = "shard-00001-of-00003.arrow"
    copy = cached(str(shards), cache, verify=True).path
    (copy / name).unlink()
    (copy / name / "folder").mkdir(parents=True)
    with pytest.raises(ShardError, match=re.escape(f"{copy / name}: can't be used as a cache (Is a directory)")):
        cached(str(shards), cache, verify=True)


def test_a_cache_that_can_not_be_written(shards, tmp_path):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ShardError, match=r"/file: can't be used as a cache \(File exists\)"):
        cached(str(shards), file, verify=True)


class OfACloudError(Exception):
    """What a library for a cloud's storage raises: the server's answer is its code."""

    code = 404


@pytest.mark.parametrize(("failure", "error", "told"), [
    (PermissionError(errno.EACCES, "Permission denied"), ShardError, "[Errno 13] Permission denied"),
    (OfACloudError("no such bucket"), ShardError, "no such bucket"),
    (OSError("reset\nby peer"), UnavailableError, "reset"),
    (TimeoutError(), UnavailableError, "TimeoutError"),
])  # fmt: skip
def test_what_a_file_system_raises_is_told_in_a_line(shards, cache, monkeypatch, failure, error, told):
    def fail(*_):
        raise failure

    monkeypatch.setattr(LocalFileSystem, "cat_file", fail)
    with pytest.raises(error, match=re.escape(f"({told})")) as raised:
        cached(str(shards), cache, verify=True)
    assert "\n" not in str(raised.value)


def test_half_a_file_that_a_kill_left_takes_no_room_for_ever(shards, cache):
    copy = cached(str(shards), cache, verify=True).path
    (copy / f"{FILES[1]}.part").write_bytes(b"half")
    cached(str(shards), cache, verify=True)
    assert files_of(copy) == FILES


def test_a_manifest_that_is_no_text_is_damaged(tmp_path, cache):
    """As one that was compressed on its way."""
    shards = write_shards(tmp_path / "shards")
    (shards / "manifest.json").write_bytes(b"\x1f\x8b\x08")
    with pytest.raises(ShardError, match=r"shards/manifest\.json: not a shard manifest"):
        cached(str(shards), cache, verify=True)


def test_a_manifest_that_names_a_path(tmp_path, cache):
    shards = write_shards(tmp_path / "shards", train=(3,), validation=())
    manifest = Path(shards / "manifest.json")
    manifest.write_text(manifest.read_text().replace("shard-00000-of-00001.arrow", "../../outside"))
    with pytest.raises(ShardError, match="is not a plain file name"):
        cached(str(shards), cache, verify=True)
    assert not cache.exists()
