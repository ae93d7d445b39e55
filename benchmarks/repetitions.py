"""How long the search for repeated lines or near duplicates takes, and how much memory, on records that are made up.

    python benchmarks/repetitions.py [--documents 200000] [--lines 25] [--repeated 0.1]
    python benchmarks/repetitions.py --near-duplicates 0.8 [--documents 200000] [--repeated 0.1]

The records lie in memory-mapped files, as between the passes of a job: runs of 4,000 documents, whose lines have random
hashes, and some of them those of other lines; or that have random signatures, and some of them nine tenths of another
document's. The memory is the search's own: mapped files are not counted.
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

from preprocessing.dedup import Review, Run
from preprocessing.fingerprints import PERMUTATIONS, RepeatRule
from preprocessing.token_buffer import LINES, documents_schema

PER_RUN = 4_000  # documents
LINE_TOKENS = 20
CHANGED = 0.1  # of the signature of a near duplicate


def main() -> None:
    """Print a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument("--lines", type=int, default=25, help="of a document")
    parser.add_argument("--repeated", type=float, default=0.1, help="share of the lines, or of the documents")
    parser.add_argument("--near-duplicates", type=float, metavar="SHARE", help="look for these, and for no lines")
    parser.add_argument("--scratch", help="a folder for the records: half a kilobyte a document, or 24 bytes a line")
    arguments = parser.parse_args()
    near, documents, lines = arguments.near_duplicates, arguments.documents, arguments.lines
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
        if near is None:
            runs = made_up(Path(scratch), documents, lines, arguments.repeated)
            looked_at, told = lines * documents, f"{lines * documents:,} lines of {documents:,} documents"
        else:
            runs = made_up(Path(scratch), documents, 0, 0.0, arguments.repeated)
            looked_at, told = documents, f"{documents:,} documents"
        rule = RepeatRule(documents=True, lines=near is None, line_characters=100, near_duplicates=near)
        seconds, memory, gone = watched(lambda: search(runs, rule))
    print(
        f"{told}, {gone:,} of them repeated: {seconds:.1f} s, {looked_at / seconds / 1e6:.2f} million a second, "
        f"{memory / documents:.0f} bytes of memory a document"
    )


def search(runs: list[Run], rule: RepeatRule) -> int:
    """How many lines, or documents, are dropped."""
    found = Review(runs, rule)
    if rule.lines:
        return sum(batch.num_rows for batch in found.drop_lines(1))  # each is written before the next is looked for
    return int(np.count_nonzero(found.lost))


def made_up(scratch: Path, documents: int, lines: int, repeated: float, near: float | None = None) -> list[Run]:
    """Records of a first pass, mapped from files.

    Args:
        scratch: the folder of the files.
        documents: how many.
        lines: of a document.
        repeated: the share of the lines that are elsewhere too.
        near: the share of the documents that are near duplicates; None for records without signatures.
    """
    generator = np.random.default_rng(1)
    runs = []
    for batch, first in enumerate(range(0, documents, PER_RUN)):
        count = min(PER_RUN, documents - first)
        numbers = generator.integers(0, 2**63, (3, count), dtype=np.uint64)
        names = [f"document-{first + row:09d}" for row in range(count)]
        tokens = np.full(count, lines * LINE_TOKENS, np.uint32)
        columns = [names, ["books"] * count, np.zeros(count, np.int64), *numbers, tokens]
        if near is not None:
            columns.append(signatures(generator, first, count, documents, near))
        documents_of = record_batch(columns, documents_schema(signatures=near is not None))
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


def signatures(generator: np.random.Generator, first: int, count: int, documents: int, near: float) -> pa.Array:
    """Those of the documents from one on, a share of which have nine tenths of what any other document has."""
    own = np.arange(first, first + count, dtype=np.uint64)
    of = np.where(generator.random(count) < near, generator.integers(0, documents, count, dtype=np.uint64), own)
    places = np.arange(PERMUTATIONS, dtype=np.uint64)
    changed = generator.random((count, PERMUTATIONS)) < CHANGED * (of != own)[:, None]
    values = mixed(np.where(changed, own[:, None], of[:, None]) * np.uint64(PERMUTATIONS) + places + np.uint64(1))
    return pa.FixedSizeListArray.from_arrays(
        pa.array((values >> np.uint64(32)).astype(np.uint32).ravel()), PERMUTATIONS
    )


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


def watched(work: Callable[[], int]) -> tuple[float, int, int]:
    """Seconds, the most bytes of memory that this process had more than before, without mapped files; the result."""
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
    result = work()
    seconds = time.perf_counter() - began
    done.set()
    watcher.join()
    return seconds, most, result


if __name__ == "__main__":
    main()
