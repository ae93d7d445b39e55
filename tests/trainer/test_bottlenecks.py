"""What a training waits for, and when that is told."""

import re
from types import SimpleNamespace

import pytest

from trainer import bottlenecks
from trainer.bottlenecks import Bottlenecks, Pace, slow_ranks, waiting_ranks


def paces(forwards=(1.0,) * 4, waits=(0.0,) * 4):
    return [Pace(f"node{rank // 2}", *pace) for rank, pace in enumerate(zip(forwards, waits, strict=True))]


@pytest.mark.parametrize(("forwards", "expected"), [
    ((1.0, 1.05, 0.9, 1.1), set()),
    ((1.0, 1.0, 1.0, 1.19), set()),
    ((1.0, 1.0, 1.0, 1.21), {3}),
    ((1.3, 1.0, 1.0, 1.25), {0, 3}),
    ((1.0, 1.3, 1.3, 1.3), set()),  # the median rank is as slow, and nobody waits for more
    ((0.5, 1.0, 1.0, 1.0), set()),  # one that is fast
])  # fmt: skip
def test_a_rank_is_slow_where_its_forward_passes_take_longer_than_the_median_ranks(forwards, expected):
    assert slow_ranks(paces(forwards), set()) == expected


def test_of_two_ranks_the_slower_one_is_found():
    two = [Pace("node0", 1.5, 0.0), Pace("node1", 1.0, 0.3)]
    assert slow_ranks(two, set()) == {0}
    assert waiting_ranks(two, set()) == {1}


@pytest.mark.parametrize(("waits", "expected"), [
    ((0.0, 0.04, 0.0, 0.01), set()),
    ((0.0, 0.0, 0.049, 0.0), set()),
    ((0.0, 0.0, 0.051, 0.0), {2}),
    ((0.5, 0.5, 0.52, 0.5), set()),  # all wait for the same storage
])  # fmt: skip
def test_a_rank_waits_for_its_data_where_the_median_rank_does_not(waits, expected):
    assert waiting_ranks(paces(waits=waits), set()) == expected


def test_one_that_was_slow_is_so_until_it_is_nearly_as_fast_as_the_others():
    assert slow_ranks(paces((1.0, 1.0, 1.0, 1.15)), {3}) == {3}
    assert slow_ranks(paces((1.0, 1.0, 1.0, 1.09)), {3}) == set()
    assert waiting_ranks(paces(waits=(0.0, 0.0, 0.03, 0.0)), {2}) == {2}
    assert waiting_ranks(paces(waits=(0.0, 0.0, 0.02, 0.0)), {2}) == set()


@pytest.fixture
def told(monkeypatch):
    """What a rank that is as fast as given says after three steps, beside five others."""
    monkeypatch.setattr(bottlenecks, "_STEPS", 3)
    monkeypatch.setattr("socket.gethostname", lambda: "node9")
    others = [Pace("node0", 0.001, 0.0)] * 5
    world = SimpleNamespace(gather=lambda mine: [*others, mine])
    compared = Bottlenecks(world)

    def run(*steps):
        first, second, last = [compared.after_step(*step, seconds=1.0, tokens=100) for step in steps]
        assert first == second == []
        return last

    return run


def test_what_is_slow_is_told_once_and_again_when_it_was_well_meanwhile(told):
    fast, slow = (0.1, 0.0), (0.15, 0.0)
    assert told(fast, fast, fast) == []
    assert told(slow, slow, slow) == [
        "all ranks wait for a slow one: its forward passes take longer than the median rank's: rank 5 on node9 1.50 "
        "times as long; `python -m cluster.doctor` looks at a node"
    ]
    assert told(slow, slow, slow) == []
    assert told(*[(0.115, 0.0)] * 3) == told(slow, slow, slow) == []
    assert told(fast, fast, fast) == []
    assert len(told(slow, slow, slow)) == 1


def test_a_wait_for_data_is_told_once_and_again_when_there_was_none_meanwhile(told):
    ready, waiting = [(0.1, 0.0)] * 3, [(0.1, 0.2)] * 3
    assert [len(told(*steps)) for steps in (waiting, waiting, [(0.1, 0.03)] * 3, waiting, ready, waiting)] == [
        1, 0, 0, 0, 0, 1,
    ]  # fmt: skip


