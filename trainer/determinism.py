"""Results that do not depend on timing, on a GPU too."""

import os

import torch

_CUBLAS_MEMORY = "CUBLAS_WORKSPACE_CONFIG"


def arithmetic_of(device: torch.device) -> str:
    """By what it computes, on which last bits depend: a GPU's name, or the widest vectors that torch has on a CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"a CPU with {torch.backends.cpu.get_cpu_capability()}"


def use_deterministic_kernels(wanted: bool, device: torch.device) -> None:
    """Have torch take, for all of this process, kernels that give the same bits at every run; or whatever is fastest.

    On a CPU all of the trainer's do. On a GPU the exception is attention's backward pass, whose parts of a gradient are
    added up as they come unless one order is asked for; and torch.compile, which may choose among ways to add up by
    trying how long each takes. To be turned on before the first product of a process: cuBLAS's memory is chosen then,
    and torch wants it to be of a fixed size.

    An operation that has no such kernel raises RuntimeError from now on. The trainer's have, and eval's;
    torch.use_deterministic_algorithms lists those that have none.

    Args:
        wanted: false takes what is fastest.
        device: to compute on; for a CPU nothing is changed.
    """
    if device.type != "cuda":
        return
    if wanted and os.environ.get(_CUBLAS_MEMORY) not in (":4096:8", ":16:8"):  # the sizes that torch calls fixed
        os.environ[_CUBLAS_MEMORY] = ":4096:8"  # 32 MiB, which it takes on Hopper by itself
    # To fill memory before its first use helps to find a bug, and takes time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(wanted)
