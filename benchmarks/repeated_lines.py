"""How long the search for repeated lines takes, and how much memory, on records that are made up.

    python benchmarks/repeated_lines.py [--documents 200000] [--lines 25] [--repeated 0.1]

The records lie in memory-mapped files, as between the passes of a job: runs of 4,000 documents, whose lines have random
hashes, and some of them those of other lines. The memory is the search's own: mapped files are not counted.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa

from preprocessing.dedup import Run, review
from preprocessing.fingerprints import RepeatRule
from preprocessing.token_buffer import LINES, documents_schema

PER_RUN = 4_000  # documents
LINE_TOKENS = 20


def main() -> None:
    """Print a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument("--lines", type=int, default=25, help="of a document")
    parser.add_argument("--repeated", type=float, default=0.1, help="share of the lines")
    arguments = parser.parse_args()
    rule = RepeatRule(documents=True, lines=True, line_characters=100, near_duplicates=None)
    with tempfile.TemporaryDirectory() as scratch:
        runs = made_up(Path(scratch), arguments.documents, arguments.lines, arguments.repeated)
        gone = 0

        def search() -> None:
            nonlocal gone
            for batch in review(runs, rule).drop_lines(1):  # each is written before the next is looked for
                gone += batch.num_rows

        seconds, memory = watched(search)
    lines = arguments.documents * arguments.lines
    print(
        f"{lines:,} lines of {arguments.documents:,} documents, {gone:,} of them repeated: {seconds:.1f} s, "
        f"{lines / seconds / 1e6:.1f} million lines/s, {memory / arguments.documents:.0f} bytes of memory a document"
    )


def made_up(scratch: Path, documents: int, lines: int, repeated: float) -> list[Run]:
    """Records of a first pass, mapped from files."""
    generator = np.random.default_rng(1)
    runs = []
    for batch, first in enumerate(range(0, documents, PER_RUN)):
        count = min(PER_RUN, documents - first)
        numbers = generator.integers(0, 2**63, (3, count), dtype=np.uint64)
        names = [f"document-{first + row:09d}" for row in range(count)]
        tokens = np.full(count, lines * LINE_TOKENS, np.uint32)
        columns = [names, ["books"] * count, np.zeros(count, np.int64), *numbers, tokens]
        documents_of = record_batch(columns, documents_schema(signatures=False))
        line = np.arange(first * lines, (first + count) * lines, dtype=np.uint64)
        other = generator.integers(0, documents * lines, count * lines, dtype=np.uint64)
        hashes = mixed(np.where(generator.random(count * lines) < repeated, other, line))
        rows, places = np.divmod(np.arange(count * lines, dtype=np.uint32), np.uint32(lines))
        order = np.argsort(hashes)
        spans = [hashes, rows, places, places + np.uint32(1), np.full(count * lines, LINE_TOKENS, np.uint32)]
        lines_of = record_batch([column[order] for column in spans], LINES)
        runs.append(
            Run(
                0, batch, *(mapped(scratch / f"{batch}-{kind}", of) for kind, of in enumerate((documents_of, lines_of)))
            )
        )
    return runs


def mixed(numbers: np.ndarray) -> np.ndarray:
    """Numbers spread over 64 bits, equal ones alike."""
    return numbers * np.uint64(0x9E3779B97F4A7C15)  # modulo 2^64


def record_batch(columns: list[object], schema: pa.Schema) -> pa.RecordBatch:
    """Columns of a schema's types."""
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def mapped(path: Path, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same, from a file that is mapped."""
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)
    return pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)


def watched(work: Callable[[], object]) -> tuple[float, int]:
    """Seconds, and the most bytes of memory that this process had more than before, without mapped files."""
    process, done, most = psutil.Process(), threading.Event(), 0

    def anonymous() -> int:
        memory = process.memory_info()
        return int(memory.rss - memory.shared)

    before = anonymous()

    def look() -> None:
        nonlocal most
        while not done.wait(0.01):
            most = max(most, anonymous() - before)

    watcher = threading.Thread(target=look)
    watcher.start()
    began = time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    done.set()
    watcher.join()
    return seconds, most


if __name__ == "__main__":
    main()
