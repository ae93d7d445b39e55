"""What becomes of memory on a CPU that is no longer used, or hardly."""

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h

_KEPT_KERNELS = 256


def keep_freed_memory() -> None:
    """Have glibc use freed memory again instead of giving it back to Linux.

    By default much of a step's memory is returned at its end and asked for again in the next one, and Linux fills all
    of its pages with zeros before torch fills them again. The price is that a process stays as large as it once was;
    tensors of 32 MB and more, which leave holes, are returned as ever. Other C libraries are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, -1)  # never
        mallopt(_MMAP_THRESHOLD, 32 << 20)  # the most it takes


def bound_kernel_caches() -> None:
    """Have fewer kernels of oneDNN kept, which computes products in bfloat16; to be called before the first of them.

    Torch and oneDNN keep those of the last 1,024 shapes each, up to a megabyte a shape in all. Batches differ in their
    numbers of tokens, so every step has new shapes, and a process would grow for hundreds of steps. Within a step all
    layers share some dozens, 150 at the very most. Results do not depend on it. What the environment says stands.
    """
    for name in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        os.environ.setdefault(name, str(_KEPT_KERNELS))
