"""Optimizers of our own, handed to DeepSpeed, and the groups of parameters that they treat differently."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Literal

import torch

from trainer.ownership import Owned
from trainer.sharded_state import MOMENTS, Fragment

_LEAST_EPS = 1.2e-38  # in float32 a smaller number may be 0, and what never had a gradient 0 / 0

_OF_LAMB = ("bias_correction", "min_trust_ratio", "max_trust_ratio", "adapt_undecayed")


@dataclass(frozen=True)
class OptimizerConfig:
    """Which optimizer with which constants.

    Attributes:
        name: "bert_adam" is google-research/bert's (optimization.py, AdamWeightDecayOptimizer): decoupled weight decay
            and no bias correction. "adamw" corrects the bias. "lamb" is You et al.'s (2020).
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        eps: added to the root of the second moment.
        weight_decay: decoupled, times the learning rate; not for LayerNorm and biases, but for embeddings.
        max_gradient_norm: gradients are scaled down to this global norm; 0 turns that off.
        bias_correction: of LAMB, as what follows; the names of the two Adams say it of themselves.
        min_trust_ratio: lower bound of LAMB's ratio for a parameter.
        max_trust_ratio: its upper bound.
        adapt_undecayed: whether LAMB's ratio applies to LayerNorm and biases too; google and NVIDIA leave them at 1.
    """

    name: Literal["bert_adam", "adamw", "lamb"] = "bert_adam"
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-6
    weight_decay: float = 0.01
    max_gradient_norm: float = 1.0
    bias_correction: bool = True
    min_trust_ratio: float = 0.0
    max_trust_ratio: float = math.inf
    adapt_undecayed: bool = False

    def __post_init__(self) -> None:
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1 and _LEAST_EPS <= self.eps < math.inf):
            raise ValueError(
                f"optimizer.beta1 and beta2 must lie in [0, 1) and optimizer.eps be {_LEAST_EPS} or more, and finite"
            )
        if not (0 <= self.weight_decay < math.inf and 0 <= self.max_gradient_norm < math.inf):
            raise ValueError("optimizer.weight_decay and optimizer.max_gradient_norm must be 0 or more and finite")
        if not 0 <= self.min_trust_ratio <= self.max_trust_ratio or self.min_trust_ratio == math.inf:
            raise ValueError("optimizer.min_trust_ratio must be 0 or more, finite, at most optimizer.max_trust_ratio")
        for name in _OF_LAMB:
            if self.name != "lamb" and getattr(self, name) != getattr(OptimizerConfig, name):
                raise ValueError(
                    f'optimizer.{name} is of "lamb" alone; "adamw" corrects the bias, "bert_adam" does not'
                )


def parameter_groups(
    model: torch.nn.Module, weight_decay: float, untrained: Iterable[torch.nn.Parameter] = ()
) -> list[dict[str, Any]]:
    """Two groups, with and without weight decay; every parameter stands in exactly one.

    Without: all biases and the weights of LayerNorm, as google-research/bert excludes them by name. That group says so
    itself, under "undecayed": with a weight decay of 0 both look the same.

    Args:
        model: whose parameters these are.
        weight_decay: of those that have any.
        untrained: parameters without a gradient, of which a decay would leave nothing: LAMB would take the share of the
            learning rate from them in every step, since its trust ratio undoes how small their decay is.
    """
    undecayed = {id(parameter) for parameter in untrained} | {
        id(parameter)
        for module in model.modules()
        for name, parameter in module.named_parameters(recurse=False)
        if isinstance(module, torch.nn.LayerNorm) or "bias" in name
    }
    parameters = list(model.parameters())  # a tied parameter comes once
    groups: list[dict[str, Any]] = [
        {"params": [p for p in parameters if id(p) not in undecayed], "weight_decay": weight_decay},
        {"params": [p for p in parameters if id(p) in undecayed], "weight_decay": 0.0, "undecayed": True},
    ]
    return [group for group in groups if group["params"]]


def build_optimizer(groups: Iterable[dict[str, Any]], config: OptimizerConfig) -> torch.optim.Optimizer:
    """The configured optimizer over parameter groups. The learning rate is set before every step by the trainer."""
    return Lamb(groups, config) if config.name == "lamb" else Adam(groups, config)


def _defaults(config: OptimizerConfig) -> dict[str, Any]:
    """What a group of parameters has where it does not say otherwise."""
    return {
        "lr": 0.0,
        "betas": (config.beta1, config.beta2),
        "eps": config.eps,
        "weight_decay": config.weight_decay,
        "undecayed": False,
    }


class Adam(torch.optim.Optimizer):
    """Adam with decoupled weight decay; the name in its configuration says whether the bias is corrected."""

    def __init__(self, params: Iterable[Any], config: OptimizerConfig):
        super().__init__(params, _defaults(config))
        self._bias_correction = config.name == "adamw"

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        assert closure is None, "the loss is computed by the trainer"
        for group in self.param_groups:
            pairs = [(parameter, parameter.grad) for parameter in group["params"] if parameter.grad is not None]
            if pairs:
                parameters, gradients = map(list, zip(*pairs, strict=True))
                self._update(parameters, gradients, group)

    def _update(self, parameters: list[torch.Tensor], gradients: list[torch.Tensor], group: dict[str, Any]) -> None:
        """One pass over memory, by torch's fused kernel: of a float32 parameter it reads 16 bytes and writes 12."""
        states = [_counted_state(self, parameter) for parameter in parameters]
        device = parameters[0].device
        # A step so large that beta^step is 0 turns the bias correction off.
        counts = [float(state["step"]) if self._bias_correction else 2.0**40 for state in states]
        filled = {count: torch.full((), count, device=device) for count in set(counts)}  # a copy would be waited for
        steps = [filled[count] for count in counts]
        first, second = ([state[name] for state in states] for name in MOMENTS)
        beta1, beta2 = group["betas"]
        torch._fused_adamw_(
            parameters, gradients, first, second, [], steps, lr=group["lr"], beta1=beta1, beta2=beta2,
            weight_decay=group["weight_decay"], eps=group["eps"], amsgrad=False, maximize=False,
        )  # fmt: skip


