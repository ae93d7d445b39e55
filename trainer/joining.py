"""A rank finds its device and the other ranks, by DeepSpeed, which is made ready for all of this process."""

from __future__ import annotations

import importlib
import logging
import os
import socket
import threading
import warnings
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from trainer.allocator import bound_kernel_caches, keep_freed_memory
from trainer.determinism import use_deterministic_kernels
from trainer.gradients import scale_down, total_norm
from trainer.lean_imports import without
from trainer.settings import ConfigError
from trainer.world import World

with without("mlflow"):  # see trainer.engine
    import deepspeed
    from deepspeed.accelerator import get_accelerator

_log = logging.getLogger("pretrain")

_FROM_LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# What a launcher says in numbers, and the least and the most of each.
_NUMBERS = {
    **dict.fromkeys(("RANK", "LOCAL_RANK"), (0, 2**31 - 1)),
    **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_SIZE"), (1, 2**31 - 1)),
    "MASTER_PORT": (0, 65535),
}
_TOLD_AFTER = 60.0  # seconds that the first rank waits for the others without a word
_AFTER_A_HANG = 300  # seconds
_groups: Any = torch.distributed.distributed_c10d
_backend: Any = importlib.import_module("deepspeed.comm.torch")  # deepspeed.comm.torch is torch itself
_bf16_optimizer: Any = importlib.import_module("deepspeed.runtime.bf16_optimizer")
_cuda: Any = importlib.import_module("deepspeed.accelerator.cuda_accelerator")


class RanksApartError(RuntimeError):
    """The ranks did not come together. The message says what to do."""


class NoDeviceError(RuntimeError):
    """A rank does not find the device that it is to train on. The message says what to do."""


def check_launcher(environment: Mapping[str, str]) -> None:
    """See that the variables of a launcher, such as a script of the user's, are numbers that can be; some may be none.

    Raises:
        ConfigError: one is not.
    """
    for name, (least, most) in _NUMBERS.items():
        found = environment.get(name, str(least))
        if not (found.isdecimal() and least <= int(found) <= most):
            raise ConfigError(f"{name} is {found!r}, which a launcher sets to a number from {least} to {most}")
    size = int(environment.get("WORLD_SIZE", 2**31))
    if size <= (rank := int(environment.get("RANK", "0"))):
        raise ConfigError(f"RANK is {rank}, but WORLD_SIZE {size}: ranks count from 0")


