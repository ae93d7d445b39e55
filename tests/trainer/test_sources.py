"""What a stream reads: several directories' orders and shares."""

import numpy as np
import pytest

from preprocessing.schema import ShardDirectory, ShardError
from tests.trainer.shard_factory import write_shards
from trainer.sources import open_sources


def in_order(source):
    """(shard, pair) of each place of the first epoch."""
    return list(zip(*(numbers.tolist() for numbers in source.order.locate(np.arange(source.order.size))), strict=True))


def test_directories_share_the_bytes_of_a_group_by_weight(tmp_path):
    directories = [ShardDirectory(write_shards(tmp_path / str(i), train=(8,) * 4, seed=i)) for i in range(2)]
    a_shard = max(entry.bytes for directory in directories for entry in directory.manifest.shards)
    sources, _ = open_sources(directories, "train", 32, 1, [(1, (3.0, 1.0))], 4 * a_shard)
    heavy, light = ([shard for shard, _ in in_order(source)] for source in sources)  # 24 pairs a shard
    assert [len(set(group)) for group in (heavy[:24], heavy[:72], light[:24])] == [3, 3, 1]


def test_where_weights_change_on_the_way_they_share_them_by_what_is_read_of_each(tmp_path):
    """One size of groups for all of a stream: with another the order would begin anew."""
    directories = [ShardDirectory(write_shards(tmp_path / str(i), train=(8,) * 4, seed=i)) for i in range(2)]
    a_shard = max(entry.bytes for directory in directories for entry in directory.manifest.shards)
    stretches = [(10, (1.0, 1.0)), (30, (5.0, 1.0))]  # 5 and 25, 5 and 5
    sources, mixture = open_sources(directories, "train", 32, 1, stretches, 4 * a_shard)
    assert mixture.given(40) == [30, 10]
    heavy, light = ([shard for shard, _ in in_order(source)] for source in sources)
    assert [len(set(group)) for group in (heavy[:24], heavy[:72], light[:24])] == [3, 3, 1]


def test_where_nothing_is_held_out_it_is_told_of_how_many_documents_and_how_to_hold_some_out(tmp_path):
    """A fraction alone does not help shards of fewer than four."""
    few = ShardDirectory(write_shards(tmp_path / "few", train=(3,), validation=()))
    message = (
        "few: no pairs of length 32 are held out of its 3 documents; make shards of four documents or more with "
        "--validation-fraction$"
    )
    with pytest.raises(ShardError, match=message):
        open_sources([few], "validation", 32, 1, [(1, ())], 1 << 30)


def test_a_directory_without_weight_in_any_stretch_is_not_read(shards, tmp_path):
    empty = ShardDirectory(write_shards(tmp_path / "empty", train=(), seed=9))
    sources, _ = open_sources([empty, ShardDirectory(shards)], "train", 32, 1, [(5, (0.0, 1.0))], 1 << 30)
    assert [source.directory.path for source in sources] == [shards]
    with pytest.raises(ShardError, match="empty: the train part has no pairs of length 32"):
        open_sources([empty, ShardDirectory(shards)], "train", 32, 1, [(5, (0.0, 1.0)), (5, (0.1, 1.0))], 1 << 30)


def test_directories_have_orders_of_their_own(shards):
    sources, _ = open_sources([ShardDirectory(shards)] * 2, "train", 32, 1, [(1, (1.0, 1.0))], 1 << 30)
    first, second = map(in_order, sources)
    assert first != second
