"""Storage that fails while shards are made.

    python tests/soak/storage_shards.py --starts 300 --output docs/results/storage_shards.md

A small dump and some books become shards, with a vocabulary of their own, without near duplicates; a benchmark is
looked for in them. In each start one of the C library's file operations below the output, or below the inputs, fails,
or it and all others for a while: as a disk or a network's storage that is away does, or a full disk. The command must
end in a line and never in a traceback, whatever failed, and with exit code 2 only where a disk is full; the same
command must then come to the shards, the tokenizer and the manifest of the undisturbed one, byte for byte. Some
starts go on with a job that was interrupted, and some have two worker processes.
"""

from __future__ import annotations

import errno
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import tests.conftest  # noqa: F401  sets the environment as for the tests
from preprocessing.make_shards import main as make_shards
from tests.preprocessing.maker import TWO_PROCESSES
from tests.preprocessing.test_inputs import text
from tests.preprocessing.test_wikipedia import SITEINFO, page
from tests.preprocessing.test_wikipedia_parts import multistream
from tests.soak.failing_storage import Campaign, Fault, forked, main

BEGINS, GOES_ON, INPUTS = "an output", "an interrupted job's output", "inputs"
OF_WORKERS, INPUTS_OF_WORKERS = "an output of worker processes", "inputs of worker processes"
_KINDS = {".arrow": "shards", ".bz2": "the dump", ".txt": "books"}


class Shards(Campaign):
    """Starts of make_shards."""

    cases = (*(BEGINS, GOES_ON, INPUTS) * 4, OF_WORKERS, INPUTS_OF_WORKERS)  # the latter two take ten times as long

    def __init__(self, directory: Path, seed: int):
        super().__init__(directory, seed)
        self._inputs, self._output, self._begun = directory / "inputs", directory / "output", directory / "begun"
        (self._inputs / "benchmark").mkdir(parents=True)
        (self._inputs / "benchmark" / "dev.tsv").write_text(f"sentence\tlabel\n{text(3, 3)}\t1\n")
        pages = [page(text(number % 40), number=number) for number in range(1, 50)]
        (self._inputs / "dump.xml.bz2").write_bytes(multistream(SITEINFO, pages))
        for number in range(100, 106):
            (self._inputs / f"{number}.txt").write_text(text(number))
        whole = self.attempt(self.begin(BEGINS))
        self.attempt(self.begin(BEGINS), Fault(whole.met * 3 // 4, errno.EIO, 600.0))
        shutil.copytree(self._output, self._begun)
        assert (self._begun / "job.json").exists()
        assert not (self._begun / "manifest.json").exists()

    def begin(self, case: str) -> Path:
        shutil.rmtree(self._output, ignore_errors=True)
        if case == GOES_ON:
            shutil.copytree(self._begun, self._output)
        self._options = TWO_PROCESSES if case in (OF_WORKERS, INPUTS_OF_WORKERS) else ()
        return self._inputs if case in (INPUTS, INPUTS_OF_WORKERS) else self._output

    def command(self) -> int:
        words = ["--wikipedia", self._inputs / "dump.xml.bz2", "--books", self._inputs / "*.txt",
                 "--contamination", self._inputs / "benchmark", "--near-duplicates", 0.8,
                 "--train-vocab", 200, "--num-shards", 2, "--sequence-lengths", 32, "--validation-fraction", 0.2,
                 "--output", self._output, *self._options]  # fmt: skip
        return forked(self.log, make_shards, [str(word) for word in words])

    def state(self) -> object:
        return {path.relative_to(self._output): path.read_bytes() for path in self._output.rglob("*") if path.is_file()}

    def place_of(self, path: str, case: str) -> str:
        name = path.split("/")[0]
        return f"{case}, {_KINDS.get(Path(name).suffix, name) or 'the folder'}"


if __name__ == "__main__":
    sys.exit(main(Path(__file__), __doc__, Shards, 300))
