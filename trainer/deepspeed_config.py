"""DeepSpeed's configuration: its own knobs from a JSON file, what the recipe rules filled in, and what is refused."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trainer.config import Phase, Recipe
from trainer.settings import ConfigError


class DeepSpeedFile(NamedTuple):
    """A file of DeepSpeed's own knobs, read once: it may be a pipe, or edited before it is written down."""

    path: Path | str
    text: str
    settings: dict[str, Any]


def read_deepspeed(path: Path | str) -> DeepSpeedFile:
    """Read a JSON file of DeepSpeed's own knobs.

    Raises:
        ConfigError: no such file, or not JSON.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")  # some editors begin with a mark
        raw = json.loads(text, object_pairs_hook=_without_repetition)
    except OSError as error:
        raise ConfigError(
            f"{path}: can't read the DeepSpeed configuration ({error.strerror}); name it by --deepspeed_config"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not a JSON file ({error})") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: the DeepSpeed configuration must be a JSON object")
    return DeepSpeedFile(path, text, raw)


def resolve(file: DeepSpeedFile, recipe: Recipe, phase: Phase, world: int) -> dict[str, Any]:
    """DeepSpeed's configuration with what the recipe rules filled in.

    Args:
        file: batch sizes and clipping are "auto" or absent there.
        recipe: the run's recipe.
        phase: the phase that is to be trained.
        world: number of ranks.

    Raises:
        ConfigError: a key that has no effect here or would do harm, or a value that the recipe contradicts.
    """
    path, raw = file.path, file.settings
    _refuse(raw, path)
    for name in wants_whole_parameters(recipe):
        if _look_up(raw, "zero_optimization.stage") == 3:
            raise ConfigError(
                f"{path}: train.{name} needs zero_optimization.stage 0, 1 or 2: under 3 a layer's parameters "
                f"come and go while it is computed; use one of these, or train.{name}=false"
            )
    for name in ("compile", "cuda_graphs"):
        if getattr(recipe.train, name) and _look_up(raw, "flops_profiler.enabled"):
            raise ConfigError(
                f"{path}: flops_profiler.enabled: DeepSpeed 0.19 fails to count what torch.compile or a CUDA graph has "
                f"made; remove it, or profile with train.{name}=false"
            )
    ruled = {
        "train_batch_size": phase.global_batch_size,
        "train_micro_batch_size_per_gpu": phase.micro_batch_size,
        "gradient_accumulation_steps": accumulation_steps(phase, world),
        "gradient_clipping": recipe.optimizer.max_gradient_norm,
    }
    for key, value in ruled.items():
        if raw.get(key, "auto") not in ("auto", value):
            raise ConfigError(f'{path}: {key} is {json.dumps(raw[key])}, but the recipe says {value}; write "auto"')
    # DeepSpeed's measurement of throughput waits for the device twice in every micro-batch (utils/timer.py).
    quiet = {"timers": {"throughput": {"enabled": False}}}
    # What is asked of DeepSpeed's own log is news there, and otherwise its log tells warnings only.
    log = {"log_level": "info"} if _prints(raw, recipe.last_step) else {}
    # Our optimizers are plain torch optimizers, which DeepSpeed has not tested, and which it must not replace.
    ours = {"zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}
    return {**quiet, **log, **raw, **ruled, **ours}


def wants_whole_parameters(recipe: Recipe) -> list[str]:
    """What [train] asks for that ZeRO 3 can't do, under which a layer's parameters come and go."""
    return [name for name in ("compile", "cuda_graphs", "fused", "fp8") if getattr(recipe.train, name)]


def _without_repetition(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, of whose keys none hides another.

    Raises:
        ValueError: a key comes twice.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} stands twice in one object")
    return found


def _prints(raw: dict[str, Any], steps: int) -> bool:
    """Whether a configuration asks for something that DeepSpeed tells in its log."""
    every_so_many = raw.get("steps_per_print") or math.inf
    return bool(every_so_many <= steps or raw.get("dump_state") or _look_up(raw, "comms_logger.verbose"))


def without_communication(config: Mapping[str, Any]) -> dict[str, Any]:
    """DeepSpeed's configuration for a single rank, without what it would do to communicate.

    DeepSpeed 0.19 does it all the same, which costs a GPU time: to overlap it waits for the device after every
    micro-batch; to scatter gradients, in another type, it reads and writes each of them twice more; and under ZeRO 2
    Python looks after every gradient of every backward pass (zero/stage_1_and_2.py). So bf16 summed in float32 is left
    to ZeRO 1, which for one rank keeps and computes the same.
    """
    if "zero_optimization" not in config:
        return dict(config)
    zero = {**config["zero_optimization"], "overlap_comm": False}
    offloads = _look_up(config, "zero_optimization.offload_optimizer.device") == "cpu"
    has_float32_sums = _look_up(config, "bf16.enabled") and _look_up(config, "data_types.grad_accum_dtype") == "fp32"
    if zero.get("stage") == 2 and has_float32_sums and not offloads:
        zero["stage"] = 1
    stage = zero.get("stage", 0)
    if stage in (1, 2):
        zero["reduce_scatter"] = False
    dropped = ("communication_data_type",) if stage == 2 else ()
    return {**{key: value for key, value in config.items() if key not in dropped}, "zero_optimization": zero}


# The keys of DeepSpeed's configuration that have an effect on this trainer; most of the others would be ignored.
_SECTIONS = (
    *("zero_optimization", "bf16", "fp16", "data_types", "torch_autocast"),
    *("flops_profiler", "comms_logger", "timers", "tensorboard", "wandb", "csv_monitor", "comet"),
)
_VALUES = (
    *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"),
    *("communication_data_type", "prescale_gradients"),
    *("zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer"),
    *("steps_per_print", "wall_clock_breakdown", "memory_breakdown", "dump_state", "log_level", "disable_python_gc"),
)

# The keys of sections in which DeepSpeed passes over what it does not know.
_WITHIN = {
    "data_types": ("grad_accum_dtype",),
    "torch_autocast": ("enabled", "dtype", "lower_precision_safe_modules"),
    "timers": ("throughput",),
    "flops_profiler": (
        *("enabled", "recompute_fwd_factor", "profile_step", "module_depth", "top_modules", "detailed", "output_file"),
    ),
}

# What decides which numbers are computed, to rounding and beyond it.
_OF_NUMBERS = (
    *("bf16.enabled", "fp16.enabled", "data_types.grad_accum_dtype", "communication_data_type"),
    *("zero_optimization.stage", "zero_optimization.offload_optimizer.device"),
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
    ("zero_optimization.cpu_offload", True, 'write "offload_optimizer": {"device": "cpu"}'),
    ("zero_optimization.cpu_offload_param", True, 'write "offload_param": {"device": "cpu"}'),
    ("zero_optimization.offload_optimizer.device", "nvme", "use cpu: checkpoints don't find what lies on a disk"),
    ("zero_optimization.offload_param.device", "nvme", "use cpu: checkpoints don't find what lies on a disk"),
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
    (
        "prescale_gradients",
        True,
        "remove it: losses are normalized already, and most ways to reduce gradients refuse it",
    ),
    ("gradient_allreduce_op", None, "remove it: losses are normalized for the mean over the ranks"),
    ("activation_checkpointing", None, "remove it and set model.activation_checkpointing=true"),
    ("zero_optimization.zero_quantized_gradients", True, "remove it: on CPUs DeepSpeed fails, on GPUs it is untried"),
    ("zero_optimization.legacy_stage1", True, "remove it: DeepSpeed 0.19 has it no more"),
    *(  # one setting of two names
        (f"zero_optimization.{name}", None, "remove it: DeepSpeed 0.19 fails with it in the first backward pass")
        for name in ("module_granularity_threshold", "stage3_module_granularity_threshold")
    ),
    ("tensor_parallel", None, _WHOLE_LAYERS),
    ("sequence_parallel_size", None, _WHOLE_LAYERS),
]


def _whole(least: int) -> Callable[[Any], bool]:
    """Whether something is a whole number of so many or more, which true is not."""
    return lambda found: type(found) is int and found >= least


_SWITCH: tuple[Callable[[Any], bool], str] = (lambda found: isinstance(found, bool), "write true or false")
_DTYPES = ("fp32", "fp16", "bf16")
_LEVELS = ("debug", "info", "warning", "error", "critical")

# Keys, which of their values are taken, and what else to do.
_CHECKED: list[tuple[str, Callable[[Any], bool], str]] = [
    # Of one rank's configuration the key is left out, unread.
    ("communication_data_type", lambda found: found in _DTYPES, "choose fp32, fp16 or bf16"),
    # What follows DeepSpeed looks at when an engine is built, after the run directory, or not at all.
    ("data_types.grad_accum_dtype", lambda found: found in _DTYPES, "choose fp32, fp16 or bf16"),
    ("steps_per_print", _whole(1), "give a number of steps, or leave it out"),
    ("timers.throughput", lambda found: isinstance(found, dict), "it must be an object, {...}"),
    ("flops_profiler.profile_step", _whole(1), "give a step, from 1"),
    ("flops_profiler.module_depth", _whole(-1), "give a depth, -1 for all"),
    ("flops_profiler.top_modules", _whole(1), "give a number of modules"),
    ("flops_profiler.output_file", lambda found: isinstance(found, str), "give a file's name"),
    (
        "flops_profiler.recompute_fwd_factor",
        lambda found: type(found) in (int, float) and 0 <= found < math.inf,
        "give a number, 0 or more",
    ),
    ("zero_optimization.stage", lambda found: type(found) is int and found in range(4), "choose 0, 1, 2 or 3"),
    (
        "zero_optimization.offload_optimizer.ratio",
        lambda found: found == 1,
        "leave it out: a part of the optimizer is offloaded only by one of DeepSpeed's own",
    ),
    *(
        (key, *_SWITCH)
        for key in (
            *("bf16.enabled", "fp16.enabled"),  # DeepSpeed takes "auto" for false
            *("flops_profiler.enabled", "flops_profiler.detailed"),
            *("wall_clock_breakdown", "memory_breakdown", "dump_state", "disable_python_gc"),
            *(key for key, value, _ in _REFUSED if isinstance(value, bool)),  # and "true" for true
        )
    ),
    ("log_level", lambda found: str(found).lower() in _LEVELS, f"choose {', '.join(_LEVELS)}"),
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
    if _look_up(raw, "comet.api_key"):  # which no message may show
        raise ConfigError(
            f"{path}: comet.api_key would be read by all who see the copies of this file in the run directory and in "
            "MLflow; remove it, and set the variable COMET_API_KEY"
        )
    for section, known in _WITHIN.items():
        if unknown := [key for key in raw.get(section, {}) if key not in known]:
            raise ConfigError(
                f"{path}: {section}.{unknown[0]} has no effect here, only {', '.join(known)} has; remove it"
            )
    for key, fits, advice in _CHECKED:
        found = _look_up(raw, key)
        if found is not None and not fits(found):
            raise ConfigError(f"{path}: {key} is {json.dumps(found)}; {advice}")
    stage = _look_up(raw, "zero_optimization.stage") or 0
    for section, stages in (("offload_optimizer", "1, 2 or 3"), ("offload_param", "3")):
        if _look_up(raw, f"zero_optimization.{section}.device") == "cpu" and str(stage) not in stages:
            raise ConfigError(
                f"{path}: zero_optimization.{section} has no effect under stage {stage}; remove it, or take stage "
                f"{stages}"
            )
    bf16, fp16 = (_look_up(raw, f"{precision}.enabled") for precision in ("bf16", "fp16"))
    if bf16 and fp16:
        raise ConfigError(f"{path}: bf16 and fp16 are both enabled; choose one")
    if (bf16 or fp16) and not stage:
        raise ConfigError(
            f"{path}: mixed precision needs zero_optimization.stage 1, 2 or 3; use one or train in float32"
        )


def other_numbers(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The settings by which two files of DeepSpeed's configuration compute other numbers, as "key: old -> new"."""
    values = [(key, _look_up(before, key) or None, _look_up(after, key) or None) for key in _OF_NUMBERS]
    return [f"{key}: {ours} -> {theirs}" for key, ours, theirs in values if ours != theirs]


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
            f"for {world} rank(s): it must be a multiple of {at_once}; change global_batch_size or micro_batch_size of "
            "the phase, or the number of ranks"
        )
    return phase.global_batch_size // at_once
