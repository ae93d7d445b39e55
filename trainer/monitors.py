"""What DeepSpeed's configuration has figures reported to: CSV files, TensorBoard, wandb, comet. None can end a run."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from trainer.lean_imports import without
from trainer.run_directory import one_line
from trainer.settings import ConfigError

with without("mlflow"):  # see trainer.engine
    from deepspeed.monitor.comet import CometMonitor
    from deepspeed.monitor.config import get_monitor_config
    from deepspeed.monitor.csv_monitor import csvMonitor
    from deepspeed.monitor.tensorboard import TensorBoardMonitor
    from deepspeed.monitor.wandb import WandbMonitor

_log = logging.getLogger("pretrain")

# Sections of the configuration, DeepSpeed's class for each, and the module that it needs.
_KINDS = {
    "csv_monitor": (csvMonitor, "csv"),
    "tensorboard": (TensorBoardMonitor, "tensorboard"),
    "wandb": (WandbMonitor, "wandb"),
    "comet": (CometMonitor, "comet_ml"),
}


class Monitors:
    """Those of a start of the trainer, in the place of DeepSpeed's own, of which every engine would have its own."""

    def __init__(self) -> None:
        self._monitors: dict[str, Any] = {}

    def start(self, config: Mapping[str, Any], is_new: bool) -> None:
        """Begin to report; on the first rank only.

        Args:
            config: DeepSpeed's.
            is_new: whether the run is: then what does not start is a mistake, and otherwise it is told and left out.

        Raises:
            ConfigError: one does not start.
        """
        for name, settings in _wanted(config).items():
            kind, _ = _KINDS[name]
            try:
                self._monitors[name] = kind(settings)
            except Exception as error:  # each library has its own
                if is_new:
                    raise ConfigError(
                        f"DeepSpeed's configuration: {name} does not start ({_reason(error)}); mend or remove it"
                    ) from error
                _log.warning("%s does not start (%s): this start reports nothing to it", name, _reason(error))

    @property
    def enabled(self) -> bool:
        """Whether there is one, as DeepSpeed asks."""
        return bool(self._monitors)

    def write_events(self, events: Sequence[tuple[str, float, int]]) -> None:
        """Report, as DeepSpeed does: each a name, a value and the samples seen by then.

        To what fails nothing is reported any more: what is lacking then, metrics.jsonl has.
        """
        for name, monitor in list(self._monitors.items()):
            try:
                monitor.write_events(events)
            except Exception as error:
                del self._monitors[name]
                _log.warning("%s takes no figures (%s): this start reports no more to it", name, _reason(error))

    def report(self, samples: int, figures: Mapping[str, float], group: str) -> None:
        """Report figures over the samples seen by then, as ``group``/figure, such as Train/loss."""
        self.write_events([(f"{group}/{name}", value, samples) for name, value in figures.items()])


def check_installed(config: Mapping[str, Any]) -> None:
    """See that what DeepSpeed's configuration reports to is installed.

    Raises:
        ConfigError: it is not.
    """
    for name in _wanted(config):
        _, module = _KINDS[name]
        if not find_spec(module):
            raise ConfigError(f"DeepSpeed's configuration: {name} needs {module}, which is not installed here")


def without_monitors(config: Mapping[str, Any]) -> dict[str, Any]:
    """DeepSpeed's configuration for an engine, which then makes none of its own."""
    return {name: value for name, value in config.items() if name not in _KINDS}


def _wanted(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of those that are on, by DeepSpeed's own reading: to it "false" is off, and "on" is on."""
    settings: Any = get_monitor_config(config)
    return {name: getattr(settings, name) for name in _KINDS if getattr(settings, name).enabled}


def _reason(error: Exception) -> str:
    return one_line(str(error)) or type(error).__name__
