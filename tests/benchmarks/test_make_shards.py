"""Where the time of a preprocessing job goes."""

from __future__ import annotations

from pathlib import Path

import make_shards
from preprocessing.tokenization import SPECIAL_TOKENS


def test_every_stage_of_a_job_has_its_share_of_the_time(tmp_path: Path):
    words = ["the", "whale", "sank", "ship", "."]
    for number, book in enumerate(("the whale sank. the ship sank.", "the ship sank.")):
        (tmp_path / f"{number}.txt").write_text(f"{book}\n", "utf-8")
    vocabulary = tmp_path / "vocab"
    vocabulary.write_text("\n".join([*SPECIAL_TOKENS, *words]) + "\n", "utf-8")
    arguments = ("--books", tmp_path / "*.txt", "--vocab", vocabulary, "--output", tmp_path / "shards")
    job = make_shards.measured(make_shards.stages, *arguments)
    assert set(job.result) == {*make_shards.STAGES, make_shards.REST}
    assert all(seconds > 0 for seconds in job.result.values())
    assert sum(job.result.values()) <= job.cpu