def state_of(optimizer: torch.optim.Optimizer, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """What an optimizer keeps of a tensor: its two moments, like the tensor, and how many updates they have seen.

    torch's optimizers make it at their first step; here it is made when somebody first asks.
    """
    state: dict[str, torch.Tensor] = optimizer.state[tensor]
    if not state:
        moments = {name: torch.zeros_like(tensor, requires_grad=False) for name in MOMENTS}
        state.update(step=torch.zeros((), dtype=torch.float32), **moments)
    return state


def _counted_state(optimizer: torch.optim.Optimizer, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """The state for one more update."""
    state = state_of(optimizer, tensor)
    state["step"] += 1
    return state


def _adam_direction(
    state: dict[str, torch.Tensor], gradient: torch.Tensor, group: dict[str, Any], bias_correction: bool
) -> torch.Tensor:
    """Take a gradient into the moments; returns Adam's direction, a new tensor like the gradient."""
    beta1, beta2 = group["betas"]
    first, second = state["exp_avg"], state["exp_avg_sq"]
    first.lerp_(gradient, 1 - beta1)
    second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    denominator = second.sqrt()
    if not bias_correction:
        return first / denominator.add_(group["eps"])
    step = state["step"].item()
    denominator.div_((1 - beta2**step) ** 0.5).add_(group["eps"])
    numerator: torch.Tensor = first / (1 - beta1**step)
    return numerator.div_(denominator)


class Lamb(torch.optim.Optimizer):
    """LAMB (You et al., 2020, algorithm 2), right for partitioned parameters too.

    The step of a parameter is scaled by its trust ratio, the norm of its weights over the norm of its update. ZeRO
    leaves a rank with flat tensors in which parameters begin and end anywhere, so the sums of squares are taken over
    fragments and added up over the ranks, in one small all-reduce for each group. Queries, keys and values, one
    parameter of ours, have a ratio each, as in google's and NVIDIA's models, where they are three. `partition` must be
    called wherever tensors are not parameters that count as one.
    """

    def __init__(self, params: Iterable[Any], config: OptimizerConfig):
        super().__init__(params, _defaults(config))
        self._config = config
        self._owned: dict[int, Owned] = {}
        self._sum_over_ranks: Callable[[torch.Tensor], None] | None = None

    def partition(
        self,
        owned: Iterable[Owned],
        sum_over_ranks: Callable[[torch.Tensor], None] | None,
        parts: Mapping[str, Sequence[int]],
    ) -> None:
        """Say what the tensors are made of.

        Args:
            owned: every tensor that this rank updates, with its fragments.
            sum_over_ranks: adds up a float64 tensor over all ranks, in place; None where each has whole parameters.
            parts: name of a parameter that holds several -> their sizes, in elements.
        """
        self._owned = {id(each.tensor): _take_apart(each, parts) for each in owned}
        self._sum_over_ranks = sum_over_ranks

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        assert closure is None, "the loss is computed by the trainer"
        for group in self.param_groups:
            for tensor in group["params"]:
                if tensor.grad is not None:
                    self._update(tensor, tensor.grad, group)

    def _update(self, tensor: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        state = _counted_state(self, tensor)
        direction = _adam_direction(state, gradient, group, self._config.bias_correction)
        update = direction.add_(tensor, alpha=group["weight_decay"]).view(-1)
        if not group["undecayed"] or self._config.adapt_undecayed:
            self._scale(update, self._owned_as(tensor))
        tensor.add_(update.view_as(tensor), alpha=-group["lr"])

    def _owned_as(self, tensor: torch.Tensor) -> Owned:
        return self._owned.get(id(tensor)) or Owned(tensor, [Fragment(0, tensor.numel(), "", 0)], [""])

    def _scale(self, update: torch.Tensor, owned: Owned) -> None:
        """Multiply each parameter's part of the update by its trust ratio."""
        weights = owned.tensor.view(-1)
        numbers = {name: number for number, name in enumerate(owned.parameters)}
        squares = torch.zeros(2, len(numbers), dtype=torch.float64, device=weights.device)
        for start, length, name, _ in owned.fragments:
            for i, values in enumerate((weights, update)):
                part = values[start : start + length]
                squares[i, numbers[name]] += torch.linalg.vector_norm(part, dtype=torch.float64) ** 2
        if self._sum_over_ranks is not None:
            self._sum_over_ranks(squares)
        of_weights, of_update = squares.sqrt()
        ratios = (of_weights / of_update).clamp(self._config.min_trust_ratio, self._config.max_trust_ratio)
        ratios = torch.where((of_weights > 0) & (of_update > 0), ratios, 1.0).to(update.dtype)
        for start, length, name, _ in owned.fragments:
            update[start : start + length].mul_(ratios[numbers[name]])


def _take_apart(owned: Owned, parts: Mapping[str, Sequence[int]]) -> Owned:
    """The same tensor, with each parameter that holds several as so many."""
    fragments = []
    for start, length, name, offset in owned.fragments:
        for part, (begin, end) in enumerate(pairwise([0, *accumulate(parts.get(name, [offset + length]))])):
            first, last = max(begin, offset), min(end, offset + length)
            if first < last:
                fragments.append(Fragment(start + first - offset, last - first, f"{name}[{part}]", first))
    names = [f"{name}[{part}]" for name in owned.parameters for part in range(len(parts.get(name, [0])))]
    return Owned(owned.tensor, fragments, names)
