"""Peak memory of the preprocessing job, by the size of its input.

    python benchmarks/preprocessing_memory.py 'books/*.txt' --vocab vocab.txt [--sizes 0.25 0.5 1] [--workers 2]
    python benchmarks/preprocessing_memory.py 'books/*.txt' --vocab vocab.txt --sizes 17 --files 1

Real text is repeated and perturbed (some words of every paragraph become others, so that nothing is a duplicate, and a
few are new) to the asked sizes in GB, as JSON lines, each in so many files. Measured is anonymous memory (shared memory
included, mapped files not) of the job's processes together, several times a second, and what lies in the output's
folder. Printed are the peaks and the slope between the smallest and the largest size: bytes of memory for each byte of
tokens in the shards. `--keep` leaves the shards of the last job in the scratch folder.
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import json
import random
import resource
import shutil
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from preprocessing.markdown import markdown_table
from preprocessing.schema import ShardDirectory, token_type
from preprocessing.sources.books import strip_gutenberg, unwrap

DOCUMENT_PARAGRAPHS = 40
CHANGED = 12  # one word in this many becomes another one
NEW = 200  # and one in this many a word that no text has
INTERVAL = 0.25  # seconds between two looks
DISK_INTERVAL = 5.0  # seconds between two looks at the output's folder


class Measured(NamedTuple):
    """A job, measured."""

    text_bytes: int
    files: int
    tokens: int
    token_bytes: int
    shards: int
    dropped: int  # documents
    peak: int  # bytes of memory
    output: int  # bytes of the shards
    disk: int  # most bytes in the output's folder
    seconds: float
    cpu: float  # seconds


def paragraphs_of(patterns: Sequence[str]) -> list[list[str]]:
    """The words of every paragraph of some text files."""
    found = []
    for path in sorted(path for pattern in patterns for path in glob.glob(pattern)):  # noqa: PTH207 - patterns are whole paths
        body, _ = strip_gutenberg(Path(path).read_text(encoding="utf-8", errors="replace"))
        found += [line.split() for line in unwrap(body).split("\n") if line]
    return found


def documents(paragraphs: list[list[str]]) -> Iterator[str]:
    """Endless documents."""
    chance, at = random.Random(1), 0
    words = [word for paragraph in paragraphs[:2000] for word in paragraph]
    while True:
        lines = []
        for _ in range(DOCUMENT_PARAGRAPHS):
            line = list(paragraphs[at % len(paragraphs)])
            for _ in range(1 + len(line) // CHANGED):
                line[chance.randrange(len(line))] = chance.choice(words)
            if chance.randrange(NEW) < len(line):
                line[chance.randrange(len(line))] = "".join(chance.choices(string.ascii_lowercase, k=7))
            lines.append(" ".join(line))
            at += 1
        yield "\n".join(lines)


def write_inputs(folder: Path, paragraphs: list[list[str]], size: int, files: int) -> None:
    """Write so many bytes of text as JSON lines; the documents are the same however many files they are in."""
    source, written = documents(paragraphs), 0
    for number in range(files):
        with (folder / f"{number}.jsonl").open("w", encoding="utf-8") as file:
            while written < size * (number + 1) // files:
                text = next(source)
                written += len(text.encode())
                file.write(json.dumps({"text": text}) + "\n")


def anonymous(process: psutil.Process) -> int:
    """Anonymous and shared memory of a process and all its children, pages of several processes counted once."""
    total = 0
    for pid in [process.pid, *(child.pid for child in process.children(recursive=True))]:
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().split("\n")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        total += sum(int(line.split()[1]) << 10 for line in rollup if line.startswith(("Pss_Anon:", "Pss_Shmem:")))
    return total


def bytes_below(folder: Path) -> int:
    """What the files in a folder take, while others come and go."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def children_seconds() -> float:
    """Seconds of processor time that child processes which have ended took."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run_job(inputs: Path, output: Path, arguments: argparse.Namespace) -> tuple[int, int, float, float]:
    """Run the job; most bytes of memory and of the output's folder, seconds, and seconds of processor time."""
    command = [sys.executable, "-m", "preprocessing.make_shards", "--jsonl", f"{inputs}/*.jsonl"]
    command += ["--vocab", arguments.vocab, "--output", str(output), "--duplicates", str(arguments.duplicates)]
    command += ["--direct_running_mode=multi_processing", f"--direct_num_workers={arguments.workers}"]
    begun, used, peak, disk, looked = time.monotonic(), children_seconds(), 0, 0, 0.0
    process = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=sys.stderr)
    while process.poll() is None:
        peak = max(peak, anonymous(process))
        if time.monotonic() - looked > DISK_INTERVAL:
            disk, looked = max(disk, bytes_below(output)), time.monotonic()
        time.sleep(INTERVAL)
    if process.returncode:
        raise SystemExit(f"the job failed with exit code {process.returncode}: {' '.join(command)}")
    return peak, disk, time.monotonic() - begun, children_seconds() - used


