"""How long collectives take: the model by which NCCL itself chooses between a ring and a tree (src/graph/tuning.cc).

time = latency + bytes / bandwidth. A ring passes every byte through every GPU, so its slowest link sets the pace, and
its latency grows with the number of GPUs. A tree's latency grows with the logarithm of the number of nodes, at half the
bandwidth and a little less. Constants are those of NCCL 2.8 for its "simple" protocol, which large messages take.
"""

from __future__ import annotations

import math
from typing import Literal

from cluster.planning.hardware import Node

Algorithm = Literal["ring", "tree"]

_BASE = 8.4e-6  # seconds, before the first step of a ring
_RING_HOP = {"node": 3.4e-6, "network": 9.6e-6}
_TREE_HOP = {"node": 28e-6, "network": 50e-6}  # with the time of a first chunk
_PLATEAU = 1.9  # latency of a ring over several nodes when messages are large
_PLATEAU_BYTES = 65536 / 16  # for each rank
_TREE_SHARE = 0.9  # of a ring's bandwidth
_TREE_CEILING = 80e9  # bytes/s through a node's GPUs, beyond two nodes


def all_reduce(size: float, ranks: int, node: Node, algorithm: Algorithm | None = None) -> float:
    """Seconds until the sum of a tensor is on every rank.

    Args:
        size: bytes of the tensor.
        ranks: GPUs, filling node after node.
        node: they are in.
        algorithm: None takes the faster one, as NCCL does.
    """
    if ranks == 1:
        return 0.0
    times = {"ring": 2 * _ring_half(size, ranks, node) - _BASE, "tree": _tree(size, ranks, node)}
    if algorithm is not None:
        return times[algorithm]
    return min(times.values())  # within a node that is the ring's


def all_gather(size: float, ranks: int, node: Node) -> float:
    """Seconds until every rank has all parts of a tensor of ``size`` bytes; a reduce-scatter takes as long."""
    return _ring_half(size, ranks, node) if ranks > 1 else 0.0


def _ring_half(size: float, ranks: int, node: Node) -> float:
    """One round trip of a ring: each rank sends all but its own part."""
    nodes = count_nodes(ranks, node)
    hops = (ranks - nodes) * _RING_HOP["node"] + (nodes - 1) * _RING_HOP["network"]
    if nodes > 1 and size >= ranks * _PLATEAU_BYTES:
        hops *= _PLATEAU
    return _BASE + hops + size * (ranks - 1) / ranks / _bandwidth(nodes, node)


def _tree(size: float, ranks: int, node: Node) -> float:
    """Up to the root and down again; within a node a chain."""
    nodes = count_nodes(ranks, node)
    hops = (math.ceil(ranks / nodes) - 1) * _TREE_HOP["node"] + math.ceil(math.log2(nodes)) * _TREE_HOP["network"]
    bandwidth = min(_TREE_SHARE * _bandwidth(nodes, node), _TREE_CEILING if nodes > 2 else math.inf)
    return 2 * hops + 2 * size / bandwidth


def _bandwidth(nodes: int, node: Node) -> float:
    """Bytes/s past the narrowest place: as many rings run side by side as a node has adapters."""
    return min(node.bus, node.network) if nodes > 1 else node.bus


def count_nodes(ranks: int, node: Node) -> int:
    """Nodes that as many ranks, one per GPU, take; the last one may not be full."""
    return math.ceil(ranks / node.gpus)
