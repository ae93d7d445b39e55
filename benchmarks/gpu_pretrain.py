"""BERT-LARGE on one GPU: the ladder of measures beside its peers, where the time of a step goes, and correctness.

    python benchmarks/gpu_pretrain.py --shards shards/ --output gpu-128/ --lengths 128 --batches 256
    python benchmarks/gpu_pretrain.py --shards shards/ --output gpu-512/ --lengths 512 --batches 64

Each command takes under eight minutes, most of them for torch.compile, and leaves out what it has no time for: by
estimate the last row or two on an H200, which another run measures by --rows. Everything trains through the trainer's
own engine and loader on real shards (`beam run preprocessing/make_shards.py ... --sequence-lengths 128 512`). The peers
are transformers' BertForPreTraining with SDPA, padded, in a DeepSpeed engine of the same settings, plain and by
torch.compile. Rates count real tokens; TFLOP/s by trainer.metrics.training_flops, which has a whole last layer; the
ceiling is a bf16 product of 8192^3 in the same run. A fast way whose gradients are further from float32's than bfloat16
explains is refused: a part that failed.

OUTPUT/gpu.md has the tables, OUTPUT/gpu.json the figures. Both are written anew after each part; a part that fails or
that --end leaves no time for is named there, the others go on, and the exit code is 1. With any other one the process
did not come to its end: a kernel that reads or writes where it must not takes the GPU from all that follows, and one
that never ends is given up with its process. The same command with --go-on then does the other parts, but those that
need the same kernels, and may begin with it:

    for attempt in 1 2 3 4 5 6; do COMMAND --go-on; [ $? -gt 2 ] || break; done

`--device cpu --size demo` shows that the script works where there is no GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from common import Parts, be_the_only_rank, copy_bandwidth, found_by, missing, open_shards, require_cpu
from gpu_attention import measure as measure_attention
from gpu_attention import table as attention_table
from gpu_correctness import (
    FREE,
    OWN_KERNELS,
    TOLERANCE,
    Ways,
    by_operations,
    by_own_kernels,
    compare_with_float32,
    compiled,
    dropout_in_effect,
    in_eight_bits,
    in_graphs,
    own_dropout_in_effect,
)
from gpu_predictions import BEST_IN_GRAPHS, LADDER, PEER, Row
from gpu_rows import SIZES, Bench, profile, train
from preprocessing.markdown import markdown_table
from trainer.joining import join_world
from trainer.metrics import measure_ceiling
from trainer.profiling import kind_of
from trainer.world import leave_world

COMPILING = 80.0  # seconds after --end when a row that still compiles is given up


def main() -> None:
    """Measure part after part."""
    arguments = _parse()
    be_the_only_rank()
    if arguments.device == "cpu":
        require_cpu()
    arguments.output.mkdir(parents=True, exist_ok=True)
    world = join_world(threads=0)
    ceiling, bandwidth = measure_ceiling(world.device, torch.bfloat16), copy_bandwidth(world.device)
    machine = torch.cuda.get_device_name() if world.device.type == "cuda" else "CPU"
    about = {"machine": machine, "torch": torch.__version__, "ceiling": ceiling, "bandwidth": bandwidth}
    parts = Parts(
        arguments.output / "gpu", about, lambda records: page(about, records), arguments.end, arguments.go_on,
        arguments.patience,
    )  # fmt: skip
    batches = dict(zip(arguments.lengths, arguments.batches, strict=True))
    last = parts.began + arguments.end + COMPILING
    bench = Bench(arguments.shards, world, ceiling, bandwidth, batches, arguments.size, arguments.seconds, last)
    for part in all_parts(bench, arguments.rows):
        if part.kind in arguments.kinds:
            parts.run(*part)
    print(page(about, parts.records))
    leave_world()
    sys.exit(not parts.complete)


# --- The parts ---


class Part(NamedTuple):
    """See Parts.run."""

    kind: str
    name: str
    measure: Callable[[], Any]
    needs: tuple[str, ...] = ()


GRAPHS = "CUDA graphs"  # which, like OWN_KERNELS, are compared with float32 before any part that has them
KINDS_OF_PARTS = ("attention", "dropout", "row", "profile", "error")


def all_parts(bench: Bench, rows: Sequence[str] | None = None) -> Iterator[Part]:
    """What matters most comes first; rows that are named come alone."""
    if rows is not None:
        yield from _rows([row for row in LADDER if row.name in rows], list(bench.batches), bench)
        return
    yield Part("dropout", "of attention", partial(dropout_in_effect, bench.world.device))
    first = [row for row in (BEST_IN_GRAPHS, bench.best) if row in bench.ladder]
    for length in bench.batches:
        if bench.best.fused:  # before what they compute is timed
            yield _errors(OWN_KERNELS, by_own_kernels, length, bench)
            yield _errors(GRAPHS, in_graphs, length, bench, needs=(OWN_KERNELS,))
        yield from _rows(first, [length], bench)
        yield _profile(first[0], length, bench)
        if bench.best.fused:
            yield Part(
                "attention", f"{length} tokens", partial(attention_alone, length, bench), _named(length, OWN_KERNELS)
            )
            own_dropout = partial(own_dropout_in_effect, bench.world.device)
            # Whatever the length, and so once.
            yield Part("dropout", "of our own kernels", own_dropout, _named(length, OWN_KERNELS))
        yield from _rows([PEER], [length], bench)
        yield _errors("operations of torch", by_operations, length, bench)
        yield _errors("torch.compile", compiled, length, bench)
        others = [row for row in bench.ladder if row not in (*first, PEER)]
        yield from _rows(others, [length], bench)
        yield _profile(PEER, length, bench)  # it is compiled as a whole once more
        yield _errors("eight bits", in_eight_bits, length, bench, FREE)


def _named(length: int, *ways: str) -> tuple[str, ...]:
    """What the comparisons of ways with float32 are called."""
    return tuple(f"{length} tokens, {way}" for way in ways)


def _needs(row: Row, length: int) -> tuple[str, ...]:
    return _named(length, *([OWN_KERNELS] * row.fused), *([GRAPHS] * row.graphs))


def _profile(row: Row, length: int, bench: Bench) -> Part:
    name = f"{row.name}, {length} tokens"
    return Part("profile", name, partial(profile, row, length, bench), _needs(row, length))


def _rows(rows: Sequence[Row], lengths: Sequence[int], bench: Bench) -> Iterator[Part]:
    for length in lengths:
        for row in rows:
            name = f"{row.name}, {length} tokens"
            yield Part("row", name, partial(train, row, length, bench), _needs(row, length))


def _errors(
    way: str, ways: Ways, length: int, bench: Bench, tolerance: float = TOLERANCE, needs: Sequence[str] = ()
) -> Part:
    (name,) = _named(length, way)
    compare = partial(compare_with_float32, ways, length, bench, tolerance)
    return Part("error", name, compare, _named(length, *needs))


def attention_alone(length: int, bench: Bench) -> list[dict[str, Any]]:
    """What attention takes in a layer of BERT-LARGE, of a step's sequences."""
    (batch,) = bench.steps(bench.best, bench.recipe(bench.best, length))[0]
    return measure_attention(length, batch.lengths.long(), bench.world.device)


