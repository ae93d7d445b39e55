"""The doctor's look at how fast devices multiply."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from cluster.checkup import speed
from cluster.checkup.peers import check_speed
from cluster.checkup.speed import Speed, judge_speeds, measure_speeds


def gpus(*rates):
    return [Speed(f"GPU {number} of node1", True, rate * 1e12) for number, rate in enumerate(rates)]


def test_gpus_of_about_one_rate_are_well():
    found = judge_speeds(gpus(790.2, 752.0, 798.4, 730.0))
    assert (found.state, found.advice) == ("ok", "")
    assert found.found == "730 to 798 TFLOP/s, matrix products in bfloat16"


def test_one_gpu_is_as_fast_as_itself():
    assert judge_speeds(gpus(790.2)).found == "790 TFLOP/s, matrix products in bfloat16"


@pytest.mark.parametrize(("rates", "named"), [
    ((790, 800, 412, 780), "GPU 2 of node1 412, the median one 790"),
    ((500, 800, 412, 780, 790), "GPU 2 of node1 412, GPU 0 of node1 500, the median one 780"),
])  # fmt: skip
def test_gpus_that_all_others_would_wait_for_are_named_the_slowest_first(rates, named):
    found = judge_speeds(gpus(*rates))
    assert found.state == "warning"
    assert found.found == f"{named} TFLOP/s, matrix products in bfloat16"
    assert "nvidia-smi -q -d PERFORMANCE" in found.advice


def test_of_two_gpus_the_slower_one_is_found():
    assert judge_speeds(gpus(412, 800)).found.startswith("GPU 0 of node1 412, the median one 800 TFLOP/s")


def test_cpus_are_told_and_not_judged():
    found = judge_speeds([Speed("CPU of a", False, 0.4e12), Speed("CPU of b", False, 0.1e12)])
    assert found.state == "ok"
    assert found.found == "0.1 to 0.4 TFLOP/s, matrix products in float32, by a rank's CPU threads"


def test_a_gpu_that_can_not_compute_is_wrong_and_named_whatever_the_others_do():
    found = judge_speeds([*gpus(790), Speed("GPU 1 of node1", True, 0.0, "CUDA error: device-side assert")])
    assert (found.state, found.found) == ("wrong", "GPU 1 of node1: CUDA error: device-side assert")


@pytest.fixture
def eight_gpus(monkeypatch):
    """A node whose fourth GPU has no memory left."""

    def measure(device, dtype):
        assert dtype is torch.bfloat16
        if device.index == 3:
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate")
        return 7e14 + device.index

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    monkeypatch.setattr("torch.cuda.device", lambda number: nullcontext(number))
    monkeypatch.setattr(speed, "measure_ceiling", measure)


@pytest.mark.parametrize(("ranks", "shares"), [
    (1, [[0, 1, 2, 3, 4, 5, 6, 7]]),
    (3, [[0, 3, 6], [1, 4, 7], [2, 5]]),
    (8, [[0], [1], [2], [3], [4], [5], [6], [7]]),
])  # fmt: skip
def test_every_gpu_of_a_node_is_measured_by_one_of_its_ranks(eight_gpus, ranks, shares):
    found = [measure_speeds(rank, ranks, " of n") for rank in range(ranks)]
    assert [[each.device for each in own] for own in found] == [[f"GPU {i} of n" for i in share] for share in shares]
    (broken,) = (each for own in found for each in own if each.problem)
    assert broken == Speed("GPU 3 of n", True, 0.0, "CUDA out of memory")


def test_a_rank_that_sees_its_own_gpu_alone_measures_that(eight_gpus, monkeypatch):
    """As SLURM's --gpus-per-task has it."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    assert measure_speeds(5, 8, " of n") == [Speed("GPU of local rank 5 of n", True, 7e14)]


def test_a_cpu_is_measured_in_the_precision_that_all_have():
    (found,) = measure_speeds()
    assert (found.device, found.is_gpu) == ("CPU", False)
    assert found.rate > 1e9


def test_the_first_rank_tells_of_all(eight_gpus):
    hosts = ["a", "a", "b", "b"]
    own = [measure_speeds(rank % 2, 2, f" of {host}") for rank, host in enumerate(hosts)]
    told = []
    for rank in range(4):
        gathered = []
        world = SimpleNamespace(rank=rank, hosts=hosts, gather=lambda mine, to=gathered: to.append(mine) or own)
        told.append(list(check_speed(world)))
        assert gathered == [own[rank]]
    assert [len(each) for each in told] == [1, 0, 0, 0]
    assert told[0][0].found == "GPU 3 of a: CUDA out of memory, GPU 3 of b: CUDA out of memory"
