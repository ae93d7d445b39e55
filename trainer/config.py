"""A recipe: everything that decides what a run computes, from a TOML file and section.key=value overrides.

Each section is declared beside the component that it configures; this module only puts them together, reads them and
refuses what it does not know.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from trainer.data import DataConfig
from trainer.masking import STANDARD, MaskingConfig
from trainer.model import BertConfig
from trainer.optim import OptimizerConfig
from trainer.schedule import ScheduleConfig, learning_rate
from trainer.settings import ConfigError, apply_override, parse, read_toml


@dataclass(frozen=True)
class Phase:
    """A part of the training with one sequence length and one batch size.

    Attributes:
        sequence_length: tokens of a sample with its special tokens; shards must have pairs for it.
        steps: optimizer updates.
        global_batch_size: samples of an update over all ranks.
        micro_batch_size: samples that a rank computes at a time.
        max_predictions: at most so many masked tokens a sample.
        schedule: of this phase alone, from its own first step; without it the run's schedule goes on over all phases.
        reset_moments: begin the phase with empty moments in the optimizer; the weights are kept.
    """

    sequence_length: int
    steps: int
    global_batch_size: int
    micro_batch_size: int
    max_predictions: int
    schedule: ScheduleConfig | None = None
    reset_moments: bool = False

    def __post_init__(self) -> None:
        for name in ("sequence_length", "steps", "global_batch_size", "micro_batch_size", "max_predictions"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive")


@dataclass(frozen=True)
class TrainConfig:
    """The run as a whole.

    Attributes:
        seed: of the initial weights, the order of samples, the masks and the dropout.
        max_steps: stop after so many steps in all, leaving the schedule as it is; 0 runs the phases to their end.
        threads: CPU threads of a rank; 0 shares the machine's cores among its ranks. Results depend on it in the
            last bits, so it is recorded.
        next_sentence: train the second task of BERT too; false is the paper's "No NSP" (section 5.1).
        compile: let torch.compile fuse each encoder layer: minutes at the start, faster steps on a GPU. Dropout draws
            other numbers than without it.
        fp8: multiply in eight bits in the encoder layers, on GPUs from Hopper on; half the time of a product in bf16
            where it is compiled, and coarser (trainer.fp8).
        hang_seconds: a rank whose step takes longer says where it hangs and ends, so that the run can be started again;
            0 waits for ever.
    """

    seed: int = 1
    max_steps: int = 0
    threads: int = 0
    next_sentence: bool = True
    compile: bool = False
    fp8: bool = False
    hang_seconds: int = 1800

    def __post_init__(self) -> None:
        if min(self.max_steps, self.threads, self.hang_seconds) < 0:
            raise ValueError("max_steps, threads and hang_seconds must be 0 or more")
        if not 0 <= self.seed < 2**63:  # what torch's generators take
            raise ValueError("seed must be 0 or more and below 2^63")


@dataclass(frozen=True)
class CheckpointConfig:
    """What is kept of a run.

    Attributes:
        every: steps between checkpoints; one is written at the end in any case.
        keep: how many checkpoints stay; 0 keeps all.
        keep_every: checkpoints of every so many steps stay for good; 0 for none.
        keep_exports: how many exports stay, one of which is written with every checkpoint; 0 keeps all.
    """

    every: int = 1000
    keep: int = 2
    keep_every: int = 0
    keep_exports: int = 0

    def __post_init__(self) -> None:
        if self.every <= 0 or min(self.keep, self.keep_every, self.keep_exports) < 0:
            raise ValueError("every must be positive, keep, keep_every and keep_exports 0 or more")


@dataclass(frozen=True)
class LogConfig:
    """What is reported while a run goes on.

    Attributes:
        every: steps between lines in a log that is not a terminal. metrics.jsonl has every step.
        validate_every: steps between evaluations on the validation shards; 0 leaves them out.
        validation_samples: at most so many samples of the validation part.
    """

    every: int = 100
    validate_every: int = 1000
    validation_samples: int = 10_000

    def __post_init__(self) -> None:
        if self.every <= 0 or self.validate_every < 0 or self.validation_samples <= 0:
            raise ValueError("every and validation_samples must be positive, validate_every 0 or more")


@dataclass(frozen=True)
class TrackingConfig:
    """Where MLflow keeps the run.

    Attributes:
        enabled: report to MLflow.
        experiment: name of the experiment.
        system_metrics: report CPU, memory and GPU use as well.
    """

    enabled: bool = True
    experiment: str = "bert-pretraining"
    system_metrics: bool = True


@dataclass(frozen=True)
class Recipe:
    """All sections; _IDENTITY below says what of them the numbers of a run depend on."""

    model: BertConfig
    phases: list[Phase]
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    masking: MaskingConfig = field(default_factory=MaskingConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    log: LogConfig = field(default_factory=LogConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)

    def __post_init__(self) -> None:
        if not self.phases:
            raise ValueError("a recipe needs at least one [[phases]]")
        if self.model.is_decoder and (self.train.next_sentence or self.masking != STANDARD):
            raise ValueError(
                "model.is_decoder: a left-to-right model predicts every next token and sees nothing of a second "
                "segment where it would judge it; set train.next_sentence=false and leave [masking] out"
            )
        longest = max(phase.sequence_length for phase in self.phases)
        if longest > self.model.max_position_embeddings:
            raise ValueError(
                f"a phase has sequences of {longest} tokens, but model.max_position_embeddings is "
                f"{self.model.max_position_embeddings}"
            )

    @property
    def total_steps(self) -> int:
        """Steps of all phases: the end of the learning-rate schedule."""
        return sum(phase.steps for phase in self.phases)

    @property
    def last_step(self) -> int:
        """The step after which this run stops."""
        return min(self.total_steps, self.train.max_steps or self.total_steps)

    def learning_rate(self, step: int) -> float:
        """The rate of the update that follows ``step`` finished ones."""
        begin, end, phase = next(found for found in self.phase_ranges() if step < found[1])
        if phase.schedule is None:
            return learning_rate(step, self.total_steps, self.schedule)
        return learning_rate(step - begin, end - begin, phase.schedule)

    def phase_ranges(self) -> Iterator[tuple[int, int, Phase]]:
        """(first step, end step, phase) of every phase, steps counted over all phases."""
        begin = 0
        for phase in self.phases:
            yield begin, begin + phase.steps, phase
            begin += phase.steps


# What the numbers of a run depend on; the rest may change from one start of a run to the next.
_IDENTITY = (
    "model",
    "phases",
    "optimizer",
    "schedule",
    "masking",
    "train.seed",
    "train.next_sentence",
    "train.compile",
    "train.fp8",
    "data.shuffle_bytes",
    "data.weights",
    "data.token_multiple",
)
_MEMORY = (".micro_batch_size", ".activation_checkpointing")  # but these are matters of memory


def load_recipe(path: Path | str, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe and apply overrides such as ``train.seed=2`` or ``phases.0.micro_batch_size=8``.

    Raises:
        ConfigError: no such file, not TOML, an unknown key, a wrong type or an impossible value.
    """
    raw = read_toml(Path(path), "recipe")
    for override in overrides:
        apply_override(raw, override)
    return parse(raw, Recipe, str(path))


