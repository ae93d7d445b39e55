"""Optimizers as their papers write them, on whole parameters: what ours is compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch


class Lamb:
    """You et al. (2020), algorithm 2, in float64; trust ratios for all but biases and LayerNorm.

    A parameter that a group has under "three" holds three matrices, one below the other, each with a ratio of its own.
    """

    def __init__(self, groups: Iterable[dict], bound: Callable[[float], float] = lambda ratio: ratio):
        self.param_groups = list(groups)
        self._bound = bound
        self._moments: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._steps = 0

    def zero_grad(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        self._steps += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                w, g = parameter.double(), parameter.grad.double()
                m, v = self._moments.get(id(parameter), (torch.zeros_like(w), torch.zeros_like(w)))
                m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
                self._moments[id(parameter)] = m, v
                m_hat, v_hat = m / (1 - 0.9**self._steps), v / (1 - 0.999**self._steps)
                r = m_hat / (v_hat.sqrt() + 1e-6) + group["weight_decay"] * w
                count = 3 if any(parameter is joined for joined in group.get("three", ())) else 1
                ratios = [self._ratio(*pair, group) for pair in zip(w.chunk(count), r.chunk(count), strict=True)]
                scaled = [ratio * part for ratio, part in zip(ratios, r.chunk(count), strict=True)]
                parameter.copy_(w - group["lr"] * torch.cat(scaled))

    def _ratio(self, w: torch.Tensor, r: torch.Tensor, group: dict) -> float:
        if group.get("undecayed") or w.norm() == 0 or r.norm() == 0:
            return 1.0
        return self._bound((w.norm() / r.norm()).item())
