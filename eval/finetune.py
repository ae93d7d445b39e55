"""The one loop that learns every task: a head with its encoder, or whatever else has losses.

B samples of a batch. A batch is cut into parts of so many tokens where memory is short; what is learned is the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from trainer.optim import OptimizerConfig, build_optimizer, parameter_groups
from trainer.philox import derive_key, derive_seed, permute
from trainer.schedule import ScheduleConfig, learning_rate

Precision = Literal["float32", "bf16"]
Optimizer = Literal["bert_adam", "adamw"]  # of trainer.optim
_INTERVAL = 60.0  # seconds between two looks at losses within an epoch, for which a GPU is waited for


@dataclass(frozen=True)
class Hyperparameters:
    """What is searched over.

    Attributes:
        learning_rate: the highest.
        epochs: passes over the training examples.
        batch_size: samples of a step.
        seed: of the order of samples, the head's weights and dropout.
    """

    learning_rate: float
    epochs: int
    batch_size: int
    seed: int


@dataclass(frozen=True)
class Settings:
    """How it is learned, whatever the task.

    Attributes:
        optimizer: "bert_adam", the paper's, without bias correction; or "adamw", with it, which is steadier on small
            data sets (Mosbach et al., 2021; Zhang et al., 2021).
        weight_decay: not of biases and LayerNorm.
        warmup: share of the steps in which the learning rate grows; then it falls to 0.
        decay_from: see trainer.schedule.ScheduleConfig.
        max_gradient_norm: longer gradients are scaled down.
        precision: "bf16" computes products in bfloat16; weights and optimizer are float32.
        max_tokens: that are computed at once.
    """

    optimizer: Optimizer = "bert_adam"
    weight_decay: float = 0.01
    warmup: float = 0.1
    decay_from: Literal["start", "warmup"] = "start"
    max_gradient_norm: float = 1.0
    precision: Precision = "float32"
    max_tokens: int = 16384


class DivergedError(ArithmeticError):
    """A loss or a score that is NaN or infinite. The message says where."""


class Sized(Protocol):
    """A sample: something of so many tokens."""

    @property
    def size(self) -> int:
        """Tokens."""


S = TypeVar("S", bound=Sized)
Collate = Callable[[Sequence[S]], Any]


def learn(
    model: nn.Module,
    samples: Sequence[S],
    collate: Collate[S],
    point: Hyperparameters,
    settings: Settings,
    device: torch.device,
    after_epoch: Callable[[int, list[float]], None],
    each_minute: Callable[[int, int, float], None] = lambda *_: None,
) -> None:
    """Train a model, on the device.

    Args:
        model: has ``forward(batch)``, and ``losses(logits, batch)``, one for each of ``batch.count`` targets.
        samples: to learn from; each epoch has its own order, drawn from the seed.
        collate: samples to a batch with ``count`` and ``to(device)``.
        point: how fast and how long.
        settings: everything else.
        device: of the model.
        after_epoch: called with the number of finished epochs, and the mean loss of each step of the last one.
        each_minute: called within an epoch with the number of finished steps, that of all steps, and the mean loss
            since the last call.

    Raises:
        DivergedError: a loss is NaN or infinite.
    """
    optimizer = build_optimizer(
        parameter_groups(model, settings.weight_decay), OptimizerConfig(name=settings.optimizer)
    )
    steps_per_epoch = -(-len(samples) // point.batch_size)
    total = steps_per_epoch * point.epochs
    schedule = ScheduleConfig(point.learning_rate, int(settings.warmup * total), decay_from=settings.decay_from)
    step, next_look = 0, time.monotonic() + _INTERVAL
    for epoch in range(point.epochs):
        losses: list[float] = []
        on_device: list[Tensor] = []  # of the last steps
        model.train()
        for chosen in epoch_batches(len(samples), point.batch_size, point.seed, epoch):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, total, schedule)
            torch.manual_seed(derive_seed(point.seed, "dropout", step))
            on_device.append(_backward(model, [samples[i] for i in chosen], collate, settings, device))
            nn.utils.clip_grad_norm_(model.parameters(), settings.max_gradient_norm or torch.inf)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            is_last = step % steps_per_epoch == 0
            if is_last or time.monotonic() >= next_look:
                found = _finite(torch.stack(on_device).tolist(), step - len(on_device))
                losses += found
                on_device.clear()
                next_look = time.monotonic() + _INTERVAL
                if not is_last:
                    each_minute(step, total, float(np.mean(found)))
        after_epoch(epoch + 1, losses)


def epoch_batches(samples: int, batch_size: int, seed: int, epoch: int) -> Iterator[list[int]]:
    """The numbers of the samples of each step of an epoch; the last step may have fewer."""
    order = permute(np.arange(samples), samples, derive_key(seed, "order", epoch)).tolist()
    for begin in range(0, samples, batch_size):
        yield order[begin : begin + batch_size]


def _backward(model: Any, samples: list[S], collate: Collate[S], settings: Settings, device: torch.device) -> Tensor:
    """Add up the gradients of a step; returns its mean loss."""
    parts = [collate([samples[i] for i in part]) for part in cut([s.size for s in samples], settings.max_tokens)]
    count = max(1, sum(part.count for part in parts))
    total = torch.zeros((), device=device)
    for part in parts:
        batch = part.to(device)
        with autocast(settings, device):
            logits = model(batch)
        loss = model.losses(logits, batch).sum() / count
        loss.backward()
        total += loss.detach()
    return total


def predict(
    model: Any, samples: Sequence[S], collate: Collate[S], settings: Settings, device: torch.device
) -> list[np.ndarray]:
    """The logits of each sample, float32, in the order of the samples.

    Raises:
        DivergedError: a score is NaN or infinite.
    """
    model.eval()
    order = sorted(range(len(samples)), key=lambda i: samples[i].size)  # batches of about one length
    logits: list[np.ndarray] = [np.empty(0)] * len(samples)
    for part in cut([samples[i].size for i in order], settings.max_tokens):
        batch = collate([samples[order[i]] for i in part])
        with torch.inference_mode(), autocast(settings, device):
            scores = model(batch.to(device)).float().cpu()
        if not torch.isfinite(scores).all():
            raise DivergedError("the trained model's scores contain NaN or infinity")
        for i, of_sample in zip(part, model.split(scores, batch), strict=True):
            logits[order[i]] = of_sample.numpy()
    return logits


def cut(sizes: Sequence[int], most: int) -> Iterator[list[int]]:
    """Numbers of neighbours with ``most`` tokens together; a larger one is alone."""
    part: list[int] = []
    tokens = 0
    for i, size in enumerate(sizes):
        if part and tokens + size > most:
            yield part
            part, tokens = [], 0
        part.append(i)
        tokens += size
    if part:
        yield part


def autocast(settings: Settings, device: torch.device) -> torch.autocast:
    """The precision that products are computed in."""
    return torch.autocast(device.type, torch.bfloat16, enabled=settings.precision == "bf16")


def _finite(losses: list[float], before: int) -> list[float]:
    for i, loss in enumerate(losses):
        if not np.isfinite(loss):
            raise DivergedError(f"the loss of step {before + i + 1} is {loss}")
    return losses
