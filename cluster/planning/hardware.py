"""GPUs and the nodes they come in, as rows of data.

peak         dense 16-bit matrix products (bf16, on the V100 fp16), TFLOP/s, without sparsity: the makers' data sheets
float32      products in float32, TFLOP/s, data sheets; TF32 is not that, and torch takes it only when told to
memory       GiB
bandwidth    of that memory, GB/s, data sheets
gpus         of a node
bus          GB/s that a ring moves through each GPU within a node. NVIDIA: links times what NCCL counts for one of its
             generation (NCCL 2.27, src/graph/topo.h: 20 GB/s for NVLink 2 and 3, 20.6 for 4, 40 for 5; 12 for PCIe 3)
network      line rate of all adapters of a node for training, Gb/s
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace

from cluster.planning.sharding import Precision
from trainer.settings import ConfigError

_GIGABITS = 1e9 / 8  # bytes/s of one Gb/s
_GOODPUT = 0.96  # of the line rate: NCCL counts 12 GB/s for 100 Gb/s (src/graph/topo.h, NET_BW)


@dataclass(frozen=True)
class Node:
    """What GPUs are connected by.

    Attributes:
        gpus: of a node.
        bus: bytes/s through each GPU within a node.
        network: bytes/s in and out of a node, each way.
        source: where that is from.
    """

    gpus: int
    bus: float
    network: float
    source: str


@dataclass(frozen=True)
class Gpu:
    """A row of the table.

    Attributes:
        name: by which it is asked for.
        peak: FLOP/s in 16 bits.
        float32: FLOP/s in float32.
        memory: bytes.
        bandwidth: of the memory, bytes/s.
        node: it usually comes in.
        bfloat16: whether it has them.
    """

    name: str
    peak: float
    float32: float
    memory: float
    bandwidth: float
    node: Node
    bfloat16: bool = True

    def peak_in(self, precision: Precision) -> float:
        """FLOP/s of products in a precision."""
        return self.float32 if precision == "float32" else self.peak


def _node(gpus: int, bus: float, network: float, source: str) -> Node:
    return Node(gpus, bus * 1e9, network * _GIGABITS * _GOODPUT, source)


def _gpu(name: str, peak: float, float32: float, memory: float, bandwidth: float, node: Node) -> Gpu:
    return Gpu(name, peak * 1e12, float32 * 1e12, memory * 2**30, bandwidth * 1e9, node)


def _v100(name: str, memory: float, node: Node) -> Gpu:
    return replace(_gpu(name, 125, 15.7, memory, 900, node), bfloat16=False)


_DGX_1 = _node(8, 6 * 20, 4 * 100, "DGX-1: 4 x 100 Gb/s InfiniBand")
_DGX_2 = _node(16, 6 * 20, 8 * 100, "DGX-2: NVSwitch, 8 x 100 Gb/s InfiniBand")
_DGX_A100 = _node(8, 12 * 20, 8 * 200, "DGX A100: NVSwitch, 8 x 200 Gb/s InfiniBand")
_DGX_H100 = _node(8, 18 * 20.6, 8 * 400, "DGX H100 and H200: NVSwitch, 8 x 400 Gb/s InfiniBand")
_DGX_B200 = _node(8, 18 * 40, 8 * 400, "DGX B200: NVSwitch, 8 x 400 Gb/s InfiniBand")
_MI300X = _node(8, 7 * 48, 8 * 400, "MI300X platform: 7 xGMI links, 48 GB/s each in practice (ROCm blog); 8 x 400 Gb/s")
_PCIE_4 = _node(8, 24, 2 * 100, "a PCIe 4.0 server; 2 x 100 Gb/s assumed")

GPUS = {
    gpu.name: gpu
    for gpu in (
        _v100("v100-16", 16, _DGX_1),
        _v100("v100-32", 32, _DGX_2),
        _gpu("a100-40", 312, 19.5, 40, 1555, _DGX_A100),
        _gpu("a100-80", 312, 19.5, 80, 2039, _DGX_A100),
        _gpu("l40s", 362, 91.6, 45, 864, _PCIE_4),  # 48 GB, less what ECC takes
        _gpu("h100", 989, 67, 80, 3350, _DGX_H100),
        _gpu("h200", 989, 67, 141, 4800, _DGX_H100),
        _gpu("b200", 2250, 75, 180, 8000, _DGX_B200),
        _gpu("mi300x", 1307, 163.4, 192, 5300, _MI300X),
    )
}


def find_gpu(name: str) -> Gpu:
    """A GPU by its name.

    Raises:
        ConfigError: there is none of this name; the message has the nearest ones.
    """
    if name.lower() in GPUS:
        return GPUS[name.lower()]
    near = [gpu for gpu in GPUS if gpu.startswith(name.lower())] or difflib.get_close_matches(name.lower(), GPUS)
    raise ConfigError(
        f"no GPU called {name!r} here; " + (f"{' or '.join(near)}?" if near else f"known: {', '.join(GPUS)}")
    )


def change_node(gpu: Gpu, gpus: int | None, bus: float | None, network: float | None) -> Gpu:
    """The same GPU in another node; None keeps what is usual.

    Args:
        gpu: a row.
        gpus: of a node.
        bus: GB/s through each GPU within a node.
        network: line rate of a node, Gb/s.
    """
    usual = gpu.node
    if (gpus, bus, network) == (None, None, None):
        return gpu
    node = Node(
        gpus=usual.gpus if gpus is None else gpus,
        bus=usual.bus if bus is None else bus * 1e9,
        network=usual.network if network is None else network * _GIGABITS * _GOODPUT,
        source="as given",
    )
    return replace(gpu, node=node)