def test_another_one_that_becomes_slow_is_told_beside_the_first(monkeypatch):
    monkeypatch.setattr(bottlenecks, "_STEPS", 1)
    given = iter([
        paces((1.0, 1.0, 1.0, 1.5)), paces((1.3, 1.0, 1.0, 1.5)), paces(waits=(0.0, 0.0, 0.0, 0.3)),
        paces(waits=(0.0, 0.2, 0.0, 0.3)),
    ])  # fmt: skip
    compared = Bottlenecks(SimpleNamespace(gather=lambda _: next(given)))
    told = [line for _ in range(4) for line in compared.after_step(1.0, 0.0, 2.0, 100)]
    assert [re.findall(r"rank (\d) on", line) for line in told] == [["3"], ["3", "0"], ["3"], ["3", "1"]]


def test_of_two_ranks_the_one_that_waits_less_is_the_measure(monkeypatch):
    monkeypatch.setattr(bottlenecks, "_STEPS", 1)
    two = [Pace("node0", 1.0, 0.30), Pace("node1", 1.0, 0.09)]
    (told,) = Bottlenecks(SimpleNamespace(gather=lambda _: two)).after_step(1.0, 0.3, 1.0, 100)
    assert "rank 0 on node0 30% of its time, the median rank 9%; more" in told


def test_a_pace_is_that_of_the_median_step(told):
    assert len(told((0.1, 0.0), (0.15, 0.0), (0.15, 0.0))) == 1


def test_a_single_long_step_is_nothing_but_waits_add_up(told):
    """As a loader's do, which waits long in one step of four."""
    assert told((0.1, 0.0), (9.0, 0.0), (0.1, 0.0)) == []
    assert told((0.1, 0.0), (0.1, 0.6), (0.1, 0.0)) == [
        "all ranks wait for one that waits for its data: rank 5 on node9 20% of its time, the median rank 0%; more "
        "data.workers help where cores are free, data.cache_dir where storage is slow"
    ]


def test_of_many_the_slowest_are_named():
    fast, slow = [Pace("node0", 1.0, 0.0)] * 8, [Pace("node1", 2.0 + rank / 4, 0.0) for rank in range(6)]
    found = slow_ranks([*fast, *slow], set())
    line = bottlenecks._tell_of_slow([*fast, *slow], found)
    assert "rank 13 on node1 3.25 times as long, rank 12 on node1 3.00" in line
    assert "rank 10 on node1 2.50 times as long and 2 more;" in line
    assert "rank 9 " not in line


def test_one_rank_has_nobody_to_wait_for_but_its_data(monkeypatch):
    """Told once, and again when half of it was gone meanwhile."""
    monkeypatch.setattr(bottlenecks, "_STEPS", 1)
    alone = Bottlenecks(SimpleNamespace(gather=lambda mine: [mine]))
    told = [alone.after_step(1.0, wait, 2.0, 100) for wait in (0.19, 0.5, 0.5, 0.11, 0.5, 0.09, 0.3)]
    advice = "more data.workers help where cores are free, data.cache_dir where storage is slow"
    expected = [f"{share} of the time goes by in waiting for data; {advice}" for share in ("25%", "15%")]
    assert told == [[], expected[:1], [], [], [], [], expected[1:]]


def test_a_step_whose_samples_are_all_skipped_has_no_tokens(told):
    assert told((0.0, 0.0), (0.0, 0.0), (0.0, 0.0)) == []


def test_a_gpu_that_waits_for_its_host_is_told_once_and_again_when_it_did_not_meanwhile(monkeypatch):
    monkeypatch.setattr(bottlenecks, "_STEPS", 3)
    alone = Bottlenecks(SimpleNamespace(gather=lambda mine: [mine]))
    told = []
    for asking in (0.85, 0.97, 0.97, 0.85, 0.97, 0.5, 0.95):
        steps = [alone.after_step(2.0, 0.0, 6.0, 100, asking=share) for share in (9.0, asking, 0.1)]
        told.append([line.partition(";")[0] for line in steps[-1]])
    of = "the GPU waits for its host, which takes {} of a forward pass to ask for it"
    assert told == [[], [of.format("97%")], [], [], [], [], [of.format("95%")]]


def test_of_two_ranks_the_host_that_asks_sooner_is_the_measure(monkeypatch):
    monkeypatch.setattr(bottlenecks, "_STEPS", 1)
    two = [Pace("node0", 1.0, 0.0, 0.99), Pace("node1", 1.0, 0.0, 0.3)]
    assert Bottlenecks(SimpleNamespace(gather=lambda _: two)).after_step(1.0, 0.0, 2.0, 100, asking=0.99) == []