def to_toml(recipe: Recipe) -> str:
    """The resolved recipe, every default written out."""
    return tomli_w.dumps(_without_none(dataclasses.asdict(recipe)))


def _without_none(value: Any) -> Any:
    """TOML has no null: what is not set is left out."""
    if isinstance(value, dict):
        return {key: _without_none(child) for key, child in value.items() if child is not None}
    return [_without_none(child) for child in value] if isinstance(value, list) else value


def differences(old: Recipe, new: Recipe) -> list[str]:
    """The settings in which two recipes would compute something else, as "key: old -> new"."""
    return [text for key, text in _changes(old, new) if key.startswith(_IDENTITY) and not key.endswith(_MEMORY)]


def other_draws(old: Recipe, new: Recipe) -> list[str]:
    """The settings by which two recipes differ only in the numbers that dropout draws: each micro-batch has its own."""
    return [text for key, text in _changes(old, new) if key.endswith(".micro_batch_size")]


def _changes(old: Recipe, new: Recipe) -> list[tuple[str, str]]:
    """Key, and "key: old -> new", of every setting that differs."""
    before, after = (dict(_flatten(dataclasses.asdict(recipe))) for recipe in (old, new))
    keys = [key for key in sorted({**before, **after}) if before.get(key) != after.get(key)]
    return [(key, f"{key}: {before.get(key)} -> {after.get(key)}") for key in keys]


