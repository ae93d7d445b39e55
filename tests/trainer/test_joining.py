"""What a rank needs to join the others; tests/trainer/test_pretrain.py has ranks that don't come together."""

from types import SimpleNamespace

import pytest
import torch

from tests.ranks import run_ranks
from tests.trainer.rank_tasks import free_memory_of_a_part_of_a_gpu, patience_in_collectives
from trainer import joining
from trainer.joining import check_launcher, join_world
from trainer.settings import ConfigError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RANK", ""),
        ("RANK", "2"),
        ("LOCAL_RANK", "x"),
        ("WORLD_SIZE", "0"),
        ("WORLD_SIZE", ""),
        ("MASTER_PORT", "70000"),
    ],
)
def test_variables_that_no_launcher_would_set_are_told(name, value):
    """A script that starts ranks by itself may have taken them from variables that are not set."""
    launched = {"RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "29500"}
    check_launcher(launched)
    check_launcher({})
    with pytest.raises(ConfigError, match=f"^{name} is '?{value}"):
        check_launcher({**launched, name: value})


def test_ranks_wait_longer_for_one_that_hangs_than_it_takes_to_say_so():
    """As torch has it they wait ten minutes, and thirty in groups that are made later, by gloo."""
    assert run_ranks(2, patience_in_collectives, 40) == [[340.0, 340.0]] * 2
    assert run_ranks(1, patience_in_collectives, 0) == [[600.0, 1800.0]]


@pytest.mark.parametrize("name", ["WORLD_SIZE", "LOCAL_RANK"])
def test_without_a_launcher_it_names_two(monkeypatch, name):
    for variable in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(variable, "0")
    monkeypatch.delenv(name)
    with pytest.raises(ConfigError, match=rf"^{name} is not set.*`deepspeed --num_accelerators RANKS` or `torchrun "):
        join_world(threads=1)


def test_a_gpu_for_a_torch_without_cuda_is_a_mistake(monkeypatch):
    """It would come again, at each restart."""
    monkeypatch.setattr(joining, "get_accelerator", lambda: SimpleNamespace(device_name=lambda: "cuda"))
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    with pytest.raises(ConfigError, match=r"^DS_ACCELERATOR is cuda, .* is built without CUDA; install one with it"):
        joining._take_device(0)


def test_a_part_of_a_gpu_is_a_device_though_its_name_is_no_number():
    """As CUDA_VISIBLE_DEVICES has it where a GPU is shared by MIG."""
    assert run_ranks(1, free_memory_of_a_part_of_a_gpu) == [7]
