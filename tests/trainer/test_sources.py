"""What a stream reads: several directories' orders and shares, and segments that a shard may not point elsewhere."""

import numpy as np
import pytest

from preprocessing.schema import Pairs, ShardDirectory, ShardError
from tests.trainer.shard_factory import write_shards
from trainer import sources
from trainer.sources import Source, open_sources, read_segments


@pytest.fixture(scope="module")
def shard(tmp_path_factory):
    directory = ShardDirectory(write_shards(tmp_path_factory.mktemp("data") / "shards", train=(3,), validation=()))
    return directory.shard(directory.manifest.shards[0])


def a_pair(**changes):
    """The first two tokens of the first document and the first one of the second, but for some changes."""
    fields = {"row": 0, "a_begin": 0, "a_end": 2, "b_row": 1, "b_begin": 0, "b_end": 1, "is_next": 0}
    return Pairs(**{name: np.array([value]) for name, value in {**fields, **changes}.items()})


def test_both_segments_are_read_where_they_lie(shard):
    [(a, b)] = read_segments(shard, a_pair(), 32)
    assert a.tolist() == shard.document(0)[:2].tolist()
    assert b.tolist() == shard.document(1)[:1].tolist()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"row": -1}, "names a row that the shard does not have"),
        ({"b_row": 3}, "names a row that the shard does not have"),
        ({"a_begin": -1}, "reaches beyond its document"),
        ({"a_begin": 2, "a_end": 1}, "reaches beyond its document"),
        ({"b_end": 10**6}, "reaches beyond its document"),
    ],
)
def test_a_pair_that_points_elsewhere_is_refused(shard, changes, message):
    with pytest.raises(ShardError, match=message):
        read_segments(shard, a_pair(**changes), 32)


@pytest.mark.parametrize(("changes", "length"), [({}, 6), ({"b_end": 0}, 4)], ids=["pair", "single"])
def test_a_pair_may_fill_the_sequence_with_its_special_tokens_and_no_more(shard, changes, length):
    """[CLS] a a [SEP] b [SEP], or [CLS] a a [SEP]."""
    assert len(read_segments(shard, a_pair(**changes), length)) == 1
    with pytest.raises(ShardError, match=f"a pair of more than {length - 1} tokens in the column for {length - 1}"):
        read_segments(shard, a_pair(**changes), length - 1)


def in_order(source):
    """(shard, pair) of each place of the first epoch."""
    return list(zip(*(numbers.tolist() for numbers in source.order.locate(np.arange(source.order.size))), strict=True))


def test_directories_share_the_bytes_of_a_group_by_weight(tmp_path):
    directories = [ShardDirectory(write_shards(tmp_path / str(i), train=(8,) * 4, seed=i)) for i in range(2)]
    a_shard = max(entry.bytes for directory in directories for entry in directory.manifest.shards)
    sources, _ = open_sources(directories, "train", 32, 1, (3.0, 1.0), 4 * a_shard)
    heavy, light = ([shard for shard, _ in in_order(source)] for source in sources)  # 24 pairs a shard
    assert [len(set(group)) for group in (heavy[:24], heavy[:72], light[:24])] == [3, 3, 1]


def test_directories_have_orders_of_their_own(shards):
    sources, _ = open_sources([ShardDirectory(shards)] * 2, "train", 32, 1, (1.0, 1.0), 1 << 30)
    first, second = map(in_order, sources)
    assert first != second


def test_of_many_shards_only_some_are_mapped_at_a_time(tmp_path, monkeypatch):
    directory = ShardDirectory(write_shards(tmp_path / "shards", train=(3, 2, 4), validation=()))
    monkeypatch.setattr(sources, "_MAPPED", 2)
    source = Source(directory, "train", 32, (1,), 1 << 30)
    documents = [source.shard(number).document(0).tolist() for number in (0, 1, 2, 0, 2, 1)]
    assert documents[:3] == [documents[3], documents[5], documents[4]]
    assert len(source._shards) == 2
