"""Published runs of BERT-LARGE, and what this model says of them.

For each system one efficiency is fitted on its smallest run; the larger ones are then predicted with nothing else
changed. Both systems compute on padding too, send float16 gradients once a step after the last backward pass (DeepSpeed
0.1 without ZeRO; DistributedDataParallel with one bucket) and update with a fused LAMB.

Sources:
    DeepSpeed: "Microsoft DeepSpeed achieves the fastest BERT training time" (May 2020), table 1, 1 to 64 DGX-2;
        "BERT Pre-training" tutorial for batches (64k, then 32k), micro-batches (64, 8) and samples (403 M, 18 to 22 M).
        NCCL_TREE_THRESHOLD=0 in its launch script leaves NCCL with rings.
    NVIDIA: DeepLearningExamples, PyTorch/LanguageModeling/BERT/README.md, "Pre-training NVIDIA DGX A100" and
        "Multi-node Scaling", mixed precision. At 512 its loader sorts sequences into bins of 64 tokens, so that this
        efficiency counts work that was never done, and says nothing beside others.
    Networks: DGX-2 data sheet, 8 x 100 Gb/s. NVIDIA does not name its cluster: 8 x 200 Gb/s, as every node of Selene
        has (Narayanan et al., 2021, arXiv 2104.04473, section 5).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from cluster.planning.hardware import GPUS, Gpu
from cluster.planning.network import Algorithm
from cluster.planning.sharding import Sharding
from cluster.planning.throughput import Speed, Work, step_time
from trainer.metrics import training_flops
from trainer.model import BertConfig, parameter_count

_BERT_LARGE = BertConfig(vocab_size=30522)
_PLAIN = Sharding(stage=0, precision="fp16", accumulation=2, communication=2)
FUSED_LAMB_BYTES = 54  # of a parameter: gradient 4 for its norm; g, p, m, v, m, v, u; p, u for norms; p, u, p, half p


class Part(NamedTuple):
    """A stretch of a training with one sequence length."""

    samples: float
    tokens: int
    predictions: int
    batch: int  # samples of a step
    micro_batch: int


class Run(NamedTuple):
    """A published run."""

    gpus: int
    seconds: float
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class System:
    """Runs of one program on one kind of machine, the smallest first."""

    name: str
    gpu: Gpu
    algorithm: Algorithm | None
    runs: tuple[Run, ...]


class Comparison(NamedTuple):
    """A published run beside its prediction; the first of a system is what its efficiency was fitted on."""

    gpus: int
    published: float  # seconds
    predicted: float
    samples: float

    @property
    def error(self) -> float:
        """Of the predicted time, as a share of the published one."""
        return self.predicted / self.published - 1


def _step(gpus: int, rate: float, tokens: int, predictions: int, batch: int, micro_batch: int) -> Run:
    """A run that is published as samples/s: one step of it."""
    return Run(gpus, batch / rate, (Part(batch, tokens, predictions, batch, micro_batch),))


_DEEPSPEED = (Part(403e6, 128, 20, 65_536, 64), Part(20e6, 512, 77, 32_768, 8))
SYSTEMS = (
    System(
        "DeepSpeed, V100, 128 then 512 tokens",
        GPUS["v100-32"],
        "ring",
        tuple(Run(n, 60 * minutes, _DEEPSPEED) for n, minutes in ((16, 1993), (64, 521), (256, 144), (1024, 44))),
    ),
    System(
        "NVIDIA, A100, 128 tokens",
        GPUS["a100-80"],
        None,
        (
            _step(1, 580, 128, 20, 8_192, 256),
            *(
                _step(n, rate, 128, 20, 65_536, 256)
                for n, rate in ((8, 4553), (16, 9191), (32, 18119), (64, 35774), (128, 70555), (256, 138294))
            ),
        ),
    ),
    System(
        "NVIDIA, A100, 512 tokens in bins",
        GPUS["a100-80"],
        None,
        (
            _step(1, 210, 512, 77, 4_096, 32),
            *(
                _step(n, rate, 512, 77, 32_768, 32)
                for n, rate in ((8, 1648), (16, 3291), (32, 6464), (64, 13005), (128, 25570), (256, 49663))
            ),
        ),
    ),
)


def fit(system: System) -> float:
    """The efficiency with which the smallest run takes as long as it took."""
    smallest = system.runs[0]
    products, rest = _seconds(system, smallest, 1.0)
    return products / (smallest.seconds - rest)


def compare(system: System) -> list[Comparison]:
    """All runs of a system by the efficiency of its smallest."""
    efficiency = fit(system)
    return [
        Comparison(run.gpus, run.seconds, sum(_seconds(system, run, efficiency)), sum(p.samples for p in run.parts))
        for run in system.runs
    ]


def _seconds(system: System, run: Run, efficiency: float) -> tuple[float, float]:
    """Of products, and of everything else."""
    speed = Speed(system.gpu, efficiency, algorithm=system.algorithm)
    products = rest = 0.0
    for part in run.parts:
        time = step_time(_work(part, run.gpus), speed, _PLAIN, run.gpus)
        steps = part.samples / part.batch
        products += steps * time.compute
        rest += steps * (time.total - time.compute)
    return products, rest


def _work(part: Part, gpus: int) -> Work:
    return Work(
        flops=training_flops(_BERT_LARGE, torch.tensor([part.tokens]), part.predictions),
        micro_batch=part.micro_batch,
        accumulation=part.batch / gpus / part.micro_batch,
        parameters=parameter_count(_BERT_LARGE),
        update_bytes=FUSED_LAMB_BYTES,
    )
