"""Optimizers of our own, handed to DeepSpeed, and the groups of parameters that they treat differently."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch


@dataclass(frozen=True)
class OptimizerConfig:
    """Which optimizer with which constants.

    Attributes:
        name: "bert_adam" is google-research/bert's (optimization.py, AdamWeightDecayOptimizer): decoupled weight decay
            and no bias correction. "adamw" corrects the bias.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        eps: added to the root of the second moment.
        weight_decay: decoupled, times the learning rate; not for LayerNorm and biases, but for embeddings.
        max_gradient_norm: gradients are scaled down to this global norm; 0 turns that off.
    """

    name: Literal["bert_adam", "adamw"] = "bert_adam"
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-6
    weight_decay: float = 0.01
    max_gradient_norm: float = 1.0

    def __post_init__(self) -> None:
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1 and self.eps > 0):
            raise ValueError("optimizer.beta1 and beta2 must lie in [0, 1) and optimizer.eps above 0")
        if self.weight_decay < 0 or self.max_gradient_norm < 0:
            raise ValueError("optimizer.weight_decay and optimizer.max_gradient_norm must be 0 or more")


def parameter_groups(model: torch.nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups, with and without weight decay; every parameter stands in exactly one.

    Without: all biases and the weights of LayerNorm, as google-research/bert excludes them by name.
    """
    undecayed = {
        id(parameter)
        for module in model.modules()
        for name, parameter in module.named_parameters(recurse=False)
        if isinstance(module, torch.nn.LayerNorm) or name.endswith("bias")
    }
    parameters = list(model.parameters())  # a tied parameter comes once
    groups: list[dict[str, Any]] = [
        {"params": [p for p in parameters if id(p) not in undecayed], "weight_decay": weight_decay},
        {"params": [p for p in parameters if id(p) in undecayed], "weight_decay": 0.0},
    ]
    assert sum(len(group["params"]) for group in groups) == len({id(p) for p in parameters})
    return [group for group in groups if group["params"]]


def build_optimizer(groups: Iterable[dict[str, Any]], config: OptimizerConfig) -> torch.optim.Optimizer:
    """The configured optimizer over parameter groups. The learning rate is set before every step by the trainer."""
    return Adam(
        groups,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        bias_correction=config.name == "adamw",
    )


class Adam(torch.optim.Optimizer):
    """Adam with decoupled weight decay; the bias correction is a choice.

    State is kept under the names that DeepSpeed's universal checkpoints carry over: exp_avg, exp_avg_sq, step.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        bias_correction: bool = False,
    ):
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)
        self.bias_correction = bias_correction

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        assert closure is None, "the loss is computed by the trainer"
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)

    def _update(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        beta1, beta2 = group["betas"]
        first, second = state["exp_avg"], state["exp_avg_sq"]
        first.lerp_(gradient, 1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        rate, denominator = group["lr"], second.sqrt()
        if self.bias_correction:
            step = state["step"].item()
            denominator.div_((1 - beta2**step) ** 0.5)
            rate = rate / (1 - beta1**step)
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.addcdiv_(first, denominator.add_(group["eps"]), value=-rate)
