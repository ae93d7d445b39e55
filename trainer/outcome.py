"""Whether to start a run again, for job scripts: launchers lose signals and exit codes, a file in the run stays.

python -m trainer.outcome RUN    prints one of these words, and the reason on stderr

word      exit code   RUN/outcome          what happened                                       what a job script does
done      0           done                 all steps are trained                               goes on to what comes next
requeue   10          requeue: REASON      asked to end, with a checkpoint                     starts the same command again
failed    11          failed: REASON       what will come again: wrong settings, bad data,     tells a person
                                           a diverged loss, no room for a checkpoint
crashed   12          none                 killed, out of memory, a node or a rank was lost,   starts it again, a few times
                                           or asked to end without room for a checkpoint
none      2           no such folder       a mistyped RUN, or no start has made it yet         tells a person; or makes RUN first
none      1           can't be read        storage fails, maybe for a moment only              asks again
"""  # noqa: E501  a table

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from preprocessing.command_line import OneLineParser, parse_path
from preprocessing.storage_errors import exit_code, is_passing, unavailable
from preprocessing.terminal import in_line, show, tell_error
from trainer.run_directory import RunDirectory

EXIT_CODES = {"done": 0, "requeue": 10, "failed": 11, "crashed": 12}
MISTAKE = 2  # the trainer's own exit code for a mistake in what was asked for


def main(argv: Sequence[str] | None = None) -> int:
    """Print how the trainer of a run directory ended; ask when it has ended."""
    parser = OneLineParser(
        prog="python -m trainer.outcome",
        description="Say how a run ended: " + ", ".join(f"{word} (exit code {n})" for word, n in EXIT_CODES.items()),
    )
    parser.add_argument("run", type=parse_path, metavar="RUN", help="the trainer's --output")
    run: Path = parser.parse_args(argv).run
    try:
        run.stat()
        outcome, unknown = RunDirectory(run).read_outcome()
    except OSError as error:
        told = (
            unavailable(run, error.strerror) if is_passing(error) else f"{run}: not a run directory ({error.strerror})"
        )
        tell_error(told)
        return exit_code(error)
    lacking = f"its outcome is none that is known here: {unknown}" if unknown else "it left no word of how it ended"
    word, reason = outcome or ("crashed", lacking)
    show(word)  # or not, as on a full disk: the exit code tells it too
    if reason:
        print(in_line(f"{run}: {reason}"), file=sys.stderr)
    return EXIT_CODES[word]


if __name__ == "__main__":
    sys.exit(main())
