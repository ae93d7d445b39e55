from __future__ import annotations

import tracemalloc

import numpy as np
import pyarrow as pa

from preprocessing import files
from preprocessing.dedup import LOST, REPEATS
from preprocessing.layout import Span
from preprocessing.schema import lists
from preprocessing.second_pass import read_spans
from preprocessing.token_buffer import tokens_schema
from preprocessing.work_files import WorkFile
from tests.preprocessing import memory_filesystem
from tests.preprocessing.maker import job_at

DOCUMENTS, TOKENS, BATCHES = 100, 5000, 8


def test_of_files_that_are_far_away_a_shard_holds_its_own_rows_in_memory_and_no_others() -> None:
    """Each batch is read whole there: kept so, they would be the tokens of the whole corpus."""
    memory_filesystem.FILES.clear()
    job = job_at("memory://bucket/out")
    names = pa.array([f"d{number}" for number in range(DOCUMENTS)])
    tokens = lists([np.full(TOKENS, number, np.uint16) for number in range(DOCUMENTS)], pa.uint16())
    ends = lists([np.array([TOKENS], np.int32)] * DOCUMENTS, pa.int32())
    batch = pa.RecordBatch.from_arrays([names, names, names, tokens, ends], schema=tokens_schema(100))
    with files.publish_arrow(job.unit_files(0).tokens, job.work, batch.schema) as writer:
        for _ in range(BATCHES):
            writer.write_batch(batch)
    for path, schema in ((job.path(WorkFile.LOST), LOST), (job.path(WorkFile.REPEATS), REPEATS)):
        with files.publish_arrow(path, job.work, schema) as writer:
            writer.write_batch(pa.RecordBatch.from_pylist([], schema))
    arrow = pa.total_allocated_bytes()
    tracemalloc.start()
    rows = read_spans(job, [Span(0, number, 5, 7, 2 * TOKENS) for number in range(BATCHES)])
    held = tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes() - arrow
    tracemalloc.stop()
    assert rows.table.column("doc_id").to_pylist() == ["d5", "d6"] * BATCHES
    assert rows.table.column("tokens").to_pylist() == [[5] * TOKENS, [6] * TOKENS] * BATCHES
    assert held < batch.nbytes, "of eight such batches"
