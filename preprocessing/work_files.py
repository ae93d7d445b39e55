"""The names of a job's intermediate files: what lies in .work under no such name is somebody else's."""

from __future__ import annotations

import re
from enum import StrEnum
from string import Formatter

WORK = ".work"
LOCK = f"{WORK}/lock"  # there for as long as a job is at work
_WRITTEN = {
    "unit": r"\d+",
    "shard": r"(?:validation-)?shard-\d+-of-\d+\.arrow",
    "place": r"[\w.-]+",
    "attempt": "[0-9a-f]+",
}


class WorkFile(StrEnum):
    """An intermediate file, by its name; ``format`` puts in of which unit, shard or place it is."""

    VOCABULARY = "vocab.txt"  # where every worker can read it
    TOKENS = "tokens-{unit:05d}.arrow"  # these three are what the first pass makes of a unit: token_buffer.Batch
    DOCUMENTS = "documents-{unit:05d}.arrow"
    LINES = "lines-{unit:05d}.arrow"
    UNIT_NOTE = "tokens-{unit:05d}.json"  # is there once these are whole
    READING_NOTE = "reading-{unit:05d}.json"  # how far a large unit is, for the line of progress alone
    SAMPLE = "sample-{unit:05d}.arrow"  # what a vocabulary is trained on, of a unit
    BENCHMARK_SEQUENCES = "benchmark-sequences.arrow"  # what is looked for in the corpus: contamination.SEQUENCES
    BENCHMARK_TEXTS = "benchmark-texts.arrow"  # the texts that these are of: contamination.TEXTS
    FOUND = "found-{unit:05d}.arrow"  # what of a benchmark is in a unit: contamination.FOUND
    LOST = "lost.arrow"  # which documents are dropped: dedup.LOST
    REPEATS_BY_HASH = "repeats-by-hash.arrow"  # which lines are, as they are found: dedup.REPEATS
    REPEATS = "repeats.arrow"  # the same by row
    DROPS_NOTE = "drops.json"  # is there once these two are whole
    SHARD_NOTE = "{shard}.json"  # is there once the shard is whole
    ERROR = "error-{place}"  # what a worker tells the user, since runners pass on exceptions each in their own way
    DAMAGE_ERROR = "error-damage-{place}"  # of those, that an input is damaged: what is done is right all the same
    STORAGE_ERROR = "error-storage-{place}"  # that nothing more can be written, or an input is gone or another
    PASSING_ERROR = "error-passing-{place}"  # that the output's storage fails or an input's, which may pass
    STUCK_ERROR = "error-stuck-{place}"  # that a document takes for ever
    UNFINISHED = "tmp-{attempt}"  # of any file, until it is whole

    @property
    def beginning(self) -> str:
        """What all names of this kind begin with."""
        return self.partition("{")[0]

    def fits(self, name: str) -> bool:
        """Whether a file of the folder is of this kind."""
        return _PATTERNS[self].fullmatch(name) is not None


def _pattern(kind: WorkFile) -> re.Pattern[str]:
    parts = Formatter().parse(kind)
    return re.compile("".join(re.escape(text) + (_WRITTEN[what] if what else "") for text, what, *_ in parts))


_PATTERNS = {kind: _pattern(kind) for kind in WorkFile}


def is_work_file(name: str) -> bool:
    """Whether a file of the output directory, by its path in it, is an intermediate one of a job."""
    folder, _, name = name.partition("/")
    return folder == WORK and any(kind.fits(name) for kind in WorkFile)
