"""A recipe: everything that decides what a run computes, from a TOML file and section.key=value overrides.

The sections of a component are declared beside it: [model] in trainer.model, [optimizer] in trainer.optim and so on.
Here are those of the run itself, and what puts all of them together and refuses what it does not know.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from preprocessing.schema import MIN_SEQUENCE_LENGTH
from trainer.data import MAX_WEIGHTS, DataConfig
from trainer.masking import STANDARD, MaskingConfig, count_predictions
from trainer.model import BertConfig
from trainer.optim import OptimizerConfig
from trainer.schedule import ScheduleConfig, learning_rate
from trainer.settings import ConfigError, merge, parse, read_toml


@dataclass(frozen=True)
class Phase:
    """A part of the training with one sequence length and one batch size.

    Attributes:
        sequence_length: tokens of a sample with its special tokens; shards must have pairs for it.
        steps: optimizer updates.
        global_batch_size: samples of an update over all ranks.
        micro_batch_size: samples that a rank computes at a time.
        max_predictions: at most so many masked tokens a sample; without it as many as masking.probability says.
        schedule: of this phase alone, from its own first step; without it the run's schedule goes on over all phases.
        reset_moments: begin the phase with empty moments in the optimizer; the weights are kept.
        weights: what part of this phase's samples each shard directory gives, in proportion, 0 for none; without them
            data.weights.
    """

    sequence_length: int
    steps: int
    global_batch_size: int
    micro_batch_size: int
    max_predictions: int | None = None
    schedule: ScheduleConfig | None = None
    reset_moments: bool = False
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in ("sequence_length", "steps", "global_batch_size", "micro_batch_size", "max_predictions"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 2**31:
                raise ValueError(f"{name} must be positive and below 2^31")
        if self.sequence_length < MIN_SEQUENCE_LENGTH:
            raise ValueError(f"sequence_length must be {MIN_SEQUENCE_LENGTH} or more, as those of shards are")
        if self.weights and not (min(self.weights) >= 0 and 0 < sum(self.weights) < MAX_WEIGHTS):
            raise ValueError(
                f"weights must be numbers of 0 or more, not all of them 0, and less than {MAX_WEIGHTS:g} together"
            )

    @property
    def samples(self) -> int:
        """Of all updates."""
        return self.steps * self.global_batch_size

    @property
    def unlimited(self) -> Phase:
        """The same phase without a limit of predictions."""
        return dataclasses.replace(self, max_predictions=None)


@dataclass(frozen=True)
class TrainConfig:
    """The run as a whole.

    Attributes:
        seed: of the initial weights, the order of samples, the masks and the dropout.
        max_steps: stop after so many steps in all, leaving the schedule as it is; 0 runs the phases to their end.
        threads: CPU threads of a rank; 0 takes OMP_NUM_THREADS or, without it, shares the machine's cores among its
            ranks. Results depend on it in the last bits, so it is recorded.
        next_sentence: train the second task of BERT too; false is the paper's "No NSP" (section 5.1).
        compile: let torch.compile fuse each encoder layer: minutes at the start, faster steps on a GPU. Dropout draws
            other numbers than without it.
        cuda_graphs: record a micro-batch's forward and its backward pass as one graph each, however the layers are
            computed: the host of a GPU asks for these instead of for each kernel, which pays where it is slow or
            micro-batches are small.
        fused: compute the encoder layers by kernels of our own, on GPUs: less memory is read and written than where
            torch.compile fuses them, which then has the losses only. Dropout draws other numbers, and gelu is up to
            7e-7 off (trainer.fused).
        fp8: multiply in eight bits in the encoder layers, on GPUs from Ada and Hopper on; half the time of a product in
            bf16 where it is compiled, and coarser (trainer.fp8).
        deterministic: on a GPU, take kernels that give the same bits at every run, so that a resume is exact; false
            takes whatever is fastest. On a CPU they always do.
        divergence: nats that the mean loss of the masked words over some 200 steps may rise above its lowest on the
            same data; a run whose loss is further off has diverged, and ends; 0 goes on whatever it is.
        hang_seconds: a rank whose step takes longer says where it hangs and ends, so that the run can be started again;
            0 waits for ever.
    """

    seed: int = 1
    max_steps: int = 0
    threads: int = 0
    next_sentence: bool = True
    compile: bool = False
    cuda_graphs: bool = False
    fused: bool = False
    fp8: bool = False
    deterministic: bool = True
    divergence: float = 2.0
    hang_seconds: int = 1800

    def __post_init__(self) -> None:
        if not (self.max_steps >= 0 and 0 <= self.threads <= 1024 and 0 <= self.hang_seconds <= 10**7):
            raise ValueError("max_steps must be 0 or more, threads 0 to 1024, hang_seconds 0 to 10000000")
        if not 0 <= self.seed < 2**63:  # what torch's generators take
            raise ValueError("seed must be 0 or more and below 2^63")
        if not 0 <= self.divergence < math.inf:
            raise ValueError("divergence must be 0 or more, finite")


@dataclass(frozen=True)
class CheckpointConfig:
    """What is kept of a run.

    Attributes:
        every: steps between checkpoints; one is written at the end in any case.
        keep: how many checkpoints stay; 0 keeps all.
        keep_every: checkpoints of every so many steps are written too, and stay for good; 0 for none.
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
        profile_step: of each start of a phase, record the so-many-th step on the first rank, as a trace in RUN/profile;
            0 records none.
    """

    every: int = 100
    validate_every: int = 1000
    validation_samples: int = 10_000
    profile_step: int = 0

    def __post_init__(self) -> None:
        if self.every <= 0 or self.validate_every < 0 or self.validation_samples <= 0:
            raise ValueError("every and validation_samples must be positive, validate_every 0 or more")
        if self.profile_step < 0 or self.profile_step == 1:
            raise ValueError("profile_step must be 0 or more but not 1: the profiler starts in the step before")


@dataclass(frozen=True)
class TrackingConfig:
    """Where MLflow keeps the run.

    Attributes:
        enabled: report to MLflow.
        experiment: name of the experiment.
        system_metrics: report CPU, memory and GPU use as well.
        every: of metrics.jsonl report the steps that are multiples of it. A million steps, all of them, are 20 million
            rows in MLflow's database, some 5 GB.
    """

    enabled: bool = True
    experiment: str = "bert-pretraining"
    system_metrics: bool = True
    every: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.every < 2**31:
            raise ValueError("tracking.every must be positive and below 2^31")
        if not 0 < len(self.experiment.strip()) <= len(self.experiment) <= 500:
            raise ValueError("experiment must be a name of 1 to 500 characters")


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
        if self.train.fused and (self.train.fp8 or self.model.pre_layer_norm or self.model.hidden_act == "relu"):
            raise ValueError(
                "train.fused has kernels for layers that end in LayerNorm, with gelu or gelu_new, in 16 or 32 bits; "
                "leave it out with train.fp8, model.pre_layer_norm or relu: train.compile=true takes all of them"
            )
        if self.train.cuda_graphs and (self.model.activation_checkpointing or self.data.token_multiple == 1):
            raise ValueError(
                "train.cuda_graphs needs a data.token_multiple of some 1/32 of a micro-batch's tokens, 128 for 32 "
                "sequences of 128, as graphs are recorded for each number of tokens, and no "
                "model.activation_checkpointing"
            )
        if self.train.fp8 and (self.model.hidden_size % 16 or self.model.intermediate_size % 16):
            raise ValueError(
                "train.fp8: GPUs multiply matrices of eight bits whose sides are multiples of 16, which "
                f"model.hidden_size {self.model.hidden_size} and model.intermediate_size "
                f"{self.model.intermediate_size} are not; leave it out, or change them"
            )
        longest = max(phase.sequence_length for phase in self.phases)
        if longest > self.model.max_position_embeddings:
            raise ValueError(
                f"a phase has sequences of {longest} tokens, but model.max_position_embeddings is "
                f"{self.model.max_position_embeddings}; given weights get more by trainer.new_positions"
            )

    @property
    def total_steps(self) -> int:
        """Steps of all phases: the end of the learning-rate schedule."""
        return sum(phase.steps for phase in self.phases)

    @property
    def last_step(self) -> int:
        """The step after which this run stops."""
        return min(self.total_steps, self.train.max_steps or self.total_steps)

    @property
    def has_common_schedule(self) -> bool:
        """Whether any phase follows [schedule], and not its own."""
        return any(phase.schedule is None for phase in self.phases)

    def predictions(self, phase: Phase, length: float | None = None) -> int:
        """Of a sample of so many tokens in a phase; None for a full one."""
        length = length or phase.sequence_length
        if self.model.is_decoder:  # every token predicts the next one
            return round(length) - 1
        return int(count_predictions(np.array([length]), self.masking.probability, phase.max_predictions)[0])

    def learning_rate(self, step: int) -> float:
        """The rate of the update that follows ``step`` finished ones."""
        begin, end, phase = next(found for found in self.phase_ranges() if step < found[1])
        if phase.schedule is None:
            return learning_rate(step, self.total_steps, self.schedule)
        return learning_rate(step - begin, end - begin, phase.schedule)

    def samples(self, step: int, sequence_length: int | None = None) -> int:
        """Samples seen after ``step`` finished updates, or those of the phases of one length, which read one stream."""
        return sum(
            (min(end, step) - begin) * phase.global_batch_size
            for begin, end, phase in self.phase_ranges()
            if step > begin and sequence_length in (None, phase.sequence_length)
        )

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
    "train.cuda_graphs",
    "train.fused",
    "train.fp8",
    "data.shuffle_bytes",
    "data.weights",
    "data.token_multiple",
)
_MEMORY = (".micro_batch_size", ".activation_checkpointing")  # but these are matters of memory
_OF_A_MODEL = tuple(each.name for each in dataclasses.fields(BertConfig) if not f".{each.name}".endswith(_MEMORY))


def load_recipe(path: Path | str, overrides: Sequence[str] = (), model: BertConfig | None = None) -> Recipe:
    """Read a recipe and apply overrides such as ``train.seed=2`` or ``phases.0.micro_batch_size=8``.

    Args:
        path: of the recipe.
        overrides: of single keys.
        model: what file and overrides leave open of [model] is this one's; without it BertConfig's defaults.

    Raises:
        ConfigError: no such file, not TOML, an unknown key, a wrong type or an impossible value, or an override of a
            schedule that no phase follows.
    """
    raw = read_toml(Path(path), "recipe")
    if model:
        raw = merge({"model": {name: getattr(model, name) for name in _OF_A_MODEL}}, raw)
    elif "model" not in raw and not any(override.startswith("model.") for override in overrides):
        raise ConfigError(
            f"{path}: has no [model], for it goes on with a given one; name by --init-from its folder, which must be "
            "readable here, or give the sizes, model.vocab_size=30522 and so on"
        )
    recipe = parse(raw, Recipe, str(path), overrides)
    for override in overrides:
        if override.startswith("schedule.") and not recipe.has_common_schedule:
            raise ConfigError(f"{override}: in {path} every phase has a schedule of its own; say phases.0.{override}")
    return recipe


def to_toml(recipe: Recipe) -> str:
    """The resolved recipe, every default written out."""
    return tomli_w.dumps(dataclasses.asdict(recipe, dict_factory=_without_none))


def _without_none(fields: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """TOML has no null: what is not set is left out."""
    return {key: value for key, value in fields if value is not None}


def differences(old: Recipe, new: Recipe) -> list[str]:
    """The settings in which two recipes would compute something else, as "key: old -> new"."""
    return [text for key, text in _changes(old, new) if key.startswith(_IDENTITY) and not key.endswith(_MEMORY)]


def advice_on(changed: Sequence[str], has_checkpoint: bool) -> str:
    """What to do about a run that was started with something else, of settings what ``differences`` tells."""
    advice = "choose another --output, or go on with what the run was started with"
    if not has_checkpoint or any(text.startswith("model.") for text in changed):
        return advice
    return f"{advice}; to train longer or otherwise, give its last checkpoint to --init-from, with another --output"


def other_draws(old: Recipe, new: Recipe) -> list[str]:
    """The settings by which two recipes differ only in the numbers that dropout draws: each micro-batch has its own."""
    return [text for key, text in _changes(old, new) if key.endswith(".micro_batch_size")]


def _changes(old: Recipe, new: Recipe) -> list[tuple[str, str]]:
    """Key, and "key: old -> new", of every setting that differs."""
    before, after = (dict(_flatten(dataclasses.asdict(_effective(recipe)))) for recipe in (old, new))
    keys = [key for key in sorted({**before, **after}) if before.get(key) != after.get(key)]
    return [(key, f"{key}: {before.get(key)} -> {after.get(key)}") for key in keys]


def _effective(recipe: Recipe) -> Recipe:
    """The same recipe without limits of predictions that limit nothing, and without a schedule that nobody follows."""
    phases = [
        phase if recipe.predictions(phase) < recipe.predictions(phase.unlimited) else phase.unlimited
        for phase in recipe.phases
    ]
    schedule = recipe.schedule if recipe.has_common_schedule else ScheduleConfig()
    return dataclasses.replace(recipe, phases=phases, schedule=schedule)


def _flatten(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if children is None:
        yield prefix, value
        return
    for key, child in children:
        yield from _flatten(child, f"{prefix}.{key}" if prefix else str(key))
