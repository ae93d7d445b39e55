"""Raw dumps and books to shards: the command.

    beam run preprocessing/make_shards.py --books 'books/*.txt' --vocab vocab.txt --output shards/

What happens is in preprocessing.transforms; this file is run as a script, so nothing of it may enter the graph.
"""

from __future__ import annotations

import sys
from pathlib import Path

# Python puts a script's own folder first on the module path, where our inspect.py would hide the standard library's,
# which nearly every other import wants.
if sys.path and Path(sys.path[0]).resolve() == Path(__file__).resolve().parent:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import logging
import time
from collections.abc import Sequence

from preprocessing.extras import needs

if __name__ == "__main__":  # before Beam is imported, which warns of Google's client libraries, wanted or not
    logging.getLogger().setLevel(logging.ERROR)
with needs("preprocess"):
    from preprocessing import files, launch, options
    from preprocessing.encoder import EncoderError
    from preprocessing.interruption import end_when_interrupted
    from preprocessing.job_lock import alone
    from preprocessing.layout import ShardingError
    from preprocessing.output import FAILED, JobError, JobFailedError, check_own
    from preprocessing.schema import ShardError
    from preprocessing.sources import SourceError, StorageError
    from preprocessing.storage_errors import UnavailableError, exit_code
    from preprocessing.summary import summary
    from preprocessing.terminal import in_line, show, tell_error
    from preprocessing.tokenization import VocabularyError


def run(argv: Sequence[str]) -> None:
    """Make shards, or find that they are made; see --help.

    Raises:
        ValueError, StorageError: of the kinds that main tells, for anything the user can put right.
    """
    arguments = options.parse(argv)
    files.set_options(arguments.beam)
    output = files.absolute(arguments.output)
    job, inputs, units, vocabulary = launch.prepare(arguments, output)
    job, benchmark = launch.with_benchmark(job, arguments.contamination)
    check_own(output)
    with alone(output, launch.note):
        if launch.begin(job, inputs, vocabulary, arguments, benchmark) == "finished":
            show(in_line(f"{output}: these shards are finished already; nothing to do"))
            return
        begun = time.monotonic()
        units = launch.locate(job, units)
        job = launch.provide_vocabulary(job, units, arguments.beam)
        manifest = launch.execute(job, units, arguments.beam)
    show(summary(manifest, output, inputs, time.monotonic() - begun))


def main(argv: Sequence[str] | None = None) -> None:
    """The command: errors in one line, exit code 2 for the user's and 1 for those that may pass."""
    try:
        run(sys.argv[1:] if argv is None else argv)
    except (
        EncoderError, JobError, JobFailedError, ShardError, ShardingError, SourceError, StorageError, UnavailableError,
        VocabularyError,
    ) as error:  # fmt: skip
        tell_error(error, "make_shards")
        raise SystemExit(FAILED if isinstance(error, JobFailedError) else exit_code(error)) from error


if __name__ == "__main__":
    end_when_interrupted("make_shards: interrupted; the same command goes on with this job")
    main()
