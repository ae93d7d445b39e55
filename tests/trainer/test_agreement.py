"""What all ranks must have, and find, alike."""

import functools
import shutil

from safetensors.torch import load_file, save_file

from preprocessing.schema import checksum_of
from tests.trainer.rank_tasks import run_pretrain_on_nodes_that_differ
from trainer.agreement import _is_seen


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
