"""What DeepSpeed keeps and sends under each ZeRO stage and precision (deepspeed 0.19.8).

Two things are not as one would expect. Stage 2 sends the sums of all gradients to all ranks, which then keep their part
(use_multi_rank_bucket_allreduce, on by default). And bf16 with float32 accumulation under stage 1 is a class apart,
BF16_Optimizer, in which every rank keeps all gradients, in both precisions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from trainer.settings import ConfigError

Precision = Literal["float32", "bf16", "fp16"]
STAGES = (0, 1, 2, 3)
_BYTES = {"float32": 4, "fp32": 4, "bf16": 2, "fp16": 2}  # of a precision, and of the types that DeepSpeed is told
_MASTER, _MOMENTS = 4, 8  # bytes of a parameter: float32 copy, and two moments in float32
ENGINE_BUCKET = 500_000_000  # elements; without ZeRO it can't be set


@dataclass(frozen=True)
class Sharding:
    """The part of DeepSpeed's configuration that decides memory and traffic.

    Attributes:
        stage: of ZeRO.
        precision: of the products.
        accumulation: bytes of an accumulated gradient.
        communication: bytes of a gradient on its way.
        bucket: elements that are reduced at a time.
        overlap: reduce while the backward pass goes on.
        scatter: stage 2 sends a gradient to its owner only, instead of to all.
        live: elements of gathered weights that stay, stage 3.
        prefetch: elements of weights that are gathered at a time, stage 3.
        reuse: elements of weights between two uses of one that stays, stage 3.
    """

    stage: int
    precision: Precision = "bf16"
    accumulation: int = 4
    communication: int = 4
    bucket: int = 500_000_000
    overlap: bool = False
    scatter: bool = False
    live: int = 1_000_000_000
    prefetch: int = 50_000_000
    reuse: int = 1_000_000_000

    @property
    def width(self) -> int:
        """Bytes of a weight in the products."""
        return _BYTES[self.precision]

    @property
    def accumulates_everything(self) -> bool:
        """Whether it is DeepSpeed's BF16_Optimizer."""
        return self.stage == 1 and self.precision == "bf16" and self.accumulation == 4

    @property
    def hides_reduction(self) -> bool:
        """Whether gradients are sent while others are still computed."""
        return self.overlap and self.stage > 0 and not self.accumulates_everything

    @property
    def accumulates_apart(self) -> bool:
        """Whether stage 2 adds up gradients in a float32 buffer that has only this rank's part."""
        return self.stage == 2 and self.width < self.accumulation

    def of_ranks(self, ranks: int) -> Sharding:
        """What the trainer makes of it for so many ranks (trainer.deepspeed_config.without_communication)."""
        if ranks > 1:
            return self
        if self.stage == 2 and (under_1 := replace(self, stage=1)).accumulates_everything:
            return replace(under_1, overlap=False)
        return replace(self, overlap=False, communication=self.width if self.stage == 2 else self.communication)

    def keeps_gathered(self, parameters: int) -> bool:
        """Whether stage 3 gathers weights once for both passes."""
        return min(self.live, self.reuse) >= parameters


def read_sharding(config: dict[str, Any]) -> Sharding:
    """Take what matters from DeepSpeed's configuration.

    Args:
        config: as trainer.deepspeed_config.resolve returns it.

    Raises:
        ConfigError: offloading, which this plan knows nothing of, or a size that it can't count with.
    """
    zero = config.get("zero_optimization", {})
    for section in ("offload_optimizer", "offload_param"):
        offload = zero.get(section) or {}
        if not isinstance(offload, dict) or offload.get("device", "none") != "none":
            raise ConfigError(
                f"zero_optimization.{section}: a plan covers GPU memory only; take it out to plan without"
            )
    precision = _precision(config)
    stage = zero.get("stage", 0)
    return Sharding(
        stage=stage,
        precision=precision,
        accumulation=_BYTES[config.get("data_types", {}).get("grad_accum_dtype") or precision],
        communication=_BYTES[config.get("communication_data_type") or precision],
        bucket=_elements(zero, "reduce_bucket_size", Sharding.bucket, least=1),
        overlap=bool(stage == 3 if zero.get("overlap_comm") is None else zero["overlap_comm"]),
        scatter=not zero.get("use_multi_rank_bucket_allreduce", True),
        live=_elements(zero, "stage3_max_live_parameters", Sharding.live),
        prefetch=_elements(zero, "stage3_prefetch_bucket_size", Sharding.prefetch, least=1),
        reuse=_elements(zero, "stage3_max_reuse_distance", Sharding.reuse),
    )


