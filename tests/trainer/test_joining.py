"""What a rank needs to join the others; tests/trainer/test_pretrain.py has ranks that don't come together."""

from types import SimpleNamespace

import pytest
import torch

from trainer import joining
from trainer.joining import join_world
from trainer.settings import ConfigError


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
