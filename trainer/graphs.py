"""Micro-batches in CUDA graphs: the host asks for a forward or a backward pass at once, not for kernel after kernel.

A graph is recorded for each shape of a micro-batch, as torch.cuda.make_graphed_callables does. It reads from tensors of
its own, into which each micro-batch is copied, and computes in memory that all graphs share.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch._utils import _unflatten_dense_tensors
from torch.func import functional_call

from trainer.data import Batch
from trainer.model import Losses
from trainer.objective import Objective
from trainer.packing import put


class Recorder:
    """Records what a GPU is asked for, all of it in one memory."""

    def __init__(self) -> None:
        self._memory, self._stream = torch.cuda.MemPool(), _stream()

    def begin_anew(self, forget: Callable[[], None]) -> None:
        """In other memory; that of graphs that ``forget`` lets go of is given back, once a GPU has replayed them."""
        torch.cuda.synchronize()
        forget()
        self._memory = torch.cuda.MemPool()
        torch.cuda.empty_cache()

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Where what is to be recorded is computed once, in the same memory, so that none is needed beside it."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream), torch.cuda.use_mem_pool(self._memory):
            yield
        torch.cuda.current_stream().wait_stream(self._stream)

    def record(self, compute: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        """What ``compute`` gives, which is nothing yet, and what has the GPU compute it."""
        graph = torch.cuda.CUDAGraph()
        pool: Any = self._memory.id  # torch 2.11 takes no pool itself
        # Other threads may do as they like: that of NCCL looks at its events.
        with torch.cuda.graph(graph, pool=pool, stream=self._stream, capture_error_mode="thread_local"):
            result = compute()
        return result, graph.replay


@cache
def _stream() -> torch.cuda.Stream:
    """One for all recorders: for each that it meets cuBLAS keeps 34 MB to work in."""
    return torch.cuda.Stream()


@dataclass(frozen=True)
class _Recording:
    """Of one shape of a micro-batch.

    Attributes:
        batch: what the forward pass reads.
        losses: float32 [4], what it writes: those of Losses.
        upstream: float32 [4], their gradients, which the backward pass reads.
        gradients: all parameters' in a row, what it writes; all shapes have the same one.
        forward: replays.
        backward: likewise.
    """

    batch: Batch
    losses: Tensor
    upstream: Tensor
    gradients: Tensor
    forward: Callable[[], None]
    backward: Callable[[], None]


class InGraphs(nn.Module):
    """An objective whose forward and backward pass are a graph each, but where no gradients are wanted.

    All results are a replay's, to the last bit: a run that goes on records where one that did not stop only replays.

    Attributes:
        objective: whose parameters are read where they lie, and must stay there.
        recorded: how often a shape was, so far.
    """

    def __init__(self, objective: Objective) -> None:
        super().__init__()
        self.objective = objective
        self._trained = list(objective.parameters())  # a walk through all modules, for which a GPU would wait
        self.recorded = 0
        self._recordings: dict[Hashable, _Recording] = {}
        self._most_tokens = 0
        self._gradients: Tensor | None = None  # not before DeepSpeed has put the parameters into their precision
        self._recorder = Recorder()

    def forward(self, batch: Batch) -> Losses:
        """See Objective."""
        if not torch.is_grad_enabled():
            losses: Losses = self.objective(batch)
            return losses
        shape = (batch.tokens.longest, *(tensor.shape for tensor in batch.tensors))
        if shape not in self._recordings:
            self._make_room(len(batch.tokens.input_ids))
            self._recordings[shape] = self._record(batch)
        recording = self._recordings[shape]
        for own, given in zip(recording.batch.tensors, batch.tensors, strict=True):
            put(own, given)
        return Losses(*_Replay.apply(recording, *self._trained).unbind())

    def _make_room(self, tokens: int) -> None:
        """Record all again where there are more tokens than ever: what is larger does not fit between the rest."""
        if tokens > self._most_tokens:
            self._recorder.begin_anew(self._recordings.clear)
            self._most_tokens = tokens

    def _record(self, batch: Batch) -> _Recording:
        device = self.objective.device
        batch, upstream = batch.to(device).map(torch.clone), torch.zeros(len(Losses._fields), device=device)
        # Not the parameters themselves, which DeepSpeed's hooks tie to another stream than the recorder's.
        leaves: list[Tensor] = [nn.Parameter(parameter.detach()) for parameter in self._trained]
        named = dict(zip((name for name, _ in self.objective.named_parameters()), leaves, strict=True))
        if self._gradients is None:
            self._gradients = leaves[0].new_empty(sum(leaf.numel() for leaf in leaves))
        gradients = _unflatten_dense_tensors(self._gradients, leaves)

        def forward() -> Tensor:
            return torch.stack(functional_call(self.objective, named, (batch,)))

        def backward(losses: Tensor) -> None:
            torch._foreach_copy_(gradients, torch.autograd.grad(losses, leaves, upstream))

        devices = [device.index] if device.type == "cuda" else []
        # In this thread, whose memory it is, and with numbers that the replay will draw anew.
        with torch.autograd.set_multithreading_enabled(False), torch.random.fork_rng(devices):
            with self._recorder.rehearsal():  # compilers, cuBLAS and Triton prepare themselves, as none can in a graph
                backward(forward())
            losses, replay_forward = self._recorder.record(forward)
            _, replay_backward = self._recorder.record(lambda: backward(losses))
        self.recorded += 1
        return _Recording(batch, losses.detach(), upstream, self._gradients, replay_forward, replay_backward)


class _Replay(torch.autograd.Function):
    """The forward pass by one graph, and its gradients by another."""

    @staticmethod
    def forward(ctx: Any, recording: _Recording, *parameters: Tensor) -> Tensor:
        """The losses, until the next micro-batch."""
        recording.forward()
        ctx.recording, ctx.parameters = recording, parameters
        return recording.losses.detach()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """In memory of their own: DeepSpeed adds them up, or still sends them, while the next ones are computed."""
        recording, ctx.recording = ctx.recording, None  # the loss, and this with it, may be there when it is no more
        recording.upstream.copy_(upstream[0])
        recording.backward()
        return None, *_unflatten_dense_tensors(recording.gradients.clone(), ctx.parameters)
