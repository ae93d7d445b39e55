"""What a run shows of itself while it goes on: a bar or lines."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from typing import Any

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from trainer.config import Recipe

_log = logging.getLogger("pretrain")


class Progress:
    """A bar on a terminal, a line now and then in a log; on the first rank only."""

    def __init__(self, is_first: bool, recipe: Recipe, step: int):
        """Start at ``step`` of the run."""
        self._every = recipe.log.every
        self._has_nsp = recipe.train.next_sentence  # else its loss is that of an untrained head
        self._last = recipe.last_step
        self._began = time.monotonic(), step
        self._bar: tqdm[Any] | None = None
        self._open = contextlib.ExitStack()
        if is_first and _is_terminal():
            form = "{l_bar}{bar:20}{r_bar}"
            bar: tqdm[Any] = tqdm(total=self._last, initial=step, unit="step", bar_format=form, smoothing=0.05)
            self._bar = self._open.enter_context(bar)
            self._open.enter_context(logging_redirect_tqdm())  # other lines go above the bar

    def show(self, line: dict[str, Any]) -> None:
        """Report a step."""
        text = f"{self._losses(line)}, lr {line['learning_rate']:.2e}, {line['tokens_per_second']:,.0f} tokens/s"
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update()
        elif line["step"] % self._every == 0 or line["step"] == self._last:
            _log.info("step %d/%d: %s, %s to go", line["step"], self._last, text, self._time_to_go(line["step"]))

    def close(self) -> None:
        """Leave the bar as it stands."""
        self._open.close()

    def _losses(self, line: dict[str, Any]) -> str:
        if "loss" not in line:
            return "nothing to predict"
        tasks = f" (MLM {line['mlm_loss']:.4f}, NSP {line['nsp_loss']:.4f})" if self._has_nsp else ""
        return f"loss {line['loss']:.4f}{tasks}"

    def _time_to_go(self, step: int) -> str:
        began, first = self._began
        seconds = (time.monotonic() - began) / max(1, step - first) * (self._last - step)
        return tqdm.format_interval(seconds)


def _is_terminal() -> bool:
    """Whether the log goes to a terminal that has a width."""
    return sys.stderr.isatty() and os.get_terminal_size(sys.stderr.fileno()).columns > 0