# --- The page ---


def page(about: dict[str, Any], records: list[dict[str, Any]]) -> str:
    """All tables, of what there is."""
    return "\n".join(_sections(about, records))


def _sections(about: dict[str, Any], records: list[dict[str, Any]]) -> Iterator[str]:
    yield (
        f"{about['machine']}, torch {about['torch']}: {about['ceiling'] / 1e12:.3g} TFLOP/s of bf16 products (100 %), "
        f"{about['bandwidth'] / 1e9:,.0f} GB/s of copying.\n"
    )
    order = [row.name for row in LADDER]
    rows = sorted(found_by(records, "row").values(), key=lambda row: (row["length"], order.index(row["row"])))
    if rows:
        names = ("", "tokens", "dropout", "batch", "steps", "seq/s", "real tokens/s", "predicted", "TFLOP/s",
                 "of the ceiling", "padding", "data wait", "GB")  # fmt: skip
        yield markdown_table([names, *map(_row, rows)], range(1, len(names)))
        yield "TFLOP/s count the last layer whole. Ours computes it where it is read: 2.9 % less for BERT-LARGE.\n"
    for found in found_by(records, "profile").values():
        yield f"One step, {found['row']}, {found['length']} tokens, of a profile:\n"
        total, step = sum(found["kinds"].values()), found["step"]
        sums = {"all kernels": total, "the step, not profiled": step, "difference": step - total}
        table = {**found["kinds"], **sums}
        lines = [[what, f"{ms:.1f}", f"{ms / step:.1%}"] for what, ms in table.items()]
        yield markdown_table([["what", "ms", "share"], *lines], (1, 2))
        of_attention = [f"`{name[:90]}`" for _, _, name in found["kernels"] if kind_of(name) == "attention"]
        yield f"{found['launches']:,} launches. Attention's kernels: {', '.join(of_attention) or 'none'}\n"
    if attention_ := [one for found in found_by(records, "attention").values() for one in found]:
        yield attention_table(attention_)
    if lines := [
        [one["way"], f"{one['asked']:g}", f"{one['dropped']:.4f}", f"{one['mean']:.4f}"]
        for found in found_by(records, "dropout").values()
        for one in found
    ]:
        yield markdown_table(
            [["dropout of attention's weights", "asked for", "dropped", "mean weight"], *lines], (1, 2, 3)
        )
    compared = [
        [str(found["length"]), way, *(f"{error[figure]:.1e}" for figure in ("loss", "median", "worst"))]
        for found in found_by(records, "error").values()
        for way, error in found["errors"].items()
    ]
    if compared:
        heading = ("tokens", "error against float32", "loss", "a parameter's gradient, median", "the worst")
        yield markdown_table([heading, *compared], (0, 2, 3, 4))
    if lost := missing(records):
        yield markdown_table([["not measured", "", "why"], *lost])


