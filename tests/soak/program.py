"""What the programs here share: their command line, and the page that says what was done and what came of it."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from tests.conftest import ROOT


class Trial(Protocol):
    def run(self, count: int) -> None: ...


Made = TypeVar("Made", bound=Trial)


def run_and_report(
    program: Path, doc: str, title: str, option: str, count: int, make: Callable[[Path, int], Made],
    figures: Callable[[Made, float], str],
) -> int:  # fmt: skip
    """Try something many times and write the page. Exits with 1, by an assertion, at the first difference.

    Args:
        program: its file.
        doc: what its file says of it: a title, its command, and what it does, which the page says as well.
        title: of the page.
        option: how many times.
        count: unless the command line says otherwise.
        make: the trial, from a directory of its own and a seed.
        figures: what came of it, which took so many seconds, in Markdown.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(option, dest="count", type=int, default=count)
    parser.add_argument("--seed", type=int, default=1, help="of what happens and when")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE.md")
    asked = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="soak-") as directory:
        made = make(Path(directory), asked.seed)
        made.run(asked.count)
    found = figures(made, time.monotonic() - began)
    name, what = program.relative_to(ROOT), doc.split("\n\n", 2)[2].strip()
    command = f"python {name} {option} {asked.count} --seed {asked.seed} --output {asked.output}"
    asked.output.write_text(f"# {title}\n\n    {command}\n\n{what}\n\n{found}", encoding="utf-8")
    return 0
