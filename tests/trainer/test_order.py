"""The order of a directory's pairs: what it depends on, among which shards it shuffles, and what it is for ever."""

import numpy as np
import pytest

from preprocessing.schema import ShardEntry
from trainer.order import PairOrder


def order_of(pairs=(40,), *, sizes=None, seed=1, length=32, group_bytes=1 << 30, duplicates=1):
    """Of shards with so many pairs each, of 100 bytes if nothing else is said."""
    entries = [
        ShardEntry(file=f"s{i}", split="train", rows=2, tokens=9, pairs={"32": n, "64": n}, bytes=size, blake2b="")
        for i, (n, size) in enumerate(zip(pairs, sizes or [100] * len(pairs), strict=True))
    ]
    return PairOrder(entries, length, (seed,), group_bytes, duplicates)


def epoch(order, number=0):
    """(shard, pair) of every pair of an epoch."""
    shards, pairs = order.locate(np.arange(number * order.size, (number + 1) * order.size))
    return list(zip(shards.tolist(), pairs.tolist(), strict=True))


def test_orders_are_fixed_for_ever():
    """Other values would mean that a run that goes on sees samples again and misses others."""
    assert epoch(order_of((4, 3, 3), group_bytes=200), 1) == [
        *((0, 2), (0, 1), (1, 1), (0, 3), (0, 0), (1, 0), (1, 2)),
        *((2, 1), (2, 0), (2, 2)),
    ]


def test_orders_with_a_shard_that_fills_a_group_are_fixed_for_ever_too():
    """The first of an epoch begins no group before its own, whose number the order of the others depends on."""
    assert epoch(order_of((3, 2, 2), sizes=(500, 100, 100), group_bytes=200)) == [
        *((0, 0), (0, 1), (0, 2)),
        *((1, 0), (2, 1), (1, 1), (2, 0)),
    ]


def test_orders_of_duplicates_are_fixed_for_ever_too():
    assert epoch(order_of((4, 3, 3), group_bytes=200, duplicates=2), 1) == [
        *((0, 2), (0, 1), (1, 1)), *((2, 1),),
        *((0, 3), (0, 0), (1, 0), (1, 2)), *((2, 0), (2, 2)),
    ]  # fmt: skip


@pytest.mark.parametrize("duplicates", [2, 3, 10, 256, 30_000])
def test_an_epoch_of_duplicates_has_each_pair_once(duplicates):
    order = order_of((50, 7, 0, 31), group_bytes=200, duplicates=duplicates)
    for number in (0, 3):
        found = epoch(order, number)
        assert sorted(found) == [(shard, pair) for shard, n in enumerate((50, 7, 0, 31)) for pair in range(n)]
    together, one_by_one = (
        order.locate(np.arange(2 * order.size)),
        map(order.locate, np.arange(2 * order.size)[:, None]),
    )
    assert np.concatenate(list(one_by_one), axis=1).tolist() == np.array(together).tolist()


def test_the_orders_of_a_hundred_directories_remember_their_epochs(monkeypatch):
    """They are all read in each step, and to shuffle thousands of shards of each once more would take longer."""
    shuffled, shuffle = [], PairOrder._shuffle
    monkeypatch.setattr(PairOrder, "_shuffle", lambda self, epoch: shuffled.append(epoch) or shuffle(self, epoch))
    orders = [order_of((5, 4), seed=seed) for seed in range(100)]
    for _ in range(3):
        for order in orders:
            order.locate(np.arange(12))
    assert sorted(shuffled) == [0] * 100 + [1] * 100


def test_each_tenth_of_an_epoch_reads_a_tenth_of_every_group_s_pairs():
    """So a run of half an epoch reads all texts of ten duplicates about five times."""
    order = order_of((100,) * 8, group_bytes=200, duplicates=10)
    found = np.array([shard for shard, _ in epoch(order)])
    for tenth in np.split(found, 10):
        of_groups = np.bincount(tenth, minlength=8)
        assert sorted(len(set(part)) for part in np.split(tenth, 4)) == [2] * 4, "one group after the other"
        assert of_groups.min() > 0
    halves = np.bincount(found[:400], minlength=8)
    assert halves.sum() == 400
    assert abs(halves - 50).max() <= 15


# A single shard leaves only the order of its pairs, and shards of one pair that are groups of their own only theirs.
@pytest.mark.parametrize("shape", [{"pairs": (40,)}, {"pairs": (1,) * 40, "group_bytes": 1}], ids=["pairs", "shards"])
def test_each_epoch_seed_and_length_has_an_order_of_its_own(shape):
    plain, of_seed, of_length = order_of(**shape), order_of(**shape, seed=2), order_of(**shape, length=64)
    orders = [epoch(plain), epoch(plain, 1), epoch(of_seed), epoch(of_length)]
    everything = sorted(orders[0])
    assert all(sorted(order) == everything for order in orders)
    assert len({tuple(order) for order in [everything, *orders]}) == 5


@pytest.mark.parametrize(("group_bytes", "shards"), [(1, 1), (199, 1), (200, 2), (250, 2), (300, 3)])
def test_pairs_are_shuffled_among_as_many_shards_as_fit(group_bytes, shards):
    found = epoch(order_of((50,) * 6, group_bytes=group_bytes))
    for first in range(0, 300, 50 * shards):
        group = found[first : first + 50 * shards]
        assert len({shard for shard, _ in group}) == shards
        assert len({shard for shard, _ in group[:25]}) == shards, "not mixed"


def test_a_shard_that_fills_a_group_is_mixed_with_no_other_wherever_it_comes():
    order = order_of((20,) * 5, sizes=(200, 50, 50, 50, 50), group_bytes=200)
    places = [[i for i, (shard, _) in enumerate(epoch(order, number)) if shard == 0] for number in range(10)]
    assert all(found == list(range(found[0], found[0] + 20)) for found in places)
    assert len({found[0] for found in places}) > 1


def test_each_group_has_an_order_of_its_own():
    pairs = [pair for _, pair in epoch(order_of((50, 50), group_bytes=1))]
    assert pairs[:50] != pairs[50:]
