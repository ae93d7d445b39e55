"""A stand-in for CUDA's libraries, with which the host's part of a GPU's program runs on a machine without a GPU.

torch believes in one H100, whose kernels do nothing and whose memory reads as zeros. Everything else is real: torch's
CUDA code and its checks, what torch.compile and triton build, DeepSpeed, the trainer. So a program shows whether it
comes to its end, and what its host has to do; what it computes is nothing.

    python benchmarks/cuda_stand_in benchmarks/gpu_pretrain.py --shards shards/ --output /tmp/nothing --size demo ...

Needs a C compiler, nm, and torch as the package index has it for Linux, which brings CUDA 13's headers.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import torch

HERE = Path(__file__).parent
SOURCES = ("runtime.c", "driver.c", "libraries.c")
LIBRARY = "libcuda.so.1"  # the driver's name, by which torch and triton ask for it; the others' functions are in it too
_NOT_PERMITTED = 35  # CUPTI_ERROR_INSUFFICIENT_PRIVILEGES
_STOOD_IN_FOR = re.compile(r"(?:__cuda|cuda[A-Z]|cu[A-Z]|cublas|nccl|cupti)\w+")


class Counts(NamedTuple):
    """What a program has asked of the device so far.

    Attributes:
        launches: of kernels, products of cuBLAS among them.
        waits: of the host, for all that was asked before, or for some of it.
        idle: seconds from the end of a wait that leaves nothing to do, on any stream, to the next launch.
    """

    launches: int
    waits: int
    idle: float

    def since(self, before: Counts) -> Counts:
        """What came after ``before``."""
        return Counts(self.launches - before.launches, self.waits - before.waits, self.idle - before.idle)


def why_not() -> str:
    """Why there can be no stand-in on this machine; empty where there can."""
    if torch.cuda.is_available():
        return "there is a GPU"
    if (torch.version.cuda or "").partition(".")[0] != "13":
        return f"torch {torch.__version__} is not built for CUDA 13"
    if not importlib.util.find_spec("triton"):
        return "triton is not installed"
    missing = [path for path in _headers() if not path.is_dir()]
    return f"{missing[0]}: no CUDA headers" if missing else ""


def build(folder: Path) -> dict[str, str]:
    """Build the stand-in.

    Returns:
        What a program's environment needs beside this process's own, to have it.

    Raises:
        RuntimeError: it can't be built here.
    """
    if reason := why_not():
        raise RuntimeError(f"no stand-in for CUDA: {reason}")
    others = folder / "others.c"
    others.write_text("".join(map(_stub, _wanted())), encoding="utf-8")
    includes = [f"-I{path}" for path in _headers()]
    sources = [*(HERE / source for source in SOURCES), others]
    output = [f"-Wl,-soname,{LIBRARY}", "-o", folder / LIBRARY]
    _run(["gcc", "-shared", "-fPIC", "-O1", "-w", *includes, *sources, *output, "-ldl"])
    (folder / "libcuda.so").symlink_to(LIBRARY)  # triton's own module is linked with it
    return {
        "LD_PRELOAD": str(folder / LIBRARY),
        "TRITON_LIBCUDA_PATH": str(folder),
        "TRITON_CACHE_DIR": str(folder / "triton"),  # that module again
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "PYTHONPATH": os.pathsep.join([str(HERE / "site"), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "DS_ACCELERATOR": "cuda",
    }


def counts() -> Counts:
    """Of this process, which has the stand-in."""
    launches, waits, idle = ctypes.c_long(), ctypes.c_long(), ctypes.c_double()
    ctypes.CDLL(LIBRARY).stand_in_counts(ctypes.byref(launches), ctypes.byref(waits), ctypes.byref(idle))
    return Counts(launches.value, waits.value, idle.value)


def _headers() -> list[Path]:
    """Of the CUDA that torch is built for; triton has those that they include from CUDA's compiler."""
    return [Path(torch.__file__).parents[1] / "nvidia" / "cu13" / "include", _triton() / "include"]


def _triton() -> Path:
    """What triton has for CUDA."""
    import triton  # not every torch brings it

    return Path(triton.__file__).parent / "backends" / "nvidia"


def _stub(name: str) -> str:
    """A function that does nothing and succeeds; weak, so that what SOURCES have takes its place.

    CUPTI, which records kernels, would look for a real driver: it isn't permitted to.
    """
    return f"__attribute__((weak)) int {name}(void) {{ return {_NOT_PERMITTED if name.startswith('cupti') else 0}; }}\n"


def _wanted() -> list[str]:
    """All functions of CUDA's that torch and triton call."""
    libraries = sorted((Path(torch.__file__).parent / "lib").glob("*.so"))
    called = _run(["nm", "--dynamic", "--format=just-symbols", "--undefined-only", *libraries])
    called += (_triton() / "driver.c").read_text(encoding="utf-8")
    return sorted({name for name in re.findall(r"\w+", called) if _STOOD_IN_FOR.fullmatch(name)})


def _run(command: list[object]) -> str:
    try:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    except FileNotFoundError as error:
        raise RuntimeError(f"no stand-in for CUDA: {error.filename} is not installed") from error
    if done.returncode:
        raise RuntimeError(f"no stand-in for CUDA: {' '.join(done.args)}: {done.stderr}")
    return done.stdout