def join_world(threads: int, hang_seconds: int = 0) -> World:
    """Join the process group that the launcher's environment describes and fix the CPU threads of this rank.

    Args:
        threads: CPU threads; 0 divides the machine's cores by the ranks on it, unless OMP_NUM_THREADS says otherwise.
        hang_seconds: when a rank that hangs ends by itself; the others wait longer for it. 0: as long as torch has it.

    Raises:
        ConfigError: there is no launcher, or torch lacks the kind of device that was asked for.
        NoDeviceError: CUDA does not start, or there are fewer GPUs than ranks.
        RanksApartError: not all ranks came, or another program on this machine has the port of the process group.
    """
    if missing := [name for name in _FROM_LAUNCHER if not os.environ.get(name)]:
        raise ConfigError(
            f"{missing[0]} is not set, as a launcher would: give `deepspeed --num_accelerators RANKS` or `torchrun "
            "--nproc-per-node RANKS` in place of `python`"
        )
    _change_deepspeed()
    local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE") or os.environ["WORLD_SIZE"])
    cores = len(os.sched_getaffinity(0))
    told = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]  # of the outermost of nested regions
    torch.set_num_threads(threads or (int(told) if told.isdecimal() else 0) or max(1, cores // local_ranks))
    if device_kind().type == "cpu":
        keep_freed_memory()
        bound_kernel_caches()
    _take_device(int(os.environ["LOCAL_RANK"]))
    _meet()
    if hang_seconds:
        _wait_in_collectives(timedelta(seconds=hang_seconds + _AFTER_A_HANG))
    device = torch.device(get_accelerator().current_device_name())
    use_deterministic_kernels(True, device)  # an engine's recipe may turn it off
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    # NCCL does one thing after the other in a group: in the common one a sum would wait for gradients and weights.
    group = torch.distributed.new_group() if size > 1 and device.type == "cuda" else None
    return World(rank, size, device, for_sums=group)


def _change_deepspeed() -> None:
    """Have DeepSpeed compute by our functions what is slow or wrong in its own, and leave out what is no news.

    That is which optimizer is ours, which updates are left out, what it calls by an old name, and, for bf16 under ZeRO
    1, a dozen lines of memory in use.
    """
    _backend.build_shm_op = lambda: None  # compiled at the first start, for inference alone
    # By which ZeRO would ask what memory is free, and for it read CUDA_VISIBLE_DEVICES as numbers: a part of a GPU, by
    # MIG, has none, and the start would end. Without it torch tells.
    _cuda.pynvml = None
    # For bf16 under ZeRO 1, where its own go through gradients one by one, and on CPUs are 2e-4 off. The norm is looked
    # at several times, on the CPU, so that a GPU is waited for once.
    _bf16_optimizer.get_global_norm_of_tensors = lambda input_tensors, **_: total_norm(input_tensors).cpu()
    _bf16_optimizer.clip_tensors_by_global_norm = lambda input_tensors, max_norm, global_norm, **_: scale_down(
        input_tensors, max_norm, global_norm
    )
    _bf16_optimizer.see_memory_usage = lambda *_, **__: None
    log = logging.getLogger("DeepSpeed")
    log.setLevel(logging.WARNING)
    log.addFilter(lambda record: not any(words in record.getMessage() for words in ("untested optimizer", "OVERFLOW!")))
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")


def _take_device(local_rank: int) -> None:
    """Have this rank compute on a device of its own; DeepSpeed does so only with an engine.

    Raises:
        ConfigError: torch is built without CUDA, which DS_ACCELERATOR asks for.
        NoDeviceError: there is none for this rank, here and now.
    """
    kind = get_accelerator().device_name()
    if kind == "cuda" and not torch.backends.cuda.is_built():
        raise ConfigError(
            "DS_ACCELERATOR is cuda, for a GPU was asked for, and the torch that is installed is built without CUDA; "
            "install one with it, or ask for no GPU"
        )
    try:
        get_accelerator().set_device(local_rank)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise NoDeviceError(
            f"rank {os.environ['RANK']} on {socket.gethostname()}: no {kind} device {local_rank} ({reason}); see by "
            "nvidia-smi and `python -m cluster.doctor` what is there, or set DS_ACCELERATOR=cpu to train on the CPU"
        ) from error


def _meet() -> None:
    """Make the process group, once all ranks are there.

    Raises:
        RanksApartError: see join_world.
    """
    ranks, port = os.environ["WORLD_SIZE"], os.environ["MASTER_PORT"]
    place = f"{os.environ['MASTER_ADDR']}:{port}"
    waiting = threading.Timer(_TOLD_AFTER, _log.info, ("waiting for %s ranks at %s", ranks, place))
    waiting.daemon = True
    waiting.start()
    try:
        deepspeed.init_distributed(dist_backend=get_accelerator().communication_backend_name())
    except (torch.distributed.DistNetworkError, torch.distributed.DistStoreError) as error:
        if "EADDRINUSE" in str(error):
            raise RanksApartError(
                f"port {port} is taken, by another training on this machine perhaps; give another one: "
                "deepspeed --master_port N, or torchrun's --master-port"
            ) from None
        reason = str(error).partition("\n")[0][:200].rstrip(".")
        raise RanksApartError(
            f"{ranks} ranks did not come together at {place} ({reason}); start all of them, and see by `python -m "
            "cluster.doctor` whether every node reaches that; DEEPSPEED_TIMEOUT=MINUTES is more patient"
        ) from None
    finally:
        waiting.cancel()


def _wait_in_collectives(patience: timedelta) -> None:
    """Let ranks wait so long for one another in the common group, and in those that are made from now on.

    Torch has ten minutes of NCCL's. One that a slow storage holds up longer would be given up by the others, and one
    that hangs be killed with them before it has said where.
    """
    _groups.default_pg_timeout = _groups.default_pg_nccl_timeout = patience
    set_timeout = getattr(_groups, "set_timeout", None) or _groups._set_pg_timeout  # which is torch 2.11's
    set_timeout(patience)


def device_kind() -> torch.device:
    """What the ranks of this machine compute on, a CPU or CUDA."""
    return torch.device(get_accelerator().device_name())


def fp16_is_supported() -> bool:
    """Whether DeepSpeed trains in fp16 on this machine's devices; CPUs need AVX512-FP16 or AMX-FP16."""
    return bool(get_accelerator().is_fp16_supported())
