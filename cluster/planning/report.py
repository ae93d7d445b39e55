"""A plan, and the calibration, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cluster.planning.calibration import SYSTEMS, compare, fit
from cluster.planning.estimate import BUCKET
from cluster.planning.network import count_nodes
from cluster.planning.plans import Plan, StagePlan
from preprocessing.markdown import markdown_table
from preprocessing.terminal import counted

_GIB = 2**30
_PRECISIONS = {"bf16": "bf16 beside float32 weights", "fp16": "fp16 beside float32 weights", "float32": "float32"}
_WORTH_A_WORD = 0.02  # of the time


def report(name: str, plan: Plan, source: str, scaling: Sequence[tuple[int, float]]) -> Iterator[str]:
    """The paragraphs of a plan in Markdown.

    Args:
        name: of the recipe.
        plan: to show.
        source: of the efficiency.
        scaling: (GPUs, hours), see estimate.scaling.
    """
    cluster, node = plan.cluster, plan.cluster.gpu.node
    peak = cluster.gpu.peak_in(cluster.sharding.precision)
    yield f"# {name} on {cluster.gpus:,} x {cluster.gpu.name}, on paper\n"
    yield (
        f"{plan.parameters / 1e6:,.1f} M parameters, ZeRO {cluster.sharding.stage}, "
        f"{_PRECISIONS[cluster.sharding.precision]}. {counted(count_nodes(cluster.gpus, node), 'node')} of "
        f"{counted(node.gpus, 'GPU')}; {node.source}. "
        f"Products at {plan.assumptions.efficiency:.0%} of {peak / 1e12:,.4g} TFLOP/s ({source}). "
        f"Sequences {plan.assumptions.fill:.0%} full.\n"
    )
    yield "## Time\n"
    yield _time_table(plan)
    yield from _advice(plan)
    yield "## Memory of a GPU, GiB\n"
    yield _memory_table(plan)
    yield (
        f"{plan.usable / _GIB:.1f} GiB of {cluster.gpu.memory / _GIB:.0f} are counted on. A sequence of "
        + ", of ".join(
            dict.fromkeys(  # phases of one length are likely to say the same
                f"{phase.length} tokens keeps {phase.kept / _GIB:.3f} GiB of activations "
                f"({phase.kept_checkpointed / _GIB:.3f} with activation checkpointing)"
                for phase in plan.phases
            )
        )
        + ".\n"
    )
    yield "## Storage\n"
    yield from _storage(plan)
    if scaling:
        yield "## Other numbers of GPUs\n"
        yield _scaling_table(scaling)


def _time_table(plan: Plan) -> str:
    phases, gpus = plan.phases, plan.cluster.gpus
    rows = [
        ["", *(f"phase {i}" for i in range(len(phases))), "total"],
        ["tokens of a sequence", *(f"{p.length}" for p in phases), ""],
        ["sequences of a step", *(f"{p.batch:,}" for p in phases), ""],
        ["micro-batch x accumulation", *(f"{p.micro_batch} x {p.accumulation}" for p in phases), ""],
        ["step, ms", *(f"{1e3 * p.step.total:,.1f}" for p in phases), ""],
        ["- products, or their launches", *(f"{1e3 * p.step.compute:,.1f}" for p in phases), ""],
        ["- update", *(f"{1e3 * p.step.update:,.1f}" for p in phases), ""],
        ["- network, waited for", *(f"{1e3 * p.step.exposed:,.1f}" for p in phases), ""],
        ["network in all, ms", *(f"{1e3 * p.step.network:,.1f}" for p in phases), ""],
        ["sequences/s", *(f"{p.rate:,.0f}" for p in phases), ""],
        ["TFLOP/s of a GPU", *(f"{p.rate * p.flops / gpus / 1e12:,.0f}" for p in phases), ""],
        ["steps", *(f"{p.steps:,}" for p in phases), f"{sum(p.steps for p in phases):,}"],
        ["hours", *(_hours(p.hours) for p in phases), _hours(plan.hours)],
        ["GPU-hours", *(f"{p.hours * gpus:,.1f}" for p in phases), f"{plan.gpu_hours:,.1f}"],
    ]
    price = plan.assumptions.price
    if price is not None:
        rows.append(["cost", *(f"{p.hours * gpus * price:,.0f}" for p in phases), f"{plan.gpu_hours * price:,.0f}"])
    return markdown_table(rows, numbers=range(1, len(rows[0])))


def _hours(hours: float) -> str:
    return f"{hours:,.1f}" if hours >= 10 else f"{hours:.2f}"


def _advice(plan: Plan) -> Iterator[str]:
    """What to set, and what holds the training up."""
    micro_batches = {i: phase.micro_batch for i, phase in enumerate(plan.phases)} | plan.unreached
    settings = " ".join(f"phases.{i}.micro_batch_size={size}" for i, size in micro_batches.items())
    yield f"Give the trainer `{settings}`.\n"
    waiting = {i: phase.micro_batch for i, phase in enumerate(plan.phases) if phase.step.launch_bound}
    if waiting:
        who = " and ".join(f"phase {i}" for i in waiting).capitalize()
        *others, last = dict.fromkeys(waiting.values())
        sizes = " or ".join([*map(str, others), counted(last, "sequence")])
        yield (
            f"{who} {'wait' if len(waiting) > 1 else 'waits'} for the CPU: launching the operations of {sizes} "
            "takes longer than their products. More GPUs change little; a larger batch would.\n"
        )
    if waiting and plan.hours_in_graphs is not None and plan.hours_in_graphs < (1 - _WORTH_A_WORD) * plan.hours:
        yield (
            f"With `train.cuda_graphs=true data.token_multiple={plan.multiple_in_graphs}`, and zero_optimization.stage "
            f"1, it would be {_hours(plan.hours_in_graphs)} hours.\n"
        )
    if plan.hours_in_buckets is not None and plan.hours_in_buckets < (1 - _WORTH_A_WORD) * plan.hours:
        yield (
            f"zero_optimization.reduce_bucket_size {plan.cluster.sharding.bucket:,} takes the whole model, so no "
            f"gradient is sent before the backward pass ends; with {BUCKET:,} it would be "
            f"{_hours(plan.hours_in_buckets)} hours.\n"
        )


def _memory_table(plan: Plan) -> str:
    columns: dict[tuple[int, ...], int] = {}  # by what they say: phases of one length are likely to have the same
    for i, phase in enumerate(plan.phases):
        columns.setdefault((phase.length, *(stage.largest[i] for stage in plan.stages if not stage.refused)), i)
    shown = list(columns.values())
    header = ["ZeRO", "weights", "gradients", "optimizer", "buffers", "at the update"]
    header += [*(f"largest micro-batch of {plan.phases[i].length}" for i in shown), "hours"]
    rows = [_stage_row(stage, plan, shown) for stage in plan.stages]
    return markdown_table([header, *rows], numbers=range(1, len(header)))


def _stage_row(plan: StagePlan, of: Plan, phases: Sequence[int]) -> list[str]:
    if plan.refused:
        return [f"{plan.stage}", *["-"] * (5 + len(phases)), plan.refused]
    states = plan.states
    parts = (states.weights, states.gradients, states.optimizer, states.buffers, states.updating)
    mark = " (this plan)" if plan.stage == of.cluster.sharding.stage else ""
    hours = "does not fit" if plan.hours is None else _hours(plan.hours)
    return [
        f"{plan.stage}{mark}",
        *(f"{part / _GIB:.2f}" for part in parts),
        *(str(plan.largest[i]) for i in phases),
        hours,
    ]


def _storage(plan: Plan) -> Iterator[str]:
    seconds = plan.checkpoint / plan.assumptions.write
    between = min(phase.step.total for phase in plan.phases) * plan.checkpoint_every
    yield (
        f"A checkpoint has {plan.checkpoint / 1e9:.2f} GB (12 bytes a parameter, over all ranks), every "
        f"{counted(plan.checkpoint_every, 'step')} or {between / 60:,.1f} minutes; at "
        f"{plan.assumptions.write / 1e9:g} GB/s it is written in {seconds:,.1f} s, while training continues. "
        f"Training data is read at {plan.read_rate / 1e6:,.1f} MB/s by all GPUs together.\n"
    )
    if seconds > between:
        yield "Checkpoints come faster than they are written: training will wait. Set a larger checkpoint.every.\n"


def _scaling_table(scaling: Sequence[tuple[int, float]]) -> str:
    gpus, hours = scaling[0]
    rows = [
        [f"{n:,}", _hours(h), f"{n * h:,.0f}", f"{hours / h:,.1f}", f"{gpus * hours / (n * h):.0%}"] for n, h in scaling
    ]
    return markdown_table(
        [["GPUs", "hours", "GPU-hours", f"times as fast as {gpus}", "of ideal"], *rows], numbers=range(5)
    )


def calibration() -> Iterator[str]:
    """Published runs beside their predictions, in Markdown."""
    for system in SYSTEMS:
        rows = [["GPUs", "published, s", "predicted, s", "error", "published, seq/s/GPU", "predicted"]]
        for i, run in enumerate(compare(system)):
            rates = (run.samples / seconds / run.gpus for seconds in (run.published, run.predicted))
            error = "fitted" if i == 0 else f"{run.error:+.1%}"
            rows.append(
                [
                    f"{run.gpus:,}",
                    f"{run.published:,.2f}",
                    f"{run.predicted:,.2f}",
                    error,
                    *(f"{r:,.1f}" for r in rates),
                ]
            )
        yield f"{system.name}: efficiency {fit(system):.1%}, fitted on the run of {system.runs[0].gpus}\n"
        yield markdown_table(rows, numbers=range(6))