def _elements(zero: dict[str, Any], name: str, default: int, least: int = 0) -> int:
    """A number of elements; JSON may have it as 5e8."""
    found = zero.get(name, default)
    if type(found) not in (int, float) or not least <= found < 2**63 or found != found // 1:
        shown = repr(found)[:40]
        raise ConfigError(
            f"zero_optimization.{name} is {shown}; a plan wants a whole number, {least} or more, below 2**63"
        )
    return int(found)


def _precision(config: dict[str, Any]) -> Precision:
    for precision in ("bf16", "fp16"):
        if config.get(precision, {}).get("enabled"):
            return precision  # type: ignore[return-value]
    return "float32"


@dataclass(frozen=True)
class States:
    """Bytes on each GPU that do not depend on the batch.

    Attributes:
        weights: in the precision of the products; under stage 3 with those that are gathered.
        gradients: accumulated ones, and under stages 0 and 1 all of a backward pass.
        optimizer: moments, and float32 weights wherever ZeRO keeps its own.
        buffers: for gradients on their way, or under stage 3 weights, and those of CUDA graphs.
        updating: all that is held during the optimizer's update, when there are no activations.
    """

    weights: float
    gradients: float
    optimizer: float
    buffers: float
    updating: float

    @property
    def working(self) -> float:
        """All that is held, besides activations, during a backward pass."""
        return self.weights + self.gradients + self.optimizer + self.buffers


def model_states(
    parameters: int, sharding: Sharding, ranks: int, temporary: float = 0.0, in_graphs: bool = False
) -> States:
    """What P parameters take on each of n GPUs.

    Args:
        parameters: of the model.
        sharding: how DeepSpeed is set.
        ranks: GPUs.
        temporary: bytes of a parameter that the optimizer needs during its update only.
        in_graphs: whether micro-batches are in CUDA graphs, which write their gradients to one place of their own, from
            where they are copied.
    """
    share = parameters / ranks if sharding.stage else parameters
    weights = (share if sharding.stage == 3 else parameters) * sharding.width
    optimizer = share * (_MOMENTS + (_MASTER if sharding.stage else 0))
    gradients, update = _gradients(parameters, share, sharding)
    written = parameters * sharding.width if in_graphs else 0
    copied = written if sharding.stage >= 2 else 0  # of the others all of a backward pass's are counted
    update += share * temporary + written
    return States(
        weights=weights + (min(parameters, sharding.live) * sharding.width if sharding.stage == 3 else 0),
        gradients=gradients,
        optimizer=optimizer,
        buffers=_buffers(parameters, share, sharding) + written + copied,
        updating=weights + optimizer + update,
    )


def _gradients(parameters: int, share: float, sharding: Sharding) -> tuple[float, float]:
    """Gradients that wait for the update, and those that are there during it.

    During it a rank's part lies there as it was added up, in one piece, and in float32, as far as these differ.
    """
    held, master = share * sharding.accumulation, share * _MASTER
    converted = 0 if sharding.accumulation == _MASTER else held + master
    if sharding.stage == 0:
        return parameters * sharding.width, parameters * sharding.width
    if sharding.accumulates_everything:
        both = parameters * (sharding.accumulation + sharding.width)
        return both, both
    if sharding.stage == 3:
        return held, held + sharding.bucket * sharding.communication + (converted or master)
    if sharding.accumulates_apart:
        return held, held
    in_one_piece = held + (converted or master)
    if sharding.stage == 2:
        return held, in_one_piece
    return parameters * max(sharding.width, sharding.accumulation), in_one_piece


def _buffers(parameters: int, share: float, sharding: Sharding) -> float:
    """Buckets, which take all the room they are given, and copies of what is in them to pack or convert it.

    Copies of a rank's part of the gradients, made when no bucket is packed, count where they are larger.
    """
    contents = min(sharding.bucket, parameters)
    sent = sharding.communication
    if sharding.stage == 0:
        return min(ENGINE_BUCKET, parameters) * sent
    if sharding.accumulates_everything:
        return 0 if sent == sharding.accumulation else parameters * sent
    packed, part = contents * sharding.width, share * sharding.accumulation
    converted = contents * sent if sent != sharding.width else 0
    if sharding.stage == 3:  # where either weights are put together at the moment, or a bucket's contents are sent
        return sharding.bucket * sent + max(min(parameters, sharding.prefetch) * sharding.width, packed + converted)
    reserved = sharding.bucket * sharding.width * (2 if sharding.overlap else 1)
    if sharding.stage == 2:
        return reserved + converted + (packed if sharding.accumulates_apart else max(packed, part))
    return reserved + converted if sharding.overlap else max(reserved + converted, part)
