"""What all ranks must have, and find, alike."""

import functools
import shutil
from types import SimpleNamespace

import pytest
from safetensors.torch import load_file, save_file

from preprocessing.schema import checksum_of
from preprocessing.storage_errors import UnavailableError
from tests.failing import REASON, fail_at
from tests.trainer.rank_tasks import run_pretrain_on_nodes_that_differ
from trainer import agreement
from trainer.agreement import _is_seen, check_is_shared
from trainer.loading import LoaderError
from trainer.run_directory import RunDirectory
from trainer.settings import ConfigError


def test_nodes_with_other_weights_to_begin_with_are_told_apart(call, tmp_path):
    """DeepSpeed would give all ranks the first one's, which are then not those that a rank was given."""
    call("train.max_steps=1", output=tmp_path / "other")
    export = tmp_path / "other" / "exports" / "step-000001"
    other = shutil.copytree(export, tmp_path / "others")
    save_file({n: t + 1 for n, t in load_file(other / "model.safetensors").items()}, other / "model.safetensors")
    apart = functools.partial(run_pretrain_on_nodes_that_differ, option="--init-from", of_the_last=other)
    codes, log = call(world=2, task=apart, **{"init-from": export})
    assert codes == [2, 2]
    assert "error: rank 1 was given other initial weights than rank 0: see that all nodes have the same files" in log


def test_what_another_node_has_written_is_waited_for(tmp_path, monkeypatch):
    """NFS remembers for a while that a file was not there, and the one that was."""
    written = iter([b"an earlier start's", b"this one's"])
    monkeypatch.setattr("time.sleep", lambda _: (tmp_path / "config.toml").write_bytes(next(written)))
    assert _is_seen(tmp_path / "config.toml", checksum_of(b"this one's"))
    assert next(written, None) is None


@pytest.fixture
def run(tmp_path, monkeypatch) -> RunDirectory:
    monkeypatch.setattr(agreement, "_PATIENCE", 0)
    (tmp_path / "config.toml").write_bytes(b"this one's")
    return RunDirectory(tmp_path)


def world_of(*others):
    """This rank after others, and what those have found."""
    return SimpleNamespace(gather=lambda mine: [*others, mine])


def test_a_folder_that_can_not_be_read_now_is_not_called_one_of_each_node_s_own(run, monkeypatch):
    check_is_shared(run, checksum_of(b"this one's"), world_of(None))
    fail_at(monkeypatch, run.config)
    told = rf"{run.config}: can't be read now \({REASON}\); give the same command again$"
    with pytest.raises(LoaderError, match=rf"^rank 1: {told}"):
        check_is_shared(run, checksum_of(b"this one's"), world_of(None))
    with pytest.raises(LoaderError, match=r"^rank 0: not now$"):
        check_is_shared(run, checksum_of(b"another's"), world_of(UnavailableError("not now")))


def test_a_folder_that_fails_for_a_moment_is_waited_for(run, monkeypatch):
    monkeypatch.setattr(agreement, "_PATIENCE", 60)
    monkeypatch.setattr("time.sleep", lambda _: None)
    fail_at(monkeypatch, run.config, opened=1)
    check_is_shared(run, checksum_of(b"this one's"), world_of(None))


@pytest.mark.parametrize("is_there", [True, False])
def test_hosts_with_a_folder_of_their_own_are_named(run, monkeypatch, is_there):
    monkeypatch.setattr("socket.gethostname", lambda: "node2")
    if not is_there:
        run.config.unlink()
    with pytest.raises(ConfigError, match=rf"^{run.path}: node1, node2 can't read what the first rank wrote there; "):
        check_is_shared(run, checksum_of(b"another's"), world_of(None, "node1", "node1"))
