"""What becomes of freed memory on a CPU."""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h


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