def measure(paragraphs: list[list[str]], size: int, files: int, arguments: argparse.Namespace) -> Measured:
    """Make an input, run the job on it, and clean up."""
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as folder:
        inputs, output = Path(folder) / "inputs", Path(folder) / "shards"
        inputs.mkdir()
        write_inputs(inputs, paragraphs, size, files)
        peak, disk, seconds, cpu = run_job(inputs, output, arguments)
        manifest, written = ShardDirectory(output).manifest, bytes_below(output)
        if arguments.keep:
            shutil.rmtree(arguments.keep, ignore_errors=True)
            shutil.move(output, arguments.keep)
    counts = manifest.statistics["documents"]
    width = int(token_type(manifest.vocabulary.size).bit_width) // 8
    return Measured(
        text_bytes=size,
        files=files,
        tokens=manifest.statistics["tokens"],
        token_bytes=manifest.statistics["tokens"] * width,
        shards=len(manifest.shards),
        dropped=counts["read"] - counts["in_shards"],
        peak=peak,
        output=written,
        disk=disk,
        seconds=seconds,
        cpu=cpu,
    )


def print_table(measured: list[Measured]) -> None:
    """The measurements as a table in Markdown, and the slopes."""
    names = ["text, GB", "files", "tokens, millions", "token data, MB", "shards", "documents dropped",
             "peak memory, MB", "shards, GB", "most on disk, GB", "seconds", "CPU seconds"]  # fmt: skip
    rows = [
        [f"{job.text_bytes / 1e9:.2f}", str(job.files), f"{job.tokens / 1e6:.0f}", f"{job.token_bytes / 1e6:.0f}",
         str(job.shards), str(job.dropped), f"{job.peak / 1e6:.0f}", f"{job.output / 1e9:.2f}", f"{job.disk / 1e9:.2f}",
         f"{job.seconds:.0f}", f"{job.cpu:.0f}"]
        for job in measured
    ]  # fmt: skip
    print(markdown_table([names, *rows], range(len(names))))
    for files in sorted({job.files for job in measured}):
        own = sorted(job for job in measured if job.files == files)
        if len(own) > 1:
            slope = (own[-1].peak - own[0].peak) / (own[-1].token_bytes - own[0].token_bytes)
            print(f"\nfiles {files}: {slope:+.2f} bytes of memory for a byte of tokens")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="+", help="text files or globs")
    parser.add_argument("--vocab", required=True)
    parser.add_argument("--sizes", type=float, nargs="+", default=[0.25, 0.5, 1.0], metavar="GB")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--duplicates", type=int, default=5)
    parser.add_argument(
        "--files", type=int, nargs="+", help="in so many files each (default: in one, and in one a worker)"
    )
    parser.add_argument("--scratch", help="a folder with room for three times the largest size")
    parser.add_argument("--keep", help="a folder for the last job's shards; what is there is removed")
    arguments = parser.parse_args()
    paragraphs = paragraphs_of(arguments.text)
    print_table(
        [
            measure(paragraphs, round(size * 1e9), files, arguments)
            for files in arguments.files or (1, arguments.workers)
            for size in arguments.sizes
        ]
    )


if __name__ == "__main__":
    main()
