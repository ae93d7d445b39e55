"""What a check found, and all of it as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from preprocessing.markdown import markdown_table
from trainer.naming import name_some

State = Literal["ok", "warning", "wrong"]


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        check: what was looked at.
        state: "wrong" keeps a training from running, or from running well; a "warning" may.
        found: in a few words.
        advice: what to do; empty where all is well.
    """

    check: str
    state: State
    found: str
    advice: str = ""


Placed = tuple[str, Finding]  # the host that a finding was made on


def judge(check: str, found: str, advice: str, *, wrong: bool = False, warning: bool = False) -> Finding:
    """A finding whose advice counts only where something is not right."""
    state: State = "wrong" if wrong else "warning" if warning else "ok"
    return Finding(check, state, found, "" if state == "ok" else advice)


def table(placed: Sequence[Placed]) -> Iterator[str]:
    """What was found, equal findings of several hosts in one row; then, in sentences, what to do."""
    hosts = list(dict.fromkeys(host for host, _ in placed))
    found: dict[Finding, list[str]] = {}
    for host, finding in dict.fromkeys(placed):
        found.setdefault(finding, []).append(host)
    order = list(dict.fromkeys(finding.check for finding in found))
    rows = sorted(found, key=lambda finding: order.index(finding.check))
    yield markdown_table(
        [
            ["check", "", "found", "on"],
            *([finding.check, finding.state, finding.found, _names(found[finding], hosts)] for finding in rows),
        ]
    )
    for state in ("wrong", "warning"):
        for finding in rows:
            if finding.state == state:
                yield f"{state}, {finding.check}: {finding.found}. {finding.advice}"


def _names(some: Sequence[str], everywhere: Sequence[str]) -> str:
    if len(some) == len(everywhere) > 1:
        return f"all {len(everywhere)}"
    return name_some(some)
