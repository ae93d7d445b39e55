"""What random reads cost the loader, cold and warm, on about 1 GB of shards.

    python benchmarks/random_reads.py --shards shards/ [--gigabytes 1] [--samples 20000] [--sequence-length 128]
                                      [--scratch DIR]

The training shards of a directory are copied under other names until they have the asked size, in --scratch, which
should lie on the disk that is to be measured; the copies are removed at the end. Read are batches of 32 masked samples,
each way in a process of its own: the pairs in file order; shuffled among shards of 64 MB, one after the other; shuffled
among all shards, which is the loader's default for up to 2 GiB. Cold: the kernel is asked to forget the files before
(posix_fadvise), which needs no root. The bytes that then come from the disk are the process's own in /proc/self/io.
Last the checksums of all shards are compared, as data.verify does on one rank.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from preprocessing.markdown import markdown_table
from preprocessing.schema import MANIFEST, TOKENIZER, ShardDirectory
from trainer.corpus import open_corpus
from trainer.data import DataConfig, SampleStream
from trainer.masking import MaskingConfig
from trainer.world import World

_Found = TypeVar("_Found")
BATCH = 32
WAYS = {
    "file order": {},
    "shuffled, a shard at a time": {"shuffle_bytes": 1},
    "shuffled among all": {"shuffle_bytes": 1 << 40},
}


def main() -> None:
    """Measure and write a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=Path, required=True)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--sequence-length", type=int, default=128)
    parser.add_argument("--scratch", type=Path, help="where the copies go (default: the system's temporary directory)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
        shards = enlarge(ShardDirectory(arguments.shards), Path(scratch) / "shards", arguments.gigabytes * 1e9)
        print(report(shards, arguments))


def enlarge(source: ShardDirectory, target: Path, size: float) -> Path:
    """A shard directory of about ``size`` bytes: copies of the training shards of another."""
    target.mkdir()
    shutil.copytree(source.tokenizer, target / TOKENIZER)
    originals = source.manifest.split("train")
    number = max(1, round(size / sum(entry.bytes for entry in originals)))
    entries = []
    for i in range(number):
        for entry in originals:
            name = f"copy-{i:03d}-{entry.file}"
            shutil.copyfile(source.path / entry.file, target / name)
            entries.append(dataclasses.replace(entry, file=name))
    manifest = dataclasses.replace(source.manifest, shards=entries)
    (target / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    return target


def report(shards: Path, arguments: argparse.Namespace) -> str:
    """A table, and what it is of."""
    table = [
        ["order of reading", "cold: samples/s", "tokens/s", "read from disk", "a sample", "warm: samples/s", "tokens/s"]
    ]
    for way in WAYS:
        cold, warm = (
            apart(measure, shards, way, temperature, arguments.samples, arguments.sequence_length)
            for temperature in ("cold", "warm")
        )
        table.append([
            way, f"{cold['samples']:,.0f}", f"{cold['tokens']:,.0f}", f"{cold['bytes'] / 1e6:,.0f} MB",
            f"{cold['bytes'] / arguments.samples / 1e3:,.1f} kB", f"{warm['samples']:,.0f}", f"{warm['tokens']:,.0f}",
        ])  # fmt: skip
    manifest = ShardDirectory(shards).manifest
    size, pairs = sum(entry.bytes for entry in manifest.shards), manifest.pairs("train", arguments.sequence_length)
    return (
        f"{len(manifest.shards)} shards, {size / 1e9:.2f} GB, {pairs:,} pairs; {arguments.samples:,} samples of up to "
        f"{arguments.sequence_length} tokens each way, one process\n\n" + markdown_table(table, range(1, 7))
        + "\nchecksums: " + ", ".join(f"{way} {apart(compare, shards, way)}" for way in ("cold", "warm"))
    )  # fmt: skip


def apart(work: Callable[..., _Found], shards: Path, *arguments: object) -> _Found:
    """Measure in a process of its own, which has nothing mapped."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, (str(shards), *arguments))


def measure(shards: str, way: str, temperature: str, samples: int, length: int) -> dict[str, float]:
    """Samples and real tokens a second, and the bytes that came from the disk meanwhile."""
    torch.set_num_threads(1)
    directory = prepared(shards, temperature)
    options: dict[str, Any] = WAYS[way]
    stream = SampleStream(
        directory, "train", length, seed=1, max_predictions=80, masking=MaskingConfig(), data=DataConfig(**options)
    )
    if not options:
        in_file_order(stream)
    before, began, tokens = bytes_read(), time.perf_counter(), 0
    for first in range(0, samples, BATCH):
        tokens += len(stream.batch(np.arange(first, min(samples, first + BATCH))).tokens.input_ids)
    seconds = time.perf_counter() - began
    return {"samples": samples / seconds, "tokens": tokens / seconds, "bytes": bytes_read() - before}


def compare(shards: str, temperature: str) -> str:
    """What data.verify takes, on one rank."""
    prepared(shards, temperature)
    corpus = open_corpus([shards])
    began, used = time.perf_counter(), time.process_time()
    corpus.verify(World(0, 1, torch.device("cpu")))
    seconds, processor = time.perf_counter() - began, time.process_time() - used
    return f"{seconds:.1f} s, {processor:.1f} s of CPU"


def prepared(shards: str, temperature: str) -> ShardDirectory:
    """Shards that the kernel has in its cache, or has not."""
    directory = ShardDirectory(shards)
    for entry in directory.manifest.shards:
        (forget if temperature == "cold" else read)(directory.path / entry.file)
    return directory


def in_file_order(stream: SampleStream) -> None:
    """Let a stream read pair after pair as they lie, shard after shard."""
    pairs = [entry.pairs[str(stream.sequence_length)] for entry in stream.directory.manifest.split("train")]
    starts = np.cumsum([0, *pairs])

    def locate(indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        shards = np.searchsorted(starts, indices, side="right") - 1
        return shards, indices - starts[shards]

    stream.locate = locate  # type: ignore[method-assign]


def forget(path: Path) -> None:
    """Ask the kernel to drop a file from its cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read(path: Path) -> None:
    """Have a file in the kernel's cache."""
    with path.open("rb") as file:
        while file.read(8 << 20):
            pass


def bytes_read() -> int:
    """What this process has had fetched from disks."""
    counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text(encoding="utf-8").splitlines())
    return int(counts["read_bytes"])


if __name__ == "__main__":
    main()
