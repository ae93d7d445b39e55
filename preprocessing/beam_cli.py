"""The `beam` command: run a pipeline file with its arguments.

Apache Beam has no command of its own; `beam run FILE ARGS` is `python FILE ARGS` with checks that name what is wrong.
"""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from preprocessing.command_line import OneLineParser
from preprocessing.status import is_file

EPILOG = """\
example:
  beam run preprocessing/make_shards.py --help
"""


def parser() -> OneLineParser:
    """The parser of the `beam` command."""
    parser = OneLineParser(
        prog="beam",
        description="Run an Apache Beam pipeline.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run a pipeline file", description="Run a pipeline file in this process.")
    run.add_argument("file", metavar="FILE", help="a Python file, such as preprocessing/make_shards.py")
    run.add_argument("arguments", metavar="...", nargs=argparse.REMAINDER, help="its arguments and options for Beam")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Run the pipeline file as the main program.

    Raises:
        SystemExit: with code 2 for a command line that can't be run; else whatever the pipeline file ends with.
    """
    ours = parser()
    found = ours.parse_args(argv)
    file = Path(found.file)
    if not is_file(file):
        ours.error(f"{file}: no such file; run this from the root of the repository or give the whole path")
    if file.suffix != ".py":
        ours.error(f"{file}: not a Python file (.py)")
    sys.argv, sys.path[0] = [str(file), *found.arguments], str(file.resolve().parent)
    runpy.run_path(str(file), run_name="__main__")


if __name__ == "__main__":
    main()