def _row(row: dict[str, Any]) -> list[str]:
    return [
        row["row"], str(row["length"]), row["dropout"], str(row["batch"]), str(row["steps"]),
        f"{row['sequences']:,.0f}", f"{row['tokens']:,.0f}", f"{row['predicted']:,.0f}", f"{row['tflops']:.3g}",
        f"{row['ceiling']:.1%}", f"{row['padding']:.1%}", f"{row['wait']:.1%}", f"{row['memory_gb']:.1f}",
    ]  # fmt: skip


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--size", choices=sorted(SIZES), default="large")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--lengths", type=int, nargs="+", required=True, help="of sequences, in tokens")
    parser.add_argument("--batches", type=int, nargs="+", required=True, help="samples of a micro-batch, per length")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each row")
    parser.add_argument(
        "--end",
        type=float,
        default=440.0,
        help=f"seconds from the start when no part is begun any more, and {COMPILING:.0f} "
        "more until a row ends that still compiles",
    )
    parser.add_argument(
        "--patience", type=float, default=240.0, help="seconds until a part is given up, and the process with it"
    )
    parser.add_argument("--go-on", action="store_true", help="leave out what OUTPUT/gpu.json has a record of")
    parser.add_argument(
        "--kinds", nargs="+", choices=KINDS_OF_PARTS, default=KINDS_OF_PARTS, help="of parts, these alone"
    )
    parser.add_argument("--rows", nargs="+", choices=[row.name for row in LADDER], help="measure these alone")
    arguments = parser.parse_args()
    if len(arguments.lengths) != len(arguments.batches):
        parser.error("--batches: as many as --lengths")
    arguments.shards = open_shards(parser, arguments)
    for length in arguments.lengths:
        if length not in arguments.shards.manifest.sequence_lengths:
            parser.error(f"{arguments.shards.path}: no pairs of {length} tokens, only of "
                         f"{arguments.shards.manifest.sequence_lengths}")  # fmt: skip
    return arguments


if __name__ == "__main__":
    main()