def _flatten(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if children is None:
        yield prefix, value
        return
    for key, child in children:
        yield from _flatten(child, f"{prefix}.{key}" if prefix else str(key))


def resolve_deepspeed(path: Path | str, recipe: Recipe, phase: Phase, world: int) -> dict[str, Any]:
    """DeepSpeed's configuration with what the recipe rules filled in.

    Args:
        path: JSON file of DeepSpeed's own knobs; batch sizes and clipping are "auto" or absent there.
        recipe: the run's recipe.
        phase: the phase that is to be trained.
        world: number of ranks.

    Raises:
        ConfigError: no such file, not JSON, a key that has no effect here or would do harm, or a value that the recipe
            contradicts.
    """
    try:
        raw = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: can't read the DeepSpeed configuration ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not a JSON file ({error})") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: the DeepSpeed configuration must be a JSON object")
    _refuse(raw, path)
    for name in ("compile", "fp8"):
        if getattr(recipe.train, name) and _look_up(raw, "zero_optimization.stage") == 3:
            raise ConfigError(
                f"{path}: train.{name} needs zero_optimization.stage 0, 1 or 2: under 3 a layer's parameters "
                f"come and go while it is computed; use one of these, or train.{name}=false"
            )
    ruled = {
        "train_batch_size": phase.global_batch_size,
        "train_micro_batch_size_per_gpu": phase.micro_batch_size,
        "gradient_accumulation_steps": accumulation_steps(phase, world),
        "gradient_clipping": recipe.optimizer.max_gradient_norm,
    }
    for key, value in ruled.items():
        if raw.get(key, "auto") not in ("auto", value):
            raise ConfigError(f'{path}: {key} is {raw[key]}, but the recipe says {value}; write "auto"')
    # Our optimizers are plain torch optimizers, which DeepSpeed has not tested, and which it must not replace.
    return {**raw, **ruled, "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}


def without_communication(config: Mapping[str, Any]) -> dict[str, Any]:
    """DeepSpeed's configuration for a single rank, without what it would do to communicate.

    DeepSpeed 0.19 does it all the same, which costs a GPU time: to overlap it waits for the device after every
    micro-batch; to scatter gradients, in another type, it reads and writes each of them twice more
    (zero/stage_1_and_2.py). Under ZeRO 1 the type stays: what is reduced there are the sums of all micro-batches, and
    without it they would be rounded to that of the weights.
    """
    if "zero_optimization" not in config:
        return dict(config)
    zero = {**config["zero_optimization"], "overlap_comm": False}
    stage = zero.get("stage", 0)
    if stage in (1, 2):
        zero["reduce_scatter"] = False
    dropped = ("communication_data_type",) if stage == 2 else ()
    return {**{key: value for key, value in config.items() if key not in dropped}, "zero_optimization": zero}


# The keys of DeepSpeed's configuration that have an effect on this trainer; most of the others would be ignored.
_SECTIONS = (
    *("zero_optimization", "bf16", "fp16", "data_types", "torch_autocast", "aio"),
    *("flops_profiler", "comms_logger", "timers", "tensorboard", "wandb", "csv_monitor", "comet"),
)
_VALUES = (
    *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"),
    *("communication_data_type", "prescale_gradients"),
    *("zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer"),
    *("steps_per_print", "wall_clock_breakdown", "memory_breakdown", "dump_state", "log_level", "disable_python_gc"),
)

_LEAVE_ON = "leave it on: without it a gradient that is NaN or infinite would reach the weights"
_FLOAT32 = "leave it off: weights and moments are kept in float32, which checkpoints rely on"
_UNKNOWN_TENSORS = "remove it: it keeps weights or moments where checkpoints can't find them"
_OWN_OPTIMIZERS = "remove it; the recipe's [optimizer] is never replaced by one of DeepSpeed's"
_WHOLE_LAYERS = "remove it: ranks share the samples of a batch, not layers or sequences"

# Keys, values that are refused (None: any), and why.
_REFUSED: list[tuple[str, Any, str]] = [
    ("optimizer", None, "remove it; the recipe's [optimizer] rules it"),
    ("scheduler", None, "remove it; the recipe's [schedule] rules it"),
    ("bf16.check_grad_overflow", False, _LEAVE_ON),
    ("zero_optimization.compute_grad_norm", False, _LEAVE_ON),
    ("bf16.bf16_master_weights_and_grads", True, _FLOAT32),
    ("bf16.bf16_optimizer_states", True, _FLOAT32),
    ("fp16.fp16_master_weights_and_grads", True, _FLOAT32),
    ("torch_autocast.enabled", True, "use bf16 or fp16"),
    ("zero_optimization.offload_optimizer.device", "nvme", "use cpu: checkpoints don't find what lies on a disk"),
    ("zero_optimization.offload_optimizer.super_offload", True, _UNKNOWN_TENSORS),
    ("zero_optimization.zenflow", None, _UNKNOWN_TENSORS),
    (
        "zero_optimization.round_robin_gradients",
        True,
        "leave it off: DeepSpeed then keeps weights in another order than it says, and checkpoints would mix them up",
    ),
    ("zero_allow_untested_optimizer", False, _OWN_OPTIMIZERS),
    ("zero_force_ds_cpu_optimizer", True, _OWN_OPTIMIZERS),
    (
        "gradient_predivide_factor",
        None,
        "remove it: losses are normalized already, and ZeRO 3 of DeepSpeed 0.19 forgets to multiply by it again",
    ),
    ("gradient_allreduce_op", None, "remove it: losses are normalized for the mean over the ranks"),
    ("activation_checkpointing", None, "remove it and set model.activation_checkpointing=true"),
    ("tensor_parallel", None, _WHOLE_LAYERS),
    ("sequence_parallel_size", None, _WHOLE_LAYERS),
]


def _refuse(raw: dict[str, Any], path: Path | str) -> None:
    """Raise for what is the recipe's to say, or would be wrong without a word."""
    for key, value, advice in _REFUSED:
        found = _look_up(raw, key)
        if found is not None and value in (None, found):
            raise ConfigError(f"{path}: {key} is {json.dumps(found)}; {advice}")
    for key, found in raw.items():
        if key in _SECTIONS and not isinstance(found, dict):
            raise ConfigError(f"{path}: {key} is {json.dumps(found)}; it must be an object, {{...}}")
        if key not in (*_SECTIONS, *_VALUES):
            near = difflib.get_close_matches(key, (*_SECTIONS, *_VALUES), n=1)
            advice = f"did you mean {near[0]}?" if near else "remove it: it has no effect on this trainer"
            raise ConfigError(f"{path}: unknown key {key}; {advice}")
    bf16, fp16 = (_look_up(raw, f"{precision}.enabled") for precision in ("bf16", "fp16"))
    if bf16 and fp16:
        raise ConfigError(f"{path}: bf16 and fp16 are both enabled; choose one")
    if (bf16 or fp16) and not _look_up(raw, "zero_optimization.stage"):
        raise ConfigError(
            f"{path}: mixed precision needs zero_optimization.stage 1, 2 or 3; use one or train in float32"
        )


def _look_up(raw: Any, key: str) -> Any:
    """The value of a dotted key, None where there is none."""
    for part in key.split("."):
        raw = raw.get(part) if isinstance(raw, dict) else None
    return raw


def accumulation_steps(phase: Phase, world: int) -> int:
    """How many micro-batches each rank computes for one update.

    Raises:
        ConfigError: the ranks can't divide the global batch.
    """
    at_once = phase.micro_batch_size * world
    if phase.global_batch_size % at_once:
        raise ConfigError(
            f"a global batch of {phase.global_batch_size} can't be cut into micro-batches of {phase.micro_batch_size} "
            f"for {world} ranks: it must be a multiple of {at_once}; change global_batch_size or micro_batch_size of "
            "the phase, or the number of ranks"
        )
    return phase.global_batch_size // at_once
